//! A leader with an address that others look up: see the README.

#![allow(clippy::disallowed_methods, reason = "a play lives in real time")]

mod node;
mod play;

use std::{env, error::Error, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match arguments[..] {
        [node::VERB, name, url] => node::run(name, url),
        [] => on_a_file(),
        [url] if url.starts_with("memory:") => {
            Err("a lock in memory is seen by one process only; name a store that all can see".into())
        }
        [url] if !url.starts_with('-') => play::run(url),
        _ => Err("usage: leader-address [URL]".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leader-address: {}", in_full(&*error));
            ExitCode::FAILURE
        }
    }
}

/// With the locks in a file that is gone afterwards.
fn on_a_file() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    play::run(&format!("sqlite:{}", folder.path().join("locks.db").display()))
}

/// The error and what caused it.
fn in_full(error: &dyn Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", in_full(cause)));
    format!("{error}{}", cause.unwrap_or_default())
}

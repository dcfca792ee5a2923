//! A nightly job on three hosts, of which one runs it: see the README.

#![allow(clippy::disallowed_methods, reason = "a play lives in real time")]

mod host;
mod play;

use std::{env, error::Error, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match arguments[..] {
        [host::VERB, name, url, folder] => host::run(name, url, Path::new(folder)),
        [] => in_a_folder(None),
        [url] if url.starts_with("memory:") => {
            Err("a lock in memory is seen by one process only; name a store that all can see".into())
        }
        [url] if !url.starts_with('-') => in_a_folder(Some(url)),
        _ => Err("usage: nightly-job [URL]".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nightly-job: {}", in_full(&*error));
            ExitCode::FAILURE
        }
    }
}

/// In a folder that is gone afterwards, with the locks there if no store is named.
fn in_a_folder(url: Option<&str>) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let own = format!("sqlite:{}", folder.path().join("locks.db").display());
    play::run(url.unwrap_or(&own), folder.path())
}

/// The error and what caused it.
fn in_full(error: &dyn Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", in_full(cause)));
    format!("{error}{}", cause.unwrap_or_default())
}

//! A late write, with a fence and without: see the README.

mod holder;
mod play;

use std::{
    env,
    error::Error,
    path::{Path, PathBuf},
    process::ExitCode,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match arguments[..] {
        [holder::VERB, name, url, folder] => holder::run(name, url, Path::new(folder)),
        [] => in_a_folder(None, None),
        [url] if !url.starts_with('-') => in_a_folder(Some(url), None),
        [url, folder] if !url.starts_with('-') => in_a_folder(Some(url), Some(folder.into())),
        _ => Err("usage: fenced-write [URL [FOLDER]]".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fenced-write: {}", in_full(&*error));
            ExitCode::FAILURE
        }
    }
}

/// In that folder, or in one that is gone afterwards.
fn in_a_folder(url: Option<&str>, folder: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    if url.is_some_and(|url| url.starts_with("memory:")) {
        return Err("a lock in memory is seen by one process only; name a store that two can see".into());
    }
    let passing = tempfile::tempdir()?;
    let folder = folder.unwrap_or_else(|| passing.path().to_owned());
    let own = format!("sqlite:{}", passing.path().join("locks.db").display());
    play::run(url.unwrap_or(&own), &folder)
}

/// The error and what caused it.
fn in_full(error: &dyn Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", in_full(cause)));
    format!("{error}{}", cause.unwrap_or_default())
}

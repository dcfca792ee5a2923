//! The exit codes, and the one line of error that goes with each.

use std::{error::Error, io, process::ExitCode};

use nix::sys::signal::Signal;
use tenure::{AcquireError, BackendError, command::shown};

use crate::text;

/// `-E`, as `flock` does.
pub(crate) const CONFLICT: u8 = 1;
/// `doctor` found something more severe than a note.
pub(crate) const FINDINGS: u8 = 1;
/// The command was used wrongly.
pub(crate) const USAGE: u8 = 64;
/// The store is unavailable, damaged, read-only, or was written by a newer version of tenure.
pub(crate) const UNAVAILABLE: u8 = 69;
/// A bug or a failing system.
pub(crate) const INTERNAL: u8 = 70;
/// `--lost-exit-code`: the lease was lost, or there was nothing to renew or to unlock.
pub(crate) const LOST: u8 = 79;
/// The command was found but cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// Plus the number of a signal.
pub(crate) const SIGNAL: u8 = 128;

/// Why `tenure` ends, other than with the command's own exit code.
#[derive(Debug)]
pub(crate) struct Stop {
    code: u8,
    /// Printed unless it is empty.
    line: String,
}

impl Stop {
    pub(crate) fn new(code: u8, line: impl Into<String>) -> Self {
        Self { code, line: line.into() }
    }

    pub(crate) fn usage(line: impl Into<String>) -> Self {
        Self::new(USAGE, line)
    }

    pub(crate) fn internal(line: impl Into<String>) -> Self {
        Self::new(INTERNAL, line)
    }

    pub(crate) fn signalled(signal: Signal) -> Self {
        Self::new(SIGNAL.wrapping_add(u8::try_from(signal as i32).unwrap_or(0)), "")
    }

    /// The store failed.
    pub(crate) fn store(error: &BackendError) -> Self {
        Self::new(UNAVAILABLE, chain(error))
    }

    /// Not acquired; `conflict` is the code for a lock that another owner holds.
    pub(crate) fn not_acquired(error: &AcquireError, conflict: u8, line: impl FnOnce() -> String) -> Self {
        match error {
            AcquireError::TimedOut { .. } => Self::new(conflict, line()),
            AcquireError::Config(error) => Self::usage(error.to_string()),
            AcquireError::Store(error) => Self::store(error),
            other => Self::internal(chain(other)),
        }
    }
}

/// Prints the reason, in one line, and returns the exit code.
pub(crate) fn say(stop: &Stop) -> ExitCode {
    if !stop.line.is_empty() {
        warn(&stop.line);
    }
    ExitCode::from(stop.code)
}

/// One line on the standard error, which may be closed.
pub(crate) fn warn(line: &str) {
    let line = format!("tenure: {}", shown(line).within(8192));
    let _ = text::write(&mut io::stderr(), &text::fitted(&line));
}

/// The error and its sources, each once, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let text = error.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        source = error.source();
    }
    shown(&line.replace(['\n', '\r'], " ")).within(4096).to_string()
}

/// The message of clap without its tips and its usage block, and without control characters.
pub(crate) fn one_line(error: &clap::Error) -> String {
    let text = match error.kind() {
        clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | clap::error::ErrorKind::MissingSubcommand => "a command is missing".to_owned(),
        _ => error.to_string(),
    };
    // The message quotes what the user wrote, which may contain empty lines.
    let ends = ["\n\n  tip:", "\n\nUsage:", "\n\nFor more"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    let message = text[..end].strip_prefix("error: ").unwrap_or(&text[..end]);
    // A URL in a wrong place may hold a password, which may hold blanks: clap ends a quotation with `' `.
    let message = match message.split_once("://") {
        Some((before, url)) => format!("{before}://…{}", url.rfind("' ").map_or("", |end| &url[end..])),
        None => message.to_owned(),
    };
    let words: Vec<&str> = message.split_whitespace().collect();
    format!("{}; try `tenure --help`", shown(&words.join(" ")).within(4096))
}

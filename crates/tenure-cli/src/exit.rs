//! The exit codes, and the one line of error that goes with each.

use std::{error::Error, fmt::Display, process::ExitCode, time::Duration};

use nix::sys::signal::Signal;
use tenure::{AcquireError, BackendError, ErrorKind, command::shown};

use crate::{death, lines, text};

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

/// How long to wait until the last lines are written. No lock is held by then, and the reader may be a pager.
pub(crate) const LAST_LINES: Duration = Duration::from_secs(30);

/// Why `tenure` ends, other than with the command's own exit code.
#[derive(Debug)]
pub(crate) struct Stop {
    code: u8,
    /// Printed unless it is empty.
    line: String,
    /// The store refused what was asked for: it did not fail.
    is_refused: bool,
}

impl Stop {
    pub(crate) fn new(code: u8, line: impl Into<String>) -> Self {
        Self { code, line: line.into(), is_refused: false }
    }

    pub(crate) fn usage(line: impl Into<String>) -> Self {
        Self::new(USAGE, line)
    }

    pub(crate) fn internal(line: impl Into<String>) -> Self {
        Self::new(INTERNAL, line)
    }

    /// The same, and which lock it is about.
    pub(crate) fn of(self, lock: impl Display) -> Self {
        let line = if self.line.is_empty() { self.line } else { format!("{lock}: {}", self.line) };
        Self { line, ..self }
    }

    pub(crate) fn signalled(signal: Signal) -> Self {
        death::ended_by(signal, false);
        Self::new(death::code(signal), "")
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// The store failed, or refused.
    pub(crate) fn store(error: &BackendError) -> Self {
        Self { is_refused: error.kind() == ErrorKind::Invalid, ..Self::new(UNAVAILABLE, chain(error)) }
    }

    /// Not acquired; `conflict` is the code for a lock that another owner holds.
    pub(crate) fn not_acquired(error: &AcquireError, conflict: u8, line: impl FnOnce() -> String) -> Self {
        match error {
            AcquireError::TimedOut { .. } | AcquireError::GaveWay { .. } => Self::new(conflict, line()),
            AcquireError::Config(error) => Self::usage(error.to_string()),
            AcquireError::Store(error) => Self::store(error),
            other => Self::internal(chain(other)),
        }
    }
}

/// Says why, in one line, and turns it into an exit code: the one place for what ends the command.
pub(crate) fn say(stop: &Stop) -> ExitCode {
    tell(stop);
    lines::flush(LAST_LINES);
    ExitCode::from(stop.code)
}

/// The same, without waiting until it is written.
pub(crate) fn tell(stop: &Stop) {
    if !stop.line.is_empty() {
        warn(&ending(&stop.line, stop.code));
    }
}

/// A line that ends the command has its exit code, for a mail of cron or a journal, which do not show it.
pub(crate) fn ending(line: &str, code: u8) -> String {
    format!("{line} [exit {code}]")
}

/// One line on the standard error, which may be closed, or full.
pub(crate) fn warn(line: &str) {
    let line = format!("tenure: {}", shown(line).within(8192));
    lines::say(text::fitted(&line));
}

/// The error and its sources, each said once, in one line: one that repeats what was said is left out.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let (mut said, mut source) = (line.to_lowercase(), error.source());
    while let Some(error) = source {
        let text = error.to_string();
        let lower = text.to_lowercase();
        if !line.to_lowercase().contains(&lower) && !lower.contains(&said) {
            line = format!("{line}: {text}");
        }
        (said, source) = (lower, error.source());
    }
    shown(&line.replace(['\n', '\r'], " ")).within(4096).to_string()
}

/// The message of clap in one line with its tip and the help page of the verb, without control characters.
pub(crate) fn one_line(error: &clap::Error, verb: Option<&str>) -> String {
    let help = verb.map_or_else(|| "`tenure --help`".to_owned(), |verb| format!("`tenure {verb} --help`"));
    let text = match error.kind() {
        clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | clap::error::ErrorKind::MissingSubcommand => "a command is missing".to_owned(),
        _ => error.to_string(),
    };
    // What the user wrote is part of the message and may have empty lines of its own.
    let ends = [TIP, "\n\nUsage:", "\n\nFor more"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    let message = text[..end].strip_prefix("error: ").unwrap_or(&text[..end]);
    // A URL that stands where none belongs may hold a password, which may hold blanks: clap ends what it quotes with `'
    // `.
    let (message, is_url) = match message.split_once("://") {
        Some((before, url)) => {
            (format!("{before}://…{}", url.rfind("' ").map_or("", |end| &url[end..])), true)
        }
        None => (message.to_owned(), false),
    };
    let words: Vec<&str> = message.split_whitespace().collect();
    let end = match tip(error).filter(|_| !is_url) {
        Some(tip) => format!("; did you mean {tip}?"),
        None => usage(&text).map_or_else(|| ".".to_owned(), |usage| format!("; usage: {usage}.")),
    };
    format!("{}{end} See {help}", shown(&words.join(" ")).within(4096))
}

/// The suggestion of clap: a flag, a verb or a value that is similar.
fn tip(error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind::*, ContextValue};
    let near =
        [SuggestedArg, SuggestedSubcommand, SuggestedValue].into_iter().find_map(|kind| error.get(kind));
    match near? {
        ContextValue::String(one) => Some(one.clone()),
        ContextValue::Strings(some) if !some.is_empty() => Some(some.join(" or ")),
        _ => None,
    }
}

/// The usage of a verb, where something is missing.
fn usage(text: &str) -> Option<&str> {
    let is_missing = text.contains("arguments were not provided");
    text.split_once("Usage: ").filter(|_| is_missing)?.1.lines().next()
}

/// Before the tip of clap.
const TIP: &str = "\n\n  tip:";

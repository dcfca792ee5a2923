//! Death by a signal: a shell, `make` or `xargs` around `tenure` ends its loop if it sees a death by INT, and continues after
//! an exit with 130.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode, id},
    sync::OnceLock,
};

use nix::{
    sys::signal::{
        Signal::{self, SIGINT, SIGQUIT},
        killpg, raise,
    },
    unistd::getpgrp,
};
use rustix::process::{Resource, Rlimit, setrlimit};

/// How the command, or a wait, was ended by a key.
static ENDED_BY: OnceLock<(Signal, bool)> = OnceLock::new();

/// This signal ended a wait or the command; `of_all` if its key was pressed for the whole job, of which the command
/// alone had the terminal.
pub(crate) fn ended_by(signal: Signal, of_all: bool) {
    if matches!(signal, SIGINT | SIGQUIT) {
        let _ = ENDED_BY.set((signal, of_all));
    }
}

/// The exit code of an end by this signal.
pub(crate) fn code(signal: Signal) -> u8 {
    128_u8.wrapping_add(u8::try_from(signal as i32).unwrap_or(0))
}

/// The signal that is the reason for this exit code, by its number; `true`: and for the group.
pub(crate) fn reason(exit_code: u8) -> Option<(i32, bool)> {
    let found = ENDED_BY.get().filter(|(signal, _)| code(*signal) == exit_code);
    found.map(|(signal, of_all)| (*signal as i32, *of_all))
}

/// Dies by the signal if it is the reason for this exit code. Process 1 cannot. `ourselves` is this program.
pub(crate) fn die_if(exit_code: u8, ourselves: &Path) {
    let Some((signal, of_all)) = ENDED_BY.get().filter(|(signal, _)| code(*signal) == exit_code) else {
        return;
    };
    if id() != 1 {
        // As a new program, because this one handles the signal.
        let whom = if *of_all { "group" } else { "process" };
        let _ = Command::new(ourselves).arg0("tenure").args([VERB, signal.as_str(), whom]).exec();
    }
}

/// Dies by this signal, if this process can.
pub(crate) fn die_by(signal: Signal, ourselves: &Path) {
    if id() != 1 {
        let _ = Command::new(ourselves).arg0("tenure").args([VERB, signal.as_str(), "process"]).exec();
    }
}

/// `__die SIGNAL group|process`
pub(crate) fn die(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<String> = arguments.filter_map(|argument| argument.into_string().ok()).collect();
    let Some(signal) = arguments.first().and_then(|name| name.parse::<Signal>().ok()) else {
        return ExitCode::FAILURE;
    };
    // No core dump for QUIT: it would show nothing about the command.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = match arguments.get(1).is_some_and(|whom| whom == "group") {
        true => killpg(getpgrp(), signal),
        false => raise(signal),
    };
    // It was blocked when `tenure` started.
    ExitCode::from(code(signal))
}

/// Not a verb for people.
pub(crate) const VERB: &str = "__die";

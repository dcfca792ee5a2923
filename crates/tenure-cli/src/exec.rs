//! The step between fork and the command: asks to die with its parent, takes the foreground, then executes the command.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read},
    os::{fd::RawFd, unix::process::parent_id},
    path::PathBuf,
    process::ExitCode,
};

use nix::{
    sys::signal::{SigSet, Signal},
    unistd::{close, getpid},
};

use crate::{
    exit, inherited,
    terminal::{GIVEN, REFUSED, Terminal},
};

/// Not a verb for people.
pub(crate) const VERB: &str = "__exec";

/// The path of this program, even if its file was replaced meanwhile.
pub(crate) fn ourselves() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// `__exec PARENT GATE KEYBOARD SIGNALS COMMAND ARG...`
pub(crate) fn exec(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut flag = || arguments.next().and_then(|text| text.into_string().ok()).unwrap_or_default();
    let (parent, gate, keyboard, signals) = (flag(), flag(), flag(), flag());
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    if parent_id() == 0 {
        exit::warn("the command would run in another PID namespace, where tenure cannot watch over it");
        return ExitCode::from(exit::INTERNAL);
    }
    // The parent may have died before the death signal was set.
    if parent_id().to_string() != parent {
        return ExitCode::from(exit::LOST);
    }
    match opens(&gate) {
        Ok(true) => {}
        Ok(false) => return ExitCode::from(exit::LOST),
        Err(error) => {
            exit::warn(&format!("the command cannot be started: {error}"));
            return ExitCode::from(exit::INTERNAL);
        }
    }
    match keyboard.as_str() {
        GIVEN => Terminal::give_to(getpid()),
        REFUSED => {
            // A process that blocks this signal gets an error when it reads in the background, and is not suspended.
            let mut refused = SigSet::empty();
            refused.add(Signal::SIGTTIN);
            let _ = refused.thread_block();
        }
        _ => {}
    }
    let argv: Vec<OsString> = arguments.collect();
    let Some(program) = argv.first().cloned() else { return ExitCode::from(exit::USAGE) };
    let error = inherited::execute(argv, &signals);
    let (code, why) = match error.kind() {
        io::ErrorKind::NotFound => (exit::NOT_FOUND, "not found".to_owned()),
        _ => (exit::NOT_EXECUTABLE, error.to_string()),
    };
    exit::warn(&format!("{}: {why}", program.to_string_lossy()));
    ExitCode::from(code)
}

/// Waits until the watcher process knows our pid, and so can kill us if our parent cannot. False if that never happens.
fn opens(gate: &str) -> io::Result<bool> {
    let number: RawFd = gate.parse().map_err(io::Error::other)?;
    // By name, because an inherited descriptor cannot be used by its number without `unsafe`.
    let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    let said = File::open(format!("{folder}/{number}")).and_then(|mut gate| gate.read(&mut [0]));
    let _ = close(number);
    Ok(said? == 1)
}

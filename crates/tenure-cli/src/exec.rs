//! The step between fork and the command: asks to die with its parent, takes the foreground, then executes the command.

use std::{
    ffi::OsString,
    io,
    os::{fd::RawFd, unix::process::parent_id},
    path::PathBuf,
    process::ExitCode,
};

use nix::{
    sys::{
        signal::{SigSet, Signal},
        socket::{MsgFlags, recv},
    },
    unistd::{close, getpid},
};

use crate::{
    exit, inherited,
    terminal::{GIVEN, REFUSED, Terminal},
};

/// Not a verb for people.
pub(crate) const VERB: &str = "__exec";

/// The path of this program, even if its file was replaced meanwhile.
#[cfg(target_os = "linux")]
pub(crate) fn ourselves() -> io::Result<PathBuf> {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return Ok(running.into());
    }
    // Without `/proc` the kernel still tells which path was started.
    Ok(Path::new(".").join(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes())))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn ourselves() -> io::Result<PathBuf> {
    std::env::current_exe()
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
    let gate: RawFd = gate.parse().map_err(io::Error::other)?;
    let said = recv(gate, &mut [0], MsgFlags::empty());
    let _ = close(gate);
    Ok(said? == 1)
}

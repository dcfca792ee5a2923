//! The small re-exec between fork and the command: dies with its parent, takes the foreground, becomes the command.

use std::{
    ffi::OsString,
    io,
    os::unix::process::{CommandExt, parent_id},
    path::PathBuf,
    process::{Command, ExitCode},
};

use nix::unistd::getpid;

use crate::{exit, terminal::Terminal};

/// Not a verb for people.
pub(crate) const VERB: &str = "__exec";

/// This very program, also when its file was replaced meanwhile.
pub(crate) fn ourselves() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// `__exec PARENT FOREGROUND COMMAND ARG...`
pub(crate) fn exec(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut flag = || arguments.next().and_then(|text| text.into_string().ok()).unwrap_or_default();
    let (parent, foreground) = (flag(), flag() == "1");
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    // The parent may have died before it could be heard.
    if parent_id().to_string() != parent {
        return ExitCode::from(exit::LOST);
    }
    if foreground {
        Terminal::give_to(getpid());
    }
    let Some(program) = arguments.next() else { return ExitCode::from(exit::USAGE) };
    let error = Command::new(&program).args(arguments).exec();
    let (code, why) = match error.kind() {
        io::ErrorKind::NotFound => (exit::NOT_FOUND, "not found".to_owned()),
        _ => (exit::NOT_EXECUTABLE, error.to_string()),
    };
    exit::warn(&format!("{}: {why}", program.to_string_lossy()));
    ExitCode::from(code)
}

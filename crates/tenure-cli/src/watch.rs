//! The watcher: kills a child's whole group if `tenure` itself is killed.
//!
//! The death signal set by the re-exec reaches the command only; what it started would live on past the lease.

use std::{
    ffi::OsString,
    io::{self, PipeWriter, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitCode, Stdio},
};

use nix::{sys::signal::Signal, unistd::Pid};

use crate::{exec, exit, group::Group};

/// Not a verb for people.
pub(crate) const VERB: &str = "__watch";

/// The watcher, as seen from `tenure`.
pub(crate) struct Watcher {
    process: Child,
    line: PipeWriter,
}

impl Watcher {
    /// Starts one for this group, in a group of its own so that signals to ours do not reach it.
    pub(crate) fn start(group: Group) -> io::Result<Self> {
        let (reader, line) = io::pipe()?;
        let process = Command::new(exec::ourselves()?)
            .arg0("tenure")
            .args([VERB, &group.0.to_string()])
            .process_group(0)
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { process, line })
    }

    /// All is well: it need not kill anybody.
    pub(crate) fn dismiss(mut self) {
        use std::io::Write;
        let _ = self.line.write_all(b".");
        drop(self.line);
        let _ = self.process.wait();
    }
}

/// `__watch GROUP`: waits until the line is cut, and kills the group unless it was dismissed before.
pub(crate) fn watch(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let group = arguments.next().and_then(|text| text.to_str()?.parse().ok());
    let Some(group) = group.filter(|group| *group > 1) else { return ExitCode::from(exit::USAGE) };
    let mut said = [0];
    let dismissed = matches!(io::stdin().read(&mut said), Ok(1..));
    if !dismissed {
        Group(Pid::from_raw(group)).signal(Signal::SIGKILL);
    }
    ExitCode::SUCCESS
}

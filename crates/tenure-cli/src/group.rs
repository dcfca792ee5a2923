//! A process group: signals to all of it, and whether anybody is left.

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

/// The process group of a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group(pub(crate) Pid);

impl Group {
    /// Sends a signal to everybody in it. An empty group is no error.
    pub(crate) fn signal(self, signal: Signal) {
        let _ = killpg(self.0, signal);
    }

    /// Kills everybody in it; false if nobody there may be killed by us, as after a change of user.
    pub(crate) fn kill(self) -> bool {
        killpg(self.0, Signal::SIGKILL) != Err(Errno::EPERM)
    }

    /// True once nobody is left who could do anything; the leader counts until it has been waited for.
    pub(crate) fn is_gone(self) -> bool {
        kill(Pid::from_raw(-self.0.as_raw()), None) == Err(Errno::ESRCH) || self.is_dead().unwrap_or(false)
    }

    /// Whether all are dead that `/proc` shows. They stay in the group until their parent waits for them, which the
    /// first process of a container may never do.
    fn is_dead(self) -> std::io::Result<bool> {
        let mut found = false;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            // Gone meanwhile, or no process at all.
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            // "pid (any name) state ppid pgrp ..."
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            let (state, group) = (fields.next(), fields.nth(1));
            if group != Some(&self.0.to_string()) {
                continue;
            }
            if !matches!(state, Some("Z" | "X")) {
                return Ok(false);
            }
            found = true;
        }
        Ok(found)
    }
}

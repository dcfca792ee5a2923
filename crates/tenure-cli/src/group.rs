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

    /// True once nobody is left; the leader counts until it has been waited for.
    pub(crate) fn is_gone(self) -> bool {
        kill(Pid::from_raw(-self.0.as_raw()), None) == Err(Errno::ESRCH)
    }
}

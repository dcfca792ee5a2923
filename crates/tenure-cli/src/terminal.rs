//! The controlling terminal: its foreground process group, and what its keys do.

use std::{
    fs::File,
    io::{IsTerminal, stdin, stdout},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        signal::killpg,
        termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr},
    },
    unistd::{Pid, tcgetpgrp, tcsetpgrp},
};
use tenure::backend::{Host, Moment, TokioHost};

use crate::worker;

/// The controlling terminal, if this process group is in its foreground. Not the standard input, which may be a pipe:
/// `sudo`, `ssh` and `psql` ask on the terminal.
pub(crate) struct Terminal {
    settings: Option<Termios>,
    /// When it was last raw, so that Ctrl-C sent no signal.
    raw: Option<Moment>,
}

impl Terminal {
    pub(crate) fn in_foreground() -> Option<Self> {
        let tty = Self::open()?;
        let is_ours = tcgetpgrp(&tty).is_ok_and(|group| group == worker::group());
        is_ours.then(|| Self { settings: tcgetattr(&tty).ok(), raw: None })
    }

    /// The standard input if `/dev` is empty.
    fn open() -> Option<OwnedFd> {
        let tty = File::open("/dev/tty").map(OwnedFd::from);
        tty.or_else(|_| stdin().as_fd().try_clone_to_owned()).ok()
    }

    pub(crate) fn poll(&mut self) {
        let now = Self::open().and_then(|tty| tcgetattr(tty).ok());
        if now.is_some_and(|now| !now.local_flags.contains(LocalFlags::ISIG)) {
            self.raw = Some(TokioHost.now());
        }
    }

    /// Whether Ctrl-C sends a signal. A program that reads each key itself restores the terminal just before it ends, so
    /// a raw terminal counts for a moment longer.
    pub(crate) fn has_keys(&self) -> bool {
        self.raw.is_none_or(|raw| raw.elapsed(TokioHost.now()) >= RECENTLY)
    }

    /// Whether the terminal, if there is one, has another process group in its foreground.
    pub(crate) fn is_of_others() -> bool {
        Self::open().is_some_and(|tty| tcgetpgrp(tty).is_ok_and(|group| group != worker::group()))
    }

    /// Makes this process group the one that reads from the terminal and gets its signals.
    pub(crate) fn give_to(group: Pid) {
        // OK in the background, because TTOU is blocked in all processes of `tenure`.
        let _ = Self::open().map(|tty| tcsetpgrp(tty, group));
    }

    /// Takes the terminal back from the command, and resets it if that was killed. Does nothing if the shell has given it to
    /// another job since, or to itself.
    pub(crate) fn take_back(&self, child_was_killed: bool, is_of_command: impl Fn(Pid) -> bool) {
        let is_left = |group| {
            group == worker::group() || is_of_command(group) || killpg(group, None) == Err(Errno::ESRCH)
        };
        if !Self::open().and_then(|tty| tcgetpgrp(tty).ok()).is_some_and(is_left) {
            return;
        }
        Self::give_to(worker::group());
        if let Some(settings) = self.settings.as_ref().filter(|_| child_was_killed) {
            // Without waiting for the output, which may be stopped (Ctrl-S).
            let _ = Self::open().map(|tty| tcsetattr(tty, SetArg::TCSANOW, settings));
        }
    }
}

/// The standard input and output are a terminal. In a pipeline another process may need the keyboard.
pub(crate) fn is_on_terminal() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// How long after the terminal was raw an exit code of 130 does not mean Ctrl-C.
const RECENTLY: Duration = Duration::from_millis(500);

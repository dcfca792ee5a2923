//! The terminal: which process group has its foreground, and passing that to the command and back.

use std::{
    fs::File,
    io::{IsTerminal, stdin},
};

use nix::{
    sys::termios::{SetArg, Termios, tcgetattr, tcsetattr},
    unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp},
};

use crate::processes;

/// The input of the terminal: given to the command, refused to it, or given when it asks.
pub(crate) const GIVEN: &str = "given";
pub(crate) const REFUSED: &str = "refused";
pub(crate) const ASKED_FOR: &str = "asked-for";

/// Colour only on a terminal and never with `NO_COLOR`.
pub(crate) fn is_colourful(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The terminal on the standard input, if our process group has its foreground.
pub(crate) struct Terminal {
    settings: Option<Termios>,
}

impl Terminal {
    pub(crate) fn in_foreground() -> Option<Self> {
        let ours = stdin().is_terminal() && tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp());
        ours.then(|| Self { settings: tcgetattr(stdin()).ok() })
    }

    /// How the command gets the input of the terminal: at once, never (a read is an error, as it would be for us), or
    /// when it asks.
    pub(crate) fn keyboard(given: Option<&Self>) -> &'static str {
        // Whatever the standard input is: a command finds the terminal by this name.
        let is_elsewhere =
            || File::open("/dev/tty").is_ok_and(|tty| tcgetpgrp(tty).is_ok_and(|group| group != getpgrp()));
        match given {
            Some(_) => GIVEN,
            None if is_elsewhere() && processes::are_orphaned() => REFUSED,
            None => ASKED_FOR,
        }
    }

    /// Makes this process group the one that reads from the terminal and gets its signals.
    pub(crate) fn give_to(group: Pid) {
        // OK in the background, because TTOU is blocked in all our processes.
        let _ = tcsetpgrp(stdin(), group);
    }

    /// Takes the terminal back, and resets it if the command was killed.
    pub(crate) fn take_back(&self, child_was_killed: bool) {
        Self::give_to(getpgrp());
        if let Some(settings) = self.settings.as_ref().filter(|_| child_was_killed) {
            let _ = tcsetattr(stdin(), SetArg::TCSADRAIN, settings);
        }
    }
}

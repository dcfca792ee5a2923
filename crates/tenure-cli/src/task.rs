//! `Task`: a command that is to run under a lease, and how.

use std::{ffi::OsString, time::Duration};

use tenure::{Label, Lock, Promises, Timing};

use crate::{
    args::{Attach, Lead, Run},
    exit::{self, Stop},
    stopping::Stopping,
    text,
};

/// A command that is to run under a lease, and how.
pub(crate) struct Task {
    ttl: Option<Timing>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    grace: Option<Duration>,
    lost_exit_code: u8,
    /// For a shell.
    is_line: bool,
    argv: Vec<OsString>,
}

impl Task {
    /// Before there is a store, which may be a file that is made. A default is never longer than this one.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        Stopping::new(self.grace, self.ttl.unwrap_or_default().ttl()).map(drop)
    }

    /// What was named, if the store accepts it, otherwise the default; and how long a stop takes then.
    pub(crate) fn durations(&self, promises: &Promises) -> Result<(Duration, Stopping), Stop> {
        let ttl = self.ttl.map_or_else(|| promises.default_ttl(), Timing::ttl);
        if ttl <= promises.max_ttl {
            return Ok((ttl, Stopping::new(self.grace, ttl)?));
        }
        let raise = promises
            .max_ttl_parameter
            .map_or_else(String::new, |p| format!("; raise it with ?{p}= in the URL"));
        let max = text::seconds(promises.max_ttl);
        Err(Stop::usage(format!("--ttl: {} accepts {max} at most{raise}", promises.backend)))
    }

    /// The lock under which it runs, with its settings.
    pub(crate) fn set(&self, lock: Lock, (ttl, stopping): (Duration, Stopping)) -> Lock {
        let ours = tenure::this_process();
        let command = self.argv.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        let command = if self.is_line { first_word(&command) } else { &command };
        let label = Label::new(&ours.host, ours.pid, &ours.user, command);
        let lock = lock.ttl(ttl).label(label);
        match self.max_hold {
            // The command may run for so long: the time to stop it comes on top.
            Some(max_hold) => lock.max_hold(max_hold.saturating_add(stopping.margin())),
            None => lock,
        }
    }

    /// The program and its arguments.
    pub(crate) fn argv(&self) -> Vec<OsString> {
        if !self.is_line {
            return self.argv.clone();
        }
        // Behind `--`, what begins with `-` or `+` is no flag of the shell.
        let shell = ["sh", "-c", "--"].map(OsString::from);
        shell.into_iter().chain(self.argv.iter().cloned()).collect()
    }

    /// The lease was lost, or `--max-hold` is over.
    pub(crate) fn lost(&self, line: String) -> Stop {
        Stop::new(self.lost_exit_code, line)
    }
}

impl From<&Run> for Task {
    fn from(args: &Run) -> Self {
        let Run { ttl, min_hold, max_hold, grace, lost_exit_code, command, .. } = *args;
        Self { ttl, min_hold, max_hold, grace, lost_exit_code, is_line: command, argv: args.argv.clone() }
    }
}

impl From<&Attach> for Task {
    fn from(args: &Attach) -> Self {
        let Attach { ttl, min_hold, max_hold, grace, lost_exit_code, command, .. } = *args;
        Self { ttl, min_hold, max_hold, grace, lost_exit_code, is_line: command, argv: args.argv.clone() }
    }
}

impl From<&Lead> for Task {
    fn from(args: &Lead) -> Self {
        let Lead { ttl, grace, command, .. } = *args;
        let (min_hold, max_hold, lost_exit_code) = (None, None, exit::LOST);
        Self { ttl, min_hold, max_hold, grace, lost_exit_code, is_line: command, argv: args.argv.clone() }
    }
}

/// The program of a shell's command line, if its first word is plainly one: anything else may hold a password.
fn first_word(line: &str) -> &str {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
    line.split_whitespace().next().filter(|word| word.chars().all(is_plain)).unwrap_or("sh")
}

//! Verbs that are a `run` with fewer settings.

use std::ffi::OsString;

use tenure::{LockName, OwnerId};

use crate::args::{Attach, Lead, Run};

impl Lead {
    /// A run with the same settings, which waits for as long as it takes.
    pub(crate) fn into_run(self) -> (LockName, Run) {
        let run = Run {
            nonblock: false,
            wait: None,
            shared: false,
            slots: None,
            also: Vec::new(),
            any: Vec::new(),
            ttl: self.ttl,
            min_hold: None,
            max_hold: None,
            grace: self.grace,
            every: None,
            even_if_failed: false,
            skip_exit_code: 0,
            conflict_exit_code: crate::exit::CONFLICT,
            lost_exit_code: crate::exit::LOST,
            command: self.command,
            name: OsString::from(self.name.as_str()),
            argv: self.argv,
        };
        (self.name, run)
    }
}

impl Attach {
    /// What is held, and how the command is run under it.
    pub(crate) fn into_run(self) -> (LockName, OwnerId, Run) {
        let run = Run {
            nonblock: false,
            wait: None,
            shared: false,
            slots: None,
            also: Vec::new(),
            any: Vec::new(),
            ttl: self.ttl,
            min_hold: self.min_hold,
            max_hold: self.max_hold,
            grace: self.grace,
            every: None,
            even_if_failed: false,
            skip_exit_code: 0,
            conflict_exit_code: crate::exit::CONFLICT,
            lost_exit_code: self.lost_exit_code,
            command: self.command,
            name: OsString::from(self.name.as_str()),
            argv: self.argv,
        };
        (self.name, self.owner, run)
    }
}

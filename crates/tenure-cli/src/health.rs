//! `lead --health`: a leader that lives and does nothing makes room for another host.

use std::{ffi::OsStr, time::Duration};

use tenure::backend::{Host, Moment, TokioHost};

use crate::{child::Child, text};

/// A command that says whether the leader works, and when it is asked.
pub(crate) struct Health<'a> {
    line: &'a OsStr,
    every: Duration,
    /// When the present check began, or the last one ended, or the command began.
    since: Moment,
    is_asked: bool,
}

impl<'a> Health<'a> {
    pub(crate) fn new(line: &'a OsStr, every: Duration) -> Self {
        Self { line, every, since: TokioHost.now(), is_asked: false }
    }

    /// Begins a check or looks at one. Why the leader does not work, if a check says so: it failed, or takes longer than from one to
    /// the next.
    pub(crate) fn failed(&mut self, child: &mut Child) -> Option<String> {
        let now = TokioHost.now();
        let is_late = self.since.elapsed(now) >= self.every;
        if !self.is_asked {
            if is_late {
                if let Err(error) = child.start_check(self.line) {
                    return Some(format!("the health check cannot be started: {error}"));
                }
                (self.is_asked, self.since) = (true, now);
            }
            return None;
        }
        match child.check_ended() {
            Some(0) => {
                (self.is_asked, self.since) = (false, now);
                None
            }
            Some(code) => Some(format!("the health check failed with code {code}")),
            None if is_late => {
                Some(format!("the health check took longer than {}", text::seconds(self.every)))
            }
            None => None,
        }
    }
}

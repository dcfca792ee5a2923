//! `lead --health`: replaces a leader that runs but does no work.

use std::{ffi::OsStr, time::Duration};

use tenure::backend::{Host, Moment, TokioHost};

use crate::{child::Child, text};

/// The health check of a leader, and its schedule.
pub(crate) struct Health<'a> {
    line: &'a OsStr,
    every: Duration,
    /// When the current check began; or, if none runs, when the last one ended or the command began.
    since: Moment,
    is_asked: bool,
}

impl<'a> Health<'a> {
    pub(crate) fn new(line: &'a OsStr, every: Duration) -> Self {
        Self { line, every, since: TokioHost.now(), is_asked: false }
    }

    /// Starts a check when it is due, and polls a running one. The reason if it failed, or takes longer than the
    /// interval.
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

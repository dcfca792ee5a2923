//! `Ensemble`: what was learnt of the servers, besides their sessions.

use std::{
    sync::{Mutex, OnceLock},
    time::Duration,
};

use tenure_core::{Moment, locked};

/// What was learnt of the servers.
#[derive(Default)]
pub(crate) struct Ensemble {
    /// Whether they have TTL nodes, once they were asked.
    pub(crate) has_ttl: OnceLock<bool>,
    /// The leader's clock, and when it was read here.
    clock: Mutex<Option<(Duration, Moment)>>,
}

impl Ensemble {
    /// The leader's clock showed this before `at`.
    pub(crate) fn learn(&self, leader: Duration, at: Moment) {
        *locked(&self.clock) = Some((leader, at));
    }

    /// A time that the leader's clock has reached; `None` if it was not read for a while.
    pub(crate) fn now(&self, at: Moment) -> Option<Duration> {
        let (leader, read) = (*locked(&self.clock))?;
        Some(leader + read.elapsed(at)).filter(|_| read.elapsed(at) < FRESH)
    }
}

/// How long a reading of the leader's clock is used: 60 s, in which clocks part by less than the drift of a lease.
const FRESH: Duration = Duration::from_secs(60);

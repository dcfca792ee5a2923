//! `Rules`: the durations and limits of the queue.

use std::time::Duration;

use tenure_core::{Mode, Timing};

/// The durations and limits of the queue. Safety does not depend on them, and stores need not agree on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a waiter may take to claim the lock when its turn has come: 500 ms, several slow round trips.
    pub claim_ttl: Duration,
    /// Behind this many others a waiter may poll for its turn as rarely as once in a claim ttl; `None` where every waiter is
    /// notified immediately.
    pub far: Option<usize>,
    /// How many claim ttls a waiter gets that may not know that its turn is near: one that came far back, and one that was moved
    /// to the front because it has waited longest. 1 where every waiter is notified immediately.
    pub rare_turns: u32,
    /// How long a place lasts if its claim is not repeated: 6 s, three times [`retry_max`](Self::retry_max).
    pub place_ttl: Duration,
    /// The longest sleep of a waiter before it asks again: 2 s.
    pub retry_max: Duration,
    /// The largest number of waiters for one lock: 4096.
    pub places_max: usize,
    /// The floor of the tokens: the clock.
    pub floor: Floor,
}

/// The lower bound of the next token, so that a lost counter does not go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// The wall clock, in µs, at every mint.
    Clock,
    /// The same, and above this count: one counter serves many locks.
    Above(u64),
    /// This count, and the wall clock in whole [`GRAIN`](Self::GRAIN)s. Within one grain the nodes of a quorum count
    /// alike, although their clocks differ, and so seldom need a second round to agree. Where there is no counter yet,
    /// the exact clock.
    Count(u64),
}

impl Floor {
    /// 100 ms: long compared with the difference of well-kept clocks, short compared with the time to restore a
    /// server to an earlier state.
    pub const GRAIN: Duration = Duration::from_millis(100);
}

impl Rules {
    /// Whether a waiter with this many waiters ahead on arrival may poll for its turn rarely.
    ///
    /// Only an exclusive claim: of claims that hold together, the last one's turn comes with the first one's.
    pub fn is_far(&self, mode: Mode, ahead: usize) -> bool {
        mode == Mode::Exclusive && self.far.is_some_and(|far| ahead >= far)
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            claim_ttl: Timing::CLAIM_TTL,
            far: None,
            rare_turns: 1,
            place_ttl: Timing::PLACE_TTL,
            retry_max: Timing::RETRY_MAX,
            places_max: 4096,
            floor: Floor::Clock,
        }
    }
}

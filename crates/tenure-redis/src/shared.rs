//! `RedisShared`: what all handles of one process share, and what it has learnt of the server at its address.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{Host, Moment, locked};

use crate::{config::Config, guard::Terms, keys::Counting, script::Scripts, sentinel::Newest};

/// What all handles of one process share.
pub(crate) struct RedisShared {
    pub(crate) config: Config,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) scripts: Scripts,
    pub(crate) history: Mutex<ServerHistory>,
    pub(crate) watermark: TokenWatermark,
    /// The terms under which the server serves this client, once it was checked: those of its record, if they allow less.
    pub(crate) served: Mutex<Option<Terms>>,
    /// The newest master that a Sentinel named.
    pub(crate) newest: Mutex<Newest>,
}

impl RedisShared {
    /// The terms under which this client is served, as far as it knows.
    pub(crate) fn terms(&self) -> Terms {
        locked(&self.served).unwrap_or_else(|| Terms::of(&self.config))
    }

    /// How far the server has counted for us. Where each lock has its own counter, nothing is known of all.
    pub(crate) fn known_through(&self, gate: &str) -> u64 {
        if self.config.counting() == Counting::One { self.watermark.through(gate) } else { 0 }
    }
}

/// The largest token that all handles of this process were granted through one gate.
#[derive(Debug, Default)]
pub(crate) struct TokenWatermark(Mutex<(Arc<str>, u64)>);

impl TokenWatermark {
    /// Zero for another gate: another run or history counts for itself.
    fn through(&self, gate: &str) -> u64 {
        let known = locked(&self.0);
        if *known.0 == *gate { known.1 } else { 0 }
    }

    pub(crate) fn learn(&self, gate: &str, last: u64) {
        let mut known = locked(&self.0);
        if *known.0 == *gate {
            known.1 = known.1.max(last);
        } else {
            *known = (Arc::from(gate), last);
        }
    }
}

/// Which processes of the server this process of ours has met at its address.
#[derive(Debug, Default)]
pub(crate) struct ServerHistory {
    /// The one that was found fit last.
    fit: String,
    /// Another one that answered later, and since when.
    later: Option<(String, Moment)>,
}

impl ServerHistory {
    pub(crate) fn found_fit(&mut self, run_id: &str) {
        run_id.clone_into(&mut self.fit);
        self.later = None;
    }

    /// See [`ServerFacts::moved`](crate::ServerFacts::moved).
    pub(crate) fn met(&mut self, run_id: &str, now: Moment) -> Option<Duration> {
        if self.fit.is_empty() || self.fit == run_id {
            return None;
        }
        match &self.later {
            Some((known, since)) if known == run_id => Some(since.elapsed(now)),
            _ => {
                self.later = Some((run_id.to_owned(), now));
                Some(Duration::ZERO)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L1: what one run granted says nothing of another one, and a smaller token takes nothing back.
    #[test]
    fn what_is_known_belongs_to_one_gate_and_grows() {
        let known = TokenWatermark::default();
        let mut through = vec![known.through("a")];
        for (gate, last) in [("a", 7), ("a", 5), ("b", 3)] {
            known.learn(gate, last);
            through.push(known.through(gate));
        }
        assert_eq!((through, known.through("a")), (vec![0, 7, 7, 3], 0));
    }
}

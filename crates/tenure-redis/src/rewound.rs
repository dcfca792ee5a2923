//! A server that was put back to an earlier state under the same run and history, as a snapshot that is resumed: what tells
//! it is its counter, which is behind what it granted to us.

use std::sync::{Arc, Mutex};

use tenure_core::{BackendError, ClaimAnswer};

use crate::{
    backend::{Redis, millis},
    keys::Counting,
    session::{Session, locked},
};

/// The largest token that all handles of this process were granted through one gate.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<(Arc<str>, u64)>);

impl Known {
    /// Zero for another gate: another run or history counts for itself.
    fn through(&self, gate: &str) -> u64 {
        let known = locked(&self.0);
        if *known.0 == *gate { known.1 } else { 0 }
    }

    fn learn(&self, gate: &str, last: u64) {
        let mut known = locked(&self.0);
        if *known.0 == *gate {
            known.1 = known.1.max(last);
        } else {
            *known = (Arc::from(gate), last);
        }
    }
}

impl Redis {
    /// How far the server has counted for us. Where each lock has its own counter, nothing is known of all.
    pub(crate) fn known(&self, gate: &str) -> u64 {
        if self.config().counting() == Counting::One { self.sessions.shared.known.through(gate) } else { 0 }
    }

    pub(crate) fn learn(&self, gate: &str, answer: &ClaimAnswer) {
        if let (Counting::One, ClaimAnswer::Granted(grant)) = (self.config().counting(), answer) {
            let last = grant.token.get() + u64::from(grant.block) - 1;
            self.sessions.shared.known.learn(gate, last);
        }
    }

    /// Closes the gate until every lease that the server may have forgotten is over (L1); its check finds it closed.
    pub(crate) async fn close<A>(&self, session: &Session, gate: &str) -> Result<Option<A>, BackendError> {
        let script = &self.scripts().rewound;
        let mut call = script.call(&[self.config().record()]);
        call.arg(gate).arg(self.known(gate)).arg(millis(self.config().max_ttl));
        self.sessions.ask(session, script, &call).await?;
        tracing::warn!(place = %session.place(), "a Redis server was put back to an earlier state");
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L1: what one run granted says nothing of another one, and a smaller token takes nothing back.
    #[test]
    fn what_is_known_belongs_to_one_gate_and_grows() {
        let known = Known::default();
        let mut seen = vec![known.through("a")];
        for (gate, last) in [("a", 7), ("a", 5), ("b", 3)] {
            known.learn(gate, last);
            seen.push(known.through(gate));
        }
        assert_eq!((seen, known.through("a")), (vec![0, 7, 7, 3], 0));
    }
}

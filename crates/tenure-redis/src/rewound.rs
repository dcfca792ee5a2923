//! A server that was put back to an earlier state under the same run and history, as a snapshot that is resumed: what tells
//! it is its counter, which is behind what it granted to us.

use tenure_core::{BackendError, ClaimAnswer};

use crate::{
    backend::{Redis, millis},
    keys::Counting,
    session::Session,
};

impl Redis {
    pub(crate) fn known(&self, gate: &str) -> u64 {
        self.sessions.shared.known_through(gate)
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
        session.ask(script, &call).await?;
        tracing::warn!(place = %session.place(), "a Redis server was put back to an earlier state");
        Ok(None)
    }
}

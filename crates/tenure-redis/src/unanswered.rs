//! `Unanswered`: whether a node of a Cluster is dead although nobody has said so.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{Arg, Cmd};
use tenure_client::{End, HintRouter};
use tenure_core::{Host, Moment, locked};

/// Keys about which somebody waits in vain; beyond that all are forgotten, and counted anew.
const KEPT: usize = 1024;
/// Where a script has its first key.
const FIRST_KEY: usize = 3;

/// How long callers have waited in vain, by the key that they asked about, since the last answer about it.
///
/// The driver makes the connections to the nodes, and forgets a request whose caller has gone. So callers with less patience than the
/// driver would ask a dead node for ever. Other nodes answer meanwhile: what they say of their keys says nothing of this one.
pub(crate) struct Unanswered {
    host: Arc<dyn Host>,
    limit: Duration,
    router: Arc<HintRouter>,
    end: Arc<End>,
    waited: Mutex<HashMap<Vec<u8>, Duration>>,
}

/// A caller that waits for an answer; dropped, it has waited in vain.
pub(crate) struct Asked<'a> {
    unanswered: &'a Unanswered,
    key: Vec<u8>,
    since: Moment,
    has_answer: bool,
}

impl Unanswered {
    /// Says to `end` that the connection is of no use any more once callers have waited for longer than `limit`.
    pub(crate) fn new(
        host: Arc<dyn Host>,
        limit: Duration,
        (router, end): (Arc<HintRouter>, Arc<End>),
    ) -> Self {
        Self { host, limit, router, end, waited: Mutex::default() }
    }

    pub(crate) fn ask(&self, cmd: &Cmd) -> Asked<'_> {
        let key = match cmd.args_iter().nth(FIRST_KEY) {
            Some(Arg::Simple(key)) => key.to_vec(),
            _ => Vec::new(),
        };
        Asked { unanswered: self, key, since: self.host.now(), has_answer: false }
    }

    /// True if that is too long.
    fn has_waited(&self, key: &[u8], time: Duration) -> bool {
        let mut waited = locked(&self.waited);
        if waited.len() >= KEPT {
            waited.clear();
        }
        let sum = waited.entry(key.to_vec()).or_default();
        *sum += time;
        *sum > self.limit
    }
}

impl Asked<'_> {
    pub(crate) fn on_answer(mut self) {
        self.has_answer = true;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Unanswered { host, waited, router, end, .. } = self.unanswered;
        if self.has_answer {
            locked(waited).remove(&self.key);
        } else if self.unanswered.has_waited(&self.key, self.since.elapsed(host.now())) && end.set() {
            router.ring_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_testkit::host::{PausedHost, pass};

    use super::*;
    use crate::{keys::Counting, script::Scripts};

    const LIMIT: Duration = Duration::from_secs(1);

    async fn ms(ms: u64) {
        pass(Duration::from_millis(ms)).await;
    }

    /// A node that died without a word was asked for renewals until the kernel gave up: each was given up before the driver's own
    /// time-out, which then never came, and all leases of that node were lost.
    #[tokio::test(start_paused = true)]
    async fn callers_with_little_patience_find_a_dead_node_and_leave_a_healthy_one() {
        let (host, end) = (PausedHost::new(1), Arc::<End>::default());
        let router = Arc::new(HintRouter::new(host.clone(), LIMIT));
        let unanswered = Unanswered::new(host, LIMIT, (router, end.clone()));
        let renew = Scripts::new(Counting::Own).renew;
        let (dead, healthy) = (renew.call(&["dead"]), renew.call(&["healthy"]));
        // Given up at once: that says nothing.
        for _ in 0..3 {
            drop(unanswered.ask(&dead));
            ms(2000).await;
        }
        // Answered in the end.
        for _ in 0..3 {
            let asked = unanswered.ask(&healthy);
            ms(900).await;
            asked.on_answer();
        }
        assert!(!end.is_over());
        for patience in [400, 400, 400] {
            assert!(!end.is_over());
            let asked = unanswered.ask(&dead);
            unanswered.ask(&healthy).on_answer();
            ms(patience).await;
            drop(asked);
        }
        assert!(end.is_over(), "1.2 s in vain");
    }
}

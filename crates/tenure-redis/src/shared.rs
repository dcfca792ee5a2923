//! `RedisShared`: what all handles of one process share, and what it has learnt of the server at its address.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{Host, Moment, locked};

use crate::{
    config::Config,
    gate::GateName,
    guard::{ServerFacts, ServerRecord, Terms},
    keys::Counting,
    script::Scripts,
    sentinel::Newest,
    slot_map::KnownCluster,
};

/// What all handles of one process share.
pub(crate) struct RedisShared {
    pub(crate) config: Config,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) scripts: Scripts,
    pub(crate) history: Mutex<ServerHistory>,
    pub(crate) watermark: TokenWatermark,
    /// The newest master that a Sentinel named.
    pub(crate) newest: Mutex<Newest>,
    /// The nodes of the Cluster.
    pub(crate) known: Mutex<KnownCluster>,
}

impl RedisShared {
    /// The longest lease that the server grants to this client, as far as it knows.
    pub(crate) fn served_ttl(&self) -> Duration {
        locked(&self.history).served.unwrap_or_else(|| self.config.max_ttl())
    }

    /// The largest token that the server granted to this client. Zero where each lock has its own counter: no token proves
    /// anything about all locks.
    pub(crate) fn known_through(&self, gate: &GateName) -> u64 {
        if self.config.counting() == Counting::One { self.watermark.through(gate) } else { 0 }
    }
}

/// The largest token that all handles of this process were granted by one run and history of a server.
#[derive(Debug, Default)]
pub(crate) struct TokenWatermark(Mutex<Option<(Arc<GateName>, u64)>>);

impl TokenWatermark {
    /// Zero for another run or history, which has its own count.
    fn through(&self, gate: &GateName) -> u64 {
        let known = locked(&self.0);
        known.as_ref().filter(|(known, _)| known.is_same_run(gate)).map_or(0, |(_, last)| *last)
    }

    pub(crate) fn learn(&self, gate: &Arc<GateName>, last: u64) {
        match &mut *locked(&self.0) {
            Some((known, known_last)) if known.is_same_run(gate) => *known_last = last.max(*known_last),
            known => *known = Some((gate.clone(), last)),
        }
    }
}

/// Which processes of the server, and which settings of other clients, this client process has met at the server's address.
#[derive(Debug, Default)]
pub(crate) struct ServerHistory {
    /// See [`ServerFacts::served`].
    served: Option<Duration>,
    /// See [`ServerFacts::longest`].
    longest: Option<Duration>,
    /// The one that was found fit last.
    fit: String,
    /// Another one that answered later, and since when.
    later: Option<(String, Moment)>,
    /// This process had the replicas of a lone master adopted, and not its settings: until when nothing is granted.
    pub(crate) adopted_replicas: Option<Moment>,
}

impl ServerHistory {
    pub(crate) fn found_fit(&mut self, run_id: &str) {
        run_id.clone_into(&mut self.fit);
        self.later = None;
        // The longest lease was waited for, or the record has this client's `max_ttl`.
        self.longest = None;
    }

    /// Adds what this process knows of a server's address to the facts of the server.
    pub(crate) fn complete(
        &mut self,
        facts: &mut ServerFacts,
        terms: &Terms,
        record: Option<&ServerRecord>,
        now: Moment,
    ) {
        if let Some(record) = record {
            self.read(terms, record);
        }
        facts.moved = self.met(&facts.run_id, now);
        (facts.served, facts.longest) = (self.served, self.longest);
    }

    fn read(&mut self, terms: &Terms, record: &ServerRecord) {
        self.longest = self.longest.max(record.longest_lease().filter(|theirs| *theirs > terms.max_ttl));
        self.served = terms.max_ttl_in(record).filter(|theirs| *theirs <= terms.max_ttl).or(self.served);
    }

    /// See [`ServerFacts::moved`].
    fn met(&mut self, run_id: &str, now: Moment) -> Option<Duration> {
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
    use crate::config::GuardMode;

    /// L1: the server loses its data while a smaller `max_ttl` is adopted. A client with the smaller one has seen the larger
    /// one, and waits for it.
    #[test]
    fn a_client_remembers_the_larger_max_ttl_while_its_own_is_adopted() {
        let [small, large] = [1, 3].map(Duration::from_secs);
        let terms = |max_ttl| Terms { mode: GuardMode::On, max_ttl, db: 0, quorum: None };
        let lowering = ServerRecord {
            run_id: "run".into(),
            replid: "history".into(),
            ready: large,
            wait: large,
            renews: Duration::ZERO,
            settings: terms(large).into(),
            next: Some(terms(small).into()),
            acked: None,
            is_open: false,
        };
        let mut history = ServerHistory::default();
        history.read(&terms(small), &lowering);
        assert_eq!((history.served, history.longest), (Some(small), Some(large)));
        history.found_fit("run");
        assert_eq!(history.longest, None);
    }

    /// L1: what one run granted proves nothing about another run, and a smaller token does not lower what is known.
    #[test]
    fn what_is_known_belongs_to_one_run_and_grows() {
        let gate =
            |run: &str, history: &str, settings: &str| Arc::new(GateName::of(run, history, &settings.into()));
        let (a, b) = (gate("a", "x", "guard=off"), gate("b", "x", "guard=off"));
        let known = TokenWatermark::default();
        let mut through = vec![known.through(&a)];
        for (gate, last) in [(&a, 7), (&a, 5), (&b, 3)] {
            known.learn(gate, last);
            through.push(known.through(gate));
        }
        assert_eq!((through, known.through(&a)), (vec![0, 7, 7, 3], 0));
        // Settings that change under the same run and history change no counter.
        known.learn(&gate("a", "x", "guard=on max_ttl=1s"), 9);
        let others = [gate("a", "x", "guard=on max_ttl=3s"), gate("a", "y", "guard=on max_ttl=1s")];
        assert_eq!(others.map(|gate| known.through(&gate)), [9, 0]);
    }
}

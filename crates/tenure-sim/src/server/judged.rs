//! How a server is judged: what `check.lua`, the rule of the guard and `judge.lua` do together.

use std::{sync::Arc, time::Duration};

use tenure_redis::{
    ClientRefusal, Decision, Predecessor, ServerFacts, ServerRecord, Terms, decide, renewals_wait,
};

use super::{Kind, Node, Reply, Role};
use crate::clockwork::Micros;

/// What a client knows when it checks a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Its settings.
    pub(crate) terms: Terms,
    /// The `max_ttl` under which it was served last.
    pub(crate) served: Option<Duration>,
    /// The last run whose gate was open to it, if any.
    pub(crate) passed: Option<u64>,
    /// Another run that answered later, and how long ago.
    pub(crate) later: Option<(u64, Duration)>,
    /// What Sentinel reports about the former master.
    pub(crate) predecessor: Predecessor,
}

impl Look {
    /// As `ServerFacts::moved`.
    fn moved(&self, run: u64) -> Option<Duration> {
        self.passed.filter(|passed| *passed != run)?;
        Some(self.later.filter(|(later, _)| *later == run).map_or(Duration::ZERO, |(_, ago)| ago))
    }
}

impl Node {
    fn gate_name(&self, terms: &Terms) -> Arc<str> {
        Arc::from(format!("{}.{}.{terms}", self.life.run, self.replid))
    }

    /// When its replica acknowledged last, as `INFO` reports it: a lag in whole seconds. `None` if no replica is connected.
    fn acked(&self, now: Micros) -> Option<Duration> {
        let Role::Master { unheard_since, has_replica: true } = self.role else { return None };
        let (heard, wall) = (self.life.clock.wall(unheard_since.unwrap_or(now)), self.life.clock.wall(now));
        let lag = (wall / 1_000_000).saturating_sub(heard / 1_000_000);
        Some(Duration::from_millis((wall / 1000).saturating_sub(lag * 1000)))
    }

    fn facts(&self, now: Micros, look: &Look) -> ServerFacts {
        let wall = self.life.clock.wall(now);
        // As `uptime_in_seconds`: the difference of whole seconds.
        let up = Duration::from_secs((wall / 1_000_000).saturating_sub(self.life.started_wall / 1_000_000));
        ServerFacts {
            run_id: self.life.run.to_string(),
            replid: self.replid.to_string(),
            is_master: self.role != Role::Replica,
            is_promoted: self.is_promoted,
            up,
            is_lossy: self.life.is_lossy,
            backlog_ttl: Some(self.backlog_ttl),
            acked: self.acked(now),
            predecessor: look.predecessor,
            moved: look.moved(self.life.run),
            served: look.served,
            longest: None,
            now: Duration::from_micros(wall),
        }
    }

    /// As `replicas.lua`: the record remembers when a replica acknowledged.
    fn remember(&mut self, acked: Option<Duration>) {
        if let (Some(last), Some(record)) = (acked, &mut self.data.record)
            && record.acked.is_none_or(|before| last.abs_diff(before) > Duration::from_secs(1))
        {
            record.acked = acked;
        }
    }

    /// The gate is open, and the server has counted less than a client knows. Where each lock has its own counter, nothing
    /// is known.
    pub(super) fn is_behind(&self, gate: &str, known: u64) -> bool {
        self.kind == Kind::Single && self.may_grant(gate) && self.data.counter < known
    }

    /// As `rewound.lua`: the server has forgotten leases, as if it had restarted.
    pub(super) fn close(&mut self, now: Micros, known: u64, wait: Duration) {
        self.data.open = None;
        self.data.counter = known;
        if let Some(record) = &mut self.data.record {
            let wall = Duration::from_millis(self.life.clock.wall(now) / 1000);
            (record.ready, record.wait) = (wall + wait, wait);
        }
    }

    pub(super) fn check(&mut self, now: Micros, look: &Look) -> Reply {
        let (run, epoch) = (self.life.run, self.epoch);
        if self.kind == Kind::Store {
            let (gate, renews_after) = (Ok(Arc::from("-")), Duration::ZERO);
            return Reply::Checked { run, epoch, gate, renews_after, served: look.terms.max_ttl };
        }
        let (facts, record) = (self.facts(now, look), self.data.record.clone());
        let Some(served) = look.terms.served(&facts, record.as_ref()) else { return Reply::OtherTerms };
        let gate = self.gate_name(&served);
        let is_open = self.may_grant(&gate);
        let record = record.map(|record| ServerRecord { is_open, ..record });
        let decision = decide(&look.terms, &facts, record.as_ref());
        let renews_after = renewals_wait(&facts, record.as_ref(), &decision);
        let served = served.max_ttl;
        let checked = |gate| Reply::Checked { run, epoch, gate, renews_after, served };
        self.remember(facts.acked);
        match decision {
            Decision::Open => checked(Ok(gate)),
            Decision::Wait { wait, .. } => checked(Err(wait)),
            Decision::Refuse(ClientRefusal::Alone) => Reply::Alone,
            Decision::Refuse(refusal) => unreachable!("BUG: it is served: {refusal:?}"),
            Decision::Write { wait, quiet, settings, next, acked, .. } => {
                let time = u64::try_from(facts.now.as_micros()).unwrap_or(u64::MAX);
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                self.data.counter = self.data.counter.max(time + wait_ms * 1000);
                let is_open = wait.is_zero();
                let ready = Duration::from_millis(time / 1000 + wait_ms);
                let renews = Duration::from_millis(time / 1000) + quiet;
                let ServerFacts { run_id, replid, .. } = facts;
                self.data.record = Some(ServerRecord {
                    run_id,
                    replid,
                    ready,
                    wait,
                    renews,
                    settings,
                    next,
                    acked,
                    is_open,
                });
                self.data.open = is_open.then(|| gate.clone());
                checked(if is_open { Ok(gate) } else { Err(wait) })
            }
        }
    }
}

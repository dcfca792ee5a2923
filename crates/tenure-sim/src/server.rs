//! `Node`: a simulated server. The state of its locks is the product's ledger, its guard the product's rule.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tenure_core::{
    Audience, Claim, ClaimAnswer, FencingToken, Grant, LockName, LockView, Memo, Moment, Noted, OwnerId,
    ProcessId, Raised, Released, Renewal,
};
use tenure_ledger::{Change, Floor, Ledger, Rules};
use tenure_redis::ServerRecord;
use tenure_testkit::cells::Cells;

use crate::{
    clockwork::Micros,
    history::{LockId, NodeId, Served, What, lock_id},
    host::Clock,
};

mod cells;
mod fate;
mod judged;

pub(crate) use cells::{Ask, EnqueueAsk, Strangers, Told, WriteAsk};
pub(crate) use fate::Snapshot;
pub(crate) use judged::Look;

/// What kind of store it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Never forgets; leases by a clock that does not step; tokens floored by the wall clock at every mint.
    Store,
    /// As `mint.one.lua`: one counter for all locks, floored by the wall clock at every mint, behind the gate.
    Single,
    /// As `mint.quorum.lua`, one of several nodes: a counter per lock, never below the floor of the record and the clock's
    /// last grain, behind the gate.
    Quorum,
    /// Cells that are compared and set, by the wall clock.
    Cells,
}

/// What a server may lose.
#[derive(Clone, Debug, Default)]
pub(crate) struct Data {
    pub(crate) locks: BTreeMap<LockName, Ledger>,
    pub(crate) cells: Cells,
    /// The single counter, or the floor of all counters.
    pub(crate) counter: u64,
    pub(crate) record: Option<ServerRecord>,
    /// The name under which the gate is open.
    pub(crate) open: Option<Arc<str>>,
}

/// One run of the server's program.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) run: u64,
    pub(crate) started_wall: u64,
    pub(crate) is_lossy: bool,
    pub(crate) clock: Arc<Clock>,
}

/// Its role among the servers that copy each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It takes writes.
    Master {
        /// Since when its only replica does not acknowledge; `None` if it does, or there never was one.
        unheard_since: Option<Micros>,
        /// A replica is connected, whether it acknowledges or not.
        has_replica: bool,
    },
    /// It takes none.
    Replica,
}

/// A server.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// The address that led here first.
    pub(crate) address: usize,
    pub(crate) role: Role,
    pub(crate) kind: Kind,
    pub(crate) rules: Rules,
    pub(crate) life: Life,
    /// The replica that may be promoted, in the world that has one.
    pub(crate) standby: Option<Life>,
    pub(crate) data: Data,
    /// The data of an older snapshot, or of the replica; `None` if it is all of the data.
    pub(crate) copy: Option<Data>,
    /// The whole machine at an earlier time, with what its programs remember.
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) replid: u64,
    pub(crate) is_promoted: bool,
    pub(crate) promoted_at: Option<Micros>,
    pub(crate) backlog_ttl: Duration,
    /// Grows whenever connections are cut.
    pub(crate) epoch: u64,
    pub(crate) down_until: Micros,
    /// The address leads elsewhere: no client reaches it.
    pub(crate) is_away: bool,
    pub(crate) next_id: u64,
    pub(crate) strangers: Strangers,
    /// The processes that were killed, if this server sees that.
    pub(crate) dead: Option<BTreeSet<String>>,
}

/// What a client asks of a server.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Check(Look),
    /// `known` is how far this server has counted for the client.
    Claim {
        claim: Claim,
        gate: Arc<str>,
        known: u64,
    },
    /// The server was put back: the gate is closed, as by `rewound.lua`.
    Close {
        gate: Arc<str>,
        known: u64,
        wait: Duration,
    },
    Renew(Vec<Grant>),
    Release {
        name: LockName,
        owner: OwnerId,
    },
    Raise {
        name: LockName,
        owner: OwnerId,
        to: FencingToken,
        gate: Arc<str>,
    },
    Note {
        name: LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: Memo,
    },
    Inspect(LockName),
    Identity,
    /// Sends a hint.
    Tell(Audience, OwnerId),
    /// Of a server of cells.
    Cells {
        /// From which machine.
        from: usize,
        ask: Ask,
    },
}

/// What it answers.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Its run; and the name of the gate, or how long it stays closed.
    Checked {
        run: u64,
        epoch: u64,
        gate: Result<Arc<str>, Duration>,
        /// Nothing is renewed before.
        renews_after: Duration,
        /// The `max_ttl` under which the client is served.
        served: Duration,
    },
    Claimed(ClaimAnswer),
    QueueFull,
    GateClosed,
    Renewed(Vec<Renewal>),
    Released(Released),
    Raised(Raised),
    Noted(Noted),
    Seen(LockView),
    Identity(u64),
    Cells(Told),
    /// It is a replica.
    ReadOnly,
    /// It had replicas, and none acknowledges.
    Alone,
    /// Its record has other settings than the client.
    OtherTerms,
    /// It has counted less than the client knows: it was put back to an earlier state.
    PutBack,
}

/// What a request caused, apart from its answer.
#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) wakes: Vec<(Audience, OwnerId)>,
    pub(crate) events: Vec<What>,
}

/// A memo was taken: from which owner, and over which memo.
pub(crate) fn noted(before: &LockView, owner: OwnerId, token: FencingToken) -> Served {
    let own = owner.to_string();
    let is_holder = before.holders.iter().any(|holder| holder.owner == own && holder.token.is_some());
    Served::Noted { is_holder, was_later: before.memo.as_ref().is_some_and(|memo| memo.token > token) }
}

impl Node {
    /// The clock by which leases are counted, and the clock for tokens.
    fn moment(&self, now: Micros) -> Moment {
        let wall = Duration::from_micros(self.life.clock.wall(now));
        match self.kind {
            Kind::Store => Moment { boot: Duration::from_micros(self.life.clock.run(now)), wall },
            // Redis counts leases by its wall clock.
            Kind::Single | Kind::Quorum | Kind::Cells => Moment { boot: wall, wall },
        }
    }

    fn rules(&self) -> Rules {
        let floor = match self.kind {
            Kind::Store | Kind::Cells => Floor::Clock,
            Kind::Single => Floor::Above(self.data.counter),
            Kind::Quorum => Floor::Count(self.data.counter),
        };
        Rules { floor, ..self.rules }
    }

    /// Carries a request out, as one atomic step.
    pub(crate) fn handle(&mut self, now: Micros, request: &Request, effects: &mut Effects) -> Reply {
        if self.role == Role::Replica {
            return Reply::ReadOnly;
        }
        let at = self.moment(now);
        self.end_dead(at, effects);
        match request {
            Request::Check(look) => self.check(now, look),
            Request::Identity => Reply::Identity(self.life.run),
            Request::Tell(whom, owner) => {
                effects.wakes.push((*whom, *owner));
                Reply::Identity(self.life.run)
            }
            Request::Cells { from, ask } => Reply::Cells(self.serve_cells(now, (*from, ask), effects)),
            Request::Claim { gate, known, .. } if self.is_behind(gate, *known) => Reply::PutBack,
            Request::Claim { claim, gate, .. } => self.claim(at, claim, gate, effects),
            Request::Close { gate, known, wait } => {
                if self.is_behind(gate, *known) {
                    self.close(now, *known, *wait);
                }
                Reply::GateClosed
            }
            Request::Renew(grants) => {
                let renew = |grant| self.renew(at, grant, effects);
                Reply::Renewed(grants.iter().map(renew).collect())
            }
            Request::Release { name, owner } => {
                let answer = self.step(at, name, *owner, effects, |l, r| l.release(at, r, *owner));
                let did = Served::Left(answer == Released::Released);
                self.note(name, *owner, did, effects);
                Reply::Released(answer)
            }
            Request::Note { name, owner, token, memo } => {
                let before = self.ledger(name).view(name.clone(), at);
                let answer =
                    self.step(at, name, *owner, effects, |l, r| l.note((at, at), r, (*owner, *token), memo));
                if answer == Noted::Noted {
                    self.note(name, *owner, noted(&before, *owner, *token), effects);
                }
                Reply::Noted(answer)
            }
            Request::Inspect(name) => Reply::Seen(self.ledger(name).view(name.clone(), at)),
            Request::Raise { name, owner, to, gate } => {
                if !self.may_grant(gate) {
                    return Reply::GateClosed;
                }
                let answer = self.step(at, name, *owner, effects, |l, r| l.raise(at, r, *owner, *to));
                if answer == Raised::Raised {
                    self.note(name, *owner, Served::Raised(to.get()), effects);
                }
                Reply::Raised(answer)
            }
        }
    }

    fn note(&self, name: &LockName, owner: OwnerId, did: Served, effects: &mut Effects) {
        effects.events.push(What::Served { node: self.id, lock: lock_id(name), owner, did, again: false });
    }

    /// Frees what the dead have held.
    fn end_dead(&mut self, at: Moment, effects: &mut Effects) {
        let rules = self.rules();
        let Some(dead) = &self.dead else { return };
        for ledger in self.data.locks.values_mut() {
            effects.wakes.extend(ledger.end_dead(at, &rules, |mark| dead.contains(mark)).wakes);
        }
    }

    /// A process was killed, and waiters see it at this moment.
    pub(crate) fn on_death(&mut self, now: Micros, process: ProcessId) -> Effects {
        let (at, mut effects) = (self.moment(now), Effects::default());
        if let Some(dead) = &mut self.dead {
            dead.insert(process.to_string());
            self.end_dead(at, &mut effects);
        }
        effects
    }

    fn may_grant(&self, gate: &str) -> bool {
        self.kind == Kind::Store || self.data.open.as_deref() == Some(gate)
    }

    fn ledger(&mut self, name: &LockName) -> &mut Ledger {
        self.data.locks.entry(name.clone()).or_insert_with(|| Ledger::new(0))
    }

    fn claim(&mut self, at: Moment, claim: &Claim, gate: &str, effects: &mut Effects) -> Reply {
        if !self.may_grant(gate) {
            return Reply::GateClosed;
        }
        let rules = self.rules();
        let Ok(Change { answer, wakes, .. }) = self.ledger(&claim.name).claim(at, &rules, claim) else {
            return Reply::QueueFull;
        };
        if matches!(answer, ClaimAnswer::Granted(_)) {
            let mark = claim.ends_with_process.then(|| claim.owner.process().to_string());
            self.ledger(&claim.name).tie(claim.owner, mark.as_deref());
        }
        effects.wakes.extend(wakes);
        let did = match &answer {
            ClaimAnswer::Granted(grant) => {
                let first = grant.token.get();
                let last = first + u64::from(grant.block) - 1;
                if self.kind == Kind::Single {
                    self.data.counter = self.data.counter.max(last);
                }
                Served::Granted { first, last, priority: claim.priority }
            }
            ClaimAnswer::Queued { .. } => {
                let has_turn = claim.wait == tenure_core::WaitMode::Turn;
                Served::Queued { has_turn, priority: claim.priority }
            }
            ClaimAnswer::Busy { .. } | ClaimAnswer::Split { .. } => Served::Refused,
        };
        self.note(&claim.name, claim.owner, did, effects);
        Reply::Claimed(answer)
    }

    fn renew(&mut self, at: Moment, grant: &Grant, effects: &mut Effects) -> Renewal {
        let (owner, ttl) = (grant.owner, grant.ttl);
        let was_there = self.holders(at, &grant.name).iter().any(|(holder, _)| *holder == owner.to_string());
        let answer = self.step(at, &grant.name, owner, effects, |l, r| {
            let change = l.renew(at, r, owner, ttl);
            if !grant.ends_with_process {
                l.tie(owner, None);
            }
            change
        });
        let is_renewed = answer == Renewal::Renewed;
        let did = if is_renewed && !was_there { Served::Recreated } else { Served::Renewed(is_renewed) };
        self.note(&grant.name, owner, did, effects);
        answer
    }

    /// Runs a verb that must touch only what belongs to its owner, and notes if it touched more.
    fn step<A>(
        &mut self,
        at: Moment,
        name: &LockName,
        owner: OwnerId,
        effects: &mut Effects,
        verb: impl FnOnce(&mut Ledger, &Rules) -> Change<A>,
    ) -> A {
        let before = self.holders(at, name);
        let rules = self.rules();
        let Change { answer, wakes, .. } = verb(self.ledger(name), &rules);
        effects.wakes.extend(wakes);
        let own = owner.to_string();
        if before.iter().any(|(holder, _)| *holder != own) {
            let after = self.holders(at, name);
            for (victim, ends) in before.iter().filter(|(holder, _)| *holder != own) {
                let is_kept = after.iter().any(|(holder, later)| holder == victim && later >= ends);
                if let (false, Ok(robbed)) = (is_kept, victim.parse()) {
                    self.note(name, robbed, Served::Robbed(owner), effects);
                }
            }
        }
        answer
    }

    /// The holders of a lock, and how long each of them still holds.
    fn holders(&self, at: Moment, name: &LockName) -> Vec<(String, Duration)> {
        let Some(ledger) = self.data.locks.get(name).filter(|ledger| !ledger.is_free()) else {
            return Vec::new();
        };
        let view = ledger.view(name.clone(), at);
        view.holders.into_iter().map(|h| (h.owner, h.expires_in.unwrap_or_default())).collect()
    }

    /// How many holders and waiters each lock has.
    pub(crate) fn leftovers(&self, now: Micros) -> Vec<(LockId, usize, usize)> {
        let counts = |view: LockView| (lock_id(&view.name), view.holders.len(), view.queue.len());
        self.views(now).map(counts).collect()
    }

    /// All owners that hold or wait.
    pub(crate) fn owners(&self, now: Micros) -> Vec<(LockId, OwnerId)> {
        let owners = |view: LockView| {
            let holders = view.holders.into_iter().map(|holder| holder.owner);
            let all: Vec<String> = holders.chain(view.queue.into_iter().map(|waiter| waiter.owner)).collect();
            all.into_iter().filter_map(move |owner| Some((lock_id(&view.name), owner.parse().ok()?)))
        };
        self.views(now).flat_map(owners).collect()
    }

    fn views(&self, now: Micros) -> impl Iterator<Item = LockView> {
        let at = self.moment(now);
        let views = self.data.locks.iter().map(move |(name, ledger)| ledger.view(name.clone(), at));
        views.chain(self.leftover_cells(at.wall))
    }
}

//! `World`: servers, the network between them and the processes, and the log of what happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tenure::{Guard, Guards, Lease, Leases};
use tenure_core::{Audience, Grant, Notifier, OwnerId, ProcessId, locked};
use tenure_redis::Predecessor;
use tokio::sync::oneshot;

use crate::{
    chance::Chance,
    clockwork::{Clockwork, Micros, Pid},
    history::{GrantId, Leaving, LockId, Log, Machine, NodeId, What, lock_id},
    host::Clock,
    network::{Network, Weather},
    server::{Effects, Node, Reply, Request, Role},
};

/// How long a client waits before it treats silence as a broken connection: 3 s.
const SILENCE: Micros = 3_000_000;

/// The same for a connection to cells, where a lost message ends the connection.
const BROKEN: Micros = 300_000;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// No server listens there: nothing was applied.
    Refused,
    /// The connection was cut.
    Reset,
    /// No answer came.
    Silent,
}

pub(crate) type Answer = Result<Reply, NoAnswer>;

/// What a program relies on: the guard of one lock, or those of several.
pub(crate) trait Belief: Send + Sync {
    fn is_held(&self) -> bool;
    fn remaining(&self) -> Duration;
}

impl Belief for Guard {
    fn is_held(&self) -> bool {
        self.check().is_ok()
    }

    fn remaining(&self) -> Duration {
        Lease::remaining(self)
    }
}

impl Belief for Guards {
    fn is_held(&self) -> bool {
        self.check().is_ok()
    }

    fn remaining(&self) -> Duration {
        Leases::remaining(self)
    }
}

/// A grant that a program treats as held.
struct Believer {
    process: Pid,
    grant: GrantId,
    held: Weak<dyn Belief>,
    clock: Arc<Clock>,
    until: Micros,
    is_lost: bool,
}

pub(crate) struct World {
    pub(crate) clockwork: Arc<Clockwork>,
    pub(crate) log: Log,
    pub(crate) nodes: Vec<Mutex<Node>>,
    /// One for each address.
    pub(crate) notifier: Vec<Notifier>,
    /// Where new connections of a machine lead, if not to the server that was at their address first.
    routes: Mutex<BTreeMap<Machine, NodeId>>,
    pub(crate) network: Mutex<Network>,
    believers: Mutex<Vec<Believer>>,
    /// The largest token that each resource has seen.
    registers: Mutex<BTreeMap<LockId, u64>>,
    /// By lock and last token: the first token, and the owner. A guard that is asked for its owner is not passed on.
    granted: Mutex<BTreeMap<(LockId, u64), (u64, OwnerId)>>,
    /// Those that the server has not ended.
    pub(crate) transactions: Mutex<BTreeSet<u64>>,
    asks: AtomicUsize,
    grants: AtomicUsize,
    /// From when on programs hold briefly and no longer give up, in µs.
    pub(crate) healed_at: AtomicU64,
}

impl World {
    pub(crate) fn new(clockwork: Arc<Clockwork>, nodes: Vec<Node>, chance: Chance) -> Arc<Self> {
        let network =
            Network { chance, weather: Weather::CALM, cuts: BTreeMap::new(), traps: BTreeMap::new() };
        Arc::new(Self {
            clockwork,
            log: Log::default(),
            notifier: nodes.iter().map(|_| Notifier::default()).collect(),
            nodes: nodes.into_iter().map(Mutex::new).collect(),
            routes: Mutex::default(),
            network: Mutex::new(network),
            believers: Mutex::default(),
            registers: Mutex::default(),
            granted: Mutex::default(),
            transactions: Mutex::default(),
            asks: AtomicUsize::default(),
            grants: AtomicUsize::default(),
            healed_at: AtomicU64::new(u64::MAX),
        })
    }

    pub(crate) fn now(&self) -> Micros {
        self.clockwork.now()
    }

    /// From now on new connections of this machine reach that server, whatever address they ask for.
    pub(crate) fn lead(&self, machine: Machine, to: NodeId) {
        locked(&self.nodes[to]).is_away = false;
        locked(&self.routes).insert(machine, to);
    }

    /// The server that a new connection reaches.
    pub(crate) fn server_at(&self, machine: Machine, address: usize) -> NodeId {
        locked(&self.routes).get(&machine).copied().unwrap_or(address)
    }

    /// What Sentinel reports about the former master: of two servers that copy each other, the other one.
    pub(crate) fn predecessor_of(&self, server: NodeId) -> Predecessor {
        let [one, other] = &self.nodes[..] else { return Predecessor::Unknown };
        let other = locked(if server == 0 { other } else { one }).role;
        let promoted_at = locked(&self.nodes[server]).promoted_at;
        match other {
            // Promoted on command. A master that was cut off before cannot be asked.
            Role::Master { unheard_since, .. } if unheard_since == promoted_at => Predecessor::Serving,
            Role::Master { .. } => Predecessor::Unknown,
            Role::Replica => Predecessor::Demoted,
        }
    }

    pub(crate) fn note(&self, what: What) {
        self.log.note(self.now(), what);
    }

    /// The store has granted these tokens.
    pub(crate) fn on_granted(&self, grant: &Grant) {
        let (first, lock) = (grant.token.get(), lock_id(&grant.name));
        let last = first + u64::from(grant.block) - 1;
        locked(&self.granted).insert((lock, last), (first, grant.owner));
    }

    /// The owner to which this token was granted. A token that no server granted belongs to the last owner before, or to
    /// none.
    pub(crate) fn owner_of(&self, lock: LockId, token: u64) -> OwnerId {
        let granted = locked(&self.granted);
        let after = granted.range((lock, token)..=(lock, u64::MAX)).map(|(_, grant)| *grant);
        let its_own = after.take(1).find(|(first, _)| *first <= token);
        let before = || granted.range((lock, 0)..(lock, token)).next_back().map(|(_, grant)| *grant);
        let of_none = || OwnerId::from_random(ProcessId::from_random([0; 8]), [0; 16]);
        its_own.or_else(before).map_or_else(of_none, |(_, owner)| owner)
    }

    pub(crate) fn next_ask(&self) -> usize {
        self.asks.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_grant(&self) -> GrantId {
        self.grants.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.now() >= self.healed_at.load(Ordering::Relaxed)
    }

    /// Sends a request over a connection that was made in this epoch of the server, or over a new one.
    pub(crate) fn send(
        self: &Arc<Self>,
        from: Machine,
        to: NodeId,
        epoch: Option<u64>,
        request: Request,
    ) -> oneshot::Receiver<Answer> {
        let (tell, told) = oneshot::channel();
        let now = self.now();
        let (there, again) = {
            let mut network = locked(&self.network);
            let there = network.passage(now, from, to);
            if let Some((process, length)) = network.traps.remove(&from) {
                let until = (now + length).min(self.healed_at.load(Ordering::Relaxed));
                self.clockwork.stop(process, until);
            }
            // Connections to a server of cells repeat nothing: a request that it has answered does not come again.
            let repeats = !matches!(request, Request::Cells { .. });
            let is_twice = network.chance.below(1000) < network.weather.twice && repeats;
            let again = is_twice.then(|| network.chance.between(1_000, 3_000_000));
            (there, again)
        };
        if let (Some(at), Some(later)) = (there, again) {
            let (world, request) = (self.clone(), request.clone());
            self.clockwork.at(at + later, move || {
                // No client waits for this answer.
                let _ = world.apply(to, epoch, &request, true);
            });
        }
        let world = self.clone();
        match there {
            Some(at) => self.clockwork.at(at, move || world.arrive(from, to, epoch, &request, tell)),
            None => self.clockwork.at(now + silence(&request), move || {
                let _ = tell.send(Err(NoAnswer::Silent));
            }),
        }
        told
    }

    fn arrive(
        self: &Arc<Self>,
        from: Machine,
        to: NodeId,
        epoch: Option<u64>,
        request: &Request,
        tell: oneshot::Sender<Answer>,
    ) {
        let answer = self.apply(to, epoch, request, false);
        let now = self.now();
        let back = locked(&self.network).passage(now, from, to);
        let silent = (now + silence(request), Err(NoAnswer::Silent));
        let (at, answer) = back.map_or(silent, |at| (at, answer));
        let (world, is_cells) = (self.clone(), matches!(request, Request::Cells { .. }));
        self.clockwork.at(at, move || {
            // An answer of a server of cells is lost with its connection.
            let is_cut = is_cells && epoch.is_some_and(|epoch| epoch != locked(&world.nodes[to]).epoch);
            let _ = tell.send(if is_cut { Err(NoAnswer::Reset) } else { answer });
        });
    }

    fn apply(self: &Arc<Self>, to: NodeId, epoch: Option<u64>, request: &Request, is_again: bool) -> Answer {
        let now = self.now();
        let mut effects = Effects::default();
        let (reply, address) = {
            let mut node = locked(&self.nodes[to]);
            if node.down_until > now || node.is_away {
                return Err(if epoch.is_some() { NoAnswer::Reset } else { NoAnswer::Refused });
            }
            if epoch.is_some_and(|epoch| epoch != node.epoch) {
                return Err(NoAnswer::Reset);
            }
            (node.handle(now, request, &mut effects), node.address)
        };
        for mut event in effects.events {
            if let What::Served { again, .. } = &mut event {
                *again = is_again;
            }
            self.note(event);
        }
        self.hint(address, effects.wakes);
        Ok(reply)
    }

    fn hint(self: &Arc<Self>, address: usize, wakes: Vec<(Audience, OwnerId)>) {
        for (audience, owner) in wakes {
            let passage = locked(&self.network).hint(self.now());
            let Some(at) = passage else { continue };
            let world = self.clone();
            self.clockwork.at(at, move || {
                world.notifier[address].notify(audience, owner);
            });
        }
    }

    /// From now on, `look` reads this guard after each step of its process, and notes what it reports.
    pub(crate) fn believe<B: Belief + 'static>(
        &self,
        process: Pid,
        held: &Arc<B>,
        clock: &Arc<Clock>,
    ) -> GrantId {
        let grant = self.next_grant();
        let held: Weak<B> = Arc::downgrade(held);
        let clock = clock.clone();
        locked(&self.believers).push(Believer { process, grant, held, clock, until: 0, is_lost: false });
        grant
    }

    /// The program ends its tenure: from here on, the reports of the guard do not count.
    pub(crate) fn disbelieve(&self, grant: GrantId, how: Leaving) {
        let mut believers = locked(&self.believers);
        if let Some(at) = believers.iter().position(|believer| believer.grant == grant) {
            believers.remove(at);
            drop(believers);
            self.note(What::Left { grant, how });
        }
    }

    /// A process that is never killed treats the lease as held until the time that was reported last.
    pub(crate) fn pass_to_another(self: &Arc<Self>, grant: GrantId) {
        let mut believers = locked(&self.believers);
        let Some(at) = believers.iter().position(|believer| believer.grant == grant) else { return };
        let Believer { until, .. } = believers.remove(at);
        drop(believers);
        let world = self.clone();
        self.clockwork.at(until.max(self.now()), move || {
            world.note(What::Left { grant, how: Leaving::Expired });
        });
    }

    /// The store's waiters see that this process has ended.
    pub(crate) fn on_death(self: &Arc<Self>, process: ProcessId) {
        let now = self.now();
        for node in &self.nodes {
            let (effects, address) = {
                let mut node = locked(node);
                (node.on_death(now, process), node.address)
            };
            self.hint(address, effects.wakes);
        }
    }

    /// Ends all tenures of a killed process.
    pub(crate) fn bury(&self, process: Pid) {
        let dead: Vec<GrantId> = {
            let believers = locked(&self.believers);
            believers.iter().filter(|b| b.process == process).map(|b| b.grant).collect()
        };
        dead.into_iter().for_each(|grant| self.disbelieve(grant, Leaving::Killed));
    }

    /// Notes until when the guards of a process report their leases as held, if that has changed.
    pub(crate) fn look(&self, process: Pid) {
        let now = self.now();
        for believer in locked(&self.believers).iter_mut().filter(|b| b.process == process) {
            let Some(held) = believer.held.upgrade() else { continue };
            let left = u64::try_from(held.remaining().as_micros()).unwrap_or(u64::MAX / 2_000_000);
            let until =
                if left == 0 { believer.until.min(now) } else { now + believer.clock.true_within(left) };
            if until.abs_diff(believer.until) > 5 {
                believer.until = until;
                self.log.note(now, What::Believes { grant: believer.grant, until });
            }
        }
    }

    /// Checks whether a guard reports its lease as held. Notes if it reports the loss, or takes such a report back.
    pub(crate) fn check(&self, grant: GrantId, held: &dyn Belief) -> bool {
        let is_held = held.is_held();
        let mut believers = locked(&self.believers);
        let Some(believer) = believers.iter_mut().find(|b| b.grant == grant) else { return is_held };
        if is_held == believer.is_lost {
            believer.is_lost = !is_held;
            let what = if is_held { What::Resurrected { grant } } else { What::Lost { grant } };
            self.log.note(self.now(), what);
        }
        is_held
    }

    /// Writes to the resource of a lock. The write arrives after `after`.
    pub(crate) fn write(self: &Arc<Self>, grant: GrantId, lock: LockId, token: u64, after: Duration) {
        let (world, sent_at) = (self.clone(), self.now());
        let at = sent_at + u64::try_from(after.as_micros()).unwrap_or(0);
        self.clockwork.at(at, move || {
            let is_accepted = {
                let mut registers = locked(&world.registers);
                let mark = registers.entry(lock).or_default();
                let is_accepted = token >= *mark;
                *mark = token.max(*mark);
                is_accepted
            };
            world.note(What::Wrote { grant, lock, token, is_accepted, sent_at });
        });
    }
}

fn silence(request: &Request) -> Micros {
    if matches!(request, Request::Cells { .. }) { BROKEN } else { SILENCE }
}

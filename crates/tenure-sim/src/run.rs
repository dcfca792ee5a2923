//! One history: a world of a kind, a plan and a seed, from the first request to the last lease.

mod cast;
mod strike;

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use tenure::Locker;
use tenure_cas::Locks;
use tenure_core::{BackendHandle, Host, Label, Priority, ProcessId, locked};
use tenure_ledger::Rules;
use tenure_redlock::Redlock;

use crate::{
    blocks::{BlockProgram, Schedule},
    cell::RemoteCells,
    chance::Chance,
    checker::{Claims, Violation, judge},
    client::{Habits, Program},
    clockwork::{Clockwork, Micros},
    history::{Event, Machine, What, fingerprint},
    host::{Clock, SimHost},
    jobs::JobProgram,
    plan::{Plan, PlanKind, Size, Succession, crossing_times},
    remote::Remote,
    server::Kind,
    several::LOCKS,
    witness::Witness,
    world::World,
};

/// The kinds of worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum WorldKind {
    /// A ledger in a store that never forgets, as sqlite and postgres.
    Ledger,
    /// One Redis with the restart guard.
    Redis,
    /// The same with a replica that takes over.
    Pair,
    /// Redlock over three nodes.
    Redlock3,
    /// Redlock over five nodes.
    Redlock5,
    /// A Redis and its replica, which takes over while the master goes on.
    Twins,
    /// Three Redis servers that take turns behind one address.
    Spare,
    /// Cells that are compared and set, as rows of postgres, with a standby that may lack the last writes, and backups.
    Cell,
}

impl WorldKind {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Ledger,
        Self::Redis,
        Self::Pair,
        Self::Redlock3,
        Self::Redlock5,
        Self::Twins,
        Self::Spare,
        Self::Cell,
    ];

    /// How many addresses clients know.
    fn addresses(self) -> usize {
        match self {
            Self::Redlock3 => 3,
            Self::Redlock5 => 5,
            _ => 1,
        }
    }

    pub(crate) fn is_quorum(self) -> bool {
        self.kind() == Kind::Quorum
    }

    pub(crate) fn servers(self) -> usize {
        match self {
            Self::Twins => 2,
            Self::Spare => 3,
            _ => self.addresses(),
        }
    }

    fn succession(self) -> Succession {
        match self {
            Self::Pair => Succession::Standby,
            Self::Cell => Succession::Cells,
            Self::Twins => Succession::Twins,
            Self::Spare => Succession::Address,
            _ => Succession::None,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Ledger => Kind::Store,
            Self::Cell => Kind::Cells,
            Self::Redis | Self::Pair | Self::Twins | Self::Spare => Kind::Single,
            Self::Redlock3 | Self::Redlock5 => Kind::Quorum,
        }
    }
}

impl fmt::Display for WorldKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = clap::ValueEnum::to_possible_value(self).expect("BUG: every world has a name");
        f.write_str(value.get_name())
    }
}

/// The result of a history.
#[derive(Debug)]
pub struct Outcome {
    /// The laws that it broke.
    pub violations: Vec<Violation>,
    /// All that happened.
    pub events: Vec<Event>,
    /// Equal for equal histories only.
    pub fingerprint: u64,
    /// How much time it covers.
    pub simulated: Duration,
}

/// All leases are at most this long, and the guard waits for it.
const MAX_TTL: Duration = Duration::from_secs(6);
/// After the last request, all locks are free within this time, in µs.
const REST: Micros = 16_000_000;

/// How often the simulation checks what is left, in µs.
const LOOK_EVERY: Micros = 20_000;

/// Runs one history and judges it.
pub fn run(world: WorldKind, plan: PlanKind, seed: u64) -> Outcome {
    Stage::build(world, plan, seed).play()
}

impl Plan {
    /// When a program of this machine asks the store itself, if it does.
    fn schedule(&self, kind: PlanKind, machine: Machine) -> Option<Schedule> {
        match kind {
            PlanKind::Blocks => Some(Schedule::Often),
            PlanKind::Crossing => {
                // Before it, earlier claims find that all nodes answer, and bring their counters together.
                let before = if machine == 0 { [8_000_000, 5_000_000, 0] } else { [9_000_000, 7_000_000, 0] };
                let times = crossing_times(self.healed_at);
                let times = times.flat_map(|at| before.map(|before| at - before)).collect();
                Some(Schedule::At(times))
            }
            _ => None,
        }
    }
}

struct Seat {
    clock: Arc<Clock>,
    habits: Habits,
    tasks: usize,
    process: usize,
    /// The locker of its programs.
    locker: Option<Locker>,
}

struct Stage {
    kind: WorldKind,
    plan_kind: PlanKind,
    world: Arc<World>,
    plan: Plan,
    seats: Vec<Seat>,
    chance: Chance,
}

impl Stage {
    fn build(kind: WorldKind, plan_kind: PlanKind, seed: u64) -> Self {
        let mut chance = Chance::new(seed.wrapping_mul(256) + plan_kind as u64 * 8 + kind as u64);
        let machines = match plan_kind {
            PlanKind::Crossing => 2,
            _ => usize::try_from(chance.between(2, 4)).expect("BUG: a few"),
        };
        let nodes = (0..kind.servers()).map(|id| cast::node(kind, plan_kind, id, &mut chance)).collect();
        let size = Size {
            machines,
            nodes: kind.servers(),
            succession: kind.succession(),
            is_durable: kind == WorldKind::Ledger,
        };
        let plan = Plan::draw(plan_kind, size, &mut chance);
        let locks = cast::locks(kind, plan_kind, &mut chance);
        let seats =
            (0..machines).map(|machine| cast::seat(kind, machine, &locks, plan_kind, &mut chance)).collect();
        let clockwork = Clockwork::new(chance.fork());
        let world = World::new(clockwork, nodes, chance.fork());
        Self { kind, plan_kind, world, plan, seats, chance }
    }

    fn play(mut self) -> Outcome {
        for machine in 0..self.seats.len() {
            self.open(machine);
        }
        let healed_at = self.plan.healed_at;
        self.world.healed_at.store(healed_at, Ordering::Relaxed);
        for (at, fault) in std::mem::take(&mut self.plan.faults) {
            self.pass(at);
            self.strike(fault);
        }
        self.pass(healed_at);
        locked(&self.world.network).traps.clear();
        self.world.note(What::Healed);
        let bound = self.bound();
        self.pass(healed_at + 2 * bound);
        self.world.note(What::Closed);
        self.world.clockwork.end_mains();
        let end = self.world.now() + REST + self.plan.stepped_back;
        self.drain(end);
        for node in &self.world.nodes {
            let node = locked(node);
            for (lock, holders, places) in node.leftovers(end) {
                if holders + places > 0 {
                    self.world.note(What::Leftover { node: node.id, lock, holders, places });
                }
            }
        }
        self.world.clockwork.end();
        let events = self.world.log.take();
        let claims = Claims {
            is_quorum: self.kind.is_quorum(),
            nodes: self.kind.addresses(),
            is_within: self.plan_kind.breaks().is_none(),
            is_calm: matches!(self.plan_kind, PlanKind::Calm | PlanKind::Hot | PlanKind::Classes),
            has_classes: self.plan_kind == PlanKind::Classes,
            is_hot: self.plan_kind == PlanKind::Hot,
            bars_late: self.kind == WorldKind::Cell,
            takes_several: self.plan_kind == PlanKind::Several,
            bound,
        };
        let violations = judge(&events, &claims);
        let fingerprint = fingerprint(&events);
        Outcome { violations, events, fingerprint, simulated: Duration::from_micros(end) }
    }

    /// Flushes what programs have left. After `flush` has succeeded in a process, no lease or place of the process may be
    /// seen.
    fn drain(&mut self, end: Micros) {
        let drained = Arc::<Mutex<BTreeSet<ProcessId>>>::default();
        for seat in &mut self.seats {
            let Some(locker) = seat.locker.take() else { continue };
            let drained = drained.clone();
            let drain = async move {
                if locker.flush(Duration::from_micros(REST)).await {
                    locked(&drained).insert(locker.new_owner().process());
                }
            };
            self.world.clockwork.spawn(seat.process, Box::pin(drain));
        }
        let mut seen = BTreeSet::new();
        while self.world.now() < end {
            self.pass(end.min(self.world.now() + LOOK_EVERY));
            for node in &self.world.nodes {
                let node = locked(node);
                for (lock, owner) in node.owners(self.world.now()) {
                    if locked(&drained).contains(&owner.process()) && seen.insert((node.id, owner)) {
                        self.world.note(What::LeftAfterDrain { node: node.id, lock, owner });
                    }
                }
            }
        }
    }

    /// How long a waiter may wait after all faults have ended (S7.4).
    fn bound(&self) -> Micros {
        let longest = self.seats.iter().map(|seat| seat.habits.ttl).max().unwrap_or_default();
        let longest = u64::try_from(longest.as_micros()).unwrap_or(0);
        let programs = self.seats.iter().map(|seat| seat.tasks as u64).sum::<u64>();
        // A hold that began before is up to two and a half leases long; others last half a second.
        let guard = if self.plan_kind == PlanKind::Rollout { 32_000_000 } else { 18_000_000 };
        let (hold, claim_ttl, place) = (500_000, 500_000, 6_000_000);
        // The holder of one of several locks waits for the next one, and so do the holders before it there.
        // One grant of nine goes to the waiter that has waited longest.
        let classes = matches!(self.plan_kind, PlanKind::Classes | PlanKind::ClassesLate);
        let passes = if classes { u64::from(Priority::PASSED_MAX) + 1 } else { 1 };
        let chain = if self.plan_kind == PlanKind::Several { u64::from(LOCKS) } else { 1 };
        chain * longest * 5 / 2
            + 2 * longest.max(2_000_000)
            + chain * passes * programs * (hold + claim_ttl + 50_000)
            + place
            + guard
            + self.plan.stepped_back
    }

    fn pass(&self, until: Micros) {
        self.world.clockwork.run_until(until, |process| self.world.look(process));
    }

    /// A new process on this machine.
    fn open(&mut self, machine: Machine) {
        let world = &self.world;
        let process = world.clockwork.process();
        let seat = &mut self.seats[machine];
        seat.process = process;
        let host = SimHost::new(world.clockwork.clone(), process, seat.clock.clone(), self.chance.fork());
        let host: Arc<dyn Host> = host;
        let (terms, served) = cast::terms(self.kind, self.plan_kind, machine);
        let node = |id| Remote::new(world.clone(), host.clone(), machine, id, terms, served);
        let inner: BackendHandle = match self.kind {
            WorldKind::Redlock3 | WorldKind::Redlock5 => {
                let nodes = (0..self.kind.addresses()).map(|id| (format!("node-{id}"), Arc::new(node(id))));
                let redlock = Redlock::new(nodes.collect(), host.clone());
                Arc::new(redlock.expect("BUG: an odd number of nodes"))
            }
            WorldKind::Cell => {
                // In a calm world half of the users may not delete places.
                let may_delete = self.plan_kind != PlanKind::Calm || machine.is_multiple_of(2);
                let cells = RemoteCells::new(world.clone(), host.clone(), machine, (MAX_TTL, may_delete));
                Arc::new(Locks::new(cells, host.clone(), Rules::default()))
            }
            _ => Arc::new(node(0)),
        };
        let watched = Arc::new(Witness { inner, world: world.clone() });
        if let Some(schedule) = self.plan.schedule(self.plan_kind, machine) {
            let program = BlockProgram {
                world: world.clone(),
                process,
                clock: seat.clock.clone(),
                host,
                store: watched,
                ttl: if self.plan_kind == PlanKind::Crossing { MAX_TTL } else { seat.habits.ttl },
                schedule,
                chance: self.chance.fork(),
            };
            world.clockwork.spawn_main(process, Box::pin(program.run()));
            return;
        }
        let locker = Locker::new(watched, host).with_label(Label::default());
        seat.locker = Some(locker.clone());
        if self.plan_kind == PlanKind::Jobs {
            for _ in 0..seat.tasks {
                let (world, locker, chance) = (world.clone(), locker.clone(), self.chance.fork());
                let program = JobProgram { world: world.clone(), locker, ttl: seat.habits.ttl, chance };
                world.clockwork.spawn_main(process, Box::pin(program.run()));
            }
            return;
        }
        for _ in 0..seat.tasks {
            let program = Program {
                world: world.clone(),
                process,
                clock: seat.clock.clone(),
                locker: locker.clone(),
                habits: seat.habits.clone(),
                chance: self.chance.fork(),
                former: None,
                stale: None,
            };
            world.clockwork.spawn_main(process, Box::pin(program.run()));
        }
    }
}

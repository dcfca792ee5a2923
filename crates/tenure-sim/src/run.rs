//! One history: a world of a kind, a plan and a seed, from the first request to the last lease.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tenure::Locker;
use tenure_core::{BackendHandle, Host, Label};
use tenure_ledger::Rules;
use tenure_redis::{GuardMode, Terms};
use tenure_redlock::Redlock;

use crate::{
    blocks::{BlockProgram, Schedule},
    chance::Chance,
    checker::{Claims, Violation, judge},
    client::{Habits, Program, Use},
    clockwork::{Clockwork, Micros, locked},
    history::{Event, What, fingerprint},
    host::{Clock, EPOCH, SimHost},
    plan::{Fault, Memory, Plan, PlanKind, Size, crossing_times},
    remote::Remote,
    server::{Data, Kind, Life, Node},
    witness::Witness,
    world::{Machine, World},
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
}

impl WorldKind {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Ledger, Self::Redis, Self::Pair, Self::Redlock3, Self::Redlock5];

    fn nodes(self) -> usize {
        match self {
            Self::Redlock3 => 3,
            Self::Redlock5 => 5,
            _ => 1,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Ledger => Kind::Store,
            Self::Redis | Self::Pair => Kind::Single,
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

/// What came of a history.
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
/// After the locks are no longer asked for, everything is free after this.
const REST: Micros = 16_000_000;
/// Lengths of leases, in ms.
const TTLS: &[u64] = &[1_000, 1_500, 2_000, 3_000, 5_000, 6_000];

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
                // Before it, some that find out that all nodes answer, and bring their counters together.
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
        let nodes = (0..kind.nodes()).map(|id| node(kind, plan_kind, id, &mut chance)).collect();
        let size = Size {
            machines,
            nodes: kind.nodes(),
            has_standby: kind == WorldKind::Pair,
            is_durable: kind == WorldKind::Ledger,
        };
        let plan = Plan::draw(plan_kind, size, &mut chance);
        let locks = locks(kind, &mut chance);
        let seats = (0..machines).map(|_| seat(&locks, plan_kind, &mut chance)).collect();
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
        self.pass(end);
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
            is_quorum: self.kind.kind() == Kind::Quorum,
            nodes: self.kind.nodes(),
            is_within: self.plan_kind.breaks().is_none(),
            keeps_order: self.plan_kind == PlanKind::Calm && self.kind.kind() != Kind::Quorum,
            bound,
        };
        let violations = judge(&events, &claims);
        let fingerprint = fingerprint(&events);
        Outcome { violations, events, fingerprint, simulated: Duration::from_micros(end) }
    }

    /// How long a waiter may wait once all faults are over: safety.md S7.4.
    fn bound(&self) -> Micros {
        let longest = self.seats.iter().map(|seat| seat.habits.ttl).max().unwrap_or_default();
        let longest = u64::try_from(longest.as_micros()).unwrap_or(0);
        let programs = self.seats.iter().map(|seat| seat.tasks as u64).sum::<u64>();
        // A hold that began before is up to two and a half leases long; others half a second.
        let (hold, claim_ttl, place, guard) = (500_000, 500_000, 6_000_000, 8_000_000);
        longest * 5 / 2
            + 2 * longest.max(2_000_000)
            + programs * (hold + claim_ttl + 50_000)
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
        let node = |id| Remote::new(world.clone(), host.clone(), machine, id);
        let inner: BackendHandle = match self.kind {
            WorldKind::Redlock3 | WorldKind::Redlock5 => {
                let nodes = (0..self.kind.nodes()).map(|id| (format!("node-{id}"), Arc::new(node(id))));
                let redlock = Redlock::new(nodes.collect(), host.clone());
                Arc::new(redlock.expect("BUG: an odd number of nodes"))
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
        let locker = Locker::new(watched, host).labelled(Label::default());
        for _ in 0..seat.tasks {
            let program = Program {
                world: world.clone(),
                process,
                clock: seat.clock.clone(),
                locker: locker.clone(),
                habits: seat.habits.clone(),
                chance: self.chance.fork(),
            };
            world.clockwork.spawn_main(process, Box::pin(program.run()));
        }
    }

    fn strike(&mut self, fault: Fault) {
        self.world.note(What::Fault(format!("{fault:?}")));
        let (world, now) = (self.world.clone(), self.world.now());
        let node = |id: usize| locked(&world.nodes[id]);
        match fault {
            Fault::Weather(weather) => locked(&world.network).weather = weather,
            Fault::Cut { machine, node, until, is_kept } => {
                locked(&world.network).cuts.insert((machine, node), (until, is_kept));
            }
            Fault::Stop { machine, until } => {
                world.clockwork.stop(self.seats[machine].process, until);
            }
            Fault::StopAsking { machine, length } => {
                let trap = (self.seats[machine].process, length);
                locked(&world.network).traps.insert(machine, trap);
            }
            Fault::Kill { machine, back_after } => {
                let process = self.seats[machine].process;
                world.bury(process);
                world.clockwork.kill(process);
                // Its machine is idle until then; a plan is played in order, so the wait is a stop of the new process.
                self.open(machine);
                world.clockwork.stop(self.seats[machine].process, now + back_after);
            }
            Fault::StepClient { machine, by } => {
                self.seats[machine].clock.step(by);
                world.look(self.seats[machine].process);
            }
            Fault::StepServer { node: id, by } => node(id).life.clock.step(by),
            Fault::Copy { node: id } => {
                let mut node = node(id);
                node.copy = Some(node.data.clone());
            }
            Fault::Restart { node: id, down, memory, loads_history } => {
                let mut node = node(id);
                let data = match memory {
                    Memory::Kept => None,
                    Memory::Empty => Some(Data::default()),
                    Memory::Copy => node.copy.take(),
                };
                node.restart(now, down, data, loads_history);
            }
            Fault::Promote { node: id, down } => node(id).promote(now, down),
            Fault::EndBacklog { node: id } => {
                node(id).end_backlog(now);
            }
            Fault::Flush { node: id } => node(id).flush(),
        }
    }
}

fn locks(kind: WorldKind, chance: &mut Chance) -> Vec<Use> {
    let other = match kind {
        WorldKind::Redlock3 | WorldKind::Redlock5 => &[Use::Mutex, Use::Semaphore][..],
        _ => &[Use::Mutex, Use::ReadWrite, Use::Semaphore],
    };
    match chance.below(3) {
        0 => vec![Use::Mutex],
        1 => vec![chance.pick(other)],
        _ => vec![Use::Mutex, chance.pick(other)],
    }
}

fn seat(locks: &[Use], plan: PlanKind, chance: &mut Chance) -> Seat {
    let rest = chance.pick(&[(100, 2_000), (500, 6_000), (2_000, 15_000)]);
    let habits = Habits {
        locks: locks.to_vec(),
        ttl: Duration::from_millis(chance.pick(TTLS)),
        rest,
        long: chance.between(30, 200),
        fickle: chance.between(0, 200),
    };
    let offset = i64::try_from(chance.below(4_000_000_000)).unwrap_or(0) - 2_000_000_000;
    let clock = Arc::new(Clock::new(rate(plan, chance), offset));
    Seat { clock, habits, tasks: 1 + chance.index(2), process: 0 }
}

/// Within 0.95 %, with servers that are almost right, so that two differ by less than 1 %; else up to 5 %.
fn rate(plan: PlanKind, chance: &mut Chance) -> i64 {
    let most = if plan == PlanKind::Drift { 50_000 } else { 9_500 };
    i64::try_from(chance.below(2 * most + 1)).unwrap_or(0) - i64::try_from(most).unwrap_or(0)
}

fn node(kind: WorldKind, plan: PlanKind, id: usize, chance: &mut Chance) -> Node {
    let max = i64::try_from(MAX_TTL.as_micros()).unwrap_or(0);
    let mut life = |run: u64| {
        // Two servers differ by less than half of `max_ttl` (A6).
        let offset = i64::try_from(chance.below(480)).unwrap_or(0) * max / 1000 - max * 24 / 100;
        // Slow enough that skew does not grow out of that in the time of a history.
        let ppm = if plan == PlanKind::Drift { rate(plan, chance) } else { rate(plan, chance) / 100 };
        let started_wall = EPOCH - chance.between(0, 100_000) * 1_000_000;
        let clock = Arc::new(Clock::new(ppm, offset));
        Life { run, started_wall, is_lossy: false, clock }
    };
    let base = id as u64 * 1_000_000;
    let (first, second) = (life(base + 1), life(base + 2));
    let mode = if plan == PlanKind::Unguarded { GuardMode::Off } else { GuardMode::On };
    let quorum = (kind.kind() == Kind::Quorum).then(|| kind.nodes());
    Node {
        id,
        kind: kind.kind(),
        rules: Rules::default(),
        terms: Terms { mode, max_ttl: MAX_TTL, db: 0, quorum },
        life: first,
        standby: (kind == WorldKind::Pair).then_some(second),
        data: Data::default(),
        copy: None,
        replid: base + 3,
        is_promoted: false,
        promoted_at: None,
        backlog_ttl: Duration::from_secs(chance.pick(&[0, 10, 3600])),
        epoch: 0,
        down_until: 0,
        next_id: base + 10,
    }
}

//! The parts of a world: its locks, its machines and its servers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tenure_ledger::Rules;
use tenure_redis::{GuardMode, Terms};

use super::{MAX_TTL, Seat, WorldKind};
use crate::{
    chance::Chance,
    client::{Habits, Use},
    clockwork::Micros,
    host::{Clock, EPOCH},
    plan::PlanKind,
    server::{Data, Kind, Life, Node, Role, Strangers},
};

/// How long some processes keep an idle lease.
const IDLE: Duration = Duration::from_millis(2_500);

/// How often all programs ask for a hot lock, and how many times in a row each of them asks.
const HOT_EVERY: Micros = 20_000_000;
const HOT_ASKS: usize = 20;

/// The `max_ttl` that is rolled out: longer than a former master goes on.
const LARGER: Duration = Duration::from_secs(20);

/// Lengths of leases, in ms.
const TTLS: &[u64] = &[1_000, 1_500, 2_000, 3_000, 5_000, 6_000];

pub(super) fn locks(kind: WorldKind, plan: PlanKind, chance: &mut Chance) -> Vec<Use> {
    if plan == PlanKind::Hot {
        return vec![Use::Mutex];
    }
    let other = match kind {
        WorldKind::Redlock3 | WorldKind::Redlock5 => &[Use::Mutex, Use::Write, Use::Semaphore][..],
        _ => &[Use::Mutex, Use::Write, Use::ReadWrite, Use::Semaphore],
    };
    match chance.below(3) {
        0 => vec![chance.pick(&[Use::Mutex, Use::Write])],
        1 => vec![chance.pick(other)],
        _ => vec![Use::Mutex, chance.pick(other)],
    }
}

pub(super) fn seat(
    kind: WorldKind,
    machine: usize,
    locks: &[Use],
    plan: PlanKind,
    chance: &mut Chance,
) -> Seat {
    let rest = chance.pick(&[(100, 2_000), (500, 6_000), (2_000, 15_000)]);
    let are_crowds = match plan {
        PlanKind::Crowds => true,
        PlanKind::Calm => chance.per_mille(250),
        _ => false,
    };
    let crowds_every = are_crowds.then(|| chance.between(8_000_000, 30_000_000));
    let long = chance.between(30, 200);
    // Not in a calm world, where waiters must not be passed for longer (L7). Not where the address starts to lead to another
    // server while leases are kept: no client can then end them on the former server (L9).
    let keeps = !matches!(plan, PlanKind::Calm | PlanKind::Scattered | PlanKind::Hot | PlanKind::Classes)
        && rest.0 < 1_000
        && long.is_multiple_of(3);
    let is_hot = plan == PlanKind::Hot;
    let habits = Habits {
        idle: keeps.then_some(IDLE),
        crowds_every: if is_hot { Some(HOT_EVERY) } else { crowds_every },
        asks: if is_hot { HOT_ASKS } else { 1 },
        locks: locks.to_vec(),
        renamed_every: (kind == WorldKind::Cell).then_some(25_000_000),
        ttl: ttl(kind, plan, machine, chance),
        rest,
        several: plan == PlanKind::Several,
        detaches: plan == PlanKind::Deaths,
        classes: matches!(plan, PlanKind::Classes | PlanKind::ClassesLate),
        transacts: plan == PlanKind::Owned && kind == WorldKind::Cell,
        long,
        fickle: chance.between(0, 200),
    };
    let offset = i64::try_from(chance.below(4_000_000_000)).unwrap_or(0) - 2_000_000_000;
    let clock = Arc::new(Clock::new(rate(plan, chance), offset));
    let most = match plan {
        PlanKind::Hot => 1,
        // So many that some are passed often.
        PlanKind::Classes | PlanKind::ClassesLate => 10,
        _ if habits.crowds_every.is_some() => 24,
        _ => 4,
    };
    Seat { clock, habits, tasks: 1 + chance.index(most), process: 0, locker: None }
}

/// Sometimes longer than the record allows, where a larger `max_ttl` is rolled out.
fn ttl(kind: WorldKind, plan: PlanKind, machine: usize, chance: &mut Chance) -> Duration {
    let ttl = Duration::from_millis(chance.pick(TTLS));
    if has_larger(kind, plan, machine) && chance.per_mille(300) { ttl + MAX_TTL } else { ttl }
}

/// A store without a guard has one `max_ttl`.
fn has_larger(kind: WorldKind, plan: PlanKind, machine: usize) -> bool {
    let is_guarded = matches!(kind.kind(), Kind::Single | Kind::Quorum);
    is_guarded && plan == PlanKind::Rollout && !machine.is_multiple_of(2)
}

/// Within 0.95 %: servers are almost exact, so a client and a server differ by less than 1 %. Under `Drift` up to 5 %.
fn rate(plan: PlanKind, chance: &mut Chance) -> i64 {
    let most = if plan == PlanKind::Drift { 50_000 } else { 9_500 };
    i64::try_from(chance.below(2 * most + 1)).unwrap_or(0) - i64::try_from(most).unwrap_or(0)
}

/// The settings of the clients on a machine, and the `max_ttl` under which they were served before.
pub(super) fn terms(kind: WorldKind, plan: PlanKind, machine: usize) -> (Terms, Option<Duration>) {
    let mode = if plan == PlanKind::Unguarded { GuardMode::Off } else { GuardMode::On };
    let quorum = (kind.kind() == Kind::Quorum).then(|| kind.addresses());
    let rolls_out = plan == PlanKind::Rollout;
    let max_ttl = if has_larger(kind, plan, machine) { LARGER } else { MAX_TTL };
    (Terms { mode, max_ttl, db: 0, quorum }, rolls_out.then_some(MAX_TTL))
}

pub(super) fn node(kind: WorldKind, plan: PlanKind, id: usize, chance: &mut Chance) -> Node {
    let max = i64::try_from(MAX_TTL.as_micros()).unwrap_or(0);
    let mut life = |run: u64| {
        // Two servers differ by less than half of `max_ttl` (A6).
        let offset = i64::try_from(chance.below(480)).unwrap_or(0) * max / 1000 - max * 24 / 100;
        // Slow enough that the difference stays below that during a history.
        let ppm = if plan == PlanKind::Drift { rate(plan, chance) } else { rate(plan, chance) / 100 };
        let started_wall = EPOCH - chance.between(0, 100_000) * 1_000_000;
        let clock = Arc::new(Clock::new(ppm, offset));
        Life { run, started_wall, is_lossy: false, clock }
    };
    let base = id as u64 * 1_000_000;
    let (first, mut second) = (life(base + 1), life(base + 2));
    // The clocks of hosts that follow each other as one database agree (A2).
    if kind == WorldKind::Cell {
        second.clock = first.clock.clone();
    }
    let role = match kind {
        WorldKind::Twins if id == 1 => Role::Replica,
        _ => Role::Master { unheard_since: None, has_replica: kind == WorldKind::Twins },
    };
    Node {
        id,
        address: if kind.addresses() == 1 { 0 } else { id },
        role,
        kind: kind.kind(),
        rules: Rules::default(),
        life: first,
        standby: matches!(kind, WorldKind::Pair | WorldKind::Cell).then_some(second),
        data: Data::default(),
        copy: None,
        snapshot: None,
        replid: base + 3,
        is_promoted: false,
        promoted_at: None,
        backlog_ttl: Duration::from_secs(chance.pick(&[0, 10, 3600])),
        epoch: 0,
        down_until: 0,
        is_away: false,
        next_id: base + 10,
        strangers: Strangers::default(),
        dead: (plan == PlanKind::Deaths && kind == WorldKind::Ledger).then(BTreeSet::new),
    }
}

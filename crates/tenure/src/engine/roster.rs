//! `Roster`: all held leases, by when the watchdog must look at them.

use std::{
    collections::{BTreeMap, hash_map},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foldhash::HashMap;
use tenure_core::{Moment, OwnerId, Wake, locked};
use tokio::sync::Notify;

use crate::{
    engine::cell::{Due, HoldCell},
    machine::hold::Action,
};

/// A wall clock that moved by more than this against the other one has stepped: look at everything.
const STEP: Duration = Duration::from_millis(5);

/// Renewals that travel together.
const BATCH: usize = 512;

/// Where one is renewed, the others that are due so soon are looked at too, and may travel along: 50 ms. A request for each of
/// many leases would cost more than their renewals.
const AHEAD: Duration = Duration::from_millis(50);

/// All held leases of one process.
#[derive(Default)]
pub(crate) struct Roster {
    entries: Mutex<Entries>,
    /// Rung when the watchdog must look earlier than it planned.
    pub(crate) bell: Notify,
    closed: AtomicBool,
}

/// A claim or a renewal under an owner that somebody else has chosen, while it is on its way.
pub(crate) struct Expected<'a> {
    roster: &'a Roster,
    owner: OwnerId,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        let mut entries = self.roster.entries();
        if let Some(count) = entries.expected.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                entries.expected.remove(&self.owner);
            }
        }
    }
}

#[derive(Default)]
struct Entries {
    /// All, each where its `due` says.
    by_due: BTreeMap<Due, Arc<HoldCell>>,
    /// The latest of each owner.
    by_owner: HashMap<OwnerId, Arc<HoldCell>>,
    /// Owners of leases that are on their way, and how many each.
    expected: HashMap<OwnerId, usize>,
    /// How often the clock is to be looked at, and for how many leases each.
    looks: BTreeMap<Duration, usize>,
    arrivals: u64,
    /// When the watchdog will look next; `None` if it sleeps until the bell.
    planned: Option<Duration>,
    /// When all were looked at; from there the wall clock has not stepped.
    seen: Option<Moment>,
}

/// What the watchdog must do now.
#[derive(Default)]
pub(crate) struct Plan {
    /// Leases that were passed on and that nobody has taken; each has ended.
    pub(crate) give_back: Vec<Arc<HoldCell>>,
    /// Leases to renew; each has been told that its renewal is sent.
    pub(crate) renew: Vec<Vec<Arc<HoldCell>>>,
    /// When to look again; `None` when the bell rings: there is no lease, and none is added without a ring.
    pub(crate) next: Option<Moment>,
}

impl Roster {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        // OK because the maps agree whenever code that can panic runs.
        locked(&self.entries)
    }

    /// Adds a lease; wakes the watchdog only if it is the first to be looked at.
    pub(crate) fn add(&self, now: Moment, cell: Arc<HoldCell>) {
        let due = match cell.poll(now) {
            Action::Wait { until } => until.boot,
            // The grant came so late that its renewal is due.
            Action::Renew | Action::GiveBack => now.boot,
            Action::Over => return,
        };
        let look = due.min(now.boot + cell.timing().look());
        let mut entries = self.entries();
        entries.insert(due, cell);
        if entries.planned.is_none_or(|planned| look < planned) {
            entries.planned = Some(look);
            self.bell.notify_one();
        }
    }

    /// As [`add`](Self::add), unless a lease of this owner is there; false then.
    pub(crate) fn add_new(&self, now: Moment, cell: Arc<HoldCell>) -> bool {
        let mut entries = self.entries();
        if entries.by_owner.contains_key(&cell.owner()) {
            return false;
        }
        entries.insert(now.boot, cell);
        drop(entries);
        // It looks at it now, and plans it.
        self.bell.notify_one();
        true
    }

    /// Whether a lease of this owner is there.
    pub(crate) fn has(&self, owner: OwnerId) -> bool {
        self.entries().by_owner.contains_key(&owner)
    }

    /// A lease of this owner is about to be asked for: until that is over, one that was lost before does not end it.
    pub(crate) fn expect(&self, owner: OwnerId) -> Expected<'_> {
        *self.entries().expected.entry(owner).or_insert(0) += 1;
        Expected { roster: self, owner }
    }

    /// Removes this lease. False, and nothing is removed, if its owner has another one here by now, or soon: its end is then no
    /// business of this one.
    pub(crate) fn remove(&self, cell: &HoldCell) -> bool {
        let mut entries = self.entries();
        let owner = cell.owner();
        match entries.by_owner.get(&owner) {
            Some(kept) if !is_same(kept, cell) => return false,
            Some(_) => entries.take(cell),
            None => {}
        }
        !entries.expected.contains_key(&owner)
    }

    /// Ends the leases that are kept idle, and answers them.
    pub(crate) fn end_idle(&self, now: Moment) -> Vec<Arc<HoldCell>> {
        let mut entries = self.entries();
        let mut ended: Vec<_> =
            entries.by_owner.values().filter(|cell| cell.end_idle(now)).cloned().collect();
        // A history of the simulation is the same each time.
        ended.sort_unstable_by_key(|cell| cell.owner());
        for cell in &ended {
            entries.take(cell);
        }
        ended
    }

    /// Nobody will add a lease any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Somebody may have been robbed: look, and ask, at once.
    pub(crate) fn on_wake(&self, now: Moment, wake: Wake) {
        match wake {
            Wake::Owner(owner) => {
                let mut entries = self.entries();
                if let Some(cell) = entries.by_owner.get(&owner).cloned() {
                    entries.look_at(now, cell, |cell| cell.on_wake(now));
                }
            }
            Wake::All => self.of_all(now, |cell| cell.on_wake(now)),
        }
    }

    /// Hints are heard from now on: somebody may have said before that it waits.
    pub(crate) fn on_connected(&self, now: Moment) {
        self.of_all(now, |cell| cell.on_wanted(now));
    }

    /// The thread that renewed before is gone, and with it the answers that it waited for.
    pub(crate) fn take_over(&self, now: Moment) {
        self.of_all(now, |cell| cell.on_renewal(now, None));
    }

    fn of_all(&self, now: Moment, tell: impl Fn(&HoldCell)) {
        let mut entries = self.entries();
        let all: Vec<_> = entries.by_owner.values().cloned().collect();
        all.into_iter().for_each(|cell| entries.look_at(now, cell, &tell));
    }

    /// Looks at every lease whose time has come, and at all of them if the wall clock stepped.
    pub(crate) fn plan(&self, now: Moment) -> Plan {
        let mut entries = self.entries();
        let mut plan = Plan::default();
        let horizon = if entries.stepped(now) { Duration::MAX } else { now.boot };
        for cell in entries.take_due(horizon) {
            let action = cell.poll(now);
            entries.follow(now, cell, action, &mut plan);
        }
        if !plan.renew.is_empty() {
            for cell in entries.take_due(now.boot + AHEAD) {
                let action = cell.poll_beside(now);
                entries.follow(now, cell, action, &mut plan);
            }
        }
        let first = entries.by_due.first_key_value().map(|(due, _)| due.0);
        let look = entries.looks.first_key_value().map(|(look, _)| now.boot + *look);
        // A look that was planned stays planned when its lease has left: who acquires and releases in a loop wakes the
        // watchdog once per look, not once per lease.
        let kept = entries.planned.filter(|planned| *planned > now.boot);
        entries.planned = [first, look, kept].into_iter().flatten().min();
        plan.next = entries.planned.map(|due| now + due.saturating_sub(now.boot));
        plan
    }

    /// What is left when nobody can use it any more: leases that were kept idle.
    pub(crate) fn take_all(&self) -> Vec<Arc<HoldCell>> {
        let mut entries = self.entries();
        let all = std::mem::take(&mut *entries);
        all.by_due.into_values().collect()
    }

    /// A lease was renewed or not: plan it anew, unless it has left meanwhile.
    pub(crate) fn replan(&self, now: Moment, cell: &Arc<HoldCell>) {
        let mut entries = self.entries();
        if !entries.unplan(cell) {
            return;
        }
        match cell.poll(now) {
            Action::Wait { until } => entries.plan_at(until.boot, cell.clone()),
            Action::Renew | Action::GiveBack => entries.plan_at(now.boot, cell.clone()),
            Action::Over => entries.take(cell),
        }
    }
}

impl Entries {
    /// Tells this lease something, and has it looked at now.
    fn look_at(&mut self, now: Moment, cell: Arc<HoldCell>, tell: impl FnOnce(&HoldCell)) {
        if self.unplan(&cell) {
            tell(&cell);
            self.plan_at(now.boot, cell);
        }
    }

    /// Whether the wall clock has stepped since all were looked at.
    fn stepped(&mut self, now: Moment) -> bool {
        let stepped = self.seen.is_none_or(|seen| has_stepped(seen, now));
        if stepped {
            self.seen = Some(now);
        }
        stepped
    }

    /// Does what a lease wants now, and plans when it is looked at next.
    fn follow(&mut self, now: Moment, cell: Arc<HoldCell>, mut action: Action, plan: &mut Plan) {
        if action == Action::Renew {
            cell.on_sent(now);
            match plan.renew.last_mut() {
                Some(batch) if batch.len() < BATCH => batch.push(cell.clone()),
                _ => plan.renew.push(vec![cell.clone()]),
            }
            action = cell.poll(now);
        }
        match action {
            Action::Wait { until } => self.plan_at(until.boot, cell),
            Action::GiveBack if cell.abandon(now) => {
                self.take(&cell);
                plan.give_back.push(cell);
            }
            // Taken or released in this moment.
            Action::GiveBack => self.plan_at(now.boot, cell),
            Action::Renew | Action::Over => self.take(&cell),
        }
    }

    fn insert(&mut self, due: Duration, cell: Arc<HoldCell>) {
        *self.looks.entry(cell.timing().look()).or_default() += 1;
        self.by_owner.insert(cell.owner(), cell.clone());
        self.plan_at(due, cell);
    }

    fn plan_at(&mut self, due: Duration, cell: Arc<HoldCell>) {
        self.arrivals += 1;
        let due = (due, self.arrivals);
        *locked(&cell.due) = Some(due);
        self.by_due.insert(due, cell);
    }

    /// It is not looked at until it is planned again; false if it was not here.
    fn unplan(&mut self, cell: &HoldCell) -> bool {
        let due = locked(&cell.due).take();
        due.is_some_and(|due| self.by_due.remove(&due).is_some())
    }

    /// Removes it, which is here.
    fn take(&mut self, cell: &HoldCell) {
        self.unplan(cell);
        if let hash_map::Entry::Occupied(latest) = self.by_owner.entry(cell.owner())
            && is_same(latest.get(), cell)
        {
            latest.remove();
        }
        let look = cell.timing().look();
        if let Some(count) = self.looks.get_mut(&look) {
            *count -= 1;
            if *count == 0 {
                self.looks.remove(&look);
            }
        }
    }

    /// Those whose time has come: to be planned again, or taken.
    fn take_due(&mut self, horizon: Duration) -> Vec<Arc<HoldCell>> {
        let mut due = Vec::new();
        while let Some(first) = self.by_due.first_entry().filter(|first| first.key().0 <= horizon) {
            let cell = first.remove();
            *locked(&cell.due) = None;
            due.push(cell);
        }
        due
    }
}

fn is_same(one: &HoldCell, other: &HoldCell) -> bool {
    std::ptr::eq(one, other)
}

fn has_stepped(last: Moment, now: Moment) -> bool {
    let (boot, wall) = (now.boot.saturating_sub(last.boot), now.wall.saturating_sub(last.wall));
    boot.abs_diff(wall) > STEP
}

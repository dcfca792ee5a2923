//! Held leases: from the grant until released or lost, and the only loop that renews them.
//!
//! `HoldCell` is one of them, as its guard and the watchdog see it. The watchdog drives every `Hold` of the process
//! on a separate thread (H2.5). `Roster` has all of them, sorted by their next check.

use std::{
    collections::{BTreeMap, hash_map},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foldhash::HashMap;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_core::{
    Audience, BackendError, BoxFuture, ErrorKind, FencingToken, Grant, Host, Moment, OwnerId, ProcessId,
    Renewal, Timing, WakeEvent, WakeStream, locked,
};
use tokio::sync::Notify;
use tracing::{Instrument, Span};

use crate::{
    engine::{
        metrics::{HoldOutcome, ReleaseOutcome},
        reaper::Reaper,
        request::{KeeperStore, Unforked, request},
        telemetry::{HoldRecord, RenewalRecord},
        wishes::Wishes,
    },
    error::{Loss, Lost},
    machine::hold::{Hold, HoldAction, Renewals},
};

/// One held lease. The machine inside is the only truth; the first check after the end detects the loss.
pub(crate) struct HoldCell {
    grant: Grant,
    timing: Timing,
    hold: Mutex<Hold>,
    /// The place of the lease in the roster, if it is there. Only the roster reads it, under its own mutex.
    due: Mutex<Option<Due>>,
    changed: Notify,
    host: Arc<dyn Host>,
    pid: u32,
    /// The program has read its owner; all holders that it is passed on to share this.
    is_owner_exposed: Arc<AtomicBool>,
    /// What the last renewal failed with, until one succeeds.
    failure: Mutex<Option<BackendError>>,
    wishes: Wishes,
    record: HoldRecord,
}

/// When a lease is checked: by the clock that does not step, and the order in which leases were planned.
type Due = (Duration, u64);

impl HoldCell {
    pub(crate) fn new(
        grant: Grant,
        until: Moment,
        timing: Timing,
        cap: Option<Moment>,
        (host, record): (Arc<dyn Host>, HoldRecord),
    ) -> Self {
        Self {
            timing,
            hold: Mutex::new(Hold::new(until, grant.ttl, timing, cap, grant.token)),
            grant,
            due: Mutex::default(),
            changed: Notify::new(),
            host,
            pid: std::process::id(),
            is_owner_exposed: Arc::default(),
            failure: Mutex::default(),
            wishes: Wishes::default(),
            record,
        }
    }

    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.grant.owner
    }

    /// The owner, for a caller that may give it to another process: from now on the lease has no other holder.
    pub(crate) fn expose_owner(&self) -> OwnerId {
        self.is_owner_exposed.store(true, Ordering::Release);
        self.grant.owner
    }

    /// The same, if the lease is this holder's now. Decided in the step in which it could be passed on: a clone of the lease
    /// never exposes the owner of the next holder.
    // L1, H5.3.
    pub(crate) fn expose_if_held(&self) -> Result<(), Lost> {
        self.check()?;
        let mut hold = self.hold();
        let checked = hold.check(self.host.now());
        self.is_owner_exposed.fetch_or(checked.is_ok(), Ordering::AcqRel);
        checked
    }

    pub(crate) fn is_owner_exposed(&self) -> bool {
        self.is_owner_exposed.load(Ordering::Acquire)
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    /// How its holder learns that a waiter asks it to stop.
    pub(crate) fn wishes(&self) -> &Wishes {
        &self.wishes
    }

    fn hold(&self) -> MutexGuard<'_, Hold> {
        // OK because the machine's methods do not panic between two states.
        locked(&self.hold)
    }

    /// A fork of the holder holds nothing (hazard 27).
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Runs the work; in a forked child returns the other result instead.
    pub(crate) fn unless_forked<W: Future, F: Fn() -> W::Output>(
        &self,
        forked: F,
        work: W,
    ) -> Unforked<W, F> {
        Unforked::new(self.pid, forked, work)
    }

    pub(crate) fn check(&self) -> Result<(), Lost> {
        let now = self.host.now();
        if !self.is_ours() {
            return Err(Lost::new(Loss::Forked, self.grant.token, now.wall));
        }
        let checked = self.hold().check(now);
        checked.inspect_err(|lost| self.record.lose(&self.grant, lost, now))
    }

    /// A holder has it from now on.
    pub(crate) fn begin(&self, now: Moment) {
        self.record.begin(now);
    }

    /// Its holder ended it at that moment, or now. Returns how it ended, which may have been earlier.
    pub(crate) fn ended(&self, outcome: HoldOutcome, then: Option<Moment>) -> HoldOutcome {
        self.record.end(outcome, || then.unwrap_or_else(|| self.host.now()))
    }

    /// The result of its release by its holder. Returns the loss if the store had nothing to release.
    pub(crate) fn on_released(&self, outcome: ReleaseOutcome) {
        self.record.released(outcome);
    }

    /// The store had nothing to release.
    pub(crate) fn on_gone(&self) -> Lost {
        let now = self.host.now();
        let lost = Lost::new(Loss::Taken, self.grant.token, now.wall);
        self.record.lose(&self.grant, &lost, now);
        lost
    }

    /// Reports a loss, once. Not while a mutex of the roster or of a queue is locked, because a subscriber may be
    /// slow.
    fn report_loss(&self, now: Moment) {
        let checked = self.hold().check(now);
        if let Err(lost) = checked {
            self.record.lose(&self.grant, &lost, now);
        }
    }

    /// It is neither lost nor released.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        !self.hold().remaining(now).is_zero()
    }

    pub(crate) fn remaining(&self) -> Duration {
        // A forked child holds nothing, and must not wait for a thread that it does not have (hazard 27).
        if self.is_ours() { self.hold().remaining(self.host.now()) } else { Duration::ZERO }
    }

    pub(crate) fn renewals(&self) -> Renewals {
        // A forked child has none, and must not wait for a thread that it does not have (hazard 27).
        if self.is_ours() { self.hold().renewals() } else { Renewals::default() }
    }

    /// What the last renewal failed with, if none has succeeded since.
    pub(crate) fn failure(&self) -> Option<BackendError> {
        if self.is_ours() { locked(&self.failure).clone() } else { None }
    }

    pub(crate) fn is_at_risk(&self) -> bool {
        self.is_ours() && self.hold().is_at_risk()
    }

    /// Ends validity on purpose, and notifies the clones of the lease; returns the loss, if it came before.
    pub(crate) fn release(&self, now: Moment) -> Result<(), Lost> {
        let released = self.hold().release(now);
        self.changed.notify_waiters();
        released.inspect_err(|lost| self.record.lose(&self.grant, lost, now))
    }

    /// Passes the lease on to the next holder in this process, with this token, or keeps it for `idle` for
    /// the next one; see [`Hold::pass_on`] and [`Hold::keep_idle`].
    pub(crate) fn pass_on(&self, now: Moment, token: FencingToken, idle: Option<Duration>) -> Option<Self> {
        let hold = {
            let mut hold = self.hold();
            if self.is_owner_exposed() {
                return None;
            }
            match idle {
                Some(idle) => hold.keep_idle(now, token, idle)?,
                None => hold.pass_on(now, token)?,
            }
        };
        self.changed.notify_waiters();
        let used = u32::try_from(token.get() - self.grant.token.get()).unwrap_or(u32::MAX);
        Some(Self {
            grant: self
                .grant
                .clone()
                .with_token(token)
                .with_block(self.grant.block.saturating_sub(used).max(1)),
            timing: self.timing,
            hold: Mutex::new(hold),
            due: Mutex::default(),
            changed: Notify::new(),
            host: self.host.clone(),
            pid: self.pid,
            is_owner_exposed: self.is_owner_exposed.clone(),
            failure: Mutex::default(),
            wishes: Wishes::default(),
            record: self.record.next(),
        })
    }

    /// Not valid beyond then, however often it is renewed.
    pub(crate) fn cap(&self, cap: Moment) {
        self.hold().cap_at(cap);
        self.changed.notify_waiters();
    }

    /// The holder that it was passed on to has taken it; returns the loss, if it has ended.
    pub(crate) fn take(&self, now: Moment) -> Result<(), Lost> {
        self.hold().take(now)?;
        self.begin(now);
        Ok(())
    }

    /// It is kept idle, and may be taken.
    pub(crate) fn may_be_taken(&self, now: Moment) -> bool {
        self.hold().may_be_taken(now)
    }

    /// Ends validity if it is kept idle; true if it must be released then.
    pub(crate) fn end_idle(&self, now: Moment) -> bool {
        self.hold().end_idle(now)
    }

    /// Ends validity if no holder has taken it in time; true if it must be released then.
    pub(crate) fn abandon(&self, now: Moment) -> bool {
        self.hold().abandon(now)
    }

    /// Reads the clock and notifies the guard if the lease is lost.
    pub(crate) fn poll(&self, now: Moment) -> HoldAction {
        self.seen(self.hold().poll(now))
    }

    /// As [`poll`](Self::poll), while others are renewed: see [`Hold::poll_beside`].
    pub(crate) fn poll_beside(&self, now: Moment) -> HoldAction {
        self.seen(self.hold().poll_beside(now))
    }

    fn seen(&self, action: HoldAction) -> HoldAction {
        if action == HoldAction::Done {
            self.changed.notify_waiters();
        }
        action
    }

    pub(crate) fn on_sent(&self, now: Moment) {
        self.hold().on_sent(now);
    }

    pub(crate) fn on_renewal(&self, now: Moment, answer: Option<Renewal>) {
        let left = {
            let mut hold = self.hold();
            let left = hold.remaining(now);
            hold.on_renewal(now, answer);
            left
        };
        if answer == Some(Renewal::Renewed) {
            self.record.renewed_with(left);
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn on_wake(&self, now: Moment) {
        self.hold().on_wake(now);
    }

    pub(crate) fn on_wanted(&self, now: Moment) {
        self.hold().on_wanted(now);
    }

    /// Completes when a renewal has failed and none has succeeded since, or the lease is lost.
    pub(crate) async fn at_risk(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_at_risk() || self.check().is_err() {
                return;
            }
            let until = self.host.now() + self.timing.look();
            tokio::select! {
                () = changed => {}
                () = self.host.sleep_until(until) => {}
            }
        }
    }

    /// Completes when no more than `margin` of validity is left, or the lease is lost.
    ///
    /// Uses a separate timer, not the watchdog's, so it completes on time even when the store hangs.
    pub(crate) async fn nearly_lost(&self, margin: Duration) -> Result<(), Lost> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.check()?;
            let now = self.host.now();
            let left = self.hold().remaining(now);
            if left <= margin {
                return Ok(());
            }
            // No longer than one check interval, because the clock may jump during the wait.
            let until = now + (left - margin).min(self.timing.look());
            tokio::select! {
                () = changed => {}
                () = self.host.sleep_until(until) => {}
            }
        }
    }
}

/// Renews until the roster is closed. A renewal that hangs delays no other: all are in flight at the same time, and
/// the clock is read during that time. Leases that no holder has taken go to the reaper.
pub(crate) async fn run_watchdog(
    (roster, reaper): (Arc<Roster>, Arc<Reaper>),
    store: Arc<KeeperStore>,
    host: Arc<dyn Host>,
    process: ProcessId,
) {
    let mut under_way: FuturesUnordered<BoxFuture<'_, Finished>> = FuturesUnordered::new();
    let mut notifications: Option<Box<dyn WakeStream>> = None;
    let mut connecting = false;
    roster.take_over(host.now());
    while !roster.is_closed() {
        let now = host.now();
        let plan = roster.plan(now);
        plan.release.iter().for_each(|cell| release_in_background(&reaper, now, cell));
        plan.ended.iter().for_each(|cell| cell.report_loss(now));
        for batch in plan.renew {
            under_way.push(Box::pin(renew(&store, &*host, batch)));
        }
        // A lease that is added before the next check does not wake the watchdog.
        let listens = plan.next.is_some();
        if listens && notifications.is_none() && !connecting {
            connecting = true;
            under_way.push(Box::pin(connect(&store, &*host, process)));
        }
        tokio::select! {
            biased;
            () = roster.look_now.notified() => {}
            Some(finished) = under_way.next() => match finished {
                Finished::Connected(stream) => {
                    (notifications, connecting) = (stream, false);
                    if notifications.is_some() {
                        roster.on_connected(host.now());
                    }
                }
                Finished::Renewed(answers) => settle(&roster, &*host, answers),
            },
            wake = hint(notifications.as_mut().filter(|_| listens)) => roster.on_wake(host.now(), wake),
            () = async { match plan.next { Some(next) => host.sleep_until(next).await, None => std::future::pending().await } } => {}
        }
    }
    let now = host.now();
    for cell in roster.take_all() {
        if cell.release(now).is_ok() {
            release_in_background(&reaper, now, &cell);
        }
    }
    reaper.close();
}

enum Finished {
    /// The stream of hints for holders, if the store could be reached.
    Connected(Option<Box<dyn WakeStream>>),
    Renewed(Vec<(Arc<HoldCell>, Option<Renewal>)>),
}

/// The target of events that tell of a refused renewal.
pub const REFUSED: &str = "tenure::refused";

async fn hint(stream: Option<&mut Box<dyn WakeStream>>) -> WakeEvent {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

async fn connect(store: &KeeperStore, host: &dyn Host, process: ProcessId) -> Finished {
    match request(host, host.now(), Timing::default().request_timeout(), || store.backend()).await {
        Ok(backend) => Finished::Connected(Some(backend.wakes(process, Audience::Holders))),
        Err(error) => {
            tracing::warn!(%error, "cannot reach the store to renew leases");
            host.sleep_until(host.now() + RECONNECT).await;
            Finished::Connected(None)
        }
    }
}

fn release_in_background(reaper: &Reaper, now: Moment, cell: &HoldCell) {
    let Grant { name, owner, ttl, .. } = cell.grant();
    reaper.release(name.clone(), *owner, now + *ttl);
}

async fn renew(store: &KeeperStore, host: &dyn Host, batch: Vec<Arc<HoldCell>>) -> Finished {
    let grants: Vec<Grant> = batch.iter().map(|cell| cell.grant().clone()).collect();
    let timeout = batch.iter().map(|cell| cell.timing().renewal_timeout()).min().unwrap_or_default();
    let ask = || async {
        let answers = store.backend().await?.renew(&grants).await;
        match answers.first() {
            Some(Err(busy)) if busy.kind() == ErrorKind::Throttled => Err(busy.clone()),
            _ => Ok(answers),
        }
    };
    let begin = |cell: &Arc<HoldCell>| store.telemetry.renewal(&cell.grant, &cell.record);
    let records: Vec<RenewalRecord> = batch.iter().map(begin).collect();
    let around = if let [only] = &records[..] { only.span.clone() } else { Span::none() };
    let answers = match request(host, host.now(), timeout, ask).instrument(around).await {
        Ok(answers) => answers,
        Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
    };
    let settled = batch.into_iter().zip(records).zip(answers).map(|((cell, record), answer)| {
        if let Err(error) = &answer {
            let lock = &cell.grant().name;
            record.span.in_scope(|| match error.is_refusal() {
                true => tracing::warn!(target: REFUSED, %lock, %error, "a renewal is refused, and asked again until the lease ends"),
                false => tracing::warn!(%lock, %error, "a renewal failed"),
            });
        }
        record.end(&answer);
        *locked(&cell.failure) = answer.as_ref().err().cloned();
        (cell, answer.ok())
    });
    Finished::Renewed(settled.collect())
}

fn settle(roster: &Roster, host: &dyn Host, answers: Vec<(Arc<HoldCell>, Option<Renewal>)>) {
    let now = host.now();
    for (cell, answer) in answers {
        cell.on_renewal(now, answer);
        roster.replan(now, &cell);
        cell.report_loss(now);
    }
}

/// All held leases of one process.
#[derive(Default)]
pub(crate) struct Roster {
    entries: Mutex<Entries>,
    /// Notified when the watchdog must check earlier than it planned.
    pub(crate) look_now: Notify,
    closed: AtomicBool,
}

impl Roster {
    /// The number of leases and of reserved owners.
    pub(crate) fn len(&self) -> usize {
        let entries = self.entries();
        entries.by_due.len().max(entries.by_owner.len()) + entries.reserved.len()
    }
}

/// A claim or a renewal under an owner that the caller has chosen, while it is on its way.
pub(crate) struct OwnerReservation<'a> {
    roster: &'a Roster,
    owner: OwnerId,
}

impl Drop for OwnerReservation<'_> {
    fn drop(&mut self) {
        let mut entries = self.roster.entries();
        if let Some(count) = entries.reserved.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                entries.reserved.remove(&self.owner);
            }
        }
    }
}

#[derive(Default)]
struct Entries {
    /// All of them, each under its `due`.
    by_due: BTreeMap<Due, Arc<HoldCell>>,
    /// The latest of each owner.
    by_owner: HashMap<OwnerId, Arc<HoldCell>>,
    /// Owners of leases that are on their way, with the number for each.
    reserved: HashMap<OwnerId, usize>,
    /// The required check intervals of the clock, with the number of leases for each.
    looks: BTreeMap<Duration, usize>,
    arrivals: u64,
    /// The next check of the watchdog; `None` if it sleeps until `look_now`.
    planned: Option<Duration>,
    /// When all were last checked; the wall clock has not stepped since.
    seen: Option<Moment>,
}

/// The next work of the watchdog.
#[derive(Default)]
pub(crate) struct Plan {
    /// Leases that were passed on and that no holder has taken; each has ended.
    pub(crate) release: Vec<Arc<HoldCell>>,
    /// Leases to renew; the renewal of each counts as sent.
    pub(crate) renew: Vec<Vec<Arc<HoldCell>>>,
    /// Leases that were lost, or have been released since.
    ended: Vec<Arc<HoldCell>>,
    /// The next check; `None` until `look_now`: there is no lease, and adding one notifies it.
    pub(crate) next: Option<Moment>,
}

impl Roster {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        // OK because the maps agree whenever code that can panic runs.
        locked(&self.entries)
    }

    /// Adds a lease; wakes the watchdog only if the lease is the first to be checked.
    pub(crate) fn add(&self, now: Moment, cell: Arc<HoldCell>) {
        let due = match cell.poll(now) {
            HoldAction::Wait { until } => until.boot,
            // The grant came so late that its renewal is due.
            HoldAction::Renew | HoldAction::Release => now.boot,
            HoldAction::Done => return cell.report_loss(now),
        };
        let look = due.min(now.boot + cell.timing().look());
        let mut entries = self.entries();
        entries.insert(due, cell);
        if entries.planned.is_none_or(|planned| look < planned) {
            entries.planned = Some(look);
            self.look_now.notify_one();
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
        // The watchdog checks it now, and plans it.
        self.look_now.notify_one();
        true
    }

    /// Whether a lease of this owner is there.
    pub(crate) fn has(&self, owner: OwnerId) -> bool {
        self.entries().by_owner.contains_key(&owner)
    }

    /// A lease of this owner is about to be requested. Until the answer, an earlier lost lease of the owner does
    /// not end it.
    pub(crate) fn reserve(&self, owner: OwnerId) -> OwnerReservation<'_> {
        *self.entries().reserved.entry(owner).or_insert(0) += 1;
        OwnerReservation { roster: self, owner }
    }

    /// Removes this lease. If its owner has another one here by now, or soon will, removes nothing and returns
    /// false: then this lease must not end the other.
    pub(crate) fn remove(&self, cell: &HoldCell) -> bool {
        let mut entries = self.entries();
        let owner = cell.owner();
        match entries.by_owner.get(&owner) {
            Some(kept) if !is_same(kept, cell) => return false,
            Some(_) => entries.take(cell),
            None => {}
        }
        !entries.reserved.contains_key(&owner)
    }

    /// Ends the leases that are kept idle, and returns them.
    pub(crate) fn end_idle(&self, now: Moment) -> Vec<Arc<HoldCell>> {
        let mut entries = self.entries();
        let mut ended: Vec<_> =
            entries.by_owner.values().filter(|cell| cell.end_idle(now)).cloned().collect();
        // Sorted, so that a history of the simulation is the same each time.
        ended.sort_unstable_by_key(|cell| cell.owner());
        for cell in &ended {
            entries.take(cell);
        }
        ended
    }

    /// No more leases are added.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.look_now.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A lease may have been broken: check, and ask, immediately.
    pub(crate) fn on_wake(&self, now: Moment, wake: WakeEvent) {
        match wake {
            WakeEvent::Owner(owner) => {
                let mut entries = self.entries();
                if let Some(cell) = entries.by_owner.get(&owner).cloned() {
                    entries.look_at(now, cell, |cell| cell.on_wake(now));
                }
            }
            WakeEvent::All => self.of_all(now, |cell| cell.on_wake(now)),
        }
    }

    /// Hints arrive from now on: a waiter may have sent one before.
    pub(crate) fn on_connected(&self, now: Moment) {
        self.of_all(now, |cell| cell.on_wanted(now));
    }

    /// The previous thread has ended, and with it the answers that it waited for.
    pub(crate) fn take_over(&self, now: Moment) {
        self.of_all(now, |cell| cell.on_renewal(now, None));
    }

    fn of_all(&self, now: Moment, change: impl Fn(&HoldCell)) {
        let mut entries = self.entries();
        // In the order of their dues, so that a history of the simulation is the same each time.
        let all: Vec<_> = entries.by_due.values().cloned().collect();
        all.into_iter().for_each(|cell| entries.look_at(now, cell, &change));
    }

    /// Checks every lease whose time has come, and all of them if the wall clock stepped.
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
        // A planned check stays planned when its lease has left: a client that acquires and releases in a loop
        // wakes the watchdog once per check, not once per lease.
        let kept = entries.planned.filter(|planned| *planned > now.boot);
        entries.planned = [first, look, kept].into_iter().flatten().min();
        plan.next = entries.planned.map(|due| now + due.saturating_sub(now.boot));
        plan
    }

    /// The leases that are left when no guard is left: those that were kept idle.
    pub(crate) fn take_all(&self) -> Vec<Arc<HoldCell>> {
        let mut entries = self.entries();
        let all = std::mem::take(&mut *entries);
        all.by_due.into_values().collect()
    }

    /// A lease was renewed or not: plan it anew, unless it has left since.
    pub(crate) fn replan(&self, now: Moment, cell: &Arc<HoldCell>) {
        let mut entries = self.entries();
        if !entries.unplan(cell) {
            return;
        }
        match cell.poll(now) {
            HoldAction::Wait { until } => entries.plan_at(until.boot, cell.clone()),
            HoldAction::Renew | HoldAction::Release => entries.plan_at(now.boot, cell.clone()),
            HoldAction::Done => entries.take(cell),
        }
    }
}

impl Entries {
    /// Changes this lease, and checks it now.
    fn look_at(&mut self, now: Moment, cell: Arc<HoldCell>, change: impl FnOnce(&HoldCell)) {
        if self.unplan(&cell) {
            change(&cell);
            self.plan_at(now.boot, cell);
        }
    }

    /// Whether the wall clock has stepped since all were checked.
    fn stepped(&mut self, now: Moment) -> bool {
        let stepped = self.seen.is_none_or(|seen| has_stepped(seen, now));
        if stepped {
            self.seen = Some(now);
        }
        stepped
    }

    /// Takes the next step for a lease, and plans its next check.
    fn follow(&mut self, now: Moment, cell: Arc<HoldCell>, mut action: HoldAction, plan: &mut Plan) {
        if action == HoldAction::Renew {
            cell.on_sent(now);
            match plan.renew.last_mut() {
                Some(batch) if batch.len() < BATCH => batch.push(cell.clone()),
                _ => plan.renew.push(vec![cell.clone()]),
            }
            action = cell.poll(now);
        }
        match action {
            HoldAction::Wait { until } => self.plan_at(until.boot, cell),
            HoldAction::Release if cell.abandon(now) => {
                self.take(&cell);
                plan.release.push(cell);
            }
            // It was taken or released at this moment.
            HoldAction::Release => self.plan_at(now.boot, cell),
            HoldAction::Renew | HoldAction::Done => {
                self.take(&cell);
                plan.ended.push(cell);
            }
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

    /// It is not checked until it is planned again; false if it was not here.
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

    /// The leases whose time has come: to be planned again, or taken.
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

/// Pause between attempts to reach the store.
const RECONNECT: Duration = Duration::from_millis(250);

/// A wall clock that moved by more than this against the other clock has stepped: check everything.
const STEP: Duration = Duration::from_millis(5);

/// The maximum number of renewals in one request.
const BATCH: usize = 512;

/// When one lease is renewed, others that are due within this time are checked too, and may travel with it: 50 ms.
/// One request for each of many leases would cost more than their renewals.
const AHEAD: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use tenure_core::LockName;
    use tenure_testkit::host::PausedHost;

    use super::*;
    use crate::engine::telemetry::Telemetry;

    fn lease(host: &Arc<PausedHost>, number: u8, ttl: Duration) -> Arc<HoldCell> {
        let owner = OwnerId::from_random(ProcessId::from_random([0; 8]), [number; 16]);
        let (name, token) = (LockName::new("x").unwrap(), FencingToken::new(1));
        let (grant, timing) = (Grant::new(name, owner, token, ttl), Timing::new(ttl).unwrap());
        let until = timing.believed_until(host.now(), ttl);
        let record = Telemetry::new("test").hold(&grant.name);
        Arc::new(HoldCell::new(grant, until, timing, None, (host.clone(), record)))
    }

    /// H2.1: whatever is planned, the clock is checked again within the check interval of the shortest lease that
    /// is held.
    #[tokio::test(start_paused = true)]
    async fn the_clock_is_looked_at_as_often_as_the_shortest_lease_wants() {
        let (host, roster) = (PausedHost::new(1), Roster::default());
        let next = |now| roster.plan(now).next.map(|next| next.boot - now.boot);
        let (ms, now) = (Duration::from_millis, host.now());
        assert_eq!(next(now), None);
        let leases = [60, 2, 1].map(|seconds| lease(&host, seconds, Duration::from_secs(seconds.into())));
        for (lease, look) in leases.iter().zip([1000, 200, 100]) {
            roster.add(now, lease.clone());
            assert_eq!(next(now), Some(ms(look)));
        }
        // A planned check stays planned; the next one is for the remaining leases.
        for (lease, look) in leases.iter().rev().zip([100, 200, 1000]) {
            let later = now + ms(look);
            assert_eq!(next(later).filter(|next| *next <= ms(look)), Some(ms(look)));
            assert!(roster.remove(lease));
        }
        assert_eq!(next(now + ms(3000)), None);
    }
}

//! The reaper: releases dropped leases and places in the background, as long as they may be held.

use std::{
    collections::hash_map::Entry,
    io, mem,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foldhash::HashMap;
use futures_util::{
    FutureExt,
    stream::{FuturesUnordered, StreamExt},
};
use tenure_core::{BackendError, Grant, Host, LockName, Moment, OwnerId, Released, Renewal, locked};
use tokio::sync::{Notify, Semaphore};

use crate::{
    engine::{
        in_flight::{InFlight, LATE_MIN},
        request::{KeeperStore, request},
    },
    machine::backoff::Backoff,
};

/// Releases under way at the same time. There are as many pending ones as there were guards.
const UNDER_WAY_MAX: usize = 64;
/// How long one release may stay unanswered.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long the first release waits for a claim of its owner that is still under way: 100 ms. Most claims are
/// answered in one round trip.
const SOON: Duration = Duration::from_millis(100);

/// An owner to release, or a lease to extend for the last time.
struct PendingRelease {
    name: LockName,
    owner: OwnerId,
    /// The last renewal, instead of a release.
    last: Option<Grant>,
    /// After this its lease or place has expired, by the clock that does not step: the store's clock has not
    /// stepped with this one.
    until: Moment,
    /// Counts this as pending while it exists.
    counted: CountedRelease,
}

/// How many releases are pending.
#[derive(Default)]
struct ReleaseCounter {
    state: Mutex<ReleaseCounts>,
    changed: Notify,
}

#[derive(Default)]
struct ReleaseCounts {
    pending: usize,
    /// The owners of the pending releases, and how many there are of each.
    owners: HashMap<OwnerId, usize>,
    /// When the last of the releases that were lost with their thread has expired.
    lost: Option<Moment>,
}

struct CountedRelease {
    counter: Arc<ReleaseCounter>,
    /// None for a last renewal, which ends no lease.
    owner: Option<OwnerId>,
    until: Moment,
    is_done: bool,
}

impl Drop for CountedRelease {
    fn drop(&mut self) {
        let mut state = locked(&self.counter.state);
        state.pending -= 1;
        if let Some(owner) = self.owner
            && let Entry::Occupied(mut of_owner) = state.owners.entry(owner)
        {
            *of_owner.get_mut() -= 1;
            if *of_owner.get() == 0 {
                of_owner.remove();
            }
        }
        if !self.is_done {
            state.lost = Some(state.lost.map_or(self.until, |lost| lost.later(self.until)));
        }
        drop(state);
        self.counter.changed.notify_waiters();
    }
}

/// Where releases are added, from any thread.
#[derive(Default)]
pub(crate) struct Reaper {
    /// They outlive the thread that sends them.
    added: Mutex<Vec<PendingRelease>>,
    changed: Notify,
    is_closed: AtomicBool,
    /// Alive as long as the keeper's thread.
    thread: Mutex<Weak<()>>,
    counter: Arc<ReleaseCounter>,
    pub(crate) in_flight: Arc<InFlight>,
}

impl Reaper {
    /// Starts the keeper's thread if there is none: the first time, and after a panic ended it. The thread sends
    /// releases next to its other work. No release may be lost with a thread, so the list of releases knows whether
    /// there is one. The thread lives as long as the value that it gets.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn ensure(&self, start: impl FnOnce(Arc<()>) -> io::Result<()>) -> io::Result<()> {
        let mut thread = locked(&self.thread);
        if thread.strong_count() == 0 {
            let life = Arc::new(());
            *thread = Arc::downgrade(&life);
            start(life)?;
        }
        Ok(())
    }

    pub(crate) fn release(&self, name: LockName, owner: OwnerId, until: Moment) {
        self.add(name, owner, None, until);
    }

    /// Renews this lease once more, and leaves it to its ttl.
    pub(crate) fn linger(&self, last: Grant, until: Moment) {
        self.add(last.name.clone(), last.owner, Some(last), until);
    }

    fn add(&self, name: LockName, owner: OwnerId, last: Option<Grant>, until: Moment) {
        let released = last.is_none().then_some(owner);
        let mut state = locked(&self.counter.state);
        state.pending += 1;
        if let Some(owner) = released {
            *state.owners.entry(owner).or_default() += 1;
        }
        drop(state);
        let counted =
            CountedRelease { counter: self.counter.clone(), owner: released, until, is_done: false };
        locked(&self.added).push(PendingRelease { name, owner, last, until, counted });
        self.changed.notify_one();
    }

    /// The number of releases without an answer.
    pub(crate) fn len(&self) -> usize {
        locked(&self.counter.state).pending
    }

    /// A release of this owner may still end a lease of it.
    pub(crate) fn is_releasing(&self, owner: OwnerId) -> bool {
        locked(&self.counter.state).owners.contains_key(&owner)
    }

    /// Waits until none of this owner does.
    pub(crate) async fn released(&self, owner: OwnerId) {
        loop {
            let changed = self.counter.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.is_releasing(owner) {
                return;
            }
            changed.await;
        }
    }

    /// No more releases are added.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Waits until each release is answered, or its lease or place has expired.
    pub(crate) async fn drained(&self, host: &dyn Host) {
        loop {
            let changed = self.counter.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (pending, lost) = {
                let state = locked(&self.counter.state);
                (state.pending, state.lost)
            };
            match lost.filter(|lost| !has_passed(*lost, host.now())) {
                _ if pending > 0 => changed.await,
                Some(lost) => host.sleep_until(lost).await,
                None => return,
            }
        }
    }

    /// Sends releases until no more are added and none is left.
    pub(crate) async fn run(&self, store: &KeeperStore, host: &dyn Host) {
        let turns = Semaphore::new(UNDER_WAY_MAX);
        let mut begun = FuturesUnordered::new();
        loop {
            // Read before the added releases are taken, so that none is added after the end.
            let is_closed = self.is_closed.load(Ordering::Acquire);
            for release in mem::take(&mut *locked(&self.added)) {
                // A panic ends one release, and none of the others.
                let carried_out = async {
                    let mut release = release;
                    match &release.last {
                        Some(last) => extend(last, release.until, &turns, store, host).await,
                        None => self.carry_out(&release, &turns, store, host).await,
                    }
                    release.counted.is_done = true;
                };
                let carried_out = AssertUnwindSafe(carried_out);
                begun.push(carried_out.catch_unwind());
            }
            if begun.is_empty() && is_closed {
                return;
            }
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                Some(ended) = begun.next() => {
                    if ended.is_err() {
                        store.calm.on_panic(host.now());
                    }
                }
            }
        }
    }

    async fn carry_out(
        &self,
        release: &PendingRelease,
        turns: &Semaphore,
        store: &KeeperStore,
        host: &dyn Host,
    ) {
        let owner = release.owner;
        let mut backoff = Backoff::new(0);
        if self.in_flight.is_under_way(owner) {
            tokio::select! {
                biased;
                () = self.in_flight.settled(owner) => {}
                () = host.sleep_until(host.now() + SOON) => {}
            }
        }
        loop {
            let (began, was_under_way) = (host.now(), self.in_flight.is_under_way(owner));
            let turn = turns.acquire().await;
            let name = self.in_flight.name_of(owner, &release.name);
            let ask = || async { store.backend().await?.release(&name, owner).await };
            let answer: Result<Released, BackendError> = request(host, host.now(), TIMEOUT, ask).await;
            drop(turn);
            let again = host.now() + backoff.delay();
            match answer {
                // It may have come before the claim. If the claim does not end, its runtime is blocked, and does
                // not send it any more.
                Ok(_) if was_under_way => {
                    if has_passed(release.until, began) {
                        break;
                    }
                    tokio::select! {
                        biased;
                        () = self.in_flight.settled(owner) => {}
                        () = host.sleep_until(release.until) => {}
                    }
                }
                Ok(_) if self.in_flight.unknown_until(owner).is_none_or(|until| has_passed(until, began)) => {
                    break;
                }
                Ok(_) => host.sleep_until(again).await,
                Err(error) => {
                    let unknown = self.in_flight.unknown_until(owner);
                    let last = unknown.map_or(release.until, |unknown| unknown.later(release.until));
                    if !error.kind().is_transient() || has_passed(last, again) {
                        tracing::warn!(lock = %name, %error, "not released; its ttl ends it");
                        store.telemetry.release_given_up(&name);
                        host.sleep_until(last).await;
                        break;
                    }
                    // A server that hung has not read it yet, perhaps: it does when it goes on.
                    if unknown.is_some() {
                        self.in_flight.put_off(owner, (again + LATE_MIN).earlier(release.until));
                    }
                    host.sleep_until(again).await;
                }
            }
        }
        self.in_flight.close(owner);
    }
}

/// Sends the last renewal until it is answered, or the lease has expired.
async fn extend(last: &Grant, until: Moment, turns: &Semaphore, store: &KeeperStore, host: &dyn Host) {
    let (mut backoff, grants) = (Backoff::new(0), [last.clone()]);
    let ask = || async {
        let answer = store.backend().await?.renew(&grants).await.pop();
        answer.expect("BUG: a backend answers every grant")
    };
    loop {
        let turn = turns.acquire().await;
        let answer = request(host, host.now(), TIMEOUT, ask).await;
        drop(turn);
        let again = host.now() + backoff.delay();
        let why = match answer {
            Ok(Renewal::Renewed) => return,
            Ok(Renewal::Gone) => "the lease was lost".to_owned(),
            Err(error) if error.kind().is_transient() && !has_passed(until, again) => {
                host.sleep_until(again).await;
                continue;
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(lock = %last.name, linger = ?last.ttl, why, "the lock does not stay taken for that long; its ttl ends it");
        return;
    }
}

fn has_passed(until: Moment, now: Moment) -> bool {
    until.boot <= now.boot
}

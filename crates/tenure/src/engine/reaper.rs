//! The reaper: releases in the background what was dropped, as long as it may be held.

use std::{
    io, mem,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_core::{BackendError, Host, LockName, Moment, OwnerId, Released, locked};
use tokio::sync::{Notify, Semaphore};

use crate::{
    engine::{
        in_flight::InFlight,
        request::{Link, request},
    },
    machine::backoff::Backoff,
};

/// Releases under way at the same time. There are as many orders as there were guards.
const UNDER_WAY_MAX: usize = 64;
/// How long one release may stay unanswered.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long the first release waits for a claim of its owner that is still under way: 100 ms. Mostly it is answered in one round trip.
const SOON: Duration = Duration::from_millis(100);

/// An owner that is to leave.
pub(crate) struct Order {
    name: LockName,
    owner: OwnerId,
    /// After this its lease or place has expired, by the clock that does not step: that of the store has not stepped with ours.
    until: Moment,
    /// Counts this order as pending for as long as it exists.
    pending: Ticket,
}

/// Orders that are not carried out.
#[derive(Default)]
struct Pending {
    state: Mutex<Count>,
    changed: Notify,
}

#[derive(Default)]
struct Count {
    orders: usize,
    /// When the last of those has expired that were lost with their thread.
    lost: Option<Moment>,
}

struct Ticket {
    pending: Arc<Pending>,
    until: Moment,
    is_done: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = locked(&self.pending.state);
        state.orders -= 1;
        if !self.is_done {
            state.lost = Some(state.lost.map_or(self.until, |lost| lost.later(self.until)));
        }
        drop(state);
        self.pending.changed.notify_waiters();
    }
}

/// The way to give orders, from anywhere.
#[derive(Default)]
pub(crate) struct Reaper {
    /// They outlive the thread that carries them out.
    orders: Mutex<Vec<Order>>,
    bell: Notify,
    is_closed: AtomicBool,
    /// For as long as such a thread lives.
    thread: Mutex<Weak<()>>,
    pending: Arc<Pending>,
    pub(crate) in_flight: Arc<InFlight>,
}

impl Reaper {
    /// Starts the thread that carries orders out, if there is none: at first, and when a panic ended it. It lives for as long as it has
    /// what it is given.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn ensure(&self, start: impl FnOnce(Arc<()>) -> io::Result<()>) -> io::Result<()> {
        let mut thread = locked(&self.thread);
        if thread.strong_count() == 0 {
            let life = Arc::new(());
            *thread = Arc::downgrade(&life);
            start(life)?;
        }
        Ok(())
    }

    pub(crate) fn order(&self, name: LockName, owner: OwnerId, until: Moment) {
        locked(&self.pending.state).orders += 1;
        let pending = Ticket { pending: self.pending.clone(), until, is_done: false };
        locked(&self.orders).push(Order { name, owner, until, pending });
        self.bell.notify_one();
    }

    /// No more orders come.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Waits until each order is carried out, or what it was to end has expired.
    pub(crate) async fn drained(&self, host: &dyn Host) {
        loop {
            let changed = self.pending.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (orders, lost) = {
                let state = locked(&self.pending.state);
                (state.orders, state.lost)
            };
            match lost.filter(|lost| !has_passed(*lost, host.now())) {
                _ if orders > 0 => changed.await,
                Some(lost) => host.sleep_until(lost).await,
                None => return,
            }
        }
    }

    /// Carries orders out until no more come and none is left.
    pub(crate) async fn run(&self, link: &Link, host: &dyn Host) {
        let turns = Semaphore::new(UNDER_WAY_MAX);
        let mut begun = FuturesUnordered::new();
        loop {
            // Before the orders are taken: none comes after the end.
            let is_closed = self.is_closed.load(Ordering::Acquire);
            for order in mem::take(&mut *locked(&self.orders)) {
                begun.push(self.carry_out(order, &turns, link, host));
            }
            if begun.is_empty() && is_closed {
                return;
            }
            tokio::select! {
                biased;
                () = self.bell.notified() => {}
                Some(()) = begun.next() => {}
            }
        }
    }

    async fn carry_out(&self, mut order: Order, turns: &Semaphore, link: &Link, host: &dyn Host) {
        let owner = order.owner;
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
            let name = self.in_flight.name_of(owner, &order.name);
            let ask = || async { link.backend().await?.release(&name, owner).await };
            let answer: Result<Released, BackendError> = request(host, host.now(), TIMEOUT, ask).await;
            drop(turn);
            let again = host.now() + backoff.delay();
            match answer {
                // It may have come before the claim. If that does not end, its runtime stands still, and does not send it any more.
                Ok(_) if was_under_way => {
                    if has_passed(order.until, began) {
                        break;
                    }
                    tokio::select! {
                        biased;
                        () = self.in_flight.settled(owner) => {}
                        () = host.sleep_until(order.until) => {}
                    }
                }
                Ok(_) if self.in_flight.unknown_until(owner).is_none_or(|until| has_passed(until, began)) => {
                    break;
                }
                Ok(_) => host.sleep_until(again).await,
                Err(error) => {
                    let unknown = self.in_flight.unknown_until(owner);
                    let last = unknown.map_or(order.until, |unknown| unknown.later(order.until));
                    if !error.kind().is_transient() || has_passed(last, again) {
                        tracing::warn!(lock = %name, %error, "not released; its ttl ends it");
                        host.sleep_until(last).await;
                        break;
                    }
                    host.sleep_until(again).await;
                }
            }
        }
        self.in_flight.close(owner);
        order.pending.is_done = true;
    }
}

fn has_passed(until: Moment, now: Moment) -> bool {
    until.boot <= now.boot
}

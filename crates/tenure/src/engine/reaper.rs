//! The reaper: releases in the background what was dropped. Bounded; what it cannot take is ended by the ttl.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_core::{Host, LockName, Moment, OwnerId, locked};
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::{
    engine::{link::Link, request::request},
    machine::backoff::Backoff,
};

/// Orders that wait to be begun, and as many that are begun; more are left to the ttl.
const WAITING_MAX: usize = 1024;
/// Releases under way at once. Those that are to be asked for again later do not count: they keep nobody else.
const UNDER_WAY_MAX: usize = 64;
/// How long one release may stay unanswered.
const TIMEOUT: Duration = Duration::from_secs(2);

/// An owner that is to leave.
pub(crate) struct Order {
    name: LockName,
    owner: OwnerId,
    /// After this its lease or place is over anyway.
    until: Moment,
    /// Counts this order as pending for as long as it exists.
    _pending: Ticket,
}

#[derive(Default)]
struct Pending {
    count: AtomicUsize,
    idle: Notify,
}

struct Ticket(Arc<Pending>);

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// The way to give orders, from anywhere.
#[derive(Default)]
pub(crate) struct Reaper {
    /// To the thread that carries them out, if one was started.
    orders: Mutex<Option<mpsc::Sender<Order>>>,
    pending: Arc<Pending>,
}

impl Reaper {
    fn orders(&self) -> MutexGuard<'_, Option<mpsc::Sender<Order>>> {
        // OK because nothing is broken off half way: either it is set or it is not.
        locked(&self.orders)
    }

    /// Starts what carries orders out, if nothing does: at first, and when a panic ended it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn ensure(
        &self,
        start: impl FnOnce(mpsc::Receiver<Order>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut current = self.orders();
        if current.as_ref().is_some_and(|orders| !orders.is_closed()) {
            return Ok(());
        }
        let (orders, receiver) = mpsc::channel(WAITING_MAX);
        start(receiver)?;
        *current = Some(orders);
        Ok(())
    }

    pub(crate) fn order(&self, name: LockName, owner: OwnerId, until: Moment) {
        self.pending.count.fetch_add(1, Ordering::AcqRel);
        let order = Order { name, owner, until, _pending: Ticket(self.pending.clone()) };
        let is_taken = self.orders().as_ref().is_some_and(|orders| orders.try_send(order).is_ok());
        if !is_taken {
            tracing::warn!(
                "a lock that was dropped stays until its ttl ends: too many at once, or nobody to release it"
            );
        }
    }

    pub(crate) async fn drained(&self) {
        loop {
            let idle = self.pending.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.pending.count.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// Carries orders out until nobody can give any and none is left.
pub(crate) async fn run(mut orders: mpsc::Receiver<Order>, link: Arc<Link>, host: Arc<dyn Host>) {
    let turns = Semaphore::new(UNDER_WAY_MAX);
    let mut begun = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = begun.next() => {}
            order = orders.recv(), if begun.len() < WAITING_MAX => match order {
                Some(order) => begun.push(carry_out(order, &turns, &link, &*host)),
                None => break,
            },
        }
    }
    while let Some(()) = begun.next().await {}
}

async fn carry_out(order: Order, turns: &Semaphore, link: &Link, host: &dyn Host) {
    let mut backoff = Backoff::new(0);
    loop {
        let turn = turns.acquire().await;
        let ask = || async { link.backend().await?.release(&order.name, order.owner).await };
        let Err(error) = request(host, host.now(), TIMEOUT, ask).await else { return };
        drop(turn);
        let again = host.now() + backoff.delay();
        if !error.kind().is_transient() || order.until.is_over(again) {
            tracing::warn!(lock = %order.name, %error, "not released; its ttl ends it");
            return;
        }
        host.sleep_until(again).await;
    }
}

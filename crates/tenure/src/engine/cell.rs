//! `HoldCell`: one held lease, seen by its guard and by the watchdog.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tenure_core::{FencingToken, Grant, Host, Moment, OwnerId, Renewal, Timing, locked};
use tokio::sync::Notify;

use crate::{
    engine::fork::Unforked,
    error::{Loss, Lost},
    machine::hold::{Action, Hold, Renewals},
};

/// One held lease. The machine inside is the only truth; the first look after the end finds the loss.
pub(crate) struct HoldCell {
    grant: Grant,
    timing: Timing,
    hold: Mutex<Hold>,
    /// Where the roster has it, if it has: only that asks, under its own lock.
    pub(super) due: Mutex<Option<Due>>,
    news: Notify,
    host: Arc<dyn Host>,
    pid: u32,
    /// The program has asked for its owner; shared by all holders that it is passed on to.
    is_named: Arc<AtomicBool>,
}

/// When a lease is looked at: by the clock that does not step, and the order in which leases were planned.
pub(super) type Due = (Duration, u64);

impl HoldCell {
    pub(crate) fn new(
        grant: Grant,
        until: Moment,
        timing: Timing,
        cap: Option<Moment>,
        host: Arc<dyn Host>,
    ) -> Self {
        let hold = Mutex::new(Hold::new(until, grant.ttl, timing, cap, grant.token));
        let (due, news, pid) = (Mutex::default(), Notify::new(), std::process::id());
        Self { grant, timing, hold, due, news, host, pid, is_named: Arc::default() }
    }

    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.grant.owner
    }

    /// The owner, for somebody who may give it to another process: from here on the lease has no other holder.
    pub(crate) fn tell_owner(&self) -> OwnerId {
        self.is_named.store(true, Ordering::Release);
        self.grant.owner
    }

    pub(crate) fn is_named(&self) -> bool {
        self.is_named.load(Ordering::Acquire)
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    fn hold(&self) -> MutexGuard<'_, Hold> {
        // OK because the machine's methods do not panic between two states.
        locked(&self.hold)
    }

    /// A fork of the holder holds nothing (hazard 27).
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Work, which comes to something else in a forked child.
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
        self.hold().check(now)
    }

    pub(crate) fn remaining(&self) -> Duration {
        // A forked child holds nothing, and must not wait for a thread that it does not have (hazard 27).
        if self.is_ours() { self.hold().remaining(self.host.now()) } else { Duration::ZERO }
    }

    pub(crate) fn renewals(&self) -> Renewals {
        // A forked child has none, and must not wait for a thread that it does not have (hazard 27).
        if self.is_ours() { self.hold().renewals() } else { Renewals::default() }
    }

    pub(crate) fn is_at_risk(&self) -> bool {
        self.is_ours() && self.hold().is_at_risk()
    }

    /// Ends belief by our own will, and tells those who still have the lease; the loss, if it came before.
    pub(crate) fn release(&self, now: Moment) -> Result<(), Lost> {
        let released = self.hold().release(now);
        self.news.notify_waiters();
        released
    }

    /// Passes the lease on to the next holder in this process, with this token, or keeps it for so long for whoever comes; see
    /// [`Hold::pass_on`] and [`Hold::keep_idle`].
    pub(crate) fn pass_on(&self, now: Moment, token: FencingToken, idle: Option<Duration>) -> Option<Self> {
        let hold = {
            let mut hold = self.hold();
            match idle {
                Some(idle) => hold.keep_idle(now, token, idle)?,
                None => hold.pass_on(now, token)?,
            }
        };
        self.news.notify_waiters();
        let used = u32::try_from(token.get() - self.grant.token.get()).unwrap_or(u32::MAX);
        let grant =
            Grant { token, block: self.grant.block.saturating_sub(used).max(1), ..self.grant.clone() };
        let (due, news, host) = (Mutex::default(), Notify::new(), self.host.clone());
        let (hold, is_named) = (Mutex::new(hold), self.is_named.clone());
        Some(Self { grant, timing: self.timing, hold, due, news, host, pid: self.pid, is_named })
    }

    /// Believed no longer than until then, however often it is renewed.
    pub(crate) fn cap(&self, cap: Moment) {
        self.hold().cap_at(cap);
        self.news.notify_waiters();
    }

    /// Whoever it was passed on to has seen it; the loss, if it is over.
    pub(crate) fn take(&self, now: Moment) -> Result<(), Lost> {
        self.hold().take(now)
    }

    /// It is kept idle, and may be taken.
    pub(crate) fn may_be_taken(&self, now: Moment) -> bool {
        self.hold().may_be_taken(now)
    }

    /// Ends belief if it is kept idle; true if it is to be given back then.
    pub(crate) fn end_idle(&self, now: Moment) -> bool {
        self.hold().end_idle(now)
    }

    /// Ends belief if nobody has taken it in time; true if it is to be given back then.
    pub(crate) fn abandon(&self, now: Moment) -> bool {
        self.hold().abandon(now)
    }

    /// Looks at the clock and tells the guard if the lease is lost.
    pub(crate) fn poll(&self, now: Moment) -> Action {
        self.told(self.hold().poll(now))
    }

    /// As [`poll`](Self::poll), while others are renewed: see [`Hold::poll_beside`].
    pub(crate) fn poll_beside(&self, now: Moment) -> Action {
        self.told(self.hold().poll_beside(now))
    }

    fn told(&self, action: Action) -> Action {
        if action == Action::Over {
            self.news.notify_waiters();
        }
        action
    }

    pub(crate) fn on_sent(&self, now: Moment) {
        self.hold().on_sent(now);
    }

    pub(crate) fn on_renewal(&self, now: Moment, answer: Option<Renewal>) {
        self.hold().on_renewal(now, answer);
        self.news.notify_waiters();
    }

    pub(crate) fn on_wake(&self, now: Moment) {
        self.hold().on_wake(now);
    }

    pub(crate) fn on_wanted(&self, now: Moment) {
        self.hold().on_wanted(now);
    }

    /// Ends when a renewal has failed and none has succeeded since, or the lease is lost.
    pub(crate) async fn at_risk(&self) {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if self.is_at_risk() || self.check().is_err() {
                return;
            }
            let until = self.host.now() + self.timing.look();
            tokio::select! {
                () = news => {}
                () = self.host.sleep_until(until) => {}
            }
        }
    }

    /// Ends when no more than `margin` of validity is left, or the lease is lost.
    ///
    /// Stands on a timer of its own, not on the watchdog's: it comes on time also when the store hangs.
    pub(crate) async fn nearly_lost(&self, margin: Duration) -> Result<(), Lost> {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            self.check()?;
            let now = self.host.now();
            let left = self.hold().remaining(now);
            if left <= margin {
                return Ok(());
            }
            // No longer than a look: the clock may jump meanwhile.
            let until = now + (left - margin).min(self.timing.look());
            tokio::select! {
                () = news => {}
                () = self.host.sleep_until(until) => {}
            }
        }
    }
}

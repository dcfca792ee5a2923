//! Waiting for a lock: what is shown meanwhile, and how a signal ends it.

use std::time::Duration;

use tenure::{AcquireError, Guard, Host, Lock, Locker, Moment, Progress, TokioHost};

use crate::{
    args::Global,
    exit::Stop,
    notice::{Trouble, announce, attended, drained},
    signals::Signals,
    spinner, store, text,
};

/// The longest time to wait until what was not wanted in the end is given back: a place in a queue, or a lease that nobody
/// heard of.
pub(crate) const LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// The same, and for a lease that is lost, where the store gives no answer: it most likely gives none now.
pub(crate) const BRIEF_PATIENCE: Duration = Duration::from_millis(200);
/// How long a store may fail in a row if the wait for the lock has no end.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// Longer than any machine runs: 100 years.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// How long to wait: zero asks once, `None` waits for as long as it takes.
#[derive(Clone, Copy)]
pub(crate) struct Budget(pub(crate) Option<Duration>);

impl Budget {
    /// Acquires within the time, or for as long as it takes.
    pub(crate) async fn of<G, W>(
        self,
        for_ever: impl Future<Output = Result<G, AcquireError>>,
        within: impl FnOnce(Duration) -> W,
    ) -> Result<G, AcquireError>
    where
        W: Future<Output = Result<G, AcquireError>>,
    {
        match self.0 {
            Some(budget) => within(budget).await,
            None => for_ever.await,
        }
    }
}

/// Waits for a lock, for several, or for one of several.
pub(crate) struct Waiting<'a> {
    locks: &'a Locker,
    /// What is waited for, for people.
    what: String,
    /// It is several at once, of which one is waited for at a time.
    is_all: bool,
    quiet: bool,
    conflict: u8,
    /// How long the store may fail in a row if the wait for the lock has no end; `None`: as long as it likes.
    patience: Option<Duration>,
    progress: Progress,
    started: Moment,
    /// Where the store is, for people.
    place: String,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(global: &Global, locks: &'a Locker, what: impl ToString, conflict: u8) -> Self {
        let (progress, started, place) = (Progress::new(), TokioHost.now(), store::place(global));
        let what = what.to_string();
        let (is_all, quiet, patience) = (false, global.quiet, Some(STORE_PATIENCE));
        Self { locks, what, is_all, quiet, conflict, patience, progress, started, place }
    }

    /// The same, for as long as the store may fail.
    pub(crate) fn for_ever(self) -> Self {
        Self { patience: None, ..self }
    }

    /// What is waited for is several locks, one after the other.
    pub(crate) fn of_all(self, is_all: bool) -> Self {
        Self { is_all, ..self }
    }

    /// The lock as it is to be asked for, so that the waiting can be seen.
    pub(crate) fn prepared(&self, lock: Lock, budget: Budget) -> Lock {
        let lock = lock.progress(&self.progress);
        if budget.0.is_none() { lock.patience(self.patience.unwrap_or(FOR_EVER)) } else { lock }
    }

    /// Acquires within `budget`, or for as long as it takes. A signal ends the wait and leaves no waiter behind.
    pub(crate) async fn acquire(
        &self,
        lock: Lock,
        budget: Budget,
        signals: &mut Signals,
    ) -> Result<Guard, Stop> {
        let lock = self.prepared(lock, budget);
        self.awaited(budget, signals, budget.of(lock.acquire(), |budget| lock.acquire_within(budget))).await
    }

    /// Waits for what was prepared, with what is shown meanwhile.
    pub(crate) async fn awaited<G>(
        &self,
        budget: Budget,
        signals: &mut Signals,
        acquire: impl Future<Output = Result<G, AcquireError>>,
    ) -> Result<G, Stop> {
        let budget = budget.0;
        let shown = spinner::spin(self.quiet, || self.message(budget));
        let said = announce(self.quiet, || self.trouble(budget), |trouble| self.notice(trouble));
        match attended(acquire, signals.asked_to_end(), shown, said).await {
            Ok(Ok(guard)) => Ok(guard),
            Ok(Err(error)) => {
                self.leave(signals).await;
                Err(self.stop(&error))
            }
            Err(signal) => {
                self.leave(signals).await;
                Err(Stop::signalled(signal))
            }
        }
    }

    /// Waits until nothing of ours is left in the queue, but not long for a store that does not answer. A signal ends it.
    async fn leave(&self, signals: &mut Signals) {
        let patience = match Trouble::of(&self.progress, self.locks, &self.place) {
            Some(_) => BRIEF_PATIENCE,
            None => LEAVE_PATIENCE,
        };
        drained(self.locks, patience, signals.asked_to_end()).await;
    }

    fn stop(&self, error: &AcquireError) -> Stop {
        Stop::not_acquired(error, self.conflict, || match error {
            _ if self.quiet => String::new(),
            AcquireError::TimedOut { holder: Some(holder), .. } => {
                format!("{}: held by {}", self.name(), text::holder(holder))
            }
            _ => format!("{}: not acquired in time", self.name()),
        })
    }

    /// The progress line.
    fn message(&self, budget: Option<Duration>) -> String {
        let mut line = self.waited();
        if let Some(waiting) = self.progress.latest() {
            if let Some(holder) = &waiting.holder {
                line += &format!(", held by {}", holder.who());
                line +=
                    &holder.since.map_or_else(String::new, |since| format!(" since {}", text::clock(since)));
            }
            if let Some(ahead) = waiting.ahead.filter(|ahead| *ahead > 0) {
                line += &format!(", {ahead} ahead");
            }
        }
        if let Some(trouble) = self.trouble(budget) {
            line += &format!(": {}", trouble.why);
        }
        line
    }

    /// The line where there is no progress line.
    fn notice(&self, trouble: &Trouble) -> String {
        format!("{}: {}", self.waited(), trouble.why)
    }

    fn waited(&self) -> String {
        format!("{}: waiting for {}", self.name(), text::seconds(self.started.elapsed(TokioHost.now())))
    }

    /// What is waited for at present.
    fn name(&self) -> String {
        let one = self.progress.name().filter(|_| self.is_all);
        one.map_or_else(|| self.what.clone(), |one| format!("{one} (of {})", self.what))
    }

    /// Why the store lets us wait, and when we give up.
    fn trouble(&self, budget: Option<Duration>) -> Option<Trouble> {
        let end = match budget {
            Some(Duration::ZERO) => String::new(),
            Some(_) => "; given up when --wait is over".to_owned(),
            None => self.patience.map_or_else(String::new, |patience| {
                format!("; given up if that lasts {}", text::seconds(patience))
            }),
        };
        Trouble::of(&self.progress, self.locks, &self.place).map(|trouble| trouble.until(&end))
    }
}

//! `run`: a command under a lock.

use std::time::Duration;

use tenure::{Guards, Host, Lease, Lock, LockName, Locker, TokioHost};

use crate::{
    args::{Global, Run},
    every::Every,
    exit::{self, Stop},
    held::{End, Held},
    processes::Scope,
    release::Release,
    signals::Signals,
    stopping::Stopping,
    store,
    task::Task,
    waiting::{Budget, Waiting},
    wanted::{Asking, Wanted},
};

pub(crate) async fn run(global: &Global, mut args: Run) -> Result<u8, Stop> {
    Task::from(&args).check()?;
    let wanted = Wanted::of(&mut args, std::env::args_os())?;
    let task = Task::from(&args);
    let mut started = Started::new(global, &task, wanted).await?.every(&args);
    started.refuse_nested().await?;
    if let Some(code) = started.skip_early().await? {
        return Ok(code);
    }
    let budget = Budget(if args.nonblock { Some(Duration::ZERO) } else { args.wait });
    let guards = started.enter(budget, args.conflict_exit_code).await?;
    match started.run(guards, async |_| Ok(())).await? {
        End::Ended(code) => Ok(code),
        End::Lost(line) => Err(task.lost(line)),
    }
}

/// Locks and a command, checked and ready to wait for the ones and to run the other.
pub(crate) struct Started<'a> {
    global: &'a Global,
    task: &'a Task,
    locks: Locker,
    wanted: Wanted,
    every: Option<Every<'a>>,
    stopping: Stopping,
    ttl: Duration,
    /// How long it took to get the locks.
    waited: Duration,
    signals: Signals,
}

impl<'a> Started<'a> {
    pub(crate) async fn new(global: &'a Global, task: &'a Task, wanted: Wanted) -> Result<Self, Stop> {
        Scope::check(global.quiet)?;
        let locks = store::connect(global).await?;
        let (ttl, stopping) = task.durations(&locks.promises())?;
        let (every, waited, signals) = (None, Duration::ZERO, Signals::listen()?);
        Ok(Self { global, task, locks, wanted, every, stopping, ttl, waited, signals })
    }

    /// Refuses what the runs around this one hold.
    pub(crate) async fn refuse_nested(&mut self) -> Result<(), Stop> {
        self.wanted.refuse_nested(self.global, &self.locks, &mut self.signals).await
    }

    /// A lock with the settings of the task.
    pub(crate) fn set(&self, lock: Lock) -> Lock {
        self.task.set(lock, (self.ttl, self.stopping))
    }

    /// The same with an interval, if one was named.
    fn every(self, args: &Run) -> Self {
        let every = Every::of(self.global, &self.locks, args, (self.wanted.name(), |lock| self.set(lock)));
        Self { every, ..self }
    }

    pub(crate) fn locks(&self) -> &Locker {
        &self.locks
    }

    pub(crate) fn signals(&mut self) -> &mut Signals {
        &mut self.signals
    }

    /// The lock that was named first.
    pub(crate) fn name(&self) -> &LockName {
        self.wanted.name()
    }

    /// The lease of that lock.
    pub(crate) fn first(&self, guards: &Guards) -> Lease {
        self.wanted.first(guards)
    }

    pub(crate) fn is_asked_to_end(&self) -> bool {
        self.signals.is_asked()
    }

    /// The exit code if it is not time yet for a command with an interval.
    pub(crate) async fn skip_early(&mut self) -> Result<Option<u8>, Stop> {
        match &self.every {
            Some(every) => every.skip_early(&mut self.signals).await,
            None => Ok(None),
        }
    }

    /// Waits for the locks.
    pub(crate) async fn enter(&mut self, budget: Budget, conflict: u8) -> Result<Guards, Stop> {
        self.acquire(budget, conflict, false).await
    }

    /// The same for as long as it takes, however long the store fails.
    pub(crate) async fn enter_for_ever(&mut self) -> Result<Guards, Stop> {
        self.acquire(Budget(None), exit::CONFLICT, true).await
    }

    async fn acquire(&mut self, budget: Budget, conflict: u8, is_patient: bool) -> Result<Guards, Stop> {
        let Self { global, task, locks, wanted, ttl, stopping, .. } = self;
        let began = TokioHost.now();
        let waiting = Waiting::new(global, locks, &*wanted, conflict).of_all(wanted.is_all());
        let waiting = if is_patient { waiting.for_ever() } else { waiting };
        let set = |lock| task.set(lock, (*ttl, *stopping));
        let asking = Asking { locks, waiting: &waiting, budget };
        let guards = wanted.acquire(asking, set, &mut self.signals).await?;
        self.waited = began.elapsed(TokioHost.now());
        Ok(guards)
    }

    /// Runs the command after `before`, unless it is not time for it, and gives the locks back.
    ///
    /// # Errors
    /// Why it was not started, or that a lease was lost although the command had ended.
    pub(crate) async fn run(
        &mut self,
        guard: Guards,
        before: impl AsyncFnOnce(&mut Signals) -> Result<(), Stop>,
    ) -> Result<End, Stop> {
        let since = TokioHost.now();
        let (first, name) = (self.wanted.first(&guard), self.wanted.held(&guard));
        let (name, place, quiet) = (name.as_str(), store::place(self.global), self.global.quiet);
        let release = Release { locks: &self.locks, name, place, quiet, ttl: self.ttl };
        let (task, stopping, waited, every) = (self.task, self.stopping, self.waited, self.every.as_ref());
        let is_verbose = self.global.verbose > 0 && !quiet;
        let held = Held { task, name, stopping, guard, first, waited, is_verbose, release, every };
        let signals = &mut self.signals;
        let skipped = match before(signals).await {
            Ok(()) => held.may_start(signals).await,
            Err(stop) => Err(stop),
        };
        match skipped {
            Ok(None) => held.run(signals, since).await,
            Ok(Some(code)) => {
                held.leave(signals).await;
                Ok(End::Ended(code))
            }
            Err(stop) => {
                held.leave(signals).await;
                Err(stop)
            }
        }
    }
}

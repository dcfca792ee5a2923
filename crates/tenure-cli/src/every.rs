//! `run --every`: a command that runs once per interval, on one of many hosts.

use std::time::Duration;

use nix::sys::signal::Signal;
use tenure::{
    AcquireError, HoldError, Lease, Lock, LockName, Locker, Loss, Lost, MemoError,
    backend::{Host, Moment, TokioHost},
    once::{LastRun, RunOnce},
};

use crate::{
    args::{Global, Run},
    exit::{self, Stop},
    signals::Signals,
    text,
    waiting::Question,
};

/// The interval of a run.
pub(crate) struct Every<'a> {
    global: &'a Global,
    once: RunOnce,
    name: LockName,
    every: Duration,
    even_if_failed: bool,
    skip_exit_code: u8,
}

impl<'a> Every<'a> {
    /// `None` if the command has no interval. Takes the name of its lock, and the function that applies the
    /// settings of that lock.
    pub(crate) fn of(
        global: &'a Global,
        locks: &Locker,
        args: &Run,
        (name, set): (&LockName, impl Fn(Lock) -> Lock),
    ) -> Option<Self> {
        let (every, name) = (args.every?, name.clone());
        let once = locks.once(&name).interval(every).with(set);
        let (even_if_failed, skip_exit_code) = (args.even_if_failed, args.skip_exit_code);
        Some(Self { global, once, name, every, even_if_failed, skip_exit_code })
    }

    /// The exit code if the job is not due, before any wait. If the store fails now, a later step waits for it.
    pub(crate) async fn skip_early(&self, signals: &mut Signals) -> Result<Option<u8>, Stop> {
        match self.last(signals).await? {
            Err(HoldError::Acquire(AcquireError::Store(error))) if error.kind().is_transient() => Ok(None),
            last => self.skip(last),
        }
    }

    /// The same under the lock: another host may have run it while this one waited.
    pub(crate) async fn skip_now(&self, signals: &mut Signals) -> Result<Option<u8>, Stop> {
        self.skip(self.last(signals).await?)
    }

    async fn last(&self, signals: &mut Signals) -> Result<Result<Option<LastRun>, HoldError>, Stop> {
        let question = self.question("looking for the last run");
        question.awaited(signals.asked_to_end(), self.once.last()).await.map_err(Stop::signalled)
    }

    fn question(&self, what: &str) -> Question<'a> {
        Question::new(self.global, what).about(&self.name)
    }

    fn skip(&self, last: Result<Option<LastRun>, HoldError>) -> Result<Option<u8>, Stop> {
        let Some(LastRun { by, ago, .. }) = last.map_err(|error| stop(&error).of(&self.name))? else {
            return Ok(None);
        };
        if !self.global.quiet {
            let (next, ago) = (text::seconds(self.every.saturating_sub(ago)), text::ago(ago));
            let line = format!("{}: skipped: {by} ran it {ago}; next run in {next}", self.name);
            exit::warn(&exit::ending(&line, self.skip_exit_code));
        }
        Ok(Some(self.skip_exit_code))
    }

    /// Before the command starts: with `--even-if-failed` the run counts from now on.
    ///
    /// # Errors
    /// The run could not be counted, so the command must not start.
    pub(crate) async fn starts(&self, lease: &Lease, signals: &mut Signals) -> Result<(), Stop> {
        if !self.even_if_failed {
            return Ok(());
        }
        let counted = self.count(lease, Duration::ZERO, signals.asked_to_end()).await;
        counted.map_err(Stop::signalled)?.map_err(|error| stop(&error).of(&self.name))
    }

    /// The command has ended with this code: a success counts, from its start.
    ///
    /// # Errors
    /// The store reports that the lease is gone: the run does not count.
    pub(crate) async fn ended(
        &self,
        lease: &Lease,
        (code, started): (u8, Moment),
        signals: &mut Signals,
    ) -> Result<(), Lost> {
        if code != 0 || self.even_if_failed {
            return Ok(());
        }
        let why = match self.count(lease, started.elapsed(TokioHost.now()), signals.insisted()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(HoldError::NotCounted(MemoError::Lost(lost)))) if lost.cause() == Loss::Taken => {
                return Err(lost);
            }
            Ok(Err(error)) => exit::chain(&error),
            Err(_) => "a signal ended the wait for the store to count the run: it may run again within its \
                       interval"
                .to_owned(),
        };
        exit::warn(&format!("{}: {why}", self.name));
        Ok(())
    }

    async fn count(
        &self,
        lease: &Lease,
        began: Duration,
        signal: impl Future<Output = Signal>,
    ) -> Result<Result<(), HoldError>, Signal> {
        self.question("counting the run").awaited(signal, self.once.count(lease, began)).await
    }
}

fn stop(error: &HoldError) -> Stop {
    match error {
        HoldError::Acquire(error) => Stop::not_acquired(error, exit::CONFLICT, String::new),
        other => Stop::new(exit::UNAVAILABLE, exit::chain(other)),
    }
}

//! `run --every`: a command that is to run once per interval, on whichever host.

use std::time::Duration;

use tenure::{
    AcquireError, Host, LastRun, Lease, Lock, LockName, Locker, Moment, Once, OnceError, TokioHost,
};

use crate::{
    args::{Global, Run},
    exit::{self, Stop},
    people,
};

/// The interval of a run.
pub(crate) struct Every {
    once: Once,
    name: String,
    every: Duration,
    even_if_failed: bool,
    skip_exit_code: u8,
    quiet: bool,
}

impl Every {
    /// `None` if the command has no interval. Of the lock under which it runs: its name, and what gives it its settings.
    pub(crate) fn of(
        global: &Global,
        locks: &Locker,
        args: &Run,
        (name, set): (&LockName, impl Fn(Lock) -> Lock),
    ) -> Option<Self> {
        let (every, name, quiet) = (args.every?, name.to_string(), global.quiet);
        let once = locks.once(&name).every(every).with(set);
        let (even_if_failed, skip_exit_code) = (args.even_if_failed, args.skip_exit_code);
        Some(Self { once, name, every, even_if_failed, skip_exit_code, quiet })
    }

    /// The exit code if it is not time yet, before anything is waited for. A store that fails now is waited for later.
    pub(crate) async fn skip_early(&self) -> Result<Option<u8>, Stop> {
        match self.once.last().await {
            Err(OnceError::Acquire(AcquireError::Backend(error))) if error.kind().is_transient() => Ok(None),
            last => self.skip(last),
        }
    }

    /// The same under the lock: another host may have run it while this one waited.
    pub(crate) async fn skip_now(&self) -> Result<Option<u8>, Stop> {
        self.skip(self.once.last().await)
    }

    fn skip(&self, last: Result<Option<LastRun>, OnceError>) -> Result<Option<u8>, Stop> {
        let Some(LastRun { by, ago, .. }) = last.map_err(|error| stop(&error))? else { return Ok(None) };
        if !self.quiet {
            let (ago, every) = (people::seconds(ago), people::seconds(self.every));
            exit::warn(&format!(
                "{}: skipped: {by} ran it {ago} ago, and it is to run once in {every}",
                self.name
            ));
        }
        Ok(Some(self.skip_exit_code))
    }

    /// Before the command starts: with `--even-if-failed` it counts from here on.
    ///
    /// # Errors
    /// It could not be counted, so it must not start.
    pub(crate) async fn starts(&self, lease: &Lease) -> Result<(), Stop> {
        if !self.even_if_failed {
            return Ok(());
        }
        self.once.count(lease, Duration::ZERO).await.map_err(|error| stop(&error))
    }

    /// The command has ended with this code: a success counts, from when it started.
    pub(crate) async fn ended(&self, lease: &Lease, code: u8, started: Moment) {
        if code != 0 || self.even_if_failed {
            return;
        }
        if let Err(error) = self.once.count(lease, started.elapsed(TokioHost.now())).await {
            exit::warn(&format!("{}: {}", self.name, exit::chain(&error)));
        }
    }
}

fn stop(error: &OnceError) -> Stop {
    match error {
        OnceError::Acquire(error) => Stop::not_acquired(error, exit::CONFLICT, String::new),
        other => Stop::new(exit::UNAVAILABLE, exit::chain(other)),
    }
}

//! Waiting for a lock: what is shown meanwhile, and how a signal ends it.

use std::{
    convert::Infallible,
    io::{IsTerminal, stderr},
    time::Duration,
};

use tenure::{AcquireError, BackendError, Guard, Host, Lock, LockName, Locker, Moment, Progress, TokioHost};

use crate::{exit::Stop, people, signals::Signals, spinner};

/// The longest time to wait for the answer to a release.
pub(crate) const RELEASE_PATIENCE: Duration = Duration::from_secs(2);
/// A wait of at least this length is announced.
const LONG: Duration = Duration::from_secs(1);
/// How often we check for such a wait.
const ANNOUNCING: Duration = Duration::from_millis(100);

/// Waits for one lock.
pub(crate) struct Waiting<'a> {
    locks: &'a Locker,
    name: &'a LockName,
    quiet: bool,
    conflict: u8,
    progress: Progress,
    started: Moment,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(locks: &'a Locker, name: &'a LockName, quiet: bool, conflict: u8) -> Self {
        Self { locks, name, quiet, conflict, progress: Progress::new(), started: TokioHost.now() }
    }

    /// Acquires within `budget`, or for as long as it takes. A signal ends the wait and leaves no waiter behind.
    pub(crate) async fn acquire(
        &self,
        lock: Lock,
        budget: Option<Duration>,
        signals: &mut Signals,
    ) -> Result<Guard, Stop> {
        let lock = lock.progress(&self.progress);
        let acquired = {
            let acquire = async {
                match budget {
                    Some(budget) => lock.acquire_within(budget).await,
                    None => lock.acquire().await,
                }
            };
            tokio::select! {
                biased;
                acquired = acquire => Ok(acquired),
                signal = signals.asked_to_end() => Err(signal),
                never = spinner::spin(self.quiet, || self.message()) => match never {},
                never = self.announce() => match never {},
            }
        };
        match acquired {
            Ok(Ok(guard)) => Ok(guard),
            Ok(Err(error)) => {
                self.locks.drain(RELEASE_PATIENCE).await;
                Err(self.stop(&error))
            }
            Err(signal) => {
                self.locks.drain(RELEASE_PATIENCE).await;
                Err(Stop::signalled(signal as i32))
            }
        }
    }

    /// Says so once if the store announces a long wait, where no progress line is drawn.
    async fn announce(&self) -> Infallible {
        if !self.quiet && !stderr().is_terminal() {
            let error = self.long_wait().await;
            let way_out = self.locks.promises().max_ttl_parameter.map_or_else(String::new, |parameter| {
                format!("; in tests, ?guard=off or a smaller ?{parameter}= in the URL spares this wait")
            });
            crate::exit::warn(&format!("{}: {error}{way_out}", self.name));
        }
        std::future::pending().await
    }

    /// The error with which the store announced a long wait.
    async fn long_wait(&self) -> BackendError {
        loop {
            spinner::pause(ANNOUNCING).await;
            let failing = self.progress.latest().and_then(|waiting| waiting.failing);
            if let Some(error) = failing.filter(|it| it.retry_hint().is_some_and(|left| left >= LONG)) {
                return error;
            }
        }
    }

    fn stop(&self, error: &AcquireError) -> Stop {
        Stop::not_acquired(error, self.conflict, || match error {
            _ if self.quiet => String::new(),
            AcquireError::TimedOut { holder: Some(holder), .. } => {
                format!("{}: held by {}", self.name, people::holder(holder))
            }
            _ => format!("{}: not acquired in time", self.name),
        })
    }

    fn message(&self) -> String {
        let waited = people::seconds(self.started.elapsed(TokioHost.now()));
        let mut line = format!("{}: waiting for {waited}", self.name);
        let Some(waiting) = self.progress.latest() else { return line };
        if let Some(holder) = &waiting.holder {
            line += &format!(", held by {}", holder.who());
            line +=
                &holder.since.map_or_else(String::new, |since| format!(" since {}", people::clock(since)));
        }
        if let Some(ahead) = waiting.ahead.filter(|ahead| *ahead > 0) {
            line += &format!(", {ahead} ahead");
        }
        if let Some(error) = &waiting.failing {
            line += &format!(" ({error})");
        }
        line
    }
}

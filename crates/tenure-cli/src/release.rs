//! Giving the lock back when the command has ended: how long that is worth waiting, and what is said meanwhile.

use std::{cell::Cell, time::Duration};

use tenure::{ErrorKind, Guards, Host, Locker, Loss, Moment, ReleaseError, TokioHost};

use crate::{
    exit,
    notice::announce_after,
    people,
    signals::Signals,
    spinner::{self, pause},
    waiting::{BRIEF_PATIENCE, LEAVE_PATIENCE},
};

/// The longest wait for a store that may answer: a busy server was seen to take four seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// A store that has not answered for so long is said to be silent, where no progress line is drawn.
const SILENCE: Duration = Duration::from_secs(5);

/// How a lock is given back.
pub(crate) struct Release<'a> {
    pub(crate) locks: &'a Locker,
    pub(crate) name: &'a str,
    /// Where the store is, for people.
    pub(crate) place: String,
    pub(crate) quiet: bool,
    pub(crate) ttl: Duration,
}

impl Release<'_> {
    /// The lease was lost, or could not be renewed: if the store answers at once, it hears of the release. Says nothing.
    pub(crate) async fn in_passing(self, guard: Guards) {
        drop(guard);
        self.locks.drain(BRIEF_PATIENCE).await;
    }

    /// Waits for the answer as long as the lease may last, which is `left`. A failure is only a warning, because the work is
    /// done. A signal ends the wait if it is the second one that asks us to end.
    pub(crate) async fn awaited(self, guard: Guards, left: Duration, signals: &mut Signals) {
        let (began, is_said) = (TokioHost.now(), Cell::new(false));
        let over = began + left.min(PATIENCE);
        let notice = || {
            is_said.set(true);
            let left = people::seconds(over.remaining(TokioHost.now()));
            format!("{}; given up in {left}; {}", self.unanswered(began), self.free())
        };
        let failed = tokio::select! {
            biased;
            given_back = self.given_back(guard, began, over) => given_back.err(),
            _ = signals.insisted() => Some(format!("{}: the release was broken off by a signal", self.name)),
            never = spinner::spin(self.quiet, || self.unanswered(began)) => match never {},
            never = announce_after(self.quiet, SILENCE, notice) => match never {},
        };
        match failed {
            // A quorum has answered. Ended now, the process would leave the other nodes held until the ttl is over.
            None => tokio::select! {
                biased;
                _ = self.locks.drain(LEAVE_PATIENCE) => {}
                _ = signals.insisted() => {}
            },
            Some(why) if !self.quiet && !is_said.get() => exit::warn(&format!("{why}; {}", self.free())),
            Some(_) => {}
        }
    }

    /// A release that failed is repeated in the background for the rest of the time.
    ///
    /// # Errors
    /// Why it failed at last, for people.
    async fn given_back(&self, guard: Guards, began: Moment, over: Moment) -> Result<(), String> {
        let error = tokio::select! {
            biased;
            released = guard.release() => match released {
                Ok(()) => return Ok(()),
                // Our belief had an end, which the lease on the store does not know.
                Err(ReleaseError::AlreadyLost(lost)) if lost.cause() == Loss::MaxHold => None,
                Err(ReleaseError::Unknown(error)) => Some(error),
                Err(_) => {
                    self.locks.drain(BRIEF_PATIENCE).await;
                    return Ok(());
                }
            },
            () = pause(over.remaining(began)) => None,
        };
        let is_final = error.as_ref().is_some_and(|error| !error.kind().is_transient());
        if !is_final && self.locks.drain(over.remaining(TokioHost.now())).await {
            return Ok(());
        }
        let said = error.filter(|error| error.kind() != ErrorKind::TimedOut);
        Err(said.map_or_else(
            || self.unanswered(began),
            |error| format!("{}: the lock was not given back: {}", self.name, exit::chain(&error)),
        ))
    }

    fn unanswered(&self, began: Moment) -> String {
        let waited = people::seconds(began.elapsed(TokioHost.now()));
        format!("{}: {} has not answered the release for {waited}", self.name, self.place)
    }

    fn free(&self) -> String {
        format!("the lock is free after its ttl of {} at the latest", people::seconds(self.ttl))
    }
}

//! Releasing the lock after the command has ended: how long to wait for the answer, and what to print during the
//! wait.

use std::{
    cell::{Cell, RefCell},
    cmp::Ordering,
    time::Duration,
};

use futures_util::future::join_all;
use tenure::{
    BackendError, ErrorKind, FencingToken, Guards, Locker, Loss,
    backend::{Host, Moment, Outcome, Released, Renewal, TokioHost},
    manual::Detached,
    view::LockView,
};

use crate::{
    exit,
    signals::Signals,
    text,
    waiting::{self, BRIEF_PATIENCE, LEAVE_PATIENCE, LONG, announce_after, attended, drained, pause},
};

/// The longest wait for a store that may answer: a busy server was seen to take four seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// After this time without an answer a line reports a silent store, where no progress line is drawn.
const SILENCE: Duration = Duration::from_secs(5);

/// Between two requests for one release.
const AGAIN: Duration = Duration::from_millis(100);

/// How to release a lock.
pub(crate) struct Release<'a> {
    pub(crate) locks: &'a Locker,
    pub(crate) name: &'a str,
    /// Where the store is, for messages.
    pub(crate) place: String,
    pub(crate) quiet: bool,
    /// A successful release is printed as well.
    pub(crate) is_verbose: bool,
    pub(crate) ttl: Duration,
}

/// The leases, which last for their ttl.
pub(crate) async fn left_to_ttl(guard: Guards) -> Vec<Detached> {
    guard.detach().await.expect("BUG: no lease of the command ends with its process")
}

impl Release<'_> {
    /// The lease was lost, or could not be renewed: a store that answers immediately receives the release. Prints
    /// nothing.
    pub(crate) async fn in_passing(self, guard: Guards) {
        drop(guard);
        self.locks.flush(BRIEF_PATIENCE).await;
    }

    /// Keeps the locks for this long instead, or for what is left of their leases: one last renewal, so that no process of ours
    /// is needed for it.
    pub(crate) async fn lingering(self, guard: Guards, linger: Duration, signals: &Signals) {
        let leases = left_to_ttl(guard).await;
        let patience = if signals.is_insisted() { LEAVE_PATIENCE } else { PATIENCE };
        let each = leases.iter().map(async |lease| {
            loop {
                match lease.renew(linger).await {
                    Ok(Renewal::Renewed) => return Ok(()),
                    Ok(Renewal::Gone) => return Err("the lease was lost".to_owned()),
                    Err(error) if !error.kind().is_transient() => return Err(exit::chain(&error)),
                    Err(_) => pause(AGAIN).await,
                }
            }
        });
        let kept = tokio::select! {
            biased;
            kept = join_all(each) => kept.into_iter().collect::<Result<(), _>>(),
            () = pause(patience) => Err(format!("{} does not answer", self.place)),
        };
        let (name, linger) = (self.name, text::seconds(linger));
        match kept {
            Ok(()) if self.quiet => {}
            Ok(()) => exit::warn(&format!(
                "{name}: the command did not end well; the lock stays taken for {linger} (--linger)"
            )),
            Err(why) => {
                exit::warn(&format!("{name}: not kept for {linger} (--linger): {why}. {}", self.free()));
            }
        }
    }

    /// Waits for the answer as long as the lease may last, which is `left`. A failure is only a warning, because
    /// the work is done. A second signal to end ends the wait.
    ///
    /// If the store reports that a lease was gone before its release: which one, and how it ended, if the store can
    /// show that.
    pub(crate) async fn awaited(
        self,
        guard: Guards,
        left: Duration,
        signals: &mut Signals,
    ) -> Option<String> {
        let lost = guard.check().err();
        if lost.is_some_and(|lost| lost.cause() != Loss::MaxHold) {
            self.in_passing(guard).await;
            return None;
        }
        // By their owners, because the release of a guard does not return the answer to its second request.
        let leases = left_to_ttl(guard).await;
        let (began, is_said, patience) = (TokioHost.now(), Cell::new(false), left.min(PATIENCE));
        let notice = || {
            is_said.set(true);
            let left = text::seconds(patience.saturating_sub(began.elapsed(TokioHost.now())));
            format!(
                "{}; giving up in {left}. {}; press Ctrl-C twice to end the wait",
                self.unanswered(began),
                self.free()
            )
        };
        let said = announce_after(self.quiet, SILENCE, notice);
        let shown = waiting::spin(self.quiet, || self.unanswered(began));
        let gone = Cell::new(None);
        let given_back = self.given_back(&leases, &gone, patience);
        let failed = match attended(given_back, signals.insisted(), shown, said).await {
            Ok(Ok(())) => None,
            Ok(Err(None)) => Some(self.unanswered(began)),
            Ok(Err(Some(error))) => Some(format!(
                "{}: the command has ended, but the lock was not released: {}",
                self.name,
                exit::chain(&error)
            )),
            Err(_) => Some(format!("{}: a signal ended the wait for the release", self.name)),
        };
        let lost_one = gone.take().filter(|_| lost.is_none());
        let is_there = lost.is_none() && lost_one.is_none();
        match failed {
            // A quorum has answered. Ended now, the process would leave the other nodes held until the ttl is over.
            None => {
                drained(self.locks, LEAVE_PATIENCE, signals.insisted()).await;
                if self.is_verbose && is_there {
                    exit::warn(&format!("{}: released", self.name));
                }
            }
            Some(why) if !self.quiet && !is_said.get() => exit::warn(&format!("{why}. {}", self.free())),
            Some(_) => {}
        }
        // A lease that we do not believe in any more has ended by itself.
        match lost_one {
            Some(lease) => Some(self.how_lost(lease, &leases, signals).await),
            None => None,
        }
    }

    /// Asks until the store has answered for each lease. `gone` is one that was gone before its release.
    ///
    /// # Errors
    /// The last refusal or failure of the store, if it returned one.
    async fn given_back<'l>(
        &self,
        leases: &'l [Detached],
        gone: &Cell<Option<&'l Detached>>,
        patience: Duration,
    ) -> Result<(), Option<BackendError>> {
        let latest = RefCell::new(None);
        let each = leases.iter().map(async |lease| {
            let mut is_unclear = false;
            loop {
                match lease.release().await {
                    Ok(Released::Released) => return true,
                    Ok(Released::WasGone) if is_unclear => {
                        self.say_unclear(lease, leases);
                        return true;
                    }
                    Ok(Released::WasGone) => {
                        gone.set(Some(lease));
                        return true;
                    }
                    Err(error) => {
                        // That request may have ended it.
                        is_unclear |= error.outcome() == Outcome::Unknown;
                        let is_final = !error.kind().is_transient();
                        latest.replace(Some(error));
                        if is_final {
                            return false;
                        }
                    }
                }
                pause(AGAIN).await;
            }
        });
        let are_answered = tokio::select! {
            biased;
            answered = join_all(each) => answered.into_iter().all(|answered| answered),
            () = pause(patience) => false,
        };
        // A timeout only means that there was no answer.
        let said = latest.take().filter(|error| error.kind() != ErrorKind::TimedOut);
        if are_answered { Ok(()) } else { Err(said) }
    }

    fn say_unclear(&self, lease: &Detached, leases: &[Detached]) {
        if !self.quiet {
            exit::warn(&format!(
                "{}: the lease was gone when its release was repeated: the first request, which had no answer, has \
                 ended it, or it was lost before",
                self.name_of(lease, leases)
            ));
        }
    }

    /// Asks the store how a lease ended.
    async fn how_lost(&self, lease: &Detached, leases: &[Detached], signals: &mut Signals) -> String {
        let line = format!("{}: the lease was lost", self.name_of(lease, leases));
        let asking = || format!("{line}; {} does not answer how", self.place);
        let (shown, said) = (waiting::spin(self.quiet, asking), announce_after(self.quiet, LONG, asking));
        let view = attended(self.locks.inspect(lease.name()), signals.insisted(), shown, said).await;
        let view = view.ok().and_then(Result::ok);
        format!("{line}: {}", how_lost(view.as_ref(), lease.token().expect("BUG: its guard had a token")))
    }

    /// The name of the lock, if it is one of several.
    fn name_of(&self, lease: &Detached, leases: &[Detached]) -> String {
        if leases.len() > 1 { format!("{} (of {})", lease.name(), self.name) } else { self.name.to_owned() }
    }

    fn unanswered(&self, began: Moment) -> String {
        let waited = text::seconds(began.elapsed(TokioHost.now()));
        format!(
            "{}: the command has ended, but {} has not confirmed the release for {waited}",
            self.name, self.place
        )
    }

    fn free(&self) -> String {
        format!("The lock is free after its ttl of {} at the latest", text::seconds(self.ttl))
    }
}

/// How a lease with this token ended without a release, as far as its lock shows it.
fn how_lost(view: Option<&LockView>, token: FencingToken) -> String {
    let Some(view) = view else {
        return ENDED.to_owned();
    };
    let how = match view.fence.cmp(&token) {
        Ordering::Less => "the store lost its data",
        Ordering::Equal => "it expired, or tenure unlock ended it",
        // A break raises it, as each holder after it does; where all locks share it, those of others do as well.
        Ordering::Greater => ENDED,
    };
    let now =
        view.holders.first().map_or_else(String::new, |holder| format!("; held by {}", text::holder(holder)));
    format!("{how}{now}")
}

/// All that may have been.
const ENDED: &str = "it expired, tenure break or unlock ended it, or the store lost its data";

#[cfg(test)]
mod tests {
    use tenure::{
        LockName,
        view::{HolderView, Mode},
    };

    use super::*;

    #[test]
    fn the_fence_tells_how_a_lease_ended() {
        let view = |fence, holders| {
            let name = LockName::new("job").unwrap();
            LockView::new(name, holders, Vec::new(), FencingToken::new(fence))
        };
        let how = |fence| how_lost(Some(&view(fence, Vec::new())), FencingToken::new(7));
        assert_eq!(how(6), "the store lost its data");
        assert_eq!(how(7), "it expired, or tenure unlock ended it");
        assert_eq!(how(8), ENDED);
        assert_eq!(how_lost(None, FencingToken::new(7)), how(8), "it does not answer");
        let robbed = view(8, vec![HolderView::new("someone", Mode::Exclusive)]);
        assert!(how_lost(Some(&robbed), FencingToken::new(7)).contains("; held by "));
    }
}

//! `GivenUp`: claims that nobody waits for any more, and that may yet be granted.
//!
//! A claim that leaves with others is sent also if whoever made it gives up meanwhile. Its release must not come before it: it would
//! free nothing, and the lock would be held by nobody for a whole ttl (L9). So whoever gives up says so here, and a release is not
//! over before the claim of its owner is answered, over whatever connection either goes.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tenure_core::{LockName, locked};
use tokio::sync::{Notify, oneshot};

/// An owner, as it stands in a key.
pub(crate) type Owner = [u8; 48];

/// Who claims what.
pub(crate) type Claimant = (Owner, LockName);

/// Those of all handles of a process.
#[derive(Default)]
pub(crate) struct GivenUp {
    /// Numbered: who asks again does so under the same owner.
    claims: Mutex<BTreeSet<(Claimant, u64)>>,
    next: AtomicU64,
    settled: Notify,
}

impl GivenUp {
    fn add(&self, claim: (Claimant, u64)) {
        locked(&self.claims).insert(claim);
    }

    fn settle(&self, claim: &(Claimant, u64)) {
        if locked(&self.claims).remove(claim) {
            self.settled.notify_waiters();
        }
    }

    /// Whether such a claim was given up and may yet be granted.
    pub(crate) fn has(&self, claimant: &Claimant) -> bool {
        let all = (claimant.clone(), 0)..=(claimant.clone(), u64::MAX);
        locked(&self.claims).range(all).next().is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.claims).is_empty()
    }

    /// Waits until no such claim that was given up is under way.
    pub(crate) async fn settled(&self, claimant: &Claimant) {
        while self.has(claimant) {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            // From here on it is not missed.
            settled.as_mut().enable();
            if self.has(claimant) {
                settled.await;
            }
        }
    }
}

/// A claim that may be given up.
type Claimed = (Arc<GivenUp>, (Claimant, u64));

/// Who waits for an answer. Dropped before, it has given up.
pub(crate) struct Ear<T> {
    answer: oneshot::Receiver<T>,
    claim: Option<Claimed>,
}

/// Who is to give it. Dropped, with an answer or without: nothing of that request is under way on this side any more. (What a server
/// does late is hazard 17.)
pub(crate) struct Mouth<T> {
    answer: Option<oneshot::Sender<T>>,
    claim: Option<Claimed>,
}

/// For one request, and who claims what if it is a claim.
pub(crate) fn pair<T>(given_up: &Arc<GivenUp>, claimant: Option<Claimant>) -> (Mouth<T>, Ear<T>) {
    let (sender, receiver) = oneshot::channel();
    let number = |claimant| (claimant, given_up.next.fetch_add(1, Ordering::Relaxed));
    let claim = claimant.map(|claimant| (given_up.clone(), number(claimant)));
    (Mouth { answer: Some(sender), claim: claim.clone() }, Ear { answer: receiver, claim })
}

impl<T> Ear<T> {
    /// Nothing, if whoever was to answer is gone.
    pub(crate) async fn hear(mut self) -> Option<T> {
        let answer = (&mut self.answer).await;
        self.claim = None;
        answer.ok()
    }
}

impl<T> Drop for Ear<T> {
    fn drop(&mut self) {
        let Some((given_up, claim)) = self.claim.take() else { return };
        // In this order: a mouth that is dropped from here on settles it, and one that is gone already shows below.
        given_up.add(claim.clone());
        if !matches!(self.answer.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
            given_up.settle(&claim);
        }
    }
}

impl<T> Mouth<T> {
    /// Nobody wants the answer any more.
    pub(crate) fn is_unheard(&self) -> bool {
        self.answer.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    pub(crate) fn tell(mut self, answer: T) {
        if let Some(sender) = self.answer.take() {
            // OK to ignore because whoever gave up releases what it may have been granted.
            let _ = sender.send(answer);
        }
    }
}

impl<T> Drop for Mouth<T> {
    fn drop(&mut self) {
        drop(self.answer.take());
        if let Some((given_up, claim)) = &self.claim {
            given_up.settle(claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_testkit::polls::is_pending;

    use super::*;

    fn claimant(owner: u8, name: &str) -> Claimant {
        ([owner; 48], LockName::new(name).unwrap())
    }

    /// L9: in every order of what may happen to both ends, a release waits exactly as long as a claim may be granted to nobody.
    #[tokio::test]
    async fn a_release_waits_for_the_claim_that_was_given_up_and_for_no_other() {
        let given_up = Arc::<GivenUp>::default();
        let me = claimant(b'1', "a");
        let claim = || pair::<u8>(&given_up, Some(me.clone()));
        let is_settled = async || !is_pending(&mut Box::pin(given_up.settled(&me))).await;

        // Under way, and somebody waits for it: a release does not.
        let (mouth, ear) = claim();
        assert!(is_settled().await);
        mouth.tell(1);
        assert_eq!(ear.hear().await, Some(1));
        assert!(is_settled().await);

        // Told, and given up before it was looked at: a release that is sent now comes later.
        let (mouth, ear) = claim();
        mouth.tell(1);
        drop(ear);
        assert!(is_settled().await);

        // Not told, and nobody will.
        let (mouth, ear) = claim();
        drop(mouth);
        drop(ear);
        assert!(is_settled().await);

        // Given up; two of them.
        let [(one, first), (other, second)] = [claim(), claim()];
        drop((first, second));
        assert!(!is_settled().await && one.is_unheard());
        let mut waiting = Box::pin(given_up.settled(&me));
        assert!(is_pending(&mut waiting).await);
        one.tell(1);
        assert!(!is_settled().await && is_pending(&mut waiting).await);
        given_up.settled(&claimant(b'2', "a")).await;
        given_up.settled(&claimant(b'1', "b")).await;
        drop(other);
        waiting.await;
        assert!(is_settled().await);

        // Dropped while it hears.
        let (mouth, ear) = claim();
        let mut hearing = Box::pin(ear.hear());
        assert!(is_pending(&mut hearing).await);
        drop(hearing);
        assert!(!is_settled().await);
        drop(mouth);
        assert!(is_settled().await);
    }

    /// The same while both ends are dropped at once, by two threads.
    #[test]
    fn nothing_stays_behind_when_both_ends_go_at_once() {
        let (given_up, me) = (Arc::<GivenUp>::default(), claimant(b'1', "a"));
        for round in 0..2000_u32 {
            let (mouth, ear) = pair::<u32>(&given_up, Some(me.clone()));
            let other =
                std::thread::spawn(move || if round % 2 == 0 { mouth.tell(round) } else { drop(mouth) });
            drop(ear);
            other.join().unwrap();
            assert!(!given_up.has(&me), "round {round}");
        }
    }

    /// A release gives nothing up.
    #[tokio::test]
    async fn who_is_no_claimant_leaves_nothing_behind() {
        let given_up = Arc::<GivenUp>::default();
        let (mouth, ear) = pair::<u8>(&given_up, None);
        drop(ear);
        assert!(mouth.is_unheard() && locked(&given_up.claims).is_empty());
    }
}

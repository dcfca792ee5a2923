//! `HintRouter`: brings hints to the waiters of this process, at once, or when the turn ahead of them is over.

use std::{
    collections::{HashMap, VecDeque},
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{
    Audience, Bells, Forward, Hint, Host, Moment, OwnerId, ProcessId, Ringing, Wake, Wakes, locked,
};
use tokio::sync::Notify;

/// Hints that are kept for later; the oldest are dropped, for the turns that they wait for are the likeliest to be over.
const KEPT: usize = 1024;

/// Where one handle's hints arrive and whom it hears: shared by its connections.
pub struct HintRouter {
    post: Arc<Post>,
    /// Whose hints this handle's connections must bring.
    wanted: Mutex<Vec<(ProcessId, Audience)>>,
}

/// Delivery inside of the process; handles may share it.
struct Post {
    bells: Bells,
    host: Arc<dyn Host>,
    claim_ttl: Duration,
    later: Mutex<Later>,
    /// There is a first one in `later`.
    added: Notify,
}

#[derive(Default)]
struct Later {
    /// Who is to be told when. Its own turn ends that.
    due: HashMap<OwnerId, Moment>,
    /// The same in the order of time, with those whose turn came meanwhile.
    order: VecDeque<(Moment, OwnerId)>,
}

/// A stream of hints. Those for later are told while somebody waits for the next one.
pub struct Hints {
    ringing: Ringing,
    /// Of one that waits for turns.
    post: Option<Arc<Post>>,
}

impl HintRouter {
    /// For a store in whose queues a turn lasts for `claim_ttl` unless it is taken.
    pub fn new(host: Arc<dyn Host>, claim_ttl: Duration) -> Self {
        let (bells, later, added) = (Bells::default(), Mutex::default(), Notify::new());
        let post = Arc::new(Post { bells, host, claim_ttl, later, added });
        Self { post, wanted: Mutex::default() }
    }

    /// For another handle: a hint that arrives here reaches its waiters as well.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self { post: self.post.clone(), wanted: Mutex::default() }
    }

    /// A new stream. From now on this process and audience are wanted.
    pub fn listen(&self, process: ProcessId, audience: Audience) -> Hints {
        let ringing = self.post.bells.listen(process, audience);
        let mut wanted = locked(&self.wanted);
        if !wanted.contains(&(process, audience)) {
            wanted.push((process, audience));
        }
        Hints { ringing, post: (audience == Audience::Waiters).then(|| self.post.clone()) }
    }

    /// Whose hints the connections must bring, in the order in which they were wanted; it only grows.
    pub fn wanted(&self) -> Vec<(ProcessId, Audience)> {
        locked(&self.wanted).clone()
    }

    /// How many those are.
    pub fn wanted_count(&self) -> usize {
        locked(&self.wanted).len()
    }

    /// True if this handle hears hints for them.
    pub fn wants(&self, process: ProcessId, audience: Audience) -> bool {
        locked(&self.wanted).contains(&(process, audience))
    }

    /// True if an owner listens in this process: it needs no server to be told.
    pub fn reach(&self, audience: Audience, owner: OwnerId) -> bool {
        self.post.bells.reach(audience, owner)
    }

    /// Brings a hint to its owner, if it is in this process.
    pub fn route(&self, hint: Hint) {
        let Hint { owner, audience, is_behind } = hint;
        if is_behind && self.reach(audience, owner) {
            self.post.keep(owner);
        } else if !is_behind {
            locked(&self.post.later).due.remove(&owner);
            self.post.bells.ring(audience, owner);
        }
    }

    /// Hints may have been missed: everybody whom this handle hears must ask again.
    pub fn ring_all(&self) {
        for (process, audience) in self.wanted() {
            self.post.bells.ring_all(process, audience);
        }
    }
}

impl Post {
    /// For later, unless it waits for that already.
    fn keep(&self, owner: OwnerId) {
        let mut later = locked(&self.later);
        if later.due.contains_key(&owner) {
            return;
        }
        if later.order.len() == KEPT
            && let Some((due, oldest)) = later.order.pop_front()
        {
            later.forget(oldest, due);
        }
        // The turn is equally long for all, so that the order of coming is that of time.
        let due = self.host.now() + self.claim_ttl;
        later.due.insert(owner, due);
        later.order.push_back((due, owner));
        if later.order.len() == 1 {
            self.added.notify_waiters();
        }
    }

    fn first_due(&self) -> Option<Moment> {
        locked(&self.later).order.front().map(|(due, _)| *due)
    }

    fn ring_due(&self) {
        let now = self.host.now();
        let mut later = locked(&self.later);
        while let Some((due, owner)) = later.order.pop_front_if(|(due, _)| due.is_over(now)) {
            if later.forget(owner, due) {
                self.bells.ring(Audience::Waiters, owner);
            }
        }
    }
}

impl Later {
    /// True if it was still to be told then.
    fn forget(&mut self, owner: OwnerId, due: Moment) -> bool {
        let is_it = self.due.get(&owner) == Some(&due);
        if is_it {
            self.due.remove(&owner);
        }
        is_it
    }
}

#[async_trait]
impl Wakes for Hints {
    async fn next(&mut self) -> Wake {
        let Some(post) = self.post.clone() else { return self.ringing.next().await };
        loop {
            let added = post.added.notified();
            tokio::pin!(added);
            // From here on no first one is missed.
            added.as_mut().enable();
            let due = post.first_due();
            let turn = async {
                match due {
                    Some(due) => post.host.sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                wake = self.ringing.next() => return wake,
                () = added => {}
                () = turn => post.ring_due(),
            }
        }
    }

    fn forward(&mut self, to: Forward) {
        self.ringing.forward(to);
    }
}

#[cfg(test)]
mod tests {
    use tenure_testkit::host::{PausedHost, pass};
    use tokio::time::{Instant, timeout};

    use super::*;

    const TURN: Duration = Duration::from_millis(500);

    fn process(number: u8) -> ProcessId {
        ProcessId::from_random([number; 8])
    }

    fn owner(of: u8, number: u8) -> OwnerId {
        OwnerId::from_random(process(of), [number; 16])
    }

    fn hint(owner: OwnerId, is_behind: bool) -> Hint {
        Hint { owner, audience: Audience::Waiters, is_behind }
    }

    fn router() -> HintRouter {
        HintRouter::new(PausedHost::new(1), TURN)
    }

    /// The next hint, and after how many ms.
    async fn next(hints: &mut Hints) -> Option<(Wake, u128)> {
        let began = Instant::now();
        let wake = timeout(TURN * 4, hints.next()).await.ok()?;
        Some((wake, began.elapsed().as_millis()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_reaches_its_owner_at_once_and_who_is_behind_when_the_turn_is_over() {
        let router = router();
        let mut hints = router.listen(process(1), Audience::Waiters);
        router.route(hint(owner(1, 7), true));
        router.route(hint(owner(1, 8), false));
        router.route(hint(owner(2, 9), true));
        assert_eq!(next(&mut hints).await, Some((Wake::Owner(owner(1, 8)), 0)));
        let (wake, after) = next(&mut hints).await.unwrap();
        assert_eq!(wake, Wake::Owner(owner(1, 7)));
        assert!((500..510).contains(&after), "{after}");
        assert_eq!(next(&mut hints).await, None, "another process's is not told here");
    }

    /// Whose own turn came meanwhile is told of that, and not again; nor is it told twice what it was told twice.
    #[tokio::test(start_paused = true)]
    async fn a_turn_of_ones_own_ends_the_wait_for_that_of_another() {
        let router = router();
        let mut hints = router.listen(process(1), Audience::Waiters);
        let it = owner(1, 7);
        router.route(hint(it, true));
        router.route(hint(it, true));
        pass(TURN / 2).await;
        router.route(hint(it, false));
        assert_eq!(next(&mut hints).await, Some((Wake::Owner(it), 0)));
        router.route(hint(it, true));
        let (_, after) = next(&mut hints).await.unwrap();
        assert!((500..510).contains(&after), "counted from the last time: {after}");
        assert_eq!(next(&mut hints).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_for_later_is_told_also_if_it_came_while_somebody_waited() {
        let router = router();
        let mut hints = router.listen(process(1), Audience::Waiters);
        let release = async {
            pass(TURN / 2).await;
            // Through another handle, as a release in the same process.
            router.beside().route(hint(owner(1, 7), true));
        };
        let (told, ()) = tokio::join!(next(&mut hints), release);
        let (wake, after) = told.unwrap();
        assert_eq!(wake, Wake::Owner(owner(1, 7)));
        assert!((750..760).contains(&after), "{after}");
    }

    #[tokio::test(start_paused = true)]
    async fn more_than_are_kept_drop_the_oldest() {
        let router = router();
        let mut hints = router.listen(process(1), Audience::Waiters);
        for number in 0..=KEPT {
            let mut bits = [0; 16];
            bits[..8].copy_from_slice(&(number as u64).to_le_bytes());
            router.route(hint(OwnerId::from_random(process(1), bits), true));
        }
        let mut told = 0;
        while next(&mut hints).await.is_some() {
            told += 1;
        }
        assert_eq!(told, KEPT);
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_have_missed_hints_is_who_is_heard_by_this_handle() {
        let router = router();
        let mut here = router.listen(process(1), Audience::Waiters);
        let other = router.beside();
        let mut there = other.listen(process(1), Audience::Holders);
        other.listen(process(1), Audience::Holders);
        assert_eq!((router.wanted_count(), other.wanted()), (1, vec![(process(1), Audience::Holders)]));
        assert!(router.wants(process(1), Audience::Waiters) && !router.wants(process(1), Audience::Holders));
        other.ring_all();
        assert_eq!(next(&mut there).await, Some((Wake::All, 0)));
        assert_eq!(next(&mut here).await, None);
    }
}

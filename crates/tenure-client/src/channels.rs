//! `Channels`: the processes whose hints the connections of one handle must deliver.

use std::sync::Mutex;

use tenure_core::{Audience, Notifications, Notifier, ProcessId, locked};

/// The notifier of a process, and the processes and audiences that one handle subscribes to at its server. Its connections share it.
pub struct Channels {
    /// Handles may share it: a hint that arrives on one reaches the waiters of all.
    pub notifier: Notifier,
    all: Mutex<Vec<(ProcessId, Audience)>>,
}

impl Channels {
    /// For one handle, which has no subscription yet.
    pub fn new(notifier: Notifier) -> Self {
        Self { notifier, all: Mutex::default() }
    }

    /// A new stream, whose channel this handle's connections subscribe to from now on.
    pub fn listen(&self, process: ProcessId, audience: Audience) -> Notifications {
        let stream = self.notifier.subscribe(process, audience);
        let mut all = locked(&self.all);
        if !all.contains(&(process, audience)) {
            all.push((process, audience));
        }
        stream
    }

    /// All of them, in the order in which they were added; none is removed.
    pub fn all(&self) -> Vec<(ProcessId, Audience)> {
        locked(&self.all).clone()
    }

    /// Their number.
    pub fn count(&self) -> usize {
        locked(&self.all).len()
    }

    /// True if this handle subscribes to that one.
    pub fn has(&self, process: ProcessId, audience: Audience) -> bool {
        locked(&self.all).contains(&(process, audience))
    }

    /// Hints may have been lost: every owner whose hints come through this handle must ask again.
    pub fn notify_all(&self) {
        for (process, audience) in self.all() {
            self.notifier.notify_all(process, audience);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_core::{Hint, OwnerId, WakeEvent, WakeStream};
    use tenure_testkit::host::{PausedHost, pass};
    use tokio::time::{Instant, timeout};

    use super::*;

    const TURN: Duration = Duration::from_millis(500);
    /// As many as are kept.
    const KEPT: usize = 1024;

    fn process(number: u8) -> ProcessId {
        ProcessId::from_random([number; 8])
    }

    fn owner(of: u8, number: u8) -> OwnerId {
        OwnerId::from_random(process(of), [number; 16])
    }

    fn hint(owner: OwnerId, is_behind: bool) -> Hint {
        Hint { owner, audience: Audience::Waiters, is_behind }
    }

    fn channels() -> Channels {
        Channels::new(Notifier::with_turns(PausedHost::new(1), TURN))
    }

    /// The next hint, and after how many ms.
    async fn next(hints: &mut Notifications) -> Option<(WakeEvent, u128)> {
        let began = Instant::now();
        let wake = timeout(TURN * 4, hints.next()).await.ok()?;
        Some((wake, began.elapsed().as_millis()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_is_notified_immediately_and_one_that_is_behind_when_the_turn_has_passed() {
        let channels = channels();
        let mut hints = channels.listen(process(1), Audience::Waiters);
        channels.notifier.deliver(hint(owner(1, 7), true));
        channels.notifier.deliver(hint(owner(1, 8), false));
        channels.notifier.deliver(hint(owner(2, 9), true));
        assert_eq!(next(&mut hints).await, Some((WakeEvent::Owner(owner(1, 8)), 0)));
        let (wake, after) = next(&mut hints).await.unwrap();
        assert_eq!(wake, WakeEvent::Owner(owner(1, 7)));
        assert!((500..510).contains(&after), "{after}");
        assert_eq!(next(&mut hints).await, None, "an owner of another process is not notified here");
    }

    /// An owner whose own turn came first is notified of that, and not again; one that was added twice is notified
    /// once.
    #[tokio::test(start_paused = true)]
    async fn its_own_turn_ends_an_owners_wait_for_the_turn_ahead() {
        let channels = channels();
        let mut hints = channels.listen(process(1), Audience::Waiters);
        let it = owner(1, 7);
        channels.notifier.deliver(hint(it, true));
        channels.notifier.deliver(hint(it, true));
        pass(TURN / 2).await;
        channels.notifier.deliver(hint(it, false));
        assert_eq!(next(&mut hints).await, Some((WakeEvent::Owner(it), 0)));
        channels.notifier.deliver(hint(it, true));
        let (_, after) = next(&mut hints).await.unwrap();
        assert!((500..510).contains(&after), "counted from the last time: {after}");
        assert_eq!(next(&mut hints).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_for_later_is_delivered_even_if_it_came_while_the_stream_was_polled() {
        let channels = channels();
        let mut hints = channels.listen(process(1), Audience::Waiters);
        let release = async {
            pass(TURN / 2).await;
            // Through another handle, as a release in the same process.
            channels.notifier.clone().deliver(hint(owner(1, 7), true));
        };
        let (notified, ()) = tokio::join!(next(&mut hints), release);
        let (wake, after) = notified.unwrap();
        assert_eq!(wake, WakeEvent::Owner(owner(1, 7)));
        assert!((750..760).contains(&after), "{after}");
    }

    #[tokio::test(start_paused = true)]
    async fn more_than_are_kept_drop_the_oldest() {
        let channels = channels();
        let mut hints = channels.listen(process(1), Audience::Waiters);
        for number in 0..=KEPT {
            let mut bits = [0; 16];
            bits[..8].copy_from_slice(&(number as u64).to_le_bytes());
            channels.notifier.deliver(hint(OwnerId::from_random(process(1), bits), true));
        }
        let mut count = 0;
        while next(&mut hints).await.is_some() {
            count += 1;
        }
        assert_eq!(count, KEPT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handle_that_may_have_lost_hints_notifies_those_it_hears_of() {
        let channels = channels();
        let mut here = channels.listen(process(1), Audience::Waiters);
        let other = Channels::new(channels.notifier.clone());
        let mut there = other.listen(process(1), Audience::Holders);
        other.listen(process(1), Audience::Holders);
        assert_eq!((channels.count(), other.all()), (1, vec![(process(1), Audience::Holders)]));
        assert!(channels.has(process(1), Audience::Waiters) && !channels.has(process(1), Audience::Holders));
        other.notify_all();
        assert_eq!(next(&mut there).await, Some((WakeEvent::All, 0)));
        assert_eq!(next(&mut here).await, None);
    }
}

//! `SingleFlight`: work that several callers need at the same time, and that one task does for all of them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{BoxFuture, Host, Moment, locked};
use tokio::sync::watch;

/// How often the task signals that its runtime is polled.
const BEAT: Duration = Duration::from_millis(100);
/// A task without a signal for this long belongs to a runtime that is blocked or has ended: 500 ms.
const STILL: Duration = Duration::from_millis(500);

/// Work that is done once for all callers that need it while it is under way.
///
/// A task does it, not one of the callers: a caller whose future is not polled or is dropped delays no other. If
/// the runtime of the task is blocked, the next caller begins the work anew in its own.
pub struct SingleFlight<T> {
    host: Arc<dyn Host>,
    current: Mutex<Option<Flight<T>>>,
}

struct Flight<T> {
    landed: watch::Receiver<Option<T>>,
    /// When its task last ran.
    beat: Arc<Mutex<Moment>>,
}

impl<T> Clone for Flight<T> {
    fn clone(&self) -> Self {
        Self { landed: self.landed.clone(), beat: self.beat.clone() }
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Tasks and time come from `host`.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self { host, current: Mutex::default() }
    }

    /// The result of the work under way; begins it if there is none.
    ///
    /// # Cancel safety
    /// The work continues without this caller.
    pub async fn join(&self, begin: impl Fn() -> BoxFuture<'static, T>) -> T {
        loop {
            let mut flight = self.current(&begin);
            // Its receiver is notified of the end of the task as well, with an outcome or without.
            let landed = async { flight.landed.wait_for(Option::is_some).await.ok()?.clone() };
            let look = self.host.sleep_until(self.host.now() + STILL);
            tokio::select! {
                biased;
                landed = landed => match landed {
                    Some(outcome) => return outcome,
                    // Work that panics is not repeated again and again without a pause.
                    None => self.host.sleep_until(self.host.now() + BEAT).await,
                },
                () = look => {}
            }
        }
    }

    fn current(&self, begin: impl Fn() -> BoxFuture<'static, T>) -> Flight<T> {
        let mut current = locked(&self.current);
        if let Some(flight) = current.as_ref().filter(|flight| flight.is_under_way(self.host.now())) {
            return flight.clone();
        }
        let (tell, landed) = watch::channel(None);
        let beat = Arc::new(Mutex::new(self.host.now()));
        self.host.spawn(Box::pin(fly(self.host.clone(), begin(), beat.clone(), tell)));
        current.insert(Flight { landed, beat }).clone()
    }
}

impl<T> Flight<T> {
    fn is_under_way(&self, now: Moment) -> bool {
        let has_ended = self.landed.borrow().is_some() || self.landed.has_changed().is_err();
        !has_ended && locked(&self.beat).elapsed(now) < STILL
    }
}

async fn fly<T>(
    host: Arc<dyn Host>,
    mut work: BoxFuture<'static, T>,
    beat: Arc<Mutex<Moment>>,
    tell: watch::Sender<Option<T>>,
) {
    loop {
        *locked(&beat) = host.now();
        tokio::select! {
            biased;
            outcome = &mut work => {
                tell.send_replace(Some(outcome));
                return;
            }
            () = host.sleep_until(host.now() + BEAT) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tenure_testkit::{
        host::{PausedHost, pass},
        polls::{dropped_after, is_pending},
    };

    use super::*;

    const WORK: Duration = Duration::from_secs(1);

    fn flights() -> (SingleFlight<usize>, impl Fn() -> BoxFuture<'static, usize>, Arc<AtomicUsize>) {
        let begun = Arc::<AtomicUsize>::default();
        let count = begun.clone();
        let begin = move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                pass(WORK).await;
                number
            }) as BoxFuture<'static, usize>
        };
        (SingleFlight::new(PausedHost::new(1)), begin, begun)
    }

    #[tokio::test(start_paused = true)]
    async fn callers_at_the_same_time_share_the_work_and_later_ones_begin_anew() {
        let (flights, begin, begun) = flights();
        assert_eq!(tokio::join!(flights.join(&begin), flights.join(&begin)), (0, 0));
        assert_eq!(flights.join(&begin).await, 1);
        assert_eq!(begun.load(Ordering::Relaxed), 2);
    }

    /// A caller that was polled once and then no more owned the work: all others waited for it.
    #[tokio::test(start_paused = true)]
    async fn a_caller_that_rests_or_is_dropped_delays_no_other() {
        let (flights, begin, begun) = flights();
        let mut rests = Box::pin(flights.join(&begin));
        assert!(is_pending(&mut rests).await);
        assert!(dropped_after(1, flights.join(&begin)).await.is_none());
        let outcome = tokio::time::timeout(WORK * 2, flights.join(&begin)).await;
        assert_eq!((outcome, begun.load(Ordering::Relaxed)), (Ok(0), 1));
        assert_eq!(rests.await, 0, "it hears of it as soon as it is polled");
    }

    /// A driver panicked at each login of one kind of user, and the next login began immediately.
    #[tokio::test(start_paused = true)]
    async fn work_that_panics_is_begun_anew_after_a_pause() {
        let (flights, begin, begun) = flights();
        let fails = || {
            let work = begin();
            Box::pin(async move {
                assert!(work.await > 1, "as the test wants it");
                2usize
            }) as BoxFuture<'static, usize>
        };
        let since = tokio::time::Instant::now();
        assert_eq!(flights.join(fails).await, 2);
        assert_eq!(begun.load(Ordering::Relaxed), 3);
        assert!(since.elapsed() >= (WORK + BEAT) * 2, "{:?}", since.elapsed());
    }

    /// Work that two runtimes share must not depend on the one that began it.
    #[test]
    fn a_runtime_that_stands_still_or_has_ended_is_not_waited_for() {
        let build = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let (first, second) = (build().unwrap(), build().unwrap());
        let (flights, begin, begun) = second.block_on(async { flights() });
        first.block_on(async { assert!(is_pending(&mut Box::pin(flights.join(&begin))).await) });
        // Its task is not polled any more.
        assert_eq!(second.block_on(flights.join(&begin)), 1);
        first.block_on(async { assert!(is_pending(&mut Box::pin(flights.join(&begin))).await) });
        drop(first);
        assert_eq!(second.block_on(flights.join(&begin)), 3);
        assert_eq!(begun.load(Ordering::Relaxed), 4);
    }
}

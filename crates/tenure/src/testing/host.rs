//! `TestHost`: tokio's clock, paused or not, that a test moves on.

use std::{
    collections::BTreeMap,
    fmt, hint, io, mem,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tenure_core::{BoxFuture, Host, Moment, Start, locked};
use tokio::{
    runtime::Handle,
    time::{Instant, Sleep},
};

use crate::host::TokioHost;

/// A host for tests: its clock is tokio's, and goes on further when the test says so.
///
/// It begins at the time of this machine. What moves it depends on the test:
///
/// | The test | Time passes |
/// |---|---|
/// | `#[tokio::test(start_paused = true)]` | by itself while all tasks wait: the clock leaps to the next timer |
/// | `#[tokio::test]`, as one that talks to a real server | as it really does |
/// | either, by [`advance`](Self::advance) | step by step: what is due on the way happens on the way, as renewals do |
/// | either, by [`suspend`](Self::suspend) | in one leap: what was due on the way is late, and leases expire |
///
/// What runs on a thread of its own in production, as the renewals do, is a task of the test's runtime here, so that it
/// follows the same clock. Clones are the same clock.
///
/// ```
/// use std::time::Duration;
/// use tenure::{Loss, testing::TestStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = TestStore::new();
/// let guard = store.locker().mutex("orders/42").acquire().await?;
/// store.host().advance(Duration::from_secs(3600)).await;
/// assert!(guard.check().is_ok(), "renewed all the time");
/// store.host().suspend(Duration::from_secs(3600));
/// assert_eq!(guard.check().unwrap_err().cause(), Loss::Expired);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TestHost(Arc<Clock>);

struct Clock {
    /// The one that the test runs in: its clock is the one that is followed.
    runtime: Handle,
    began: (Instant, Moment),
    state: Mutex<State>,
    /// How often the time was asked for: a task that does something looks at the clock.
    looks: AtomicU64,
}

#[derive(Default)]
struct State {
    /// How much further than tokio's clock it is.
    moved: Duration,
    /// The waits, by when they are due and in the order in which they began.
    waiting: BTreeMap<DueWait, Waker>,
    came: u64,
}

type DueWait = (Duration, u64);

impl TestHost {
    /// A clock for the test that runs here.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[expect(clippy::new_without_default, reason = "a default does not panic outside of a runtime")]
    pub fn new() -> Self {
        let (runtime, began) = (Handle::current(), (Instant::now(), TokioHost.now()));
        Self(Arc::new(Clock { runtime, began, state: Mutex::default(), looks: AtomicU64::new(0) }))
    }

    /// Lets this much time pass, timer by timer: whatever is due on the way happens at its time, in order.
    ///
    /// Under tokio's paused clock this is `tokio::time::sleep`, so that the test's own timers go along. Otherwise this
    /// clock alone moves, and no real time passes: between two timers the tasks of a runtime with one thread, which is what
    /// `#[tokio::test]` makes, run until none of them looks at this clock any more. A task that waits for something else, such
    /// as a socket or a thread, finds afterwards that the time has passed.
    ///
    /// # Cancel safety
    /// Some of the time has passed.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub async fn advance(&self, by: Duration) {
        if is_paused() {
            return tokio::time::sleep(by).await;
        }
        let end = self.0.boot().saturating_add(by);
        loop {
            self.0.settle().await;
            // A loop of waits of no length must not stop the time.
            let soon = self.0.boot() + STEP;
            let next = self.0.next_due().map(|due| due.max(soon)).filter(|due| *due < end);
            self.0.leap_to(next.unwrap_or(end));
            if next.is_none() {
                return self.0.settle().await;
            }
        }
    }

    /// Leaps this far, as if the machine had slept or the process had been stopped: no task has run meanwhile, and
    /// whatever was due is late. A lease whose ttl is shorter has expired.
    pub fn suspend(&self, by: Duration) {
        self.0.leap_to(self.0.boot().saturating_add(by));
    }
}

impl fmt::Debug for TestHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestHost").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Host for TestHost {
    fn now(&self) -> Moment {
        self.0.looks.fetch_add(1, Ordering::Relaxed);
        self.0.now(self.0.state().moved)
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        Box::pin(TestTimer { clock: self.0.clone(), until: until.boot, place: None, sleep: None })
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.runtime.spawn(task);
    }

    fn spawn_apart(&self, _name: &'static str, start: Start) -> io::Result<()> {
        self.0.runtime.spawn(async { start().await });
        Ok(())
    }

    fn random(&self, bytes: &mut [u8]) {
        TokioHost.random(bytes);
    }
}

impl Clock {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn now(&self, moved: Duration) -> Moment {
        // Elsewhere tokio shows the clock of another runtime.
        let _there = self.runtime.enter();
        let (instant, moment) = self.began;
        moment + instant.elapsed().saturating_add(moved)
    }

    fn boot(&self) -> Duration {
        self.now(self.state().moved).boot
    }

    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn tokio_timer(&self, left: Duration) -> Pin<Box<Sleep>> {
        let _there = self.runtime.enter();
        Box::pin(tokio::time::sleep(left))
    }

    fn next_due(&self) -> Option<Duration> {
        self.state().waiting.first_key_value().map(|(due, _)| due.0)
    }

    /// Every wait looks at the clock again, in the order in which they are due.
    fn leap_to(&self, boot: Duration) {
        let waiting = {
            let mut state = self.state();
            let left = boot.saturating_sub(self.now(state.moved).boot);
            state.moved = state.moved.saturating_add(left);
            mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }

    /// Lets the tasks run until none has looked at the clock for some turns, or for many turns at most.
    async fn settle(&self) {
        for _ in 0..SETTLING {
            let before = self.looks.load(Ordering::Relaxed);
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            if self.looks.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

/// The shortest step: 1 ms, as tokio's timers have it.
const STEP: Duration = Duration::from_millis(1);

/// So many turns of the runtime are a look at whether anything happens.
const TURNS: usize = 16;

/// A task that never rests must not stop the time for ever.
const SETTLING: usize = 64;

/// A wait for a moment of this clock.
struct TestTimer {
    clock: Arc<Clock>,
    until: Duration,
    /// Its place among the waits.
    place: Option<DueWait>,
    /// Tokio's timer, and how far the clock had been moved when it was set.
    sleep: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Future for TestTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let timer = &mut *self;
        let moved = timer.wait(context.waker().clone());
        let left = timer.until.saturating_sub(timer.clock.now(moved).boot);
        // Not at the first look: a loop of waits that have ended must leave the other tasks their turn.
        if left.is_zero() && timer.sleep.is_some() {
            return Poll::Ready(());
        }
        // A clock that was moved reaches the moment earlier than tokio's timer knew.
        let sleep = match &mut timer.sleep {
            Some((then, sleep)) if *then == moved => sleep,
            sleep => &mut sleep.insert((moved, timer.clock.tokio_timer(left))).1,
        };
        sleep.as_mut().poll(context)
    }
}

impl TestTimer {
    /// Waits among the others from here on. How far the clock had been moved by then: no later move is missed.
    fn wait(&mut self, waker: Waker) -> Duration {
        let mut state = self.clock.state();
        let place = *self.place.get_or_insert_with(|| {
            state.came += 1;
            (self.until, state.came)
        });
        state.waiting.insert(place, waker);
        state.moved
    }
}

impl Drop for TestTimer {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.clock.state().waiting.remove(&place);
        }
    }
}

/// Whether tokio's clock stands while the machine's goes on.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
fn is_paused() -> bool {
    let (tokio, real) = (Instant::now(), std::time::Instant::now());
    while real.elapsed().is_zero() {
        hint::spin_loop();
    }
    tokio.elapsed().is_zero()
}

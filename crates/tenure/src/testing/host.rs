//! `TestHost`: tokio's clock, paused or not, which a test can advance.

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

/// A host for tests: its clock is tokio's, and a test can advance it further.
///
/// It begins at the time of this machine. How time passes depends on the test:
///
/// | The test | Time passes |
/// |---|---|
/// | `#[tokio::test(start_paused = true)]` | by itself while all tasks wait: the clock jumps to the next timer |
/// | `#[tokio::test]`, such as one with a real server | in real time |
/// | either, by [`advance`](Self::advance) | step by step: timers on the way fire at their time, such as renewals |
/// | either, by [`suspend`](Self::suspend) | in one jump: timers on the way fire late, and leases expire |
///
/// Work that has a separate thread in production, such as renewals, is a task of the test's runtime here, so that
/// it follows the same clock. Clones are the same clock.
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
    /// The runtime of the test, whose clock is followed.
    runtime: Handle,
    began: (Instant, Moment),
    state: Mutex<State>,
    /// How often the time was read: a task that does something reads the clock.
    looks: AtomicU64,
}

#[derive(Default)]
struct State {
    /// How far it is ahead of tokio's clock.
    moved: Duration,
    /// The waits, by the time when they are due and in the order in which they began.
    waiting: BTreeMap<DueWait, Waker>,
    came: u64,
}

type DueWait = (Duration, u64);

impl TestHost {
    /// A clock for the present test.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[expect(clippy::new_without_default, reason = "a default does not panic outside of a runtime")]
    pub fn new() -> Self {
        let (runtime, began) = (Handle::current(), (Instant::now(), TokioHost.now()));
        Self(Arc::new(Clock { runtime, began, state: Mutex::default(), looks: AtomicU64::new(0) }))
    }

    /// Lets this much time pass, timer by timer: each timer on the way fires at its time, in order.
    ///
    /// Under tokio's paused clock this is `tokio::time::sleep`, so the test's own timers advance too. Otherwise
    /// only this clock advances, and no real time passes. Between two timers the tasks of a runtime with one
    /// thread, as `#[tokio::test]` makes it, run until none of them reads this clock any more. A task that waits
    /// for a socket or a thread finds afterwards that the time has passed.
    ///
    /// # Cancel safety
    /// Part of the time may have passed.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub async fn advance(&self, by: Duration) {
        if is_paused() {
            return tokio::time::sleep(by).await;
        }
        let end = self.0.boot().saturating_add(by);
        loop {
            self.0.settle().await;
            // A loop of zero-length waits must not stop the time.
            let soon = self.0.boot() + STEP;
            let next = self.0.next_due().map(|due| due.max(soon)).filter(|due| *due < end);
            self.0.leap_to(next.unwrap_or(end));
            if next.is_none() {
                return self.0.settle().await;
            }
        }
    }

    /// Jumps ahead by this time, as after a suspend of the machine or a stop of the process: no task has run, and
    /// all timers on the way fire late. A lease with a shorter ttl has expired.
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
        // Outside the runtime, tokio shows the clock of another one.
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

    /// Every wait checks the clock again, in the order in which they are due.
    fn leap_to(&self, boot: Duration) {
        let waiting = {
            let mut state = self.state();
            let left = boot.saturating_sub(self.now(state.moved).boot);
            state.moved = state.moved.saturating_add(left);
            mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }

    /// Lets the tasks run until none has read the clock for some turns, or for a maximum of turns.
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

/// This many turns of the runtime show whether a task still acts.
const TURNS: usize = 16;

/// A task that never rests must not stop the time forever.
const SETTLING: usize = 64;

/// A wait for a moment of this clock.
struct TestTimer {
    clock: Arc<Clock>,
    until: Duration,
    /// Its place among the waits.
    place: Option<DueWait>,
    /// Tokio's timer, and the advance of the clock when it was set.
    sleep: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Future for TestTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let timer = &mut *self;
        let moved = timer.wait(context.waker().clone());
        let left = timer.until.saturating_sub(timer.clock.now(moved).boot);
        // Not on the first poll: a loop of waits that have ended must let other tasks run.
        if left.is_zero() && timer.sleep.is_some() {
            return Poll::Ready(());
        }
        // An advanced clock reaches the moment before tokio's timer does.
        let sleep = match &mut timer.sleep {
            Some((then, sleep)) if *then == moved => sleep,
            sleep => &mut sleep.insert((moved, timer.clock.tokio_timer(left))).1,
        };
        sleep.as_mut().poll(context)
    }
}

impl TestTimer {
    /// Joins the waits. Returns the advance of the clock at that time, so that no later advance is missed.
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

/// Whether tokio's clock is paused.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
fn is_paused() -> bool {
    let (tokio, real) = (Instant::now(), std::time::Instant::now());
    while real.elapsed().is_zero() {
        hint::spin_loop();
    }
    tokio.elapsed().is_zero()
}

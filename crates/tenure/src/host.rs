//! `TokioHost`: this machine's clocks, threads and randomness.

use std::{
    io,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tenure_core::{BoxFuture, Host, Moment, Start};
use tokio::{
    runtime::{Builder, Handle},
    time::Sleep,
};

/// The present machine, for production.
///
/// # Timing
/// `boot` is `CLOCK_BOOTTIME` on Linux, which counts suspend, and the monotonic clock elsewhere, which counts it on
/// Apple's systems. `wall` is the real-time clock. `std::time::Instant` is not used, because it stops during
/// suspend.
///
/// Time is real even under tokio's paused clock: a wait of 2 s takes 2 s of real time. A timeout that a test sets
/// around it with `tokio::time` may fire immediately. One warning reports this. Such a test needs the module
/// `testing`, of the feature of that name.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioHost;

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT: ClockId = ClockId::CLOCK_MONOTONIC;

fn read(clock: ClockId) -> Duration {
    // A clock before its epoch reads as zero: every deadline is far away then, and `boot` decides.
    clock_gettime(clock).map_or(Duration::ZERO, |t| {
        let (seconds, nanos) = (u64::try_from(t.tv_sec()), u32::try_from(t.tv_nsec()));
        Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
    })
}

impl Host for TokioHost {
    fn now(&self) -> Moment {
        Moment { boot: read(BOOT), wall: read(ClockId::CLOCK_REALTIME) }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        let left = move || until.boot.saturating_sub(read(BOOT));
        // Made on the first poll: a store that answers immediately needs no timer.
        Box::pin(async move {
            if !HAS_LEAPT.load(Ordering::Relaxed) {
                let wait = left();
                tokio::time::sleep(wait).await;
                // Two clocks of one machine differ by far less.
                if left() <= wait / 10 {
                    return;
                }
                on_leap();
            }
            real_sleep(left()).await;
        })
    }

    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn try_spawn(&self, task: BoxFuture<'static, ()>) -> Result<(), BoxFuture<'static, ()>> {
        match Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(task);
                Ok(())
            }
            Err(_) => Err(task),
        }
    }

    fn spawn_apart(&self, name: &'static str, start: Start) -> io::Result<()> {
        let (tell, built) = mpsc::channel();
        let run = move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    let _ = tell.send(Ok(()));
                    runtime.block_on(async { start().await });
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            }
        };
        thread::Builder::new().name(name.into()).spawn(run)?;
        // The wait is short: until the thread runs and has a runtime. Without the runtime, the thread could do
        // nothing.
        built.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended at once")))
    }

    fn random(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes)
            .expect("the system's random number generator fails: no owner can be made unique");
    }
}

/// Tokio's clock was seen to jump, as in a test that has paused it. From then on no runtime's clock is used for
/// waits: a wait that returns early again and again would keep a processor busy.
static HAS_LEAPT: AtomicBool = AtomicBool::new(false);

fn on_leap() {
    if !HAS_LEAPT.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "tokio's clock is paused, but locks go by the machine's clock: waits for them take real time, and time-outs of \
             tokio around them come early; in a test use `tenure::testing` (feature `testing`)"
        );
    }
}

/// A timer of a separate runtime, whose clock no test can pause.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
fn real_sleep(wait: Duration) -> Sleep {
    static TIMERS: OnceLock<Handle> = OnceLock::new();
    let timers = TIMERS.get_or_init(|| {
        let failed = "while tokio's clock is paused, waiting needs a thread, and none can be started";
        let runtime = Builder::new_current_thread().enable_time().build().expect(failed);
        let timers = runtime.handle().clone();
        let run = move || runtime.block_on(std::future::pending::<()>());
        thread::Builder::new().name("tenure-timers".into()).spawn(run).expect(failed);
        timers
    });
    let _there = timers.enter();
    tokio::time::sleep(wait)
}

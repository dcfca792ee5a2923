//! `TokioHost`: this machine's clocks, threads and randomness.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tenure_core::{BoxFuture, Host, Moment};

/// The machine we run on, for production.
///
/// # Timing
/// `boot` is `CLOCK_BOOTTIME` on Linux, which counts suspend, and the monotonic clock elsewhere, which counts it on
/// Apple's systems; `wall` is the real-time clock. `std::time::Instant` is not used: it stops in suspend (H2.1).
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
        // Made when it is first waited for: a store that answers at once costs no timer.
        Box::pin(async move { tokio::time::sleep(until.boot.saturating_sub(read(BOOT))).await })
    }

    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn spawn_apart(&self, name: &'static str, start: Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>) {
        let run = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(async { start().await }),
            Err(error) => tracing::error!(%error, name, "no runtime: leases will not be renewed"),
        };
        // Without a thread nothing is renewed, and every holder learns of the loss from the clock itself.
        if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(run) {
            tracing::error!(%error, name, "no thread: leases will not be renewed");
        }
    }

    fn random(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes)
            .expect("the system's random number generator fails: no owner can be made unique");
    }
}

//! `TokioHost`: this machine's clocks, threads and randomness.

use std::{io, sync::mpsc, thread, time::Duration};

use nix::time::{ClockId, clock_gettime};
use tenure_core::{BoxFuture, Host, Moment, Start};

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

    fn try_spawn(&self, task: BoxFuture<'static, ()>) -> Result<(), BoxFuture<'static, ()>> {
        match tokio::runtime::Handle::try_current() {
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
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
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
        // The wait is short: until the thread runs and has a runtime. Without one it could do nothing.
        built.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended at once")))
    }

    fn random(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes)
            .expect("the system's random number generator fails: no owner can be made unique");
    }
}

//! Waits for conditions, with deadlines that grow on a busy machine; and callers with a short timeout.

use std::{
    fmt::Debug,
    fs,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use tenure_core::{BackendHandle, LockName};
use tokio::time::{sleep, timeout};

use crate::proxy::Proxy;

/// How many times longer than on a quiet machine something may take here: it multiplies every timeout of the tests.
///
/// Measured at each call as the number of tasks that compete for one processor. It never becomes smaller: a test that
/// began with one factor must not be judged by a smaller one. `TENURE_TEST_SLOWNESS` multiplies the measured value.
pub fn slowness() -> u32 {
    static WORST: AtomicU32 = AtomicU32::new(1);
    let now = fs::read_to_string("/proc/loadavg").map_or(1, |load| crowding(&load, processors()));
    let now = now * named();
    WORST.fetch_max(now, Ordering::Relaxed).max(now)
}

/// How many times longer a lease of a test is here than on a quiet machine: at most [`slowness`], because tests wait
/// for its end.
pub fn stretch() -> u32 {
    let slowness = slowness();
    let most = if slowness < MAX { 2 } else { 3 };
    slowness.min(named().max(most))
}

/// The factor from `/proc/loadavg`: from the mean of the last minute, or from the tasks that run now if those are
/// more.
fn crowding(load: &str, processors: u32) -> u32 {
    let mut words = load.split_whitespace();
    let mean: f64 = words.next().and_then(|mean| mean.parse().ok()).unwrap_or(0.0);
    let running = words.nth(2).and_then(|tasks| tasks.split('/').next()?.parse().ok()).unwrap_or(0.0);
    let tasks: f64 = mean.max(running);
    // OK because it is clamped to a small number.
    (1.0 + tasks / f64::from(processors)).clamp(1.0, f64::from(MAX)) as u32
}

fn named() -> u32 {
    std::env::var("TENURE_TEST_SLOWNESS").ok().and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}

fn processors() -> u32 {
    thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1))
}

/// The largest factor that is measured: a test that fails must end.
const MAX: u32 = 8;

/// Waits until `condition` returns a value.
///
/// # Panics
/// If it returns none within `patience` times the [`slowness`]; the message says what was awaited.
#[track_caller]
pub fn eventually<T>(what: &str, patience: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience * slowness();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {:?} in vain until {what}", patience * slowness());
        thread::sleep(Duration::from_millis(5));
    }
}

/// Like [`eventually`], but async: the other tasks of the test run while it waits.
///
/// # Panics
/// If it returns none within `patience` times the [`slowness`]; the message says what was awaited.
pub async fn becomes<T>(what: &str, patience: Duration, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    becomes_ok(what, patience, async || condition().await.ok_or("nothing")).await
}

/// Like [`becomes`], for a condition that returns an error while it is not true.
///
/// # Panics
/// If it is not true within `patience` times the [`slowness`]; the message says what was awaited and what was seen
/// last.
pub async fn becomes_ok<T, E: Debug>(
    what: &str,
    patience: Duration,
    mut condition: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let began = Instant::now();
    loop {
        let last = match condition().await {
            Ok(found) => return found,
            Err(last) => last,
        };
        // Measured only now, because this reads a file, and a test that counts reads would see that. A condition that
        // is true immediately needs no measurement.
        let patience = patience * slowness();
        assert!(began.elapsed() < patience, "waited {patience:?} in vain until {what}; last: {last:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until `is_so` returns true, as [`becomes`] does.
///
/// # Panics
/// If it does not within `patience` times the [`slowness`]; the message says what was awaited.
pub async fn until(what: &str, patience: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    becomes(what, patience, async || is_so().await.then_some(())).await;
}

/// Waits for a future with a timeout, so that a test fails and does not hang.
///
/// # Panics
/// If the future is not ready within `patience` times the [`slowness`].
pub async fn in_time<F: Future>(what: &str, patience: Duration, future: F) -> F::Output {
    let patience = patience * slowness();
    timeout(patience, future).await.unwrap_or_else(|_| panic!("waited {patience:?} in vain until {what}"))
}

/// Two callers with a short timeout ask through a proxy and give up before the answers arrive, which they do later.
/// Then no caller asks for a second. Returns how many connections that costs.
///
/// # Panics
/// If the store does not answer.
pub async fn connections_that_impatience_costs(backend: &BackendHandle, proxy: &Proxy) -> u64 {
    let name = LockName::new("job").expect("a name");
    let asked = || backend.inspect(&name);
    let deadline = Instant::now() + Duration::from_secs(30) * slowness();
    while let Err(error) = asked().await {
        assert!(Instant::now() < deadline, "it does not answer: {error}");
    }
    let before = proxy.traffic();
    proxy.hold_replies();
    let (one, other) = tokio::join!(timeout(IMPATIENCE, asked()), timeout(IMPATIENCE, asked()));
    assert!(one.is_err() && other.is_err(), "both were given up");
    while proxy.traffic().held_replies == 0 {
        assert!(Instant::now() < deadline, "the server has not answered");
        sleep(Duration::from_millis(5)).await;
    }
    proxy.release();
    sleep(Duration::from_millis(1200)).await;
    asked().await.expect("an answer");
    proxy.traffic().accepted - before.accepted
}

/// Longer than the time after which an answer counts as slow, shorter than any timeout.
const IMPATIENCE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_is_the_tasks_for_each_processor() {
        for (load, processors, factor) in [
            ("0.20 0.31 0.40 1/212 4242", 2, 1),
            ("1.90 0.31 0.40 1/212 4242", 2, 1),
            ("2.00 0.31 0.40 1/212 4242", 2, 2),
            ("0.20 0.31 0.40 6/212 4242", 2, 4),
            ("2.00 0.31 0.40 1/212 4242", 1, 3),
            ("170.00 0.31 0.40 1/212 4242", 2, MAX),
            ("what is this", 2, 1),
        ] {
            assert_eq!(crowding(load, processors), factor, "{load} on {processors}");
        }
    }

    #[test]
    fn the_factor_never_becomes_smaller() {
        let factors: Vec<u32> = (0..100).map(|_| slowness()).collect();
        assert!(factors.is_sorted() && factors[0] >= 1, "{factors:?}");
    }

    #[tokio::test]
    #[should_panic(expected = "in vain until it is so")]
    async fn what_does_not_come_is_said() {
        until("it is so", Duration::from_millis(5), async || false).await;
    }
}

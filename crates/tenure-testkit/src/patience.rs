//! Waiting for a condition with a deadline, scaled by one factor; and callers with too little patience.

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

/// How many times longer than on a quiet machine something may take here: it multiplies every patience of the tests.
///
/// Measured at each call, as how many tasks want one processor, and never smaller than it was: what a test began with one factor it
/// does not judge by a smaller one. `TENURE_TEST_SLOWNESS` multiplies what was measured.
pub fn slowness() -> u32 {
    static WORST: AtomicU32 = AtomicU32::new(1);
    let now = fs::read_to_string("/proc/loadavg").map_or(1, |load| crowding(&load, processors()));
    let now = now * named();
    WORST.fetch_max(now, Ordering::Relaxed).max(now)
}

/// By how much a lease of a test is longer here than on a quiet machine: by less than [`slowness`], because tests wait for its end.
pub fn stretch() -> u32 {
    let slowness = slowness();
    let most = if slowness < MAX { 2 } else { 3 };
    slowness.min(named().max(most))
}

/// From what the kernel says: the mean of the last minute, or the tasks that run at this moment if those are more.
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

/// The largest factor that is measured: a test that fails must end at last.
const MAX: u32 = 8;

/// Waits until `condition` answers something.
///
/// # Panics
/// If it has not within `patience` times the [`slowness`]; says what was awaited.
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

/// As [`eventually`], for what has to be awaited: the tasks of the test go on meanwhile.
///
/// # Panics
/// If it has not within `patience` times the [`slowness`]; says what was awaited.
pub async fn becomes<T>(what: &str, patience: Duration, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    becomes_ok(what, patience, async || condition().await.ok_or("nothing")).await
}

/// As [`becomes`], of something that can be shown while it is not so.
///
/// # Panics
/// If it has not within `patience` times the [`slowness`]; says what was awaited, and what was seen last.
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
        // Measured only now: what is so at once costs no look at the machine, which a test that counts what is read would see.
        let patience = patience * slowness();
        assert!(began.elapsed() < patience, "waited {patience:?} in vain until {what}; last: {last:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until something is so, as [`becomes`] does.
///
/// # Panics
/// If it is not within `patience` times the [`slowness`]; says what was awaited.
pub async fn until(what: &str, patience: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    becomes(what, patience, async || is_so().await.then_some(())).await;
}

/// Waits for what was to come, so that a test fails and does not hang.
///
/// # Panics
/// If it has not come within `patience` times the [`slowness`].
pub async fn in_time<F: Future>(what: &str, patience: Duration, future: F) -> F::Output {
    let patience = patience * slowness();
    timeout(patience, future).await.unwrap_or_else(|_| panic!("waited {patience:?} in vain until {what}"))
}

/// Two callers with little patience ask through a proxy and give up before the answers come, which they do later. Then nobody asks
/// for a second. Answers how many connections that cost.
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

/// Longer than an answer takes to be called slow, shorter than any time-out.
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

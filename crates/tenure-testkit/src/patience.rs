//! Waiting for a condition with a deadline, scaled by one factor; and callers with too little patience.

use std::time::{Duration, Instant};

use tenure_core::{BackendHandle, LockName};
use tokio::time::{sleep, timeout};

use crate::proxy::Proxy;

/// Multiplies every patience in the tests: `TENURE_TEST_SLOWNESS`, default 1.
pub fn slowness() -> u32 {
    std::env::var("TENURE_TEST_SLOWNESS").ok().and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}

/// Waits until `condition` answers something.
///
/// # Panics
/// If it has not within `patience` times the [`slowness`]; says what was awaited.
pub fn eventually<T>(what: &str, patience: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience * slowness();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {patience:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
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

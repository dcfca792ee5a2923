//! Waiting for a condition with a deadline, scaled by one factor.

use std::time::{Duration, Instant};

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

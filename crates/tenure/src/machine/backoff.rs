//! `Backoff`: jittered, capped delays from a seed.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const CAP: Duration = Duration::from_secs(2);

/// Doubling delays from 20 ms to 2 s, each jittered down by up to a half.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    chance: u64,
    tries: u32,
}

impl Backoff {
    pub(crate) fn new(seed: u64) -> Self {
        Self { chance: seed | 1, tries: 0 }
    }

    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }

    pub(crate) fn delay(&mut self) -> Duration {
        let full = FIRST.saturating_mul(1 << self.tries.min(10)).min(CAP);
        self.tries = self.tries.saturating_add(1);
        // xorshift64: only has to differ between processes, whose seeds do.
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        let percent = u32::try_from(self.chance % 51).expect("BUG: below 51");
        full - full * percent / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_cap_and_never_beyond() {
        let mut backoff = Backoff::new(7);
        let delays: Vec<Duration> = (0..20).map(|_| backoff.delay()).collect();
        assert!(delays[0] <= FIRST && delays[0] >= FIRST / 2);
        assert!(delays.iter().all(|d| *d <= CAP));
        assert!(delays[19] >= CAP / 2);
        backoff.reset();
        assert!(backoff.delay() <= FIRST);
    }
}

//! Minting fencing tokens.

use tenure_core::{FencingToken, Moment};

use crate::state::{Ledger, micros};

impl Ledger {
    /// Mints up to `block` tokens; answers the first and how many.
    ///
    /// Floored with the wall clock in µs, so that a counter that was lost does not go back, and never ahead of it
    /// by more than a single token, so that the floor of a later life is never below what was granted (A10).
    pub(crate) fn mint(&mut self, now: Moment, block: u32) -> (FencingToken, u32) {
        let time = micros(now.wall);
        let count = time.saturating_sub(self.fence).clamp(1, u64::from(block.max(1)));
        self.fence = self.fence.saturating_add(count).max(time);
        let first = FencingToken::new(self.fence - count + 1);
        (first, u32::try_from(count).expect("BUG: count is clamped to a u32"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(wall_us: u64) -> Moment {
        Moment { boot: Duration::ZERO, wall: Duration::from_micros(wall_us) }
    }

    /// L2, hazard 19: a step back of the clock does not take tokens back.
    #[test]
    fn tokens_grow_while_the_clock_stands_still_or_steps_back() {
        let mut ledger = Ledger::new(0);
        let tokens = [1000, 1000, 10, 0, 2000].map(|t| ledger.mint(at(t), 1).0.get());
        assert_eq!(tokens, [1000, 1001, 1002, 1003, 2000]);
    }

    /// Model `floor.block 4 not clamped`: a block must not run ahead of the clock.
    #[test]
    fn a_block_is_clamped_to_the_clock_and_lies_above_every_earlier_token() {
        let mut ledger = Ledger::new(997);
        assert_eq!(ledger.mint(at(1000), 8), (FencingToken::new(998), 3));
        assert_eq!(ledger.mint(at(1000), 8), (FencingToken::new(1001), 1));
        assert_eq!(ledger.mint(at(5000), 8), (FencingToken::new(4993), 8));
        assert_eq!(ledger.fence(), 5000);
    }
}

//! Minting fencing tokens.

use tenure_core::{FencingToken, Moment, Variant};

use crate::{
    rules::Floor,
    state::{Ledger, micros},
};

impl Ledger {
    /// Mints up to `block` tokens; answers the first and how many.
    ///
    /// Floored, so that a counter that was lost does not go back, and never ahead of the clock by more than a single
    /// token, so that the floor of a later life is never below what was granted (A10).
    pub(crate) fn mint(&mut self, now: Moment, floor: Floor, block: u32) -> (FencingToken, u32) {
        let time = micros(now.wall);
        let floor = match floor {
            _ if Variant::CountersLost.is_on() => 0,
            Floor::Clock => time,
            Floor::Above(counted) => {
                self.fence = self.fence.max(counted);
                if Variant::FloorAtGateOnly.is_on() { 0 } else { time }
            }
            Floor::Count(floor) if self.fence == 0 => self.skip_to(floor.max(time)),
            Floor::Count(floor) if Variant::FloorAtGateOnly.is_on() => self.skip_to(floor),
            Floor::Count(floor) => self.skip_to(floor.max(time - time % micros(Floor::GRAIN))),
        };
        let count = time.saturating_sub(self.fence).clamp(1, u64::from(block.max(1)));
        self.fence = self.fence.saturating_add(count).max(floor);
        let first = FencingToken::new(self.fence - count + 1);
        (first, u32::try_from(count).expect("BUG: count is clamped to a u32"))
    }
}

impl Ledger {
    /// The next token is `floor` at least, also if it is the first of a block.
    fn skip_to(&mut self, floor: u64) -> u64 {
        self.fence = self.fence.max(floor.saturating_sub(1));
        floor
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
        let tokens = [1000, 1000, 10, 0, 2000].map(|t| ledger.mint(at(t), Floor::Clock, 1).0.get());
        assert_eq!(tokens, [1000, 1001, 1002, 1003, 2000]);
    }

    /// Model `floor.block 4 not clamped`: a block must not run ahead of the clock.
    #[test]
    fn a_block_is_clamped_to_the_clock_and_lies_above_every_earlier_token() {
        let mut ledger = Ledger::new(997);
        assert_eq!(ledger.mint(at(1000), Floor::Clock, 8), (FencingToken::new(998), 3));
        assert_eq!(ledger.mint(at(1000), Floor::Clock, 8), (FencingToken::new(1001), 1));
        assert_eq!(ledger.mint(at(5000), Floor::Clock, 8), (FencingToken::new(4993), 8));
        assert_eq!(ledger.fence(), 5000);
    }

    /// L2: nodes whose clocks differ count alike once they agree, and a counter that was lost starts above its past.
    #[test]
    fn a_node_of_a_quorum_counts_from_what_it_has_and_never_below_its_floor() {
        let mut ledger = Ledger::new(0);
        let tokens = [(1000, 0), (2000, 0), (3000, 0), (3000, 2500), (3000, 2500)];
        let tokens = tokens.map(|(t, floor)| ledger.mint(at(t), Floor::Count(floor), 1).0.get());
        assert_eq!(tokens, [1000, 1001, 1002, 2500, 2501]);
        assert_eq!(Ledger::new(0).mint(at(900), Floor::Count(2600), 1).0.get(), 2600);
        // A block as well: its first token is no smaller than the floor.
        assert_eq!(Ledger::new(0).mint(at(900), Floor::Count(2600), 8), (FencingToken::new(2600), 1));
        assert_eq!(Ledger::new(500).mint(at(900), Floor::Count(700), 8), (FencingToken::new(700), 8));
    }
}

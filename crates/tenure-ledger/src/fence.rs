//! Minting fencing tokens.

use tenure_core::{FencingToken, Moment};

use crate::{
    error::LedgerError,
    rules::Floor,
    state::{Ledger, micros},
};

impl Ledger {
    /// Mints up to `block` tokens; answers the first one and their number.
    ///
    /// Tokens are never below the floor, so that a lost counter does not go back. They are never ahead of the clock by
    /// more than one token, so that after a loss the floor is not below a granted token (A10).
    ///
    /// # Errors
    /// [`LedgerError::TokensSpent`]; then nothing was changed.
    pub(crate) fn mint(
        &mut self,
        now: Moment,
        floor: Floor,
        block: u32,
    ) -> Result<(FencingToken, u32), LedgerError> {
        let time = micros(now.wall);
        // The last token before, and the least that the last one may be. A block begins above a floor of `Count`.
        let skip_to = |floor: u64| (self.fence.max(floor.saturating_sub(1)), floor);
        let (before, least) = match floor {
            Floor::Clock => (self.fence, time),
            Floor::Above(counted) => (self.fence.max(counted), time),
            Floor::Count(floor) if self.fence == 0 => skip_to(floor.max(time)),
            Floor::Count(floor) => skip_to(floor.max(time - time % micros(Floor::GRAIN))),
        };
        let count = time.saturating_sub(before).clamp(1, u64::from(block.max(1)));
        let last = before.saturating_add(count).max(least);
        if last > FencingToken::MAX.get() {
            return Err(LedgerError::TokensSpent);
        }
        self.fence = last;
        let first = FencingToken::new(last - count + 1);
        Ok((first, u32::try_from(count).expect("BUG: count is clamped to a u32")))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(wall_us: u64) -> Moment {
        Moment { boot: Duration::ZERO, wall: Duration::from_micros(wall_us) }
    }

    fn mint(ledger: &mut Ledger, wall_us: u64, floor: Floor, block: u32) -> (u64, u32) {
        let (first, count) = ledger.mint(at(wall_us), floor, block).unwrap();
        (first.get(), count)
    }

    /// L2, hazard 19: a step back of the clock does not take tokens back.
    #[test]
    fn tokens_grow_while_the_clock_stands_still_or_steps_back() {
        let mut ledger = Ledger::new(0);
        let tokens = [1000, 1000, 10, 0, 2000].map(|t| mint(&mut ledger, t, Floor::Clock, 1).0);
        assert_eq!(tokens, [1000, 1001, 1002, 1003, 2000]);
    }

    /// Model `floor.block 4 not clamped`: a block must not run ahead of the clock.
    #[test]
    fn a_block_is_clamped_to_the_clock_and_lies_above_every_earlier_token() {
        let mut ledger = Ledger::new(997);
        assert_eq!(mint(&mut ledger, 1000, Floor::Clock, 8), (998, 3));
        assert_eq!(mint(&mut ledger, 1000, Floor::Clock, 8), (1001, 1));
        assert_eq!(mint(&mut ledger, 5000, Floor::Clock, 8), (4993, 8));
        assert_eq!(ledger.fence(), 5000);
    }

    /// L2: nodes whose clocks differ count alike once they agree, and a counter that was lost starts above its past.
    #[test]
    fn a_node_of_a_quorum_counts_from_what_it_has_and_never_below_its_floor() {
        let mut ledger = Ledger::new(0);
        let tokens = [(1000, 0), (2000, 0), (3000, 0), (3000, 2500), (3000, 2500)];
        let tokens = tokens.map(|(t, floor)| mint(&mut ledger, t, Floor::Count(floor), 1).0);
        assert_eq!(tokens, [1000, 1001, 1002, 2500, 2501]);
        assert_eq!(mint(&mut Ledger::new(0), 900, Floor::Count(2600), 1).0, 2600);
        // A block as well: its first token is no smaller than the floor.
        assert_eq!(mint(&mut Ledger::new(0), 900, Floor::Count(2600), 8), (2600, 1));
        assert_eq!(mint(&mut Ledger::new(500), 900, Floor::Count(700), 8), (700, 8));
    }

    /// L2: a server that was put back to an earlier state counted the same tokens again, under the same run and
    /// history. Only
    /// its clock went on, so no token is smaller than the clock at its mint, with a quorum's nodes than its last grain.
    #[test]
    fn a_counter_that_was_put_back_repeats_no_token() {
        let grain = micros(Floor::GRAIN);
        for floor in [Floor::Clock, Floor::Above(20), Floor::Count(20)] {
            let snapshot = Ledger::new(10);
            let [first, second] =
                [7 * grain + 3, 8 * grain].map(|t| mint(&mut snapshot.clone(), t, floor, 8).0);
            assert!(first >= 7 * grain - 8 && second > first, "{floor:?}: {first}, then {second}");
        }
        let mut node = Ledger::new(10);
        let tokens = [7 * grain + 3, 7 * grain + 9, 8 * grain - 1, 8 * grain].map(|t| {
            let (first, _) = mint(&mut node, t, Floor::Count(20), 1);
            first - 7 * grain
        });
        assert_eq!(tokens, [0, 1, 2, grain], "within a grain, nodes count alike");
    }

    /// L2: at 2^53 the same number came again and again, for a store that keeps it as a double cannot count on.
    #[test]
    fn at_the_end_of_what_can_be_counted_a_mint_is_refused_and_changes_nothing() {
        let max = FencingToken::MAX.get();
        for floor in [Floor::Clock, Floor::Above(max - 1), Floor::Count(0)] {
            let mut ledger = Ledger::new(max - 1);
            assert_eq!(mint(&mut ledger, 1000, floor, 8).0, max);
            assert!(matches!(ledger.mint(at(1000), floor, 1), Err(LedgerError::TokensSpent)));
            assert!(matches!(Ledger::new(0).mint(at(max + 1), floor, 1), Err(LedgerError::TokensSpent)));
            assert_eq!(ledger.fence(), max);
        }
    }
}

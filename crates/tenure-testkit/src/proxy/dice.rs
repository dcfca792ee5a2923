//! `Dice`: random numbers that a seed repeats.

use std::{ops::RangeInclusive, time::Duration};

/// A small generator (SplitMix64, <https://prng.di.unimi.it/splitmix64.c>).
#[derive(Clone, Debug)]
pub(crate) struct Dice {
    state: u64,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Separate dice, whose rolls do not depend on how often these are rolled.
    pub(crate) fn branch(&self, number: u64) -> Self {
        let mut branch = Self { state: self.state ^ number.wrapping_mul(0xd134_2543_de82_ef95) };
        Self { state: branch.roll() }
    }

    fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A duration of this range, to the µs.
    pub(crate) fn within(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let [least, most] = [range.start(), range.end()].map(|d| u64::try_from(d.as_micros()));
        let (Ok(least), Ok(most)) = (least, most) else { return *range.end() };
        let choices = most.saturating_sub(least) + 1;
        Duration::from_micros(least + self.roll() % choices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_every_roll_and_every_branch() {
        let (from, to) = (Duration::from_millis(3), Duration::from_millis(9));
        let rolls =
            |mut dice: Dice| -> Vec<Duration> { (0..50).map(|_| dice.within(&(from..=to))).collect() };
        let first = rolls(Dice::new(7));
        assert_eq!(first, rolls(Dice::new(7)));
        assert_ne!(first, rolls(Dice::new(8)));
        assert!(first.iter().all(|d| (from..=to).contains(d)));
        assert_eq!(rolls(Dice::new(7).branch(1)), rolls(Dice::new(7).branch(1)));
        assert_ne!(rolls(Dice::new(7).branch(1)), rolls(Dice::new(7).branch(2)));
        assert_eq!(Dice::new(1).within(&(to..=to)), to);
    }
}

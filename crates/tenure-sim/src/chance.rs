//! `Chance`: the seeded generator from which every choice of a world is drawn.

use std::time::Duration;

/// A splitmix64 generator: fifteen lines, no state but one number, the same everywhere.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The choices that belong to this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// Another generator, whose choices do not depend on how many are drawn here afterwards.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; zero if that is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias is below 2^-32 for the bounds that are used here.
        self.bits().checked_rem(bound).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// A position in a list of this length.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("BUG: below a length")
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// True `share` times in a thousand.
    pub fn per_mille(&mut self, share: u64) -> bool {
        self.below(1000) < share
    }

    /// A duration between two numbers of milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.between(low * 1000, high * 1000))
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let bits = self.bits().to_le_bytes();
            chunk.copy_from_slice(&bits[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence_and_forks_are_others() {
        let draw = |mut chance: Chance| [(); 4].map(|()| chance.bits());
        assert_eq!(draw(Chance::new(7)), draw(Chance::new(7)));
        assert_ne!(draw(Chance::new(7)), draw(Chance::new(8)));
        let mut chance = Chance::new(7);
        let (one, other) = (chance.fork(), chance.fork());
        assert_ne!(draw(one), draw(other));
    }

    #[test]
    fn bounds_are_kept() {
        let mut chance = Chance::new(1);
        for _ in 0..1000 {
            assert!((3..=5).contains(&chance.between(3, 5)));
            assert!(chance.below(4) < 4);
        }
        assert_eq!(chance.below(0), 0);
    }
}

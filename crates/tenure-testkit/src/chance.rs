//! `Chance`: the random choices of a test, which belong to its seed.

/// xorshift64: a test's choices only have to be repeatable.
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    /// The choices of this seed.
    pub fn new(seed: u64) -> Self {
        // Zero has no successor.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1))
    }

    /// A number from 0 and below `n`.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let bound = u64::try_from(n).expect("BUG: a usize has 64 bits at most");
        usize::try_from(self.0 % bound).expect("BUG: it is below a usize")
    }
}

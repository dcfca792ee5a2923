//! Rounds in which every program has its turn, so that all meet the same noise; and how far what they say spreads.

/// What every program answered in every round.
#[derive(Debug)]
pub struct Rounds<T>(Vec<Vec<T>>);

/// A median, and the noise around it.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The smallest number of all rounds.
    pub least: f64,
    /// Of the round in the middle, by size.
    pub median: f64,
    /// The largest number of all rounds.
    pub most: f64,
}

impl<T> Rounds<T> {
    /// Runs `rounds` rounds of `programs` programs; a program later in one round is earlier in the next.
    pub fn measure(rounds: usize, programs: usize, mut turn: impl FnMut(usize) -> T) -> Self {
        let round = |first: usize| {
            let mut turns: Vec<_> = (0..programs)
                .map(|at| (first + at) % programs)
                .map(|program| (program, turn(program)))
                .collect();
            turns.sort_by_key(|(program, _)| *program);
            turns.into_iter().map(|(_, turn)| turn).collect()
        };
        Self((0..rounds).map(round).collect())
    }

    /// A number of each round, which is given as the answers of all programs.
    pub fn spread(&self, number: impl Fn(&[T]) -> f64) -> Spread {
        let mut numbers: Vec<f64> = self.0.iter().map(|round| number(round)).collect();
        numbers.sort_by(f64::total_cmp);
        Spread { least: numbers[0], median: numbers[numbers.len() / 2], most: numbers[numbers.len() - 1] }
    }
}

/// Jain's index: 1 if all got the same, 1/n if one got everything.
pub fn jain(counts: &[u64]) -> f64 {
    let (sum, squares) = counts.iter().fold((0.0, 0.0), |(s, q), &n| (s + n as f64, q + (n as f64).powi(2)));
    sum * sum / (counts.len() as f64 * squares)
}

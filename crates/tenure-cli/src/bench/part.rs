//! `Part`: one question that the bench asks of a store, and its answer.

use std::time::{Duration, Instant};

use crate::bench::tally::Tally;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A look at a free lock.
    RoundTrip,
    /// So many tasks of one connection, each with a lock of its own, acquire and release.
    Cycle(usize),
    /// So many waiters, each with a connection of its own, pass one lock on at once.
    Change(usize),
    /// The same, but each holds it for a moment.
    Hold(usize),
}

/// How long a waiter of [`Part::Hold`] holds; the timer may make it twice as long.
pub(crate) const HOLD: Duration = Duration::from_millis(1);

/// With fewer turns per waiter, an incomplete last round counts too much.
const ENOUGH: u64 = 10;

/// The result of a part.
pub(crate) struct Answer {
    pub(crate) part: Part,
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) worst: Duration,
    /// For parts in which tasks wait for each other.
    pub(crate) sharing: Option<Sharing>,
}

/// How waiters shared one lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sharing {
    /// From one holder to the next.
    pub(crate) change: Duration,
    /// Jain's index of fairness: 1 if all had as many turns, 1/n if one had them all.
    pub(crate) jain: f64,
    /// The number of waiters without a turn while another one had two.
    pub(crate) starved: usize,
    /// The turns were too few to judge by.
    pub(crate) is_hasty: bool,
}

impl Part {
    /// Every part, in order.
    pub(crate) fn all(waiters: usize) -> Vec<Self> {
        let mut parts = vec![Self::RoundTrip, Self::Cycle(1), Self::Cycle(64), Self::Change(2)];
        parts.extend([Self::Change(waiters), Self::Hold(waiters)]);
        parts.dedup();
        parts
    }

    pub(crate) fn tasks(self) -> usize {
        match self {
            Self::RoundTrip => 1,
            Self::Cycle(tasks) | Self::Change(tasks) | Self::Hold(tasks) => tasks,
        }
    }

    /// For people.
    pub(crate) fn title(self) -> String {
        match self {
            Self::RoundTrip => "round trip".into(),
            Self::Cycle(1) => "cycle".into(),
            Self::Cycle(tasks) => format!("cycle, {tasks} tasks"),
            Self::Change(waiters) => format!("change of owner, {waiters} waiters"),
            Self::Hold(waiters) => format!("{waiters} waiters hold {} ms", HOLD.as_millis()),
        }
    }

    /// For programs.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::RoundTrip => "round_trip",
            Self::Cycle(_) => "cycle",
            Self::Change(_) => "change_of_owner",
            Self::Hold(_) => "hold",
        }
    }

    /// The times that are shown.
    pub(crate) fn timed(self) -> &'static str {
        match self {
            Self::RoundTrip => "request",
            Self::Cycle(_) => "cycle",
            Self::Change(_) | Self::Hold(_) => "wait",
        }
    }

    /// Whether tasks wait for each other.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Change(_) | Self::Hold(_))
    }
}

impl Answer {
    /// What the tasks did since `began`.
    pub(crate) fn new(part: Part, began: Instant, tallies: &[Tally]) -> Self {
        let mut all = Tally::new(began);
        for tally in tallies {
            all.merge(tally);
        }
        // A clock that does not move would make it infinite.
        let lasted = all.lasted(began).max(Duration::from_nanos(1));
        let turns: Vec<u64> = tallies.iter().map(Tally::in_time).collect();
        let sharing = part.is_shared().then(|| Sharing {
            change: lasted.div_f64(all.count().max(1) as f64),
            jain: jain(&turns),
            starved: starved(&turns),
            is_hasty: all.in_time() < ENOUGH * turns.len() as u64,
        });
        Self {
            part,
            per_second: all.count() as f64 / lasted.as_secs_f64(),
            p50: all.percentile(50),
            p99: all.percentile(99),
            worst: all.worst(),
            sharing,
        }
    }
}

/// A round in which some waiters had no turn yet does not count as starving.
fn starved(turns: &[u64]) -> usize {
    let had_two = turns.iter().any(|turns| *turns > 1);
    if had_two { turns.iter().filter(|turns| **turns == 0).count() } else { 0 }
}

/// (Σx)² / (n Σx²); 0 if there was no turn.
fn jain(turns: &[u64]) -> f64 {
    let (sum, squares) = turns.iter().fold((0.0, 0.0), |(sum, squares), turns| {
        let turns = *turns as f64;
        (sum + turns, squares + turns * turns)
    });
    if squares == 0.0 { 0.0 } else { sum * sum / (turns.len() as f64 * squares) }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any moment will do")]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_if_all_had_as_many_turns() {
        let close =
            |turns: &[u64], expected: f64| assert!((jain(turns) - expected).abs() < 1e-9, "{turns:?}");
        close(&[7, 7, 7], 1.0);
        close(&[9, 0, 0], 1.0 / 3.0);
        close(&[1, 3], 0.8);
        close(&[0, 0], 0.0);
    }

    #[test]
    fn in_a_first_round_nobody_has_starved_yet() {
        assert_eq!((starved(&[1, 0, 1]), starved(&[2, 0, 1]), starved(&[2, 2])), (0, 1, 0));
    }

    #[test]
    fn two_waiters_are_asked_of_once() {
        assert_eq!(Part::all(2).len(), 5);
        assert_eq!(Part::all(3).len(), 6);
    }

    #[test]
    fn who_has_to_wait_until_the_time_is_over_has_starved() {
        let began = Instant::now();
        let (over, ms) = (began + Duration::from_millis(20), Duration::from_millis);
        let mut tallies = [Tally::new(over), Tally::new(over)];
        for at in 1..=20 {
            tallies[0].add(began, began + ms(at));
        }
        tallies[1].add(began, began + ms(21));
        let answer = Answer::new(Part::Change(2), began, &tallies);
        let expected = Sharing { change: ms(1), jain: 0.5, starved: 1, is_hasty: false };
        assert_eq!(answer.sharing, Some(expected));
        assert!((answer.per_second - 1000.0).abs() < 1e-6 && answer.worst == ms(21));
        assert!(Answer::new(Part::Cycle(2), began, &tallies).sharing.is_none());
    }
}

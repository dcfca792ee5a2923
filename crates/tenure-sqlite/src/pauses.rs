//! `Pauses`: how long to wait between two looks for hints.

use std::time::Duration;

use tenure_core::Audience;
use tenure_ledger::Rules;

/// Added to the longest pause for each place ahead: one that waits alone is told soon, and a thousand cost little.
const PER_PLACE: Duration = Duration::from_millis(5);
/// How long a change of owner takes, as long as none was seen: a short time, so that the first look is not too late.
const FAST_CHANGE: Duration = Duration::from_millis(1);
/// No change of owner takes less.
const FASTEST_CHANGE: Duration = Duration::from_micros(50);

/// The pauses between two looks.
pub(crate) struct Pauses {
    first: Duration,
    longest: Duration,
    /// Added to the longest for each place ahead.
    per_place: Duration,
    /// The longest of all, near the front and far from it: who is handed the lock must find that out with time left to
    /// enter.
    near: Duration,
    far: Duration,
    far_from: usize,
    pause: Duration,
    per_change: Duration,
    /// Between two looks for touches of the file.
    rest: Duration,
}

impl Pauses {
    pub(crate) fn of(audience: Audience, rules: &Rules) -> Self {
        let ms = Duration::from_millis;
        let (first, longest, per_place) = match audience {
            Audience::Waiters => (ms(1), ms(25), PER_PLACE),
            // A holder is robbed once in a blue moon, and a leader changes as rarely.
            Audience::Holders | Audience::Observers => (ms(100), ms(100), ms(0)),
        };
        Self {
            first,
            longest,
            per_place,
            near: longest.max(rules.claim_ttl / 4),
            far: longest.max(rules.claim_ttl),
            far_from: rules.far.unwrap_or(usize::MAX),
            pause: first,
            per_change: FAST_CHANGE,
            rest: Duration::ZERO,
        }
    }

    /// The longest pause of one with so many ahead.
    pub(crate) fn longest(&self, ahead: usize) -> Duration {
        let more = self.per_place.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX));
        let bound = if ahead < self.far_from { self.near } else { self.far };
        self.longest.saturating_add(more).min(bound)
    }

    /// There was something to hear, or nobody listened for a while.
    pub(crate) fn begin(&mut self) -> Duration {
        self.pause = self.first;
        self.pause
    }

    /// How long touches of the file are worth no look, after one that was made for such a touch: none, if there was something to see.
    pub(crate) fn rest(&mut self, is_worth_it: bool) -> Duration {
        self.rest =
            if is_worth_it { Duration::ZERO } else { (self.rest * 2).clamp(self.first, self.longest(0)) };
        self.rest
    }

    /// Nothing has moved since the last look.
    pub(crate) fn lengthen(&mut self, ahead: usize) -> Duration {
        self.pause = (self.pause * 2).clamp(self.first, self.longest(ahead));
        self.pause
    }

    /// So many left the front in that time. The next look is half way to the own turn: so the looks while a queue moves are
    /// as many as the logarithm of the places ahead.
    pub(crate) fn follow(&mut self, ahead: usize, left: usize, time: Duration) -> Duration {
        if let Some(per_change) = time.checked_div(u32::try_from(left).unwrap_or(u32::MAX)) {
            // One stall says little about the next change: who believed it would look too late, and be the next stall.
            self.per_change = per_change.min(self.per_change * 2).max(FASTEST_CHANGE);
        }
        let half = self.per_change.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX)) / 2;
        self.pause = half.clamp(self.first, self.longest(ahead));
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn pauses() -> Pauses {
        Pauses::of(Audience::Waiters, &Rules { far: Some(32), ..Rules::default() })
    }

    /// L6: whoever is handed the lock has at least half of the time in which it must enter, when it finds that out.
    #[test]
    fn no_pause_is_longer_than_a_turn_can_wait() {
        let pauses = pauses();
        for ahead in 0..10_000 {
            let bound = if ahead < 32 { ms(125) } else { ms(500) };
            assert!(pauses.longest(ahead) <= bound, "{ahead}");
        }
        assert_eq!([0, 1, 10, 50, 4000].map(|ahead| pauses.longest(ahead)), [25, 30, 75, 275, 500].map(ms));
    }

    /// L6: whoever has one ahead for each change that comes looks in time, and not for each change.
    #[test]
    fn a_queue_that_moves_is_looked_at_as_often_as_its_length_has_digits() {
        for per_change in [1, 2, 10] {
            let (mut pauses, mut ahead, mut looks) = (pauses(), 400_usize, 0);
            let mut pause = pauses.follow(ahead, 0, ms(0));
            while ahead > 0 {
                let left = usize::try_from(pause.as_millis()).unwrap() / per_change;
                ahead = ahead.checked_sub(left).expect("it looks before its turn has come");
                pause = if left == 0 { pauses.lengthen(ahead) } else { pauses.follow(ahead, left, pause) };
                looks += 1;
            }
            assert!(looks < 60, "{looks} looks at {per_change} ms for each change");
        }
    }

    /// One stall of a queue was taken for its pace: the next look came too late for the own turn, which was the next stall.
    #[test]
    fn a_stall_is_not_taken_for_the_pace() {
        let mut pauses = pauses();
        pauses.follow(20, 10, ms(10));
        assert_eq!(pauses.follow(20, 2, ms(100)), ms(20), "half of 20 places at twice the pace");
        assert_eq!(pauses.follow(20, 10, ms(10)), ms(10));
    }

    /// Others that change their locks all the time cost no more looks than the poll.
    #[test]
    fn touches_that_are_for_others_are_minded_ever_more_rarely() {
        let mut pauses = pauses();
        let rests = [false, false, false, false, false, false, true, false].map(|worth| pauses.rest(worth));
        assert_eq!(rests, [1, 2, 4, 8, 16, 25, 0, 1].map(ms));
    }
}

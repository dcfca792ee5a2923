//! `Pauses`: how long to wait between two looks for hints.

use std::time::Duration;

use tenure_core::Audience;
use tenure_ledger::Rules;

/// Added to the longest pause for each place ahead: one that waits alone is told soon, and a thousand cost little.
const PER_PLACE: Duration = Duration::from_millis(5);
/// How long a change of owner takes, as long as none was seen: a short time, so that the first look is not too late.
const FAST_CHANGE: Duration = Duration::from_millis(1);

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
}

impl Pauses {
    pub(crate) fn of(audience: Audience, rules: &Rules) -> Self {
        let ms = Duration::from_millis;
        let (first, longest, per_place) = match audience {
            Audience::Waiters => (ms(1), ms(25), PER_PLACE),
            // A holder is robbed once in a blue moon.
            Audience::Holders => (ms(100), ms(100), ms(0)),
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

    /// Nothing has moved since the last look.
    pub(crate) fn lengthen(&mut self, ahead: usize) -> Duration {
        self.pause = (self.pause * 2).clamp(self.first, self.longest(ahead));
        self.pause
    }

    /// So many left the front in that time. The next look is half way to the own turn: so the looks while a queue moves are
    /// as many as the logarithm of the places ahead.
    pub(crate) fn follow(&mut self, ahead: usize, left: usize, time: Duration) -> Duration {
        if let Some(per_change) = time.checked_div(u32::try_from(left).unwrap_or(u32::MAX)) {
            self.per_change = per_change;
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
}

//! `Turns`: how often one lease may be passed on inside its process before the store lets others in.

use std::time::Duration;

use tenure_core::{FencingToken, Grant, Moment};

/// Local turns of one lease, after its first holder: 32. Two requests are then shared by 33 holders.
const TURNS_MAX: u32 = 32;
/// No turn is passed later than this after the lease was acquired: 10 ms. A waiter elsewhere is passed for no longer, and
/// then for the hold that was begun.
const WITHIN: Duration = Duration::from_millis(10);

/// How many tokens to ask for, with so many waiters behind: one for each that may have a turn.
pub(crate) fn block_for(behind: usize) -> u32 {
    1 + u32::try_from(behind).unwrap_or(TURNS_MAX).min(TURNS_MAX)
}

/// The local turns of one lease.
///
/// * Each turn has a token of the block that was granted, and no other has it (H5.2, L2).
/// * Turns and time count from the acquisition, whatever is renewed meanwhile (H5.5).
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    next: FencingToken,
    left: u32,
    until: Moment,
}

impl Turns {
    /// Of a grant that was acquired now; `None` if it has a token for its first holder only.
    pub(crate) fn of(now: Moment, grant: &Grant) -> Option<Self> {
        let left = grant.block.saturating_sub(1).min(TURNS_MAX);
        let next = FencingToken::new(grant.token.get() + 1);
        (left > 0).then_some(Self { next, left, until: now + WITHIN })
    }

    /// Until when it is worth waiting for the holder: it passes the lease on, or, after the last turn, gives it back at once.
    pub(crate) fn open_until(&self, now: Moment) -> Option<Moment> {
        (!self.until.is_over(now)).then_some(self.until)
    }

    /// The token of the next turn, if there is one.
    pub(crate) fn next(&mut self, now: Moment) -> Option<FencingToken> {
        self.open_until(now).filter(|_| self.left > 0)?;
        let token = self.next;
        self.next = FencingToken::new(token.get() + 1);
        self.left -= 1;
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{LockName, OwnerId, ProcessId};

    use super::*;

    fn at(millis: u64) -> Moment {
        let time = Duration::from_millis(millis);
        Moment { boot: time, wall: time }
    }

    fn grant(block: u32) -> Grant {
        Grant {
            name: LockName::new("a").unwrap(),
            owner: OwnerId::from_random(ProcessId::from_random([1; 8]), [2; 16]),
            token: FencingToken::new(100),
            block,
            ttl: Duration::from_secs(10),
        }
    }

    /// H5.2: never more tokens than were granted, each once, and all above the first holder's.
    #[test]
    fn there_are_as_many_turns_as_tokens_of_the_block() {
        assert!(Turns::of(at(0), &grant(1)).is_none());
        let mut turns = Turns::of(at(0), &grant(4)).unwrap();
        let tokens: Vec<u64> = std::iter::from_fn(|| turns.next(at(1))).map(FencingToken::get).collect();
        assert_eq!(tokens, [101, 102, 103]);
    }

    /// H5.5: a block that is larger does not make more turns, and time does not begin anew with a turn.
    #[test]
    fn turns_end_by_number_and_by_time_since_the_acquisition() {
        let mut turns = Turns::of(at(0), &grant(1000)).unwrap();
        assert_eq!(std::iter::from_fn(|| turns.next(at(0))).count(), 32);
        let mut turns = Turns::of(at(0), &grant(33)).unwrap();
        assert!(turns.next(at(9)).is_some());
        assert_eq!((turns.next(at(10)), turns.open_until(at(10))), (None, None));
    }

    /// As many tokens are asked for as can be used, and one for whoever asks.
    #[test]
    fn a_block_has_a_token_for_each_who_may_have_a_turn() {
        assert_eq!([0, 1, 31, 32, 33, usize::MAX].map(block_for), [1, 2, 32, 33, 33, 33]);
    }
}

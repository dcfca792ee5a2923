//! `Turns`: how often one lease may be passed on inside its process before the store lets others in.

use std::time::Duration;

use tenure_core::{FencingToken, Grant, Moment};

/// Local turns of one lease, after its first holder: 128. Two requests are then shared by 129 holders.
const TURNS_MAX: u32 = 128;
/// No turn is passed later than this after the lease was acquired: 10 ms. A waiter elsewhere is passed for no longer, and
/// then for the hold that was begun.
const WITHIN: Duration = Duration::from_millis(10);

/// Tokens of a lease that may be kept while it has nothing to do: 256. Once they are used up it is acquired anew.
pub(crate) const IDLE_BLOCK: u32 = 256;

/// How many tokens to ask for, with so many waiters behind: one for whoever asks, and two for each of them, for who has had a
/// turn may come again.
pub(crate) fn block_for(behind: usize) -> u32 {
    let turns = u32::try_from(behind).unwrap_or(TURNS_MAX).saturating_mul(2);
    1 + turns.min(TURNS_MAX)
}

/// The local turns of one lease.
///
/// * Each turn has a token of the block that was granted, and no other has it (H5.2, L2).
/// * Turns and time count from the acquisition, whatever is renewed meanwhile (H5.5). Of a lease that may be kept idle they do
///   not, for its process is told that somebody waits elsewhere, and then passes it on no more.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    next: FencingToken,
    left: u32,
    /// Until then it is worth waiting for the holder.
    until: Moment,
    idles: bool,
}

impl Turns {
    /// Of a grant that was acquired now, and may be kept idle or not; `None` if it has a token for its first holder only.
    pub(crate) fn of(now: Moment, grant: &Grant, idles: bool) -> Option<Self> {
        let most = if idles { IDLE_BLOCK - 1 } else { TURNS_MAX };
        let left = grant.block.saturating_sub(1).min(most);
        let next = FencingToken::new(grant.token.get() + 1);
        (left > 0).then_some(Self { next, left, until: now + WITHIN, idles })
    }

    /// Until when it is worth waiting for the holder: it passes the lease on, or, after the last turn, gives it back at once.
    pub(crate) fn open_until(&self, now: Moment) -> Option<Moment> {
        (!self.until.is_over(now)).then_some(self.until)
    }

    /// The token of the next turn, if there is one.
    pub(crate) fn next(&mut self, now: Moment) -> Option<FencingToken> {
        let is_open = self.idles || self.open_until(now).is_some();
        if !is_open || self.left == 0 {
            return None;
        }
        let token = self.next;
        self.next = FencingToken::new(token.get() + 1);
        self.left -= 1;
        Some(token)
    }

    /// A lease that is kept idle or not has a holder from now on, who may be waited for as long as a first one.
    pub(crate) fn on_holder(&mut self, now: Moment) {
        if self.idles {
            self.until = now + WITHIN;
        }
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
        assert!(Turns::of(at(0), &grant(1), false).is_none());
        let mut turns = Turns::of(at(0), &grant(4), false).unwrap();
        let tokens: Vec<u64> = std::iter::from_fn(|| turns.next(at(1))).map(FencingToken::get).collect();
        assert_eq!(tokens, [101, 102, 103]);
    }

    /// H5.5: a block that is larger does not make more turns, and time does not begin anew with a turn.
    #[test]
    fn turns_end_by_number_and_by_time_since_the_acquisition() {
        let mut turns = Turns::of(at(0), &grant(1000), false).unwrap();
        assert_eq!(std::iter::from_fn(|| turns.next(at(0))).count(), 128);
        let mut turns = Turns::of(at(0), &grant(129), false).unwrap();
        assert!(turns.next(at(9)).is_some());
        assert_eq!((turns.next(at(10)), turns.open_until(at(10))), (None, None));
    }

    /// A lease that may be kept idle has its turns whenever they come, and no more than it has tokens. Its holder is waited for
    /// no longer than any.
    #[test]
    fn turns_of_a_lease_that_is_kept_end_by_number_alone() {
        let mut turns = Turns::of(at(0), &grant(1000), true).unwrap();
        assert_eq!(std::iter::from_fn(|| turns.next(at(60_000))).count(), 255);
        assert_eq!(turns.open_until(at(60_000)), None);
        turns.on_holder(at(60_000));
        assert_eq!(turns.open_until(at(60_009)), Some(at(60_010)));
    }

    /// As many tokens are asked for as may be used, and one for whoever asks.
    #[test]
    fn a_block_has_two_tokens_for_each_who_may_have_a_turn() {
        assert_eq!([0, 1, 63, 64, 65, usize::MAX].map(block_for), [1, 3, 127, 129, 129, 129]);
    }
}

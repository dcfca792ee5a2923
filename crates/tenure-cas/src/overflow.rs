//! The overflow of a queue: who comes when the places in the cell of a lock are taken stands beside it.
//!
//! The cell of a lock is written by whoever comes to hold it or leaves it, and compared and set. So its queue is short: [`FRONT`]
//! places. Whoever else waits puts a place of its own beside the cell, without comparing anything, and then reads. When few places
//! are left in the cell, the next verb that writes it takes those who stand first beside it into it, with the same write.
//!
//! **Why nobody is let in twice or forgotten (L1, L6).** A place beside the cell gives no right: who holds and who is next is decided
//! by the ledger in the cell alone. One that is moved up twice, for it could not be deleted, is left out the second time while its
//! owner holds or waits. One that was put there while the queue went empty is found by its owner's next question.
//!
//! **Why none is left when its owner has left (L8).** Another client may have read the place, and be about to move it up. So a release
//! takes the place away, and reads the cell after that. If the place has moved up, it is in the queue then. If the queue is so long that
//! nobody moves up, a client that has read a shorter one compares a cell that is no more. Else the release writes the cell,
//! which bars such a client.
//!
//! **Why nobody is passed (L7).** Keys grow in the order of arrival. Whoever writes a cell that it has not read first knows from its text
//! whether places may stand beside it: a place is put there only while the text says so, and the write that takes it out of the text
//! happens only if none stands there.
//!
//! A store that has no room beside its cells keeps all places in them.
//!
//! [`FRONT`]: crate::snapshot::FRONT

use std::time::Duration;

use tenure_core::{BackendError, Claim, LockName, OwnerId};
use tenure_ledger::{Ledger, Place};

use crate::{
    cell::{Cell, Failure, NewPlace, OldPlace, Patience, Purpose, Trouble},
    draft::Draft,
    locks::Locks,
    memory::moment,
    own_places::OwnPlace,
    text::{LONG, encode_place},
    verb::crowded,
    write::Tried,
};

impl<C: Cell> Locks<C> {
    /// For whoever is not to have a place in the cell: it was taken out of the draft.
    pub(crate) async fn stand_beside<A: Send + Sync>(
        &self,
        over: &C::Connection,
        claim: &Claim,
        (own, place): (Option<Place>, Place),
        mut draft: Draft<A>,
    ) -> Result<Tried<A>, Failure> {
        // Somebody's turn has come, and who asks has noticed: that is written first (L6). So is it if nobody is left in the cell and
        // those who stand first beside it have gone without a word: nobody else writes it, and who stands behind them never sees
        // how many they are. And so is that places stand beside the cell, where it does not say so: an older tenure wrote it.
        let is_stuck = draft.ledger.is_deserted() && !draft.gone.is_empty();
        if !draft.change.wakes.is_empty() || is_stuck || !draft.was_long() {
            draft.patience = Patience::Brief;
            let written = self.write(over, &claim.name, draft).await?;
            return Ok(if let Tried::Done(_) = written { Tried::Overtaken } else { written });
        }
        let is_there = match own {
            Some(own) => self.keep(over, claim, (own, place, draft.now), &draft.ledger).await,
            None => self.stand_at_the_end(over, claim, &place).await,
        };
        match is_there {
            Ok(true) => Ok(Tried::Done(draft.change.answer)),
            Ok(false) => Ok(Tried::Overtaken),
            // L9: it may stand there, or will.
            Err(Failure::Broken(error)) => Ok(Tried::Late(error.of_unknown_outcome())),
            Err(failure) => Err(failure),
        }
    }

    /// Keeps the place that is there. False if it has moved up meanwhile.
    async fn keep(
        &self,
        over: &C::Connection,
        claim: &Claim,
        (own, place, now): (Place, Place, Duration),
        ledger: &Ledger,
    ) -> Result<bool, Failure> {
        let rules = crowded(&self.shared.rules, ledger.waiting());
        if !own.is_over(moment(now + rules.retry_max * 3 / 2)) {
            return Ok(true);
        }
        let key = self.shared.own_places.key(&claim.name, claim.owner);
        self.cell.keep_place(over, &key, &encode_place(&own.lasting_as(&place))).await
    }

    async fn stand_at_the_end(
        &self,
        over: &C::Connection,
        claim: &Claim,
        place: &Place,
    ) -> Result<bool, Failure> {
        let (own_places, name, owner) = (&self.shared.own_places, &claim.name, claim.owner);
        let state = encode_place(place);
        let may_be_there = own_places.doubt(name, owner, self.shared.host.now());
        let place = NewPlace { owner, state: &state, may_be_there, behind: LONG };
        let Some(key) = self.cell.append_place(over, name, &place).await? else { return Ok(false) };
        own_places.stands(name, owner, key, self.shared.host.now());
        Ok(true)
    }

    /// Takes the place of an owner beside the cell away. True if it was there. It may have moved up in the same moment.
    pub(crate) async fn withdraw(
        &self,
        name: &LockName,
        owner: OwnerId,
        own: &OwnPlace,
    ) -> Result<bool, BackendError> {
        let over = self.cell.connect(Purpose::Keep).await?;
        let place = OldPlace { owner, key: &own.key, may_have_another: own.is_doubted };
        let mut removed = self.cell.remove_place(&over, name, &place).await;
        // In stricter isolations its removal is undone if another client writes it: it moves up, or is kept.
        for _ in 1..REMOVALS {
            if !matches!(removed, Err(Failure::Overtaken)) {
                break;
            }
            removed = self.cell.remove_place(&over, name, &place).await;
        }
        match removed {
            Ok(was_there) => Ok(was_there),
            Err(Failure::Overtaken) => Err(self.cell.error(Trouble::Overtaken)),
            Err(Failure::Locked) => Err(self.cell.error(Trouble::Locked)),
            Err(Failure::Broken(error)) => Err(error.of_unknown_outcome()),
            Err(Failure::Refused(error)) => Err(error),
        }
    }
}

/// How often the removal of a place is tried that another client writes at the same time.
const REMOVALS: usize = 8;

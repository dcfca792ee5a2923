//! `Tail`: who comes when the places in the row of a lock are taken stands behind, in a row of its own.
//!
//! The row of a lock is written by whoever comes to hold it or leaves it, and compared and set. So its queue is short: [`FRONT`] places.
//! Whoever else waits puts a row of its own into the same table, without comparing anything, and then reads. When few places are left in
//! the row of the lock, the next verb that writes it takes those who stand first behind it into it, with the same statement.
//!
//! **Why nobody is let in twice or forgotten (L1, L6).** A row of the tail gives no right: who holds and who is next is decided by the
//! ledger in the row of the lock alone. One that is moved up twice, for it could not be deleted, is left out the second time
//! while its owner holds or waits. One that was put there while the queue went empty is found by its owner's next question.
//!
//! Its name is that of the lock, a control character, which no name of a lock has, and the number of the transaction that put it there:
//! so the order of names is the order of arrival (L7), and the index knows who is first.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tenure_core::{Audience, BackendError, Claim, LockName, OwnerId};
use tenure_ledger::{Ledger, Place, Rules, Unseen};
use tokio_postgres::{Row, types::Type};

use crate::{
    error::{self, Failure},
    hall::Mark,
    line::{Argument, Line},
    memory::moment,
    read::Sight,
    sql::Patience,
    store::Store,
    verb::crowded,
    write::{Draft, Tried, ascii},
};

/// Places in the row of a lock.
pub(crate) const FRONT: usize = 4;
/// Who stands behind moves up when so many of them are left.
pub(crate) const LOW: usize = 1;
/// How many of the tail are read with the row: some may be dead, and readers move up together.
pub(crate) const READ: usize = 16;
/// In bytes. With a longer name the row of a place might not fit into the column, and all places are in the row of the lock.
const NAME_MAX: usize = 480;

/// What was read of it.
#[derive(Default)]
pub(crate) struct Tail {
    /// The first few, with the names of their rows; none is somebody's joke.
    rows: Vec<(String, Option<Place>)>,
    /// That of whoever asks.
    pub(crate) own: Option<Place>,
    /// How many stand before whoever asks.
    ahead: usize,
}

/// Who moves up with the next write.
#[derive(Default)]
pub(crate) struct MovingUp {
    /// The rows that are of no use then.
    pub(crate) gone: Vec<String>,
    /// Somebody may stand behind still.
    pub(crate) is_more: bool,
    /// Who is handed the lock by that.
    pub(crate) news: Vec<(Audience, OwnerId)>,
}

impl Tail {
    /// From the columns of a reading, from `at` on.
    pub(crate) fn read(line: &Line, row: &Row, at: usize) -> Result<Self, Failure> {
        let unreadable = |error| Failure::Refused(line.unreadable(error));
        let keys: Option<Vec<String>> = row.try_get(at).map_err(unreadable)?;
        let states: Option<Vec<String>> = row.try_get(at + 1).map_err(unreadable)?;
        let own: Option<String> = row.try_get(at + 2).map_err(unreadable)?;
        let ahead: i64 = row.try_get(at + 3).map_err(unreadable)?;
        let place = |text: String| Place::from_text(&text).ok();
        let rows = keys.unwrap_or_default().into_iter().zip(states.unwrap_or_default());
        let rows = rows.map(|(key, state)| (key, place(state))).collect();
        let ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
        Ok(Self { rows, own: own.and_then(place), ahead })
    }

    /// All of them, if they were read.
    pub(crate) fn whole(self) -> Option<Vec<Place>> {
        (self.rows.len() < READ).then(|| self.rows.into_iter().filter_map(|(_, place)| place).collect())
    }
}

impl Sight {
    /// Those who stand first behind the queue move up into it if it is short, and the rest is counted.
    pub(crate) fn move_up(&mut self, asker: Option<(OwnerId, &Mark)>, rules: &Rules) -> MovingUp {
        let now = moment(self.now);
        let rows = std::mem::take(&mut self.tail.rows);
        let (is_whole, is_short) = (rows.len() < READ, self.ledger.waiting() <= LOW);
        let (mut room, mut seen) = (FRONT.saturating_sub(self.ledger.waiting()), HashSet::new());
        let (mut up, mut gone, mut rest, mut before) = (Vec::new(), Vec::new(), 0, 0);
        for (key, place) in rows {
            let waits = |place: &Place| {
                !place.is_over(now) && !self.ledger.knows(place.owner()) && seen.insert(place.owner())
            };
            let place = place.filter(waits);
            let moves = |place: &Place| is_short && rest == 0 && (room > 0 || place.is_shared());
            if place.as_ref().is_some_and(|place| !moves(place)) {
                rest += 1;
                continue;
            }
            before += usize::from(asker.is_some_and(|(_, mark)| mark.is_behind(&key)));
            gone.push(key);
            room = room.saturating_sub(usize::from(place.is_some()));
            up.extend(place);
        }
        let news = self.ledger.move_up(now, rules, up);
        let ahead = match asker {
            Some((owner, _)) if self.ledger.knows(owner) => 0,
            Some(_) if self.tail.own.is_some() => self.tail.ahead.saturating_sub(before),
            _ => self.tail.ahead.saturating_sub(before).max(rest),
        };
        self.ledger.leave_out(Unseen { ahead, places: ahead.max(rest) });
        MovingUp { gone, is_more: !is_whole || rest > 0, news }
    }
}

impl Line {
    /// Whether places of this lock may have rows of their own: one that may not be deleted would stay for ever, and in another order of
    /// names no index would find it.
    pub(crate) fn has_tail(&self, name: &LockName) -> bool {
        self.facts().takes_places && name.as_str().len() <= NAME_MAX
    }
}

impl Store {
    /// For whoever is not to have a place in the row of the lock: it was taken out of the draft.
    pub(crate) async fn stand_behind<A: Send + Sync>(
        &self,
        line: &Arc<Line>,
        claim: &Claim,
        (own, place): (Option<Place>, Place),
        mut draft: Draft<A>,
    ) -> Result<Tried<A>, Failure> {
        // Somebody's turn has come, and who asks has noticed: that is written first (L6).
        if !draft.change.wakes.is_empty() {
            draft.patience = Patience::None;
            let written = self.write(line, &claim.name, draft).await?;
            return Ok(if let Tried::Done(_) = written { Tried::Overtaken } else { written });
        }
        let is_there = self.stand(line, claim, (own, place, draft.now), &draft.ledger).await?;
        Ok(if is_there { Tried::Done(draft.change.answer) } else { Tried::Overtaken })
    }

    /// Puts the place behind the queue, or keeps the one that is there. False if that has moved up meanwhile.
    async fn stand(
        &self,
        line: &Line,
        claim: &Claim,
        (own, place, now): (Option<Place>, Place, Duration),
        ledger: &Ledger,
    ) -> Result<bool, Failure> {
        let shared = self.shared();
        let Some(own) = own else {
            return self.stand_at_the_end(line, claim, &place).await;
        };
        let rules = crowded(&shared.config.rules, ledger.waiting());
        if !own.is_over(moment(now + rules.retry_max * 3 / 2)) {
            return Ok(true);
        }
        let mark = shared.halls.mark(&claim.name, claim.owner);
        let state = ascii(own.lasting_as(&place).encode());
        let kept =
            line.write(&shared.sql.tail.keep, &[(&mark.key, Type::TEXT), (&state, Type::TEXT)]).await?;
        must_be_ours(line, kept.first(), 0)?;
        Ok(!kept.is_empty())
    }

    async fn stand_at_the_end(&self, line: &Line, claim: &Claim, place: &Place) -> Result<bool, Failure> {
        self.must_take_writes(line).await?;
        let (shared, name) = (self.shared(), claim.name.as_str());
        let (owner, state) = (claim.owner.to_string(), ascii(place.encode()));
        let is_doubted = shared.halls.doubt(&claim.name, claim.owner);
        let arguments: [Argument<'_>; 4] =
            [(&name, Type::TEXT), (&owner, Type::TEXT), (&state, Type::TEXT), (&is_doubted, Type::BOOL)];
        let rows = line.write(&shared.sql.tail.stand, &arguments).await?;
        must_be_ours(line, rows.first(), 1)?;
        let Some(row) = rows.first() else { return Ok(false) };
        let key: String = row.try_get(0).map_err(|error| Failure::Refused(line.unreadable(error)))?;
        shared.halls.stands(&claim.name, claim.owner, key);
        Ok(true)
    }

    /// Takes a place that is behind the queue away. True if it was there.
    pub(crate) async fn withdraw(
        &self,
        name: &LockName,
        owner: OwnerId,
        mark: &Mark,
    ) -> Result<bool, BackendError> {
        let line = self.lines.line().await?;
        let (name, owner) = (name.as_str(), owner.to_string());
        let arguments: [Argument<'_>; 4] = [
            (&name, Type::TEXT),
            (&owner, Type::TEXT),
            (&mark.key, Type::TEXT),
            (&mark.is_doubted, Type::BOOL),
        ];
        match line.write(&self.shared().sql.tail.withdraw, &arguments).await {
            Ok(rows) => Ok(!rows.is_empty()),
            // Somebody moved it up.
            Err(Failure::Overtaken | Failure::Missing) => Ok(false),
            Err(Failure::Broken(error)) => Err(error.of_unknown_outcome()),
            Err(Failure::Refused(error)) => Err(error),
        }
    }
}

/// # Errors
/// If a trigger has changed what was written.
fn must_be_ours(line: &Line, row: Option<&Row>, at: usize) -> Result<(), Failure> {
    let Some(row) = row else { return Ok(()) };
    let is_ours: bool = row.try_get(at).map_err(|error| Failure::Refused(line.unreadable(error)))?;
    if is_ours { Ok(()) } else { Err(Failure::Refused(error::altered(line.name()))) }
}

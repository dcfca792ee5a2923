//! One verb on one lock: read its rows, ask the ledger, write what changed.

use std::time::Duration;

use rusqlite::Connection;
use tenure_core::{BackendError, Claim, ClaimAnswer, LockName, Moment, OwnerId, Wait};
use tenure_ledger::{Change, Ledger, LedgerError, Rules};

use crate::{
    error::{self, RowError},
    front::{self, FAR, FIRST_LOOK, Front, LOOK_FURTHER, Look},
    sql,
    store::{Haste, Store, Tx},
};

/// A row without a holder, waiter or memo is deleted when it was not used for this long.
const KEEP_FREE: Duration = Duration::from_secs(3600);
/// One in so many new rows pays for looking at 256 old ones.
const SWEEP_EVERY: u8 = 32;

impl Store {
    /// Makes the claim, at once or in a transaction.
    pub(crate) fn claim(&mut self, claim: &Claim, haste: Haste) -> Result<ClaimAnswer, BackendError> {
        let verb = |ledger: &mut Ledger, now, rules: &Rules| ledger.claim(now, rules, claim);
        if let Some(answer) = self.at_once(&claim.name, Some(claim.ttl), verb)? {
            return Ok(answer);
        }
        let answer = self.transact(true, haste, |tx| {
            tx.must_be_open()?;
            let owner = (claim.wait != Wait::No).then_some(claim.owner);
            let answer = tx.step(&claim.name, owner, verb)?;
            if matches!(answer, ClaimAnswer::Granted(_)) {
                tx.remember_ttl(claim.ttl)?;
            }
            Ok(answer)
        })?;
        Ok(answer.expect("BUG: a claim makes the file"))
    }

    /// Remembers a waiter: its next claim begins with a read, and the poll for hints adapts to its place.
    pub(crate) fn remember_place(&mut self, claim: &Claim, answer: &ClaimAnswer) {
        match answer {
            ClaimAnswer::Queued { ahead, .. } => {
                let now = self.now();
                // Who may enter together with others must look as often as one of them that is near.
                let is_near = !self.config.rules.is_far(claim.mode, *ahead);
                let ahead = if is_near { (*ahead).min(FAR - 1) } else { *ahead };
                if self.places.take((&claim.name, claim.owner), ahead, now, self.config.rules.place_ttl) {
                    self.placed.notify_one();
                }
            }
            _ => self.places.leave(&claim.name, claim.owner),
        }
    }

    /// The answer to a claim of an owner that waits, if it can be had by reading: its turn has not come, and its place
    /// lives
    /// for longer than it will sleep. If not, the claim must be made, in such haste.
    pub(crate) fn still_waits(&mut self, claim: &Claim) -> Result<ClaimAnswer, Haste> {
        if claim.wait == Wait::No || !self.places.has(&claim.name, claim.owner) {
            return Err(Haste::Waiter);
        }
        let rules = self.config.rules;
        let keep = self.keeps_place_at(&rules);
        let seen = self.glance(|conn, now| {
            let look =
                Look { name: &claim.name, owner: Some(claim.owner), now, rules: &rules, places: FIRST_LOOK };
            let front = Front::read(conn, &look).ok()?;
            let mut after = front.ledger.clone();
            let answer = after.claim(now, &rules, claim).ok()?.answer;
            if matches!(answer, ClaimAnswer::Granted(_)) {
                return Some(Err(Haste::Holder));
            }
            let suffices = front.suffices(&after);
            let left = Duration::from_micros(front.left_of_place(&front.edits(after), claim.owner, now)?);
            match answer {
                ClaimAnswer::Queued { ahead, retry_after, holder } if suffices => {
                    let fresh = left.checked_sub(keep).filter(|fresh| !fresh.is_zero())?;
                    Some(Ok(ClaimAnswer::Queued { ahead, retry_after: retry_after.min(fresh), holder }))
                }
                _ => None,
            }
        });
        seen.unwrap_or(Err(Haste::Waiter))
    }

    /// A place is kept when it has no more than this left: half of its time less some, by chance, so that many waiters
    /// do not
    /// write at once. It is more than a sleep between two claims.
    fn keeps_place_at(&self, rules: &Rules) -> Duration {
        let mut chance = [0];
        self.host.random(&mut chance);
        rules.place_ttl / 2 - rules.place_ttl * u32::from(chance[0]) / (8 * 256)
    }
}

impl Tx<'_> {
    /// Runs one verb of a ledger and writes the change. `owner` is the owner whose place the verb needs, if any.
    pub(crate) fn step<A>(
        &mut self,
        name: &LockName,
        owner: Option<OwnerId>,
        verb: impl Fn(&mut Ledger, Moment, &Rules) -> Result<Change<A>, LedgerError>,
    ) -> Result<A, BackendError> {
        let rules = self.store.config.rules;
        let mut look = Look { name, owner, now: self.now, rules: &rules, places: FIRST_LOOK };
        loop {
            let front = Front::read(self.conn(), &look).map_err(|e| self.row_failed(e))?;
            let mut after = front.ledger.clone();
            let change = verb(&mut after, self.now, &rules);
            if !front.suffices(&after) {
                look.places *= LOOK_FURTHER;
                continue;
            }
            let change = change.map_err(|e| error::ledger(self.path(), e))?;
            if change.changed {
                let edits = front.edits(after);
                edits.write(self.conn(), name, self.now).map_err(|e| self.failed(e))?;
                self.store.last.remember(name, edits.alone());
            }
            self.wakes.extend(change.wakes);
            if change.changed && !front.is_there {
                self.sweep_now_and_then()?;
            }
            return Ok(change.answer);
        }
    }

    /// Deletes rows that were not used for an hour, a few at a time; their fences live on in the floor (H6.4).
    fn sweep_now_and_then(&mut self) -> Result<(), BackendError> {
        self.store.inserts = self.store.inserts.wrapping_add(1);
        if !self.store.inserts.is_multiple_of(SWEEP_EVERY) {
            return Ok(());
        }
        sweep(self.conn(), self.now).map_err(|e| self.row_failed(e))
    }

    fn row_failed(&self, error: RowError) -> BackendError {
        error::row(self.path(), error)
    }
}

fn sweep(conn: &Connection, now: Moment) -> Result<(), RowError> {
    let old = now.wall.saturating_sub(KEEP_FREE).as_secs();
    let mut next = conn.prepare_cached(sql::SWEEP_NEXT)?;
    let rows = next.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let rows = rows.collect::<rusqlite::Result<Vec<(String, bool, u64)>>>()?;
    let reached = if rows.len() < 256 { "" } else { rows.last().map_or("", |row| row.0.as_str()) };
    let mut floor = 0;
    for (name, is_busy, _) in rows.iter().filter(|(_, _, used)| *used < old) {
        let Ok(name) = LockName::new(name.as_str()) else { continue };
        let ledger = match front::whole(conn, &name) {
            Ok(ledger) => ledger,
            // It is said by whoever asks for that lock, and hinders no other.
            Err(RowError::Ledger(_)) => continue,
            Err(error) => return Err(error),
        };
        let view = ledger.view(name.clone(), now);
        // Who died in it, and was asked for by nobody since, has left it so.
        let is_asleep = !*is_busy || view.holders.is_empty() && view.queue.is_empty();
        if !is_asleep || view.memo.is_some() {
            continue;
        }
        floor = floor.max(ledger.fence());
        conn.execute(sql::SWEEP_ONE, [name.as_str()])?;
        conn.execute(sql::SWEEP_PLACES, [name.as_str()])?;
    }
    conn.execute(sql::SWEPT, (reached, floor))?;
    Ok(())
}

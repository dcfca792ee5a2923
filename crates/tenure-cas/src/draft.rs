//! `Draft`: a verb that was run on what is known of a cell, and is to be stored.

use std::time::Duration;

use tenure_core::{Audience, BackendError, Hint, LockName, OwnerId};
use tenure_ledger::{Change, Ledger, Unseen};

use crate::{
    cell::{Cell, Patience, Trouble, Write},
    locks::Locks,
    memory::{LATE, TOLERANCE, moment},
    snapshot::{FRONT, LOW, MovingUp, Snapshot},
    text::{encode, is_long},
    verb::{At, Verb},
};

/// A verb that was run, and is to be stored.
pub(crate) struct Draft<A> {
    /// On top of which version; 0: there is no cell, and nothing to be stored.
    pub(crate) version: i64,
    /// And of which text. After a fail-over another history of the cell may have come to the same version; and a pooler may lead a
    /// reading and the write behind it to two servers.
    pub(crate) before: String,
    pub(crate) ledger: Ledger,
    /// Places may stand beside the cell.
    pub(crate) is_long: bool,
    /// Keys of those who move up with this.
    pub(crate) gone: Vec<String>,
    pub(crate) change: Change<A>,
    pub(crate) patience: Patience,
    /// The time was not read from the store.
    pub(crate) is_guessed: bool,
    pub(crate) now: Duration,
}

impl<A> Draft<A> {
    /// As the cell keeps it.
    pub(crate) fn text(&self) -> String {
        encode(&self.ledger, self.is_long)
    }

    /// What is sent, with this text and these hints.
    pub(crate) fn write<'a>(&'a self, state: &'a str, hints: &'a [Hint]) -> Write<'a> {
        // What was guessed may be ahead of the clock; what was read is not.
        let within = if self.is_guessed {
            (self.now, self.now + TOLERANCE)
        } else {
            (Duration::ZERO, self.now + LATE)
        };
        Write {
            on: (self.version, &self.before),
            state,
            is_busy: self.is_long || !self.ledger.is_free(),
            within,
            patience: self.patience,
            hints,
            gone: &self.gone,
            is_last: !self.is_long && self.was_long(),
        }
    }

    /// The cell says already that places may stand beside it.
    pub(crate) fn was_long(&self) -> bool {
        is_long(&self.before)
    }

    /// Whom it concerns, once it is stored.
    pub(crate) fn hints(&self) -> Vec<Hint> {
        let wakes = &self.change.wakes;
        let behind = self.behind();
        let hint = |&(audience, owner): &(Audience, OwnerId)| {
            let is_behind = audience == Audience::Waiters && behind == Some(owner);
            Hint { audience, owner, is_behind }
        };
        wakes.iter().map(hint).collect()
    }

    /// Who is woken although it was not let in: it stands behind those who were, in case they are dead.
    fn behind(&self) -> Option<OwnerId> {
        // Where nobody was let in, there is nobody to wait for.
        let [first, .., (Audience::Waiters, last)] = &self.change.wakes[..] else { return None };
        (self.ledger.holds(first.1) && !self.ledger.holds(*last)).then_some(*last)
    }
}

impl<C: Cell> Locks<C> {
    /// The verb on what was stored last, if that does what is asked for or was stored just now.
    pub(crate) fn guess<V: Verb>(
        &self,
        name: &LockName,
        verb: &V,
        now: Option<Duration>,
    ) -> Option<Draft<V::Answer>> {
        let now = now?;
        let seen = self.shared.memory.seen(name)?;
        let is_fresh = seen.is_fresh(self.shared.host.now());
        let (version, before, mut ledger) = (seen.version, seen.state, seen.ledger);
        ledger.leave_out(Unseen::default());
        // Who stands beside the cell must be seen by whoever comes, and where they are to move up.
        if seen.is_long && (verb.claim().is_some() || ledger.waiting() <= LOW) {
            return None;
        }
        let change = verb.run(&mut ledger, &At::new(&self.shared.rules, moment(now), TOLERANCE)).ok()?;
        let is_likely = change.changed && (is_fresh || verb.is_plain(&change.answer));
        let (is_long, gone, patience) = (seen.is_long || ledger.waiting() >= FRONT, Vec::new(), V::PATIENCE);
        let draft = Draft { version, before, ledger, is_long, gone, change, patience, is_guessed: true, now };
        is_likely.then_some(draft)
    }

    /// The verb on what was read, after those who move up.
    pub(crate) fn draft<V: Verb>(
        &self,
        (snapshot, up): (Snapshot, Option<MovingUp>),
        verb: &V,
    ) -> Result<Draft<V::Answer>, BackendError> {
        let Snapshot { version, state: before, mut ledger, is_long: was_long, news, now, .. } = snapshot;
        let change = verb.run(&mut ledger, &At::new(&self.shared.rules, moment(now), Duration::ZERO));
        let mut change = change.map_err(|error| self.cell.error(Trouble::Ledger(error)))?;
        let is_more = up.as_ref().map_or(was_long, |up| up.is_more);
        let is_long = is_more || ledger.waiting() >= FRONT;
        let gone = up.map_or_else(Vec::new, |up| up.gone);
        change.wakes.splice(0..0, news);
        let (patience, is_guessed) = (V::PATIENCE, false);
        Ok(Draft { version, before, ledger, is_long, gone, change, patience, is_guessed, now })
    }
}

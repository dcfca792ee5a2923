//! One verb on one row, by comparing and setting its version.
//!
//! A verb reads the row and the server's clock, runs on the ledger here, and writes it if version and state are still those that
//! were read. Nothing is locked between the two, and nobody is waited for longer than one commit.
//!
//! **Why a time that was read before the write will do.** Let `now` be that time. It lies after the request was sent, so a lease
//! that ends at `now` + ttl ends no sooner than what its owner believes in, which counts from before that (L3, H2.2). What was over
//! at `now` is over at the write. And whatever anybody else has done since then has changed the version, so that this write does
//! not happen. A write that waits for a stranger's transaction ends leases early, as seen from when it happens, never late.
//!
//! **The first try is blind.** It runs on the ledger that this process stored last, at a time that the server's clock has surely
//! reached, and the server itself confirms both: it writes if the row is the same and its clock is at most [`TOLERANCE`] further.
//! The leases given are longer by the tolerance, so that they last the ttl at least, counted from the server's own time.

use std::{sync::Arc, time::Duration};

use tenure_core::{BackendError, LockName, Moment};
use tenure_ledger::Unseen;

use crate::{
    error::{self, Failure},
    line::Line,
    memory::{TOLERANCE, moment},
    schema::Table,
    sight::Sight,
    sql::Patience,
    store::Store,
    tail::{FRONT, LOW, MovingUp},
    verb::Verb,
    write::{Draft, Tried},
};

/// How often a verb reads again after somebody else was faster. Each time that happens somebody else has made progress.
const TRIES: usize = 64;

/// A row that was to be written, and was not, though nobody had changed it since it was read.
struct Skipped {
    version: i64,
    since: Moment,
    /// It was so at another version before: others commit.
    has_moved: bool,
    /// How often it was found at this version.
    times: usize,
    /// How often it was found at all.
    reads: u32,
    /// What was to be written may be written later.
    yields: bool,
}

impl Store {
    /// Runs a verb on a lock.
    pub(crate) async fn step<V: Verb>(
        &self,
        name: &LockName,
        listens: bool,
        verb: &V,
    ) -> Result<V::Answer, BackendError> {
        let mut turn =
            if V::IN_TURN { Some(self.turns.take(name, &*self.shared().host).await) } else { None };
        let (mut maybe, mut breaks, mut place): (Option<V::Answer>, u32, String) = (None, 0, String::new());
        let mut skipped = None;
        let unsure = |error: BackendError, maybe: &Option<V::Answer>| {
            if maybe.is_some() { error.of_unknown_outcome() } else { error }
        };
        for count in 0..TRIES {
            let line = if listens { self.listening().await } else { self.lines.line().await };
            let line = line.map_err(|error| unsure(error, &maybe))?;
            line.name().clone_into(&mut place);
            let failure = match self.attempt(&line, name, (verb, count == 0), &mut skipped).await {
                Ok(Tried::Done(answer)) => {
                    let is_unsettled = maybe.is_some_and(|maybe| verb.is_unsettled(&maybe, &answer));
                    return if is_unsettled { Err(error::unsettled(&place)) } else { Ok(answer) };
                }
                Ok(Tried::Overtaken) => {
                    // Whoever steps back keeps nobody waiting.
                    drop(turn.take());
                    continue;
                }
                Ok(Tried::Lost(error, answer)) => {
                    maybe = Some(answer);
                    Failure::Broken(error)
                }
                Err(failure) => failure,
            };
            match failure {
                // Read back on one new connection, as the same owner.
                Failure::Broken(_) if breaks == 0 => breaks += 1,
                Failure::Overtaken | Failure::Missing => {}
                Failure::Broken(error) | Failure::Refused(error) => return Err(unsure(error, &maybe)),
            }
        }
        Err(unsure(error::overtaken(&place).retry_after(PAUSE), &maybe))
    }

    /// Runs the verb once, on what was seen last or on what is read now.
    async fn attempt<V: Verb>(
        &self,
        line: &Arc<Line>,
        name: &LockName,
        (verb, may_guess): (&V, bool),
        skipped: &mut Option<Skipped>,
    ) -> Result<Tried<V::Answer>, Failure> {
        if V::CREATES {
            line.facts().must_be_ours(line.name()).map_err(Failure::Refused)?;
        }
        let guess = if may_guess { self.guess(name, verb, self.server_time()) } else { None };
        if let Some(draft) = guess {
            return self.write(line, name, draft).await;
        }
        if let Some(row) = skipped.as_ref().filter(|row| row.yields) {
            self.step_back(row.reads).await;
        }
        let (mut sight, up) = self.look(line, name, verb).await?;
        let is_doubted = self.shared().memory.is_in_doubt(name, sight.version);
        if V::WAITS {
            self.must_have_moved(line, sight.version, skipped)?;
        } else {
            self.wait_for_commit(line, (sight.version, is_doubted), skipped).await?;
        }
        let (rules, now) = (&self.shared().config.rules, moment(sight.now));
        if !is_doubted && let Some(answer) = verb.glance(&sight.ledger, rules, now) {
            return Ok(Tried::Done(answer));
        }
        let named = |error: BackendError| Failure::Refused(error.with("lock", name));
        let is_full = up.as_ref().is_some_and(|up| up.is_more || sight.ledger.waiting() >= FRONT);
        let stands = verb.claim().filter(|claim| is_full && !sight.ledger.knows(claim.owner));
        let own = sight.tail.own.take();
        let mut draft = self.draft((sight, up), verb).map_err(named)?;
        if let Some(claim) = stands.filter(|_| verb.yields(&draft.change.answer))
            && let Some(place) = draft.ledger.take_last()
        {
            return self.stand_behind(line, claim, (own, place), draft).await;
        }
        if let Some(row) = skipped.as_mut().filter(|_| verb.yields(&draft.change.answer)) {
            row.yields = true;
            // A crowd in line for the row's lock would keep renewals from it.
            if row.reads <= ASIDE {
                draft.patience = Patience::None;
            }
        }
        // Where others commit all the time, the row is hardly ever free: get in line.
        if !V::WAITS && skipped.as_ref().is_some_and(|row| row.has_moved) {
            draft.patience = Patience::Brief;
        }
        let is_there = draft.version != 0 || V::CREATES;
        // A write of ours that may still come is barred by one more: only then the answer is final. If it is the first of its lock,
        // it is barred by an empty ledger.
        let is_barrable = is_there || V::WAITS && line.facts().table == Table::Ours;
        if is_there && draft.change.changed || is_barrable && is_doubted {
            return self.write(line, name, draft).await;
        }
        Ok(Tried::Done(draft.change.answer))
    }

    /// The row as it is now, with those who stand first behind its queue moved up.
    async fn look<V: Verb>(
        &self,
        line: &Line,
        name: &LockName,
        verb: &V,
    ) -> Result<(Sight, Option<MovingUp>), Failure> {
        let mark = verb.claim().map(|claim| self.shared().marks.mark(name, claim.owner));
        let until = mark.as_ref().map_or("", |mark| &mark.key);
        let mut sight = self.read(line, (name, until), V::CREATES).await?;
        let may_move = V::WAITS && sight.version != 0 && line.has_tail(name);
        let asker = verb.claim().map(|claim| claim.owner).zip(mark.as_ref());
        let up = may_move.then(|| sight.move_up(asker, &self.shared().config.rules));
        Ok((sight, up))
    }

    /// The row was skipped, and is as it was: somebody has it locked. Whoever commits is done in a moment; a stranger that stays in
    /// its transaction is not waited for.
    async fn wait_for_commit(
        &self,
        line: &Line,
        (version, is_doubted): (i64, bool),
        skipped: &mut Option<Skipped>,
    ) -> Result<(), Failure> {
        let host = &self.shared().host;
        match skipped {
            Some(row) if row.version == version => {
                if row.since.elapsed(host.now()) >= COMMIT {
                    let error = error::row_locked(line.name());
                    return Err(Failure::Refused(if is_doubted {
                        error.of_unknown_outcome()
                    } else {
                        error
                    }));
                }
                host.sleep_until(host.now() + PAUSE).await;
            }
            row => {
                let has_moved = row.is_some();
                *row = Some(Skipped {
                    version,
                    since: host.now(),
                    has_moved,
                    times: 1,
                    reads: 1,
                    yields: false,
                });
            }
        }
        Ok(())
    }

    /// A write that waits for whoever has the row locked finds it changed, or changes it. A row that is read again and again as it
    /// was is one that the table does not let us change, and no answer but an error may come of it (L1).
    fn must_have_moved(
        &self,
        line: &Line,
        version: i64,
        skipped: &mut Option<Skipped>,
    ) -> Result<(), Failure> {
        let same = skipped.as_ref().filter(|row| row.version == version);
        // One that stepped aside may have met a lock.
        let times = same.map_or(1, |row| if row.yields { 1 } else { row.times + 1 });
        if times > SWALLOWED {
            return Err(Failure::Refused(error::swallowed(line.name())));
        }
        let since = self.shared().host.now();
        let reads = skipped.as_ref().map_or(1, |row| row.reads + 1);
        *skipped = Some(Skipped { version, since, has_moved: false, times, reads, yields: false });
        Ok(())
    }

    /// After a lost race, for a time that chance chooses, longer each time: those who queue up do not hinder those who hold, nor
    /// all of them each other.
    async fn step_back(&self, reads: u32) {
        let host = &self.shared().host;
        let mut chance = [0; 2];
        host.random(&mut chance);
        let most = STEP_BACK * (1 << reads.min(9));
        host.sleep_until(host.now() + most * u32::from(u16::from_be_bytes(chance)) / (1 << 16)).await;
    }

    /// The verb on what was seen last, if that does what is asked for or was seen just now.
    pub(crate) fn guess<V: Verb>(
        &self,
        name: &LockName,
        verb: &V,
        now: Option<Duration>,
    ) -> Option<Draft<V::Answer>> {
        let now = now?;
        let seen = self.shared().memory.seen(name)?;
        let is_fresh = seen.is_fresh(self.shared().host.now());
        let (version, before, mut ledger) = (seen.version, seen.state, seen.ledger);
        ledger.leave_out(Unseen::default());
        // Who stands behind must be seen by whoever comes, and where they are to move up.
        if seen.is_long && (verb.claim().is_some() || ledger.waiting() <= LOW) {
            return None;
        }
        let rules = &self.shared().config.rules;
        let change = verb.run(&mut ledger, rules, moment(now), TOLERANCE).ok()?;
        let is_likely = change.changed && (is_fresh || verb.is_plain(&change.answer));
        let patience = patience::<V>();
        let (is_long, gone) = (seen.is_long || ledger.waiting() >= FRONT, Vec::new());
        let draft =
            Draft { version, before, ledger, is_long, gone, change, patience, guessed: Some(now), now };
        is_likely.then_some(draft)
    }

    /// The verb on what was read, after those who move up.
    pub(crate) fn draft<V: Verb>(
        &self,
        (sight, up): (Sight, Option<MovingUp>),
        verb: &V,
    ) -> Result<Draft<V::Answer>, BackendError> {
        let Sight { version, state: before, mut ledger, is_long: was_long, tail: _, now } = sight;
        let rules = &self.shared().config.rules;
        let change = verb.run(&mut ledger, rules, moment(now), Duration::ZERO);
        let mut change = change.map_err(|error| error::ledger(&self.shared().config.place_name(), error))?;
        let is_more = up.as_ref().map_or(was_long, |up| up.is_more);
        let is_long = is_more || ledger.waiting() >= FRONT;
        let MovingUp { gone, news, .. } = up.unwrap_or_default();
        change.wakes.splice(0..0, news);
        Ok(Draft {
            version,
            before,
            ledger,
            is_long,
            gone,
            change,
            patience: patience::<V>(),
            guessed: None,
            now,
        })
    }
}

fn patience<V: Verb>() -> Patience {
    if V::WAITS { Patience::Any } else { Patience::None }
}

/// How long a commit may take before the row counts as locked by a stranger.
const COMMIT: Duration = Duration::from_millis(50);
/// How long a waiter steps back at most after it has lost its first race; doubled with each.
const STEP_BACK: Duration = Duration::from_millis(2);
/// How often a waiter finds the row locked, or is overtaken, before it gets in line for the row's lock: who has it may be a stranger.
const ASIDE: u32 = 12;
/// How often a row may be read at one version. Once or twice it may be so for another reason: a connection that broke, a row that was
/// deleted in between.
const SWALLOWED: usize = 5;
/// Before the next try of a verb that lost every race, or whose row is locked.
const PAUSE: Duration = Duration::from_millis(5);

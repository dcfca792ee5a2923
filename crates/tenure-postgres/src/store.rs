//! `Store`: one verb on one row, by comparing and setting its version.
//!
//! A verb reads the row and the server's clock, runs on the ledger here, and writes it if the version is still the one that was
//! read. Nothing is locked between the two, and nobody is waited for longer than one commit.
//!
//! **Why a time that was read before the write will do.** Let `now` be that time. It lies after the request was sent, so a lease
//! that ends at `now` + ttl ends no sooner than what its owner believes in, which counts from before that (L3, H2.2). What was over
//! at `now` is over at the write. And whatever anybody else has done since then has changed the version, so that this write does
//! not happen. A write that waits for a stranger's transaction ends leases early, as seen from when it happens, never late.
//!
//! **The first try is blind.** It runs on the ledger that this process stored last, at a time that the server's clock has surely
//! reached, and the server itself confirms both: it writes if the version is the same and its clock is at most [`TOLERANCE`] further.
//! The leases given are longer by the tolerance, so that they last the ttl at least, counted from the server's own time.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tenure_core::{Audience, BackendError, LockName, Moment, OwnerId};
use tenure_ledger::{Change, Ledger};
use tokio_postgres::{Row, types::Type};

use crate::{
    config::Listen,
    error::{self, Failure},
    line::{Argument, Line},
    lines::Lines,
    memory::{TOLERANCE, locked, moment, since_epoch},
    schema::Table,
    shared::Shared,
    turn::Turns,
    verb::Verb,
    wake::Ears,
};

/// How often a verb reads again after somebody else was faster. Each time that happens somebody else has made progress.
const TRIES: usize = 64;

/// What one handle knows of the store.
pub(crate) struct Store {
    pub(crate) lines: Lines,
    pub(crate) ears: Arc<Ears>,
    /// Where hints come from, if not over the same connection.
    hints: Option<Lines>,
    /// When that could not be listened to last.
    deaf_since: Mutex<Option<Moment>>,
    /// Hints reached us when somebody waited last.
    hears: AtomicBool,
    turns: Turns,
}

/// A verb that was run, and is to be stored.
pub(crate) struct Draft<A> {
    /// On top of which version; 0: there is no row.
    pub(crate) version: i64,
    pub(crate) ledger: Ledger,
    pub(crate) change: Change<A>,
    /// The time at which it ran, if that was not read from the server.
    pub(crate) guessed: Option<Duration>,
    pub(crate) now: Duration,
}

/// What became of a try.
enum Tried<A> {
    Done(A),
    /// Read again.
    Overtaken,
    /// It was sent, and nobody knows.
    Lost(BackendError, A),
}

/// A row as it was read, and when by the server's clock.
pub(crate) struct Sight {
    pub(crate) version: i64,
    pub(crate) ledger: Ledger,
    pub(crate) now: Duration,
}

impl Store {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let ears = Arc::new(Ears::new(&shared));
        let hints = match &shared.config.listen {
            Listen::At(config) => {
                Some(Lines::new(shared.clone(), ears.clone(), Arc::new((**config).clone())))
            }
            Listen::Same | Listen::Off => None,
        };
        let lines = Lines::new(shared.clone(), ears.clone(), shared.config.clone());
        Self {
            lines,
            ears,
            hints,
            deaf_since: Mutex::default(),
            hears: AtomicBool::new(true),
            turns: Turns::default(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.lines.shared
    }

    /// Where hints come from, unless they are off.
    pub(crate) fn hint_lines(&self) -> Option<&Lines> {
        let is_off = matches!(self.shared().config.listen, Listen::Off);
        (!is_off).then(|| self.hints.as_ref().unwrap_or(&self.lines))
    }

    /// Runs a verb on a lock.
    pub(crate) async fn step<V: Verb>(
        &self,
        name: &LockName,
        listens: bool,
        verb: &V,
    ) -> Result<V::Answer, BackendError> {
        let _turn = self.turns.take(name, &*self.shared().host).await;
        let (mut maybe, mut breaks, mut place): (Option<V::Answer>, u32, String) = (None, 0, String::new());
        let unsure = |error: BackendError, maybe: &Option<V::Answer>| {
            if maybe.is_some() { error.of_unknown_outcome() } else { error }
        };
        for count in 0..TRIES {
            let line = if listens { self.listening().await } else { self.lines.line().await };
            let line = line.map_err(|error| unsure(error, &maybe))?;
            line.name().clone_into(&mut place);
            let failure = match self.attempt(&line, name, verb, count == 0).await {
                Ok(Tried::Done(answer)) => {
                    let is_unsettled = maybe.is_some_and(|maybe| verb.is_unsettled(&maybe, &answer));
                    return if is_unsettled { Err(error::unsettled(&place)) } else { Ok(answer) };
                }
                Ok(Tried::Overtaken) => continue,
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
        verb: &V,
        may_guess: bool,
    ) -> Result<Tried<V::Answer>, Failure> {
        let guess = if may_guess { self.guess(name, verb, self.server_time()) } else { None };
        if let Some(draft) = guess {
            return self.write(line, name, draft).await;
        }
        let sight = self.read(line, name, V::CREATES).await?;
        let is_doubted = self.shared().memory.is_in_doubt(name, sight.version);
        let draft = self.draft(sight, verb).map_err(|error| Failure::Refused(error.with("lock", name)))?;
        let is_there = draft.version != 0 || V::CREATES;
        // A write of ours that may still come is barred by one more: only then the answer is final.
        if is_there && (draft.change.changed || is_doubted) {
            return self.write(line, name, draft).await;
        }
        Ok(Tried::Done(draft.change.answer))
    }

    /// A time that the server's clock has reached.
    pub(crate) fn server_time(&self) -> Option<Duration> {
        self.shared().memory.server_time(self.shared().host.now())
    }

    /// The verb on what was seen last, if that does what is asked for or was seen just now, and nobody elsewhere must be told.
    pub(crate) fn guess<V: Verb>(
        &self,
        name: &LockName,
        verb: &V,
        now: Option<Duration>,
    ) -> Option<Draft<V::Answer>> {
        let now = now?;
        let seen = self.shared().memory.seen(name)?;
        let is_fresh = seen.is_fresh(self.shared().host.now());
        let (version, mut ledger) = (seen.version, seen.ledger);
        let rules = &self.shared().config.rules;
        let change = verb.run(&mut ledger, rules, moment(now), TOLERANCE).ok()?;
        let is_alone = self.elsewhere(&change.wakes).next().is_none();
        let is_likely = change.changed && (is_fresh || verb.is_plain(&change.answer));
        (is_alone && is_likely).then_some(Draft { version, ledger, change, guessed: Some(now), now })
    }

    pub(crate) fn draft<V: Verb>(&self, sight: Sight, verb: &V) -> Result<Draft<V::Answer>, BackendError> {
        let Sight { version, mut ledger, now } = sight;
        let rules = &self.shared().config.rules;
        let change = verb.run(&mut ledger, rules, moment(now), Duration::ZERO);
        let change = change.map_err(|error| error::ledger(&self.shared().config.place_name(), error))?;
        Ok(Draft { version, ledger, change, guessed: None, now })
    }

    /// The row, and the server's time. Where there is no table, there is no row; `creates`: it is made then.
    pub(crate) async fn read(&self, line: &Line, name: &LockName, creates: bool) -> Result<Sight, Failure> {
        let facts = line.facts();
        facts.must_be_ours(line.name()).map_err(Failure::Refused)?;
        if facts.table == Table::Missing {
            if creates {
                line.create().await?;
            } else if line.look().await?.table == Table::Missing {
                return Ok(Sight {
                    version: 0,
                    ledger: Ledger::new(0),
                    now: self.server_time().unwrap_or_default(),
                });
            }
        }
        let sql = &self.shared().sql;
        let arguments: [Argument<'_>; 1] = [(&name.as_str(), Type::TEXT)];
        let rows = match line.ask(&sql.read, &arguments).await {
            // It was dropped: the next look finds that.
            Err(Failure::Missing) => {
                line.look().await?;
                return Err(Failure::Missing);
            }
            answer => answer?,
        };
        let row = rows.first().ok_or(Failure::Overtaken)?;
        self.sight(line, row, 0)
    }

    /// From a row whose columns are, from `at` on, version, state and time.
    pub(crate) fn sight(&self, line: &Line, row: &Row, at: usize) -> Result<Sight, Failure> {
        let unreadable = |error| Failure::Refused(line.unreadable(error));
        let version: Option<i64> = row.try_get(at).map_err(unreadable)?;
        let state: Option<&str> = row.try_get(at + 1).map_err(unreadable)?;
        let now = since_epoch(row.try_get(at + 2).map_err(unreadable)?);
        let version = version.unwrap_or(0);
        let ledger = state.map_or_else(|| Ok(Ledger::new(0)), Ledger::decode);
        let ledger = ledger.map_err(|error| Failure::Refused(error::ledger(line.name(), error)))?;
        self.shared().memory.learn(now, self.shared().host.now());
        Ok(Sight { version, ledger, now })
    }

    /// Stores a draft if nobody else wrote since, tells those elsewhere with the same commit, and rings for those here after it.
    async fn write<A: Send>(
        &self,
        line: &Arc<Line>,
        name: &LockName,
        draft: Draft<A>,
    ) -> Result<Tried<A>, Failure> {
        self.must_take_writes(line).await?;
        let (sql, memory) = (&self.shared().sql, &self.shared().memory);
        let Draft { version, ledger, change, guessed, now } = draft;
        let (state, is_busy) = (ledger.encode(), !ledger.is_free());
        let is_new = version == 0;
        let first = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        let behind = behind(&ledger, name, now, &change.wakes);
        let away = self.elsewhere(&change.wakes);
        let (channels, hints): (Vec<String>, Vec<String>) = away
            .map(|(audience, owner)| (Ears::channel(owner.process()), Ears::hint(audience, owner, behind)))
            .unzip();
        let (from, until) = window(guessed);
        let key = name.as_str();
        let row_version = if is_new { first } else { version };
        let mut arguments: Vec<Argument<'_>> = vec![
            (&key, Type::TEXT),
            (&row_version, Type::INT8),
            (&is_busy, Type::BOOL),
            (&state, Type::TEXT),
        ];
        let statement = if is_new {
            &sql.insert
        } else if !channels.is_empty() {
            arguments.extend([(&channels as _, Type::TEXT_ARRAY), (&hints as _, Type::TEXT_ARRAY)]);
            &sql.write_telling
        } else if guessed.is_some() {
            arguments.extend([(&from as _, Type::TIMESTAMPTZ), (&until as _, Type::TIMESTAMPTZ)]);
            &sql.write_between
        } else {
            &sql.write
        };
        let doubt = memory.doubt(name, version);
        let rows = match line.ask(statement, &arguments).await {
            Err(Failure::Broken(error)) => return Ok(Tried::Lost(error.of_unknown_outcome(), change.answer)),
            answer => {
                doubt.settle();
                answer?
            }
        };
        let Some(row) = rows.first() else {
            memory.forget(name);
            return Ok(Tried::Overtaken);
        };
        let at: SystemTime = row.try_get(0).map_err(|error| Failure::Refused(line.unreadable(error)))?;
        memory.learn(since_epoch(at), self.shared().host.now());
        self.stored(name, if is_new { first } else { version + 1 }, ledger, &change.wakes, behind);
        if is_new {
            self.sweep_now_and_then(line);
        }
        Ok(Tried::Done(change.answer))
    }

    /// A write came through: nothing older can any more.
    pub(crate) fn stored(
        &self,
        name: &LockName,
        version: i64,
        ledger: Ledger,
        wakes: &[(Audience, OwnerId)],
        behind: Option<OwnerId>,
    ) {
        self.shared().memory.is_in_doubt(name, version);
        self.shared().memory.remember(name, version, ledger, self.shared().host.now());
        for (audience, owner) in wakes {
            self.ears.ring(*audience, *owner, behind == Some(*owner));
        }
    }

    /// Those who do not hear our bells.
    pub(crate) fn elsewhere<'a>(
        &'a self,
        wakes: &'a [(Audience, OwnerId)],
    ) -> impl Iterator<Item = (Audience, OwnerId)> + 'a {
        wakes.iter().copied().filter(|(audience, owner)| !self.shared().bells.reach(*audience, *owner))
    }

    async fn must_take_writes(&self, line: &Line) -> Result<(), Failure> {
        if line.facts().takes_writes {
            return Ok(());
        }
        // A standby may have become a primary under an open connection.
        let facts = line.look().await?;
        facts.must_take_writes(line.name()).map_err(Failure::Refused)
    }

    /// The connection, after making sure that hints are heard where they can be (hazard 31).
    async fn listening(&self) -> Result<Arc<Line>, BackendError> {
        let Some(hints) = &self.hints else {
            let line = self.lines.listening().await?;
            self.hears.store(self.lines.brings_hints(&line), Ordering::Relaxed);
            return Ok(line);
        };
        let host = &self.shared().host;
        let is_deaf = locked(&self.deaf_since).is_some_and(|since| since.elapsed(host.now()) < DEAF);
        if !is_deaf {
            let over = host.sleep_until(host.now() + DEAF / 10);
            let is_heard = tokio::select! {
                biased;
                line = hints.listening() => line.is_ok(),
                () = over => false,
            };
            // Without hints a waiter asks again after a while, which is no reason to let it in later.
            *locked(&self.deaf_since) = (!is_heard).then(|| host.now());
            self.hears.store(is_heard, Ordering::Relaxed);
        }
        self.lines.line().await
    }

    /// Whether a hint would reach us.
    pub(crate) fn hears(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }

    /// Deletes free rows that nobody used for a day, a few at a time.
    ///
    /// OK because a fence never outruns the server's clock (A10): the next row of that name starts above it, unless the clock
    /// was set back by more than a day (H6.4).
    fn sweep_now_and_then(&self, line: &Arc<Line>) {
        let mut chance = [0];
        self.shared().host.random(&mut chance);
        if chance[0] >= SWEEP_CHANCE {
            return;
        }
        let (line, shared) = (line.clone(), self.shared().clone());
        self.shared().host.spawn(Box::pin(async move {
            // Who may not delete has rows that stay.
            if let Err(failure) = line.ask(&shared.sql.sweep, &[(&shared.sql.table, Type::TEXT)]).await {
                tracing::debug!(?failure, "nothing was swept");
            }
        }));
    }
}

/// Who is woken although it was not let in: it stands behind those who were, in case they are dead.
pub(crate) fn behind(
    ledger: &Ledger,
    name: &LockName,
    now: Duration,
    wakes: &[(Audience, OwnerId)],
) -> Option<OwnerId> {
    // Where nobody was let in, there is nobody to wait for.
    let [first, .., (Audience::Waiters, last)] = wakes else { return None };
    let holders = ledger.view(name.clone(), moment(now)).holders;
    let holds = |owner: &OwnerId| holders.iter().any(|holder| holder.owner == owner.to_string());
    (holds(&first.1) && !holds(last)).then_some(*last)
}

/// What the server's clock must lie between.
pub(crate) fn window(guessed: Option<Duration>) -> (SystemTime, SystemTime) {
    let (from, until) = guessed.map_or((Duration::ZERO, FAR), |now| (now, now + TOLERANCE));
    (UNIX_EPOCH + from, UNIX_EPOCH + until)
}

/// 2^33 s: the year 2242.
const FAR: Duration = Duration::from_secs(1 << 33);
/// Before the next try of a verb that lost every race.
const PAUSE: Duration = Duration::from_millis(5);
/// How long claims do not wait for hints that could not be listened to.
const DEAF: Duration = Duration::from_secs(5);
/// Of 256: one insert in 64 sweeps.
const SWEEP_CHANCE: u8 = 4;

//! `Locks` is a backend: its verbs, many renewals in one commit, and views.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use tenure_core::{
    Adopt, Adoption, Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer,
    ErrorKind, Exposure, FencingToken, Finding, Grant, Hint, HolderView, LockName, LockView, Memo, MemoView,
    Moment, Noted, Outcome, OwnerId, ProcessId, Promises, Released, Renewal, WaitMode, WakeStream,
    no_single_owner,
};
use tenure_ledger::{Change, Exposed, Ledger, LedgerError, Place, Rules, proof};

use crate::{
    beside::{Beside, OwnPlace, Snapshot},
    cell::{
        Cell, CellError, CellReading, CellWrite, ConnectionPurpose, Listed, OldPlace, ReadRequest, SLOTS,
        VerbError, WriteAnswer, WrittenCell, slot_row,
    },
    encode::{decode, with_places},
    memory::{TOLERANCE, moment},
    step::{CellVerb, Draft, Locks, StepStart, WriteInFlight, crowded},
};

#[async_trait]
impl<C: Cell> Backend for Locks<C> {
    fn promises(&self) -> Promises {
        self.cell.promises()
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        let handle = Self::sharing(C::clone(&self.cell), self.shared.clone());
        handle.connect(ConnectionPurpose::Keep).await?;
        Ok(Arc::new(handle))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        allow(self, claim.ttl)?;
        let asked = self.shared.host.now();
        let mut answer = if claim.wait == WaitMode::No {
            self.step(&claim.name, claim).await?
        } else {
            claim_and_remember(self, claim).await?
        };
        if let ClaimAnswer::Queued { ahead, retry_after, .. } = &mut answer {
            let now = self.shared.host.now();
            let stood = self.shared.own_places.stood(&claim.name, claim.owner, *ahead, now);
            spread(self, retry_after, *ahead, (stood, asked.elapsed(now)));
        }
        Ok(answer)
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let batches = grants.chunks(RENEWALS_MAX).map(|batch| renew_batch(self, batch));
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let own_places = &self.shared.own_places;
        let Some(own) = own_places.find(name, owner) else {
            own_places.leave(name, owner);
            return self.step(name, &ReleaseVerb { owner, had_place: false }).await;
        };
        let is_taken = withdraw(self, name, owner, &own).await?;
        if is_taken {
            own_places.taken(name, owner);
        }
        let had_place = is_taken || own.had_one;
        let released = self.step(name, &ReleaseVerb { owner, had_place }).await;
        let released = if is_taken { released.map_err(BackendError::of_unknown_outcome)? } else { released? };
        // A place whose creation had no answer may still appear: the next release checks for it again.
        if had_place || !own.is_unacknowledged {
            own_places.leave(name, owner);
        }
        Ok(if is_taken { Released::Released } else { released })
    }

    async fn tell(&self, _name: &LockName, audience: Audience, owner: OwnerId) -> Result<(), BackendError> {
        let hint = Hint { audience, owner, is_behind: false };
        if self.cell.reaches(hint) {
            self.cell.deliver(hint);
            // Observers may be in every process; a holder is in one.
            if audience != Audience::Observers {
                return Ok(());
            }
        }
        let over = self.connect(ConnectionPurpose::Use).await?;
        self.cell
            .notify(&over, hint)
            .await
            .map_err(|failure| failure.into_error(|trouble| self.cell.error(trouble)))
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.step(name, &NoteVerb { owner, token, memo }).await
    }

    async fn memo(&self, name: &LockName) -> Result<Option<MemoView>, BackendError> {
        self.step(name, &MemoVerb(name)).await
    }

    async fn expose(&self, grant: &Grant) -> Result<Exposure, BackendError> {
        let (name, token) = (&grant.name, grant.last_token());
        // Before anything is written, so that a store that cannot do it is left as it was.
        let over = self.connect(ConnectionPurpose::Use).await?;
        let text = proof(grant.owner, token.get());
        let ownership = async |slot| {
            let asked = self.cell.ownership(&over, &slot_row(name, slot), &text, grant.ttl).await;
            asked.map_err(|failure| failure.into_error(|trouble| self.cell.error(trouble)))
        };
        ownership(0).await?;
        match self.step(name, &ExposeVerb { owner: grant.owner, token }).await? {
            Exposed::Exposed { slot } => ownership(slot).await.map(Exposure::Exposed),
            Exposed::Gone => Ok(Exposure::Gone),
            Exposed::Shared => Err(no_single_owner(name)),
        }
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        self.cell.listen(process, audience)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        looking(self, |over| async move {
            let reading = self.cell.read(&over, name, &ReadRequest::default()).await?;
            let CellReading { state, now, overflow, .. } = reading;
            let ledger = if state.is_empty() { Ok(Ledger::new(0)) } else { decode(&state) };
            let ledger = ledger.map_err(|error| self.unreadable(error))?;
            let places = match overflow.map(|overflow| Beside::of(overflow).whole()) {
                Some(None) => places(self.beside().all(&over, name).await?),
                Some(Some(all)) => all,
                None => Vec::new(),
            };
            let is_kept = ledger.shows_an_expired_owner(moment(now));
            let mut view = with_places(ledger, places).view(name.clone(), moment(now));
            if is_kept {
                view.kept_by = Some(self.cell.relying(&over).await).filter(|who| !who.is_empty());
            }
            Ok(view)
        })
        .await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        looking(self, |over| async move {
            let mut views = Vec::new();
            for Listed { name, state, places: beside, now } in self.cell.list(&over, prefix).await? {
                let ledger = decode(&state).map_err(|error| self.unreadable(error))?;
                views.push(with_places(ledger, places(beside)).view(name, moment(now)));
            }
            // An expired lease leaves the lock free, even if no client has noticed yet.
            views.retain(|view| !(view.holders.is_empty() && view.queue.is_empty()));
            Ok(views)
        })
        .await
    }

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        self.step(name, &BreakVerb(scope)).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.cell.diagnose().await
    }

    async fn adopt(&self, _adopt: Adopt) -> Result<Adoption, BackendError> {
        let wait = self.cell.prepare().await?;
        let what = match wait.is_zero() {
            true => "the table of the locks is there, and locks are granted in it".to_owned(),
            false => format!(
                "made the table of the locks: nothing is granted in it for {:.0} s, because a table that is missing may have \
                 been renamed, with leases in it",
                wait.as_secs_f64().ceil()
            ),
        };
        Ok(Adoption::new(wait, what))
    }
}

/// # Errors
/// `Invalid` for a lease above the maximum.
fn allow<C: Cell>(locks: &Locks<C>, ttl: Duration) -> Result<(), BackendError> {
    let Promises { backend, max_ttl, .. } = locks.cell.promises();
    if ttl <= max_ttl {
        return Ok(());
    }
    let message = format!("{backend} takes a ttl of {max_ttl:?} at most");
    Err(BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message))
}

/// One attempt, after which it is known where the place of the owner may be. Like every verb it waits for no turn.
async fn claim_and_remember<C: Cell>(locks: &Locks<C>, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
    let own_places = &locks.shared.own_places;
    own_places.ask(&claim.name, claim.owner, locks.shared.host.now());
    let answer = locks.step(&claim.name, claim).await;
    match &answer {
        Ok(ClaimAnswer::Granted(_)) => own_places.leave(&claim.name, claim.owner),
        Ok(_) => own_places.answered(&claim.name, claim.owner),
        Err(_) => {}
    }
    answer
}

/// When to ask again.
///
/// Waiters that ask only as a safety measure do not all ask at the same moment. A waiter without hints asks often:
/// see [`unnotified_pause`].
fn spread<C: Cell>(
    locks: &Locks<C>,
    retry_after: &mut Duration,
    ahead: usize,
    (stood, took): (Duration, Duration),
) {
    let rules = &locks.shared.rules;
    if !locks.is_notified.load(Ordering::Relaxed) {
        *retry_after = unnotified_pause(rules.claim_ttl, ahead, (stood, took)).min(*retry_after);
    }
    if *retry_after >= rules.claim_ttl / 5 {
        let mut chance = [0];
        locks.shared.host.random(&mut chance);
        *retry_after -= *retry_after * u32::from(chance[0]) / 1024;
    }
}

/// How long a waiter without hints pauses before its next request. `ahead`: the waiters before it; `stood`: how
/// long that number has been the same; `took`: how long its last request took.
///
/// The nearer its turn, the sooner; and the longer nothing has moved, the later. But a turn lasts for the claim
/// ttl, and a queue that begins to move may do so by one place in a [`STEP`]th of that: no waiter sleeps through
/// its own turn.
///
/// A slow store is asked less often: a waiter that is not near the front pauses for [`SHARE`] times as long as its
/// request took. So at most a ninth of the waiters ask at the same time, and a holder's release finds a free
/// connection in a pool.
fn unnotified_pause(claim_ttl: Duration, ahead: usize, (stood, took): (Duration, Duration)) -> Duration {
    let step = claim_ttl / STEP;
    let behind = step * u32::try_from(ahead).unwrap_or(u32::MAX);
    let pause = (stood / 16).clamp(step, claim_ttl * 2 / 5) + behind;
    let slow = took * SHARE;
    pause.max(if ahead < NEAR { slow.min(claim_ttl * 4 / 5) } else { slow })
}

/// Removes the place of an owner next to the cell. True if it existed. It may have moved up at the same moment.
async fn withdraw<C: Cell>(
    locks: &Locks<C>,
    name: &LockName,
    owner: OwnerId,
    own: &OwnPlace,
) -> Result<bool, BackendError> {
    let over = locks.connect(ConnectionPurpose::Keep).await?;
    let place = OldPlace { owner, key: &own.key, may_have_another: own.is_unacknowledged };
    let mut removed = locks.beside().remove(&over, name, &place).await;
    // In stricter isolation levels its removal is undone if another client writes it: it moves up, or is kept.
    for _ in 1..REMOVALS {
        if !matches!(removed, Err(CellError::Overtaken)) {
            break;
        }
        removed = locks.beside().remove(&over, name, &place).await;
    }
    match removed {
        Ok(was_there) => Ok(was_there),
        Err(CellError::Overtaken) => Err(locks.cell.error(VerbError::Overtaken)),
        Err(CellError::Locked) => Err(locks.cell.error(VerbError::Locked)),
        Err(CellError::ReliedOn) => Err(locks.cell.error(VerbError::ReliedOn(String::new()))),
        Err(CellError::Broken(error)) => Err(error.of_unknown_outcome()),
        Err(CellError::Refused(error)) => Err(error),
    }
}

type RenewalAnswer = Result<Renewal, BackendError>;

async fn renew_batch<C: Cell>(locks: &Locks<C>, grants: &[Grant]) -> Vec<RenewalAnswer> {
    let mut answers: Vec<Option<Renewal>> = vec![None; grants.len()];
    let (begun, mut is_unsure) = (locks.shared.host.now(), false);
    if grants.len() > 1
        && let Ok(over) = locks.connect(ConnectionPurpose::Keep).await
    {
        let batch = RenewalBatch { locks, over: &over, grants, begun, answers: &mut answers };
        if let Err(failure) = batch.renew().await {
            tracing::debug!(?failure, "leases are renewed one by one");
            is_unsure = matches!(failure, CellError::Broken(_));
        }
    }
    let mut answers: Vec<Option<RenewalAnswer>> = answers.into_iter().map(|answer| answer.map(Ok)).collect();
    for (at, answer) in renew_apart(locks, grants, &answers).await {
        // L9: the request for all of them may have done it.
        let unsure = |error: BackendError| if is_unsure { error.of_unknown_outcome() } else { error };
        answers[at] = Some(answer.map_err(unsure));
    }
    answers.into_iter().map(|answer| answer.expect("BUG: one or the other has answered")).collect()
}

/// Each cell separately; holders of one cell one after the other, so that they do not race each other for its
/// version.
async fn renew_apart<C: Cell>(
    locks: &Locks<C>,
    grants: &[Grant],
    answers: &[Option<RenewalAnswer>],
) -> Vec<(usize, RenewalAnswer)> {
    let mut cells: BTreeMap<&LockName, Vec<usize>> = BTreeMap::new();
    for at in (0..grants.len()).filter(|at| answers[*at].is_none()) {
        cells.entry(&grants[at].name).or_default().push(at);
    }
    let cells = cells.into_values().map(|cell| async move {
        let mut answers = Vec::new();
        for at in cell {
            answers.push((at, locks.step(&grants[at].name, &renewing(&grants[at])).await));
        }
        answers
    });
    join_all(cells).await.into_iter().flatten().collect()
}

/// Renewals in one request, and the results so far.
struct RenewalBatch<'a, C: Cell> {
    locks: &'a Locks<C>,
    over: &'a C::Connection,
    grants: &'a [Grant],
    begun: Moment,
    answers: &'a mut [Option<Renewal>],
}

/// The number of a grant, and the draft to store for it.
type Numbered = (usize, Draft<Renewal>);

/// The number of a grant, and its cell.
type Found = (usize, CellReading);

impl<C: Cell> RenewalBatch<'_, C> {
    /// Renews the leases that need no wait for another client: first on the ledger stored last, then on the
    /// one read.
    async fn renew(mut self) -> Result<(), CellError> {
        // Two holders of one cell are renewed one after the other.
        let mut names = HashSet::new();
        let firsts = (0..self.grants.len()).filter(|at| names.insert(&self.grants[*at].name));
        let mut rest: Vec<usize> = firsts.collect();
        let guess = |&at: &usize| {
            let grant = &self.grants[at];
            let draft = self.locks.guess(&grant.name, &renewing(grant), self.begun)?;
            self.is_plain(&draft).then_some((at, draft))
        };
        let guesses: Vec<Numbered> = rest.iter().filter_map(guess).collect();
        let found = self.write(guesses).await?;
        rest.retain(|at| self.answers[*at].is_none());
        if rest.is_empty() {
            return Ok(());
        }
        let readings = self.read(&rest, found).await?;
        let drafts = self.drafts(readings)?;
        self.write(drafts).await.map(drop)
    }

    /// It notifies no other process, and ends no lease on which a transaction may rely.
    fn is_plain(&self, draft: &Draft<Renewal>) -> bool {
        draft.shown.is_none() && self.locks.elsewhere(&draft.hints()).is_empty()
    }

    /// Reads the rest, but for those that the writes have found.
    async fn read(&self, rest: &[usize], mut found: Vec<Found>) -> Result<Vec<Found>, CellError> {
        let unknown = rest.iter().copied().filter(|at| !found.iter().any(|(known, _)| known == at));
        let unknown: Vec<usize> = unknown.collect();
        if !unknown.is_empty() {
            let names: Vec<&LockName> = unknown.iter().map(|at| &self.grants[*at].name).collect();
            let readings = self.locks.cell.read_many(self.over, &names).await?;
            let readings = unknown.into_iter().zip(readings);
            found.extend(readings.filter_map(|(at, reading)| reading.map(|reading| (at, reading))));
        }
        Ok(found)
    }

    /// All are written: that also confirms that a lease is gone.
    fn drafts(&self, readings: Vec<Found>) -> Result<Vec<Numbered>, CellError> {
        let (locks, memory) = (self.locks, &self.locks.shared.memory);
        let mut drafts = Vec::new();
        for (at, reading) in readings {
            let snapshot =
                Snapshot::of(reading, &locks.shared.rules).map_err(|error| locks.unreadable(error))?;
            // A cell with an unacknowledged write is renewed alone.
            if memory.settle_below(&self.grants[at].name, snapshot.version) {
                continue;
            }
            let renewing = renewing(&self.grants[at]);
            let draft =
                locks.draft((snapshot, None), &renewing, (self.begun, 0)).map_err(CellError::Refused)?;
            if self.is_plain(&draft) {
                drafts.push((at, draft));
            }
        }
        Ok(drafts)
    }

    /// Writes the drafts whose cells have not changed and that no client has locked. Returns the others as they were
    /// found.
    async fn write(&mut self, drafts: Vec<Numbered>) -> Result<Vec<Found>, CellError> {
        let mut found = Vec::new();
        if drafts.is_empty() {
            return Ok(found);
        }
        let (locks, grants, memory) = (self.locks, self.grants, &self.locks.shared.memory);
        let states: Vec<String> = drafts.iter().map(|(_, draft)| draft.text()).collect();
        let texts = drafts.iter().zip(&states);
        let mut writes: Vec<(&LockName, CellWrite<'_>)> =
            texts.map(|((at, draft), state)| (&grants[*at].name, draft.write(state, &[]))).collect();
        // One window for all of them.
        let from = writes.iter().map(|(_, write)| write.within.0).max().unwrap_or_default();
        let until = writes.iter().map(|(_, write)| write.within.1).min().unwrap_or_default();
        writes.iter_mut().for_each(|(_, write)| write.within = (from, until));
        let sent = |(at, draft): &Numbered| {
            let name = &grants[*at].name;
            WriteInFlight::new(locks, name, draft.version, draft.hints())
        };
        let sent: Vec<_> = drafts.iter().map(sent).collect();
        let sent_at = locks.shared.host.now();
        let answer = locks.cell.write_many(self.over, &writes).await;
        if matches!(answer, Err(CellError::Broken(_))) {
            return answer.map(|_| found);
        }
        let hints: Vec<_> = sent.into_iter().map(WriteInFlight::settle).collect();
        for ((((at, draft), state), hints), stored) in drafts.into_iter().zip(states).zip(hints).zip(answer?)
        {
            let name = &grants[at].name;
            match stored {
                WriteAnswer::Done(WrittenCell { at: time, is_ours: true }) => {
                    memory.learn(time, (sent_at, locks.shared.host.now()));
                    self.answers[at] = Some(locks.stored(name, draft, state, &hints));
                }
                WriteAnswer::Changed(now) => {
                    memory.forget(name);
                    found.extend(now.map(|now| (at, now)));
                }
                // A locked cell is renewed alone. If the store altered the written text, the next single verb detects
                // it.
                WriteAnswer::Locked(_) | WriteAnswer::Done(_) => memory.forget(name),
            }
        }
        Ok(found)
    }
}

fn renewing(grant: &Grant) -> RenewVerb {
    RenewVerb { owner: grant.owner, ttl: grant.ttl }
}

/// Reads, once more on a new connection where the first one broke.
async fn looking<C: Cell, A, F>(
    locks: &Locks<C>,
    look: impl Fn(C::Connection) -> F,
) -> Result<A, BackendError>
where
    F: Future<Output = Result<A, CellError>>,
{
    let failure = match look(locks.connect(ConnectionPurpose::Use).await?).await {
        Ok(answer) => return Ok(answer),
        Err(CellError::Refused(error)) => return Err(error),
        Err(failure) => failure,
    };
    tracing::debug!(?failure, "asked again");
    look(locks.connect(ConnectionPurpose::Use).await?)
        .await
        .map_err(|failure| failure.into_error(|trouble| locks.cell.error(trouble)))
}

/// Leaves out texts that are not a place.
fn places(texts: Vec<String>) -> Vec<Place> {
    texts.iter().filter_map(|text| Place::from_text(text).ok()).collect()
}

impl CellVerb for Claim {
    type Answer = ClaimAnswer;
    const CREATES: bool = true;
    const IN_TURN: bool = true;

    fn run(&self, ledger: &mut Ledger, at: &StepStart) -> Result<Change<ClaimAnswer>, LedgerError> {
        let rules = crowded(&at.rules, ledger.waiting());
        let longer = self.clone().with_ttl(self.ttl + at.tolerance);
        let mut change = ledger.claim(at.now, &rules, &longer)?;
        // The requested ttl is the valid one.
        if let ClaimAnswer::Granted(grant) = &mut change.answer {
            grant.ttl = self.ttl;
        }
        Ok(change)
    }

    fn claim(&self) -> Option<&Claim> {
        (self.wait != WaitMode::No).then_some(self)
    }

    fn must_be_wanted(&self) -> Result<(), BackendError> {
        self.asker.must_be_there()
    }

    /// A place that lasts until the request after the next needs no write.
    fn answer_unwritten(&self, ledger: &Ledger, rules: &Rules, now: Moment) -> Option<ClaimAnswer> {
        let rules = crowded(rules, ledger.waiting());
        ledger.standing(now, &rules, self, rules.retry_max * 3 / 2)
    }

    fn yields(&self, answer: &ClaimAnswer) -> bool {
        !matches!(answer, ClaimAnswer::Granted(_))
    }

    fn is_plain(&self, answer: &ClaimAnswer) -> bool {
        matches!(answer, ClaimAnswer::Granted(_))
    }

    /// The same owner asks again: it holds, or waits, or does not, and the ledger shows which.
    fn is_unsettled(&self, _maybe: &ClaimAnswer, _answer: &ClaimAnswer) -> bool {
        false
    }
}

/// Shows an owner to transactions.
struct ExposeVerb {
    owner: OwnerId,
    token: FencingToken,
}

impl CellVerb for ExposeVerb {
    type Answer = Exposed;
    const CREATES: bool = false;

    fn run(&self, ledger: &mut Ledger, at: &StepStart) -> Result<Change<Exposed>, LedgerError> {
        // A transaction that was refused, and stays open, has at most one of the rows locked.
        let slots = u64::from(SLOTS);
        let slot = (self.token.get() + u64::from(at.relied_on)) % slots;
        let slot = u32::try_from(slot).expect("BUG: there are a few");
        Ok(ledger.expose(at.now, &at.rules, (self.owner, self.token), slot))
    }

    fn is_confirmed(&self, _answer: &Exposed, _may_move: bool) -> bool {
        true
    }

    fn latest(&self, ledger: &Ledger) -> Option<Duration> {
        ledger.last_moment(self.owner)
    }

    fn is_plain(&self, answer: &Exposed) -> bool {
        matches!(answer, Exposed::Exposed { .. })
    }

    /// The same owner asks again, and the ledger shows what it has.
    fn is_unsettled(&self, _maybe: &Exposed, _answer: &Exposed) -> bool {
        false
    }
}

/// Extends the lease of an owner.
pub(crate) struct RenewVerb {
    pub(crate) owner: OwnerId,
    pub(crate) ttl: Duration,
}

impl CellVerb for RenewVerb {
    type Answer = Renewal;
    const CREATES: bool = false;
    // A foreign lock on one cell would end every lease that is renewed after it on the same connection.
    const WAITS: bool = false;

    fn run(&self, ledger: &mut Ledger, at: &StepStart) -> Result<Change<Renewal>, LedgerError> {
        Ok(ledger.renew(at.now, &at.rules, self.owner, self.ttl + at.tolerance))
    }

    fn is_confirmed(&self, _answer: &Renewal, _may_move: bool) -> bool {
        true
    }

    fn is_plain(&self, answer: &Renewal) -> bool {
        *answer == Renewal::Renewed
    }

    /// An owner that is gone now is gone, whatever the result of an earlier try.
    fn is_unsettled(&self, _maybe: &Renewal, _answer: &Renewal) -> bool {
        false
    }
}

/// Releases an owner's lease or place.
pub(crate) struct ReleaseVerb {
    pub(crate) owner: OwnerId,
    /// It had a place next to the cell, which may be about to move up.
    pub(crate) had_place: bool,
}

impl CellVerb for ReleaseVerb {
    type Answer = Released;
    const CREATES: bool = false;
    const ENDS_LEASES: bool = true;

    fn run(&self, ledger: &mut Ledger, at: &StepStart) -> Result<Change<Released>, LedgerError> {
        Ok(ledger.release(at.now, &at.rules, self.owner))
    }

    /// A place whose removal was answered was not in the cell, unless it has moved up since.
    fn is_confirmed(&self, _answer: &Released, may_move: bool) -> bool {
        !self.had_place || may_move
    }

    fn is_plain(&self, answer: &Released) -> bool {
        *answer == Released::Released
    }

    /// L9: it existed, and no longer does. This client's own try may have released it, or it had expired or was
    /// broken before that.
    fn is_unsettled(&self, maybe: &Released, answer: &Released) -> bool {
        (*maybe, *answer) == (Released::Released, Released::WasGone)
    }
}

/// Stores a memo.
pub(crate) struct NoteVerb<'a> {
    pub(crate) owner: OwnerId,
    pub(crate) token: FencingToken,
    pub(crate) memo: &'a Memo,
}

impl CellVerb for NoteVerb<'_> {
    type Answer = Noted;
    const CREATES: bool = false;

    fn run(&self, ledger: &mut Ledger, at: &StepStart) -> Result<Change<Noted>, LedgerError> {
        // Kept and aged from the write. Where answers are slow, the write arrives up to this much later than `now`;
        // otherwise a job would run too early (L1).
        let late = at.tolerance.saturating_sub(TOLERANCE);
        let longer = Memo::new(self.memo.text(), self.memo.kept() + at.tolerance - late);
        let memo = longer.as_ref().unwrap_or(self.memo);
        Ok(ledger.note((at.now, at.now + late), &at.rules, (self.owner, self.token), memo))
    }

    fn is_confirmed(&self, _answer: &Noted, _may_move: bool) -> bool {
        true
    }

    /// L4: no memo is written after its lease has ended, even if the lock is still free.
    fn latest(&self, ledger: &Ledger) -> Option<Duration> {
        ledger.last_moment(self.owner)
    }

    fn is_plain(&self, answer: &Noted) -> bool {
        *answer == Noted::Noted
    }

    /// L9: an earlier try may have stored it, before the lease ended.
    fn is_unsettled(&self, maybe: &Noted, answer: &Noted) -> bool {
        (*maybe, *answer) == (Noted::Noted, Noted::Gone)
    }
}

/// Reads the memo. A write confirms it, even though nothing is changed: a proxy may send readings to a replica, which is
/// late or has another clock.
struct MemoVerb<'a>(&'a LockName);

impl CellVerb for MemoVerb<'_> {
    type Answer = Option<MemoView>;
    // A replica may lack a cell that is there.
    const CREATES: bool = true;

    fn run(&self, ledger: &mut Ledger, at: &StepStart) -> Result<Change<Option<MemoView>>, LedgerError> {
        let answer = ledger.view(self.0.clone(), at.now).memo;
        Ok(Change { answer, wakes: Vec::new(), changed: true })
    }

    fn is_plain(&self, _answer: &Option<MemoView>) -> bool {
        true
    }

    /// An earlier try has changed nothing.
    fn is_unsettled(&self, _maybe: &Option<MemoView>, _answer: &Option<MemoView>) -> bool {
        false
    }
}

/// Releases the lock by force.
pub(crate) struct BreakVerb(pub(crate) BreakScope);

impl CellVerb for BreakVerb {
    type Answer = Vec<HolderView>;
    const CREATES: bool = true;
    const ENDS_LEASES: bool = true;
    const IN_TURN: bool = true;

    fn run(&self, ledger: &mut Ledger, at: &StepStart) -> Result<Change<Vec<HolderView>>, LedgerError> {
        ledger.break_lock(at.now, &at.rules, self.0)
    }

    fn is_confirmed(&self, _answer: &Vec<HolderView>, _may_move: bool) -> bool {
        true
    }

    /// Never: `break` reports the former holders, so it reads them first.
    fn is_plain(&self, _answer: &Vec<HolderView>) -> bool {
        false
    }

    /// L9: an earlier try may have ended the hold of a holder that this one did not find.
    fn is_unsettled(&self, maybe: &Vec<HolderView>, answer: &Vec<HolderView>) -> bool {
        maybe.iter().any(|broken| !answer.iter().any(|again| again.owner == broken.owner))
    }
}

/// Leases that one request renews: a store keeps the written rows locked until the commit.
const RENEWALS_MAX: usize = 128;

/// Places from the front whose turn may come at any moment.
const NEAR: usize = 4;

/// Fraction of the claim ttl: how soon the first waiter asks again, and the assumed speed of a queue.
const STEP: u32 = 20;

/// How many times longer a waiter pauses than its request took.
const SHARE: u32 = 8;

/// How often the removal of a place is tried while another client writes the place.
const REMOVALS: usize = 8;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::{Claim, Label, Mode, ProcessId, WaitMode};

    use super::*;

    /// L1: if a write arrived seconds after its reading, the memo had the age of the reading, and the job ran too early.
    #[test]
    fn a_memo_is_not_older_than_its_write() {
        let at = |seconds| Moment { boot: Duration::from_secs(seconds), wall: Duration::from_secs(seconds) };
        let owner = OwnerId::from_random(ProcessId::from_random([1; 8]), [1; 16]);
        let (name, label) = (LockName::new("one").unwrap(), Arc::new(Label::new("h", 1, "u", "c")));
        let (mode, ttl, kept) = (Mode::Exclusive, Duration::from_secs(60), Duration::from_secs(30));
        let claim = Claim::new(name.clone(), owner, mode, ttl).with_label(label).with_wait(WaitMode::Turn);
        let (rules, memo) = (Rules::default(), Memo::new("ran", kept).unwrap());
        let verb = NoteVerb { owner, token: FencingToken::new(u64::MAX), memo: &memo };
        for (tolerance, age) in [(TOLERANCE, 5), (TOLERANCE + Duration::from_secs(3), 2)] {
            let mut ledger = Ledger::new(0);
            assert_eq!(verb.latest(&ledger), None);
            drop(ledger.claim(at(100), &rules, &claim).unwrap());
            // L4: it is not written when the lease has ended, even if no other client has acquired the lock.
            assert_eq!(verb.latest(&ledger), Some(Duration::from_secs(160) - Duration::from_micros(1)));
            let start = StepStart { rules, now: at(100), tolerance, relied_on: 0 };
            assert_eq!(verb.run(&mut ledger, &start).unwrap().answer, Noted::Noted);
            let seen = ledger.view(name.clone(), at(105)).memo.unwrap();
            assert_eq!(seen.age.as_millis().div_ceil(1000), age, "{tolerance:?}");
            assert!(seen.left + Duration::from_secs(u64::try_from(age).unwrap()) >= kept, "{:?}", seen.left);
        }
    }

    /// With 50 processes behind a pooler on a busy machine the requests of the waiters filled the pool, and the
    /// holder's release was not answered for seconds: they asked at a fixed pace, faster than the server could
    /// answer.
    #[test]
    fn a_waiter_asks_a_slow_server_less_often() {
        let ms = Duration::from_millis;
        let pause = |ahead, stood, took| unnotified_pause(ms(500), ahead, (ms(stood), ms(took)));
        for (ahead, stood, took, expected) in [
            (0, 0, 2, 25),
            (0, 1600, 2, 100),
            (0, 1600, 20, 160),
            (0, 60_000, 2, 200),
            (1, 0, 2, 50),
            (3, 0, 30, 240),
            // Otherwise it would miss its turn.
            (3, 60_000, 2, 275),
            (3, 0, 900, 400),
            (4, 0, 2, 125),
            (40, 0, 2, 1025),
            (40, 60_000, 2, 1200),
            (40, 0, 900, 7200),
        ] {
            assert_eq!(pause(ahead, stood, took), ms(expected), "{ahead} ahead, {stood} ms, {took} ms");
        }
    }
}

//! `Locks` is a backend: its verbs, many renewals in one commit, and what can be seen.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use tenure_core::{
    Audience, Backend, BackendError, BackendHandle, Claim, ClaimAnswer, ErrorKind, FencingToken, Finding,
    Grant, Hint, HolderView, LockName, LockView, Memo, Noted, Outcome, OwnerId, ProcessId, Promises,
    Released, Renewal, Wait, Wakes,
};
use tenure_ledger::{Ledger, Place};

use crate::{
    cell::{Cell, Failure, Listed, Look, OldPlace, Purpose, Reading, Stored, Trouble, Write},
    locks::{Draft, Locks, Unacknowledged},
    memory::{OwnPlace, moment},
    snapshot::{Beside, Snapshot},
    text::{decode, with_places},
    verb::{Breaking, Leaving, Noting, Renewing},
};

#[async_trait]
impl<C: Cell> Backend for Locks<C> {
    fn promises(&self) -> Promises {
        self.cell.promises()
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(Self::sharing(self.cell.another().await?, self.shared.clone())))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        allow(self, claim.ttl)?;
        let asked = self.shared.host.now();
        let mut answer = if claim.wait == Wait::No {
            self.step(&claim.name, claim).await?
        } else {
            wait(self, claim).await?
        };
        if let ClaimAnswer::Queued { ahead, retry_after, .. } = &mut answer {
            spread(self, retry_after, *ahead, asked.elapsed(self.shared.host.now()));
        }
        Ok(answer)
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let batches = grants.chunks(self.cell.batch().max(1)).map(|batch| renew_batch(self, batch));
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let own_places = &self.shared.own_places;
        let Some(own) = own_places.find(name, owner) else {
            own_places.leave(name, owner);
            return self.step(name, &Leaving { owner, had_place: false }).await;
        };
        let is_taken = withdraw(self, name, owner, &own).await?;
        if is_taken {
            own_places.taken(name, owner);
        }
        let had_place = is_taken || own.had_one;
        let released = self.step(name, &Leaving { owner, had_place }).await;
        let released = if is_taken { released.map_err(BackendError::of_unknown_outcome)? } else { released? };
        // A place whose making had no answer may come yet: the next release looks for it again.
        if had_place || !own.is_doubted {
            own_places.leave(name, owner);
        }
        Ok(if is_taken { Released::Released } else { released })
    }

    async fn tell(&self, _name: &LockName, audience: Audience, owner: OwnerId) -> Result<(), BackendError> {
        let hint = Hint { audience, owner, is_behind: false };
        if self.cell.reaches(hint) {
            self.cell.ring(hint);
            // Observers are everywhere; a holder is in one process.
            if audience != Audience::Observers {
                return Ok(());
            }
        }
        let over = self.cell.connect(Purpose::Use).await?;
        self.cell.tell(&over, hint).await.map_err(|failure| failed(self, failure))
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.step(name, &Noting { owner, token, memo }).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        self.cell.wakes(process, audience)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        looking(self, |over| async move {
            let reading = self.cell.read(&over, name, &Look::default()).await?;
            let Reading { state, now, overflow, .. } = reading;
            let ledger = if state.is_empty() { Ok(Ledger::new(0)) } else { decode(&state) };
            let ledger = ledger.map_err(|error| self.unreadable(error))?;
            let places = match overflow.map(|overflow| Beside::of(overflow).whole()) {
                Some(None) => places(self.cell.places(&over, name).await?),
                Some(Some(all)) => all,
                None => Vec::new(),
            };
            Ok(with_places(ledger, places).view(name.clone(), moment(now)))
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

    async fn break_lock(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError> {
        self.step(name, &Breaking).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.cell.diagnose().await
    }
}

/// # Errors
/// `Invalid` for a lease that is longer than any.
fn allow<C: Cell>(locks: &Locks<C>, ttl: Duration) -> Result<(), BackendError> {
    let Promises { backend, max_ttl, .. } = locks.cell.promises();
    if ttl <= max_ttl {
        return Ok(());
    }
    let message = format!("{backend} takes a ttl of {max_ttl:?} at most");
    Err(BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message))
}

async fn wait<C: Cell>(locks: &Locks<C>, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
    let own_places = &locks.shared.own_places;
    own_places.ask(&claim.name, claim.owner, locks.shared.host.now());
    let answer = locks.step(&claim.name, claim).await;
    match &answer {
        Ok(ClaimAnswer::Granted(_)) => own_places.leave(&claim.name, claim.owner),
        Ok(_) => own_places.told(&claim.name, claim.owner),
        Err(_) => {}
    }
    answer
}

/// When to ask again.
///
/// Waiters that ask only for their own safety do not all ask at the same moment. A waiter that no hint reaches asks often: see
/// [`unheard_pause`].
fn spread<C: Cell>(locks: &Locks<C>, retry_after: &mut Duration, ahead: usize, took: Duration) {
    let rules = &locks.shared.rules;
    if !locks.cell.hears() {
        *retry_after = unheard_pause(rules.claim_ttl, ahead, took).min(*retry_after);
    }
    if *retry_after >= rules.claim_ttl / 5 {
        let mut chance = [0];
        locks.shared.host.random(&mut chance);
        *retry_after -= *retry_after * u32::from(chance[0]) / 1024;
    }
}

/// When a waiter asks again that no hint reaches, if its last question took so long.
///
/// A turn lasts for the claim ttl, so a waiter near the front asks at least twice in that time. A waiter further behind leaves the
/// store alone for [`SHARE`] times as long as its question took. So at most a ninth of the waiters ask at a time, however slow the store
/// is, and a holder's release finds a free connection in a pool.
fn unheard_pause(claim_ttl: Duration, ahead: usize, took: Duration) -> Duration {
    let (often, rarely) = (claim_ttl * 2 / 5, claim_ttl * 4 / 5);
    if ahead < NEAR { (took * SHARE).clamp(often, rarely) } else { (took * SHARE).max(rarely) }
}

/// Takes the place of an owner beside the cell away. True if it was there. It may have moved up in the same moment.
async fn withdraw<C: Cell>(
    locks: &Locks<C>,
    name: &LockName,
    owner: OwnerId,
    own: &OwnPlace,
) -> Result<bool, BackendError> {
    let over = locks.cell.connect(Purpose::Keep).await?;
    let place = OldPlace { owner, key: &own.key, may_have_another: own.is_doubted };
    let mut removed = locks.cell.remove_place(&over, name, &place).await;
    // In stricter isolations its removal is undone if another client writes it: it moves up, or is kept.
    for _ in 1..REMOVALS {
        if !matches!(removed, Err(Failure::Overtaken)) {
            break;
        }
        removed = locks.cell.remove_place(&over, name, &place).await;
    }
    match removed {
        Ok(was_there) => Ok(was_there),
        Err(Failure::Overtaken) => Err(locks.cell.error(Trouble::Overtaken)),
        Err(Failure::Locked) => Err(locks.cell.error(Trouble::Locked)),
        Err(Failure::Broken(error)) => Err(error.of_unknown_outcome()),
        Err(Failure::Refused(error)) => Err(error),
    }
}

type Answer = Result<Renewal, BackendError>;

async fn renew_batch<C: Cell>(locks: &Locks<C>, grants: &[Grant]) -> Vec<Answer> {
    let mut answers: Vec<Option<Renewal>> = vec![None; grants.len()];
    let mut is_unsure = false;
    if grants.len() > 1
        && let Ok(over) = locks.cell.connect(Purpose::Keep).await
    {
        let batch = Batch { locks, over: &over, grants, answers: &mut answers };
        if let Err(failure) = batch.renew().await {
            tracing::debug!(?failure, "leases are renewed one by one");
            is_unsure = matches!(failure, Failure::Broken(_));
        }
    }
    let mut answers: Vec<Option<Answer>> = answers.into_iter().map(|answer| answer.map(Ok)).collect();
    for (at, answer) in renew_apart(locks, grants, &answers).await {
        // L9: the request for all of them may have done it.
        let unsure = |error: BackendError| if is_unsure { error.of_unknown_outcome() } else { error };
        answers[at] = Some(answer.map_err(unsure));
    }
    answers.into_iter().map(|answer| answer.expect("BUG: one or the other has answered")).collect()
}

/// Each cell on its own; holders of one cell one after the other, so that they do not race each other for its version.
async fn renew_apart<C: Cell>(
    locks: &Locks<C>,
    grants: &[Grant],
    answers: &[Option<Answer>],
) -> Vec<(usize, Answer)> {
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

/// What is to be renewed together, and what came of it so far.
struct Batch<'a, C: Cell> {
    locks: &'a Locks<C>,
    over: &'a C::Connection,
    grants: &'a [Grant],
    answers: &'a mut [Option<Renewal>],
}

/// The number of a grant, and what is to be stored for it.
type Numbered = (usize, Draft<Renewal>);

impl<C: Cell> Batch<'_, C> {
    /// Renews the leases that need no wait for another client: first on the ledger stored last, then on the one read.
    async fn renew(mut self) -> Result<(), Failure> {
        // Two holders of one cell are renewed one after the other.
        let mut names = HashSet::new();
        let firsts = (0..self.grants.len()).filter(|at| names.insert(&self.grants[*at].name));
        let mut rest: Vec<usize> = firsts.collect();
        let now = self.locks.store_time();
        let guess = |&at: &usize| {
            let grant = &self.grants[at];
            let draft = self.locks.guess(&grant.name, &renewing(grant), now)?;
            self.tells_nobody(&draft).then_some((at, draft))
        };
        let guesses: Vec<Numbered> = rest.iter().filter_map(guess).collect();
        self.write(guesses).await?;
        rest.retain(|at| self.answers[*at].is_none());
        if rest.is_empty() {
            return Ok(());
        }
        let drafts = self.read(&rest).await?;
        self.write(drafts).await
    }

    fn tells_nobody(&self, draft: &Draft<Renewal>) -> bool {
        self.locks.elsewhere(&draft.hints()).is_empty()
    }

    /// Reads the rest. A lease that is gone and changes nothing has its answer; the others are written.
    async fn read(&mut self, rest: &[usize]) -> Result<Vec<Numbered>, Failure> {
        let (locks, memory) = (self.locks, &self.locks.shared.memory);
        let names: Vec<&LockName> = rest.iter().map(|at| &self.grants[*at].name).collect();
        let readings = locks.cell.read_many(self.over, &names).await?;
        let mut drafts = Vec::new();
        for (&at, reading) in rest.iter().zip(readings) {
            let Some(reading) = reading else { continue };
            memory.learn(reading.now, locks.shared.host.now());
            let snapshot =
                Snapshot::of(reading, &locks.shared.rules).map_err(|error| locks.unreadable(error))?;
            // What is in doubt is settled alone.
            if memory.is_in_doubt(&self.grants[at].name, snapshot.version) {
                continue;
            }
            let renewing = renewing(&self.grants[at]);
            let draft = locks.draft((snapshot, None), &renewing).map_err(Failure::Refused)?;
            if !draft.change.changed {
                self.answers[at] = Some(draft.change.answer);
            } else if self.tells_nobody(&draft) {
                drafts.push((at, draft));
            }
        }
        Ok(drafts)
    }

    /// Writes the drafts whose cells have not changed and that no client has locked.
    async fn write(&mut self, drafts: Vec<Numbered>) -> Result<(), Failure> {
        if drafts.is_empty() {
            return Ok(());
        }
        let (locks, grants, memory) = (self.locks, self.grants, &self.locks.shared.memory);
        let states: Vec<String> = drafts.iter().map(|(_, draft)| draft.text()).collect();
        let texts = drafts.iter().zip(&states);
        let mut writes: Vec<(&LockName, Write<'_>)> =
            texts.map(|((at, draft), state)| (&grants[*at].name, draft.write(state, &[]))).collect();
        // One window for all of them.
        let from = writes.iter().map(|(_, write)| write.within.0).max().unwrap_or_default();
        let until = writes.iter().map(|(_, write)| write.within.1).min().unwrap_or_default();
        writes.iter_mut().for_each(|(_, write)| write.within = (from, until));
        let sent = |(at, draft): &Numbered| {
            let name = &grants[*at].name;
            Unacknowledged::new(locks, name, draft.version, draft.hints())
        };
        let sent: Vec<_> = drafts.iter().map(sent).collect();
        let answer = locks.cell.write_many(self.over, &writes).await;
        if matches!(answer, Err(Failure::Broken(_))) {
            return answer.map(drop);
        }
        let hints: Vec<_> = sent.into_iter().map(Unacknowledged::settle).collect();
        for ((((at, draft), state), hints), stored) in drafts.into_iter().zip(states).zip(hints).zip(answer?)
        {
            let name = &grants[at].name;
            match stored {
                Some(Stored { at: time, is_ours: true }) => {
                    memory.learn(time, locks.shared.host.now());
                    self.answers[at] = Some(locks.stored(name, draft, state, &hints));
                }
                // The cell had changed; or the store alters what is written, which the next single verb finds out.
                _ => memory.forget(name),
            }
        }
        Ok(())
    }
}

fn renewing(grant: &Grant) -> Renewing {
    Renewing { owner: grant.owner, ttl: grant.ttl }
}

/// Reads, once more on a new connection where the first one broke.
async fn looking<C: Cell, A, F>(
    locks: &Locks<C>,
    look: impl Fn(C::Connection) -> F,
) -> Result<A, BackendError>
where
    F: Future<Output = Result<A, Failure>>,
{
    let failure = match look(locks.cell.connect(Purpose::Use).await?).await {
        Ok(answer) => return Ok(answer),
        Err(Failure::Refused(error)) => return Err(error),
        Err(failure) => failure,
    };
    tracing::debug!(?failure, "asked again");
    look(locks.cell.connect(Purpose::Use).await?).await.map_err(|failure| failed(locks, failure))
}

/// What is said of a failure that is not asked again.
fn failed<C: Cell>(locks: &Locks<C>, failure: Failure) -> BackendError {
    match failure {
        Failure::Overtaken => locks.cell.error(Trouble::Overtaken),
        Failure::Locked => locks.cell.error(Trouble::Locked),
        Failure::Broken(error) | Failure::Refused(error) => error,
    }
}

/// Leaves out what is none.
fn places(texts: Vec<String>) -> Vec<Place> {
    texts.iter().filter_map(|text| Place::from_text(text).ok()).collect()
}

/// Places from the front whose turn may come at any moment.
const NEAR: usize = 4;

/// How much longer a waiter pauses than its question took.
const SHARE: u32 = 8;

/// How often the removal of a place is tried that another client writes at the same time.
const REMOVALS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// With 50 processes behind a pooler on a busy machine the questions of the waiters filled the pool, and the holder's release was not
    /// answered for seconds: they asked at a fixed pace, faster than the server could answer.
    #[test]
    fn a_waiter_asks_a_slow_server_less_often() {
        let pause =
            |ahead, took| unheard_pause(Duration::from_millis(500), ahead, Duration::from_millis(took));
        for (ahead, took, expected) in [
            (0, 2, 200),
            (3, 30, 240),
            // Or it would miss its turn.
            (3, 900, 400),
            (4, 2, 400),
            (4, 50, 400),
            (40, 100, 800),
            (40, 900, 7200),
        ] {
            assert_eq!(pause(ahead, took), Duration::from_millis(expected), "{ahead} ahead, {took} ms");
        }
    }
}

//! Many leases in one commit.

use std::collections::{BTreeMap, HashSet};

use futures_util::future::join_all;
use tenure_core::{BackendError, Grant, LockName, Renewal};

use crate::{
    cell::{Cell, Failure, Purpose, Stored, Write},
    draft::Draft,
    locks::Locks,
    snapshot::Snapshot,
    unacknowledged::Unacknowledged,
    verb::Renewing,
};

type Answer = Result<Renewal, BackendError>;

/// What is to be renewed together, and what came of it so far.
struct Batch<'a, C: Cell> {
    locks: &'a Locks<C>,
    over: &'a C::Connection,
    grants: &'a [Grant],
    answers: &'a mut [Option<Renewal>],
}

/// The number of a grant, and what is to be stored for it.
type Numbered = (usize, Draft<Renewal>);

impl<C: Cell> Locks<C> {
    /// One answer per grant, in order.
    pub(crate) async fn renew_all(&self, grants: &[Grant]) -> Vec<Answer> {
        let batches = grants.chunks(self.cell.batch().max(1)).map(|batch| self.renew_batch(batch));
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn renew_batch(&self, grants: &[Grant]) -> Vec<Answer> {
        let mut answers: Vec<Option<Renewal>> = vec![None; grants.len()];
        let mut is_unsure = false;
        if grants.len() > 1
            && let Ok(over) = self.cell.connect(Purpose::Keep).await
        {
            let batch = Batch { locks: self, over: &over, grants, answers: &mut answers };
            if let Err(failure) = batch.renew().await {
                tracing::debug!(?failure, "leases are renewed one by one");
                is_unsure = matches!(failure, Failure::Broken(_));
            }
        }
        let mut answers: Vec<Option<Answer>> = answers.into_iter().map(|answer| answer.map(Ok)).collect();
        for (at, answer) in self.renew_apart(grants, &answers).await {
            // L9: the request for all of them may have done it.
            let unsure = |error: BackendError| if is_unsure { error.of_unknown_outcome() } else { error };
            answers[at] = Some(answer.map_err(unsure));
        }
        answers.into_iter().map(|answer| answer.expect("BUG: one or the other has answered")).collect()
    }

    /// Each cell on its own; holders of one cell one after the other, so that they do not race each other for its version.
    async fn renew_apart(&self, grants: &[Grant], answers: &[Option<Answer>]) -> Vec<(usize, Answer)> {
        let mut cells: BTreeMap<&LockName, Vec<usize>> = BTreeMap::new();
        for at in (0..grants.len()).filter(|at| answers[*at].is_none()) {
            cells.entry(&grants[at].name).or_default().push(at);
        }
        let cells = cells.into_values().map(|cell| async move {
            let mut answers = Vec::new();
            for at in cell {
                answers.push((at, self.step(&grants[at].name, &renewing(&grants[at])).await));
            }
            answers
        });
        join_all(cells).await.into_iter().flatten().collect()
    }
}

impl<C: Cell> Batch<'_, C> {
    /// Renews what can be renewed without waiting for anybody: first on what was stored last, then on what is read.
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

    /// Reads the rest. Who is gone and changes nothing has its answer; the others are to be written.
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

    /// Writes those drafts whose cells are as they were and that nobody has locked.
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
                // It was not as it had been seen; or somebody changes what is written, which is found out alone.
                _ => memory.forget(name),
            }
        }
        Ok(())
    }
}

fn renewing(grant: &Grant) -> Renewing {
    Renewing { owner: grant.owner, ttl: grant.ttl }
}

//! Many leases in one commit.

use std::collections::{HashMap, HashSet};

use futures_util::future::join_all;
use tenure_core::{BackendError, Grant, LockName, Renewal};
use tokio_postgres::types::Type;

use crate::{
    doubt::Doubt,
    error::Failure,
    line::{Argument, Line},
    memory::Seen,
    memory::since_epoch,
    store::Store,
    verb::Renewing,
    write::{Draft, window},
};

/// Leases that one statement renews: what it holds it holds for one commit.
const BATCH: usize = 128;

type Answer = Result<Renewal, BackendError>;

impl Store {
    /// One answer per grant, in order.
    pub(crate) async fn renew(&self, grants: &[Grant]) -> Vec<Answer> {
        let batches = grants.chunks(BATCH).map(|batch| self.renew_batch(batch));
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn renew_batch(&self, grants: &[Grant]) -> Vec<Answer> {
        let mut answers: Vec<Option<Renewal>> = vec![None; grants.len()];
        let mut is_unsure = false;
        if grants.len() > 1
            && let Ok(line) = self.lines.line().await
            && let Err(failure) = self.renew_together(&line, grants, &mut answers).await
        {
            tracing::debug!(?failure, "leases are renewed one by one");
            is_unsure = matches!(failure, Failure::Broken(_));
        }
        let mut answers: Vec<Option<Answer>> = answers.into_iter().map(|answer| answer.map(Ok)).collect();
        for (at, answer) in self.renew_apart(grants, &answers).await {
            // L9: the statement for all of them may have done it.
            let unsure = |error: BackendError| if is_unsure { error.of_unknown_outcome() } else { error };
            answers[at] = Some(answer.map_err(unsure));
        }
        answers.into_iter().map(|answer| answer.expect("BUG: one or the other has answered")).collect()
    }

    /// Each row on its own; holders of one row one after the other, so that they do not race each other for its version.
    async fn renew_apart(&self, grants: &[Grant], answers: &[Option<Answer>]) -> Vec<(usize, Answer)> {
        let mut rows: HashMap<&LockName, Vec<usize>> = HashMap::new();
        for at in (0..grants.len()).filter(|at| answers[*at].is_none()) {
            rows.entry(&grants[at].name).or_default().push(at);
        }
        let rows = rows.into_values().map(|row| async move {
            let mut answers = Vec::new();
            for at in row {
                answers.push((at, self.step(&grants[at].name, false, &renewing(&grants[at])).await));
            }
            answers
        });
        join_all(rows).await.into_iter().flatten().collect()
    }

    /// Renews what can be renewed without waiting for anybody: first on what was seen last, then on what is read.
    async fn renew_together(
        &self,
        line: &Line,
        grants: &[Grant],
        answers: &mut [Option<Renewal>],
    ) -> Result<(), Failure> {
        if !line.facts().takes_writes {
            return Ok(());
        }
        // Two holders of one row are renewed one after the other.
        let mut names = HashSet::new();
        let mut rest: Vec<usize> = (0..grants.len()).filter(|at| names.insert(&grants[*at].name)).collect();
        let now = self.server_time();
        let guesses = rest.iter().filter_map(|&at| {
            let grant = &grants[at];
            let draft = self.guess(&grant.name, &renewing(grant), now)?;
            let is_alone = self.elsewhere(&draft.change.wakes).next().is_none();
            is_alone.then_some((at, draft))
        });
        let guesses: Vec<(usize, Draft<Renewal>)> = guesses.collect();
        self.write_all(line, grants, guesses, answers).await?;
        rest.retain(|at| answers[*at].is_none());
        if rest.is_empty() {
            return Ok(());
        }
        let drafts = self.read_all(line, grants, &rest, answers).await?;
        self.write_all(line, grants, drafts, answers).await
    }

    /// Reads the rest. Who is gone and changes nothing has its answer; the others are to be written.
    async fn read_all(
        &self,
        line: &Line,
        grants: &[Grant],
        rest: &[usize],
        answers: &mut [Option<Renewal>],
    ) -> Result<Vec<(usize, Draft<Renewal>)>, Failure> {
        let names: Vec<&str> = rest.iter().map(|at| grants[*at].name.as_str()).collect();
        let rows = line.ask(&self.shared().sql.read_many, &[(&names, Type::TEXT_ARRAY)]).await?;
        let mut drafts = Vec::new();
        for row in rows {
            let name: &str = row.try_get(0).map_err(|error| Failure::Refused(line.unreadable(error)))?;
            let Some(&at) = rest.iter().find(|at| grants[**at].name.as_str() == name) else { continue };
            let sight = self.sight(line, &row, 1)?;
            // What is in doubt is settled alone.
            if self.shared().memory.is_in_doubt(&grants[at].name, sight.version) {
                continue;
            }
            let draft = self.draft((sight, None), &renewing(&grants[at])).map_err(Failure::Refused)?;
            if !draft.change.changed {
                answers[at] = Some(draft.change.answer);
            } else if self.elsewhere(&draft.change.wakes).next().is_none() {
                drafts.push((at, draft));
            }
        }
        Ok(drafts)
    }

    /// Writes those drafts whose rows are as they were and that nobody has locked.
    async fn write_all(
        &self,
        line: &Line,
        grants: &[Grant],
        drafts: Vec<(usize, Draft<Renewal>)>,
        answers: &mut [Option<Renewal>],
    ) -> Result<(), Failure> {
        if drafts.is_empty() {
            return Ok(());
        }
        let name = |at: &usize| &grants[*at].name;
        let names: Vec<&str> = drafts.iter().map(|(at, _)| name(at).as_str()).collect();
        let versions: Vec<i64> = drafts.iter().map(|(_, draft)| draft.version).collect();
        let busy: Vec<bool> = drafts.iter().map(|(_, draft)| draft.is_busy()).collect();
        let states: Vec<String> = drafts.iter().map(|(_, draft)| draft.text()).collect();
        let before: Vec<&str> = drafts.iter().map(|(_, draft)| draft.before.as_str()).collect();
        let (from, until) = window(drafts[0].1.guessed);
        let memory = &self.shared().memory;
        let doubt = |(at, draft): &(usize, Draft<Renewal>)| {
            Doubt::new(memory, &self.ears, (name(at), draft.version), draft.news(name(at)))
        };
        let doubts: Vec<_> = drafts.iter().map(doubt).collect();
        let arguments: [Argument<'_>; 7] = [
            (&names, Type::TEXT_ARRAY),
            (&versions, Type::INT8_ARRAY),
            (&busy, Type::BOOL_ARRAY),
            (&states, Type::TEXT_ARRAY),
            (&before, Type::TEXT_ARRAY),
            (&from, Type::TIMESTAMPTZ),
            (&until, Type::TIMESTAMPTZ),
        ];
        let answer = line.write(&self.shared().sql.write_many, &arguments).await;
        if matches!(answer, Err(Failure::Broken(_))) {
            return answer.map(drop);
        }
        let news = doubts.into_iter().map(Doubt::settle);
        let drafts = drafts.into_iter().zip(states).zip(news);
        let mut sent: HashMap<&str, _> = drafts
            .map(|(((at, draft), state), news)| (name(&at).as_str(), (at, draft, state, news)))
            .collect();
        for row in answer? {
            let unreadable = |error| Failure::Refused(line.unreadable(error));
            let written: &str = row.try_get(0).map_err(unreadable)?;
            let is_ours: bool = row.try_get(2).map_err(unreadable)?;
            // What becomes of one that a trigger has changed is found out alone.
            if !is_ours {
                continue;
            }
            let now = self.shared().host.now();
            memory.learn(since_epoch(row.try_get(1).map_err(unreadable)?), now);
            let Some((at, draft, state, news)) = sent.remove(written) else { continue };
            let version = draft.next_version();
            let seen = Seen { version, state, ledger: draft.ledger, is_long: draft.is_long, at: now };
            self.stored(&grants[at].name, seen, &news);
            answers[at] = Some(draft.change.answer);
        }
        // The others were not as they had been seen.
        sent.into_values().for_each(|(at, ..)| memory.forget(name(&at)));
        Ok(())
    }
}

fn renewing(grant: &Grant) -> Renewing {
    Renewing { owner: grant.owner, ttl: grant.ttl }
}

//! Renewing: one quorum write that changes nothing and checks that all the nodes are there.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::{Either, join_all, select, try_join_all};
use tenure_core::{BackendError, Grant, Moment, Renewal};
use zookeeper_client::{Error, MultiWriteError};

use crate::{error, leave::ANY_VERSION, session::Session, sessions::Sessions};

type Answer = Result<Renewal, BackendError>;

/// One answer per grant, in order. Only the session of a node can renew it.
///
/// All sessions are asked at once. One that hangs withholds nobody else's answer: where there are others, it has an
/// eighth of
/// the shortest ttl, less than whoever asked waits for all.
pub(crate) async fn renew(sessions: &Sessions, grants: &[Grant]) -> Vec<Answer> {
    let started = sessions.host.now();
    let mut answers: Vec<Answer> = vec![Ok(Renewal::Gone); grants.len()];
    let mut asked = Vec::new();
    for session in sessions.living() {
        let held = held(&session, grants, started, &mut answers);
        if !held.is_empty() {
            asked.push((session, held));
        }
    }
    let shortest = asked.iter().flat_map(|(_, held)| held).map(|held| held.ttl).min().unwrap_or_default();
    let deadline = (asked.len() > 1).then(|| started + shortest / 8);
    let renewed = asked.iter().map(|(session, held)| renew_in(session, held, started, deadline));
    for (at, answer) in join_all(renewed).await.into_iter().flatten() {
        answers[at] = answer;
    }
    answers
}

/// The answers for the grants of one session, with their positions in the list.
async fn renew_in(
    session: &Session,
    held: &[Held<'_>],
    started: Moment,
    deadline: Option<Moment>,
) -> Vec<(usize, Answer)> {
    let longest = held.iter().map(|held| held.ttl).max().unwrap_or_default();
    let checked = async {
        session.proven(started, longest).await?;
        check_all(session, held).await
    };
    let outcome = match deadline {
        None => checked.await,
        Some(deadline) => match select(pin!(checked), session.host.sleep_until(deadline)).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => Err(error::unanswered(&session.place())),
        },
    };
    let answer = |(index, held): (usize, &Held<'_>)| match &outcome {
        Ok(gone) if gone.contains(&index) || !still_holds(session, held) => (held.at, Ok(Renewal::Gone)),
        Ok(_) => (held.at, Ok(Renewal::Renewed)),
        // Its node is kept for another ttl all the same (L9).
        Err(error) => (held.at, Err(error.clone().of_unknown_outcome())),
    };
    held.iter().enumerate().map(answer).collect()
}

/// A grant whose node this session has.
struct Held<'a> {
    /// Where in the list of grants.
    at: usize,
    grant: &'a Grant,
    node: String,
    ttl: Duration,
}

/// Those of the grants that this session holds, each kept for its ttl from now on: what is asked for now is not deleted
/// meanwhile.
fn held<'a>(
    session: &Arc<Session>,
    grants: &'a [Grant],
    now: Moment,
    answers: &mut [Answer],
) -> Vec<Held<'a>> {
    let mut held = Vec::new();
    for (at, grant) in grants.iter().enumerate() {
        if let Err(error) = session.vouches_for(grant.ttl) {
            if session.with_entry(grant.owner, |entry| entry.holds()) == Some(true) {
                answers[at] = Err(error);
            }
            continue;
        }
        let node = session.with_entry(grant.owner, |entry| {
            let node = entry.node.as_ref().filter(|_| entry.holds())?;
            let path = format!("{}/{}", entry.lock, node.name);
            entry.keep_until(now + grant.ttl);
            Some(path)
        });
        held.extend(node.flatten().map(|node| Held { at, grant, node, ttl: grant.ttl }));
    }
    held
}

/// It was not given back, and its time did not run out, while it was asked for.
fn still_holds(session: &Session, held: &Held<'_>) -> bool {
    session.with_entry(held.grant.owner, |entry| entry.holds()) == Some(true)
}

/// Says which of them are gone. All batches are under way at once.
async fn check_all(session: &Session, held: &[Held<'_>]) -> Result<Vec<usize>, BackendError> {
    let batches = held.chunks(BATCH).enumerate().map(|(number, batch)| async move {
        let gone = check(session, batch).await?;
        Ok::<_, BackendError>(gone.into_iter().map(move |index| number * BATCH + index))
    });
    Ok(try_join_all(batches).await?.into_iter().flatten().collect())
}

/// Says which of them are gone. All others were there at one time, with the session alive.
async fn check(session: &Session, held: &[Held<'_>]) -> Result<Vec<usize>, BackendError> {
    let mut gone = Vec::new();
    loop {
        let left: Vec<usize> = (0..held.len()).filter(|index| !gone.contains(index)).collect();
        let mut writer = session.client.new_multi_writer();
        for &index in &left {
            let added = writer.add_check_version(&held[index].node, ANY_VERSION);
            added.map_err(|error| error::looked(&session.place(), error))?;
        }
        match writer.commit().await {
            Ok(_) => return Ok(gone),
            Err(MultiWriteError::OperationFailed { index, source: Error::NoNode }) if index < left.len() => {
                session.own_nodes().remove(held[left[index]].grant.owner);
                gone.push(left[index]);
            }
            Err(error) => return Err(error::looked(&session.place(), error.into())),
        }
    }
}

/// Of the longest names, so many are far below the megabyte that a request may have.
const BATCH: usize = 128;

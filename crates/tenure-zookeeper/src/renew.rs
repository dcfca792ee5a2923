//! Renewing: one quorum write that changes nothing and checks that all the nodes are there.

use std::{sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use tenure_core::{BackendError, Grant, Moment, Renewal};
use zookeeper_client::{Error, MultiWriteError};

use crate::{error, leave::ANY_VERSION, session::Session, sessions::Sessions};

type Answer = Result<Renewal, BackendError>;

/// One answer per grant, in order. Who holds is known to the session that holds: nobody else could renew.
pub(crate) async fn renew(sessions: &Sessions, grants: &[Grant]) -> Vec<Answer> {
    let started = sessions.host.now();
    let mut answers: Vec<Answer> = vec![Ok(Renewal::Gone); grants.len()];
    for session in sessions.living() {
        let held = held(&session, grants, started, &mut answers);
        if held.is_empty() {
            continue;
        }
        let longest = held.iter().map(|held| held.ttl).max().unwrap_or_default();
        let outcome = match session.proven(started, longest).await {
            Ok(()) => check_all(&session, &held).await,
            Err(error) => Err(error),
        };
        for (index, held) in held.iter().enumerate() {
            answers[held.at] = match &outcome {
                Ok(gone) if gone.contains(&index) || !still_holds(&session, held) => Ok(Renewal::Gone),
                Ok(_) => Ok(Renewal::Renewed),
                Err(error) => Err(error.clone()),
            };
        }
    }
    answers
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
        // Nothing was changed, whatever became of it.
        match writer.commit().await {
            Ok(_) => return Ok(gone),
            Err(MultiWriteError::OperationFailed { index, source: Error::NoNode }) if index < left.len() => {
                session.roster().remove(held[left[index]].grant.owner);
                gone.push(left[index]);
            }
            Err(error) => return Err(error::looked(&session.place(), error.into())),
        }
    }
}

/// Of the longest names, so many are far below the megabyte that a request may have.
const BATCH: usize = 128;

//! Memos: each is a node outside the directory of the lock, whose children are its queue and nothing else.
//!
//! The server removes it when it has expired, if it has TTL nodes (`extendedTypesEnabled`). Otherwise a client that
//! writes a memo removes some that have expired, so that they do not pile up.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::{BackendError, FencingToken, LockName, Memo, MemoView, Noted, OwnerId};
use zookeeper_client::{CreateMode, Error, MultiWriteError, MultiWriteResult, Stat};

use crate::{
    error, node,
    session::{ANY_VERSION, EnsembleSession},
    store::SharedState,
};

/// The content of a memo's node. Its age is counted from when the node was made.
#[derive(Serialize, Deserialize)]
struct MemoContent {
    owner: String,
    token: u64,
    kept_ms: u64,
    text: String,
}

/// What is at the path of a memo.
enum Stored {
    Memo(MemoContent),
    /// A newer version wrote it.
    Newer,
    /// It is not a memo.
    Other,
}

impl Stored {
    fn read(data: &[u8]) -> Self {
        if node::is_newer(data) {
            return Self::Newer;
        }
        serde_json::from_slice(data).map_or(Self::Other, Self::Memo)
    }
}

impl MemoContent {
    fn view(self, stat: &Stat, now: Duration) -> Option<MemoView> {
        let age = now.saturating_sub(time(stat));
        let left = Duration::from_millis(self.kept_ms).checked_sub(age).filter(|left| !left.is_zero())?;
        Some(MemoView::new(self.text, (self.owner, FencingToken::new(self.token)), age, left))
    }
}

fn time(stat: &Stat) -> Duration {
    Duration::from_millis(u64::try_from(stat.mtime).unwrap_or(0))
}

/// Below the path of the locks. No lock has this name, because in the names of locks every `%` is written as `%25`.
fn folder(session: &EnsembleSession) -> String {
    format!("{}/%memos", session.config.base)
}

fn path(session: &EnsembleSession, name: &LockName) -> String {
    format!("{}/{}", folder(session), node::encode(name))
}

/// Writes a memo, in one transaction that also checks whether the owner's node is there.
pub(crate) async fn note(
    store: &SharedState,
    name: &LockName,
    (owner, token): (OwnerId, FencingToken),
    memo: &Memo,
) -> Result<Noted, BackendError> {
    // Only the process that has the owner's session can hold.
    let Some(session) = store.sessions.with(owner) else { return Ok(Noted::Gone) };
    session.connected().await?;
    let lock = store.directory_of(name);
    let held = session.with_entry(owner, |entry| {
        let node = entry.node.as_ref().filter(|_| entry.holds() && entry.lock == lock)?;
        Some(format!("{lock}/{}", node.name))
    });
    let Some(held) = held.flatten() else { return Ok(Noted::Gone) };
    let kept_ms = u64::try_from(memo.kept().as_millis()).unwrap_or(u64::MAX);
    let content =
        MemoContent { owner: owner.to_string(), token: token.get(), kept_ms, text: memo.text().to_owned() };
    let writing = Writing { store, session: &session, held, path: path(&session, name), content };
    let wrote = |error| error::wrote(&session.place(), error);
    for _ in 0..TRIES {
        match writing.once().await.map_err(wrote)? {
            Attempt::Answered(noted) => return Ok(noted),
            Attempt::Newer => return Err(error::newer(&session.place(), &writing.path)),
            Attempt::Overtaken => {}
        }
    }
    Err(error::wrote(&session.place(), Error::BadVersion))
}

/// A memo that is being written.
struct Writing<'a> {
    store: &'a SharedState,
    session: &'a EnsembleSession,
    /// The node by which the owner holds.
    held: String,
    path: String,
    content: MemoContent,
}

enum Attempt {
    Answered(Noted),
    /// Another client was faster.
    Overtaken,
    /// A newer version wrote the memo that is there.
    Newer,
}

impl Writing<'_> {
    async fn once(&self) -> Result<Attempt, Error> {
        let (client, has_ttl) = (&self.session.client, has_ttl(self.store, self.session).await?);
        let there = there(self.session, &self.path).await?;
        match &there {
            Some((Stored::Newer, _)) => return Ok(Attempt::Newer),
            Some((Stored::Memo(there), _)) if there.token > self.content.token => {
                return Ok(Attempt::Answered(Noted::Gone));
            }
            _ => {}
        }
        let mut writer = client.new_multi_writer();
        writer.add_check_version(&self.held, ANY_VERSION)?;
        if let Some((_, stat)) = &there {
            // The time of a TTL node cannot be changed.
            writer.add_delete(&self.path, Some(stat.version))?;
        }
        let options = CreateMode::Persistent.with_acls(self.session.acls());
        let kept = Duration::from_millis(self.content.kept_ms);
        let options = if has_ttl { options.with_ttl(kept) } else { options };
        let data =
            serde_json::to_vec(&self.content).expect("BUG: a memo of texts and numbers is always JSON");
        writer.add_create(&self.path, &data, &options)?;
        // The answer to this write has the time of the server's clock. The answer to the creation may not
        // (ZOOKEEPER-4026).
        writer.add_set_data(&folder(self.session), &[], None)?;
        match writer.commit().await {
            Ok(results) => {
                if let Some(MultiWriteResult::SetData { stat }) = results.last() {
                    self.store.ensemble.learn(time(stat), self.session.host.now());
                }
                if !has_ttl {
                    sweep(self.store, self.session).await;
                }
                Ok(Attempt::Answered(Noted::Noted))
            }
            Err(MultiWriteError::OperationFailed { index: 0, source: Error::NoNode }) => {
                Ok(Attempt::Answered(Noted::Gone))
            }
            Err(MultiWriteError::OperationFailed {
                source: Error::NoNode | Error::NodeExists | Error::BadVersion,
                ..
            }) => Ok(Attempt::Overtaken),
            Err(error) => Err(error.into()),
        }
    }
}

async fn there(session: &EnsembleSession, path: &str) -> Result<Option<(Stored, Stat)>, Error> {
    match session.client.get_data(path).await {
        Ok((data, stat)) => Ok(Some((Stored::read(&data), stat))),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The memo of a lock, as the server has it after all earlier requests.
pub(crate) async fn read(
    store: &SharedState,
    session: &EnsembleSession,
    name: &LockName,
) -> Result<Option<MemoView>, BackendError> {
    let path = path(session, name);
    let looked = |error| error::looked(&session.place(), error);
    match there(session, &path).await.map_err(looked)? {
        Some((Stored::Memo(content), stat)) => {
            Ok(content.view(&stat, now(store, session).await.map_err(looked)?))
        }
        Some((Stored::Newer, _)) => Err(error::newer(&session.place(), &path)),
        Some((Stored::Other, _)) | None => Ok(None),
    }
}

/// A time that the server's clock has reached. Read anew once a minute, by a write that changes nothing.
async fn now(store: &SharedState, session: &EnsembleSession) -> Result<Duration, Error> {
    if let Some(now) = store.ensemble.now(session.host.now()) {
        return Ok(now);
    }
    let stat = session.client.set_data(&folder(session), &[], None).await?;
    store.ensemble.learn(time(&stat), session.host.now());
    Ok(time(&stat))
}

/// Makes the folder if there is none, and asks whether the server has TTL nodes.
async fn has_ttl(store: &SharedState, session: &EnsembleSession) -> Result<bool, Error> {
    if let Some(known) = store.ensemble.has_ttl.get() {
        return Ok(*known);
    }
    let (client, folder) = (&session.client, folder(session));
    client.mkdir(&folder, &CreateMode::Persistent.with_acls(session.acls())).await?;
    let trial = CreateMode::Persistent.with_acls(session.acls()).with_ttl(TRIAL);
    let has_ttl = match client.create(&format!("{folder}/%ttl"), &[], &trial).await {
        Ok(_) | Err(Error::NodeExists) => true,
        Err(Error::Unimplemented) => false,
        Err(error) => return Err(error),
    };
    Ok(*store.ensemble.has_ttl.get_or_init(|| has_ttl))
}

/// Removes some expired memos, and begins at a random one.
async fn sweep(store: &SharedState, session: &EnsembleSession) {
    let (client, folder) = (&session.client, folder(session));
    let Ok(children) = client.list_children(&folder).await else { return };
    let mut chance = [0; 4];
    session.host.random(&mut chance);
    let from = u32::from_be_bytes(chance) as usize % children.len().max(1);
    for child in children.iter().cycle().skip(from).take(SWEPT.min(children.len())) {
        let path = format!("{folder}/{child}");
        let (Ok(Some((Stored::Memo(content), stat))), Ok(now)) =
            (there(session, &path).await, now(store, session).await)
        else {
            continue;
        };
        if content.view(&stat, now).is_none() {
            // Another client may have written it anew.
            let _ = client.delete(&path, Some(stat.version)).await;
        }
    }
}

/// How often other clients may be faster.
const TRIES: usize = 8;
/// How long the node lasts that tests for TTL nodes: 1 s.
const TRIAL: Duration = Duration::from_secs(1);
/// How many memos the writer of a memo checks.
const SWEPT: usize = 4;

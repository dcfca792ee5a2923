//! What can be seen: one lock, or all of them, found in bounded steps.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use redis::Value;
use tenure_core::{BackendError, ErrorKind, FencingToken, LockName, LockView};

use crate::{
    backend::{Redis, open_gate},
    error,
    keys::{self, PREFIX},
    memo,
    scan::{STEP, Scan, escaped},
    script::Reply,
    session::Session,
    value,
};

impl Redis {
    /// One lock.
    pub(crate) async fn look(&self, session: &Session, name: &LockName) -> Result<LockView, BackendError> {
        let keys = self.keys(name)?;
        let all: Vec<String> = keys.all().into_iter().chain([keys.side("memo")]).collect();
        let mut call = self.scripts().inspect.call(&all.iter().map(String::as_str).collect::<Vec<_>>());
        call.arg(&*open_gate(session));
        let answer = session.ask(&self.scripts().inspect, &call).await?;
        let view = Reply::new(answer).and_then(|reply| read_view(name, reply));
        view.ok_or_else(|| error::unreadable(session.place(), "an inspection"))
    }

    /// Every lock of ours whose name starts with `prefix`, and every foreign one that ours wait for.
    pub(crate) async fn walk(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        let session = self.sessions.session().await?;
        let (before, _) = self.config().key.split_once("%s").unwrap_or_default();
        let locks = format!("{}*", escaped(&format!("{before}{prefix}")));
        let nodes = session.wire().nodes().await.map_err(|error| session.failed(error))?;
        let scan = |pattern| Scan::new(session.wire(), &nodes, pattern);
        let mut names = BTreeSet::new();
        // Of each step only our own are kept: any amount of others' data may lie there. What a walk meets twice is one name.
        let mut texts = scan(locks).only_texts();
        while let Some(step) = self.step(&session, &mut texts).await? {
            let step = step.iter().filter_map(|key| self.name_of(key, prefix)).collect();
            names.extend(self.only_ours(&session, step).await?);
        }
        let mut queues = scan(format!("{PREFIX}*:queue:*"));
        while let Some(step) = self.step(&session, &mut queues).await? {
            let locks = step.iter().filter_map(|queue| keys::lock_of_queue(queue));
            names.extend(locks.filter_map(|key| self.name_of(key, prefix)));
        }
        let mut views = Vec::new();
        let names: Vec<LockName> = names.into_iter().collect();
        for step in names.chunks(STEP) {
            for view in join_all(step.iter().map(|name| self.look(&session, name))).await {
                views.push(view?);
            }
        }
        views.retain(|view| !(view.holders.is_empty() && view.queue.is_empty()));
        Ok(views)
    }

    fn name_of(&self, key: &str, prefix: &str) -> Option<LockName> {
        let name = keys::name_of(&self.config().key, key)?;
        (name.as_str().starts_with(prefix) && self.keys(&name).is_ok()).then_some(name)
    }

    /// Of these names, those whose value is one of ours: anybody's data may lie under such a key.
    async fn only_ours(
        &self,
        session: &Session,
        mut names: Vec<LockName>,
    ) -> Result<Vec<LockName>, BackendError> {
        let heads = join_all(names.iter().map(|name| self.head_of(session, name))).await;
        let heads: Vec<Option<String>> = heads.into_iter().collect::<Result<_, _>>()?;
        let is_ours = |head: &String| head.starts_with(value::SHARED) || value::owner_of(head).is_some();
        let mut are_ours = heads.iter().map(|head| head.as_ref().is_some_and(is_ours));
        names.retain(|_| are_ours.next() == Some(true));
        Ok(names)
    }

    /// The first bytes of what lies under the lock's key; nothing if it is no text, or gone by now.
    async fn head_of(&self, session: &Session, name: &LockName) -> Result<Option<String>, BackendError> {
        let mut cmd = redis::cmd("GETRANGE");
        cmd.arg(self.keys(name)?.lock).arg(0).arg(63);
        match session.command(&cmd).await {
            Ok(Value::BulkString(bytes)) => Ok(String::from_utf8(bytes).ok()),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The keys of a walk's next step; one that is no UTF-8 has no name.
    async fn step(&self, session: &Session, scan: &mut Scan) -> Result<Option<Vec<String>>, BackendError> {
        let step = scan.next().await.map_err(|error| session.failed(error))?;
        Ok(step.map(|keys| keys.into_iter().filter_map(|key| String::from_utf8(key).ok()).collect()))
    }
}

/// See the contract of `inspect.lua`. What is over is left out.
fn read_view(name: &LockName, mut reply: Reply) -> Option<LockView> {
    let now = reply.millis()?;
    let fence = FencingToken::new(reply.count()?);
    let (lock, left) = (reply.bytes(), reply.millis());
    let (mut places, mut shared) = (reply.list()?, reply.list()?);
    let memo = (reply.bytes(), reply.millis());
    let (mut holders, mut queue) = (Vec::new(), Vec::new());
    while !places.is_empty() {
        let (owner, details, end) = (places.text()?, places.text()?, places.millis()?);
        if end > now {
            queue.extend(value::waiter(&owner, &details, now));
        }
    }
    while !shared.is_empty() {
        let (owner, details, end) = (shared.text()?, shared.text()?, shared.millis()?);
        if end > now {
            holders.extend(value::shared_holder(&owner, &details, end.saturating_sub(now)));
        }
    }
    if let Some(lock) = lock.filter(|lock| holders.is_empty() || lock != value::SHARED.as_bytes()) {
        holders.push(value::sole_holder(&lock, left));
    }
    let mut view = LockView::new(name.clone(), holders, queue, fence);
    view.memo = if let (Some(value), Some(left)) = memo { memo::read(&value, left) } else { None };
    Some(view)
}

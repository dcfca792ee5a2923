//! What can be seen: one lock, or all of them, found in bounded steps.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tenure_core::{BackendError, FencingToken, LockName, LockView};

use crate::{
    backend::{Redis, open_gate},
    connect::Node,
    error,
    keys::{self, PREFIX},
    reply::{Reply, number},
    session::Session,
    value,
};

/// Keys that one step of a walk looks at, so that no step holds up the server.
const STEP: usize = 500;

impl Redis {
    /// One lock.
    pub(crate) async fn look(&self, session: &Session, name: &LockName) -> Result<LockView, BackendError> {
        let keys = self.keys(name)?.all();
        let script = &self.scripts().inspect;
        let mut call = script.call(&keys.each_ref().map(String::as_str));
        call.arg(&*open_gate(session));
        let answer = self.sessions.ask(session, script, &call).await?;
        let view = Reply::new(answer).and_then(|reply| read_view(name, reply));
        view.ok_or_else(|| error::unreadable(session.place(), "an inspection"))
    }

    /// Every lock of ours whose name starts with `prefix`, and every foreign one that ours wait for.
    pub(crate) async fn walk(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        let session = self.sessions.session().await?;
        let (before, _) = self.config().key.split_once("%s").unwrap_or_default();
        let locks = format!("{}*", escaped(&format!("{before}{prefix}")));
        let mut names = BTreeSet::new();
        for key in self.scan(&session, &locks, true).await? {
            names.extend(self.name_of(&key, prefix));
        }
        let mut names = self.only_ours(&session, names).await?;
        for queue in self.scan(&session, &format!("{PREFIX}*:queue:*"), false).await? {
            names.extend(keys::lock_of_queue(&queue).and_then(|key| self.name_of(key, prefix)));
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
        names: BTreeSet<LockName>,
    ) -> Result<BTreeSet<LockName>, BackendError> {
        let mut ours = BTreeSet::new();
        let names: Vec<LockName> = names.into_iter().collect();
        for step in names.chunks(STEP) {
            let values = join_all(step.iter().map(|name| self.head_of(session, name))).await;
            for (name, value) in step.iter().zip(values) {
                if value.is_some_and(|v| v.starts_with(value::SHARED) || value::owner_of(&v).is_some()) {
                    ours.insert(name.clone());
                }
            }
        }
        Ok(ours)
    }

    /// The first bytes of what lies under the lock's key; nothing if it is no text, or gone by now.
    async fn head_of(&self, session: &Session, name: &LockName) -> Option<String> {
        let key = self.keys(name).ok()?.lock;
        let mut cmd = redis::cmd("GETRANGE");
        cmd.arg(key).arg(0).arg(63);
        match self.sessions.command(session, &cmd).await {
            Ok(Value::BulkString(bytes)) => String::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    async fn scan(
        &self,
        session: &Session,
        pattern: &str,
        only_texts: bool,
    ) -> Result<Vec<String>, BackendError> {
        let mut found = Vec::new();
        for node in session.nodes().await.map_err(|error| error::asked(session.place(), error).1)? {
            let mut cursor = 0;
            loop {
                let mut cmd = redis::cmd("SCAN");
                cmd.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
                if only_texts {
                    cmd.arg("TYPE").arg("string");
                }
                cursor = self.scan_step(session, &node, &cmd, &mut found).await?;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(found)
    }

    async fn scan_step(
        &self,
        session: &Session,
        node: &Node,
        cmd: &Cmd,
        found: &mut Vec<String>,
    ) -> Result<i64, BackendError> {
        let answer =
            session.ask_node(node, cmd).await.map_err(|error| error::asked(session.place(), error).1)?;
        let unreadable = || error::unreadable(session.place(), "a scan");
        let Value::Array(parts) = answer else { return Err(unreadable()) };
        let [cursor, Value::Array(keys)] = parts.as_slice() else { return Err(unreadable()) };
        for key in keys {
            // A key that is no UTF-8 has no name.
            if let Value::BulkString(bytes) = key {
                found.extend(std::str::from_utf8(bytes).ok().map(str::to_owned));
            }
        }
        number(cursor).ok_or_else(unreadable)
    }
}

/// A text in which nothing is a pattern.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// See the contract of `inspect.lua`. What is over is left out.
fn read_view(name: &LockName, mut reply: Reply) -> Option<LockView> {
    let now = reply.millis()?;
    let fence = FencingToken::new(reply.count()?);
    let (lock, left) = (reply.bytes(), reply.number()?);
    let (mut places, mut shared) = (reply.list()?, reply.list()?);
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
        holders.push(value::sole_holder(&lock, u64::try_from(left).ok().map(Duration::from_millis)));
    }
    Some(LockView { name: name.clone(), holders, queue, fence })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_of_a_prefix_matches_it_literally() {
        assert_eq!(escaped("a*b[c]?\\"), "a\\*b\\[c\\]\\?\\\\");
    }
}

//! The keys: what others keep under our prefix, and which foreign clients hold what ours wait for.

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue};
use tenure_core::{
    ErrorKind, HolderView, LockName, Severity,
    Severity::{Note, Problem, Warning},
    shown,
};

use super::{Visit, time, word};
use crate::{
    keys::{self, ONE, PREFIX, QUORUM},
    scan::{self, STEP, Scan},
    session::Session,
    wire::Node,
};

/// A walk ends after so many steps on one server, or so many keys in all: that is a few seconds.
const MOST_STEPS: usize = 4_000;
const MOST_KEYS: usize = 20_000;
/// How many examples a finding has.
const EXAMPLES: usize = 3;

impl Visit<'_> {
    /// Without a session only what needs no script is looked at.
    pub(super) async fn keys(&mut self, nodes: &[Node], session: Option<&Session>) {
        let Some(waited) = self.under_prefix(nodes).await else { return };
        if let Some(session) = session {
            self.foreign_holders(session, &waited).await;
        }
        let template = self.redis.config().key.clone();
        if template != "%s" {
            self.under_template(nodes, &template).await;
        }
    }

    /// All keys under our prefix. Gives the locks that somebody waits for.
    async fn under_prefix(&mut self, nodes: &[Node]) -> Option<Vec<LockName>> {
        let (redis, mut strange, mut waited) = (self.redis, Tally::default(), Vec::new());
        self.walk(nodes, format!("{PREFIX}*"), |key, kind, _| {
            if !is_ours(key, kind) {
                strange.add(format!("{} is a {kind}", text(key)));
            } else if kind == "zset" {
                let lock = std::str::from_utf8(key).ok().and_then(keys::lock_of_queue);
                let name = lock.and_then(|lock| keys::name_of(&redis.config().key, lock));
                waited.extend(name.filter(|name| redis.keys(name).is_ok()));
            }
        })
        .await?;
        let what =
            format!("keys under our prefix `{PREFIX}` that are not ours, so that locks with such a key fail");
        let remedy = "see who writes there, then rename or delete them (redis-cli RENAME KEY NEW), or give Tenure a \
                      database of its own, as in redis://HOST/1";
        self.say_of(&strange, Problem, &what, remedy);
        Some(waited)
    }

    /// Locks that ours wait for and that a client of another library holds, with an end or without.
    async fn foreign_holders(&mut self, session: &Session, waited: &[LockName]) {
        let [mut bounded, mut endless, mut broken] = [(); 3].map(|()| Tally::default());
        let (mut blocked, mut views) = (None, Vec::new());
        for step in waited.chunks(STEP) {
            views.extend(join_all(step.iter().map(|name| self.redis.look(session, name))).await);
        }
        // Ours say since when they hold.
        let is_foreign = |holder: &&HolderView| holder.since.is_none();
        for (name, view) in waited.iter().zip(views) {
            let shown = text(name.as_str().as_bytes());
            let view = match view {
                Ok(view) if !view.queue.is_empty() => view,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    broken.add(shown);
                    continue;
                }
                _ => continue,
            };
            let Some(holder) = view.holders.iter().find(is_foreign) else { continue };
            let example = format!("{shown} holds \"{}\"", tenure_core::shown(&holder.owner).within(24));
            if let Some(left) = holder.expires_in {
                bounded.add(format!("{example}, {} left", time(left)));
            } else {
                endless.add(example);
                blocked.get_or_insert(name);
            }
        }
        let what =
            "locks that ours wait for and that foreign clients hold, which neither queue nor wake ours";
        let remedy = "nothing, if they are meant to share these locks; a fair queue needs Tenure everywhere";
        self.say_of(&bounded, Note, what, remedy);
        if let Some(name) = blocked {
            let key = self.redis.keys(name).map(|keys| keys.lock).unwrap_or_default();
            let (name, key) = (word(name.as_str(), "NAME"), word(&key, "KEY"));
            let remedy =
                format!("see that no client uses it, then `tenure break {name}`, or redis-cli DEL {key}");
            let what = "locks that ours wait for and that foreign clients hold without an end, until the key is deleted";
            self.say_of(&endless, Warning, what, &remedy);
        }
        let remedy = "give Tenure names of its own, as in ?key=lock:%25s (the same everywhere), or rename the other data";
        self.say_of(&broken, Problem, "locks whose key holds other data, so that they fail", remedy);
    }

    /// With a template of our own, every key of such a name should be a lock.
    async fn under_template(&mut self, nodes: &[Node], template: &str) -> Option<()> {
        let (mut other, mut endless) = (Tally::default(), Tally::default());
        let pattern = scan::escaped(template).replacen("%s", "*", 1);
        self.walk(nodes, pattern, |key, kind, ttl| match kind {
            _ if key.starts_with(PREFIX.as_bytes()) => {}
            "string" if ttl == -1 => endless.add(text(key)),
            "string" | "none" => {}
            _ => other.add(format!("{} is a {kind}", text(key))),
        })
        .await?;
        let what = format!(
            "keys under the template `{template}` that hold other data, so that locks of these names fail"
        );
        let remedy = "rename the other data, or use another template, as in ?key=tenure-lock:%25s (the same everywhere)";
        self.say_of(&other, Problem, &what, remedy);
        let what = format!(
            "keys without a ttl under the template `{template}`, so that a claim of such a lock waits for ever"
        );
        let remedy = "if a foreign client left these locks, see that no client uses them, then redis-cli DEL KEY; if they \
                      are other data, rename them or use another template";
        self.say_of(&endless, Warning, &what, remedy);
        Some(())
    }

    fn say_of(&mut self, found: &Tally, severity: Severity, what: &str, remedy: &str) {
        if found.count > 0 {
            self.say(severity, format!("{what}: {}", found.text()), remedy);
        }
    }

    /// Shows each key that matches, with its type and its PTTL.
    async fn walk(
        &mut self,
        nodes: &[Node],
        pattern: String,
        mut show: impl FnMut(&[u8], &str, i64),
    ) -> Option<()> {
        let mut scan = Scan::new(&self.wire, nodes, pattern).at_most(MOST_STEPS, MOST_KEYS);
        loop {
            let step = scan.next().await;
            let Some(keys) = self.read("look at the keys (SCAN)", step)? else { break };
            let kinds: Vec<String> = self.each("TYPE", &keys).await?;
            let ttls: Vec<i64> = self.each("PTTL", &keys).await?;
            for ((key, kind), ttl) in keys.iter().zip(kinds).zip(ttls) {
                show(key, &kind, ttl);
            }
        }
        if let Some((seen, pattern)) = scan.cut() {
            self.say(
                Note,
                format!("not all keys were looked at: only {seen} that match {pattern}"),
                "to have all of them looked at, keep locks in a database of their own, as in redis://HOST/1",
            );
        }
        Some(())
    }

    async fn each<T: FromRedisValue>(&mut self, command: &str, keys: &[Vec<u8>]) -> Option<Vec<T>> {
        let cmds: Vec<Cmd> = keys.iter().map(|key| Cmd::new().arg(command).arg(key).clone()).collect();
        let asked = join_all(cmds.iter().map(|cmd| self.wire.ask(cmd))).await;
        let read = asked.into_iter().map(|answer| Ok(redis::from_redis_value(answer?)?)).collect();
        let all = self.read(&format!("look at the keys ({command})"), read);
        if all.is_none()
            && command == "TYPE"
            && let Some(finding) = self.findings.last_mut()
        {
            // No lock needs it, only this visit.
            finding.severity = Note;
        }
        all
    }
}

fn text(key: &[u8]) -> String {
    shown(&String::from_utf8_lossy(key)).within(80).to_string()
}

/// Whether a key under our prefix is what we would have put there; a key that is gone by now is.
pub(super) fn is_ours(key: &[u8], kind: &str) -> bool {
    if kind == "none" || [ONE, QUORUM].map(str::as_bytes).contains(&key) {
        // The record was judged when it was read; the other one is judged by clients of its kind.
        return true;
    }
    let side = std::str::from_utf8(key).ok().and_then(|key| {
        let (_, rest) = key.strip_prefix(PREFIX)?.strip_prefix('{')?.split_once("}:")?;
        rest.split_once(':').filter(|(_, lock)| !lock.is_empty())
    });
    matches!(
        (side, kind),
        (Some(("queue" | "places" | "shared", _)), "zset")
            | (Some(("who", _)), "hash")
            | (Some(("fence" | "memo", _)), "string")
    )
}

/// Counts things, and keeps the first few as examples.
#[derive(Default)]
pub(super) struct Tally {
    count: usize,
    examples: Vec<String>,
}

impl Tally {
    pub(super) fn add(&mut self, example: String) {
        self.count += 1;
        self.examples.extend((self.count <= EXAMPLES).then_some(example));
    }

    /// `2 (a, b)`
    pub(super) fn text(&self) -> String {
        let rest = if self.count > EXAMPLES { ", …" } else { "" };
        format!("{} ({}{rest})", self.count, self.examples.join(", "))
    }
}

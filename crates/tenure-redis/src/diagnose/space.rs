//! The keys: what lies under our prefix and is not ours, and who holds what ours wait for.

use futures_util::future::join_all;
use redis::{RedisError, RedisResult, Value};
use tenure_core::{ErrorKind, Finding, HolderView, LockName, Severity};

use super::{
    Visit, finding,
    shown::{self, Tally},
};
use crate::{
    backend::Redis,
    connect::{Node, Wire},
    keys::{self, ONE, PREFIX, QUORUM},
    scan::{self, STEP, Scan},
    session::Session,
};

/// After so many steps on one server, or so many keys in all, a walk ends: that is a few seconds.
const MOST_STEPS: usize = 4_000;
const MOST_KEYS: usize = 20_000;

impl Visit<'_> {
    /// Without a session only what needs no script is looked at.
    pub(super) async fn keys(&mut self, nodes: Vec<Node>, session: Option<&Session>) {
        match self.beside_locks(&nodes).await {
            Ok(waited) => {
                if let Some(session) = session {
                    self.waited_for(session, waited).await;
                }
            }
            Err(failed) => return self.say([self.failed_look(failed)]),
        }
        let template = self.redis.config().key.clone();
        if template != "%s"
            && let Err(failed) = self.under_template(&nodes, &template).await
        {
            self.say([self.failed_look(failed)]);
        }
    }

    fn failed_look(&self, (verb, error): (&'static str, RedisError)) -> Finding {
        let mut found = self.refused(&format!("look at the keys ({verb})"), &self.failed(error));
        // No lock needs TYPE, only this look around.
        if verb == "TYPE" {
            found.severity = Severity::Note;
        }
        found
    }

    /// All keys under our prefix. Answers the locks that somebody waits for.
    async fn beside_locks(&mut self, nodes: &[Node]) -> Result<Vec<LockName>, (&'static str, RedisError)> {
        let (mut strange, mut waited) = (Tally::default(), Vec::new());
        let mut scan = Scan::new(&self.wire, nodes, format!("{PREFIX}*")).at_most(MOST_STEPS, MOST_KEYS);
        while let Some(step) = scan.next().await.map_err(|error| ("SCAN", error))? {
            let types = types(&self.wire, &step).await.map_err(|error| ("TYPE", error))?;
            for (key, kind) in step.iter().zip(types) {
                if !is_ours(key, &kind) {
                    strange.add(|| format!("{} is a {}", shown::key(key), shown::value(&kind)));
                } else if kind == "zset" {
                    waited.extend(lock_of_queue(self.redis, key));
                }
            }
        }
        let rest = rest(&scan);
        if !strange.is_empty() {
            self.say([collision(&strange)]);
        }
        self.say(rest);
        Ok(waited)
    }

    /// Foreign clients that hold what ours wait for.
    async fn waited_for(&mut self, session: &Session, waited: Vec<LockName>) {
        let (mut bounded, mut endless, mut broken) = (Tally::default(), Tally::default(), Tally::default());
        let mut blocked = None;
        for step in waited.chunks(STEP) {
            let views = join_all(step.iter().map(|name| self.redis.look(session, name))).await;
            for (name, view) in step.iter().zip(views) {
                let view = match view {
                    Ok(view) => view,
                    Err(error) => {
                        if error.kind() == ErrorKind::Corrupt {
                            broken.add(|| shown::key(name.as_str().as_bytes()));
                        }
                        continue;
                    }
                };
                let Some(holder) = view.holders.iter().find(|holder| is_foreign(holder)) else { continue };
                match holder.expires_in {
                    _ if view.queue.is_empty() => {}
                    Some(_) => bounded.add(|| described(name, holder)),
                    None => {
                        endless.add(|| described(name, holder));
                        blocked.get_or_insert_with(|| name.clone());
                    }
                }
            }
        }
        self.say((!bounded.is_empty()).then(|| held_by_foreign(&bounded)));
        self.say(blocked.map(|name| held_for_ever(&endless, &name, &self.key_of(&name))));
        self.say((!broken.is_empty()).then(|| no_lock(&broken)));
    }

    fn key_of(&self, name: &LockName) -> String {
        self.redis.keys(name).map(|keys| keys.lock).unwrap_or_default()
    }

    /// With a template of our own, whatever has such a name should be a lock.
    async fn under_template(
        &mut self,
        nodes: &[Node],
        template: &str,
    ) -> Result<(), (&'static str, RedisError)> {
        let (mut no_text, mut endless) = (Tally::default(), Tally::default());
        let pattern = scan::escaped(template).replacen("%s", "*", 1);
        let mut scan = Scan::new(&self.wire, nodes, pattern).at_most(MOST_STEPS, MOST_KEYS);
        while let Some(mut step) = scan.next().await.map_err(|error| ("SCAN", error))? {
            step.retain(|key| !key.starts_with(PREFIX.as_bytes()));
            let types = types(&self.wire, &step).await.map_err(|error| ("TYPE", error))?;
            let ttls = ttls(&self.wire, &step).await.map_err(|error| ("PTTL", error))?;
            for ((key, kind), ttl) in step.iter().zip(types).zip(ttls) {
                match kind.as_str() {
                    "none" => {}
                    "string" if ttl == -1 => endless.add(|| shown::key(key)),
                    "string" => {}
                    _ => no_text.add(|| format!("{} is a {}", shown::key(key), shown::value(&kind))),
                }
            }
        }
        let rest = rest(&scan);
        let template = shown::key(template.as_bytes());
        self.say((!no_text.is_empty()).then(|| other_data(&no_text, &template)));
        self.say((!endless.is_empty()).then(|| without_end(&endless, &template)));
        self.say(rest);
        Ok(())
    }
}

/// Whether a key under our prefix is what we would have put there; a key that is gone by now is.
fn is_ours(key: &[u8], kind: &str) -> bool {
    if kind == "none" || [ONE, QUORUM].map(str::as_bytes).contains(&key) {
        // The record was judged when it was read; the other one is judged by those who read it.
        return true;
    }
    let side = std::str::from_utf8(key).ok().and_then(|key| {
        let (_, rest) = key.strip_prefix(PREFIX)?.strip_prefix('{')?.split_once("}:")?;
        rest.split_once(':').filter(|(_, lock)| !lock.is_empty())
    });
    match side {
        Some(("queue" | "places" | "shared", _)) => kind == "zset",
        Some(("who", _)) => kind == "hash",
        Some(("fence", _)) => kind == "string",
        _ => false,
    }
}

fn lock_of_queue(redis: &Redis, key: &[u8]) -> Option<LockName> {
    let lock = keys::lock_of_queue(std::str::from_utf8(key).ok()?)?;
    keys::name_of(&redis.config().key, lock).filter(|name| redis.keys(name).is_ok())
}

/// Ours have a label since the day they began.
fn is_foreign(holder: &HolderView) -> bool {
    holder.since.is_none()
}

fn described(name: &LockName, holder: &HolderView) -> String {
    let left = holder.expires_in.map(|left| format!(", {} left", shown::time(left))).unwrap_or_default();
    format!("{} holds {:?}{left}", shown::key(name.as_str().as_bytes()), shown::value(&holder.owner))
}

fn held_by_foreign(locks: &Tally) -> Finding {
    finding(
        Severity::Note,
        format!(
            "foreign clients hold {}; they neither queue nor wake ours, and no restart guard stops them",
            locks.of("lock that ours wait for", "locks that ours wait for")
        ),
        "nothing, if they are meant to share these locks; fairness needs all clients to be Tenure's",
    )
}

fn held_for_ever(locks: &Tally, name: &LockName, key: &str) -> Finding {
    let (name, key) = (shown::word(name.as_str(), "NAME"), shown::word(key, "KEY"));
    finding(
        Severity::Warning,
        format!(
            "foreign clients hold {}, without an end: ours wait until somebody deletes the key",
            locks.of("lock that ours wait for", "locks that ours wait for")
        ),
        format!("see that nobody uses it any more, then `tenure break {name}`, or redis-cli DEL {key}"),
    )
}

fn no_lock(locks: &Tally) -> Finding {
    finding(
        Severity::Problem,
        format!("{} has a key that holds something that is no lock", locks.of("lock", "locks")),
        "give Tenure names of its own, as in ?key=lock:%25s (equal everywhere), or rename the other data",
    )
}

fn collision(keys: &Tally) -> Finding {
    finding(
        Severity::Problem,
        format!(
            "under our prefix `{PREFIX}` there are {}: locks with such a key fail",
            keys.of("key that is not ours", "keys that are not ours")
        ),
        "see who writes there, then rename or delete them (redis-cli RENAME KEY NEW), or give Tenure a database of its \
         own, as in redis://HOST/1",
    )
}

fn other_data(keys: &Tally, template: &str) -> Finding {
    finding(
        Severity::Problem,
        format!(
            "{} under the template `{template}`: locks of these names fail",
            keys.of("key is no lock", "keys are no locks")
        ),
        "rename the other data, or use another template, as in ?key=tenure-lock:%25s (equal everywhere)",
    )
}

fn without_end(keys: &Tally, template: &str) -> Finding {
    finding(
        Severity::Warning,
        format!(
            "{} under the template `{template}`: whoever claims such a lock waits for ever",
            keys.of("key has no ttl", "keys have no ttl")
        ),
        "if they are locks that a foreign client left, see that nobody uses them, then redis-cli DEL KEY; if they are \
         other data, rename them or use another template",
    )
}

async fn types(wire: &Wire, keys: &[Vec<u8>]) -> RedisResult<Vec<String>> {
    each(wire, "TYPE", keys).await?.into_iter().map(|kind| Ok(redis::from_redis_value(kind)?)).collect()
}

async fn ttls(wire: &Wire, keys: &[Vec<u8>]) -> RedisResult<Vec<i64>> {
    each(wire, "PTTL", keys).await?.into_iter().map(|ttl| Ok(redis::from_redis_value(ttl)?)).collect()
}

async fn each(wire: &Wire, command: &str, keys: &[Vec<u8>]) -> RedisResult<Vec<Value>> {
    let asked = keys.iter().map(|key| async move {
        let mut cmd = redis::cmd(command);
        cmd.arg(key);
        wire.ask(&cmd).await
    });
    join_all(asked).await.into_iter().collect()
}

/// Says so if the walk ended early.
fn rest(scan: &Scan) -> Option<Finding> {
    scan.cut().map(|(seen, pattern)| {
        let what =
            format!("not all keys were looked at: only {seen} that match {}", shown::key(pattern.as_bytes()));
        let remedy =
            "nothing; with few keys beside the locks, as in a database of their own (redis://HOST/1), all are";
        finding(Severity::Note, what, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hazard 38.
    #[test]
    fn what_we_would_have_put_there_is_ours() {
        let ours = [
            ("tenure:one", "string"),
            ("tenure:quorum", "hash"),
            ("tenure:{a}:queue:a", "zset"),
            ("tenure:{a}:places:a", "zset"),
            ("tenure:{a}:shared:x{a}", "zset"),
            ("tenure:{a}:who:a", "hash"),
            ("tenure:{a:b}:fence:a:b", "string"),
            ("tenure:anything", "none"),
        ];
        for (key, kind) in ours {
            assert!(is_ours(key.as_bytes(), kind), "{key}");
        }
        let foreign = [
            ("tenure:x", "string"),
            ("tenure:{a}:queue:a", "string"),
            ("tenure:{a}:who:a", "zset"),
            ("tenure:{a}:fence:a", "list"),
            ("tenure:{a}:other:a", "zset"),
            ("tenure:{a}:queue:", "zset"),
            ("tenure:{a:queue:a", "zset"),
        ];
        for (key, kind) in foreign {
            assert!(!is_ours(key.as_bytes(), kind), "{key}");
        }
        assert!(!is_ours(b"tenure:\xff", "string"));
    }
}

//! One lock of our own, from claim to release: whether this user may do all that a lock needs.

use std::{sync::Arc, time::Duration};

use redis::Cmd;
use tenure_core::{
    Audience, Backend, BackendError, Claim, ClaimAnswer, ErrorKind, Finding, Grant, Label, LockName, Mode,
    OwnerId, ProcessId, Severity, Wait,
};

use super::{Visit, described, finding, word};
use crate::{keys::Counting, session::Session, wire};

/// The lock ends after so long if the visit is cut off; no server has a shorter maximum. A claim asks for less, so that a
/// renewal has something to do.
const TTL: Duration = Duration::from_secs(1);
const CLAIMED: Duration = Duration::from_millis(900);

/// What a user needs, beside the keys.
pub(super) const RIGHTS: &str = "+select +info +time +config|get +eval +evalsha +exists +get +getrange +set +incr \
    +append +del +pttl +pexpire +hget +hset +hdel +hexists +hgetall +hmget +zadd +zcard +zrange +zrangebyscore +zrank \
    +zrem +zscore +publish +subscribe +scan +type";

/// And in a Cluster.
pub(super) const RIGHTS_IN_A_CLUSTER: &str = "+ping +cluster|nodes +cluster|slots";

impl Visit<'_> {
    /// A lock whose name nobody can guess.
    pub(super) async fn try_a_lock(&mut self, session: &Session) {
        let process = ProcessId::from_random(self.chance());
        let name = format!("tenure-doctor/{:016x}", u64::from_be_bytes(self.chance()));
        let name = LockName::new(name).unwrap_or_else(|error| unreachable!("BUG: a name of ours: {error}"));
        // What is left behind after a refusal ends after a second.
        let _ = self.verbs(&name, process).await;
        let _ = self.commands(&name, process).await;
        // A counter of its own would stay for a day.
        if let Ok(keys) = self.redis.keys(&name)
            && self.redis.config().counting() != Counting::One
        {
            let mut del = redis::cmd("DEL");
            let _ = session.command(del.arg(keys.counter())).await;
        }
    }

    fn chance<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.redis.sessions.host().random(&mut bytes);
        bytes
    }

    /// Alone, with a waiter, and shared; up to the first verb that is refused.
    async fn verbs(&mut self, name: &LockName, process: ProcessId) -> Option<()> {
        let claim = |mode, wait| Claim {
            name: name.clone(),
            owner: OwnerId::from_random(process, self.chance()),
            mode,
            ttl: CLAIMED,
            label: Arc::new(Label::new("", 0, "", "tenure doctor")),
            block: 1,
            wait,
            asker: Default::default(),
        };
        let (holder, waiter) = (claim(Mode::Exclusive, Wait::No), claim(Mode::Exclusive, Wait::Wake));
        let (reader, redis) = (claim(Mode::READ, Wait::No), self.redis);
        let granted = self.tried("take a lock", redis.claim(&holder).await)?;
        // Otherwise we were away for longer than the ttl.
        if let ClaimAnswer::Granted(grant) = granted {
            let renewed = redis.renew(&[Grant { ttl: TTL, ..grant }]).await.pop().transpose();
            self.tried("renew a lock", renewed)?;
        }
        self.tried("inspect a lock", redis.inspect(name).await)?;
        self.tried("wait for a lock", redis.claim(&waiter).await)?;
        for owner in [holder.owner, waiter.owner] {
            self.tried("release a lock", redis.release(name, owner).await)?;
        }
        self.tried("take a shared lock", redis.claim(&reader).await)?;
        self.tried("release a shared lock", redis.release(name, reader.owner).await)?;
        Some(())
    }

    /// What the lock above did not need, but others will: hints, and scripts that the server forgot.
    async fn commands(&mut self, name: &LockName, process: ProcessId) -> Option<()> {
        let channel = wire::channel((process, Audience::Waiters));
        // On the connection that is dropped with this visit.
        let heard = if self.resp3 {
            self.wire.subscribe(&channel).await
        } else {
            self.wire.listen(std::slice::from_ref(&channel)).await.map(drop)
        };
        self.read("SUBSCRIBE to tenure:*", heard)?;
        let keys = self.redis.keys(name);
        let lock = self.tried("name a lock", keys)?.lock;
        let script = "return redis.call('EXISTS', KEYS[1])";
        for (verb, words) in [
            ("PUBLISH to tenure:*", &["PUBLISH", &channel, "a"][..]),
            ("EVAL a script", &["EVAL", script, "1", &lock]),
            ("GETRANGE a key", &["GETRANGE", &lock, "0", "1"]),
        ] {
            self.asked(verb, Cmd::new().arg(words)).await?;
        }
        Some(())
    }

    /// What this user was refused, and the line that allows it.
    pub(super) fn refused(&self, verb: &str, error: &BackendError) -> Finding {
        let (why, remedy) = match error.kind() {
            ErrorKind::Denied => ("this user may not", format!("give it the rights: {}", self.grant_line())),
            _ => (
                "it was not possible to",
                "do what the message says, read the log of the server, then run `tenure doctor` again".into(),
            ),
        };
        finding(Severity::Problem, format!("{why} {verb}: {}", described(error)), remedy)
    }

    fn grant_line(&self) -> String {
        let config = self.redis.config();
        let user = word(config.login.user.as_deref().unwrap_or("default"), "USER");
        let pattern = config.key.replacen("%s", "*", 1);
        let is_plain = !word(pattern.trim_matches('*'), "").is_empty();
        let keys = if is_plain { format!("'~{pattern}' '~tenure:*'") } else { "'~*'".to_owned() };
        let more = if self.redis.is_cluster() { RIGHTS_IN_A_CLUSTER } else { "" };
        format!("redis-cli ACL SETUSER {user} {keys} '&tenure:*' {RIGHTS} {more}").trim_end().to_owned()
    }
}

//! One lock of our own, from claim to release: whether this user may do all that a lock needs.

use std::{sync::Arc, time::Duration};

use redis::Cmd;
use tenure_core::{
    Backend, BackendError, Claim, ClaimAnswer, ErrorKind, Finding, Grant, Label, LockName, Mode, OwnerId,
    ProcessId, Severity, Wait,
};

use super::{Visit, finding, shown};
use crate::{keys::Counting, session::Session};

/// How long the lock is left behind if we are cut off; no server has a shorter maximum.
const TTL: Duration = Duration::from_secs(1);
/// A claim is shorter, so that a renewal has something to do.
const SHORT: Duration = Duration::from_millis(900);

/// What a user needs, beside the keys.
const RIGHTS: &str = "+select +ping +info +time +config|get +eval +evalsha +exists +get +getrange +set +append +del +pttl \
    +pexpire +hget +hset +hdel +hexists +hgetall +hmget +zadd +zcard +zrange +zrangebyscore +zrank +zrem \
    +zscore +publish +subscribe +scan +type";

/// And in a Cluster.
const RIGHTS_IN_A_CLUSTER: &str = "+cluster|nodes +cluster|slots";

/// A verb, and why it failed.
type Refused = (&'static str, BackendError);

impl Visit<'_> {
    /// A lock that nobody can guess. Whatever fails is said with its verb; what is left behind ends after a second.
    pub(super) async fn try_a_lock(&mut self, session: &Session) {
        let name = match LockName::new(format!("tenure-doctor/{:016x}", self.chance())) {
            Ok(name) => name,
            Err(error) => unreachable!("BUG: a name of ours: {error}"),
        };
        let process = ProcessId::from_random(self.chance().to_be_bytes());
        if let Err((verb, error)) = self.hold(&name, process).await {
            let found = self.refused(verb, &error);
            self.say([found]);
        }
        if let Err((verb, error)) = self.around(&name, process).await {
            let found = self.refused(verb, &error);
            self.say([found]);
        }
        self.forget_counter(session, &name).await;
    }

    fn chance(&self) -> u64 {
        let mut bytes = [0; 8];
        self.redis.sessions.host().random(&mut bytes);
        u64::from_be_bytes(bytes)
    }

    /// Leaves nothing behind, if this user may.
    async fn hold(&self, name: &LockName, process: ProcessId) -> Result<(), Refused> {
        let claim = |mode, wait| {
            let mut bits = [0; 16];
            self.redis.sessions.host().random(&mut bits);
            Claim {
                name: name.clone(),
                owner: OwnerId::from_random(process, bits),
                mode,
                ttl: SHORT,
                label: Arc::new(Label::new("", 0, "", "tenure doctor")),
                block: 1,
                wait,
            }
        };
        let (holder, waiter) = (claim(Mode::Exclusive, Wait::No), claim(Mode::Exclusive, Wait::Wake));
        let reader = claim(Mode::READ, Wait::No);
        let held = self.verbs(&holder, &waiter, &reader).await;
        if held.is_err() {
            for Claim { owner, .. } in [holder, waiter, reader] {
                // OK because it ends by itself.
                let _ = self.redis.release(name, owner).await;
            }
        }
        held
    }

    /// Alone on the plain path, with a waiter on the long one, and shared.
    async fn verbs(&self, holder: &Claim, waiter: &Claim, reader: &Claim) -> Result<(), Refused> {
        let (redis, name) = (self.redis, &holder.name);
        let grant = self.enter(holder).await?;
        if let Some(grant) = grant {
            let renewed = redis.renew(&[Grant { ttl: TTL, ..grant }]).await.pop();
            // OK if it was gone: we were away for longer than the ttl.
            renewed.transpose().map_err(|error| ("renew a lock", error))?;
        }
        redis.inspect(name).await.map_err(|error| ("inspect a lock", error))?;
        redis.claim(waiter).await.map_err(|error| ("wait for a lock", error))?;
        for owner in [holder.owner, waiter.owner] {
            redis.release(name, owner).await.map_err(|error| ("release a lock", error))?;
        }
        self.enter(reader).await?;
        redis.release(name, reader.owner).await.map_err(|error| ("release a shared lock", error))?;
        Ok(())
    }

    async fn enter(&self, claim: &Claim) -> Result<Option<Grant>, Refused> {
        let verb = if claim.mode == Mode::Exclusive { "take a lock" } else { "take a shared lock" };
        match self.redis.claim(claim).await {
            Ok(ClaimAnswer::Granted(grant)) => Ok(Some(grant)),
            // Nobody else knows the name: we were away for longer than the ttl.
            Ok(_) => Ok(None),
            Err(error) => Err((verb, error)),
        }
    }

    /// What the lock above did not need, but others will: hints, scripts that the server forgot, `tenure ls`.
    async fn around(&self, name: &LockName, process: ProcessId) -> Result<(), Refused> {
        let channel = format!("tenure:p:{process}");
        // On the connection that is dropped with this visit.
        let heard = if self.resp3 {
            self.wire.subscribe(&channel).await
        } else {
            self.wire.listen(std::slice::from_ref(&channel)).await.map(drop)
        };
        heard.map_err(|error| ("SUBSCRIBE to tenure:*", self.failed(error)))?;
        let lock = self.redis.keys(name).map_err(|error| ("name a lock", error))?.lock;
        let commands: [(&str, &[&str]); 3] = [
            ("PUBLISH to tenure:*", &["PUBLISH", &channel, "a"]),
            ("EVAL a script", &["EVAL", "return redis.call('EXISTS', KEYS[1])", "1", &lock]),
            ("GETRANGE a key", &["GETRANGE", &lock, "0", "1"]),
        ];
        for (verb, words) in commands {
            let mut cmd = Cmd::new();
            cmd.arg(words);
            self.wire.ask(&cmd).await.map_err(|error| (verb, self.failed(error)))?;
        }
        Ok(())
    }

    /// A counter of its own lasts for a day: not that of a lock which nobody takes again.
    async fn forget_counter(&self, session: &Session, name: &LockName) {
        let Ok(keys) = self.redis.keys(name) else { return };
        if self.redis.config().counting() != Counting::One {
            let mut del: Cmd = redis::cmd("DEL");
            // OK because it is gone after a day anyway.
            let _ = self.redis.sessions.command(session, del.arg(keys.counter())).await;
        }
    }

    /// What this user was refused, and the line that gives it.
    pub(super) fn refused(&self, verb: &str, error: &BackendError) -> Finding {
        let words = shown::error(error);
        if error.kind() == ErrorKind::Denied {
            return finding(
                Severity::Problem,
                format!("this user may not {verb}: {words}"),
                format!("give it the rights: {}", self.grant_line()),
            );
        }
        let remedy = "do what it says, look into the log of the server, then run `tenure doctor` again";
        finding(Severity::Problem, format!("it was not possible to {verb}: {words}"), remedy)
    }

    fn grant_line(&self) -> String {
        let config = self.redis.config();
        let user = shown::word(config.login.user.as_deref().unwrap_or("default"), "USER");
        let keys = match config.key.as_str() {
            "%s" => "'~*'".to_owned(),
            template => {
                let pattern = template.replacen("%s", "*", 1);
                let plain = shown::word(pattern.trim_matches('*'), "");
                if plain.is_empty() { "'~*'".to_owned() } else { format!("'~{pattern}' '~tenure:*'") }
            }
        };
        let (rights, more) =
            if self.redis.is_cluster() { (RIGHTS, RIGHTS_IN_A_CLUSTER) } else { (RIGHTS, "") };
        format!("redis-cli ACL SETUSER {user} {keys} '&tenure:*' {rights} {more}").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line of rights, in two places.
    #[test]
    fn the_readme_gives_the_rights_that_doctor_gives() {
        let readme = include_str!("../../README.md");
        for rights in [RIGHTS, RIGHTS_IN_A_CLUSTER] {
            assert!(
                readme.contains(&format!(" {rights}\n")) || readme.contains(&format!("`{rights}`")),
                "{rights}"
            );
        }
    }
}

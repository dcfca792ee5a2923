//! `diagnose`: what weakens the promises of a Redis server, and what to do about it.
//!
//! A visit uses a connection that has passed no check, so that it works even where clients are refused. It checks:
//!
//! * the servers;
//! * the record: whether it has the settings of this client, whether it grants, and what its clock did;
//! * a trial lock, from claim to release: whether this user may do all that a lock needs;
//! * the keys: what other programs store under Tenure's prefix, and which foreign clients hold what clients of Tenure wait
//!   for.

mod server;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue, RedisResult, Value};
use tenure_client::doctor::{Trial, TrialError, finding, found};
use tenure_core::{
    Audience, BackendError, ErrorKind, Finding, LockName, Severity,
    Severity::{Note, Problem, Warning},
    WaitMode, shown,
};

use crate::{
    backend::Redis,
    config::GuardMode,
    connection::{LockNode, Wire},
    error,
    guard::{self, ClientRefusal, Decision, SLACK, ServerFacts, ServerRecord, Terms, Why},
    hints,
    keys::{self, Counting, ONE, PREFIX, QUORUM},
    record::{self, Fitness},
    scan::{self, STEP, Scan},
    session::RedisSession,
};
use server::{NodeReport, time, word};

struct Visit<'a> {
    redis: &'a Redis,
    wire: Wire,
    /// Messages are pushed over the same connection.
    resp3: bool,
    /// In a Cluster without a guard, whatever the URL has.
    terms: Terms,
    findings: Vec<Finding>,
}

impl Redis {
    pub(crate) async fn examine(&self) -> Result<Vec<Finding>, BackendError> {
        let (wire, resp3) = self.sessions.wire().await?;
        let mut terms = Terms::of(self.config());
        if self.is_cluster() {
            terms.mode = GuardMode::Off;
        }
        let mut visit = Visit { redis: self, wire, resp3, terms, findings: Vec::new() };
        let nodes = visit.wire.nodes().await.map_err(|error| visit.failed(error))?;
        if visit.servers(&nodes).await? {
            let session = visit.session().await;
            match session.as_deref() {
                Some(session) if matches!(session.health.fitness(), Fitness::Fit(_)) => {
                    visit.try_a_lock(session).await;
                }
                Some(_) => visit.not_tried("until it grants again"),
                None => visit.not_tried("until the problem above is mended"),
            }
            visit.keys(&nodes, session.as_deref()).await;
        }
        Ok(visit.findings)
    }
}

impl Visit<'_> {
    /// Checks each server that keeps locks; false if a check of anything else is of no use.
    async fn servers(&mut self, nodes: &[LockNode]) -> Result<bool, BackendError> {
        let (mut found, mut is_right) = (Vec::new(), true);
        for node in nodes {
            let findings = match NodeReport::read(&self.wire, node, self.redis, &self.terms).await {
                Ok(server) => {
                    let wrong = server.keeps_no_locks();
                    is_right &= wrong.is_empty();
                    if wrong.is_empty() { server.weaknesses() } else { wrong }
                }
                Err(error) if error.code() == Some("NOPERM") => {
                    is_right = false;
                    vec![self.refused("INFO and TIME", &self.failed(error))]
                }
                Err(error) => return Err(self.failed(error)),
            };
            found.extend(findings.into_iter().map(|finding| (node, finding)));
        }
        self.findings.extend(merged(found));
        Ok(is_right)
    }

    /// An ordinary connection; none if this client is refused.
    async fn session(&mut self) -> Option<Arc<RedisSession>> {
        if self.redis.is_cluster() {
            let what =
                "a Redis Cluster has no restart guard: after a fail-over two clients may hold one lock";
            let remedy = "check the token where you write; or keep locks on one master with Sentinel";
            self.say(Note, what, remedy);
        } else {
            if self.terms.mode == GuardMode::Off {
                let what = "the guard is off: after a restart or a fail-over the server grants what others \
                            may still hold";
                let remedy = "take guard=off out of the URL everywhere, then run `tenure doctor --adopt`; or \
                              check the token where you write";
                self.say(Warning, what, remedy);
            }
            self.record().await?;
        }
        let opened = self.opened().await;
        self.tried("look at the server and write its record", opened)
    }

    /// Checks the record; nothing if this client is refused because of it.
    async fn record(&mut self) -> Option<()> {
        let place = self.redis.config().place_name();
        let looked = record::facts_and_record(&self.redis.sessions.shared, &self.wire, &place).await;
        if let Err(error) = &looked
            && error.kind() == ErrorKind::Corrupt
        {
            let key = self.redis.config().record();
            let what = format!("the record of this server cannot be read: {}", described(error));
            let remedy = format!(
                "{key} must be a hash that only Tenure writes: see redis-cli TYPE {key}, then RENAME {key} \
                 old:{key}; or give Tenure a database of its own, as in redis://HOST/1"
            );
            self.say(Problem, what, remedy);
            return None;
        }
        let (facts, record) = self.tried("read the record of the server", looked)?;
        let decision = guard::decide(&self.terms, &facts, record.as_ref());
        if let Some(served) =
            self.terms.served(&facts, record.as_ref()).filter(|served| *served != self.terms)
        {
            let what = format!(
                "others use this server with {served}, and this URL has {}: no lease of this client is longer than theirs",
                self.terms
            );
            let remedy = "once all clients have this URL, run `tenure doctor --adopt --raise`";
            self.say(Note, what, remedy);
        }
        if let Some(counter) = self.counter().await {
            self.findings.extend(set_back(counter, &facts, record.as_ref(), &decision));
        }
        match decision {
            Decision::Refuse(ClientRefusal::Mismatch { theirs, ours }) => {
                self.findings.push(mismatch(&theirs, &ours));
                return None;
            }
            Decision::Refuse(ClientRefusal::Alone) => self.say(
                Problem,
                format!("{}, so it grants and renews no locks", Why::Alone),
                "bring a replica back (redis-cli INFO replication shows them); or, if this server is to \
                 stand alone from now on, run `tenure doctor --adopt`",
            ),
            Decision::Write { why: Why::Missing, wait, .. } if facts.is_lossy && !wait.is_zero() => self.say(
                Warning,
                "the record of this server is gone, and its statistics show FLUSHALL, FLUSHDB, SWAPDB or \
                 evicted keys: all earlier locks were lost",
                "see who does that (redis-cli INFO commandstats, ACL LOG), and forbid it: redis-cli ACL \
                 SETUSER USER -flushall -flushdb -swapdb",
            ),
            _ => {}
        }
        Some(())
    }

    /// The largest token that was granted here. It is a time in µs, unless the counter was ahead of the clock.
    async fn counter(&mut self) -> Option<Duration> {
        let mut cmd = redis::cmd("HGETALL");
        let verb = "read the counter of tokens (HGETALL)";
        let answer = self.asked(verb, cmd.arg(self.redis.config().record())).await?;
        let fields: HashMap<String, String> = redis::from_redis_value(answer).ok()?;
        let counters = fields.iter().filter(|(name, _)| *name == "token" || name.contains('.'));
        counters.filter_map(|(_, count)| count.parse().ok()).max().map(Duration::from_micros)
    }

    async fn opened(&mut self) -> Result<Arc<RedisSession>, BackendError> {
        let sessions = &self.redis.sessions;
        let session = sessions.session().await?;
        if !self.redis.is_cluster() {
            session.health.check_again().await?;
        }
        if let Fitness::Unfit { why, until, .. } = session.health.fitness()
            && why != Why::Alone
        {
            let left = record::described(until.remaining(sessions.host().now()));
            let what = format!("{why}; it grants no locks for another {left}, in case it lost some");
            let remedy =
                format!("wait {left}; a shorter ?max_ttl= (the same everywhere) shortens the next wait");
            self.say(Warning, what, remedy);
        }
        Ok(session)
    }

    /// Tries a lock whose name no other client knows, and the commands that this trial did not need but others will.
    async fn try_a_lock(&mut self, session: &RedisSession) {
        let mut trial = Trial::new(self.redis.sessions.host(), TTL);
        trial.wait = WaitMode::Wake;
        if let Err(TrialError { verb, error }) = trial.run(self.redis).await {
            self.findings.push(self.refused(verb, &error));
        }
        let _ = self.commands(&trial).await;
        // The lock's own counter would stay for a day.
        if let Ok(keys) = self.redis.keys(&trial.name)
            && self.redis.config().counting() != Counting::One
        {
            let mut del = redis::cmd("DEL");
            let _ = session.command(del.arg(keys.counter())).await;
        }
    }

    /// Tries hints, and scripts that the server forgot.
    async fn commands(&mut self, trial: &Trial<'_>) -> Option<()> {
        let channel = hints::channel((trial.process, Audience::Waiters));
        // On the connection that is dropped with this visit.
        let heard = if self.resp3 {
            self.wire.subscribe(&channel).await
        } else {
            let route = self.wire.route()?;
            route.listen(std::slice::from_ref(&channel)).await.map(drop)
        };
        self.read("SUBSCRIBE to tenure:*", heard)?;
        let keys = self.redis.keys(&trial.name);
        let lock = self.tried("name a lock", keys)?.lock;
        let script = "return redis.call('EXISTS', KEYS[1])";
        for (verb, words) in [
            ("PUBLISH to tenure:*", &["PUBLISH", &channel, "a"][..]),
            ("EVAL a script", &["EVAL", script, "1", &lock]),
            ("GETRANGE a key", &["GETRANGE", &lock, "0", "1"]),
        ] {
            self.asked(verb, Cmd::new().arg(words)).await?;
        }
        if self.redis.is_cluster() {
            self.asked("compare the nodes (CLUSTER INFO)", Cmd::new().arg(&["CLUSTER", "INFO"])).await?;
        }
        Some(())
    }

    /// Checks the keys. Without a session, only what needs no script is checked.
    async fn keys(&mut self, nodes: &[LockNode], session: Option<&RedisSession>) {
        let Some(waited) = self.under_prefix(nodes).await else { return };
        if let Some(session) = session {
            self.foreign_holders(session, &waited).await;
        }
        let template = self.redis.config().key.clone();
        if template != "%s" {
            self.under_template(nodes, &template).await;
        }
    }

    /// Checks all keys under Tenure's prefix. Returns the locks that have waiters.
    async fn under_prefix(&mut self, nodes: &[LockNode]) -> Option<Vec<LockName>> {
        let (redis, mut strange, mut waited) = (self.redis, Examples::default(), Vec::new());
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
        let remedy = "see who writes there, then rename or delete them (redis-cli RENAME KEY NEW), or give \
                      Tenure a database of its own, as in redis://HOST/1";
        self.say_of(&strange, Problem, &what, remedy);
        Some(waited)
    }

    /// Finds locks that clients of Tenure wait for and that a foreign client holds, with an end or without.
    async fn foreign_holders(&mut self, session: &RedisSession, waited: &[LockName]) {
        let [mut bounded, mut endless, mut broken] = [(); 3].map(|()| Examples::default());
        let (mut blocked, mut views) = (None, Vec::new());
        for step in waited.chunks(STEP) {
            views.extend(join_all(step.iter().map(|name| self.redis.look(session, name))).await);
        }
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
            let Some(holder) = view.holders.iter().find(|holder| holder.is_foreign()) else { continue };
            if let Some(left) = holder.expires_in {
                bounded.add(format!("{shown}, {} left", time(left)));
            } else {
                endless.add(shown);
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
            let remedy = format!(
                "see that no client uses it, then `tenure break --foreign {name}`, or redis-cli DEL {key}"
            );
            let what = "locks that ours wait for and that foreign clients hold without an end, until the key \
                        is deleted";
            self.say_of(&endless, Warning, what, &remedy);
        }
        let remedy = "give Tenure names of its own, as in ?key=lock:%25s (the same everywhere), or rename \
                      the other data";
        self.say_of(&broken, Problem, "locks whose key holds other data, so that they fail", remedy);
    }

    /// Checks the keys of the template. If it is not `%s`, every key of such a name should be a lock.
    async fn under_template(&mut self, nodes: &[LockNode], template: &str) -> Option<()> {
        let (mut other, mut endless) = (Examples::default(), Examples::default());
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
        let remedy = "rename the other data, or use another template, as in ?key=tenure-lock:%25s (the same \
                      everywhere)";
        self.say_of(&other, Problem, &what, remedy);
        let what = format!(
            "keys without a ttl under the template `{template}`, so that a claim of such a lock waits for \
             ever"
        );
        let remedy = "if a foreign client left these locks, see that no client uses them, then redis-cli DEL \
                      KEY; if they are other data, rename them or use another template";
        self.say_of(&endless, Warning, &what, remedy);
        Some(())
    }

    /// Shows each key that matches, with its type and its PTTL.
    async fn walk(
        &mut self,
        nodes: &[LockNode],
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

    fn say(&mut self, severity: Severity, what: impl AsRef<str>, remedy: impl AsRef<str>) {
        self.findings.push(finding(severity, what, remedy));
    }

    fn failed(&self, error: redis::RedisError) -> BackendError {
        error::asked(&self.redis.config().place_name(), error).1
    }

    /// The result of an attempt; a failure becomes a finding.
    fn tried<T>(&mut self, verb: &str, done: Result<T, BackendError>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                self.findings.push(self.refused(verb, &error));
                None
            }
        }
    }

    /// The answer to a command; a failure becomes a finding.
    async fn asked(&mut self, verb: &str, cmd: &Cmd) -> Option<Value> {
        let answer = self.wire.ask(cmd).await;
        self.read(verb, answer)
    }

    fn read<T>(&mut self, verb: &str, answer: RedisResult<T>) -> Option<T> {
        let answer = answer.map_err(|error| self.failed(error));
        self.tried(verb, answer)
    }

    fn not_tried(&mut self, until: &str) {
        let what = "the rights of this user were not tried: no lock can be taken here now";
        self.say(Note, what, format!("run `tenure doctor` again; nothing can be tried {until}"));
    }

    fn say_of(&mut self, examples: &Examples, severity: Severity, what: &str, remedy: &str) {
        let what = format!("{what}: {}", examples.text());
        self.findings.extend(found(examples.count > 0, severity, what, remedy));
    }

    /// What this user was refused, and the line that allows it.
    fn refused(&self, verb: &str, error: &BackendError) -> Finding {
        let (why, remedy) = match error.kind() {
            ErrorKind::Denied => ("this user may not", format!("give it the rights: {}", self.grant_line())),
            _ => (
                "it was not possible to",
                "do what the message says, read the log of the server, then run `tenure doctor` again".into(),
            ),
        };
        finding(Problem, format!("{why} {verb}: {}", described(error)), remedy)
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

/// A finding that several servers of a Cluster share is reported once.
fn merged(found: Vec<(&LockNode, Finding)>) -> Vec<Finding> {
    let mut groups: Vec<(Vec<String>, Finding)> = Vec::new();
    for (node, finding) in found {
        let name = match node {
            LockNode::Here => String::new(),
            LockNode::At(host, port) => format!("{host}:{port}"),
        };
        match groups.iter_mut().find(|(_, known)| *known == finding) {
            Some((names, _)) => names.push(name),
            None => groups.push((vec![name], finding)),
        }
    }
    let named = |(names, mut finding): (Vec<String>, Finding)| {
        let names = names.join(", ");
        if !names.is_empty() {
            finding.what = format!("{names}: {}", finding.what);
        }
        finding
    };
    groups.into_iter().map(named).collect()
}

/// An error with the server's own words.
fn described(error: &BackendError) -> String {
    shown(&tenure_client::doctor::described(error)).within(240).to_string()
}

fn mismatch(theirs: &str, ours: &str) -> Finding {
    let split = |settings| match str::split_once(settings, ' ') {
        Some((nodes, rest)) if nodes.starts_with("quorum=") => (nodes, rest),
        _ => ("", settings),
    };
    let ((nodes, rest), (our_nodes, _)) = (split(theirs), split(ours));
    // `guard=on max_ttl=1m 30s` is `guard=on&max_ttl=1m30s` in a URL.
    let query = rest.replacen(' ', "&", 1).replace(' ', "");
    let is_plain = query.chars().all(|c| c.is_ascii_alphanumeric() || "=&_".contains(c));
    let first = match is_plain {
        _ if nodes != our_nodes => "name the same nodes everywhere, all of them".to_owned(),
        true => format!("put ?{query} into this URL"),
        false => "put their ?guard= and ?max_ttl= into this URL".to_owned(),
    };
    let what = format!(
        "others use this server with {theirs}, and this URL has {ours}: this client is granted nothing"
    );
    finding(
        Problem,
        what,
        format!("{first}; or, if all others have {ours} by now, run `tenure doctor --adopt`"),
    )
}

/// Hazard 19. While a wait runs, the counter is at the end of it.
fn set_back(
    counter: Duration,
    facts: &ServerFacts,
    record: Option<&ServerRecord>,
    decision: &Decision,
) -> Option<Finding> {
    let allowed = match (record, decision) {
        (Some(record), _) if record.is_open => Duration::ZERO,
        (_, Decision::Wait { wait, .. } | Decision::Write { wait, .. }) => *wait + SLACK,
        // The waits of other clients may be longer than those of this client.
        (Some(record), _) => record.ready.saturating_sub(facts.now),
        (None, _) => return None,
    };
    let step = counter.saturating_sub(facts.now + allowed);
    let what = format!(
        "the server's clock is {} behind the time at which tokens began: it was set back, by no less than \
         that; leases of that time last longer",
        time(step)
    );
    let remedy = "have chrony or ntpd slew the clock instead of stepping it (see `chronyc tracking`); tokens \
                  go on from where they were, so nothing is unsafe";
    found(step > SET_BACK, Warning, what, remedy)
}

fn text(key: &[u8]) -> String {
    shown(&String::from_utf8_lossy(key)).within(80).to_string()
}

/// Whether a key under Tenure's prefix is what Tenure would have stored there; a key that is gone by now is.
fn is_ours(key: &[u8], kind: &str) -> bool {
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
struct Examples {
    count: usize,
    examples: Vec<String>,
}

impl Examples {
    fn add(&mut self, example: String) {
        self.count += 1;
        self.examples.extend((self.count <= EXAMPLES).then_some(example));
    }

    /// `2 (a, b)`
    fn text(&self) -> String {
        let rest = if self.count > EXAMPLES { ", …" } else { "" };
        format!("{} ({}{rest})", self.count, self.examples.join(", "))
    }
}

/// When the gate opens, the counter of tokens is at the server's time; a clock that is further behind it was set back.
const SET_BACK: Duration = Duration::from_secs(1);

/// The ttl of the trial lock, if the visit is cut off or refused before its release; no server has a shorter maximum.
const TTL: Duration = Duration::from_secs(1);

/// What a user needs, in addition to the keys.
const RIGHTS: &str = "+select +info +time +config|get +eval +evalsha +exists +get +getrange +set +incr \
                      +append +del +pttl +pexpire +hget +hset +hdel +hexists +hgetall +hmget +zadd +zcard \
                      +zrange +zrangebyscore +zrank +zrem +zscore +publish +subscribe +scan +type";

/// And in a Cluster.
const RIGHTS_IN_A_CLUSTER: &str = "+asking +cluster|slots +cluster|info";

/// The most steps of a walk on one server, and the most keys in all: that is a few seconds.
const MOST_STEPS: usize = 4_000;
const MOST_KEYS: usize = 20_000;
/// How many examples a finding has.
const EXAMPLES: usize = 3;

#[cfg(test)]
#[path = "diagnose_tests.rs"]
mod tests;

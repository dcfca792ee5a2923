//! `Redis`, a backend and a node of a quorum: each verb is one call of a script, or two where the first one, the fast path,
//! does not suffice.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::{Cmd, Value};
use tenure_client::Contended;
use tenure_core::{
    Absent, Adopt, Adoption, Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer,
    EndOfGrant, ErrorKind, Exposure, FencingToken, Finding, Grant, HolderView, Host, Label, LockName,
    LockView, Memo, Memos, Minting, Mode, Moment, Noted, Order, OtherMode, Outcome, OwnerId, Ownership,
    ProcessId, Promises, QuorumNode, Raised, RedisOwnership, Released, Renewal, Restart, Sharing, WaitMode,
    WakeStream, WakeSupport, locked,
};

use crate::{
    batch::{ClaimRequest, ReleaseRequest},
    config::{Config, GuardMode},
    connection::LockNode,
    error,
    gate::{Gate, GateName},
    guard::Terms,
    health::{FitFor, TRIES},
    hints,
    keys::{self, Counting, Keys},
    record::Fitness,
    scan::STEP,
    script::{ClaimReply, ForeignHolder, Reply, Script, Scripts, number},
    session::{Pushed, RedisSession, RedisSessions},
    shared::{RedisShared, TokenWatermark},
    value,
};

/// Locks in Redis: one master, behind Sentinel, or a Cluster.
pub struct Redis {
    pub(crate) sessions: Arc<RedisSessions>,
    /// Locks that another owner waited for a moment ago. It saves a round trip; nothing is right or wrong because of it.
    contended: Contended,
    /// Locks that a foreign client holds while an owner of this handle waits.
    foreign: Mutex<HashMap<LockName, ForeignHold>>,
    /// The last label and its text: most claims of a process have the same one.
    label: Mutex<Option<(Arc<Label>, Arc<str>)>>,
    /// The durations and bounds of queues, as the scripts take them.
    bounds: String,
}

/// What a waiter has seen of a lock that a foreign client holds. Such a client notifies no waiter.
struct ForeignHold {
    seen: ForeignHolder,
    /// Since when it is the same hold.
    since: Moment,
    waiter: OwnerId,
    /// When its place was taken or kept, and at which server.
    placed: (Moment, Option<Arc<GateName>>),
}

/// A server that was fit a moment ago, at `now`.
struct FitServer {
    session: Arc<RedisSession>,
    gate: Gate,
    now: Moment,
    /// Nothing was tried before: what is known of the server may be old.
    is_first: bool,
}

/// The result of an attempt at a server.
enum Tried<T> {
    Answer(T),
    /// Nothing was changed for this request: the server refused it, or it was not sent.
    Stale(Stale),
}

/// What this client knew of the server, and is not true any more.
enum Stale {
    /// The server does not know the gate.
    Gate,
    /// Other clients may have adopted other settings since.
    Settings,
    /// The server was put back to an earlier state.
    History,
}

#[async_trait]
impl Backend for Redis {
    fn promises(&self) -> Promises {
        let (config, is_cluster) = (self.config(), self.is_cluster());
        let is_guarded = !is_cluster && config.guard != GuardMode::Off;
        let forgotten = if is_guarded { Restart::WaitedFor } else { Restart::Lost };
        let mut promises = Promises::least(if is_cluster { "redis-cluster" } else { "redis" });
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        promises.restart = forgotten;
        promises.fail_over = Some(forgotten);
        promises.reach = "all clients of the server";
        promises.end = EndOfGrant::Ttl;
        promises.chosen_owner = true;
        promises.classes = true;
        promises.wake = WakeSupport::Pushed;
        promises.memo = Memos::Kept;
        promises.max_ttl = config.max_ttl();
        promises.served_ttl = self.sessions.shared.served_ttl();
        promises.max_ttl_parameter = (!is_cluster).then_some("max_ttl");
        promises.ttl_grain = Duration::from_millis(1);
        promises
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        let handle = self.another().await?;
        handle.sessions.session().await?;
        Ok(Arc::new(handle))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        // Refused even if no server is fit now, and none will be for a while.
        self.allow(claim.ttl, self.config().max_ttl())?;
        let listens = claim.wait != WaitMode::No;
        self.while_fit(FitFor::Claim, listens, |server| self.claim_from(server, claim)).await
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let began = self.sessions.host().now();
        // In a Cluster every lock has its own slot. The engine discards all answers of a call after a sixth of the
        // shortest ttl, so a node that hangs is given up before that.
        let batch = if self.is_cluster() { 1 } else { BATCH };
        let shortest = grants.iter().map(|grant| grant.ttl).min().unwrap_or_default();
        let late = self.is_cluster().then_some(began + shortest / 8);
        let batches = grants.chunks(batch).map(async |batch| {
            let renewed = self.while_fit(FitFor::Renewal, false, |server| self.renew_batch(server, batch));
            let renewed = async { renewed.await.unwrap_or_else(|error| all_failed(batch, &error)) };
            let Some(late) = late else { return renewed.await };
            tokio::select! {
                biased;
                renewed = renewed => renewed,
                () = self.sessions.host().sleep_until(late) => all_failed(batch, &error::late(&self.config().place_name())),
            }
        });
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let keys = self.keys(name)?;
        let session = self.sessions.session().await?;
        if !self.contended.is_contended(name) {
            let request = ReleaseRequest { lock: keys.lock.clone(), owner: owner.hex() };
            if session.batcher.release(request).await? {
                return Ok(Released::Released);
            }
        }
        Box::pin(self.leave(&session, &keys, name, owner)).await
    }

    async fn tell(&self, name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        let (script, keys) = (&self.scripts().tell, self.keys(name)?);
        let session = self.sessions.session().await?;
        let mut call = script.call(&[&keys.lock]);
        call.arg(hints::channel((owner.process(), whom))).arg(&owner.hex()[16..]);
        session.ask(script, &call).await.map(drop)
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        // No gate is needed: an owner whose lease was forgotten does not hold the lock.
        let session = self.sessions.session().await?;
        let (script, keys) = (&self.scripts().note, self.keys(name)?);
        let beside = ["shared", "who", "memo"].map(|kind| keys.side(kind));
        let [shared, who, key] = &beside;
        let mut call = script.call(&[&keys.lock, shared, who, key]);
        call.arg(&owner.hex()[..]).arg(token.get()).arg(millis(memo.kept())).arg(memo.text());
        match number(&session.ask(script, &call).await?) {
            Some(1) => Ok(Noted::Noted),
            Some(0) => Ok(Noted::Gone),
            _ => Err(error::unreadable(&session.place, "a memo")),
        }
    }

    /// No request: the script compares.
    async fn expose(&self, grant: &Grant) -> Result<Exposure, BackendError> {
        let proof = format!("{}:{}:", grant.owner, grant.last_token().get());
        Ok(Exposure::Exposed(Ownership::Redis(RedisOwnership::new(self.keys(&grant.name)?.lock, proof))))
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        Box::new(Pushed::new(self.sessions.clone(), process, audience))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let session = self.sessions.session().await?;
        self.look(&session, name).await
    }

    /// Every lock of Tenure whose name starts with `prefix`, and every foreign lock that clients of Tenure wait for.
    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        let session = self.sessions.session().await?;
        let (before, _) = self.config().key.split_once("%s").unwrap_or_default();
        let begin = format!("{before}{prefix}");
        // A key that a walk finds twice is one name.
        let mut names = BTreeSet::new();
        for node in session.wire.nodes().await.map_err(|error| session.failed(error))? {
            let mut cursor = 0;
            loop {
                let (next, step) = self.step(&session, &node, cursor, &begin).await?;
                let locks = step.iter().map(|key| keys::lock_of_queue(key).unwrap_or(key));
                names.extend(locks.filter_map(|key| self.name_of(key, prefix)));
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
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

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        let session = self.sessions.session().await?;
        let keys = self.keys(name)?;
        let script = &self.scripts().break_lock;
        let mut call = self.full_call(script, &keys, &self.gate_for_hand_off(&session).await);
        match scope {
            BreakScope::Leases => call.arg(""),
            BreakScope::Owner(owner) => call.arg(&owner.hex()[..]),
            BreakScope::All => call.arg("*"),
        };
        let answer = session.ask(script, &call).await?;
        let broken = Reply::new(answer).and_then(broken_holders);
        broken.ok_or_else(|| error::unreadable(&session.place, "a break"))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.examine().await
    }

    async fn may_grant(&self) -> Result<(), BackendError> {
        let session = self.sessions.session().await?;
        session.health.ensure_fit(FitFor::Claim, self.sessions.host().now()).await.map(drop)
    }

    async fn adopt(&self, adopt: Adopt) -> Result<Adoption, BackendError> {
        self.sessions.adopt(adopt).await
    }
}

#[async_trait]
impl QuorumNode for Redis {
    /// The `run_id`, read each time: the identity of the server matters only if it answers now.
    async fn identity(&self) -> Result<String, BackendError> {
        self.must_be(!self.is_cluster(), "a Redis Cluster is more than one server")?;
        let session = self.sessions.session().await?;
        let mut info = redis::cmd("INFO");
        let answer = session.command(info.arg("server")).await?;
        let text: Option<String> = redis::from_redis_value(answer).ok();
        let run_id =
            text.as_ref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("run_id:")));
        run_id.map(str::to_owned).ok_or_else(|| error::unreadable(&session.place, "who it is"))
    }

    async fn another(&self) -> Result<Self, BackendError> {
        Ok(Self::sharing(self.sessions.shared.clone()))
    }

    /// Raises exclusive holders only; a quorum knows no others.
    async fn raise(&self, name: &LockName, owner: OwnerId, to: FencingToken) -> Result<Raised, BackendError> {
        let is_node = self.config().counting() == Counting::Quorum;
        self.must_be(is_node, "this Redis server is no node of a quorum")?;
        let keys = self.keys(name)?;
        let script = &self.scripts().raise;
        self.while_fit(FitFor::Claim, false, async |FitServer { session, gate, .. }| {
            let mut call = script.call(&[&keys.lock, &keys.counter(), self.config().record()]);
            call.arg(gate.as_str()).arg(&owner.hex()[..]).arg(to.get());
            match number(&session.ask(script, &call).await?) {
                Some(1) => Ok(Tried::Answer(Raised::Raised)),
                Some(0) => Ok(Tried::Answer(Raised::Gone)),
                Some(-1) => Ok(Tried::Stale(Stale::Gate)),
                _ => Err(error::unreadable(&session.place, "a raise")),
            }
        })
        .await
    }
}

impl Redis {
    /// A handle; the first request connects.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let scripts = Scripts::new(config.counting());
        Self::sharing(Arc::new(RedisShared {
            config,
            host,
            scripts,
            history: Mutex::default(),
            watermark: TokenWatermark::default(),
            newest: Mutex::default(),
            known: Mutex::default(),
        }))
    }

    fn sharing(shared: Arc<RedisShared>) -> Self {
        let Config { claim_ttl, place_ttl, retry_max, .. } = &shared.config;
        let [claim, place, retry] = [claim_ttl, place_ttl, retry_max].map(Duration::as_millis);
        // In a Cluster a process may listen at another node, and this node does not know of it.
        let drop = u8::from(!shared.config.is_cluster());
        let bounds = format!("{claim}:{place}:{retry}:{PLACES_MAX}:{drop}");
        Self {
            sessions: Arc::new(RedisSessions::new(shared)),
            contended: Contended::new(CONTENDED_MAX),
            foreign: Mutex::default(),
            label: Mutex::default(),
            bounds,
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.sessions.shared.config
    }

    fn scripts(&self) -> &Scripts {
        &self.sessions.shared.scripts
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.config().is_cluster()
    }

    pub(crate) fn keys(&self, name: &LockName) -> Result<Keys, BackendError> {
        Keys::new(&self.config().key, name, self.config().counting())
    }

    /// The answer of `attempt` at a server that is fit for this purpose. If the server refuses because it is not as this
    /// client knew it, the client checks it and makes the attempt again.
    async fn while_fit<T, A: Future<Output = Result<Tried<T>, BackendError>>>(
        &self,
        purpose: FitFor,
        listens: bool,
        attempt: impl Fn(FitServer) -> A,
    ) -> Result<T, BackendError> {
        let mut tries = 0..TRIES;
        loop {
            let session =
                if listens { self.sessions.listening().await? } else { self.sessions.session().await? };
            let now = self.sessions.host().now();
            let gate = session.health.ensure_fit(purpose, now).await?;
            let Some(at) = tries.next() else {
                return Err(Fitness::Unknown.refusal(&session.place, now));
            };
            let server = FitServer { session: session.clone(), gate: gate.clone(), now, is_first: at == 0 };
            match attempt(server).await? {
                Tried::Answer(answer) => return Ok(answer),
                Tried::Stale(Stale::Gate) => session.health.refute(&gate),
                Tried::Stale(Stale::Settings) => session.health.doubt(),
                Tried::Stale(Stale::History) => {
                    Box::pin(self.close(&session, &gate)).await?;
                    session.health.refute(&gate);
                }
            }
        }
    }

    async fn claim_from(
        &self,
        FitServer { session, gate, now, is_first }: FitServer,
        claim: &Claim,
    ) -> Result<Tried<ClaimAnswer>, BackendError> {
        claim.asker.must_be_there()?;
        if claim.ttl > gate.max_ttl && is_first {
            // Other clients may have adopted a larger `max_ttl` since.
            return Ok(Tried::Stale(Stale::Settings));
        }
        self.allow(claim.ttl, gate.max_ttl)?;
        let mut reply = ClaimReply::NotPlain;
        let placed = self.placed_behind(claim, &gate, now);
        if placed.is_none() && claim.mode == Mode::Exclusive && !self.contended.is_contended(&claim.name) {
            reply = self.claim_plainly(&session, &gate, claim, now).await?;
            if matches!(reply, ClaimReply::NotPlain) {
                self.contended.set(&claim.name, true);
            }
        }
        if matches!(reply, ClaimReply::NotPlain) {
            let script = if placed.is_some() { &self.scripts().follow } else { &self.scripts().claim };
            reply = Box::pin(self.claim_in_full(&session, &gate, script, claim)).await?;
        }
        match reply {
            ClaimReply::Granted { first, block } => {
                if self.config().counting() == Counting::One
                    && let Some(name) = &gate.name
                {
                    self.sessions.shared.watermark.learn(name, first.get() + u64::from(block) - 1);
                }
                let (name, owner, ttl) = (claim.name.clone(), claim.owner, claim.ttl);
                Ok(Tried::Answer(ClaimAnswer::Granted(Grant::new(name, owner, first, ttl).with_block(block))))
            }
            ClaimReply::NotGranted { mut answer, foreign } => {
                if let ClaimAnswer::Queued { ahead: 0, retry_after, .. } = &mut *answer
                    && let Some(seen) = foreign
                {
                    *retry_after =
                        self.pace_behind(claim, seen, (placed.unwrap_or(now), gate.name), *retry_after);
                }
                Ok(Tried::Answer(*answer))
            }
            ClaimReply::GateClosed | ClaimReply::NotPlain => Ok(Tried::Stale(Stale::Gate)),
            ClaimReply::RolledBack => Ok(Tried::Stale(Stale::History)),
            ClaimReply::HoldsOtherwise(held) => Err(OtherMode { held }.into()),
            ClaimReply::QueueIsFull(waiting) => {
                let message =
                    format!("the queue of this lock is full: {waiting} owners wait already; try again later");
                Err(BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message))
            }
        }
    }

    /// When an owner that waits behind a foreign client took or kept its place, if the place need not be kept now.
    fn placed_behind(&self, claim: &Claim, gate: &Gate, now: Moment) -> Option<Moment> {
        let foreign = locked(&self.foreign);
        let hold = foreign
            .get(&claim.name)
            .filter(|hold| hold.waiter == claim.owner && claim.wait != WaitMode::No)?;
        let (placed, at) = &hold.placed;
        (*at == gate.name && placed.elapsed(now) < self.config().retry_max).then_some(*placed)
    }

    /// When a waiter checks a lock of a foreign client again. The first waiter does so 50 times a second while the holder
    /// changes, and less often the longer one holder stays.
    fn pace_behind(
        &self,
        claim: &Claim,
        seen: ForeignHolder,
        placed: (Moment, Option<Arc<GateName>>),
        usual: Duration,
    ) -> Duration {
        let (now, retry_max) = (self.sessions.host().now(), self.config().retry_max);
        let mut foreign = locked(&self.foreign);
        if foreign.len() >= CONTENDED_MAX {
            foreign.clear();
        }
        let known = foreign.remove(&claim.name).filter(|known| known.seen.goes_on_as(&seen));
        let since = known.map_or(now, |known| known.since);
        let pace = (since.elapsed(now) / 10).clamp(FOREIGN_LEAST, FOREIGN_MOST);
        let pace = if seen.before == 0 { pace.min(usual) } else { usual };
        // In time to keep the place.
        let kept = retry_max.saturating_sub(placed.0.elapsed(now));
        foreign.insert(claim.name.clone(), ForeignHold { seen, since, waiter: claim.owner, placed });
        pace.min(kept).max(FOREIGN_LEAST).min(retry_max)
    }

    /// The plain path: no owner holds the lock, and none waits.
    async fn claim_plainly(
        &self,
        session: &RedisSession,
        gate: &Gate,
        claim: &Claim,
        since: Moment,
    ) -> Result<ClaimReply, BackendError> {
        let Some(name) = &gate.name else { return Ok(ClaimReply::GateClosed) };
        let mut tail = String::with_capacity(64);
        // OK because writing to a String cannot fail.
        let _ = write!(tail, ":{}:", since.wall.as_millis());
        tail.push_str(&self.label(&claim.label));
        let request = ClaimRequest {
            asker: claim.asker.clone(),
            keys: self.keys(&claim.name)?,
            gate: name.clone(),
            owner: claim.owner.hex(),
            tail,
            ttl_ms: millis(claim.ttl),
            block: claim.block,
        };
        session.batcher.claim(request).await
    }

    /// The full path, which reads all keys of the lock, by `claim` or `follow`.
    async fn claim_in_full(
        &self,
        session: &RedisSession,
        gate: &Gate,
        script: &Script,
        claim: &Claim,
    ) -> Result<ClaimReply, BackendError> {
        let keys = self.keys(&claim.name)?;
        let mut call = self.full_call(script, &keys, gate);
        call.arg(&claim.owner.hex()[..]).arg(millis(claim.ttl)).arg(value::mode_code(claim.mode));
        call.arg(match claim.wait {
            WaitMode::No => "n",
            WaitMode::Wake => "w",
            WaitMode::Turn => "t",
        });
        let (label, since) = (self.label(&claim.label), self.sessions.host().now().wall.as_millis());
        call.arg(claim.block.max(1)).arg(since.to_string()).arg(&*label);
        call.arg(self.known_through(gate));
        if let Some(class) = value::class_code(claim.priority) {
            call.arg(class);
        }
        let answer = session.ask(script, &call).await?;
        ClaimReply::of_full(answer).ok_or_else(|| error::unreadable(&session.place, "a claim"))
    }

    /// A call of a script of the full path: all keys of the lock, the gate and the bounds of the queue.
    fn full_call(&self, script: &Script, keys: &Keys, gate: &Gate) -> Cmd {
        let all = keys.all();
        let mut call = script.call(&all.iter().map(String::as_str).collect::<Vec<_>>());
        call.arg(gate.as_str()).arg(&self.bounds);
        call
    }

    fn label(&self, label: &Arc<Label>) -> Arc<str> {
        let mut last = locked(&self.label);
        if let Some((_, text)) = last.as_ref().filter(|(known, _)| Arc::ptr_eq(known, label)) {
            return text.clone();
        }
        let mut text = String::new();
        value::encode_label(label, &mut text);
        let text: Arc<str> = Arc::from(text);
        *last = Some((label.clone(), text.clone()));
        text
    }

    /// # Errors
    /// `Invalid` for a lease that is longer than the guard of all clients waits for (H4.5). A script is sent with the gate
    /// that has this `max_ttl`: the gate is named after it.
    fn allow(&self, ttl: Duration, max: Duration) -> Result<(), BackendError> {
        if ttl <= max {
            return Ok(());
        }
        let message = match max < self.config().max_ttl() {
            true => format!(
                "this Redis server grants a ttl of {max:?} at most: its record has that max_ttl. If all clients have a larger one: \
                 `tenure doctor --adopt --raise`"
            ),
            false => format!("redis takes a ttl of {max:?} at most; raise it with ?max_ttl=, everywhere"),
        };
        Err(BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message))
    }

    /// A server was put back to an earlier state under the same run and history, as when a snapshot is resumed. Its counter
    /// shows it: it is behind what the server granted to this client. Closes the gate until every lease that the server may
    /// have forgotten has expired (L1); the check of the server then finds it closed.
    async fn close(&self, session: &RedisSession, gate: &Gate) -> Result<(), BackendError> {
        let script = &self.scripts().rewound;
        let mut call = script.call(&[self.config().record()]);
        call.arg(gate.as_str()).arg(self.known_through(gate)).arg(millis(self.config().max_ttl()));
        session.ask(script, &call).await?;
        tracing::warn!(place = %session.place, "a Redis server was put back to an earlier state");
        Ok(())
    }

    /// The largest token that this server granted to this client; zero where that proves nothing.
    fn known_through(&self, gate: &Gate) -> u64 {
        gate.name.as_ref().map_or(0, |name| self.sessions.shared.known_through(name))
    }

    /// Renews each lease that the settings allow.
    async fn renew_batch(
        &self,
        server: FitServer,
        grants: &[Grant],
    ) -> Result<Tried<Vec<Result<Renewal, BackendError>>>, BackendError> {
        let max_ttl = server.gate.max_ttl;
        let allowed: Vec<&Grant> = grants.iter().filter(|grant| grant.ttl <= max_ttl).collect();
        // If nothing is sent, this client does not learn whether others have adopted a larger `max_ttl` since.
        if allowed.is_empty() && server.is_first {
            return Ok(Tried::Stale(Stale::Settings));
        }
        let plain = match self.renew_plain(&server, &allowed).await? {
            Tried::Answer(plain) => plain,
            Tried::Stale(stale) => return Ok(Tried::Stale(stale)),
        };
        // A future for each of hundreds of leases that are renewed already would cost more than their renewals did.
        let rest = allowed.iter().zip(&plain).filter(|(_, is_renewed)| !**is_renewed);
        let mut kept = join_all(rest.map(|(grant, _)| self.keep(&server.session, grant))).await.into_iter();
        let mut plain = plain.into_iter();
        let mut answer = |grant: &Grant| {
            // Other clients have adopted a smaller `max_ttl`: a lease that was granted for longer must end.
            self.allow(grant.ttl, max_ttl)?;
            let is_renewed = plain.next().expect("BUG: each lease that is allowed was asked for");
            if is_renewed { Ok(Renewal::Renewed) } else { kept.next().expect("BUG: the rest was asked for") }
        };
        Ok(Tried::Answer(grants.iter().map(&mut answer).collect()))
    }

    /// Renews up to a batch of exclusive leases; `false` for those that need `keep`.
    async fn renew_plain(
        &self,
        FitServer { session, gate, .. }: &FitServer,
        grants: &[&Grant],
    ) -> Result<Tried<Vec<bool>>, BackendError> {
        let locks: Result<Vec<String>, _> =
            grants.iter().map(|g| self.keys(&g.name).map(|keys| keys.lock)).collect();
        let locks = locks?;
        let script = &self.scripts().renew;
        // In a Cluster there is no record; the lock's own counter is in the slot of the lock.
        let (record, settings) = match (self.is_cluster(), grants) {
            (_, []) => return Ok(Tried::Answer(Vec::new())),
            (true, [grant, ..]) => (self.keys(&grant.name)?.counter().into_owned(), String::new()),
            _ => {
                let terms = Terms { max_ttl: gate.max_ttl, ..Terms::of(self.config()) };
                (self.config().record().to_owned(), terms.to_string())
            }
        };
        let keys: Vec<&str> = std::iter::once(&record).chain(&locks).map(String::as_str).collect();
        let mut call = script.call(&keys);
        call.arg(settings).arg(gate.as_str()).arg(self.known_through(gate));
        for grant in grants {
            call.arg(&grant.owner.hex()[..]).arg(millis(grant.ttl));
        }
        let answer = session.ask(script, &call).await?;
        match answer {
            Value::Array(items) if items.len() == grants.len() => {
                Ok(Tried::Answer(items.iter().map(|item| number(item) == Some(1)).collect()))
            }
            Value::Int(-1) => Ok(Tried::Stale(Stale::Settings)),
            // The leases that are still there are renewed after that: they were granted, and to keep them forgets no lease.
            Value::Int(-2) => Ok(Tried::Stale(Stale::History)),
            _ => Err(error::unreadable(&session.place, "a renewal")),
        }
    }

    async fn keep(&self, session: &RedisSession, grant: &Grant) -> Result<Renewal, BackendError> {
        let script = &self.scripts().keep;
        let keys = self.keys(&grant.name)?;
        let mut call = self.full_call(script, &keys, &self.gate_for_hand_off(session).await);
        call.arg(&grant.owner.hex()[..]).arg(millis(grant.ttl));
        match number(&session.ask(script, &call).await?) {
            Some(1) => Ok(Renewal::Renewed),
            Some(0) => Ok(Renewal::Gone),
            _ => Err(error::unreadable(&session.place, "a renewal")),
        }
    }

    /// Leaves a lock that may have waiters; remembers whether it had.
    async fn leave(
        &self,
        session: &RedisSession,
        keys: &Keys,
        name: &LockName,
        owner: OwnerId,
    ) -> Result<Released, BackendError> {
        let script = &self.scripts().leave;
        let call = |gate: &Gate, owner: &[u8]| {
            let mut call = self.full_call(script, keys, gate);
            call.arg(owner);
            call
        };
        let gate = self.gate_for_hand_off(session).await;
        let answer = number(&session.ask(script, &call(&gate, &owner.hex())).await?);
        if answer == Some(3) && !gate.is_closed() {
            // The owner has left. A second call hands on what is free, if by now the server is fit with another gate. It is
            // not sent as this owner: if the owner claims again, a late copy would end its next lease.
            session.health.refute(&gate);
            let gate = self.gate_for_hand_off(session).await;
            if !gate.is_closed() {
                // OK to ignore: the lock is released, and each waiter acquires it by its own timer.
                let _ = session.ask(script, &call(&gate, &[b'0'; 48])).await;
            }
        }
        self.contended.set(name, matches!(answer, Some(1 | 3)));
        match answer {
            Some(1..=3) => Ok(Released::Released),
            Some(0) => Ok(Released::WasGone),
            _ => Err(error::unreadable(&session.place, "a release")),
        }
    }

    /// The gate; the server is checked again if it may have become fit. Otherwise a handle that only renews and releases
    /// would never learn that, and would hand nothing on.
    async fn gate_for_hand_off(&self, session: &RedisSession) -> Gate {
        let gate = session.health.ensure_fit(FitFor::HandOff, self.sessions.host().now()).await;
        gate.unwrap_or_else(|error| {
            tracing::debug!(%error, "nothing is handed on");
            Gate::closed()
        })
    }

    /// One lock.
    pub(crate) async fn look(
        &self,
        session: &RedisSession,
        name: &LockName,
    ) -> Result<LockView, BackendError> {
        let keys = self.keys(name)?;
        let all: Vec<String> = keys.all().into_iter().chain([keys.side("memo")]).collect();
        let mut call = self.scripts().inspect.call(&all.iter().map(String::as_str).collect::<Vec<_>>());
        call.arg(session.health.gate().as_str());
        let answer = session.ask(&self.scripts().inspect, &call).await?;
        let view = Reply::new(answer).and_then(|reply| read_view(name, reply));
        view.ok_or_else(|| error::unreadable(&session.place, "an inspection"))
    }

    /// The next cursor of a walk, and the keys of locks and queues in this step; a key that is no UTF-8 has no name.
    async fn step(
        &self,
        session: &RedisSession,
        node: &LockNode,
        cursor: u64,
        begin: &str,
    ) -> Result<(u64, Vec<String>), BackendError> {
        let script = &self.scripts().walk;
        let mut call = script.call(&[]);
        call.arg(cursor).arg(STEP).arg(begin);
        let answer = session.wire.eval_at(node, script, &call).await;
        let answer = answer.map_err(|error| session.failed(error))?;
        let step: Result<(u64, Vec<Vec<u8>>), _> = redis::from_redis_value(answer);
        let (next, keys) = step.map_err(|_| error::unreadable(&session.place, "a walk"))?;
        Ok((next, keys.into_iter().filter_map(|key| String::from_utf8(key).ok()).collect()))
    }

    fn name_of(&self, key: &str, prefix: &str) -> Option<LockName> {
        let name = keys::name_of(&self.config().key, key)?;
        (name.as_str().starts_with(prefix) && self.keys(&name).is_ok()).then_some(name)
    }

    /// # Errors
    /// `Unsupported`, if this handle was not made for that.
    fn must_be(&self, is_so: bool, message: &str) -> Result<(), BackendError> {
        if is_so {
            return Ok(());
        }
        let error = BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message.to_owned());
        Err(error.with("redis", self.config().place_name()))
    }
}

fn all_failed(grants: &[Grant], error: &BackendError) -> Vec<Result<Renewal, BackendError>> {
    grants.iter().map(|_| Err(error.clone())).collect()
}

fn broken_holders(mut reply: Reply) -> Option<Vec<HolderView>> {
    let now = reply.millis()?;
    let mut broken = Vec::new();
    // Without a value no owner holds it alone.
    let (value, left) = (reply.bytes(), reply.millis());
    broken.extend(value.map(|value| value::sole_holder(&value, left)));
    while !reply.is_empty() {
        let (owner, details, end) = (reply.text()?, reply.text()?, reply.millis()?);
        broken.extend(value::shared_holder(&owner, &details, end.saturating_sub(now)));
    }
    Some(broken)
}

/// See the contract of `inspect.lua`. What has expired is left out.
fn read_view(name: &LockName, mut reply: Reply) -> Option<LockView> {
    let now = reply.millis()?;
    let fence = FencingToken::new(reply.count()?);
    let (lock, left) = (reply.bytes(), reply.millis());
    let (mut places, mut shared) = (reply.list()?, reply.list()?);
    let memo = (reply.bytes(), reply.millis());
    let (mut classed, mut classes) = (reply.list()?, HashMap::new());
    while !classed.is_empty() {
        classes.insert(classed.text()?, value::class_of_score(classed.text()?.parse().ok()?));
    }
    let (mut holders, mut queue) = (Vec::new(), Vec::new());
    while !places.is_empty() {
        let (owner, details, end) = (places.text()?, places.text()?, places.millis()?);
        if end > now {
            let class = classes.get(&owner).copied().unwrap_or_default();
            queue.extend(value::waiter(&owner, &details, now).map(|waiter| waiter.with_priority(class)));
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
    view.memo = if let (Some(value), Some(left)) = memo { value::memo(&value, left) } else { None };
    Some(view)
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Leases that one call renews.
const BATCH: usize = 128;

/// How often the first waiter checks a lock behind a foreign client: 50 times a second at most, at least once a second.
const FOREIGN_LEAST: Duration = Duration::from_millis(20);
const FOREIGN_MOST: Duration = Duration::from_secs(1);

/// How many may wait for one lock.
const PLACES_MAX: usize = 4096;

/// How many names are remembered as contended; if there are more, all are forgotten.
const CONTENDED_MAX: usize = 4096;

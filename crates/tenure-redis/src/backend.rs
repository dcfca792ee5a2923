//! `impl Backend`: each verb is one call of a script, two where the first finds that it is not as plain as that.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::{Cmd, Value};
use tenure_client::Contended;
use tenure_core::{
    Absent, Adoption, Audience, Backend, BackendError, BackendHandle, Claim, ClaimAnswer, EndOfGrant,
    ErrorKind, FencingToken, Finding, Grant, HolderView, Host, Label, LockName, LockView, Memo, Memos,
    Minting, Noted, Order, Outcome, OwnerId, ProcessId, Promises, QuorumNode, Released, Renewal, Restart,
    Sharing, WakeUp, Wakes, locked,
};

use crate::{
    check::Gate,
    config::{Config, GuardMode},
    connection::Freeing,
    error,
    guard::Terms,
    keys::Keys,
    script::{Reply, Script, Scripts, number},
    session::{Pushed, Session, Sessions},
    shared::{Known, Shared},
    value, wire,
};

/// Leases that one call renews.
const BATCH: usize = 128;

/// How many may wait for one lock.
const PLACES_MAX: usize = 4096;

/// Names that are remembered as contended; more, and all are forgotten.
const CONTENDED_MAX: usize = 4096;

/// Locks in Redis: one master, behind Sentinel, or a Cluster.
pub struct Redis {
    pub(crate) sessions: Arc<Sessions>,
    /// Locks that somebody waited for a moment ago. A hint that saves a round trip: never right or wrong.
    pub(crate) contended: Contended,
    /// The last label and its text: most claims of a process have the same one.
    label: Mutex<Option<(Arc<Label>, Arc<str>)>>,
    /// The durations and bounds of queues, as the scripts want them.
    bounds: String,
}

impl Redis {
    /// A handle; the first request connects.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let scripts = Scripts::new(config.counting());
        Self::sharing(Arc::new(Shared {
            config,
            host,
            scripts,
            seen: Mutex::default(),
            known: Known::default(),
            newest: Mutex::default(),
        }))
    }

    pub(crate) fn sharing(shared: Arc<Shared>) -> Self {
        let Config { claim_ttl, place_ttl, retry_max, .. } = &shared.config;
        let [claim, place, retry] = [claim_ttl, place_ttl, retry_max].map(Duration::as_millis);
        // Elsewhere in a Cluster somebody may listen of whom this node does not know.
        let drop = u8::from(!shared.config.is_cluster());
        let bounds = format!("{claim}:{place}:{retry}:{PLACES_MAX}:{drop}");
        Self {
            sessions: Arc::new(Sessions::new(shared)),
            contended: Contended::new(CONTENDED_MAX),
            label: Mutex::default(),
            bounds,
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.sessions.shared.config
    }

    pub(crate) fn scripts(&self) -> &Scripts {
        &self.sessions.shared.scripts
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.config().is_cluster()
    }

    pub(crate) fn keys(&self, name: &LockName) -> Result<Keys, BackendError> {
        Keys::new(&self.config().key, name, self.config().counting())
    }

    /// A call of a script that looks at everything: its keys, the gate and the bounds of the queue.
    pub(crate) fn full_call(&self, script: &Script, keys: &Keys, gate: &str) -> Cmd {
        let mut call = calling(script, keys);
        call.arg(gate).arg(&self.bounds);
        call
    }

    pub(crate) fn label(&self, label: &Arc<Label>) -> Arc<str> {
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

    /// One release.
    pub(crate) async fn try_release(
        &self,
        name: &LockName,
        owner: OwnerId,
    ) -> Result<Released, BackendError> {
        let keys = self.keys(name)?;
        let session = self.sessions.session().await?;
        if !self.contended.is_contended(name) {
            let freeing = Freeing { lock: keys.lock.clone(), owner: owner.hex() };
            if session.connection.ask_plainly(&self.sessions.shared, freeing).await? {
                return Ok(Released::Released);
            }
        }
        Box::pin(self.leave(&session, &keys, name, owner)).await
    }

    /// The connection, if leases so long may be renewed over it.
    async fn renewing(&self, longest: Duration) -> Result<Arc<Session>, BackendError> {
        self.allow(longest)?;
        let session = self.sessions.session().await?;
        session.stand(self.sessions.host().now()).await?;
        session.may_renew().await?;
        Ok(session)
    }

    /// Renews up to a batch of exclusive leases; `false` for those that need a closer look.
    async fn renew_plain(&self, session: &Arc<Session>, grants: &[Grant]) -> Result<Vec<bool>, BackendError> {
        let locks: Result<Vec<String>, _> =
            grants.iter().map(|g| self.keys(&g.name).map(|keys| keys.lock)).collect();
        let locks = locks?;
        let script = &self.scripts().renew;
        // In a Cluster there is no record; its own counter lies in the slot of the lock.
        let (record, settings) = match (self.is_cluster(), grants) {
            (true, [grant, ..]) => (self.keys(&grant.name)?.counter().into_owned(), String::new()),
            _ => (self.config().record().to_owned(), Terms::of(self.config()).to_string()),
        };
        let keys: Vec<&str> = std::iter::once(&record).chain(&locks).map(String::as_str).collect();
        let mut call = script.call(&keys);
        let gate = open_gate(session);
        call.arg(settings).arg(&*gate).arg(self.known(&gate));
        for grant in grants {
            call.arg(&grant.owner.hex()[..]).arg(millis(grant.ttl));
        }
        let answer = session.ask(script, &call).await?;
        match answer {
            Value::Array(items) if items.len() == grants.len() => {
                Ok(items.iter().map(|item| number(item) == Some(1)).collect())
            }
            Value::Int(-1) => {
                // The check says which settings others have adopted.
                let gate = session.gate();
                session.recheck(&gate).await?;
                Err(session.gate().refusal(session.place(), self.sessions.host().now()))
            }
            Value::Int(-2) => {
                // What is still there is renewed: it was granted, and no lease is forgotten by keeping it.
                self.close::<()>(session, &gate).await?;
                Box::pin(self.renew_plain(session, grants)).await
            }
            _ => Err(error::unreadable(session.place(), "a renewal")),
        }
    }

    async fn keep(&self, session: &Arc<Session>, grant: &Grant) -> Result<Renewal, BackendError> {
        let script = &self.scripts().keep;
        let keys = self.keys(&grant.name)?;
        let mut call = self.full_call(script, &keys, &self.gate_for_handing(session).await);
        call.arg(&grant.owner.hex()[..]).arg(millis(grant.ttl));
        match number(&session.ask(script, &call).await?) {
            Some(1) => Ok(Renewal::Renewed),
            Some(0) => Ok(Renewal::Gone),
            _ => Err(error::unreadable(session.place(), "a renewal")),
        }
    }

    async fn renew_batch(
        &self,
        session: &Arc<Session>,
        grants: &[Grant],
    ) -> Vec<Result<Renewal, BackendError>> {
        let plain = match self.renew_plain(session, grants).await {
            Ok(plain) => plain,
            Err(error) => return grants.iter().map(|_| Err(error.clone())).collect(),
        };
        // A future for each of hundreds that are renewed already would cost more than they did.
        let rest = grants.iter().zip(&plain).filter(|(_, is_renewed)| !**is_renewed);
        let mut kept = join_all(rest.map(|(grant, _)| self.keep(session, grant))).await.into_iter();
        let answer = |is_renewed| if is_renewed { Some(Ok(Renewal::Renewed)) } else { kept.next() };
        plain.into_iter().filter_map(answer).collect()
    }

    /// The gate, looked at again if it may have opened since: who only renews and releases would never know otherwise, and
    /// hand nothing on.
    async fn gate_for_handing(&self, session: &Arc<Session>) -> Arc<str> {
        let gate = session.gate();
        if let Gate::Closed { until, .. } = &gate
            && until.is_over(self.sessions.host().now())
            && let Err(error) = session.recheck(&gate).await
        {
            tracing::debug!(%error, "nothing is handed on");
        }
        open_gate(session)
    }

    /// Leaves where there may be waiters; remembers whether there were.
    async fn leave(
        &self,
        session: &Arc<Session>,
        keys: &Keys,
        name: &LockName,
        owner: OwnerId,
    ) -> Result<Released, BackendError> {
        let script = &self.scripts().leave;
        let seen = session.gate();
        let mut call = self.full_call(script, keys, &self.gate_for_handing(session).await);
        call.arg(&owner.hex()[..]);
        let mut answer = number(&session.ask(script, &call).await?);
        if answer == Some(3) && matches!(seen, Gate::Open(_)) && session.recheck(&seen).await.is_ok() {
            // It has left. Asked again, it hands on what is free, if the gate is open under another name by now.
            let mut again = self.full_call(script, keys, &open_gate(session));
            again.arg(&owner.hex()[..]);
            answer = session.ask(script, &again).await.map_or(answer, |_| answer);
        }
        self.contended.set(name, matches!(answer, Some(1 | 3)));
        match answer {
            Some(1..=3) => Ok(Released::Released),
            Some(0) => Ok(Released::WasGone),
            _ => Err(error::unreadable(session.place(), "a release")),
        }
    }

    /// # Errors
    /// `Invalid` for a lease that is longer than the guard waits for (H4.5).
    pub(crate) fn allow(&self, ttl: Duration) -> Result<(), BackendError> {
        let max = self.config().max_ttl;
        if ttl <= max {
            return Ok(());
        }
        let message = format!("redis takes a ttl of {max:?} at most; raise it with ?max_ttl=, everywhere");
        Err(BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message))
    }
}

/// A call of a script that looks at everything, with its keys.
fn calling(script: &Script, keys: &Keys) -> Cmd {
    let all = keys.all();
    script.call(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The text of the gate if it is open as far as we know. A wrong one only keeps the script from handing on.
pub(crate) fn open_gate(session: &Session) -> Arc<str> {
    match session.gate() {
        Gate::Open(text) => text,
        Gate::Closed { .. } => Arc::from("closed"),
    }
}

pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX).max(1)
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
        promises.wake = WakeUp::Pushed;
        promises.memo = Memos::Kept;
        promises.max_ttl = config.max_ttl;
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
        self.try_claim(claim).await
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let longest = grants.iter().map(|grant| grant.ttl).max().unwrap_or_default();
        let session = match self.renewing(longest).await {
            Ok(session) => session,
            Err(error) => return grants.iter().map(|_| Err(error.clone())).collect(),
        };
        // In a Cluster every lock has its own slot.
        let batch = if self.is_cluster() { 1 } else { BATCH };
        let batches = grants.chunks(batch).map(|batch| self.renew_batch(&session, batch));
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        self.try_release(name, owner).await
    }

    async fn tell(&self, name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        let (script, keys) = (&self.scripts().tell, self.keys(name)?);
        let session = self.sessions.session().await?;
        let mut call = script.call(&[&keys.lock]);
        call.arg(wire::channel((owner.process(), whom))).arg(&owner.hex()[16..]);
        session.ask(script, &call).await.map(drop)
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.leave_memo(name, (owner, token), memo).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        Box::new(Pushed::new(self.sessions.clone(), process, audience))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let session = self.sessions.session().await?;
        self.look(&session, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.walk(prefix).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError> {
        let session = self.sessions.session().await?;
        let keys = self.keys(name)?;
        let script = &self.scripts().break_lock;
        let call = self.full_call(script, &keys, &self.gate_for_handing(&session).await);
        let answer = session.ask(script, &call).await?;
        let robbed = Reply::new(answer).and_then(read_robbed);
        robbed.ok_or_else(|| error::unreadable(session.place(), "a break"))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.examine().await
    }

    async fn adopt(&self) -> Result<Adoption, BackendError> {
        self.sessions.adopt().await
    }
}

fn read_robbed(mut reply: Reply) -> Option<Vec<HolderView>> {
    let now = reply.millis()?;
    let mut robbed = Vec::new();
    // No value is nobody.
    let (value, left) = (reply.bytes(), reply.millis());
    robbed.extend(value.map(|value| value::sole_holder(&value, left)));
    while !reply.is_empty() {
        let (owner, details, end) = (reply.text()?, reply.text()?, reply.millis()?);
        robbed.extend(value::shared_holder(&owner, &details, end.saturating_sub(now)));
    }
    Some(robbed)
}

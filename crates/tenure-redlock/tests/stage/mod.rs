//! A quorum of nodes in memory that fail as they are told, under paused time.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{
    Audience, Backend, BackendError, BackendHandle, BoxFuture, BreakScope, Claim, ClaimAnswer, ErrorKind,
    FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, Mode, Moment, Noted, Outcome,
    OwnerId, ProcessId, Promises, QuorumNode, Raised, Released, Renewal, Start, WaitMode, WakeStream,
};
use tenure_ledger::{Floor, Rules};
use tenure_memory::Memory;
use tenure_redlock::Redlock;
use tenure_testkit::host::PausedHost;
use tokio::task::AbortHandle;

pub(crate) const TTL: Duration = Duration::from_secs(10);

/// How a node behaves.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mood {
    Up,
    /// Refuses connections.
    Down,
    /// Answers that it will not serve for a while.
    Shut,
    /// Takes requests and never answers; what it took is done.
    Mute,
    /// Does what it is asked after so long, and answers then.
    Late(Duration),
}

/// One node, as every process sees it.
#[derive(Clone)]
pub(crate) struct Faulty {
    pub(crate) store: Memory,
    host: Arc<PausedHost>,
    mood: Arc<Mutex<Mood>>,
    identity: Arc<Mutex<String>>,
    pub(crate) claims: Arc<AtomicU32>,
    pub(crate) raises: Arc<AtomicU32>,
}

impl Faulty {
    fn new(host: &Arc<PausedHost>, number: usize, floor: u64) -> Self {
        let rules = Rules { floor: Floor::Count(floor), ..Rules::default() };
        Self {
            store: Memory::new(host.clone()).with_rules(rules),
            host: host.clone(),
            mood: Arc::new(Mutex::new(Mood::Up)),
            identity: Arc::new(Mutex::new(format!("server {number}"))),
            claims: Arc::default(),
            raises: Arc::default(),
        }
    }

    pub(crate) fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub(crate) fn pretend_to_be(&self, identity: &str) {
        identity.clone_into(&mut self.identity.lock().unwrap());
    }

    /// Before the request takes effect.
    async fn before(&self) -> Result<(), BackendError> {
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Up | Mood::Mute => Ok(()),
            Mood::Down => {
                Err(BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "connection refused"))
            }
            Mood::Shut => {
                let error =
                    BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "its gate is closed");
                Err(error.retry_after(TTL))
            }
            Mood::Late(delay) => {
                self.host.sleep_until(self.host.now() + delay).await;
                Ok(())
            }
        }
    }

    /// Before the answer comes back.
    async fn after(&self) {
        if *self.mood.lock().unwrap() == Mood::Mute {
            std::future::pending().await
        }
    }
}

#[async_trait]
impl Backend for Faulty {
    fn promises(&self) -> Promises {
        self.store.promises()
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(self.clone()))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.before().await?;
        let answer = self.store.claim(claim).await;
        self.after().await;
        answer
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        if let Err(error) = self.before().await {
            return grants.iter().map(|_| Err(error.clone())).collect();
        }
        let answers = self.store.renew(grants).await;
        self.after().await;
        answers
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        self.before().await?;
        let answer = self.store.release(name, owner).await;
        self.after().await;
        answer
    }

    async fn tell(&self, name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        self.store.tell(name, whom, owner).await
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.before().await?;
        let answer = self.store.note(name, owner, token, memo).await;
        self.after().await;
        answer
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        self.store.wakes(process, audience)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        self.before().await?;
        self.after().await;
        self.store.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.before().await?;
        self.store.list(prefix).await
    }

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        self.before().await?;
        self.store.break_lock(name, scope).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.before().await?;
        Ok(Vec::new())
    }
}

#[async_trait]
impl QuorumNode for Faulty {
    async fn identity(&self) -> Result<String, BackendError> {
        if *self.mood.lock().unwrap() != Mood::Shut {
            self.before().await?;
        }
        self.after().await;
        Ok(self.identity.lock().unwrap().clone())
    }

    async fn another(&self) -> Result<Self, BackendError> {
        Ok(self.clone())
    }

    async fn raise(&self, name: &LockName, owner: OwnerId, to: FencingToken) -> Result<Raised, BackendError> {
        self.raises.fetch_add(1, Ordering::SeqCst);
        self.before().await?;
        let answer = self.store.raise(name, owner, to).await;
        self.after().await;
        answer
    }
}

/// A host whose tasks end when a test says so, as those of a runtime that is shut down.
pub(crate) struct Runtime {
    host: Arc<PausedHost>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Runtime {
    pub(crate) fn of(stage: &Stage) -> Arc<Self> {
        Arc::new(Self { host: stage.host.clone(), tasks: Mutex::default() })
    }

    pub(crate) fn end(&self) {
        self.tasks.lock().unwrap().drain(..).for_each(|task| task.abort());
    }
}

impl Host for Runtime {
    fn now(&self) -> Moment {
        self.host.now()
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        self.host.sleep_until(until)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.tasks.lock().unwrap().push(tokio::spawn(task).abort_handle());
    }

    fn spawn_apart(&self, name: &'static str, start: Start) -> io::Result<()> {
        self.host.spawn_apart(name, start)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.host.random(bytes);
    }
}

/// The nodes, and processes that use them.
pub(crate) struct Stage {
    pub(crate) host: Arc<PausedHost>,
    pub(crate) nodes: Vec<Faulty>,
    owners: AtomicU64,
}

impl Stage {
    pub(crate) fn new(nodes: usize) -> Self {
        let host = PausedHost::new(7);
        let nodes = (0..nodes).map(|number| Faulty::new(&host, number, 0)).collect();
        Self { host, nodes, owners: AtomicU64::new(1) }
    }

    /// A process that remembers nothing of the others.
    pub(crate) fn process(&self) -> Redlock<Faulty> {
        self.process_on(self.host.clone())
    }

    /// The same on a host of its own.
    pub(crate) fn process_on(&self, host: Arc<dyn Host>) -> Redlock<Faulty> {
        let named =
            self.nodes.iter().enumerate().map(|(at, node)| (format!("n{at}"), Arc::new(node.clone())));
        Redlock::new(named.collect(), host).unwrap()
    }

    /// A process from which each node is so far away.
    pub(crate) fn process_at(&self, distance: impl Fn(usize) -> Duration) -> Redlock<Faulty> {
        let far = |(at, node): (usize, &Faulty)| {
            let mood = Arc::new(Mutex::new(Mood::Late(distance(at))));
            (format!("n{at}"), Arc::new(Faulty { mood, ..node.clone() }))
        };
        Redlock::new(self.nodes.iter().enumerate().map(far).collect(), self.host.clone()).unwrap()
    }

    pub(crate) fn claim(&self, wait: WaitMode) -> Claim {
        let number = self.owners.fetch_add(1, Ordering::SeqCst);
        let process = ProcessId::from_random(number.to_be_bytes());
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&number.to_be_bytes());
        let owner = OwnerId::from_random(process, bits);
        let (name, mode) = (name(), Mode::Exclusive);
        Claim::new(name, owner, mode, TTL).with_label(Arc::default()).with_wait(wait)
    }

    /// How many nodes have somebody who holds, and how many somebody who waits.
    pub(crate) async fn crowd(&self) -> (usize, usize) {
        let (mut held, mut waited) = (0, 0);
        for node in &self.nodes {
            let view = node.store.inspect(&name()).await.unwrap();
            held += usize::from(!view.holders.is_empty());
            waited += usize::from(!view.queue.is_empty());
        }
        (held, waited)
    }

    pub(crate) fn raises(&self) -> u32 {
        self.nodes.iter().map(|node| node.raises.load(Ordering::SeqCst)).sum()
    }

    pub(crate) fn clock(&self) -> Duration {
        self.host.now().boot
    }
}

pub(crate) fn name() -> LockName {
    LockName::new("one").unwrap()
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The grant, or else.
pub(crate) fn granted(answer: Result<ClaimAnswer, BackendError>) -> Grant {
    match answer.unwrap() {
        ClaimAnswer::Granted(grant) => grant,
        other => panic!("granted: {other:?}"),
    }
}

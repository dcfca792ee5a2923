//! The stage for the engine's tests: one store in memory, many processes, paused time.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    io,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tenure::{
    BackendError, ErrorKind,
    backend::{
        Audience, Backend, BackendHandle, BoxFuture, Claim, ClaimAnswer, Grant, Host, Memo, Moment, Noted,
        Outcome, ProcessId, Promises, Released, Renewal, Sharing, Start, WakeEvent, WakeStream,
    },
    view::{BreakScope, Finding, HolderView, LockView, Mode},
};
use tenure::{FencingToken, Guard, Lock, LockName, Locker, OwnerId};
use tenure_memory::Memory;
use tenure_testkit::{
    gate::{Gate, Gated, Verb},
    host::{PausedHost, pass},
};
use tokio::sync::Notify;

pub(crate) const TTL: Duration = Duration::from_secs(10);
/// ttl − drift: how long a grant is believed.
pub(crate) const VALIDITY: Duration = Duration::from_millis(9_898);
/// For how long a waiter that was handed the lock may take to enter.
pub(crate) const CLAIM_TTL: Duration = Duration::from_millis(500);
/// After which a waiter asks again at the latest.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(2);
/// What passes for at once: timers step in whole milliseconds.
pub(crate) const SOON: Duration = Duration::from_millis(5);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// One store and one pair of clocks.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) host: Arc<PausedHost>,
    pub(crate) store: Memory,
    over: Arc<AtomicBool>,
}

/// A host on which a test says what becomes of a task that is to have a thread of its own.
struct Threads<F> {
    host: Arc<PausedHost>,
    start: F,
    /// The runtime of the caller goes on; otherwise no task of it is ever polled.
    has_runtime: bool,
}

impl<F: Fn(Start) -> io::Result<()> + Send + Sync + 'static> Host for Threads<F> {
    fn now(&self) -> Moment {
        self.host.now()
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        self.host.sleep_until(until)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        if self.has_runtime {
            self.host.spawn(task);
        }
    }

    fn spawn_apart(&self, _: &'static str, start: Start) -> io::Result<()> {
        (self.start)(start)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.host.random(bytes);
    }
}

/// A process with its own connection and the gates on it.
#[derive(Clone)]
pub(crate) struct Actor {
    pub(crate) locks: Locker,
    pub(crate) gates: Gated,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let host = PausedHost::new(1);
        Self { store: Memory::new(host.clone()), host, over: Arc::default() }
    }

    pub(crate) fn actor(&self) -> Actor {
        self.actor_on(Arc::new(self.store.clone()))
    }

    pub(crate) fn actor_on(&self, store: BackendHandle) -> Actor {
        let gates = Gated::new(store, self.host.clone());
        Actor { locks: Locker::new(Arc::new(gates.clone()), self.host.clone()), gates }
    }

    /// A process whose threads are started like this.
    pub(crate) fn actor_with(
        &self,
        start: impl Fn(Start) -> io::Result<()> + Send + Sync + 'static,
    ) -> Actor {
        self.actor_of(start, true)
    }

    /// A process of whose runtimes none goes on after a call.
    pub(crate) fn actor_without_a_runtime(&self) -> Actor {
        let start = |start: Start| {
            tokio::spawn(start());
            Ok(())
        };
        self.actor_of(start, false)
    }

    fn actor_of(
        &self,
        start: impl Fn(Start) -> io::Result<()> + Send + Sync + 'static,
        has_runtime: bool,
    ) -> Actor {
        let gates = Gated::new(Arc::new(self.store.clone()), self.host.clone());
        let host = Threads { host: self.host.clone(), start, has_runtime };
        Actor { locks: Locker::new(Arc::new(gates.clone()), Arc::new(host)), gates }
    }

    /// Tells those who go on and on that it is enough.
    pub(crate) fn finish(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Time since an arbitrary start.
    pub(crate) fn clock(&self) -> Duration {
        self.host.now().boot
    }

    pub(crate) async fn view(&self) -> LockView {
        self.store.inspect(&name()).await.unwrap()
    }

    /// Who holds, as the store has it: a guard that is asked for its owner is not passed on.
    pub(crate) async fn holder(&self) -> OwnerId {
        self.view().await.holders[0].owner.parse().unwrap()
    }

    /// How many hold and how many wait.
    pub(crate) async fn crowd(&self) -> (usize, usize) {
        let view = self.view().await;
        (view.holders.len(), view.queue.len())
    }

    pub(crate) async fn is_free(&self) -> bool {
        self.crowd().await == (0, 0)
    }

    /// Lets time pass until so many hold and wait.
    pub(crate) async fn settle(&self, holding: usize, waiting: usize) {
        for _ in 0..100 {
            if self.crowd().await == (holding, waiting) {
                return;
            }
            pass(ms(1)).await;
        }
        panic!("{:?} hold and wait instead of {holding} and {waiting}", self.crowd().await);
    }

    pub(crate) async fn break_lock(&self) {
        assert_eq!(
            self.store.break_lock(&name(), BreakScope::Leases).await.unwrap().len(),
            1,
            "somebody held it"
        );
    }
}

impl Actor {
    /// The lock that everybody here wants, as a writer wants it: each waiter has a place of its own in the store.
    pub(crate) fn lock(&self) -> Lock {
        self.locks.rwlock("stage").write().ttl(TTL)
    }

    /// The same lock as a mutex: of the waiters of this process one has a place, and they pass a lease on to each other.
    pub(crate) fn mutex(&self) -> Lock {
        self.locks.mutex("stage").ttl(TTL)
    }

    pub(crate) async fn acquire(&self) -> Guard {
        in_time(self.lock().acquire()).await.unwrap()
    }

    /// A task that waits for the lock.
    pub(crate) fn waiting(&self) -> tokio::task::JoinHandle<Guard> {
        let lock = self.lock();
        tokio::spawn(async move { in_time(lock.acquire()).await.unwrap() })
    }

    /// From now on all requests of this verb meet this gate.
    pub(crate) fn set(&self, verb: Verb, gate: Gate) {
        self.gates.plan(verb, &[], gate);
    }

    /// The process dies: nothing it sends arrives any more.
    pub(crate) fn die(&self) {
        for verb in [Verb::Claim, Verb::Renew, Verb::Release] {
            self.set(verb, Gate::Hang);
        }
    }
}

pub(crate) fn name() -> LockName {
    LockName::new("stage").unwrap()
}

/// A wait that nothing on this stage justifies, so that a test fails and does not hang.
pub(crate) async fn in_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(50 * TTL, future).await.expect("it takes for ever")
}

/// Sees every guard, and that the laws hold among them.
#[derive(Clone, Default)]
pub(crate) struct Court(Arc<Mutex<Admitted>>);

#[derive(Default)]
struct Admitted {
    guards: Vec<Weak<Guard>>,
    newest: Option<FencingToken>,
}

impl Court {
    /// A guard was just granted. L1: nobody else believes; since belief never comes back (L5), asking at every grant is
    /// as good as asking always. L2: its token is the largest so far.
    pub(crate) fn admit(&self, guard: Guard) -> Arc<Guard> {
        let guard = Arc::new(guard);
        let mut court = self.0.lock().unwrap();
        let Admitted { guards, newest } = &mut *court;
        if guard.check().is_ok() {
            let others = guards.iter().filter_map(Weak::upgrade).filter(|other| other.check().is_ok());
            assert_eq!(others.count(), 0, "L1: {guard:?} was granted while somebody believed");
        }
        assert!(newest.is_none_or(|newest| newest < guard.token()), "L2: {newest:?}, then {guard:?}");
        *newest = Some(guard.token());
        guards.retain(|other| other.strong_count() > 0);
        guards.push(Arc::downgrade(&guard));
        guard
    }

    /// The lock was broken: exclusion is overridden, only the tokens protect.
    pub(crate) fn pardon(&self) {
        self.0.lock().unwrap().guards.clear();
    }
}

/// A store whose hints never arrive, unless a test says so; at most it tells that hints were missed. It may promise less than
/// it does.
#[derive(Clone)]
pub(crate) struct Deaf {
    store: Memory,
    pub(crate) promises: Promises,
    pub(crate) hears: bool,
    pub(crate) missed: Arc<Notify>,
    /// It cannot be looked at.
    pub(crate) is_dark: Arc<AtomicBool>,
    /// This handle keeps the thread of whom it tells something, as a busy file does.
    pub(crate) blocks: Arc<AtomicBool>,
}

struct Silence(Arc<Notify>);

impl Deaf {
    pub(crate) fn new(store: &Memory) -> Self {
        let (missed, is_dark) = (Arc::default(), Arc::default());
        let blocks = Arc::default();
        Self { store: store.clone(), promises: store.promises(), hears: false, missed, is_dark, blocks }
    }
}

#[async_trait]
impl WakeStream for Silence {
    async fn next(&mut self) -> WakeEvent {
        self.0.notified().await;
        WakeEvent::All
    }
}

#[async_trait]
impl Backend for Deaf {
    fn promises(&self) -> Promises {
        self.promises
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(Self { blocks: Arc::default(), ..self.clone() }))
    }

    async fn tell(&self, name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        while self.blocks.load(Ordering::SeqCst) {
            std::thread::sleep(ms(1));
        }
        self.store.tell(name, whom, owner).await
    }

    /// Where semaphores are slots there is one.
    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        if matches!(self.promises.sharing, Sharing::Slots { .. }) && claim.mode != Mode::Exclusive {
            let name = LockName::new(format!("{}#1", claim.name)).unwrap();
            return self.store.claim(&claim.clone().with_name(name).with_mode(Mode::Exclusive)).await;
        }
        self.store.claim(claim).await
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        self.store.renew(grants).await
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        self.store.release(name, owner).await
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.store.note(name, owner, token, memo).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        if self.hears {
            return self.store.wakes(process, audience);
        }
        Box::new(Silence(self.missed.clone()))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        if self.is_dark.load(Ordering::SeqCst) {
            return Err(BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "it is dark"));
        }
        self.store.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.store.list(prefix).await
    }

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        self.store.break_lock(name, scope).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.store.diagnose().await
    }
}

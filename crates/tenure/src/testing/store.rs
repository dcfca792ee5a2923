//! `TestStore`: a store whose requests fail, hang or come late, as a test sets them.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{
    Adopt, Adoption, Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer,
    ErrorKind, Exposure, FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, MemoView,
    Noted, Outcome, OwnerId, ProcessId, Promises, Released, Renewal, WakeStream, locked,
};

use crate::{connect, locker::Locker, testing::host::TestHost};

/// A fault of a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The store does not do it, and returns this error. [`unavailable`](Self::unavailable) is the usual one.
    Refuse(BackendError),
    /// The store does it, but the answer is lost: the caller gets an error with unknown outcome.
    LoseAnswer,
    /// The store does not do it and never answers, not even after [`recover`](TestStore::recover). The caller's own
    /// timeout ends it.
    Hang,
    /// The store does it immediately, and answers this much later.
    Delay(Duration),
}

impl Fault {
    /// The error of a store that is down: the request was not done, and another attempt may succeed.
    pub fn unavailable() -> Self {
        let message = "the test has the store refuse";
        Self::Refuse(BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message))
    }
}

/// A kind of request to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A claim of a lock; a waiter repeats it.
    Claim,
    /// A renewal, of all leases that are renewed together.
    Renew,
    /// A release, also in the background.
    Release,
    /// A memo that is stored with a lock.
    Note,
    /// A request for the [ownership](crate::Lease::ownership).
    Expose,
    /// A query: `inspect`, `list`, `diagnose`.
    Inspect,
    /// An operator's request: `force_release`, `adopt`.
    Break,
}

/// A store of locks for a test, as one process reaches it, with the faults that the test sets.
///
/// In memory, with the clock of a [`TestHost`]; or any other store, with [`over`](Self::over). Clones, and all
/// lockers made from them, get the same faults. [`other_process`](Self::other_process) has separate faults.
///
/// Connecting never fails. Hints are lost while every request fails.
///
/// ```
/// use tenure::{AcquireError, testing::{Fault, TestStore, Operation}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = TestStore::new();
/// let locks = store.locker();
///
/// store.fail_next(2, Fault::unavailable());
/// let guard = locks.mutex("orders/42").acquire().await?; // asks again until the store answers
/// assert_eq!(store.asked(Operation::Claim), 3);
///
/// let other = store.other_process().locker();
/// assert!(other.mutex("orders/42").try_acquire().await?.is_none());
/// # guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TestStore {
    inner: BackendHandle,
    host: TestHost,
    script: Arc<Mutex<FaultPlan>>,
}

#[derive(Debug, Default)]
struct FaultPlan {
    /// The latest rule that fits a request applies.
    rules: Vec<FaultRule>,
    asked: Vec<(Operation, usize)>,
}

#[derive(Debug)]
struct FaultRule {
    /// `None`: every kind.
    verb: Option<Operation>,
    /// For this many requests; `None`: until the store recovers.
    left: Option<usize>,
    fault: Fault,
}

impl TestStore {
    /// An empty store in memory, and a clock for the present test.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[expect(clippy::new_without_default, reason = "a default does not panic outside of a runtime")]
    pub fn new() -> Self {
        let host = TestHost::new();
        let shared: Arc<dyn Host> = Arc::new(host.clone());
        let inner = connect::backend("memory:", None, &shared).expect("BUG: the feature is on");
        Self { inner, host, script: Arc::default() }
    }

    /// The store of these locks, with faults on the way to it and a new clock. The store itself still uses its own
    /// clock, for example to count a ttl.
    ///
    /// ```no_run
    /// # async fn test() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::testing::{Fault, TestStore};
    ///
    /// let store = TestStore::over(&tenure::connect("redis://127.0.0.1/?guard=off").await?);
    /// store.fail(Fault::LoseAnswer);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn over(locks: &Locker) -> Self {
        let inner = locks.engine().backend.clone();
        Self { inner, host: TestHost::new(), script: Arc::default() }
    }

    /// The locks of this store, as one process has them: pass them to the code under test. Each call returns a
    /// separate holder.
    pub fn locker(&self) -> Locker {
        Locker::new(Arc::new(self.clone()), Arc::new(self.host.clone()))
    }

    /// The same locks, as another process reaches them, with the same clock and no fault yet.
    #[must_use]
    pub fn other_process(&self) -> Self {
        Self { script: Arc::default(), ..self.clone() }
    }

    /// The clock.
    pub fn host(&self) -> &TestHost {
        &self.host
    }

    /// Every request gets this fault, until [`recover`](Self::recover) or a later fault.
    pub fn fail(&self, fault: Fault) {
        self.add(None, None, fault);
    }

    /// The next `requests` requests, of any kind, get this fault; a renewal may be among them.
    pub fn fail_next(&self, requests: usize, fault: Fault) {
        self.add(None, Some(requests), fault);
    }

    /// Every request of this kind gets this fault, until [`recover`](Self::recover) or a later fault.
    pub fn fail_operation(&self, verb: Operation, fault: Fault) {
        self.add(Some(verb), None, fault);
    }

    /// The next requests of this kind get this fault.
    pub fn fail_next_of(&self, verb: Operation, requests: usize, fault: Fault) {
        self.add(Some(verb), Some(requests), fault);
    }

    /// The store answers again. Requests that hang still hang.
    pub fn recover(&self) {
        self.script().rules.clear();
    }

    /// How many requests of this kind were sent, including failed requests and those in the background.
    pub fn asked(&self, verb: Operation) -> usize {
        let script = self.script();
        script.asked.iter().find(|(asked, _)| *asked == verb).map_or(0, |(_, count)| *count)
    }

    /// Releases the lock by force, as an operator does with `tenure break`: each holder detects that it was
    /// [taken](crate::Loss::Taken). Faults do not apply. Returns the former holders.
    ///
    /// # Errors
    /// The store's, and [`ErrorKind::Invalid`] for a name that is not valid.
    ///
    /// # Cancel safety
    /// The lock may or may not be broken.
    pub async fn force_release(&self, name: impl AsRef<str>) -> Result<Vec<HolderView>, BackendError> {
        self.other_process().locker().force_release(name).await
    }

    fn script(&self) -> MutexGuard<'_, FaultPlan> {
        locked(&self.script)
    }

    fn add(&self, verb: Option<Operation>, left: Option<usize>, fault: Fault) {
        self.script().rules.push(FaultRule { verb, left, fault });
    }

    /// Sends the request, or applies a fault.
    async fn ask<A>(&self, verb: Operation, request: impl Future<Output = A>) -> Result<A, BackendError> {
        let fault = self.script().take(verb);
        match fault {
            None => Ok(request.await),
            Some(Fault::Refuse(error)) => Err(error),
            Some(Fault::LoseAnswer) => {
                request.await;
                let message = "the test has the answer lost";
                Err(BackendError::new(ErrorKind::Unavailable, Outcome::Unknown, message))
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Delay(by)) => {
                let answer = request.await;
                self.host.sleep_until(self.host.now() + by).await;
                Ok(answer)
            }
        }
    }
}

impl FaultPlan {
    /// The fault of this request.
    fn take(&mut self, verb: Operation) -> Option<Fault> {
        match self.asked.iter_mut().find(|(asked, _)| *asked == verb) {
            Some((_, count)) => *count += 1,
            None => self.asked.push((verb, 1)),
        }
        self.rules.retain(|rule| rule.left != Some(0));
        let rule = self.rules.iter_mut().rfind(|rule| rule.verb.is_none_or(|of| of == verb))?;
        rule.left = rule.left.map(|left| left - 1);
        Some(rule.fault.clone())
    }

    fn is_down(&self) -> bool {
        self.rules.iter().any(|rule| rule.verb.is_none() && rule.left.is_none())
    }
}

impl fmt::Debug for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backend = self.inner.promises().backend;
        f.debug_struct("TestStore")
            .field("backend", &backend)
            .field("script", &*self.script())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for TestStore {
    fn promises(&self) -> Promises {
        self.inner.promises()
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(Self { inner: self.inner.handle().await?, ..self.clone() }))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        self.ask(Operation::Claim, self.inner.claim(claim)).await?
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        match self.ask(Operation::Renew, self.inner.renew(grants)).await {
            Ok(answers) => answers,
            Err(error) => grants.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        self.ask(Operation::Release, self.inner.release(name, owner)).await?
    }

    async fn tell(&self, name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        if self.script().is_down() {
            return Ok(());
        }
        self.inner.tell(name, whom, owner).await
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.ask(Operation::Note, self.inner.note(name, owner, token, memo)).await?
    }

    async fn expose(&self, grant: &Grant) -> Result<Exposure, BackendError> {
        self.ask(Operation::Expose, self.inner.expose(grant)).await?
    }

    async fn memo(&self, name: &LockName) -> Result<Option<MemoView>, BackendError> {
        self.ask(Operation::Inspect, self.inner.memo(name)).await?
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        self.inner.wakes(process, audience)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        self.ask(Operation::Inspect, self.inner.inspect(name)).await?
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.ask(Operation::Inspect, self.inner.list(prefix)).await?
    }

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        self.ask(Operation::Break, self.inner.break_lock(name, scope)).await?
    }

    async fn drain(&self) {
        self.inner.drain().await;
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.ask(Operation::Inspect, self.inner.diagnose()).await?
    }

    async fn may_grant(&self) -> Result<(), BackendError> {
        self.ask(Operation::Inspect, self.inner.may_grant()).await?
    }

    async fn adopt(&self, adopt: Adopt) -> Result<Adoption, BackendError> {
        self.ask(Operation::Break, self.inner.adopt(adopt)).await?
    }
}

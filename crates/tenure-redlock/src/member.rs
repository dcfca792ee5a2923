//! `Member`: one node of the quorum: its identity, whether it answers, and a timeout on every request.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tenure_core::{BackendError, ErrorKind, Host, LockName, Moment, OwnerId, QuorumNode, locked};

use crate::error;

/// A member that did not answer is looked at again after this long: 500 ms.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// Not to have answered for so long is to be silent: 50 ms, many round trips in one place.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long a probe may take: 2 s, more than a claim waits, so that a slow node is found to be one that answers.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Releases that one member may be owed; more, and the ttl ends what is there. The first are kept: they are of before it fell silent.
/// After that it was asked for nothing, and is owed a release all the same.
const DEBTS_MAX: usize = 1024;

/// One node, and the knowledge of this process about it.
pub(crate) struct Member<N> {
    pub(crate) place: String,
    pub(crate) node: Arc<N>,
    known: Arc<Known>,
}

/// The knowledge of a process about a node, shared by all handles.
#[derive(Default)]
pub(crate) struct Known {
    /// Did not answer in time when it was asked last: not asked for new locks until a probe is answered.
    is_silent: AtomicBool,
    last_probe: Mutex<Option<Moment>>,
    /// Its last known identity, which is compared with those of the other nodes even after a failure.
    identity: Mutex<Option<Arc<str>>>,
    /// It has not failed since it said so.
    is_identified: AtomicBool,
    debts: Mutex<Debts>,
}

/// An owner that is to leave a node which does not answer.
pub(crate) struct Debt {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    /// Any lease of its is over then.
    pub(crate) until: Moment,
}

/// Releases that a node has not confirmed yet, oldest first.
#[derive(Default)]
struct Debts {
    open: VecDeque<Debt>,
    is_being_paid: bool,
}

/// The task that sends them. When it is dropped, nothing is forgotten, and another one may be begun.
struct Paying<'a> {
    debts: &'a Mutex<Debts>,
    in_hand: Option<Debt>,
}

impl Paying<'_> {
    fn put_back(&mut self) {
        if let Some(debt) = self.in_hand.take() {
            locked(self.debts).open.push_front(debt);
        }
    }
}

impl Drop for Paying<'_> {
    fn drop(&mut self) {
        self.put_back();
        locked(self.debts).is_being_paid = false;
    }
}

impl<N: QuorumNode> Member<N> {
    pub(crate) fn new(place: String, node: Arc<N>) -> Self {
        Self { place, node, known: Arc::default() }
    }

    /// The same member through another handle.
    pub(crate) async fn another(&self) -> Result<Self, BackendError> {
        let node = Arc::new(self.node.another().await?);
        Ok(Self { place: self.place.clone(), node, known: self.known.clone() })
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.known.is_silent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_silent(&self) {
        self.known.is_silent.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_known(&self) -> bool {
        locked(&self.known.identity).is_some()
    }

    /// Its last known identity.
    pub(crate) fn identity(&self) -> Option<Arc<str>> {
        locked(&self.known.identity).clone()
    }

    /// Asks for its identity, unless it has answered every request since it last said so. True if it was asked.
    pub(crate) async fn identify(&self) -> Result<bool, BackendError> {
        if self.known.is_identified.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let identity = self.node.identity().await?;
        *locked(&self.known.identity) = Some(identity.into());
        self.known.is_identified.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Waits for an answer of this node, but not for longer than `timeout`.
    pub(crate) async fn within<A>(
        &self,
        host: &dyn Host,
        timeout: Duration,
        answer: impl Future<Output = Result<A, BackendError>>,
    ) -> Result<A, BackendError> {
        let over = host.sleep_until(host.now() + timeout);
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = over => Err(error::silent(timeout)),
        };
        self.judged(timeout, answer)
    }

    /// What it answered when it had so much time, as its own; whether it is silent is known from that.
    pub(crate) fn judged<A>(
        &self,
        timeout: Duration,
        answer: Result<A, BackendError>,
    ) -> Result<A, BackendError> {
        let answer = answer.map_err(|error| error.with("node", &self.place));
        self.note(timeout, &answer);
        answer
    }

    fn note<A>(&self, timeout: Duration, answer: &Result<A, BackendError>) {
        let Err(error) = answer else { return self.known.is_silent.store(false, Ordering::Relaxed) };
        // It answers, even if it will not serve: a closed gate opens without a probe.
        let answers = error.retry_hint().is_some();
        // Asked with so little patience, it may only be far away.
        if !answers && error.kind() == ErrorKind::TimedOut && timeout < PATIENCE {
            return;
        }
        let failed = matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unavailable);
        // Who comes back, or will not serve, may be another one than before (A5).
        if failed {
            self.known.is_identified.store(false, Ordering::Relaxed);
        }
        self.known.is_silent.store(failed && !answers, Ordering::Relaxed);
    }

    /// Adds a release to send; true if no task is sending them yet.
    pub(crate) fn owe(&self, debt: Debt) -> bool {
        let mut debts = locked(&self.known.debts);
        if debts.open.len() < DEBTS_MAX {
            debts.open.push_back(debt);
        }
        !std::mem::replace(&mut debts.is_being_paid, true)
    }

    /// The first release that is still useful; if there is none, the task that sends them ends.
    fn next_debt(&self, now: Moment) -> Option<Debt> {
        let mut debts = locked(&self.known.debts);
        while let Some(debt) = debts.open.pop_front() {
            if !debt.until.is_over(now) {
                return Some(debt);
            }
        }
        debts.is_being_paid = false;
        None
    }

    /// Sends the releases one by one, and waits while the node does not answer.
    ///
    /// # Dropping
    /// As when a runtime ends: the next release that is owed has all of them sent.
    pub(crate) async fn pay(&self, host: &dyn Host) {
        let mut paying = Paying { debts: &self.known.debts, in_hand: None };
        while let Some(debt) = self.next_debt(host.now()) {
            let debt = paying.in_hand.insert(debt);
            let released = self.node.release(&debt.name, debt.owner);
            match self.within(host, PROBE_TIMEOUT, released).await {
                Err(error) if error.kind().is_transient() => {
                    host.sleep_until(host.now() + PROBE_EVERY).await;
                    paying.put_back();
                }
                _ => paying.in_hand = None,
            }
        }
        // Whoever owes now has begun another task.
        std::mem::forget(paying);
    }

    /// True if it is time to look whether a silent member answers again; says so once per period.
    pub(crate) fn is_to_be_probed(&self, now: Moment) -> bool {
        if !self.is_silent() {
            return false;
        }
        let mut last = locked(&self.known.last_probe);
        let is_due = last.is_none_or(|last| last.elapsed(now) >= PROBE_EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }

    /// Probes whether it answers; no caller waits for this.
    pub(crate) async fn probe(&self, host: &dyn Host) {
        let asked = async { self.node.identity().await.map(|_| ()) };
        if let Err(error) = self.within(host, PROBE_TIMEOUT, asked).await {
            tracing::debug!(node = %self.place, %error, "still silent");
        }
    }
}

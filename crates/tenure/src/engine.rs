//! The engine: asks the machines what to do, and has the backend do it. Only it waits, and it waits through
//! `Host`.

pub(crate) mod acquire;
pub(crate) mod hold;
mod in_flight;
pub(crate) mod metrics;
mod queue;
mod reaper;
mod report;
pub(crate) mod request;
pub(crate) mod telemetry;
mod waiters;

use std::{io, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::join};
use tenure_core::{
    Audience, BackendError, BackendHandle, BoxFuture, ErrorKind, Grant, HolderView, Host, LockName, LockView,
    Minting, Moment, Outcome, OwnerId, ProcessId, Released, Renewal, WakeEvent, WakeStream,
};

use crate::{
    engine::{
        hold::{HoldCell, OwnerReservation, Roster, run_watchdog},
        in_flight::InFlight,
        queue::LocalQueues,
        reaper::Reaper,
        request::{KeeperStore, Unforked, forked},
        telemetry::Telemetry,
        waiters::Waiters,
    },
    error::Lost,
};

/// One connected store: the way to it, its waiters, and the keeper of its leases.
pub(crate) struct Engine {
    pub(crate) backend: BackendHandle,
    pub(crate) host: Arc<dyn Host>,
    process: ProcessId,
    /// A fork has all that we have, and holds nothing (hazard 27).
    pid: u32,
    waiters: Arc<Waiters>,
    local_queues: LocalQueues,
    keeper: Keeper,
    telemetry: Telemetry,
}

/// How a hold ended.
pub(crate) enum HoldEnd {
    /// The lease lasts, for another holder of this process.
    PassedOn,
    /// Belief in the lease ended then; it is to be released.
    ToRelease(Moment),
}

impl Engine {
    pub(crate) fn new(backend: BackendHandle, host: Arc<dyn Host>) -> Self {
        let mut bits = [0; 8];
        host.random(&mut bits);
        let process = ProcessId::from_random(bits);
        let waiters = Arc::new(Waiters::new(&*backend, process));
        let promises = backend.promises();
        let local_queues = LocalQueues::new(promises.places, promises.minting == Minting::Entry);
        let pid = std::process::id();
        let telemetry = Telemetry::new(promises.backend);
        let keeper = Keeper::new(pid);
        Self { backend, host, process, pid, waiters, local_queues, keeper, telemetry }
    }

    /// How much is kept of leases, local queues, waiters, claims and releases under way.
    pub(crate) fn sizes(&self) -> [(&'static str, usize); 5] {
        let Keeper { roster, reaper, .. } = &self.keeper;
        [
            ("leases", roster.len()),
            ("local_queues", self.local_queues.len()),
            ("waiters", self.waiters.len()),
            ("claims_in_flight", reaper.in_flight.len()),
            ("releases_in_flight", reaper.len()),
        ]
    }

    /// A fork has all that this process has, and holds nothing (hazard 27).
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Says of a holder whether it is this process: whether it was acquired through this engine.
    pub(crate) fn recognise(&self, holder: &mut HolderView) {
        let owner = holder.owner.parse::<OwnerId>();
        let is_ours = owner.is_ok_and(|owner| owner.process() == self.process);
        holder.is_this_process = is_ours && self.is_ours();
    }

    /// One question about a lock.
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let mut view = self.request(self.host.now(), QUESTION, || self.backend.inspect(name)).await?;
        view.holders.iter_mut().for_each(|holder| self.recognise(holder));
        Ok(view)
    }

    /// Renews a lease once, by hand.
    pub(crate) async fn renew_one(&self, grant: &Grant, timeout: Duration) -> Result<Renewal, BackendError> {
        let grants = [grant.clone()];
        let ask = || async {
            let answer = self.backend.renew(&grants).await.pop();
            answer.expect("BUG: a backend answers every grant")
        };
        self.request(self.host.now(), timeout, ask).await
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// A new owner: 128 fresh bits for every attempt (A9).
    pub(crate) fn new_owner(&self) -> OwnerId {
        self.new_owner_and_seed().0
    }

    /// A new owner, and chance for its pauses: drawn immediately, since drawing costs a system call.
    pub(crate) fn new_owner_and_seed(&self) -> (OwnerId, u64) {
        let mut bits = [0; 24];
        self.host.random(&mut bits);
        let (mut owner, mut seed) = ([0; 16], [0; 8]);
        owner.copy_from_slice(&bits[..16]);
        seed.copy_from_slice(&bits[16..]);
        (OwnerId::from_random(self.process, owner), u64::from_be_bytes(seed))
    }

    /// Starts the keeper, before anything is asked for that it has to keep or to release.
    ///
    /// # Errors
    /// If it cannot be started: a grant would not be renewed.
    pub(crate) fn start_keeper(&self) -> io::Result<()> {
        self.keeper.start((&self.backend, &self.telemetry), &self.host, (self.process, &self.waiters))
    }

    /// Has the lease of a new holder renewed for as long as it is believed.
    pub(crate) fn keep(&self, now: Moment, cell: Arc<HoldCell>) {
        cell.begin(now);
        self.keeper.roster.add(now, cell);
    }

    /// The same, unless a guard of this process has a lease of that owner; false then.
    pub(crate) fn keep_new(&self, now: Moment, cell: Arc<HoldCell>) -> bool {
        let is_kept = self.keeper.roster.add_new(now, cell.clone());
        if is_kept {
            cell.begin(now);
        }
        is_kept
    }

    /// Whether a guard of this process has a lease of this owner.
    pub(crate) fn has(&self, owner: OwnerId) -> bool {
        self.keeper.roster.has(owner)
    }

    /// A lease of an owner that was chosen is about to be asked for.
    pub(crate) fn reserve(&self, owner: OwnerId) -> OwnerReservation<'_> {
        self.keeper.roster.reserve(owner)
    }

    /// Stops renewing; before a release is sent. False if the owner has another lease here, which must not
    /// end with this one.
    fn forget(&self, cell: &HoldCell) -> bool {
        self.keeper.roster.remove(cell)
    }

    /// Ends a hold: the lease is passed on to a waiter of this process, and nothing is left to do, or belief
    /// in it ends. When that was; the loss, if it came before.
    pub(crate) fn end(&self, cell: &HoldCell) -> Result<HoldEnd, Lost> {
        // The watchdog stops first: a renewal must not come after the release, and `Gone` is no loss from
        // here on.
        self.forget(cell);
        let now = self.host.now();
        // Its owner must not be that of another holder's lease once this one has released it.
        if cell.is_owner_exposed() {
            self.local_queues.stop_passing_on(cell);
        } else if self.local_queues.pass_on(cell, now, |passed| self.keeper.roster.add(now, passed)) {
            return Ok(HoldEnd::PassedOn);
        }
        cell.release(now).map(|()| HoldEnd::ToRelease(now))
    }

    /// Has a lease passed on, or released in the background.
    pub(crate) fn pass_on_or_release(&self, cell: &HoldCell) {
        let is_its_own = self.forget(cell);
        // Lost or not: the store may still count us in, until the ttl ends.
        if !matches!(self.end(cell), Ok(HoldEnd::PassedOn)) && is_its_own {
            self.release_in_background(cell);
        }
    }

    /// Has a lease that has ended here released in the background.
    fn release_in_background(&self, cell: &HoldCell) {
        let grant = cell.grant();
        self.reap(grant.name.clone(), grant.owner, self.host.now() + grant.ttl);
    }

    /// Whether the lease of this owner is passed on from holder to holder here. Then only its guards end it,
    /// and no client by its owner: that may be another holder's by now.
    pub(crate) fn is_shared(&self, name: &LockName, owner: OwnerId) -> bool {
        self.local_queues.is_shared(name, owner)
    }

    /// The lease stays with its holder and its ttl.
    pub(crate) fn leave_to_ttl(&self, cell: &HoldCell) {
        self.forget(cell);
        self.local_queues.stop_passing_on(cell);
        self.in_flight().close(cell.owner());
    }

    /// Has this owner released in the background; after `until` its lease or place has expired anyway.
    pub(crate) fn reap(&self, name: LockName, owner: OwnerId, until: Moment) {
        self.keeper.reaper.release(name, owner, until);
    }

    /// The same for whatever a claim may have left there.
    fn reap_claim(&self, name: LockName, owner: OwnerId, ttl: Duration) {
        self.reap(name, owner, self.host.now() + ttl.max(PLACE_MAX));
    }

    fn in_flight(&self) -> &Arc<InFlight> {
        &self.keeper.reaper.in_flight
    }

    /// Has an owner leave. A claim of it that is still under way may be granted after that, so the release is
    /// repeated behind it.
    pub(crate) async fn release(
        &self,
        (name, owner): (&LockName, OwnerId),
        sent_at: Moment,
        timeout: Duration,
    ) -> Result<Released, BackendError> {
        let release = || self.backend.release(name, owner);
        let first = self.request(sent_at, timeout, release).await;
        if !self.in_flight().is_open(owner) {
            return first;
        }
        // In a box what is rare: the futures of most releases stay small.
        Box::pin(async {
            let over = self.host.sleep_until(sent_at + timeout);
            tokio::select! {
                biased;
                () = self.in_flight().settled(owner) => {}
                () = over => return Err(unsettled(name)),
            }
            let name = self.in_flight().name_of(owner, name);
            let again = || self.backend.release(&name, owner);
            let second = self.request(self.host.now(), timeout, again).await;
            match (&second, self.in_flight().unknown_until(owner)) {
                (Ok(_), Some(until)) => self.reap(name.clone(), owner, until),
                (Ok(_), None) => self.in_flight().close(owner),
                (Err(_), _) => {}
            }
            both(first, second)
        })
        .await
    }

    /// Has the leases released that are kept idle, then waits until everything that was to be released in the
    /// background is, or for `patience` at most.
    pub(crate) async fn drain(&self, patience: Duration) -> bool {
        self.unless_forked(|| false, self.drain_here(patience)).await
    }

    async fn drain_here(&self, patience: Duration) -> bool {
        let now = self.host.now();
        for idle in self.keeper.roster.end_idle(now) {
            self.local_queues.stop_passing_on(&idle);
            self.release_in_background(&idle);
        }
        self.local_queues.forget_ended();
        let drained = async {
            self.keeper.reaper.drained(&*self.host).await;
            self.backend.drain().await;
        };
        let over = self.host.sleep_until(self.host.now() + patience);
        tokio::select! {
            biased;
            () = drained => true,
            () = over => false,
        }
    }

    /// One request to the store, asked again only while it is busy for a moment.
    pub(crate) async fn request<A, F>(
        &self,
        sent_at: Moment,
        timeout: Duration,
        ask: impl FnMut() -> F,
    ) -> Result<A, BackendError>
    where
        F: Future<Output = Result<A, BackendError>>,
    {
        let request = request::request(&*self.host, sent_at, timeout, ask);
        self.unless_forked(|| Err(forked()), request).await
    }

    /// # Errors
    /// In a forked child. To be asked before anything is locked.
    pub(crate) fn must_be_ours(&self) -> Result<(), BackendError> {
        if self.is_ours() { Ok(()) } else { Err(forked()) }
    }

    /// Work, which comes to something else in a forked child.
    pub(crate) fn unless_forked<W: Future, F: Fn() -> W::Output>(
        &self,
        forked: F,
        work: W,
    ) -> Unforked<W, F> {
        Unforked::new(self.pid, forked, work)
    }

    /// The hints that come from now on for this lock; nothing on a store that brings no hints from one client
    /// to another.
    pub(crate) async fn news(&self, name: &LockName) -> Result<Option<News>, BackendError> {
        if self.backend.promises().minting == Minting::Place {
            return Ok(None);
        }
        let handle = self.request(self.host.now(), QUESTION, || self.backend.handle()).await?;
        let address = OwnerId::of_observers(name);
        let hints = handle.wakes(address.process(), Audience::Observers);
        Ok(Some(News { hints, address, _handle: handle }))
    }

    /// Tells those who look on.
    pub(crate) fn telling(&self, name: &LockName) -> BoxFuture<'static, ()> {
        let (backend, host, name) = (self.backend.clone(), self.host.clone(), name.clone());
        Box::pin(async move {
            let tell = || backend.tell(&name, Audience::Observers, OwnerId::of_observers(&name));
            if let Err(error) = request::request(&*host, host.now(), TELLING, tell).await {
                tracing::debug!(lock = %name, %error, "those who look on were not told");
            }
        })
    }
}

fn unsettled(name: &LockName) -> BackendError {
    let message = "an earlier claim of the same owner is still under way";
    BackendError::new(ErrorKind::TimedOut, Outcome::Unknown, message).with("lock", name)
}

/// What two releases of one owner come to, one after the other.
fn both(
    first: Result<Released, BackendError>,
    second: Result<Released, BackendError>,
) -> Result<Released, BackendError> {
    match (first, second) {
        (Ok(Released::Released), Ok(_)) => Ok(Released::Released),
        // It may have been the first one that freed it.
        (Err(error), Ok(Released::WasGone)) if error.outcome() == Outcome::Unknown => Err(error),
        (Ok(Released::Released), Err(error)) => Err(error.of_unknown_outcome()),
        (Err(first), Err(error)) if first.outcome() == Outcome::Unknown => Err(error.of_unknown_outcome()),
        (_, second) => second,
    }
}

/// What is to be kept and to be released, and the way to the thread that does it, which ends when this is
/// dropped and nothing is left to do.
struct Keeper {
    pid: u32,
    roster: Arc<Roster>,
    reaper: Arc<Reaper>,
}

impl Keeper {
    /// Of the process with this id.
    fn new(pid: u32) -> Self {
        Self { pid, roster: Arc::default(), reaper: Arc::default() }
    }

    /// Starts the thread if there is none. Where a panic ended it, another one takes over the leases that it
    /// kept.
    ///
    /// # Errors
    /// If there is no thread to be had.
    fn start(
        &self,
        (main, telemetry): (&BackendHandle, &Telemetry),
        host: &Arc<dyn Host>,
        (process, waiters): (ProcessId, &Arc<Waiters>),
    ) -> io::Result<()> {
        self.reaper.ensure(|life| {
            let (keeps, host_there) = ((self.roster.clone(), self.reaper.clone()), host.clone());
            let store = KeeperStore::new(main.clone(), telemetry.clone());
            let waiters = waiters.clone();
            let start = move || -> BoxFuture<'static, ()> {
                Box::pin(async move {
                    let (_life, reaper) = (life, keeps.1.clone());
                    let store = Arc::new(store);
                    let renewing = run_watchdog(keeps, store.clone(), host_there.clone(), process);
                    let releasing = reaper.run(&store, &*host_there);
                    tokio::select! {
                        biased;
                        _ = join(renewing, releasing) => {}
                        () = waiters.listen(&*host_there) => {}
                    }
                })
            };
            host.spawn_apart("tenure-keeper", Box::new(start))
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Every guard holds the engine, so only leases that are kept idle are left. Those of the parent are
        // not a child's.
        if self.pid == std::process::id() {
            self.roster.close();
        }
    }
}

/// What those who look on at one lock are told. A hint only: it may be lost, late or doubled.
///
/// Over a connection of its own, which ends with this: those of waiters and holders hear nothing of it.
pub(crate) struct News {
    hints: Box<dyn WakeStream>,
    address: OwnerId,
    _handle: BackendHandle,
}

impl News {
    /// Waits until there is something to see; one look sees all that was told by then.
    pub(crate) async fn next(&mut self) {
        loop {
            let told = self.hints.next().await;
            if told == WakeEvent::All || told == WakeEvent::Owner(self.address) {
                while self.hints.next().now_or_never().is_some() {}
                return;
            }
        }
    }
}

/// How long a question to the store may stay unanswered: 5 s.
pub(crate) const QUESTION: Duration = Duration::from_secs(5);

/// How long a place in a queue outlives its waiter at most: 30 s, where very many wait.
const PLACE_MAX: Duration = Duration::from_secs(30);

/// How long telling may take: 1 s. Who is not told looks all the same.
const TELLING: Duration = Duration::from_secs(1);

//! The engine: asks the machines for the next step, and sends it to the backend. Only it waits, through `Host`.

pub(crate) mod acquire;
mod calm;
pub(crate) mod hold;
mod in_flight;
pub(crate) mod metrics;
pub(crate) mod news;
mod queue;
mod reaper;
mod report;
pub(crate) mod request;
pub(crate) mod telemetry;
mod waiters;
pub(crate) mod wishes;

use std::{
    io, mem,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::join,
    stream::{FuturesUnordered, StreamExt},
};
use tenure_core::{
    Audience, BackendError, BackendHandle, BoxFuture, ErrorKind, Grant, HolderView, Host, LockName, LockView,
    MemoView, Minting, Moment, Outcome, OwnerId, ProcessId, Released, Renewal, locked,
};
use tokio::sync::Notify;

use crate::{
    engine::{
        hold::{HoldCell, OwnerReservation, Roster, run_watchdog},
        in_flight::InFlight,
        news::News,
        queue::LocalQueues,
        reaper::Reaper,
        request::{KeeperStore, Unforked, forked},
        telemetry::Telemetry,
        waiters::Waiters,
    },
    error::{ConfigError, Lost},
};

/// One connected store: its handle, its waiters, and the keeper of its leases.
pub(crate) struct Engine {
    pub(crate) backend: BackendHandle,
    pub(crate) host: Arc<dyn Host>,
    process: ProcessId,
    /// A fork has a copy of this process, and holds nothing (hazard 27).
    pid: u32,
    waiters: Arc<Waiters>,
    local_queues: LocalQueues,
    keeper: Keeper,
    chores: Arc<Chores>,
    telemetry: Telemetry,
}

/// How a hold ended.
pub(crate) enum HoldEnd {
    /// The lease goes on, for another holder of this process.
    PassedOn,
    /// The validity of the lease ended at this moment; it must be released.
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
        let chores = Arc::default();
        Self { backend, host, process, pid, waiters, local_queues, keeper, chores, telemetry }
    }

    /// The numbers of leases, local queues, waiters, claims and releases under way.
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

    /// A fork has a copy of this process, and holds nothing (hazard 27).
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Marks a holder that was acquired through this engine as this process.
    pub(crate) fn recognise(&self, holder: &mut HolderView) {
        let owner = holder.owner.parse::<OwnerId>();
        let is_ours = owner.is_ok_and(|owner| owner.process() == self.process);
        holder.is_this_process = is_ours && self.is_ours();
    }

    /// One query about a lock.
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let mut view = self.request(self.host.now(), QUESTION, || self.backend.inspect(name)).await?;
        view.holders.iter_mut().for_each(|holder| self.recognise(holder));
        Ok(view)
    }

    /// The memo of a lock, for a decision.
    pub(crate) async fn memo(&self, name: &LockName) -> Result<Option<MemoView>, BackendError> {
        self.request(self.host.now(), QUESTION, || self.backend.memo(name)).await
    }

    /// Renews a lease once, for a manual renewal.
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

    /// A new owner, and a random seed for its pauses: drawn together, because drawing costs a system call.
    pub(crate) fn new_owner_and_seed(&self) -> (OwnerId, u64) {
        let mut bits = [0; 24];
        self.host.random(&mut bits);
        let (mut owner, mut seed) = ([0; 16], [0; 8]);
        owner.copy_from_slice(&bits[..16]);
        seed.copy_from_slice(&bits[16..]);
        (OwnerId::from_random(self.process, owner), u64::from_be_bytes(seed))
    }

    /// Starts the keeper, before any request for a lease that it must keep or release.
    ///
    /// # Errors
    /// If it cannot be started: then a grant would not be renewed.
    pub(crate) fn start_keeper(&self) -> io::Result<()> {
        self.keeper.start((&self.backend, &self.telemetry), &self.host, (self.process, &self.waiters))
    }

    /// Renews the lease of a new holder in the background for as long as it is valid.
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

    /// Whether a background release of this owner has no answer yet: it would end a new lease.
    // L1.
    pub(crate) fn is_releasing(&self, owner: OwnerId) -> bool {
        self.keeper.reaper.is_releasing(owner)
    }

    /// Waits until each background release of this owner is answered, or its lease has expired; for no longer than `limit`.
    ///
    /// # Errors
    /// If one is still under way then.
    pub(crate) async fn until_released(&self, owner: OwnerId, limit: Duration) -> Result<(), ConfigError> {
        if !self.is_releasing(owner) {
            return Ok(());
        }
        let over = self.host.sleep_until(self.host.now() + limit);
        tokio::select! {
            biased;
            () = self.keeper.reaper.released(owner) => Ok(()),
            () = over => Err(ConfigError::OwnerInUse { owner }),
        }
    }

    /// A lease of an owner that the caller chose is about to be requested.
    pub(crate) fn reserve(&self, owner: OwnerId) -> OwnerReservation<'_> {
        self.keeper.roster.reserve(owner)
    }

    /// Stops the renewals before a release is sent. False if the owner has another lease here, which must not end
    /// with this one.
    fn forget(&self, cell: &HoldCell) -> bool {
        self.keeper.roster.remove(cell)
    }

    /// Ends a hold. Either the lease is passed on to a waiter of this process, and nothing is left to do; or its
    /// validity ends, at the returned moment. Returns the loss if that came before.
    pub(crate) fn end(&self, cell: &HoldCell) -> Result<HoldEnd, Lost> {
        // The watchdog stops first: a renewal must not follow the release, and `Gone` is not a loss from now on.
        self.forget(cell);
        let now = self.host.now();
        // Once this holder has released the lease, its owner must not be that of another holder's lease.
        if cell.is_owner_exposed() {
            self.local_queues.stop_passing_on(cell);
        } else if self.local_queues.pass_on(cell, now, |passed| self.keeper.roster.add(now, passed)) {
            return Ok(HoldEnd::PassedOn);
        }
        cell.release(now).map(|()| HoldEnd::ToRelease(now))
    }

    /// Passes a lease on, or releases it in the background.
    pub(crate) fn pass_on_or_release(&self, cell: &HoldCell) {
        let is_its_own = self.forget(cell);
        // Lost or not: the store may still count this process as a holder until the ttl ends.
        if !matches!(self.end(cell), Ok(HoldEnd::PassedOn)) && is_its_own {
            self.release_in_background(cell);
        }
    }

    /// Releases a lease that has ended here in the background.
    fn release_in_background(&self, cell: &HoldCell) {
        let grant = cell.grant();
        self.reap(grant.name.clone(), grant.owner, self.host.now() + grant.ttl);
    }

    /// Whether the lease of this owner is passed on from holder to holder here. Then only its guards end it, and no
    /// client by its owner, because the lease may have another holder by then.
    pub(crate) fn is_shared(&self, name: &LockName, owner: OwnerId) -> bool {
        self.local_queues.is_shared(name, owner)
    }

    /// The lease stays with its holder until its ttl ends.
    pub(crate) fn leave_to_ttl(&self, cell: &HoldCell) {
        self.forget(cell);
        self.local_queues.stop_passing_on(cell);
        self.in_flight().close(cell.owner());
    }

    /// The lease stays with its holder for this long, or until its ttl ends if the store does not answer before.
    pub(crate) fn linger(&self, cell: &HoldCell, linger: Duration) {
        self.leave_to_ttl(cell);
        let (now, grant) = (self.host.now(), cell.grant());
        // OK to ignore, because the store may still have a lease that is lost here.
        let _ = cell.release(now);
        let last = grant.clone().with_ttl(linger).ending_with_process(false);
        self.keeper.reaper.linger(last, now + grant.ttl);
    }

    /// Does this on a thread of its own, so that it ends with no runtime of the program.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.chores.add(&*self.host, Box::pin(work));
    }

    /// Releases this owner in the background; after `until` its lease or place has expired anyway.
    pub(crate) fn reap(&self, name: LockName, owner: OwnerId, until: Moment) {
        self.keeper.reaper.release(name, owner, until);
    }

    /// The same for anything that a claim may have left there.
    fn reap_claim(&self, name: LockName, owner: OwnerId, ttl: Duration) {
        self.reap(name, owner, self.host.now() + ttl.max(PLACE_MAX));
    }

    fn in_flight(&self) -> &Arc<InFlight> {
        &self.keeper.reaper.in_flight
    }

    /// Releases an owner. A claim of it that is still under way may be granted later, so the release is repeated
    /// after it.
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
        // Rare cases are in a box, so that the futures of most releases stay small.
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
            match (&second, self.in_flight().unknown_life(owner)) {
                // It may be granted late, and last from then on.
                (Ok(_), Some(life)) => self.reap_claim(name.clone(), owner, life),
                (Ok(_), None) => self.in_flight().close(owner),
                (Err(_), _) => {}
            }
            both(first, second)
        })
        .await
    }

    /// Releases the leases that are kept idle, then waits until all background releases are done, for `patience` at
    /// most.
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

    /// One request to the store, repeated only while it reports a transient overload.
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
    /// In a forked child. Call this before any mutex is locked.
    pub(crate) fn must_be_ours(&self) -> Result<(), BackendError> {
        if self.is_ours() { Ok(()) } else { Err(forked()) }
    }

    /// Runs the work; in a forked child returns the other result instead.
    pub(crate) fn unless_forked<W: Future, F: Fn() -> W::Output>(
        &self,
        forked: F,
        work: W,
    ) -> Unforked<W, F> {
        Unforked::new(self.pid, forked, work)
    }

    /// The hints for this lock from now on; `None` on a store that sends no hints from one client to another.
    pub(crate) async fn news(&self, name: &LockName) -> Result<Option<News>, BackendError> {
        if self.backend.promises().minting == Minting::Place {
            return Ok(None);
        }
        let handle = self.request(self.host.now(), QUESTION, || self.backend.handle()).await?;
        let address = OwnerId::of_observers(name);
        let hints = handle.wakes(address.process(), Audience::Observers);
        Ok(Some(News::new(hints, address, handle)))
    }

    /// Notifies observers.
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

/// The combined result of two releases of one owner, one after the other.
fn both(
    first: Result<Released, BackendError>,
    second: Result<Released, BackendError>,
) -> Result<Released, BackendError> {
    match (first, second) {
        (Ok(Released::Released), Ok(_)) => Ok(Released::Released),
        // The first one may have freed it.
        (Err(error), Ok(Released::WasGone)) if error.outcome() == Outcome::Unknown => Err(error),
        (Ok(Released::Released), Err(error)) => Err(error.of_unknown_outcome()),
        (Err(first), Err(error)) if first.outcome() == Outcome::Unknown => Err(error.of_unknown_outcome()),
        (_, second) => second,
    }
}

/// The leases to keep and to release, and the handle of the thread that does both. The thread ends when this is
/// dropped and nothing is left to do.
struct Keeper {
    pid: u32,
    roster: Arc<Roster>,
    reaper: Arc<Reaper>,
}

impl Keeper {
    /// For the process with this id.
    fn new(pid: u32) -> Self {
        Self { pid, roster: Arc::default(), reaper: Arc::default() }
    }

    /// Starts the thread if there is none. If a panic ended the previous one, the new thread takes over its leases.
    ///
    /// # Errors
    /// If the system starts no thread.
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
                    let host = &*host_there;
                    let calm = &store.calm;
                    let renew = || run_watchdog(keeps.clone(), store.clone(), host_there.clone(), process);
                    let (renewing, releasing) = (
                        calm.unless_it_panics(host, renew),
                        calm.unless_it_panics(host, || reaper.run(&store, host)),
                    );
                    tokio::select! {
                        biased;
                        _ = join(renewing, releasing) => {}
                        () = calm.unless_it_panics(host, || waiters.listen(host)) => {}
                    }
                })
            };
            host.spawn_apart("tenure-keeper", Box::new(start))
        })
    }
}

/// Work for leases that lasts longer than a call, added from any thread. It has a thread of its own while there is any:
/// a store that blocks its caller, as SQLite does, must delay no renewal.
#[derive(Default)]
struct Chores {
    waiting: Mutex<WaitingChores>,
    changed: Notify,
}

#[derive(Default)]
struct WaitingChores {
    added: Vec<BoxFuture<'static, ()>>,
    /// Alive as long as the thread takes what is added.
    thread: Weak<()>,
}

impl Chores {
    fn add(self: &Arc<Self>, host: &dyn Host, chore: BoxFuture<'static, ()>) {
        let mut waiting = locked(&self.waiting);
        waiting.added.push(chore);
        if waiting.thread.strong_count() > 0 {
            drop(waiting);
            return self.changed.notify_one();
        }
        let life = Arc::new(());
        waiting.thread = Arc::downgrade(&life);
        drop(waiting);
        let chores = self.clone();
        let start = move || -> BoxFuture<'static, ()> { Box::pin(async move { chores.run(life).await }) };
        if let Err(error) = host.spawn_apart("tenure-chores", Box::new(start)) {
            tracing::warn!(%error, "no thread can be started: what a leader says is told and repeated later");
        }
    }

    /// Ends when nothing is left to do.
    async fn run(&self, _life: Arc<()>) {
        let mut under_way = FuturesUnordered::new();
        loop {
            {
                let mut waiting = locked(&self.waiting);
                let added = mem::take(&mut waiting.added);
                under_way.extend(added.into_iter().map(|chore| AssertUnwindSafe(chore).catch_unwind()));
                if under_way.is_empty() {
                    waiting.thread = Weak::new();
                    return;
                }
            }
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                Some(_) = under_way.next() => {}
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Every guard holds the engine, so only idle leases are left. A child does not own those of its parent.
        if self.pid == std::process::id() {
            self.roster.close();
        }
    }
}

/// How long a query to the store may stay unanswered: 5 s.
pub(crate) const QUESTION: Duration = Duration::from_secs(5);

/// How long a place in a queue outlives its waiter at most: 30 s, with a very long queue.
const PLACE_MAX: Duration = Duration::from_secs(30);

/// How long notifying may take: 1 s. An observer without a hint polls anyway.
const TELLING: Duration = Duration::from_secs(1);

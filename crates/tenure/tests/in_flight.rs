//! Claims that are cancelled while they are under way, on a store that is reached over connections which delay and end. What a server
//! had in its buffer when a connection ended it does later.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tenure::{
    BackendError, ErrorKind, LockName, Locker, OwnerId,
    backend::{
        Audience, Backend, BackendHandle, BoxFuture, Claim, ClaimAnswer, Grant, Host, Moment, Outcome,
        ProcessId, Promises, Released, Renewal, Start, WakeStream,
    },
    view::{BreakScope, Finding, HolderView, LockView},
};
use tenure_memory::Memory;
use tenure_testkit::host::{PausedHost, pass};
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use crate::stage::ms;

/// Longer than a server keeps what it has not read.
const BUFFERED: Duration = ms(3_000);
const TTL: Duration = ms(4_000);
const HISTORIES: u64 = 150;

/// What happened, so that a test that shows nothing is noticed.
#[derive(Default)]
struct Counts {
    cancelled: AtomicUsize,
    /// Claims that were granted on a connection that had ended.
    granted_late: AtomicUsize,
    /// Claims that were granted and whose future had been dropped.
    granted_alone: AtomicUsize,
}

struct Chance(Mutex<u64>);

impl Chance {
    fn below(&self, bound: u64) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % bound
    }

    fn millis(&self, most: u64) -> Duration {
        ms(self.below(most))
    }
}

/// A handle to a store behind one connection after the other.
struct Delayed {
    store: Memory,
    chance: Arc<Chance>,
    counts: Arc<Counts>,
    /// The number of the connection.
    connection: watch::Sender<u64>,
    handles: Arc<Mutex<Vec<watch::Sender<u64>>>>,
}

impl Delayed {
    fn sharing(&self) -> Self {
        let connection = watch::Sender::new(0);
        self.handles.lock().unwrap().push(connection.clone());
        Self {
            store: self.store.clone(),
            chance: self.chance.clone(),
            counts: self.counts.clone(),
            connection,
            handles: self.handles.clone(),
        }
    }

    async fn ask<A: Send + 'static>(
        &self,
        request: impl Future<Output = Result<A, BackendError>> + Send + 'static,
        is_granted: impl Fn(&A) -> bool + Send + 'static,
    ) -> Result<A, BackendError> {
        let mut connection = self.connection.subscribe();
        let number = *connection.borrow_and_update();
        let (there, back) = (self.chance.millis(300), self.chance.millis(300));
        let late = self.chance.millis(u64::try_from(BUFFERED.as_millis()).unwrap());
        let (tell, told) = oneshot::channel();
        let (at_server, counts) = (self.connection.subscribe(), self.counts.clone());
        tokio::spawn(async move {
            pass(there).await;
            let has_ended = *at_server.borrow() != number;
            if has_ended {
                pass(late).await;
            }
            let answer = request.await;
            let is_granted = answer.as_ref().is_ok_and(&is_granted);
            counts.granted_late.fetch_add(usize::from(is_granted && has_ended), Ordering::Relaxed);
            pass(back).await;
            let is_alone = tell.send(answer).is_err() && *at_server.borrow() == number;
            counts.granted_alone.fetch_add(usize::from(is_granted && is_alone), Ordering::Relaxed);
        });
        tokio::select! {
            biased;
            Ok(answer) = told => answer,
            _ = connection.changed() => {
                Err(BackendError::new(ErrorKind::Unavailable, Outcome::Unknown, "the connection has ended"))
            }
        }
    }
}

#[async_trait]
impl Backend for Delayed {
    fn promises(&self) -> Promises {
        self.store.promises()
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(self.sharing()))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let (store, claim) = (self.store.clone(), claim.clone());
        let is_granted = |answer: &ClaimAnswer| matches!(answer, ClaimAnswer::Granted(_));
        self.ask(async move { store.claim(&claim).await }, is_granted).await
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let (store, all) = (self.store.clone(), grants.to_vec());
        let answers = self.ask(async move { Ok(store.renew(&all).await) }, |_| false).await;
        answers.unwrap_or_else(|error| grants.iter().map(|_| Err(error.clone())).collect())
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let (store, name) = (self.store.clone(), name.clone());
        self.ask(async move { store.release(&name, owner).await }, |_| false).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        self.store.wakes(process, audience)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
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

/// Asks for two locks, and often gives up half-way.
async fn ask_and_give_up(locks: Locker, chance: Arc<Chance>, counts: Arc<Counts>) {
    for _ in 0..8 {
        let name = if chance.below(2) == 0 { "one" } else { "other" };
        let lock = locks.mutex(name).ttl(TTL);
        let acquired = timeout(chance.millis(900), lock.acquire()).await;
        counts.cancelled.fetch_add(usize::from(acquired.is_err()), Ordering::Relaxed);
        if let Ok(Ok(guard)) = acquired {
            pass(chance.millis(50)).await;
            if chance.below(2) == 0 {
                // What became of it does not matter here.
                drop(timeout(chance.millis(700), guard.release()).await);
            }
        }
    }
}

/// A store that is reached so by all who share it.
fn delayed(seed: u64, store: &Memory, counts: &Arc<Counts>) -> Delayed {
    let chance = Arc::new(Chance(Mutex::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)));
    let (connection, handles) = (watch::Sender::new(0), Arc::default());
    Delayed { store: store.clone(), chance, counts: counts.clone(), connection, handles }
}

async fn play(seed: u64, counts: &Arc<Counts>) {
    let host = PausedHost::new(seed);
    let store = Memory::new(host.clone());
    let first = delayed(seed, &store, counts);
    let chance = first.chance.clone();
    let locks = Locker::new(Arc::new(first.sharing()), host.clone());
    let programs: Vec<_> = (0..3)
        .map(|_| tokio::spawn(ask_and_give_up(locks.clone(), chance.clone(), counts.clone())))
        .collect();
    let ends = async {
        loop {
            pass(ms(200) + chance.millis(1_500)).await;
            let all = first.handles.lock().unwrap().clone();
            let which = usize::try_from(chance.below(all.len() as u64)).unwrap();
            all[which].send_modify(|number| *number += 1);
        }
    };
    let all = async {
        for program in programs {
            program.await.unwrap();
        }
        // Not a moment in which nothing is under way.
        drop(timeout(chance.millis(300), locks.mutex("one").ttl(TTL).acquire()).await);
    };
    tokio::select! { () = all => {}, () = ends => {} }
    assert!(locks.flush(Duration::from_secs(120)).await, "seed {seed}: never drained");
    for _ in 0..100 {
        let left = store.list("").await.unwrap();
        assert!(left.is_empty(), "L8, seed {seed}: {left:?} though all is released");
        pass(ms(100)).await;
    }
}

/// L8, L9: a claim that was cancelled was granted after its release, to nobody, for a whole ttl, and `drain` said that all was
/// released: its release overtook it on another connection, or its connection had ended and its outcome counted as settled.
#[tokio::test(start_paused = true)]
async fn what_was_cancelled_is_granted_to_nobody_once_all_is_released() {
    let counts = Arc::<Counts>::default();
    for seed in 1..=HISTORIES {
        play(seed, &counts).await;
    }
    let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let (cancelled, late, alone) =
        (of(&counts.cancelled), of(&counts.granted_late), of(&counts.granted_alone));
    assert!(
        cancelled > 500 && late > 50 && alone == 0,
        "{cancelled} cancelled, {late} granted after the end of their connection, {alone} without an asker"
    );
}

/// L1, L4: the release of a claim without an answer was repeated for a whole ttl, even if the program had chosen the owner. It repeats
/// the claim elsewhere, and lost that lease to the next of these releases.
#[tokio::test(start_paused = true)]
async fn a_chosen_owner_may_be_used_elsewhere_once_its_release_is_answered() {
    for seed in 1..=HISTORIES {
        let host = PausedHost::new(seed);
        let store = Memory::new(host.clone());
        let first = delayed(seed, &store, &Arc::default());
        let here = Locker::new(Arc::new(first.sharing()), host.clone());
        let owner = here.new_owner();
        let lock = here.mutex("one").owner(owner).ttl(TTL);
        let ends = async {
            pass(ms(10)).await;
            first.handles.lock().unwrap()[0].send_modify(|number| *number += 1);
        };
        let (asked, ()) = tokio::join!(lock.try_acquire(), ends);
        let Err(error) = asked else { panic!("its answer is lost") };
        assert!(error.to_string().contains("failed"), "{error}");
        // Two round trips: the claim, and the release behind it.
        pass(ms(1_500)).await;
        let elsewhere = Locker::new(Arc::new(store.clone()), host.clone());
        let guard = elsewhere.mutex("one").owner(owner).ttl(TTL).acquire().await.unwrap();
        for _ in 0..60 {
            pass(ms(100)).await;
            guard.check().unwrap_or_else(|lost| panic!("seed {seed}: {lost}"));
        }
        drop(guard);
    }
}

/// A runtime that is driven no more, and does not end.
struct Still {
    host: Arc<PausedHost>,
    tasks: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl Host for Still {
    fn now(&self) -> Moment {
        self.host.now()
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        self.host.sleep_until(until)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.host.spawn(task);
    }

    fn try_spawn(&self, task: BoxFuture<'static, ()>) -> Result<(), BoxFuture<'static, ()>> {
        self.tasks.lock().unwrap().push(task);
        Ok(())
    }

    fn spawn_apart(&self, name: &'static str, start: Start) -> io::Result<()> {
        self.host.spawn_apart(name, start)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.host.random(bytes);
    }
}

/// L8: a claim that was dropped in a runtime which is driven no more was waited for without an end.
#[tokio::test(start_paused = true)]
async fn a_claim_in_a_runtime_that_stands_still_is_waited_for_as_long_as_it_may_last() {
    let paused = PausedHost::new(1);
    let host = Arc::new(Still { host: paused.clone(), tasks: Mutex::default() });
    let store = Memory::new(paused);
    let first = delayed(1, &store, &Arc::default());
    let locks = Locker::new(Arc::new(first.sharing()), host.clone());
    let lock = locks.mutex("one").ttl(TTL);
    assert!(timeout(ms(1), lock.acquire()).await.is_err(), "it is on its way");
    assert_eq!(host.tasks.lock().unwrap().len(), 1);
    assert!(locks.flush(Duration::from_secs(60)).await);
    assert!(store.list("").await.unwrap().is_empty());
}

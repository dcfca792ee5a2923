//! Futures that rest, and futures that are dropped, on every kind of store.
//!
//! A future that is polled some times and then left alone delays no other of its process: none takes, waits, renews or releases later
//! than without it. A future that is dropped wherever it awaits leaves nothing, once all is said to be released.

#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tenure::{Guard, Locker, ReleaseError};
use tenure_testkit::{
    patience::{becomes_ok, slowness, stretch},
    polls::{dropped_after, is_pending},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout},
};

use crate::{
    stage::ms,
    stores::{Store, on_every_store},
};

on_every_store!(
    what_rests_delays_no_other,
    what_rests_while_it_connects_delays_no_other,
    a_runtime_that_stands_still_or_has_ended_is_not_waited_for,
    what_is_dropped_anywhere_leaves_nothing,
);

/// Far longer than anything takes; a hint that is lost costs two seconds, and a connection that is waited for more.
const PATIENCE: Duration = Duration::from_secs(12);

/// After how many polls a future rests or is dropped.
const POLLS: [usize; 12] = [1, 2, 3, 4, 5, 6, 8, 10, 15, 30, 80, 200];

type Resting<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn ttl() -> Duration {
    Duration::from_secs(10) * stretch()
}

/// The verbs of which futures rest, each at a lock of its own that another process holds or none.
const VERBS: [&str; 10] =
    ["acquire", "wait", "read", "try_acquire", "release", "all", "any", "inspect", "list", "leader"];

/// One future of a verb.
fn verb<'a>(
    name: &'static str,
    locks: &'a Locker,
    free: &str,
    held: &str,
    guard: &mut Option<Guard>,
) -> Resting<'a> {
    let (free, held) = (free.to_owned(), held.to_owned());
    let guard = guard.take();
    Box::pin(async move {
        match name {
            "acquire" => drop(locks.mutex(&free).ttl(ttl()).acquire().await),
            "wait" => drop(locks.mutex(&held).ttl(ttl()).acquire().await),
            "read" => drop(locks.rwlock(&held).write().ttl(ttl()).acquire().await),
            "try_acquire" => drop(locks.mutex(&free).ttl(ttl()).try_acquire().await),
            "release" => drop(guard.expect("BUG: there is one for it").release().await),
            "all" => drop(locks.all([&free, &held]).acquire().await),
            "any" => drop(locks.any([&held, &free]).acquire().await),
            "inspect" => drop(locks.inspect(&held).await),
            "list" => drop(locks.list("").await),
            "leader" => drop(locks.election(&held).leader().await),
            other => unreachable!("BUG: {other}"),
        }
    })
}

/// Polls `polls` times, with time for the others in between; true if there is more to come.
async fn rests_after(polls: usize, future: &mut Resting<'_>) -> bool {
    for _ in 0..polls {
        if !is_pending(future).await {
            return false;
        }
        // What it waits for may come now.
        if polls > 6 { sleep(ms(1)).await } else { tokio::task::yield_now().await }
    }
    true
}

/// A server on a busy machine may answer so late that it says no more whether the lock was held until then.
async fn release(guard: Guard) {
    match guard.release().await {
        Ok(()) | Err(ReleaseError::Unknown(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

/// The work of a process beside what rests in it: it takes a lock, and passes one on and back with another process. How long one of
/// these took at most.
async fn work(own: &Locker, elsewhere: &Locker, name: &str) -> Duration {
    let mut worst = Duration::ZERO;
    for round in 0..3 {
        let began = Instant::now();
        let lock = own.mutex(format!("{name}/own/{round}")).ttl(ttl());
        let guard = timeout(PATIENCE * slowness(), lock.acquire());
        release(guard.await.expect("it is free").unwrap()).await;
        worst = worst.max(began.elapsed());
    }
    let turns = async |locks: &Locker| {
        let mut worst = Duration::ZERO;
        for _ in 0..4 {
            let began = Instant::now();
            let lock = locks.rwlock(format!("{name}/both")).write().ttl(ttl());
            let guard =
                timeout(PATIENCE * slowness(), lock.acquire()).await.expect("its turn comes").unwrap();
            worst = worst.max(began.elapsed());
            sleep(ms(2)).await;
            release(guard).await;
        }
        worst
    };
    let (here, there) = tokio::join!(turns(own), turns(elsewhere));
    worst.max(here).max(there)
}

/// One `acquire()` that was not polled any more deafened all waiters of its process: 2 turns where there had been 344.
fn what_rests_delays_no_other(store: &Store) {
    runtime().block_on(async {
        let (own, elsewhere) = (store.connect().await, store.connect().await);
        let usual = work(&own, &elsewhere, "warm").await.max(work(&own, &elsewhere, "usual").await);
        let held = elsewhere.mutex("held").ttl(ttl()).acquire().await.unwrap();
        // Renewed beside all that.
        let renewed = own.mutex("renewed").ttl(Duration::from_secs(3) * stretch()).acquire().await.unwrap();
        let mut worst = (Duration::ZERO, "", 0);
        for name in VERBS {
            for polls in POLLS {
                let free = format!("free/{name}/{polls}");
                let mut guard = match name {
                    "release" => Some(own.mutex(&free).ttl(ttl()).acquire().await.unwrap()),
                    _ => None,
                };
                let mut rests = verb(name, &own, &free, "held", &mut guard);
                let is_resting = rests_after(polls, &mut rests).await;
                let took = work(&own, &elsewhere, &format!("beside/{name}/{polls}")).await;
                if took > worst.0 {
                    worst = (took, name, polls);
                }
                renewed.check().unwrap();
                if !is_resting {
                    break;
                }
            }
        }
        let (took, name, polls) = worst;
        println!("{}: usual {usual:?}, beside `{name}` that rests after {polls} polls {took:?}", store.kind);
        assert!(
            took < usual * 4 + ms(900) * slowness(),
            "beside `{name}` that rests after {polls} polls: {took:?}"
        );
        held.check().unwrap();
        drop((held, renewed));
    });
}

/// The first one of a handle kept every other request of it from the server while the connection was being made.
fn what_rests_while_it_connects_delays_no_other(store: &Store) {
    runtime().block_on(async {
        let elsewhere = store.connect().await;
        drop(elsewhere.mutex("warm").acquire().await.unwrap());
        for polls in POLLS {
            let own = store.connect().await;
            let mut rests = verb("acquire", &own, &format!("free/{polls}"), "held", &mut None);
            let is_resting = rests_after(polls, &mut rests).await;
            let began = Instant::now();
            let lock = own.mutex(format!("other/{polls}")).ttl(ttl());
            let guard = timeout(PATIENCE * slowness(), lock.acquire()).await.expect("it is free").unwrap();
            release(guard).await;
            let took = began.elapsed();
            assert!(took < ms(1_500) * slowness(), "after {polls} polls: {took:?}");
            if !is_resting {
                break;
            }
        }
    });
}

/// What two runtimes share must not depend on one of them: it may be left, blocked or dropped.
fn a_runtime_that_stands_still_or_has_ended_is_not_waited_for(store: &Store) {
    for polls in [1, 2, 3, 5, 8, 20] {
        for has_ended in [false, true] {
            let first = Builder::new_current_thread().enable_all().build().unwrap();
            let locks = first.block_on(store.connect());
            let lock = locks.mutex(format!("left/{polls}/{has_ended}")).ttl(ttl());
            let mut rests: Resting<'_> = Box::pin(async { drop(lock.acquire().await) });
            first.block_on(rests_after(polls, &mut rests));
            let (first, name) = ((!has_ended).then_some(first), format!("other/{polls}/{has_ended}"));
            let other = locks.clone();
            thread::spawn(move || {
                Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                    for _ in 0..2 {
                        let lock = other.mutex(&name).ttl(ttl());
                        let acquired = timeout(PATIENCE * slowness(), lock.acquire()).await;
                        let guard =
                            acquired.unwrap_or_else(|_| panic!("{name} was not acquired in time")).unwrap();
                        release(guard).await;
                    }
                });
            })
            .join()
            .unwrap();
            drop((rests, first));
        }
    }
}

/// A claim whose future was dropped was granted after its release, to no process, for a whole ttl, and `drain` said true.
fn what_is_dropped_anywhere_leaves_nothing(store: &Store) {
    static SEED: AtomicUsize = AtomicUsize::new(1);
    runtime().block_on(async {
        let (own, elsewhere) = (store.connect().await, store.connect().await);
        let held = elsewhere.mutex("held").ttl(ttl()).acquire().await.unwrap();
        let (mut dropped, mut awaits) = (0, 0);
        for name in VERBS {
            for polls in 0.. {
                let drop_one = async |number: usize| {
                    let free = format!("free/{name}/{polls}/{number}");
                    let mut guard = match name {
                        "release" => Some(own.mutex(&free).ttl(ttl()).acquire().await.unwrap()),
                        _ => None,
                    };
                    let future = verb(name, &own, &free, "held", &mut guard);
                    // At any moment between two polls.
                    let pause = SEED.fetch_add(7919, Ordering::Relaxed) % 300;
                    let late = async {
                        let was_done = dropped_after(polls, future).await.is_some();
                        tokio::task::yield_now().await;
                        was_done
                    };
                    timeout(Duration::from_micros(500 + pause as u64), late).await.unwrap_or_default()
                };
                let done = join_all((0..4).map(drop_one)).await;
                dropped += done.iter().filter(|done| !**done).count();
                awaits += usize::from(done.contains(&false));
                if done.iter().all(|done| *done) || polls == 40 {
                    break;
                }
            }
        }
        let is_drained = own.flush(2 * ttl() * slowness()).await;
        assert!(is_drained, "{}: not drained", store.kind);
        let left = async || {
            let views = elsewhere.list("").await.map_err(|error| error.to_string())?;
            let others = |view: &tenure::view::LockView| {
                let own = usize::from(view.name.as_str() == "held");
                view.holders.len() + view.queue.len() > own
            };
            let left: Vec<_> = views.into_iter().filter(others).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        };
        // The list of a quorum or a cluster may be behind for a moment.
        becomes_ok("nothing is left", ms(500), left).await;
        println!("{}: {dropped} futures dropped at {awaits} awaits, nothing left", store.kind);
        assert!(dropped > 40, "only {dropped}");
        held.check().unwrap();
    });
}

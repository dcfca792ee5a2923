//! Shapes in which users write their code, all of which must compile: futures that own what they need, values with `Debug`.

#![allow(clippy::disallowed_methods, reason = "users have tasks and clocks of tokio")]

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tenure::{AllOf, AnyOf, Guard, Guards, Lease, Leases, Lock, Locker, Progress, RwLock};
use tokio::runtime::Runtime;

const SOON: Duration = Duration::from_secs(5);

fn is_sendable<T: Send + 'static>(value: T) -> T {
    value
}

async fn locks() -> Locker {
    tenure::connect("memory:").await.unwrap()
}

/// `let f = locks.mutex("x").acquire();` borrowed from a lock that was gone (E0716).
#[tokio::test]
async fn a_future_of_a_lock_outlives_the_lock_and_the_locker() {
    let locks = locks().await;
    let one = locks.mutex("one").acquire();
    let some = locks.any(["two", "three"]).try_acquire();
    let all = locks.all(["four", "five"]).within(SOON).acquire();
    let held = locks.mutex("six").hold(async |lease: Lease| lease.token().get());
    let led = locks.election("seven").campaign();
    drop(locks);
    let (one, some, all, held, led) = tokio::join!(one, some, all, held, led);
    assert_eq!(one.unwrap().name().as_str(), "one");
    assert!(some.unwrap().is_some());
    assert_eq!(all.unwrap().leases().iter().count(), 2);
    assert!(held.unwrap() > 0);
    led.unwrap().resign().await.unwrap();
}

#[tokio::test]
async fn select_takes_an_acquisition_of_a_temporary_lock() {
    let locks = locks().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    let got = tokio::select! {
        guard = locks.mutex("x").acquire() => Some(guard.unwrap()),
        () = tokio::time::sleep(Duration::from_millis(20)) => None,
    };
    assert!(got.is_none());
    held.release().await.unwrap();
}

#[tokio::test]
async fn futures_of_all_verbs_can_be_spawned() {
    let locks = locks().await;
    let held = tokio::spawn(locks.mutex("x").acquire()).await.unwrap().unwrap();
    assert!(tokio::spawn(locks.mutex("x").try_acquire()).await.unwrap().unwrap().is_none());
    held.release().await.unwrap();
    let tokens = locks.all(["a", "b"]).hold(async |leases: Leases| leases.iter().count());
    assert_eq!(tokio::spawn(is_sendable(tokens)).await.unwrap().unwrap(), 2);
    let name = locks.any(["a", "b"]).try_hold(async |lease: Lease| lease.name().to_string());
    assert_eq!(tokio::spawn(is_sendable(name)).await.unwrap().unwrap().as_deref(), Some("a"));
    let left = locks.mutex("y").acquire().await.unwrap().detach().await.unwrap();
    let guard = tokio::spawn(locks.mutex("y").attach(left.owner())).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// `lead` takes an async closure that changes what it captured, and has its term by value.
#[tokio::test]
async fn the_work_of_a_leader_may_change_what_it_captured() {
    let locks = locks().await;
    let mut terms = Vec::new();
    let led = locks
        .election("scheduler")
        .lead(async |term| {
            terms.push(term.token());
            drop(term);
            terms.len()
        })
        .await;
    assert_eq!((led.unwrap(), terms.len()), (1, 1));
    let mut pages = 0;
    locks.mutex("report").hold(async |_lease| pages += 1).await.unwrap();
    assert_eq!(pages, 1);
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "shown by `Debug`")]
struct Service {
    locks: Locker,
    lock: Lock,
    rwlock: RwLock,
    all: AllOf,
    any: AnyOf,
    election: tenure::election::Election,
    once: tenure::once::RunOnce,
    progress: Progress,
}

#[derive(Debug)]
#[expect(dead_code, reason = "shown by `Debug`")]
struct Working {
    guard: Guard,
    guards: Guards,
    watch: tenure::view::Watch,
    observer: tenure::election::Observer,
    blocking: tenure::blocking::Locker,
}

static LOCKS: OnceLock<Arc<Locker>> = OnceLock::new();

#[test]
fn values_show_themselves_and_live_in_statics_and_in_two_runtimes() {
    let (one, two) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let locks = LOCKS.get_or_init(|| Arc::new(one.block_on(locks())));
    let service = Service {
        locks: Locker::clone(locks),
        lock: locks.mutex("a").ttl(SOON),
        rwlock: locks.rwlock("a"),
        all: locks.all(["a", "b"]),
        any: locks.any(["a", "b"]),
        election: locks.election("e"),
        once: locks.once("o").interval(SOON),
        progress: Progress::new(),
    };
    let shown = format!("{:?}", service.clone());
    for part in ["Locker", "Lock {", "\"a\"", "AllOf", "AnyOf", "Election", "RunOnce", "Progress"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let guard = one.block_on(service.lock.acquire()).unwrap();
    let guards = two.block_on(locks.all(["b", "c"]).acquire()).unwrap();
    let working = Working {
        guard,
        guards,
        watch: locks.watch("a"),
        observer: service.election.observe(),
        blocking: tenure::blocking::connect("memory:").unwrap(),
    };
    let shown = format!("{working:?}");
    for part in ["Guard", "Guards", "Watch", "Observer", "Locker"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    two.block_on(working.guard.release()).unwrap();
    one.block_on(working.guards.release()).unwrap();
}

/// A future that is polled in another runtime than the one that made it.
#[test]
fn an_acquisition_begun_in_one_runtime_ends_in_another() {
    let (one, two) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let locks = one.block_on(locks());
    let waiting: std::pin::Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(locks.mutex("x").acquire());
    let guard = two.block_on(waiting).unwrap();
    one.block_on(guard.release()).unwrap();
}

#[test]
fn watches_and_observers_are_streams() {
    use futures_util::StreamExt;

    Runtime::new().unwrap().block_on(async {
        let locks = locks().await;
        let names: Vec<_> =
            locks.watch("x").take(1).map(|view| view.unwrap().name.to_string()).collect().await;
        assert_eq!(names, ["x"]);
        let leaders: Vec<_> = locks.election("e").observe().take(1).map(Result::unwrap).collect().await;
        assert_eq!(leaders, [tenure::election::Observed::Vacant]);
    });
}

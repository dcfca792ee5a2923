//! `tenure::testing`: the clock and the store that users of the crate test with.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use tenure::{
    AcquireError, ErrorKind, FencingToken, HoldError, Loss, ReleaseError,
    backend::{Host, Outcome},
    testing::{Fault, Operation, TestHost, TestStore, backend_error, lost, timed_out},
    view::{HolderView, Mode},
};
use tenure_testkit::patience::slowness;

use crate::stage::ms;

const TTL: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);
/// At most so often in an hour: every third of the ttl, and somewhat earlier.
const RENEWALS: std::ops::RangeInclusive<u32> = 1000..=1300;

/// A promise of the module: tests of hours take no time.
#[tokio::test(start_paused = true)]
async fn an_hour_of_renewals_passes_in_less_than_a_second_under_tokios_paused_clock() {
    let (began, store) = (Instant::now(), TestStore::new());
    let guard = store.locker().mutex("x").ttl(TTL).acquire().await.unwrap();
    tokio::time::sleep(HOUR).await;
    assert_eq!(guard.check(), Ok(()));
    let renewals = guard.renewals();
    assert!(RENEWALS.contains(&renewals.succeeded) && renewals.failed == 0, "{renewals:?}");
    assert_eq!(store.asked(Operation::Renew), renewals.succeeded as usize);
    assert!(store.other_process().locker().mutex("x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1) * slowness(), "{:?}", began.elapsed());
}

/// The same without tokio's help: what is due on the way happens on the way.
#[tokio::test]
async fn an_hour_of_renewals_passes_in_less_than_a_second_when_the_test_moves_the_clock() {
    let (began, store) = (Instant::now(), TestStore::new());
    let guard = store.locker().mutex("x").ttl(TTL).acquire().await.unwrap();
    let before = store.host().now();
    store.host().advance(HOUR).await;
    assert!(before.elapsed(store.host().now()) >= HOUR);
    assert_eq!(guard.check(), Ok(()));
    assert!(RENEWALS.contains(&guard.renewals().succeeded), "{:?}", guard.renewals());
    guard.release().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1) * slowness(), "{:?}", began.elapsed());
}

/// Both ways to move the clock fire timers in their order, each at its time, as seen by the clock itself.
async fn timers_fire_in_order() {
    let (host, fired) = (TestHost::new(), Arc::new(Mutex::new(Vec::new())));
    let began = host.now();
    for seconds in [30, 10, 20, 10] {
        let (clock, fired) = (host.clone(), fired.clone());
        tokio::spawn(async move {
            clock.sleep_until(began + Duration::from_secs(seconds)).await;
            fired.lock().unwrap().push((seconds, began.elapsed(clock.now()).as_secs()));
        });
    }
    host.advance(Duration::from_secs(25)).await;
    assert_eq!(*fired.lock().unwrap(), [(10, 10), (10, 10), (20, 20)]);
    host.suspend(Duration::from_secs(60));
    host.advance(ms(10)).await;
    let (seconds, at) = fired.lock().unwrap()[3];
    assert!(seconds == 30 && at >= 85, "late by the leap: {at}");
}

#[tokio::test(start_paused = true)]
async fn timers_fire_in_order_under_tokios_paused_clock() {
    timers_fire_in_order().await;
}

#[tokio::test]
async fn timers_fire_in_order_when_the_test_moves_the_clock() {
    timers_fire_in_order().await;
}

#[tokio::test]
async fn a_clock_that_no_test_moves_goes_as_time_does() {
    let (host, began) = (TestHost::new(), Instant::now());
    let start = host.now();
    host.sleep_until(start + ms(30)).await;
    let passed = start.elapsed(host.now());
    assert!(passed >= ms(30) && passed <= began.elapsed(), "{passed:?}");
    let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    assert!(wall.abs_diff(host.now().wall) < Duration::from_secs(60));
}

/// A task that waits for no time, again and again, keeps neither the clock nor the others from going on.
#[tokio::test]
async fn a_task_that_never_rests_does_not_stop_the_clock() {
    let host = TestHost::new();
    let (clock, began) = (host.clone(), host.now());
    let restless = tokio::spawn(async move {
        loop {
            clock.sleep_until(clock.now()).await;
        }
    });
    host.advance(ms(200)).await;
    assert!(began.elapsed(host.now()) >= ms(200) && !restless.is_finished());
}

/// A waiter moves with the clock: its turn comes when the lease before it has expired.
#[tokio::test]
async fn a_lock_whose_holder_left_it_is_acquired_once_the_clock_has_passed_its_ttl() {
    let store = TestStore::new();
    let left = store.locker().mutex("x").ttl(TTL).acquire().await.unwrap().detach().await.unwrap();
    let lock = store.other_process().locker().mutex("x");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    store.host().advance(TTL - ms(100)).await;
    assert!(!waiting.is_finished(), "{left:?} may still hold it");
    store.host().advance(ms(2200)).await;
    assert!(waiting.is_finished());
    assert!(waiting.await.unwrap().unwrap().token() > left.token().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lease_expires_and_its_work_is_dropped_when_the_store_hangs() {
    let store = TestStore::new();
    let is_dropped = Arc::new(AtomicBool::new(false));
    struct Work(Arc<AtomicBool>);
    impl Drop for Work {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let work = Work(is_dropped.clone());
    let lock = store.locker().mutex("x").ttl(TTL);
    let held = lock.hold(async |_| {
        let _work = work;
        store.fail(Fault::Hang);
        std::future::pending::<()>().await;
    });
    let Err(HoldError::Lost(loss)) = held.await else { panic!("it was lost") };
    assert_eq!(loss.cause(), Loss::Expired);
    assert!(is_dropped.load(Ordering::Relaxed));
    let next = store.other_process().locker().mutex("x").acquire().await.unwrap();
    assert!(next.token() > loss.token());
}

#[tokio::test]
async fn a_lease_expires_when_the_clock_leaps_over_its_ttl() {
    let store = TestStore::new();
    let guard = store.locker().mutex("x").ttl(TTL).acquire().await.unwrap();
    let (loss, ()) = tokio::join!(guard.lost(), async { store.host().suspend(TTL) });
    assert_eq!(loss.cause(), Loss::Expired);
    assert!(matches!(guard.release().await, Err(ReleaseError::AlreadyLost(_))));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_when_the_test_breaks_it() {
    let store = TestStore::new();
    let guard = store.locker().mutex("x").ttl(HOUR).acquire().await.unwrap();
    // The renewing task hears of the break as soon as it listens.
    tokio::time::sleep(ms(1)).await;
    let began = store.host().now();
    assert_eq!(store.force_release("x").await.unwrap().len(), 1);
    assert_eq!(guard.lost().await.cause(), Loss::Taken);
    assert!(began.elapsed(store.host().now()) < Duration::from_secs(1), "by a hint, not by a renewal");
    assert_eq!(store.force_release("").await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_is_an_error_of_the_store_after_the_patience() {
    let store = TestStore::new();
    let (locks, began) = (store.locker(), store.host().now());
    store.fail(Fault::unavailable());
    let refused = locks.mutex("x").patience(Duration::from_secs(60)).acquire().await;
    let Err(AcquireError::Store(error)) = refused else { panic!("{refused:?}") };
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied));
    let waited = began.elapsed(store.host().now());
    assert!(waited >= Duration::from_secs(60) && waited <= Duration::from_secs(65), "{waited:?}");
    store.recover();
    locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_next_requests_fail_and_those_after_them_do_not() {
    let store = TestStore::new();
    let locks = store.locker();
    store.fail_next(2, Fault::unavailable());
    for _ in 0..2 {
        assert!(matches!(locks.mutex("x").try_acquire().await, Err(AcquireError::Store(_))));
    }
    let guard = locks.mutex("x").try_acquire().await.unwrap();
    assert_eq!((guard.is_some(), store.asked(Operation::Claim)), (true, 3));
    store.fail_next_of(Operation::Inspect, 1, Fault::Refuse(backend_error(ErrorKind::Denied)));
    assert_eq!(locks.inspect("x").await.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(locks.list("").await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_leaves_the_outcome_unknown_and_the_claim_done() {
    let store = TestStore::new();
    let locks = store.locker();
    store.fail_operation(Operation::Release, Fault::unavailable());
    store.fail_next_of(Operation::Claim, 1, Fault::LoseAnswer);
    let tried = locks.mutex("x").try_acquire().await;
    let Err(AcquireError::Store(error)) = tried else { panic!("{tried:?}") };
    assert_eq!(error.outcome(), Outcome::Unknown);
    assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 1, "it was done");
    store.recover();
    assert!(locks.flush(HOUR).await);
    assert!(locks.inspect("x").await.unwrap().holders.is_empty(), "and was released in the background");
    let guard = locks.mutex("x").acquire().await.unwrap();
    store.fail_operation(Operation::Release, Fault::LoseAnswer);
    assert!(matches!(guard.release().await, Err(ReleaseError::Unknown(_))));
}

#[tokio::test(start_paused = true)]
async fn renewals_alone_fail_until_the_store_recovers() {
    let store = TestStore::new();
    let guard = store.locker().mutex("x").ttl(TTL).acquire().await.unwrap();
    store.fail_operation(Operation::Renew, Fault::unavailable());
    guard.renewal_failing().await;
    assert!(store.locker().mutex("y").acquire().await.is_ok(), "other requests are answered");
    store.recover();
    tokio::time::sleep(TTL).await;
    assert!(guard.check().is_ok() && !guard.is_renewal_failing() && guard.renewals().failed > 0);
}

#[tokio::test(start_paused = true)]
async fn another_process_meets_none_of_the_faults() {
    let store = TestStore::new();
    let (guard, other) = (store.locker().mutex("x").acquire().await.unwrap(), store.other_process());
    store.fail(Fault::Hang);
    let busy = other.locker().mutex("x").within(ms(100)).acquire().await;
    let Err(AcquireError::TimedOut { holder: Some(holder), .. }) = busy else { panic!("{busy:?}") };
    assert_eq!(holder.owner, guard.owner().to_string());
    assert_eq!(store.asked(Operation::Claim), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_times_out_and_one_that_is_late_does_not() {
    let store = TestStore::new();
    let (locks, began) = (store.locker(), store.host().now());
    store.fail_next(1, Fault::Hang);
    let Err(AcquireError::Store(error)) = locks.mutex("x").try_acquire().await else { panic!("it hangs") };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let asked = store.host().now();
    assert!(began.elapsed(asked) > ms(200), "the time-out has passed");
    store.fail_next(1, Fault::Delay(ms(150)));
    assert!(locks.mutex("y").try_acquire().await.unwrap().is_some());
    assert!(asked.elapsed(store.host().now()) >= ms(150));
}

#[tokio::test(start_paused = true)]
async fn the_store_of_other_locks_fails_as_well() {
    let locks = tenure::Locker::new(
        Arc::new(tenure_memory::Memory::new(Arc::new(TestHost::new()))),
        Arc::new(TestHost::new()),
    );
    let store = TestStore::over(&locks);
    let guard = locks.mutex("x").acquire().await.unwrap();
    assert!(store.locker().mutex("x").try_acquire().await.unwrap().is_none(), "it is the same store");
    store.fail(Fault::unavailable());
    assert!(store.locker().mutex("y").try_acquire().await.is_err());
    assert_eq!(guard.check(), Ok(()));
}

#[test]
fn values_of_failures_are_those_that_failures_make() {
    let loss = lost(Loss::Taken, FencingToken::new(7));
    assert_eq!((loss.cause(), loss.token()), (Loss::Taken, FencingToken::new(7)));
    assert!(loss.at().elapsed().is_ok_and(|ago| ago < Duration::from_secs(60)));
    let busy = timed_out(ms(1500), HolderView::new("worker-7", Mode::Exclusive)).to_string();
    assert!(busy.contains("1.5s") && busy.contains("worker-7"), "{busy}");
    assert_eq!(timed_out(ms(1500), None).to_string(), "not acquired within 1.5s");
    let outcomes = [ErrorKind::Denied, ErrorKind::TimedOut].map(|kind| backend_error(kind).outcome());
    assert_eq!(outcomes, [Outcome::NotApplied, Outcome::Unknown]);
}

#[test]
#[should_panic(expected = "no reactor running")]
fn a_test_without_a_runtime_has_no_clock() {
    TestHost::new();
}

/// A waiter whose turn comes late is refused by time alone. Its last request had less time than the store takes for an answer, and
/// the refusal said that the store had failed; so did those of the waiters behind it.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_held_until_a_turn_that_came_too_late_is_busy() {
    for left in (0..300).step_by(7) {
        for is_other_process in [false, true] {
            let store = TestStore::new();
            let (holder, waiters) = (store.locker(), store.other_process());
            store.fail(Fault::Delay(ms(55)));
            waiters.fail(Fault::Delay(ms(55)));
            let waiters = if is_other_process { waiters.locker() } else { holder.clone() };
            let guard = holder.mutex("x").acquire().await.unwrap();
            let waiting = [(), (), ()].map(|()| {
                let lock = waiters.mutex("x").within(ms(300));
                tokio::spawn(async move {
                    let guard = lock.acquire().await?;
                    // So long that the lease is not passed on.
                    tokio::time::sleep(ms(15)).await;
                    drop(guard);
                    Ok::<_, AcquireError>(())
                })
            });
            tokio::time::sleep(ms(300 - left)).await;
            let _ = guard.release().await;
            for waiter in waiting {
                match waiter.await.unwrap() {
                    Ok(()) | Err(AcquireError::TimedOut { holder: Some(_), .. }) => {}
                    Err(error) => panic!("{left} ms before the end, {is_other_process}: {error:?}"),
                }
            }
        }
    }
}

/// The same of several locks: the time was spent behind another owner, and what was left of it was too short for a request.
#[tokio::test(start_paused = true)]
async fn several_locks_of_which_one_was_held_until_too_late_are_busy() {
    for left in (0..150).step_by(7) {
        for is_all in [true, false] {
            let store = TestStore::new();
            store.fail(Fault::Delay(ms(55)));
            let (holder, waiter) = (store.other_process().locker(), store.locker());
            let held = holder.all(["a", "b"]).acquire().await.unwrap();
            let waiting = tokio::spawn(async move {
                match is_all {
                    true => waiter.all(["a", "b"]).within(ms(300)).acquire().await.map(drop),
                    false => waiter.any(["a", "b"]).within(ms(300)).acquire().await.map(drop),
                }
            });
            tokio::time::sleep(ms(300 - left)).await;
            held.release().await.unwrap();
            match waiting.await.unwrap() {
                Ok(()) | Err(AcquireError::TimedOut { .. }) => {}
                Err(error) => panic!("{left} ms before the end, {is_all}: {error:?}"),
            }
        }
    }
}

/// The other side: a store that has told of no holder and answers nothing is not a busy lock, also for those that stand behind the
/// one that asks. They have sent nothing.
#[tokio::test(start_paused = true)]
async fn a_store_that_has_answered_nothing_is_not_a_busy_lock() {
    let store = TestStore::new();
    store.fail(Fault::Hang);
    let locks = store.locker();
    let waiting = [(); 3].map(|()| {
        let lock = locks.mutex("x").within(ms(300));
        tokio::spawn(async move { lock.acquire().await })
    });
    let mut outcomes = Vec::new();
    for waiter in waiting {
        let refused = waiter.await.unwrap();
        let Err(AcquireError::Store(error)) = refused else { panic!("{refused:?}") };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        outcomes.push(error.outcome());
    }
    assert_eq!(outcomes, [Outcome::Unknown, Outcome::NotApplied, Outcome::NotApplied]);
    // One that asks once behind a claim without an answer asks the store, which it was told is busy.
    let lock = locks.mutex("y").keep_idle(ms(60_000));
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    tokio::time::sleep(ms(10)).await;
    let refused = lock.try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::Store(_))), "{refused:?}");
    first.abort();
}

/// L9: an answer has an age. Each waiter made it younger by looking at it: a store that had answered once and hung ever since was a
/// busy lock for as long as waiters came, held or free.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_a_busy_lock_for_some_seconds_only() {
    for is_free in [false, true] {
        let store = TestStore::new();
        let waiters = store.other_process();
        let locks = waiters.locker();
        let mut guard = Some(store.locker().mutex("x").acquire().await.unwrap());
        let mut waiting = Vec::new();
        for number in 0..150 {
            let lock = locks.mutex("x").within(ms(300));
            waiting.push(tokio::spawn(async move { lock.acquire().await.map(drop) }));
            if number == 10 {
                waiters.fail(Fault::Hang);
            }
            if let Some(guard) = guard.take_if(|_| number == 11 && is_free) {
                guard.release().await.unwrap();
            }
            tokio::time::sleep(ms(100)).await;
        }
        for (number, waiter) in waiting.into_iter().enumerate() {
            let refused = waiter.await.unwrap().unwrap_err();
            let is_busy = matches!(refused, AcquireError::TimedOut { .. });
            assert!(is_busy || number > 10, "{number}: {refused:?}");
            assert!(!is_busy || number < 45, "{number}: {refused:?}");
        }
    }
}

/// A store that hangs is waited for once, not once for each name: for the time of a request, or for the limit.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_asked_for_one_of_several_only() {
    for limit in [None, Some(ms(300))] {
        let store = TestStore::new();
        let names: Vec<String> = (0..10).map(|number| format!("n{number}")).collect();
        let other = store.other_process().locker();
        let held = other.all(names.clone()).acquire().await.unwrap();
        store.fail(Fault::Delay(ms(10)));
        let any = store.locker().any(names);
        let began = tokio::time::Instant::now();
        let asking = tokio::spawn(async move {
            match limit {
                None => any.try_acquire().await.map(|guard| assert!(guard.is_none())),
                Some(limit) => any.within(limit).acquire().await.map(drop),
            }
        });
        tokio::time::sleep(ms(5)).await;
        store.fail(Fault::Hang);
        let answer = asking.await.unwrap();
        assert!(matches!(answer, Ok(()) | Err(AcquireError::TimedOut { .. })), "{answer:?}");
        // Without a limit: a claim and its release.
        let most = limit.unwrap_or(2 * TTL / 3) + ms(100);
        assert!(began.elapsed() <= most, "{limit:?}: {:?}", began.elapsed());
        drop(held);
    }
}

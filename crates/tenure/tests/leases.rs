//! Held leases: renewed, believed, lost.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure::{AcquireError, Guard, HoldError, Lease, Loss};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
};

use crate::stage::{Actor, Court, Deaf, RETRY_MAX, SOON, Stage, TTL, VALIDITY, in_time, ms};

/// A process that holds the lock, and one that does not.
async fn holder() -> (Stage, Actor, Guard, Actor) {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let guard = actor.acquire().await;
    (stage, actor, guard, other)
}

/// The loss, and how long it took until `lost` told.
async fn loss(stage: &Stage, guard: &Guard) -> (Loss, Duration) {
    let began = stage.clock();
    let lost = in_time(guard.lost()).await;
    assert_eq!(guard.check(), Err(lost), "both tell the same");
    (lost.cause(), stage.clock() - began)
}

fn is_about(found: Duration, expected: Duration) -> bool {
    found >= expected && found <= expected + SOON
}

/// L1.
#[tokio::test(start_paused = true)]
async fn a_renewed_lease_is_held_for_as_long_as_the_holder_likes() {
    let (_stage, actor, guard, other) = holder().await;
    let answer = other.lock().within(20 * TTL).acquire().await;
    assert!(matches!(answer, Err(AcquireError::TimedOut { holder: Some(_), .. })), "{answer:?}");
    assert_eq!(guard.check(), Ok(()));
    assert!(guard.remaining() > TTL / 2 && !guard.is_renewal_failing());
    assert!((58..=61).contains(&actor.gates.asked(Verb::Renew)), "{}", actor.gates.asked(Verb::Renew));
}

/// L1: the holder knows at the instant when its validity ends, and the next one enters after that.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_costs_the_lease_at_the_end_of_its_validity() {
    let (stage, actor, guard, other) = holder().await;
    actor.die();
    let next = other.waiting();
    let began = stage.clock();
    pass(ms(4_900)).await;
    assert!(!guard.is_renewal_failing(), "nothing has failed yet");
    pass(ms(200)).await;
    assert!(guard.is_renewal_failing(), "a renewal stayed unanswered for ttl/6");
    assert_eq!(guard.check(), Ok(()));
    let (cause, _) = loss(&stage, &guard).await;
    assert_eq!(cause, Loss::Expired);
    assert!(is_about(stage.clock() - began, VALIDITY), "{:?}", stage.clock() - began);
    assert!(!next.is_finished(), "nobody enters before the holder knows");
    assert!(next.await.unwrap().token() > guard.token());
    assert!(is_about(stage.clock() - began, TTL), "{:?}", stage.clock() - began);
}

/// H2.1: `check` reads the clock itself and needs nobody to tell it.
#[tokio::test(start_paused = true)]
async fn check_fails_at_the_instant_when_validity_ends() {
    let (_stage, actor, guard, _) = holder().await;
    actor.die();
    pass(VALIDITY - ms(1)).await;
    assert_eq!(guard.check(), Ok(()));
    pass(ms(1)).await;
    assert_eq!(guard.check().unwrap_err().cause(), Loss::Expired);
    assert_eq!(guard.remaining(), Duration::ZERO);
}

/// H2.2.
#[tokio::test(start_paused = true)]
async fn a_slow_renewal_counts_from_when_it_was_sent() {
    let (_stage, actor, guard, _) = holder().await;
    actor.gates.plan(Verb::Renew, &[Gate::Slow(ms(1_000))], Gate::Hang);
    pass(ms(4_300)).await;
    assert!(guard.remaining() < ms(6_000), "not answered yet");
    pass(ms(100)).await;
    assert!(guard.remaining() > VALIDITY - ms(1_100) && guard.remaining() < VALIDITY - ms(1_000));
}

/// H1.1, hazard 12: and the first renewal of a grant whose answer was slow is due at once.
#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_when_its_renewal_is_due_is_renewed() {
    let stage = Stage::new();
    let actor = stage.actor();
    actor.gates.plan(Verb::Claim, &[Gate::Slow(ms(150))], Gate::Open);
    let guard = actor.locks.mutex("stage").ttl(ms(300)).acquire().await.unwrap();
    assert!(guard.remaining() < ms(150));
    pass(10 * TTL).await;
    assert_eq!(guard.check(), Ok(()));
}

/// Hazard 24: no renewal waits for another.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_delays_no_other() {
    let (_stage, actor, guard, _) = holder().await;
    pass(ms(100)).await;
    let other = actor.locks.mutex("other").ttl(TTL).acquire().await.unwrap();
    actor.gates.plan(Verb::Renew, &[Gate::Hang], Gate::Open);
    pass(ms(3_500)).await;
    assert!(guard.remaining() < ms(6_500), "its renewal hangs");
    assert!(other.remaining() > ms(9_500), "that of the other one came through");
    pass(ms(2_000)).await;
    assert!(guard.remaining() > ms(9_000) && !guard.is_renewal_failing(), "the second try came through");
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_due_together_are_renewed_together() {
    let stage = Stage::new();
    let actor = stage.actor();
    let mut guards = Vec::new();
    for i in 0..1_000 {
        guards.push(actor.locks.mutex(format!("many/{i}")).acquire().await.unwrap());
    }
    pass(TTL).await;
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
    assert!(actor.gates.asked(Verb::Renew) <= 6, "{} requests", actor.gates.asked(Verb::Renew));
}

/// A robbed holder is told at once, not when its renewal is due.
#[tokio::test(start_paused = true)]
async fn a_broken_lock_is_lost_at_once() {
    let (stage, _actor, guard, _) = holder().await;
    pass(ms(500)).await;
    stage.break_lock().await;
    let (cause, after) = loss(&stage, &guard).await;
    assert_eq!(cause, Loss::Taken);
    assert!(after <= SOON, "{after:?}");
}

/// The next lease too: the keeper had stopped listening when it held nothing, and a lease that needs no look soon did not tell it.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_broken_again_is_lost_at_once_again() {
    let stage = Stage::new();
    let actor = stage.actor();
    for _ in 0..3 {
        let guard = actor.acquire().await;
        pass(ms(100)).await;
        stage.break_lock().await;
        let (cause, after) = loss(&stage, &guard).await;
        assert_eq!(cause, Loss::Taken);
        assert!(after <= SOON, "{after:?}");
    }
}

/// The last lease before `max_hold` needs no renewal, but a robbed holder asks all the same.
#[tokio::test(start_paused = true)]
async fn a_broken_lock_is_lost_at_once_in_the_last_lease_too() {
    let stage = Stage::new();
    let guard = stage.actor().lock().max_hold(ms(5_000)).acquire().await.unwrap();
    pass(ms(500)).await;
    stage.break_lock().await;
    let (cause, after) = loss(&stage, &guard).await;
    assert_eq!(cause, Loss::Taken);
    assert!(after <= SOON, "{after:?}");
}

/// A hint makes us faster, never right (H1.6).
#[tokio::test(start_paused = true)]
async fn a_broken_lock_is_lost_by_the_next_renewal_if_the_hint_was_lost() {
    let stage = Stage::new();
    let guard = stage.actor_on(Arc::new(Deaf::new(&stage.store))).acquire().await;
    pass(ms(500)).await;
    stage.break_lock().await;
    let (cause, after) = loss(&stage, &guard).await;
    assert_eq!(cause, Loss::Taken);
    assert!(after <= TTL / 3 && after > ms(2_500), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn every_holder_asks_when_hints_may_have_been_missed() {
    let stage = Stage::new();
    let deaf = Deaf::new(&stage.store);
    let actor = stage.actor_on(Arc::new(deaf.clone()));
    let (guard, unhurt) = (actor.acquire().await, actor.locks.mutex("other").acquire().await.unwrap());
    pass(ms(500)).await;
    stage.break_lock().await;
    pass(ms(500)).await;
    assert_eq!(guard.check(), Ok(()), "it has not heard of it");
    deaf.missed.notify_waiters();
    let (cause, after) = loss(&stage, &guard).await;
    assert!(cause == Loss::Taken && after <= SOON, "{cause:?} after {after:?}");
    assert_eq!(unhurt.check(), Ok(()));
}

/// Hazard 25.
#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_lease_that_is_renewed() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.lock().max_hold(3 * TTL).acquire().await.unwrap();
    let (cause, after) = loss(&stage, &guard).await;
    assert_eq!(cause, Loss::MaxHold);
    assert!(is_about(after, 3 * TTL), "{after:?}");
    let asked = actor.gates.asked(Verb::Renew);
    pass(TTL).await;
    assert_eq!(actor.gates.asked(Verb::Renew), asked);
}

/// Hazard 25.
#[tokio::test(start_paused = true)]
async fn a_guard_that_was_leaked_blocks_for_max_hold_and_one_ttl_at_most() {
    let stage = Stage::new();
    std::mem::forget(stage.actor().lock().max_hold(2 * TTL).acquire().await.unwrap());
    let other = stage.actor().lock().within(3 * TTL + RETRY_MAX).acquire().await;
    assert!(other.is_ok(), "{other:?}");
}

/// H2.1, hazard 26: timers do not run in suspend, so no task can have told.
#[tokio::test(start_paused = true)]
async fn a_machine_that_slept_for_too_long_learns_it_at_the_first_check() {
    let (stage, _actor, guard, other) = holder().await;
    pass(ms(500)).await;
    stage.host.suspend(2 * TTL);
    assert_eq!(guard.check().unwrap_err().cause(), Loss::Expired);
    Court::default().admit(other.acquire().await);
    let (cause, after) = loss(&stage, &guard).await;
    assert_eq!(cause, Loss::Expired);
    assert!(after <= SOON, "{after:?}");
}

/// H2.1: whoever only waits for `lost` is told within a look.
#[tokio::test(start_paused = true)]
async fn lost_tells_of_a_jump_of_either_clock_within_a_second() {
    for jump in [|stage: &Stage| stage.host.suspend(2 * TTL), |stage: &Stage| stage.host.step_wall(20_000)] {
        let (stage, _actor, guard, _) = holder().await;
        let watched = Arc::new(guard);
        let lost = tokio::spawn({
            let watched = watched.clone();
            async move { in_time(watched.lost()).await.cause() }
        });
        pass(ms(2_500)).await;
        jump(&stage);
        pass(ms(1_001)).await;
        assert!(lost.is_finished());
        assert_eq!(lost.await.unwrap(), Loss::Expired);
    }
}

/// H2.1: whichever lease is looked at first, all are looked at.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_wall_clock_that_one_lease_shows_is_noticed_for_all() {
    let (stage, actor, guard, _) = holder().await;
    let _often = actor.locks.mutex("often").ttl(ms(100)).acquire().await.unwrap();
    let ((cause, after), ()) = tokio::join!(loss(&stage, &guard), async {
        pass(ms(2_500)).await;
        stage.host.step_wall(20_000);
    });
    assert!(cause == Loss::Expired && after <= ms(2_515), "{cause:?} after {after:?}");
}

/// L1, H2.1, hazard 24: to hear of a loss, a holder needs nobody but the clock.
#[tokio::test(start_paused = true)]
async fn a_holder_without_a_watchdog_hears_of_the_loss_on_time() {
    for slept in [Duration::ZERO, 2 * TTL] {
        let stage = Stage::new();
        // Its threads are started and never run: nothing is renewed.
        let stuck = Mutex::new(Vec::new());
        let actor = stage.actor_with(move |start| {
            stuck.lock().unwrap().push(start);
            Ok(())
        });
        let lock = actor.lock();
        let guard = lock.acquire().await.unwrap();
        let ((cause, after), ()) = tokio::join!(loss(&stage, &guard), async {
            pass(ms(2_500)).await;
            stage.host.suspend(slept);
        });
        assert_eq!(cause, Loss::Expired);
        let expected = if slept.is_zero() { VALIDITY } else { ms(3_000) + slept };
        assert!(is_about(after, expected), "{after:?}");
    }
}

/// H2.1, hazard 26: a virtual machine that was resumed from a snapshot shows it by its wall clock only.
#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_steps_forward_ends_the_lease() {
    let (stage, _actor, guard, _) = holder().await;
    pass(ms(500)).await;
    stage.host.step_wall(20_000);
    assert_eq!(guard.check().unwrap_err().cause(), Loss::Expired);
    stage.host.step_wall(-20_000);
    assert!(guard.check().is_err(), "L5");
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_steps_back_changes_nothing() {
    let (stage, actor, guard, _) = holder().await;
    pass(ms(500)).await;
    stage.host.step_wall(-3_600_000);
    pass(3 * TTL).await;
    assert_eq!(guard.check(), Ok(()));
    actor.die();
    assert!(loss(&stage, &guard).await.1 <= VALIDITY);
}

/// H2.3, L5: the machine slept while a renewal was on its way, and the answer comes afterwards.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_answered_after_the_loss_does_not_resurrect() {
    let (stage, actor, guard, _) = holder().await;
    actor.set(Verb::Renew, Gate::Slow(ms(1_000)));
    pass(ms(3_500)).await;
    assert_eq!(actor.gates.asked(Verb::Renew), 1);
    stage.host.suspend(2 * TTL);
    pass(TTL).await;
    assert_eq!(guard.check().unwrap_err().cause(), Loss::Expired);
    assert_eq!(actor.gates.asked(Verb::Renew), 1, "what is lost is not renewed");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_at_risk_from_the_first_failure_to_the_next_success() {
    for gate in [Gate::Refuse, Gate::LoseReply, Gate::Hang] {
        let (_stage, actor, guard, _) = holder().await;
        actor.gates.plan(Verb::Renew, &[gate], Gate::Open);
        pass(ms(3_300)).await;
        assert!(!guard.is_renewal_failing());
        let patience = if gate == Gate::Hang { ms(1_750) } else { ms(50) };
        pass(patience).await;
        assert!(guard.is_renewal_failing(), "{gate:?}");
        pass(ms(500)).await;
        assert!(!guard.is_renewal_failing(), "{gate:?}");
        assert_eq!(guard.check(), Ok(()));
    }
}

/// The first of the two signals; without a failure it does not come.
#[tokio::test(start_paused = true)]
async fn at_risk_tells_of_the_first_failure() {
    let (stage, actor, guard, _) = holder().await;
    tokio::select! {
        () = guard.renewal_failing() => panic!("nothing has failed"),
        () = pass(5 * TTL) => {}
    }
    actor.set(Verb::Renew, Gate::Refuse);
    let began = stage.clock();
    in_time(guard.renewal_failing()).await;
    assert!(stage.clock() - began <= TTL / 3 + SOON);
    assert_eq!(guard.check(), Ok(()), "it holds as yet");
    assert_eq!(loss(&stage, &guard).await.0, Loss::Expired);
    in_time(guard.renewal_failing()).await;
}

/// The time to stop work that needs as long to stop.
#[tokio::test(start_paused = true)]
async fn nearly_lost_ends_when_no_more_than_the_margin_is_left() {
    let (stage, actor, guard, _) = holder().await;
    tokio::select! {
        _ = guard.expires_within(TTL / 3) => panic!("renewals keep more than that ahead"),
        () = pass(5 * TTL) => {}
    }
    actor.die();
    in_time(guard.expires_within(TTL / 3)).await.unwrap();
    assert!(guard.remaining() <= TTL / 3 && guard.remaining() > TTL / 3 - SOON);
    assert_eq!(loss(&stage, &guard).await.0, Loss::Expired);
    assert!(guard.expires_within(TTL / 3).await.is_err());
}

/// True once it was dropped.
struct Flag(Arc<std::sync::atomic::AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// L1: work is stopped before another holder can start.
#[tokio::test(start_paused = true)]
async fn hold_drops_the_work_when_the_lease_is_lost() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let stopped = Arc::<std::sync::atomic::AtomicBool>::default();
    let (lock, flag, began) = (actor.lock(), Flag(stopped.clone()), stage.clock());
    let held = tokio::spawn(async move {
        lock.hold(|_lease| async move {
            let _flag = flag;
            pending::<()>().await;
        })
        .await
    });
    stage.settle(1, 0).await;
    actor.die();
    let next = other.acquire().await;
    assert!(stopped.load(std::sync::atomic::Ordering::SeqCst), "the work went on beside the next holder");
    let answer = in_time(held).await.unwrap();
    assert!(matches!(answer, Err(HoldError::Lost(lost)) if lost.cause() == Loss::Expired), "{answer:?}");
    assert!(is_about(stage.clock() - began, TTL));
    assert_eq!(next.check(), Ok(()));
}

/// L8.
#[tokio::test(start_paused = true)]
async fn hold_returns_what_the_work_returns_and_releases() {
    let stage = Stage::new();
    let actor = stage.actor();
    let work = async |lease: Lease| {
        pass(3 * TTL).await;
        lease.check().map(|()| lease.token())
    };
    let token = actor.lock().hold(work).await.unwrap();
    assert!(token.unwrap().get() > 0);
    assert!(stage.is_free().await);
}

/// L8: a caller that gives up drops the work and the lease.
#[tokio::test(start_paused = true)]
async fn hold_that_is_dropped_drops_the_work_and_releases() {
    let stage = Stage::new();
    let actor = stage.actor();
    let stopped = Arc::<std::sync::atomic::AtomicBool>::default();
    let flag = Flag(stopped.clone());
    let lock = actor.lock();
    let held = lock.hold(|_lease| async move {
        let _flag = flag;
        pending::<()>().await;
    });
    tokio::select! {
        _ = held => panic!("the work does not end"),
        () = pass(TTL) => {}
    }
    assert!(stopped.load(std::sync::atomic::Ordering::SeqCst));
    assert!(actor.locks.flush(TTL).await);
    assert!(stage.is_free().await);
}

/// What to choose a ttl by: every renewal is counted, and the slowest is known.
#[tokio::test(start_paused = true)]
async fn a_lease_knows_how_its_renewals_went() {
    let stage = Stage::new();
    let actor = stage.actor();
    actor.gates.plan(Verb::Renew, &[Gate::Slow(ms(300)), Gate::Refuse], Gate::Open);
    let guard = actor.acquire().await;
    assert_eq!(guard.renewals(), tenure::view::Renewals::default());
    pass(2 * TTL).await;
    let went = guard.renewals();
    assert!((4..=6).contains(&went.succeeded) && went.failed == 1, "{went:?}");
    assert!((ms(300)..ms(300) + SOON).contains(&went.slowest), "{went:?}");
    let lease = guard.lease();
    guard.release().await.unwrap();
    assert_eq!(lease.renewals(), went, "it is known afterwards too");
}

/// What is kept of a lock is gone with it, and `Debug` shows that.
#[tokio::test(start_paused = true)]
async fn nothing_is_kept_when_nothing_is_held_or_waited_for() {
    let (_stage, actor, guard, other) = holder().await;
    let waiting = tokio::spawn({
        let lock = other.mutex();
        async move { lock.acquire().await }
    });
    pass(SOON).await;
    let shown = |actor: &Actor| format!("{:?}", actor.locks);
    assert!(shown(&actor).contains("leases: 1"), "{}", shown(&actor));
    assert!(shown(&other).contains("waiters: 1"), "{}", shown(&other));
    waiting.abort();
    drop(guard);
    pass(TTL).await;
    for actor in [actor, other] {
        let sizes = ["leases", "local_queues", "waiters", "claims_in_flight", "releases_in_flight"];
        let none = sizes.map(|size| format!("{size}: 0")).join(", ");
        assert!(shown(&actor).contains(&none), "{}", shown(&actor));
    }
}

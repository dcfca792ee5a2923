//! Guards and acquisitions that are given back, dropped, or given up halfway.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{sync::Arc, time::Duration};

use tenure::backend::{EndOfGrant, Released, Renewal};
use tenure::{
    AcquireError, ConfigError, Guard, HoldError, Loss, ReleaseError, backend::Backend, once::RunOutcome,
};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
    polls::dropped_after,
};

use crate::stage::{Actor, Deaf, RETRY_MAX, SOON, Stage, TTL, ms, name};

/// A holder, somebody who waits, and since when.
async fn holder_and_waiter() -> (Stage, Actor, Guard, tokio::task::JoinHandle<Guard>) {
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    let waiting = stage.actor().waiting();
    stage.settle(1, 1).await;
    (stage, actor, guard, waiting)
}

/// How long it takes until the waiter enters.
async fn entry(stage: &Stage, waiting: tokio::task::JoinHandle<Guard>) -> (Guard, Duration) {
    let began = stage.clock();
    let guard = waiting.await.unwrap();
    guard.check().unwrap();
    (guard, stage.clock() - began)
}

/// L8, hazard 63: no ttl has to pass.
#[tokio::test(start_paused = true)]
async fn a_dropped_guard_is_released_in_the_background() {
    let (stage, _actor, guard, waiting) = holder_and_waiter().await;
    drop(guard);
    let (next, after) = entry(&stage, waiting).await;
    assert!(after <= SOON, "{after:?}");
    assert_eq!(stage.view().await.holders[0].owner, next.owner().to_string());
}

/// L8: the store may fail just then.
#[tokio::test(start_paused = true)]
async fn the_release_of_a_dropped_guard_is_tried_until_the_store_answers() {
    for gate in [Gate::Refuse, Gate::Hang] {
        let (stage, actor, guard, waiting) = holder_and_waiter().await;
        actor.gates.plan(Verb::Release, &[gate; 3], Gate::Open);
        drop(guard);
        let (_next, after) = entry(&stage, waiting).await;
        let patience = if gate == Gate::Hang { ms(6_300) } else { ms(200) };
        assert!(after <= patience, "{gate:?}: {after:?}");
        assert_eq!(actor.gates.asked(Verb::Release), 4, "{gate:?}");
        assert!(actor.locks.flush(SOON).await);
    }
}

/// Work that did not end well may go on elsewhere. Its lock stays taken for that long, even from a waiter of the same process.
#[tokio::test(start_paused = true)]
async fn a_dropped_guard_lingers_and_a_released_one_does_not() {
    let linger = 3 * TTL;
    for gate in [Gate::Open, Gate::Refuse, Gate::Hang] {
        let stage = Stage::new();
        let actor = stage.actor();
        let lock = actor.mutex().linger(linger);
        lock.acquire().await.unwrap().release().await.unwrap();
        let guard = lock.acquire().await.unwrap();
        let (elsewhere, beside) = (stage.actor().waiting(), actor.waiting());
        stage.settle(1, 2).await;
        let before = actor.gates.asked(Verb::Release);
        actor.gates.plan(Verb::Renew, &[gate], Gate::Open);
        let (began, lease) = (stage.clock(), guard.lease());
        drop(guard);
        assert_eq!(lease.check().unwrap_err().cause(), Loss::Released, "{gate:?}");
        assert!(actor.locks.flush(SOON + ms(2_500)).await, "{gate:?}");
        assert_eq!(actor.gates.asked(Verb::Release), before, "{gate:?}");
        let first = tokio::select! { guard = elsewhere => guard, guard = beside => guard };
        let after = stage.clock() - began;
        assert!(after >= linger && after <= linger + RETRY_MAX + ms(2_500), "{gate:?}: {after:?}");
        first.unwrap().release().await.unwrap();
    }
}

/// An acquisition of several that is dropped halfway has begun no work.
#[tokio::test(start_paused = true)]
async fn locks_that_were_gathered_in_part_do_not_linger() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let busy = other.locks.mutex("b").acquire().await.unwrap();
    let both = actor.locks.all(["a", "b"]).with(|lock| lock.ttl(TTL).linger(3 * TTL));
    assert!(tokio::time::timeout(TTL / 2, both.acquire()).await.is_err());
    assert!(actor.locks.flush(SOON).await);
    other.locks.mutex("a").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
    busy.release().await.unwrap();
    drop(both.acquire().await.unwrap());
    assert!(actor.locks.flush(SOON).await);
    assert!(other.locks.mutex("a").try_acquire().await.unwrap().is_none());
    assert!(other.locks.mutex("b").try_acquire().await.unwrap().is_none());
}

/// If the store is down, the ttl ends the lease.
#[tokio::test(start_paused = true)]
async fn a_guard_that_cannot_linger_is_left_to_its_ttl() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.mutex().linger(3 * TTL).acquire().await.unwrap();
    let next = stage.actor().waiting();
    stage.settle(1, 1).await;
    actor.set(Verb::Renew, Gate::Refuse);
    drop(guard);
    assert!(!actor.locks.flush(TTL / 2).await, "it is still being tried");
    let (_next, after) = entry(&stage, next).await;
    assert!(after <= TTL + SOON, "{after:?}");
    assert!(actor.locks.flush(RETRY_MAX).await);
}

/// The lock of work that panics or exceeds `max_hold` stays taken. Work that returned an error has ended.
#[tokio::test(start_paused = true)]
async fn work_that_is_cut_off_lingers() {
    let linger = 3 * TTL;
    let stage = Stage::new();
    let actor = stage.actor();
    let lock = actor.mutex().linger(linger);
    lock.hold(async |_| Err::<(), &str>("no such file")).await.unwrap().unwrap_err();
    assert!(stage.is_free().await);
    let taken = async || {
        assert!(actor.locks.flush(SOON).await);
        assert_eq!(stage.crowd().await.0, 1);
        pass(linger).await;
        assert!(stage.is_free().await);
    };
    let panics = tokio::spawn({
        let lock = lock.clone();
        async move { lock.hold(async |_| panic!("out of ideas")).await }
    });
    assert!(panics.await.unwrap_err().is_panic());
    taken().await;
    let endless = async |_| std::future::pending::<()>().await;
    let lost = lock.clone().max_hold(TTL).hold(endless).await.unwrap_err();
    assert!(matches!(&lost, HoldError::Lost(lost) if lost.cause() == Loss::MaxHold), "{lost}");
    taken().await;
    let refused = actor.mutex().linger(Duration::from_secs(90_000)).acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Config(ConfigError::Ttl(_))), "{refused}");
    let mut store = Deaf::new(&stage.store);
    store.promises.max_ttl = TTL;
    let refused = stage.actor_on(Arc::new(store)).mutex().linger(linger).acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Config(ConfigError::TtlAboveMaximum { .. })), "{refused}");
    let mut store = Deaf::new(&stage.store);
    store.promises.end = EndOfGrant::Session;
    let refused = stage.actor_on(Arc::new(store)).mutex().linger(linger).acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Config(ConfigError::NoLinger { .. })), "{refused}");
}

/// Work that is done immediately keeps its lock for a while, from other processes and from a waiter of this one. The store may fail
/// just then.
#[tokio::test(start_paused = true)]
async fn a_lock_stays_taken_for_its_least_time() {
    let (least, ttl) = (5 * TTL, TTL);
    for gate in [Gate::Open, Gate::Refuse, Gate::Hang] {
        for is_dropped in [false, true] {
            let stage = Stage::new();
            let actor = stage.actor();
            let lock = actor.locks.mutex(name()).ttl(ttl).fifo().min_hold(least);
            let (began, guard) = (stage.clock(), lock.acquire().await.unwrap());
            let (elsewhere, beside) = (stage.actor().waiting(), actor.waiting());
            stage.settle(1, 2).await;
            pass(least / 3).await;
            let (before, lease) = (actor.gates.asked(Verb::Release), guard.lease());
            actor.gates.plan(Verb::Renew, &[gate], Gate::Open);
            match is_dropped {
                true => drop(guard),
                false => assert_eq!(guard.release().await.is_ok(), gate == Gate::Open, "{gate:?}"),
            }
            assert_eq!(lease.check().unwrap_err().cause(), Loss::Released, "{gate:?}");
            assert!(actor.locks.flush(SOON + ms(2_500)).await, "{gate:?}");
            assert_eq!(actor.gates.asked(Verb::Release), before, "{gate:?}");
            let first = tokio::select! { guard = elsewhere => guard, guard = beside => guard };
            let after = stage.clock() - began;
            assert!(after >= least && after <= least + RETRY_MAX + ms(2_500), "{gate:?}: {after:?}");
            first.unwrap().release().await.unwrap();
        }
    }
}

/// Once its least time has passed, it is released as any other.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_held_for_long_enough_is_released() {
    let stage = Stage::new();
    let actor = stage.actor();
    let lock = actor.mutex().min_hold(TTL);
    let guard = lock.acquire().await.unwrap();
    pass(TTL + ms(1)).await;
    guard.release().await.unwrap();
    assert!(stage.is_free().await);
    // A lease that was lost before is told.
    let guard = lock.acquire().await.unwrap();
    stage.actor().locks.force_release(name()).await.unwrap();
    let lost = guard.release().await.unwrap_err();
    assert!(matches!(&lost, ReleaseError::AlreadyLost(lost) if lost.cause() == Loss::Taken), "{lost}");
    for linger in [TTL, ms(1)] {
        let least = if linger == TTL { Duration::from_secs(90_000) } else { TTL };
        let refused = actor.mutex().min_hold(least).linger(linger).acquire().await.unwrap_err();
        assert!(matches!(refused, AcquireError::Config(ConfigError::Ttl(_))), "{refused}");
    }
    let refused = actor.mutex().min_hold(TTL).max_hold(TTL / 2).acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Config(ConfigError::MinHoldAboveMaxHold { .. })), "{refused}");
}

/// A host that waited for a run of another one has run nothing: it releases the lock without its least time.
#[tokio::test(start_paused = true)]
async fn a_lock_under_which_nothing_ran_does_not_stay_taken() {
    let stage = Stage::new();
    let (one, other) = (stage.actor(), stage.actor());
    let job = |actor: &Actor| {
        let once = actor.locks.once(name()).interval(Duration::from_secs(3600));
        once.with(|lock| lock.ttl(TTL).min_hold(10 * TTL))
    };
    let (first, second) = (job(&one), job(&other));
    let runs = first.run(async |_| {
        stage.settle(1, 1).await;
        Ok::<(), &str>(())
    });
    let (ran, skipped) = tokio::join!(runs, second.run(async |_| Ok::<(), &str>(())));
    assert!(matches!(ran.unwrap(), RunOutcome::Ran(Ok(()))));
    assert!(matches!(skipped.unwrap(), RunOutcome::Skipped(_)));
    assert!(other.locks.flush(SOON).await && stage.is_free().await);
}

/// L8: a wall clock that was set forward ended the attempts to release what was dropped, whose lease lasted on the store.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_wall_clock_does_not_end_the_attempts_to_release() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    actor.gates.plan(Verb::Release, &[Gate::Refuse; 3], Gate::Open);
    drop(guard);
    stage.host.step_wall(20_000);
    assert!(actor.locks.flush(RETRY_MAX).await);
    assert_eq!(actor.gates.asked(Verb::Release), 4);
}

/// L8: releases that are to be tried again later keep no other one waiting.
#[tokio::test(start_paused = true)]
async fn releases_that_are_tried_again_hold_up_no_stranger() {
    let stage = Stage::new();
    let actor = stage.actor();
    let mut guards = Vec::new();
    for n in 0..=64 {
        guards.push(actor.locks.mutex(format!("job/{n}")).ttl(TTL).acquire().await.unwrap());
    }
    let stranger = guards.pop().unwrap();
    actor.gates.plan(Verb::Release, &[Gate::Refuse; 64], Gate::Open);
    // No time passes, so nothing is tried again yet.
    let asked = async || {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        actor.gates.asked(Verb::Release)
    };
    drop(guards);
    assert_eq!(asked().await, 64);
    drop(stranger);
    assert_eq!(asked().await, 65);
    assert!(actor.locks.flush(RETRY_MAX).await);
    assert_eq!(actor.gates.asked(Verb::Release), 129);
}

/// L8: `drain` said true while 6694 of 10 000 dropped guards were still held: the room for orders was bounded, and what came beyond
/// was thrown away.
#[tokio::test(start_paused = true)]
async fn drain_knows_of_each_of_ten_thousand_dropped_guards() {
    const GUARDS: usize = 10_000;
    let stage = Stage::new();
    let actor = stage.actor();
    let names: Vec<String> = (0..GUARDS).map(|n| format!("job/{n}")).collect();
    let held = async || {
        let mut held = 0;
        for name in &names {
            let name = name.parse().unwrap();
            held += stage.store.inspect(&name).await.unwrap().holders.len();
        }
        held
    };
    for gate in [Gate::Open, Gate::Refuse, Gate::Hang] {
        let mut guards = Vec::new();
        for name in &names {
            guards.push(actor.locks.mutex(name.as_str()).ttl(600 * TTL).acquire().await.unwrap());
        }
        assert_eq!(held().await, GUARDS);
        actor.gates.plan(Verb::Release, &[gate; GUARDS / 10], Gate::Open);
        drop(guards);
        assert!(!actor.locks.flush(Duration::ZERO).await, "{gate:?}");
        assert!(actor.locks.flush(60 * RETRY_MAX).await, "{gate:?}");
        assert_eq!(held().await, 0, "{gate:?}");
    }
}

/// L8: in vain, when the lease is over anyway.
#[tokio::test(start_paused = true)]
async fn the_release_of_a_dropped_guard_is_given_up_when_its_lease_is_over() {
    let (stage, actor, guard, waiting) = holder_and_waiter().await;
    actor.set(Verb::Release, Gate::Refuse);
    drop(guard);
    assert!(!actor.locks.flush(ms(100)).await, "it is still being tried");
    let (_next, after) = entry(&stage, waiting).await;
    assert!(after <= TTL + SOON, "{after:?}");
    assert!(actor.locks.flush(RETRY_MAX).await);
    let asked = actor.gates.asked(Verb::Release);
    pass(2 * TTL).await;
    assert_eq!(actor.gates.asked(Verb::Release), asked);
    assert_eq!(actor.gates.asked(Verb::Renew), 0, "a dropped guard is not renewed");
}

/// L4: a guard is dropped late, when somebody else holds.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_after_its_loss_does_not_free_the_next_holder() {
    let (stage, actor, guard, waiting) = holder_and_waiter().await;
    actor.set(Verb::Renew, Gate::Hang);
    let (next, _) = entry(&stage, waiting).await;
    assert!(guard.check().is_err());
    drop(guard);
    assert!(actor.locks.flush(TTL).await);
    assert_eq!(stage.view().await.holders[0].owner, next.owner().to_string());
    pass(2 * TTL).await;
    assert_eq!(next.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_release_frees_the_lock_at_once() {
    let (stage, _actor, guard, waiting) = holder_and_waiter().await;
    guard.release().await.unwrap();
    let (next, after) = entry(&stage, waiting).await;
    assert!(after <= SOON, "{after:?}");
    next.release().await.unwrap();
    assert!(stage.is_free().await);
}

/// L4: and says so (hazard 15).
#[tokio::test(start_paused = true)]
async fn releasing_what_is_lost_says_so_and_harms_nobody() {
    let (stage, actor, guard, waiting) = holder_and_waiter().await;
    actor.set(Verb::Renew, Gate::Hang);
    let (next, _) = entry(&stage, waiting).await;
    let answer = guard.release().await;
    assert!(
        matches!(answer, Err(ReleaseError::AlreadyLost(lost)) if lost.cause() == Loss::Expired),
        "{answer:?}"
    );
    pass(TTL).await;
    assert_eq!(next.check(), Ok(()));
}

/// Before the hint arrives that it was broken.
#[tokio::test(start_paused = true)]
async fn releasing_what_was_broken_says_so() {
    let stage = Stage::new();
    let guard = stage.actor().acquire().await;
    stage.break_lock().await;
    assert_eq!(guard.check(), Ok(()), "it has not heard of it");
    let answer = guard.release().await;
    assert!(
        matches!(answer, Err(ReleaseError::AlreadyLost(lost)) if lost.cause() == Loss::Taken),
        "{answer:?}"
    );
}

/// L9, hazard 15: nobody can say; the truth is that it was done.
#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_is_lost_is_unknown_and_tried_again() {
    let (stage, actor, guard, waiting) = holder_and_waiter().await;
    actor.set(Verb::Release, Gate::LoseReply);
    let answer = guard.release().await;
    assert!(matches!(answer, Err(ReleaseError::Unknown(_))), "{answer:?}");
    let (next, after) = entry(&stage, waiting).await;
    assert!(after <= SOON, "{after:?}");
    pass(ms(500)).await;
    assert!(actor.gates.asked(Verb::Release) >= 4, "tried again in the background");
    assert_eq!(next.check(), Ok(()), "which touches nobody else (L4)");
}

/// L8: a store that hangs holds no caller back for longer than a request may take.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_answered_is_unknown() {
    let (stage, actor, guard, waiting) = holder_and_waiter().await;
    actor.gates.plan(Verb::Release, &[Gate::Hang], Gate::Open);
    let began = stage.clock();
    let answer = guard.release().await;
    assert!(matches!(answer, Err(ReleaseError::Unknown(_))), "{answer:?}");
    assert!(stage.clock() - began <= TTL / 3 + SOON);
    assert!(entry(&stage, waiting).await.1 <= SOON, "the second try, in the background, came through");
}

/// L5, hazard 53: the renewal arrives after the release, and its answer after the next grant.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_arrives_after_the_release_resurrects_nothing() {
    for gate in [Gate::Late(ms(800)), Gate::Slow(ms(800))] {
        let (stage, actor, guard, waiting) = holder_and_waiter().await;
        actor.set(Verb::Renew, gate);
        pass(ms(3_500)).await;
        assert_eq!(actor.gates.asked(Verb::Renew), 1, "on its way");
        guard.release().await.unwrap();
        let (next, after) = entry(&stage, waiting).await;
        assert!(after <= SOON, "{gate:?}: {after:?}");
        pass(ms(2_000)).await;
        let view = stage.view().await;
        assert_eq!(view.holders.len(), 1);
        assert_eq!(view.holders[0].owner, next.owner().to_string());
        assert_eq!(next.check(), Ok(()));
        assert_eq!(actor.gates.asked(Verb::Renew), 1, "what was released is not renewed");
    }
}

/// For leases that outlive their process.
#[tokio::test(start_paused = true)]
async fn a_detached_lease_ends_by_its_ttl_or_by_its_owner() {
    let (stage, actor, guard, waiting) = holder_and_waiter().await;
    let left = guard.detach().await.unwrap();
    let (owner, token) = (left.owner(), left.token().unwrap());
    pass(TTL / 2).await;
    assert_eq!(actor.gates.asked(Verb::Renew) + actor.gates.asked(Verb::Release), 0);
    assert_eq!(actor.locks.detached(name(), owner).unwrap().renew(TTL).await.unwrap(), Renewal::Renewed);
    let (next, after) = entry(&stage, waiting).await;
    assert!(after > TTL - SOON && after <= TTL + SOON, "{after:?}");
    assert!(next.token() > token);
    assert_eq!(actor.locks.detached(name(), owner).unwrap().release().await.unwrap(), Released::WasGone);
    let owner = next.detach().await.unwrap().owner();
    assert_eq!(actor.locks.detached(name(), owner).unwrap().release().await.unwrap(), Released::Released);
    assert!(stage.is_free().await);
}

const GATES: [Gate; 6] =
    [Gate::Open, Gate::Refuse, Gate::LoseReply, Gate::Slow(ms(700)), Gate::Late(ms(700)), Gate::Hang];

/// Every way in which the release of what was dropped can go.
fn release_gates() -> [(&'static [Gate], Gate); 4] {
    [(&[], Gate::Open), (&[], Gate::LoseReply), (&[Gate::Refuse], Gate::Open), (&[], Gate::Hang)]
}

/// After a drop: everything but the `others` is gone as soon as the store answers, and after one ttl in any case (L8). A claim whose
/// outcome is unknown may come until a ttl has passed: `drain` does not say that all is released before.
async fn nothing_is_left_behind(
    (stage, actor): (&Stage, &Actor),
    others: usize,
    (answers, is_known): (bool, bool),
    case: &str,
) {
    // A claim that is still under way is waited for.
    let drained = actor.locks.flush(ms(800)).await;
    if answers {
        assert_eq!(stage.crowd().await, (others, 0), "{case}: left behind");
        assert!(drained || !is_known, "{case}: not drained");
        assert!(actor.locks.flush(3 * TTL).await, "{case}: never drained");
    }
    pass(TTL).await;
    assert_eq!(stage.crowd().await, (others, 0), "{case}: left behind for longer than a ttl");
}

/// What somebody else does meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Other {
    IsAbsent,
    Holds,
    /// And hands the lock to whoever waits.
    LeavesAfter(Duration),
}

impl Other {
    fn plays(self, stage: &Stage) -> tokio::task::JoinHandle<Option<Guard>> {
        let lock = stage.actor().lock();
        tokio::spawn(async move {
            match self {
                Self::IsAbsent => None,
                Self::Holds => Some(lock.acquire().await.unwrap()),
                Self::LeavesAfter(d) => {
                    let guard = lock.acquire().await.unwrap();
                    pass(d).await;
                    guard.release().await.unwrap();
                    None
                }
            }
        })
    }
}

/// L8, H1.8, hazard 33: an acquisition may be dropped wherever it awaits, whatever the store does with its claim and with
/// the release that follows; the lock free, held, or handed on meanwhile.
#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_dropped_anywhere_leaves_nothing_behind() {
    let mut cases = 0;
    for claim in GATES {
        for (first, then) in release_gates() {
            for other in [Other::IsAbsent, Other::Holds, Other::LeavesAfter(ms(300))] {
                for polls in 0.. {
                    let case = format!("{claim:?}, release {first:?} {then:?}, {other:?}, {polls} polls");
                    let is_over = drop_an_acquisition(claim, (first, then), other, polls, &case).await;
                    cases += 1;
                    if is_over {
                        break;
                    }
                }
            }
        }
    }
    assert!(cases > 250, "only {cases} cases");
}

async fn drop_an_acquisition(
    claim: Gate,
    (first, then): (&[Gate], Gate),
    other: Other,
    polls: usize,
    case: &str,
) -> bool {
    let stage = Stage::new();
    let actor = stage.actor();
    let played = other.plays(&stage);
    stage.settle(usize::from(other != Other::IsAbsent), 0).await;
    actor.gates.plan(Verb::Claim, &[claim], Gate::Open);
    actor.gates.plan(Verb::Release, first, then);
    let lock = actor.lock();
    let done = dropped_after(polls, lock.within(ms(3_000)).acquire()).await;
    let is_over = done.is_some();
    drop(done);
    let holder = played.await.unwrap();
    let is_known = !matches!(claim, Gate::LoseReply | Gate::Hang);
    let others = usize::from(holder.is_some());
    nothing_is_left_behind((&stage, &actor), others, (then == Gate::Open, is_known), case).await;
    assert!(holder.is_none_or(|holder| holder.check().is_ok()), "{case}: the holder was hurt");
    is_over
}

/// L8: so may a release.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_dropped_anywhere_leaves_nothing_behind() {
    let mut cases = 0;
    for gate in GATES {
        for polls in 0.. {
            let stage = Stage::new();
            let actor = stage.actor();
            let guard = actor.acquire().await;
            actor.gates.plan(Verb::Release, &[gate], Gate::Open);
            let is_over = dropped_after(polls, guard.release()).await.is_some();
            // The reaper's own request may be the one that hangs.
            pass(if polls == 0 && gate == Gate::Hang { ms(2_050) } else { ms(750) }).await;
            let case = format!("{gate:?}, {polls} polls");
            nothing_is_left_behind((&stage, &actor), 0, (true, true), &case).await;
            cases += 1;
            if is_over {
                break;
            }
        }
    }
    assert!(cases > 12, "only {cases} cases");
}

/// L8, L9: the release of a claim whose answer was lost was repeated for a whole ttl, so every 2 s for a day if that is long: and
/// after an outage each process did so for each lock. A store that answers has read by then what it had buffered.
#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_for_a_minute_and_not_for_a_long_ttl() {
    let stage = Stage::new();
    let actor = stage.actor();
    let lock = actor.locks.mutex("stage").ttl(Duration::from_secs(86_400));
    actor.gates.plan(Verb::Claim, &[Gate::LoseReply], Gate::Open);
    lock.try_acquire().await.unwrap_err();
    assert!(!actor.locks.flush(Duration::from_secs(50)).await, "it may be granted yet");
    assert!(actor.locks.flush(Duration::from_secs(20)).await);
    assert!(stage.is_free().await);
    // The same behind an outage of two hours: it is over some seconds after that.
    actor.gates.plan(Verb::Claim, &[Gate::LoseReply], Gate::Open);
    actor.set(Verb::Release, Gate::Hang);
    lock.try_acquire().await.unwrap_err();
    pass(Duration::from_secs(7200)).await;
    actor.set(Verb::Release, Gate::Open);
    assert!(!actor.locks.flush(ms(4_000)).await, "a server that hung may have it before it yet");
    assert!(actor.locks.flush(ms(8_000)).await);
    assert!(stage.is_free().await);
}

/// L8, L9: a guard is released behind a claim of its owner without an answer, and the store hangs until a minute is over. The
/// release was given up then, though the claim may be granted when the store goes on: the lock was nobody's for a day.
#[tokio::test(start_paused = true)]
async fn a_release_behind_an_unknown_claim_outlasts_an_outage_of_a_minute() {
    let stage = Stage::new();
    let actor = stage.actor();
    actor.gates.plan(Verb::Claim, &[Gate::LoseReply], Gate::Open);
    let guard = actor.locks.mutex("stage").ttl(Duration::from_secs(86_400)).acquire().await.unwrap();
    let buffered = stage.view().await.holders[0].owner.parse().unwrap();
    pass(ms(9_000)).await;
    guard.release().await.unwrap();
    assert!(stage.is_free().await);
    actor.set(Verb::Release, Gate::Hang);
    pass(ms(53_000)).await;
    // It goes on, and reads what it had buffered.
    let late = stage.actor().locks.mutex("stage").ttl(Duration::from_secs(86_400)).owner(buffered);
    late.acquire().await.unwrap().detach().await.unwrap();
    assert!(!actor.locks.flush(ms(1_000)).await);
    actor.set(Verb::Release, Gate::Open);
    assert!(actor.locks.flush(ms(20_000)).await);
    assert!(stage.is_free().await);
}

/// L1: its release came late, and ended the lease that the same process had acquired under the owner again.
#[tokio::test(start_paused = true)]
async fn an_owner_that_is_still_released_is_not_chosen_again() {
    let stage = Stage::new();
    let actor = stage.actor();
    let lock = actor.lock().owner(actor.locks.new_owner());
    let guard = lock.acquire().await.unwrap();
    actor.gates.plan(Verb::Release, &[Gate::Late(ms(300))], Gate::Open);
    drop(guard);
    pass(ms(100)).await;
    let refused = lock.try_acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Config(ConfigError::OwnerInUse { .. })), "{refused}");
    let refused = lock.clone().within(ms(50)).acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Config(ConfigError::OwnerInUse { .. })), "{refused}");
    let again = lock.acquire().await.unwrap();
    pass(TTL).await;
    again.check().unwrap();
    again.release().await.unwrap();
    assert!(stage.is_free().await);
}

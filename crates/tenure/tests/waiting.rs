//! Waiting for a lock: the queue, hints, deadlines, stores that fail meanwhile.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure::{AcquireError, FencingToken, Guard, Progress};
use tenure::{ErrorKind, backend::Sharing};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
    polls::is_pending,
};

use crate::stage::{Actor, CLAIM_TTL, Deaf, RETRY_MAX, SOON, Stage, TTL, in_time, ms};

/// In which order who entered, with which token.
type Entries = Arc<Mutex<Vec<(usize, FencingToken)>>>;

/// Waits, notes its entry, and leaves.
fn visitor(actor: &Actor, number: usize, entries: &Entries) -> tokio::task::JoinHandle<()> {
    let (lock, entries) = (actor.lock(), entries.clone());
    tokio::spawn(async move {
        let guard = in_time(lock.acquire()).await.unwrap();
        entries.lock().unwrap().push((number, guard.token()));
        pass(ms(10)).await;
        guard.release().await.unwrap();
    })
}

/// L2, L6, L7: ten waiters of two processes; the sixth leaves while it waits (H1.8).
#[tokio::test(start_paused = true)]
async fn waiters_enter_in_the_order_in_which_they_came() {
    let stage = Stage::new();
    let actors = [stage.actor(), stage.actor()];
    let guard = actors[0].acquire().await;
    let entries = Entries::default();
    let mut visitors = Vec::new();
    for number in 0..10 {
        visitors.push(visitor(&actors[number % 2], number, &entries));
        stage.settle(1, number + 1).await;
    }
    visitors[5].abort();
    stage.settle(1, 9).await;
    let began = stage.clock();
    guard.release().await.unwrap();
    for (number, visitor) in visitors.into_iter().enumerate() {
        assert_eq!(visitor.await.is_err(), number == 5);
    }
    let entries = entries.lock().unwrap().clone();
    let order: Vec<usize> = entries.iter().map(|(number, _)| *number).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 6, 7, 8, 9]);
    assert!(entries.is_sorted_by(|(_, a), (_, b)| a < b), "L2: {entries:?}");
    assert!(stage.clock() - began < ms(9 * 12 + 10), "each hand-off is woken: {:?}", stage.clock() - began);
    assert!(stage.is_free().await);
}

/// L6, H1.6: one change of owner costs the same however many wait: the next one's claim, and that of the one behind.
#[tokio::test(start_paused = true)]
async fn a_hand_off_costs_the_same_however_many_wait() {
    for waiters in [3, 30] {
        let stage = Stage::new();
        let actors = [stage.actor(), stage.actor()];
        let guard = actors[0].acquire().await;
        let entries = Entries::default();
        let visitors: Vec<_> = (0..waiters).map(|n| visitor(&actors[n % 2], n, &entries)).collect();
        stage.settle(1, waiters).await;
        let claims = || actors.iter().map(|actor| actor.gates.asked(Verb::Claim)).sum::<usize>();
        let before = claims();
        guard.release().await.unwrap();
        stage.settle(1, waiters - 1).await;
        pass(ms(1)).await;
        assert_eq!(claims() - before, 2, "with {waiters} waiters");
        for visitor in visitors {
            visitor.await.unwrap();
        }
    }
}

/// L6, hazard 33: the dead one is skipped when the time to enter is over.
#[tokio::test(start_paused = true)]
async fn a_dead_waiter_costs_its_successor_the_claim_ttl_at_most() {
    let stage = Stage::new();
    let (actor, dead, next) = (stage.actor(), stage.actor(), stage.actor());
    let guard = actor.acquire().await;
    let dying = dead.waiting();
    stage.settle(1, 1).await;
    let waiting = next.waiting();
    stage.settle(1, 2).await;
    dead.die();
    dying.abort();
    let began = stage.clock();
    guard.release().await.unwrap();
    waiting.await.unwrap().check().unwrap();
    let took = stage.clock() - began;
    assert!(took <= CLAIM_TTL + SOON && took >= CLAIM_TTL, "{took:?}");
}

/// L6, H1.8: a waiter that leaves when it was just handed the lock hands it on.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_when_its_turn_has_come_hands_on_at_once() {
    let stage = Stage::new();
    let guard = stage.actor().acquire().await;
    let (leaving, next) = (stage.actor(), stage.actor());
    let lock = leaving.lock();
    let mut wait = Box::pin(async move { lock.acquire().await });
    // Polled once: it has a place. Not polled again: its turn comes, and it does not know.
    assert!(is_pending(&mut wait).await);
    stage.settle(1, 1).await;
    let waiting = next.waiting();
    stage.settle(1, 2).await;
    guard.release().await.unwrap();
    assert_eq!(stage.view().await.holders[0].token, None, "handed, not entered (H1.1)");
    drop(wait);
    let began = stage.clock();
    waiting.await.unwrap().check().unwrap();
    assert!(stage.clock() - began <= SOON);
}

/// L6, H1.6, H1.7.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_hears_no_hint_enters_by_its_timer() {
    let stage = Stage::new();
    let deaf = stage.actor_on(Arc::new(Deaf::new(&stage.store)));
    let guard = stage.actor().acquire().await;
    let waiting = deaf.waiting();
    stage.settle(1, 1).await;
    pass(ms(100)).await;
    let began = stage.clock();
    guard.release().await.unwrap();
    waiting.await.unwrap().check().unwrap();
    let took = stage.clock() - began;
    assert!(took > ms(1_000) && took <= RETRY_MAX, "{took:?}");
}

/// L6: after a connection was lost, say, everybody asks; once.
#[tokio::test(start_paused = true)]
async fn everybody_asks_when_hints_may_have_been_missed() {
    let stage = Stage::new();
    let deaf = Deaf::new(&stage.store);
    let actor = stage.actor_on(Arc::new(deaf.clone()));
    let guard = stage.actor().acquire().await;
    let waiting = [actor.waiting(), actor.waiting(), actor.waiting()];
    stage.settle(1, 3).await;
    guard.release().await.unwrap();
    pass(ms(100)).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "nobody heard of it");
    deaf.missed.notify_waiters();
    pass(ms(10)).await;
    assert_eq!(waiting.iter().filter(|waiting| waiting.is_finished()).count(), 1);
    assert_eq!(actor.gates.asked(Verb::Claim), 6);
}

/// L6: one waiter reads the hints for all of its process. If its task is busy with something else, the others enter by
/// their timers.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_not_polled_delays_the_others_by_a_timer_at_most() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let _elsewhere = other.locks.mutex("elsewhere").acquire().await.unwrap();
    let lock = actor.locks.mutex("elsewhere");
    let mut lazy = pin!(lock.acquire());
    assert!(is_pending(&mut lazy).await);
    let guard = other.acquire().await;
    let waiting = actor.waiting();
    stage.settle(1, 1).await;
    let began = stage.clock();
    guard.release().await.unwrap();
    waiting.await.unwrap().check().unwrap();
    assert!(stage.clock() - began <= RETRY_MAX + SOON);
}

/// L6, hazard 31: the hint overtakes the answer, and somebody else of the process reads it.
#[tokio::test(start_paused = true)]
async fn a_hint_that_comes_before_the_answer_to_the_claim_is_kept() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let _elsewhere = other.locks.mutex("elsewhere").acquire().await.unwrap();
    let lock = actor.locks.mutex("elsewhere");
    let reader = tokio::spawn(async move { lock.acquire().await });
    pass(ms(100)).await;
    let guard = other.acquire().await;
    actor.gates.plan(Verb::Claim, &[Gate::Slow(ms(300))], Gate::Open);
    let waiting = actor.waiting();
    stage.settle(1, 1).await;
    let began = stage.clock();
    guard.release().await.unwrap();
    waiting.await.unwrap().check().unwrap();
    assert!(stage.clock() - began <= ms(300) + SOON, "{:?}", stage.clock() - began);
    reader.abort();
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_too_long_is_told_who_holds_and_leaves_nothing() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let guard = other.acquire().await;
    let progress = Progress::new();
    let began = stage.clock();
    let answer = actor.lock().progress(&progress).within(ms(3_500)).acquire().await;
    let Err(AcquireError::TimedOut { waited, ahead, holder: Some(holder) }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(holder.owner, guard.owner().to_string());
    assert_eq!(holder.token, Some(guard.token()));
    assert_eq!(ahead, Some(0));
    assert!(waited >= ms(3_500) && stage.clock() - began <= ms(3_500) + SOON, "{waited:?}");
    assert_eq!(stage.crowd().await, (1, 0));
    let shown = progress.latest().unwrap();
    assert_eq!(shown.holder.unwrap().owner, holder.owner);
}

#[tokio::test(start_paused = true)]
async fn who_asks_once_gets_the_lock_or_nothing() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let guard = actor.lock().try_acquire().await.unwrap().expect("it was free");
    assert!(other.lock().try_acquire().await.unwrap().is_none());
    assert_eq!(stage.crowd().await, (1, 0), "no place was taken");
    assert_eq!(other.gates.asked(Verb::Claim), 1);
    assert_eq!(guard.check(), Ok(()));
    other.set(Verb::Claim, Gate::Refuse);
    let began = stage.clock();
    let answer = other.lock().try_acquire().await;
    assert!(matches!(answer, Err(AcquireError::Store(_))), "an error is not busy (hazard 62): {answer:?}");
    assert_eq!(stage.clock(), began);
}

/// L8: and a late claim may have been applied.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_does_not_hold_back_who_wants_to_wait_for_less() {
    for budget in [ms(300), ms(2_000), ms(5_000)] {
        let stage = Stage::new();
        let actor = stage.actor();
        actor.die();
        let began = stage.clock();
        let answer = actor.lock().within(budget).acquire().await;
        assert!(
            matches!(&answer, Err(AcquireError::Store(e)) if e.kind() == ErrorKind::TimedOut),
            "{answer:?}"
        );
        let took = stage.clock() - began;
        assert!(took >= budget && took <= budget + ms(150), "{budget:?}: {took:?}");
    }
}

/// L6: a fail-over is waited for, and for no longer than one is willing to.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_borne_for_the_patience() {
    for gate in [Gate::Refuse, Gate::LoseReply, Gate::Hang] {
        let stage = Stage::new();
        let actor = stage.actor();
        let _held = stage.actor().acquire().await;
        actor.set(Verb::Claim, gate);
        let began = stage.clock();
        let answer = in_time(actor.lock().patience(ms(8_000)).acquire()).await;
        assert!(matches!(answer, Err(AcquireError::Store(_))), "{gate:?}: {answer:?}");
        let took = stage.clock() - began;
        // Counted from the first failure; besides, one back-off and two requests.
        assert!(took >= ms(8_000) && took <= ms(8_000) + RETRY_MAX + 2 * TTL / 3, "{gate:?}: {took:?}");
        assert_eq!(stage.crowd().await, (1, 0), "{gate:?} left something (L8)");
    }
}

/// By default as long as one waits, and 30 s if that is for ever.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_borne_for_as_long_as_one_waits() {
    let stage = Stage::new();
    let actor = stage.actor();
    actor.set(Verb::Claim, Gate::Refuse);
    let (short, long) = (actor.lock(), actor.lock());
    let began = stage.clock();
    let patient = tokio::spawn(async move { long.within(ms(60_000)).acquire().await });
    let answer = in_time(short.acquire()).await;
    assert!(matches!(answer, Err(AcquireError::Store(_))), "{answer:?}");
    let took = stage.clock() - began;
    assert!(took >= ms(30_000) && took <= ms(30_000) + RETRY_MAX, "{took:?}");
    pass(ms(15_000)).await;
    actor.set(Verb::Claim, Gate::Open);
    assert!(in_time(patient).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_for_a_while_is_waited_for() {
    for gate in [Gate::Refuse, Gate::LoseReply, Gate::Hang, Gate::Late(ms(9_000))] {
        let stage = Stage::new();
        let actor = stage.actor();
        actor.gates.plan(Verb::Claim, &[gate; 4], Gate::Open);
        let guard = actor.acquire().await;
        assert_eq!(guard.check(), Ok(()));
        let view = stage.view().await;
        assert_eq!(view.holders.len(), 1);
        assert_eq!(view.holders[0].owner, guard.owner().to_string());
    }
}

/// Hazard 14, H1.2, H1.3: we hold it already and do not know. Asking again under the same owner is granted anew.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_does_not_wait_for_itself() {
    let stage = Stage::new();
    let actor = stage.actor();
    actor.gates.plan(Verb::Claim, &[Gate::LoseReply], Gate::Open);
    let began = stage.clock();
    let guard = actor.acquire().await;
    assert!(stage.clock() - began <= ms(21));
    assert_eq!(actor.gates.asked(Verb::Release), 0);
    assert!(guard.remaining() > TTL - ms(110), "counted from the second request, which extended");
    assert_eq!(stage.view().await.holders[0].token, Some(guard.token()));
}

/// Hazards 12, 44, H3.4: what comes too late to be believed is given back, and asked for under a new owner, so that the
/// release can never touch what is granted next.
#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_too_late_is_given_back_and_asked_for_under_a_new_owner() {
    let stage = Stage::new();
    let actor = stage.actor();
    actor.gates.plan(Verb::Claim, &[Gate::Slow(ms(98))], Gate::Open);
    actor.gates.plan(Verb::Release, &[Gate::LoseReply, Gate::Late(ms(40))], Gate::Open);
    let lock = actor.locks.mutex("stage").ttl(ms(100));
    let waiting = tokio::spawn(async move { in_time(lock.acquire()).await.unwrap() });
    stage.settle(1, 0).await;
    let first = stage.view().await.holders[0].owner.clone();
    let guard = waiting.await.unwrap();
    assert_eq!(actor.gates.asked(Verb::Claim), 2);
    assert_ne!(guard.owner().to_string(), first);
    pass(TTL).await;
    assert_eq!(actor.gates.asked(Verb::Release), 2, "the release was tried again, and arrived late");
    assert_eq!(guard.check(), Ok(()));
}

/// L8: what was granted has the name that the store gave it, a slot of a semaphore, and is given back by that name.
#[tokio::test(start_paused = true)]
async fn a_slot_that_comes_too_late_is_given_back_by_its_own_name() {
    let stage = Stage::new();
    let mut store = Deaf::new(&stage.store);
    store.promises.sharing = Sharing::Slots { most: 8 };
    let actor = stage.actor_on(Arc::new(store));
    actor.gates.plan(Verb::Claim, &[Gate::Slow(ms(98))], Gate::Open);
    let began = stage.clock();
    let lock = actor.locks.semaphore("stage", 1).ttl(ms(100));
    let guard = in_time(lock.acquire()).await.unwrap();
    assert_eq!(guard.name().as_str(), "stage#1");
    assert_eq!((actor.gates.asked(Verb::Claim), actor.gates.asked(Verb::Release)), (2, 1));
    assert!(stage.clock() - began < ms(110), "{:?}: the first lease had to end", stage.clock() - began);
}

/// Hazard 41.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_slower_than_the_ttl_is_an_error_and_no_livelock() {
    let stage = Stage::new();
    let actor = stage.actor();
    actor.set(Verb::Claim, Gate::Slow(ms(120)));
    for budget in [None, Some(ms(60_000)), Some(Duration::ZERO)] {
        let lock = actor.locks.mutex("stage").ttl(ms(100));
        let began = stage.clock();
        let answer = match budget {
            None => in_time(lock.acquire()).await.map(drop),
            Some(budget) => lock.within(budget).acquire().await.map(drop),
        };
        assert!(
            matches!(&answer, Err(AcquireError::Store(e)) if e.kind() == ErrorKind::Invalid),
            "{answer:?}"
        );
        assert!(stage.clock() - began <= ms(400));
        assert!(stage.is_free().await, "L8");
    }
}

/// L1, L2, L6: readers together, a writer alone, and nobody overtakes the writer.
#[tokio::test(start_paused = true)]
async fn readers_share_and_a_writer_that_waits_comes_before_later_readers() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let (lock, theirs) = (actor.locks.rwlock("stage"), other.locks.rwlock("stage"));
    let readers = [lock.read().acquire().await.unwrap(), theirs.read().acquire().await.unwrap()];
    let write = theirs.write();
    let writing = tokio::spawn(async move { in_time(write.acquire()).await.unwrap() });
    stage.settle(2, 1).await;
    assert!(lock.read().try_acquire().await.unwrap().is_none(), "the writer is not overtaken");
    let [first, second] = readers;
    first.release().await.unwrap();
    assert!(!writing.is_finished());
    second.release().await.unwrap();
    let writer = writing.await.unwrap();
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    writer.release().await.unwrap();
    assert!(lock.read().try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_semaphore_lets_in_as_many_as_it_has_slots() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let slots: Vec<Guard> = [
        actor.locks.semaphore("stage", 2).acquire().await.unwrap(),
        other.locks.semaphore("stage", 2).acquire().await.unwrap(),
    ]
    .into();
    assert!(slots[0].token() < slots[1].token());
    let third = other.locks.semaphore("stage", 2);
    let waiting = tokio::spawn(async move { in_time(third.acquire()).await.unwrap() });
    stage.settle(2, 1).await;
    drop(slots);
    let began = stage.clock();
    waiting.await.unwrap().check().unwrap();
    assert!(stage.clock() - began <= SOON);
}

/// A store that hangs was not seen to do so before its request timed out: those who watch a wait could not say why it lasts.
#[tokio::test(start_paused = true)]
async fn a_store_without_an_answer_is_seen_since_the_first_request_that_has_none() {
    let stage = Stage::new();
    let (actor, progress) = (stage.actor(), Progress::new());
    actor.gates.plan(Verb::Claim, &[Gate::Hang, Gate::Refuse, Gate::Refuse], Gate::Open);
    assert_eq!(progress.unanswered_since(), None);
    let lock = actor.lock().progress(&progress);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    pass(ms(50)).await;
    let since = progress.unanswered_since();
    assert!(since.is_some() && progress.latest().is_none(), "it may still answer");
    pass(TTL / 3).await;
    assert!(progress.latest().unwrap().failing.is_some(), "the request timed out");
    assert_eq!(progress.unanswered_since(), since, "and the next one is not the first");
    let guard = in_time(waiting).await.unwrap().unwrap();
    assert_eq!(progress.unanswered_since(), None);
    drop(guard);
    // What nobody waited for is not taken for the next one's trouble.
    actor.gates.plan(Verb::Claim, &[Gate::Hang], Gate::Open);
    let given_up = Arc::new(actor.lock().progress(&progress));
    let waiting = tokio::spawn({
        let lock = given_up.clone();
        async move { lock.acquire().await.map(drop) }
    });
    pass(ms(50)).await;
    let old = progress.unanswered_since().unwrap();
    waiting.abort();
    pass(TTL).await;
    actor.gates.plan(Verb::Claim, &[Gate::Hang], Gate::Open);
    let waiting = tokio::spawn(async move { given_up.acquire().await.map(drop) });
    pass(ms(50)).await;
    let new = progress.unanswered_since().unwrap();
    assert!(old.elapsed(new) >= TTL, "{new:?} is not after {old:?}");
    waiting.abort();
}

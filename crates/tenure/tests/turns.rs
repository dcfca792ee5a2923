//! Local turns: the waiters of one process have one place in the store's queue, and pass a lease on to each other.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure::{AcquireError, FencingToken, Lock, Loss, OwnerId};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
    polls::is_pending,
};

use crate::stage::{Actor, CLAIM_TTL, RETRY_MAX, SOON, Stage, TTL, in_time, ms};

/// How many turns there are after the first holder, and how long after it entered.
const TURNS: usize = 128;
const WITHIN: Duration = ms(10);

/// Who entered, with which lease and which token, and when.
#[derive(Clone, Debug)]
struct Entry {
    who: usize,
    owner: OwnerId,
    token: FencingToken,
    at: Duration,
}

type Entries = Arc<Mutex<Vec<Entry>>>;

/// Waits for this lock, notes the entry, and leaves after `hold`.
fn visitor(
    stage: &Stage,
    lock: Lock,
    who: usize,
    hold: impl Fn(usize) -> Duration + Send + 'static,
    entries: &Entries,
) -> tokio::task::JoinHandle<()> {
    let (stage, entries) = (stage.clone(), entries.clone());
    tokio::spawn(async move {
        let guard = in_time(lock.acquire()).await.unwrap();
        guard.check().unwrap();
        let (owner, token, at) = (stage.holder().await, guard.token(), stage.clock());
        entries.lock().unwrap().push(Entry { who, owner, token, at });
        if !hold(who).is_zero() {
            pass(hold(who)).await;
        }
        guard.release().await.unwrap();
    })
}

/// Visitors who all wait behind one that holds; what they did once it let go.
async fn let_in(
    stage: &Stage,
    actor: &Actor,
    visitors: usize,
    hold: impl Fn(usize) -> Duration + Copy + Send + 'static,
    lock: impl Fn() -> Lock,
) -> Vec<Entry> {
    let (first, entries) = (actor.acquire().await, Entries::default());
    let waiting: Vec<_> = (0..visitors).map(|who| visitor(stage, lock(), who, hold, &entries)).collect();
    stage.settle(1, 1).await;
    first.release().await.unwrap();
    for visitor in waiting {
        visitor.await.unwrap();
    }
    assert!(stage.is_free().await, "L8: nothing is left");
    entries.lock().unwrap().clone()
}

fn leases(entries: &[Entry]) -> usize {
    entries.iter().map(|entry| entry.owner).collect::<BTreeSet<_>>().len()
}

/// L2 and L7: in the order in which they came, each with a larger token than the one before.
fn assert_orderly(entries: &[Entry]) {
    assert!(entries.iter().enumerate().all(|(at, entry)| entry.who == at), "L7: {entries:?}");
    assert!(entries.is_sorted_by(|a, b| a.token < b.token), "L2: {entries:?}");
}

/// L2, L7, H5.2: one lease serves 129, and costs three requests.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_process_share_a_lease() {
    let stage = Stage::new();
    let actor = stage.actor();
    let asked = || (actor.gates.asked(Verb::Claim), actor.gates.asked(Verb::Release));
    // Tokens are times: none is left for a block in the same instant.
    let hold = |who| if who % (TURNS + 1) == TURNS { ms(1) } else { Duration::ZERO };
    let entries = let_in(&stage, &actor, 3 * (TURNS + 1), hold, || actor.mutex()).await;
    assert_orderly(&entries);
    assert_eq!(leases(&entries), 3, "{entries:?}");
    // For each lease a claim of a place, the claim that enters, and a release.
    let (claims, releases) = asked();
    assert!(claims <= 1 + 2 * 3 && releases == 1 + 3, "{claims} claims and {releases} releases");
}

/// L7: without turns the queue of the process is still one, and each lease has one holder.
#[tokio::test(start_paused = true)]
async fn in_strict_order_each_has_a_lease_of_its_own() {
    let stage = Stage::new();
    let actor = stage.actor();
    let entries = let_in(&stage, &actor, 10, |_| Duration::ZERO, || actor.mutex().fifo()).await;
    assert_orderly(&entries);
    assert_eq!(leases(&entries), 10);
}

/// H5.5: time counts from the acquisition, not from the last turn.
#[tokio::test(start_paused = true)]
async fn no_turn_is_passed_later_than_ten_milliseconds_after_the_lease_was_acquired() {
    let stage = Stage::new();
    let actor = stage.actor();
    let entries = let_in(&stage, &actor, 12, |_| ms(4), || actor.mutex()).await;
    assert_orderly(&entries);
    // At 0, 4 and 8 ms; that one leaves at 12.
    let mut by_lease: Vec<Vec<Duration>> = Vec::new();
    for pair in entries.chunk_by(|a, b| a.owner == b.owner) {
        by_lease.push(pair.iter().map(|entry| entry.at - pair[0].at).collect());
    }
    assert_eq!(by_lease, vec![vec![ms(0), ms(4), ms(8)]; 4]);
}

/// L6, L7, H5.5: whoever waits elsewhere is passed by one lease and no more.
#[tokio::test(start_paused = true)]
async fn a_waiter_of_another_process_is_passed_by_one_lease_only() {
    let stage = Stage::new();
    let (busy, other) = (stage.actor(), stage.actor());
    let (first, entries) = (busy.acquire().await, Entries::default());
    let waiting: Vec<_> =
        (0..20).map(|who| visitor(&stage, busy.mutex(), who, |_| ms(3), &entries)).collect();
    stage.settle(1, 1).await;
    let elsewhere = visitor(&stage, other.mutex(), 1000, |_| ms(3), &entries);
    stage.settle(1, 2).await;
    let began = stage.clock();
    first.release().await.unwrap();
    for visitor in waiting.into_iter().chain([elsewhere]) {
        visitor.await.unwrap();
    }
    let entries = entries.lock().unwrap().clone();
    let at = entries.iter().position(|entry| entry.who == 1000).unwrap();
    assert_eq!(leases(&entries[..at]), 1, "{entries:?}");
    assert!(entries[at].at - began <= WITHIN + ms(3) + SOON, "{:?}", entries[at].at - began);
    assert!(entries.is_sorted_by(|a, b| a.token < b.token), "L2: {entries:?}");
}

/// A waiter is not given a lease other than it asked for, and nobody overtakes it.
#[tokio::test(start_paused = true)]
async fn only_a_lease_like_the_one_that_was_asked_for_is_passed_on() {
    let stage = Stage::new();
    let actor = stage.actor();
    let locks = |who: usize| match who % 5 {
        1 => actor.mutex().ttl(2 * TTL),
        2 => actor.mutex().max_hold(TTL),
        3 => actor.mutex().label(tenure::Label::new("host", 1, "user", "other")),
        4 => actor.mutex().fifo(),
        _ => actor.mutex(),
    };
    let (first, entries) = (actor.acquire().await, Entries::default());
    let waiting: Vec<_> =
        (0..10).map(|who| visitor(&stage, locks(who), who, |_| Duration::ZERO, &entries)).collect();
    stage.settle(1, 1).await;
    first.release().await.unwrap();
    for visitor in waiting {
        visitor.await.unwrap();
    }
    let entries = entries.lock().unwrap().clone();
    assert_orderly(&entries);
    assert_eq!(leases(&entries), 10, "{entries:?}");
}

/// Waits in a task of its own.
fn wait(lock: Lock) -> tokio::task::JoinHandle<tenure::Guard> {
    tokio::spawn(async move { in_time(lock.acquire()).await.unwrap() })
}

/// A holder, a waiter of its process that is next, and another one behind it.
async fn three(stage: &Stage, actor: &Actor) -> (tenure::Guard, [tokio::task::JoinHandle<tenure::Guard>; 2]) {
    let first = actor.acquire().await;
    let holder = wait(actor.mutex());
    stage.settle(1, 1).await;
    let waiting = [wait(actor.mutex()), wait(actor.mutex())];
    tokio::task::yield_now().await;
    first.release().await.unwrap();
    (holder.await.unwrap(), waiting)
}

/// H1.8: a turn is passed by a guard that is dropped as well, and by a waiter that leaves before it has seen it.
#[tokio::test(start_paused = true)]
async fn a_turn_that_nobody_takes_goes_to_the_next_one() {
    let stage = Stage::new();
    let actor = stage.actor();
    let (holder, [next, behind]) = three(&stage, &actor).await;
    let (owner, lease) = (stage.holder().await, holder.lease());
    // Passed to a task that is aborted before it runs.
    drop(holder);
    next.abort();
    assert_eq!(lease.check().unwrap_err().cause(), Loss::Released);
    let guard = behind.await.unwrap();
    assert_eq!(stage.holder().await, owner);
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert!(stage.is_free().await);
}

/// L1, L5: what was broken is not passed on, and whoever waits goes on.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_is_not_passed_on() {
    let stage = Stage::new();
    let actor = stage.actor();
    let (holder, waiting) = three(&stage, &actor).await;
    let owner = stage.holder().await;
    stage.break_lock().await;
    let lost = in_time(holder.lost()).await;
    assert_eq!(lost.cause(), Loss::Taken);
    drop(holder);
    for waiter in waiting {
        let guard = in_time(waiter).await.unwrap();
        assert_ne!(stage.holder().await, owner);
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}

/// H5.1: near its end a lease is given back to the store, which makes a new one.
#[tokio::test(start_paused = true)]
async fn a_lease_with_less_than_two_thirds_left_is_not_passed_on() {
    let stage = Stage::new();
    let actor = stage.actor();
    let first = actor.acquire().await;
    let holder = wait(actor.mutex());
    stage.settle(1, 1).await;
    let next = wait(actor.mutex());
    // The grant arrives when a third of the lease is over, and just in time to be waited for.
    actor.gates.plan(Verb::Claim, &[Gate::Slow(ms(3_300))], Gate::Open);
    first.release().await.unwrap();
    let holder = holder.await.unwrap();
    let owner = stage.holder().await;
    holder.release().await.unwrap();
    let guard = next.await.unwrap();
    assert_ne!(stage.holder().await, owner);
    guard.release().await.unwrap();
}

/// L6: a lease that was passed to somebody who is not polled is given back after the claim ttl, as if the store had handed it
/// on. Waiters here and elsewhere enter then.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_not_polled_keeps_the_others_for_a_claim_ttl() {
    for is_elsewhere in [false, true] {
        let stage = Stage::new();
        let (actor, other) = (stage.actor(), stage.actor());
        let first = actor.acquire().await;
        let front = wait(actor.mutex());
        stage.settle(1, 1).await;
        let lock = actor.mutex();
        let mut stuck = Box::pin(lock.acquire());
        assert!(is_pending(&mut stuck).await);
        let behind = wait(if is_elsewhere { other.mutex() } else { actor.mutex() });
        tokio::task::yield_now().await;
        first.release().await.unwrap();
        front.await.unwrap().release().await.unwrap();
        let began = stage.clock();
        let guard = behind.await.unwrap();
        let waited = stage.clock() - began;
        assert!(waited <= CLAIM_TTL + RETRY_MAX + SOON, "elsewhere: {is_elsewhere}; {waited:?}");
        guard.release().await.unwrap();
        // What it was passed is over, and it asks for another one.
        in_time(stuck).await.unwrap().release().await.unwrap();
        assert!(stage.is_free().await);
    }
}

/// L6: a first waiter that is to ask the store and is not polled is passed over.
#[tokio::test(start_paused = true)]
async fn a_first_waiter_that_is_not_polled_is_passed_over() {
    let stage = Stage::new();
    let actor = stage.actor();
    let first = actor.acquire().await;
    let lock = actor.mutex();
    let mut stuck = Box::pin(lock.acquire());
    assert!(is_pending(&mut stuck).await);
    stage.settle(1, 1).await;
    let behind = wait(actor.mutex());
    tokio::task::yield_now().await;
    first.release().await.unwrap();
    let began = stage.clock();
    let guard = behind.await.unwrap();
    let waited = stage.clock() - began;
    assert!(waited <= 3 * RETRY_MAX, "{waited:?}");
    guard.release().await.unwrap();
    in_time(stuck).await.unwrap().release().await.unwrap();
}

/// A store that failed somebody with little patience has not failed those who have more.
#[tokio::test(start_paused = true)]
async fn a_failure_is_told_to_those_whose_patience_it_has_outlasted() {
    let stage = Stage::new();
    let actor = stage.actor();
    let first = actor.acquire().await;
    let hasty = actor.mutex();
    let hasty = tokio::spawn(async move { hasty.within(ms(200)).acquire().await.map(drop) });
    stage.settle(1, 1).await;
    let (patient, waiting) = (wait(actor.mutex()), wait(actor.mutex()));
    actor.set(Verb::Claim, Gate::Refuse);
    let refused = hasty.await.unwrap().unwrap_err();
    assert!(matches!(refused, AcquireError::Store(_) | AcquireError::TimedOut { .. }), "{refused:?}");
    pass(ms(500)).await;
    actor.set(Verb::Claim, Gate::Open);
    first.release().await.unwrap();
    for waiter in [patient, waiting] {
        waiter.await.unwrap().release().await.unwrap();
    }
}

/// L4: by its owner a former holder could end the lease of the one that it was passed to.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_passed_on_is_not_ended_by_its_owner() {
    let stage = Stage::new();
    let actor = stage.actor();
    let (holder, [next, behind]) = three(&stage, &actor).await;
    let owner = stage.holder().await;
    holder.release().await.unwrap();
    let guard = next.await.unwrap();
    let refused = actor.locks.detached("stage", owner).unwrap().release().await.unwrap_err();
    assert_eq!(refused.kind(), tenure::ErrorKind::Invalid);
    assert!(actor.locks.detached("stage", owner).unwrap().renew(TTL).await.is_err());
    guard.check().unwrap();
    assert_eq!(stage.crowd().await.0, 1, "it is held");
    guard.release().await.unwrap();
    behind.await.unwrap().release().await.unwrap();
    // Nothing is left to be refused: it is over.
    assert_eq!(
        actor.locks.detached("stage", owner).unwrap().release().await.unwrap(),
        tenure::backend::Released::WasGone
    );
}

/// A wait behind others of its process that timed out named no holder, although that was this process.
#[tokio::test(start_paused = true)]
async fn a_wait_behind_this_process_names_it_as_the_holder() {
    let stage = Stage::new();
    let actor = stage.actor();
    let (mut waiting, mut named) = (Vec::new(), 0);
    for _ in 0..50 {
        let lock = actor.mutex();
        waiting.push(tokio::spawn(async move {
            let guard = lock.within(ms(62)).acquire().await?;
            pass(ms(5)).await;
            guard.release().await.unwrap();
            Ok::<(), AcquireError>(())
        }));
    }
    for waiter in waiting {
        let Err(refused) = waiter.await.unwrap() else { continue };
        let AcquireError::TimedOut { holder, .. } = refused else { panic!("{refused:?}") };
        let holder = holder.expect("a holder is known");
        assert!(holder.is_this_process && holder.token.is_some() && holder.label.is_some(), "{holder:?}");
        assert!(holder.expires_in.is_some_and(|left| left > TTL / 2), "{holder:?}");
        named += 1;
    }
    assert!(named > 20, "only {named} timed out");
}

/// L1, L4: an owner that was released with `Ok` still named the lease that was passed on: another process could go on with it, and the
/// two were inside at the same time, or end it under its holder.
#[tokio::test(start_paused = true)]
async fn an_owner_that_somebody_knows_names_no_other_holders_lease() {
    for idles in [false, true] {
        let stage = Stage::new();
        let (actor, elsewhere) = (stage.actor(), stage.actor());
        let lock = || if idles { actor.mutex().keep_idle(ms(60_000)) } else { actor.mutex() };
        for _ in 0..3 {
            // What is kept idle is heard of from the second lease on.
            lock().acquire().await.unwrap().release().await.unwrap();
            pass(ms(50)).await;
        }
        actor.locks.flush(TTL).await;
        let first = actor.acquire().await;
        let [holder, next] = [lock(), lock()].map(wait);
        stage.settle(1, 1).await;
        first.release().await.unwrap();
        let holder = holder.await.unwrap();
        let owner = holder.owner();
        holder.release().await.unwrap();
        let next = if idles {
            drop(next.await.unwrap());
            None
        } else {
            Some(next.await.unwrap())
        };
        assert_eq!(
            elsewhere.locks.detached("stage", owner).unwrap().release().await.unwrap(),
            tenure::backend::Released::WasGone
        );
        assert_eq!(
            elsewhere.locks.detached("stage", owner).unwrap().renew(TTL).await.unwrap(),
            tenure::backend::Renewal::Gone
        );
        assert!(elsewhere.mutex().attach(owner).await.is_err());
        if let Some(next) = next {
            next.check().unwrap();
            assert!(elsewhere.mutex().try_acquire().await.unwrap().is_none(), "L1");
            next.release().await.unwrap();
        }
    }
}

/// L1: nor does one that was chosen.
#[tokio::test(start_paused = true)]
async fn a_lease_of_a_chosen_owner_is_not_passed_on() {
    let stage = Stage::new();
    let actor = stage.actor();
    let (first, owner) = (actor.acquire().await, actor.locks.new_owner());
    let holder = wait(actor.mutex().owner(owner));
    stage.settle(1, 1).await;
    let next = wait(actor.mutex());
    tokio::task::yield_now().await;
    first.release().await.unwrap();
    let holder = holder.await.unwrap();
    assert_eq!(stage.holder().await, owner);
    holder.release().await.unwrap();
    let next = next.await.unwrap();
    assert_ne!(stage.holder().await, owner);
    next.release().await.unwrap();
}

/// A time-out ends the waiting in the process as well, and says how many are ahead.
#[tokio::test(start_paused = true)]
async fn whoever_waits_behind_others_of_its_process_gives_up_in_time() {
    let stage = Stage::new();
    let actor = stage.actor();
    let first = actor.acquire().await;
    let front = wait(actor.mutex());
    stage.settle(1, 1).await;
    let refused = actor.mutex().within(ms(300)).acquire().await.unwrap_err();
    let AcquireError::TimedOut { waited, ahead, holder } = refused else { panic!("{refused:?}") };
    assert!((ms(300)..ms(300) + SOON).contains(&waited), "{waited:?}");
    assert_eq!((ahead, holder.map(|holder| holder.owner)), (Some(1), Some(first.owner().to_string())));
    first.release().await.unwrap();
    front.await.unwrap().release().await.unwrap();
}

//! Nodes that hang, die, come late, lie about who they are.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tenure::Locker;
use tenure_core::{
    Backend, BreakScope, ClaimAnswer, ErrorKind, LockName, Mode, Outcome, Released, Renewal, WaitMode,
};
use tenure_testkit::host::pass;

use crate::stage::{Mood, Runtime, Stage, TTL, granted, ms, name};

/// Two of five may hang or be down, and nobody waits for them, but for the first claim of a process, which asks who they are.
#[tokio::test(start_paused = true)]
async fn two_nodes_that_fail_cost_nothing() {
    for moods in [[Mood::Mute, Mood::Mute], [Mood::Down, Mood::Down], [Mood::Mute, Mood::Late(ms(300))]] {
        let stage = Stage::new(5);
        stage.nodes[1].set(moods[0]);
        stage.nodes[4].set(moods[1]);
        let (locks, began) = (stage.process(), stage.clock());
        let mut introduced = None;
        for _ in 0..3 {
            let claim = stage.claim(WaitMode::Turn);
            granted(locks.claim(&claim).await);
            assert_eq!(locks.release(&name(), claim.owner).await.unwrap(), Released::Released);
            let first = *introduced.get_or_insert_with(|| stage.clock());
            assert!(first - began <= ms(100), "{:?}", first - began);
            assert_eq!(stage.clock(), first, "it waited for a node that fails");
        }
    }
}

/// One line says how many fail, which and why; what was granted stays with the same owner, who may ask again.
#[tokio::test(start_paused = true)]
async fn three_nodes_that_fail_are_an_error_within_the_time_out() {
    let stage = Stage::new(5);
    let locks = stage.process();
    for node in &stage.nodes[..3] {
        node.set(Mood::Mute);
    }
    let (claim, began) = (stage.claim(WaitMode::Turn), stage.clock());
    let error = locks.claim(&claim).await.unwrap_err();
    assert!(stage.clock() - began <= ms(600), "{:?}", stage.clock() - began);
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown));
    let text = error.to_string();
    assert!(text.contains("3 of 5 nodes cannot serve") && text.contains("node n0"), "{text}");
    for node in &stage.nodes {
        node.set(Mood::Up);
    }
    granted(locks.claim(&claim).await);
}

/// Hazard 45, L8: a caller that goes, and releases its owner, leaves no node behind, also none that answers late. The release waits
/// for each node's answer to the claim.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_dropped_and_released_leaves_no_node_behind() {
    for spread in [10, 60] {
        let stage = Stage::new(5);
        for (at, node) in stage.nodes.iter().enumerate() {
            node.set(Mood::Late(ms(spread * at as u64)));
        }
        let (locks, claim) = (stage.process(), stage.claim(WaitMode::Turn));
        tokio::select! {
            biased;
            answer = locks.claim(&claim) => panic!("too early: {answer:?}"),
            () = pass(ms(spread * 11 / 2)) => {}
        }
        assert!(stage.crowd().await.0 > 0, "nothing to give back");
        // The outcome is what it is; the engine repeats it.
        let _ = locks.release(&claim.name, claim.owner).await;
        pass(ms(1000)).await;
        assert_eq!(stage.crowd().await, (0, 0));
    }
}

/// The same by the engine, which polls the claim to its end and releases its owner behind it.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_dropped_is_given_back_everywhere() {
    let stage = Stage::new(5);
    for (at, node) in stage.nodes.iter().enumerate() {
        node.set(Mood::Late(ms(10 * at as u64)));
    }
    let locks = Locker::new(Arc::new(stage.process()), stage.host.clone());
    let mutex = locks.mutex(name().as_str());
    tokio::select! {
        biased;
        answer = mutex.acquire() => panic!("too early: {answer:?}"),
        () = pass(ms(55)) => {}
    }
    assert!(stage.crowd().await.0 > 0, "nothing to give back");
    pass(ms(400)).await;
    assert_eq!(stage.crowd().await, (0, 0));
}

/// Hazard 44, H3.4: who got some nodes only gives them back and asks under a new owner.
#[tokio::test(start_paused = true)]
async fn split_votes_are_given_back_and_asked_for_again_under_a_new_owner() {
    let stage = Stage::new(5);
    let (first, second) = (stage.claim(WaitMode::Turn), stage.claim(WaitMode::Turn));
    for (at, node) in stage.nodes.iter().enumerate().take(4) {
        node.store.claim(if at < 2 { &first } else { &second }).await.unwrap();
    }
    let locks = stage.process();
    let third = stage.claim(WaitMode::Turn);
    let answer = locks.claim(&third).await.unwrap();
    assert!(matches!(answer, ClaimAnswer::Split { .. }), "{answer:?}");
    pass(ms(1)).await;
    let view = stage.nodes[4].store.inspect(&name()).await.unwrap();
    assert!(view.holders.is_empty(), "{view:?}");
}

/// H3.4: a request that was given up and is asked again by the same owner, as the engine does after a time-out. What the
/// first ballot finds afterwards belongs to the second one.
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_given_up_does_not_free_what_its_retry_was_granted() {
    let stage = Stage::new(5);
    let (locks, claim) = (stage.process(), stage.claim(WaitMode::Turn));
    for node in &stage.nodes {
        node.set(Mood::Late(ms(300)));
    }
    tokio::select! {
        biased;
        answer = locks.claim(&claim) => panic!("too early: {answer:?}"),
        () = pass(ms(100)) => {}
    }
    for node in &stage.nodes {
        node.set(Mood::Up);
    }
    granted(locks.claim(&claim).await);
    pass(ms(2000)).await;
    assert_eq!(stage.crowd().await, (5, 0), "freed by the first ballot");
}

/// H3.4: once something was given back under an owner, that owner is let in no more: its release may still be under way.
#[tokio::test(start_paused = true)]
async fn an_owner_under_which_something_was_given_back_is_spent() {
    let stage = Stage::new(3);
    let rival = stage.claim(WaitMode::Turn);
    stage.nodes[0].store.claim(&rival).await.unwrap();
    stage.nodes[1].set(Mood::Down);
    let (locks, claim) = (stage.process(), stage.claim(WaitMode::Turn));
    assert!(matches!(locks.claim(&claim).await.unwrap(), ClaimAnswer::Split { .. }));
    stage.nodes[0].store.release(&name(), rival.owner).await.unwrap();
    stage.nodes[1].set(Mood::Up);
    pass(ms(2000)).await;
    assert!(matches!(locks.claim(&claim).await.unwrap(), ClaimAnswer::Split { .. }));
    assert_eq!(stage.crowd().await, (0, 0));
    granted(locks.claim(&stage.claim(WaitMode::Turn)).await);
}

/// L9: an error of two nodes does not say that the third did nothing.
#[tokio::test(start_paused = true)]
async fn an_error_of_some_nodes_says_nothing_of_the_others() {
    let stage = Stage::new(3);
    let locks = stage.process();
    for node in &stage.nodes[..2] {
        node.set(Mood::Down);
    }
    let error = locks.claim(&stage.claim(WaitMode::Turn)).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "one node granted: {error}");
    assert_eq!(stage.crowd().await, (1, 0));
}

/// L8: a node that is slow grants after the lock was released already, and is freed all the same.
#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_after_the_release_is_given_back() {
    let stage = Stage::new(3);
    stage.nodes[2].set(Mood::Late(ms(100)));
    let (locks, claim) = (stage.process(), stage.claim(WaitMode::Turn));
    granted(locks.claim(&claim).await);
    assert_eq!(locks.release(&name(), claim.owner).await.unwrap(), Released::Released);
    pass(ms(1000)).await;
    assert_eq!(stage.crowd().await, (0, 0));
}

/// L8: a node that was hung when the lock was released is freed once it answers, with one request at a time.
#[tokio::test(start_paused = true)]
async fn what_a_hung_node_holds_is_released_when_it_answers() {
    a_node_hangs_is_owed_a_release_and_answers(async |_, _| pass(ms(8000)).await).await;
}

/// L8: also if a thousand other releases follow before it answers. It had never heard of those, and they took the place of the one
/// that it was owed.
#[tokio::test(start_paused = true)]
async fn what_a_hung_node_holds_is_not_forgotten_for_what_it_never_had() {
    a_node_hangs_is_owed_a_release_and_answers(async |stage, locks| {
        for _ in 0..1100 {
            let other = stage.claim(WaitMode::Turn);
            granted(locks.claim(&other).await);
            assert_eq!(locks.release(&name(), other.owner).await.unwrap(), Released::Released);
        }
    })
    .await;
}

async fn a_node_hangs_is_owed_a_release_and_answers(meanwhile: impl AsyncFnOnce(&Stage, &dyn Backend)) {
    let stage = Stage::new(3);
    let (locks, claim) = (stage.process(), stage.claim(WaitMode::Turn));
    granted(locks.claim(&claim).await);
    pass(ms(1)).await;
    assert_eq!(stage.crowd().await.0, 3);
    stage.nodes[2].set(Mood::Down);
    assert_eq!(locks.release(&name(), claim.owner).await.unwrap(), Released::Released);
    meanwhile(&stage, &locks).await;
    assert_eq!(stage.crowd().await.0, 1);
    stage.nodes[2].set(Mood::Up);
    pass(ms(1000)).await;
    assert_eq!(stage.crowd().await.0, 0);
}

/// L8: a runtime that ended took with it the task that sent what a node was owed, also what it had in hand, and nobody sent
/// anything to that node again in the life of the process.
#[tokio::test(start_paused = true)]
async fn what_a_node_is_owed_outlives_the_runtime_that_sent_it() {
    let stage = Stage::new(3);
    let runtime = Runtime::of(&stage);
    let (locks, node) = (stage.process_on(runtime.clone()), &stage.nodes[2]);
    for wait in [ms(10), ms(600)] {
        let claim = stage.claim(WaitMode::Turn);
        granted(locks.claim(&claim).await);
        pass(ms(1)).await;
        assert_eq!(stage.crowd().await.0, 3);
        node.set(Mood::Down);
        assert_eq!(locks.release(&name(), claim.owner).await.unwrap(), Released::Released);
        // It has been refused, and waits; or was refused twice.
        pass(wait).await;
        runtime.end();
        node.set(Mood::Up);
        pass(ms(1000)).await;
        assert_eq!(stage.crowd().await.0, 0);
    }
}

/// H3.4, L1: a release tells its caller as soon as a quorum is free. Who asked again under the same owner was granted the
/// node that was still to be left, and lost it to that release: a rival needed one node less.
#[tokio::test(start_paused = true)]
async fn an_owner_that_has_left_does_not_come_back() {
    let stage = Stage::new(3);
    let (locks, claim) = (stage.process(), stage.claim(WaitMode::Turn));
    granted(locks.claim(&claim).await);
    pass(ms(1)).await;
    stage.nodes[2].set(Mood::Late(ms(100)));
    assert_eq!(locks.release(&name(), claim.owner).await.unwrap(), Released::Released);
    let answer = locks.claim(&claim).await.unwrap();
    assert!(matches!(answer, ClaimAnswer::Split { .. }), "{answer:?}");
    let next = stage.claim(WaitMode::Turn);
    granted(locks.claim(&next).await);
    pass(ms(1000)).await;
    assert_eq!(stage.crowd().await.0, 3, "the late release took nothing of the next owner's");
}

/// L9: nodes that failed a moment ago are asked all the same, for they may decide whether a quorum held.
#[tokio::test(start_paused = true)]
async fn a_release_asks_the_nodes_that_failed_before() {
    let stage = Stage::new(3);
    let (locks, claim) = (stage.process(), stage.claim(WaitMode::Turn));
    let grant = granted(locks.claim(&claim).await);
    pass(ms(1)).await;
    for node in &stage.nodes[1..] {
        node.set(Mood::Down);
    }
    assert!(locks.renew(&[grant]).await[0].is_err());
    for node in &stage.nodes[1..] {
        node.set(Mood::Up);
    }
    assert_eq!(locks.release(&name(), claim.owner).await.unwrap(), Released::Released);
    pass(ms(1)).await;
    assert_eq!(stage.crowd().await, (0, 0));
}

/// Hazard 46: five who ask at the same instant, each nearest to another node, do not keep each other out.
#[tokio::test(start_paused = true)]
async fn nobody_is_kept_out_by_split_votes() {
    let stage = Stage::new(5);
    let (began, inside) = (stage.clock(), Arc::new(AtomicU32::new(0)));
    let enter = |process: usize| {
        let quorum = stage.process_at(move |node| ms(1 + ((process + node) % 5) as u64));
        let (locks, inside) = (Locker::new(Arc::new(quorum), stage.host.clone()), inside.clone());
        async move {
            for _ in 0..3 {
                let guard = locks.mutex("one").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                pass(ms(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }
    };
    futures_util::future::join_all((0..5).map(enter)).await;
    assert!(stage.clock() - began < TTL, "somebody waited for a lease to end: {:?}", stage.clock() - began);
}

/// With a holder on three nodes and two free ones, a waiter keeps a place with the three and gives the two back.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_holder_of_some_nodes_keeps_a_place_there() {
    let stage = Stage::new(5);
    let holder = stage.claim(WaitMode::Turn);
    for node in &stage.nodes[..3] {
        node.store.claim(&holder).await.unwrap();
    }
    let locks = stage.process();
    let answer = locks.claim(&stage.claim(WaitMode::Turn)).await.unwrap();
    assert!(matches!(answer, ClaimAnswer::Split { retry_after, .. } if retry_after == ms(1)), "{answer:?}");
    pass(ms(1)).await;
    let waiter = stage.claim(WaitMode::Turn);
    let answer = locks.claim(&waiter).await.unwrap();
    assert!(matches!(answer, ClaimAnswer::Queued { .. }), "{answer:?}");
    assert_eq!(stage.crowd().await, (3, 3));
    locks.release(&name(), holder.owner).await.unwrap();
    granted(locks.claim(&waiter).await);
    pass(ms(1)).await;
    assert_eq!(stage.crowd().await.0, 5, "the others were asked as well");
}

/// A5, H3.5, hazard 43: a server under two names has one vote, and is refused.
#[tokio::test(start_paused = true)]
async fn one_server_under_two_names_is_refused() {
    let stage = Stage::new(3);
    stage.nodes[2].pretend_to_be("server 0");
    let locks = stage.process();
    // Two different servers are a quorum, whoever the third is; from when that is known nothing is granted.
    stage.nodes[2].set(Mood::Late(ms(150)));
    let first = stage.claim(WaitMode::Turn);
    granted(locks.claim(&first).await);
    locks.release(&name(), first.owner).await.unwrap();
    stage.nodes[2].set(Mood::Up);
    pass(ms(1000)).await;
    // This one has it looked at again.
    let second = stage.claim(WaitMode::Turn);
    let _ = locks.claim(&second).await;
    locks.release(&name(), second.owner).await.unwrap();
    pass(ms(10)).await;
    for _ in 0..2 {
        let error = locks.claim(&stage.claim(WaitMode::Turn)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("n0 and n2 are one server under two names"), "{error}");
    }
    pass(ms(10)).await;
    assert_eq!(stage.crowd().await, (0, 0));
    let findings = locks.diagnose().await.unwrap();
    assert!(findings.iter().any(|finding| finding.what.contains("n0 and n2")), "{findings:?}");
}

/// A5, L1: a process that had asked who they are never asked a node again that answers. When another server answered under a name of
/// one that was taken away, it would not serve at first; when it did, it voted twice.
#[tokio::test(start_paused = true)]
async fn a_node_that_would_not_serve_is_asked_again_who_it_is() {
    let stage = Stage::new(3);
    let (locks, first) = (stage.process(), stage.claim(WaitMode::Turn));
    granted(locks.claim(&first).await);
    locks.release(&name(), first.owner).await.unwrap();
    pass(ms(1)).await;
    stage.nodes[0].set(Mood::Shut);
    stage.nodes[0].pretend_to_be("server 1");
    let second = stage.claim(WaitMode::Turn);
    granted(locks.claim(&second).await);
    locks.release(&name(), second.owner).await.unwrap();
    stage.nodes[0].set(Mood::Up);
    stage.nodes[2].set(Mood::Down);
    let error = locks.claim(&stage.claim(WaitMode::Turn)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("n0 and n1 are one server under two names"), "{error}");
}

/// A node that hung is not waited for again, and is asked again once a probe was answered.
#[tokio::test(start_paused = true)]
async fn a_silent_node_is_left_alone_until_it_answers_a_probe() {
    let stage = Stage::new(3);
    let (locks, node) = (stage.process(), &stage.nodes[2]);
    let cycle = async || {
        let claim = stage.claim(WaitMode::Turn);
        granted(locks.claim(&claim).await);
        locks.release(&name(), claim.owner).await.unwrap();
        pass(ms(1000)).await;
    };
    node.set(Mood::Mute);
    cycle().await;
    let asked = node.claims.load(Ordering::SeqCst);
    for _ in 0..3 {
        cycle().await;
    }
    assert_eq!(node.claims.load(Ordering::SeqCst), asked, "asked although it is silent");
    node.set(Mood::Up);
    for _ in 0..3 {
        cycle().await;
    }
    assert!(node.claims.load(Ordering::SeqCst) > asked, "never asked again");
}

/// Renewed by a quorum; gone if no quorum can hold for us; unknown in between. Never taken again where it is gone.
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_by_a_quorum_and_lost_without_one() {
    let stage = Stage::new(5);
    let (locks, claim) = (stage.process(), stage.claim(WaitMode::Turn));
    let grant = granted(locks.claim(&claim).await);
    let renew = async || locks.renew(std::slice::from_ref(&grant)).await.pop().unwrap();
    for node in &stage.nodes[..2] {
        node.store.release(&name(), claim.owner).await.unwrap();
    }
    assert_eq!(renew().await.unwrap(), Renewal::Renewed);
    assert_eq!(stage.crowd().await.0, 3, "taken again where it was gone");
    stage.nodes[4].set(Mood::Down);
    let error = renew().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    stage.nodes[3].store.release(&name(), claim.owner).await.unwrap();
    assert_eq!(renew().await.unwrap(), Renewal::Gone);
}

/// Released is what a quorum says; who held fewer nodes had lost it before.
#[tokio::test(start_paused = true)]
async fn a_release_says_whether_a_quorum_held() {
    let stage = Stage::new(5);
    let locks = stage.process();
    let held = |nodes: usize, downs: usize| {
        let claim = stage.claim(WaitMode::Turn);
        let (stage, locks) = (&stage, &locks);
        async move {
            for node in &stage.nodes {
                node.set(Mood::Up);
                node.store.break_lock(&name(), BreakScope::Leases).await.unwrap();
            }
            for node in &stage.nodes[..nodes] {
                node.store.claim(&claim).await.unwrap();
            }
            for node in &stage.nodes[5 - downs..] {
                node.set(Mood::Down);
            }
            locks.release(&name(), claim.owner).await
        }
    };
    assert_eq!(held(5, 0).await.unwrap(), Released::Released);
    assert_eq!(held(3, 2).await.unwrap(), Released::Released);
    assert_eq!(held(2, 0).await.unwrap(), Released::WasGone);
    assert_eq!(held(2, 2).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// One round in the steady state: after the first one the counters agree, also if a node was away meanwhile.
#[tokio::test(start_paused = true)]
async fn counters_that_agree_need_no_second_round() {
    let stage = Stage::new(5);
    let locks = stage.process();
    stage.nodes[0].store.break_lock(&name(), BreakScope::Leases).await.unwrap();
    let mut last = 0;
    for cycle in 0..20 {
        if cycle == 10 {
            assert!(stage.raises() <= 4, "{} raises", stage.raises());
            stage.nodes[3].set(Mood::Down);
        }
        if cycle == 12 {
            stage.nodes[3].set(Mood::Up);
            pass(ms(1000)).await;
        }
        let claim = stage.claim(WaitMode::Turn);
        let token = granted(locks.claim(&claim).await).token.get();
        pass(ms(1)).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        locks.release(&name(), claim.owner).await.unwrap();
        pass(ms(1)).await;
    }
    assert!(stage.raises() <= 6, "{} raises in 20 cycles", stage.raises());
}

/// H6.1: a semaphore is so many slots, of each of which there is one holder.
#[tokio::test(start_paused = true)]
async fn a_semaphore_is_as_many_slots() {
    let stage = Stage::new(3);
    let locks = stage.process();
    let limit = NonZeroU32::new(2).unwrap();
    let claim = || stage.claim(WaitMode::Turn).with_mode(Mode::permit(limit));
    let (a, b, c) = (claim(), claim(), claim());
    let (one, two) = (granted(locks.claim(&a).await), granted(locks.claim(&b).await));
    let mut names = [one.name.as_str(), two.name.as_str()];
    names.sort_unstable();
    assert_eq!(names, ["one#1", "one#2"]);
    assert!(matches!(locks.claim(&c).await.unwrap(), ClaimAnswer::Queued { .. }));
    assert_eq!(locks.release(&one.name, a.owner).await.unwrap(), Released::Released);
    assert_eq!(granted(locks.claim(&c).await).name, one.name);
    let several = Mode::several(limit, limit).unwrap();
    for mode in [Mode::READ, several] {
        let claim = stage.claim(WaitMode::Turn).with_mode(mode);
        assert_eq!(locks.claim(&claim).await.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

/// L8: who finds no free slot, again and again, does not push out those who wait.
#[tokio::test(start_paused = true)]
async fn those_who_only_try_do_not_make_a_waiter_forgotten() {
    let stage = Stage::new(3);
    let locks = stage.process();
    let limit = NonZeroU32::new(1).unwrap();
    let claim = |wait| stage.claim(wait).with_mode(Mode::permit(limit));
    granted(locks.claim(&claim(WaitMode::Turn)).await);
    let waiter = claim(WaitMode::Turn);
    assert!(matches!(locks.claim(&waiter).await.unwrap(), ClaimAnswer::Queued { .. }));
    for _ in 0..5000 {
        assert!(matches!(locks.claim(&claim(WaitMode::No)).await.unwrap(), ClaimAnswer::Busy { .. }));
    }
    locks.release(&waiter.name, waiter.owner).await.unwrap();
    let view = locks.inspect(&LockName::new("one#1").unwrap()).await.unwrap();
    assert_eq!((view.holders.len(), view.queue.len()), (1, 0), "{view:?}");
}

/// L6: many slots on slow nodes are tried for a while only; then a place is kept.
#[tokio::test(start_paused = true)]
async fn a_waiter_queues_before_it_has_tried_all_of_very_many_slots() {
    let stage = Stage::new(3);
    let locks = stage.process();
    let limit = NonZeroU32::new(100).unwrap();
    for number in 1..=100 {
        let name = LockName::new(format!("one#{number}")).unwrap();
        granted(locks.claim(&stage.claim(WaitMode::Turn).with_name(name)).await);
    }
    for node in &stage.nodes {
        node.set(Mood::Late(ms(40)));
    }
    let began = stage.clock();
    let waiter = stage.claim(WaitMode::Turn).with_mode(Mode::permit(limit));
    assert!(matches!(locks.claim(&waiter).await.unwrap(), ClaimAnswer::Queued { .. }));
    assert!(stage.clock() - began < TTL / 5, "{:?}", stage.clock() - began);
}

/// A waiter at a semaphore knows its name only; leaving by that name leaves no place at any slot.
#[tokio::test(start_paused = true)]
async fn a_waiter_leaves_all_slots() {
    let stage = Stage::new(3);
    let locks = stage.process();
    let limit = NonZeroU32::new(2).unwrap();
    let claim = || stage.claim(WaitMode::Turn).with_mode(Mode::permit(limit));
    granted(locks.claim(&claim()).await);
    granted(locks.claim(&claim()).await);
    let waiter = claim();
    assert!(matches!(locks.claim(&waiter).await.unwrap(), ClaimAnswer::Queued { .. }));
    locks.release(&waiter.name, waiter.owner).await.unwrap();
    for number in 1..=2 {
        let view = locks.inspect(&LockName::new(format!("one#{number}")).unwrap()).await.unwrap();
        assert_eq!((view.holders.len(), view.queue.len()), (1, 0), "{view:?}");
    }
}

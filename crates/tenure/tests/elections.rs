//! One leader of many, who says where it is found.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tenure::{
    AcquireError, ConfigError, FencingToken,
    election::{Election, Leader, Observed},
};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
    polls::is_pending,
};

use crate::stage::{Actor, Stage, TTL, in_time, ms};

const HOUR: Duration = Duration::from_secs(3600);

fn election(actor: &Actor) -> Election {
    actor.locks.election("stage").with(|lock| lock.ttl(TTL))
}

async fn proclaimed(election: &Election) -> Option<String> {
    election.leader().await.unwrap().and_then(|leader| leader.proclaimed)
}

/// Terms grow, and what a leader said is not taken for a word of the next one.
#[tokio::test(start_paused = true)]
async fn who_leads_is_seen_with_what_it_says_and_nothing_of_the_one_before() {
    let stage = Stage::new();
    let (one, two) = (election(&stage.actor()), election(&stage.actor()));
    assert_eq!(one.leader().await.unwrap(), None);
    let first = one.campaign().await.unwrap();
    first.proclaim("10.0.0.7:80").await.unwrap();
    let seen = two.leader().await.unwrap().unwrap();
    assert_eq!((seen.term, seen.owner), (first.token(), first.owner().to_string()));
    assert_eq!((seen.proclaimed.as_deref(), seen.is_this_process), (Some("10.0.0.7:80"), false));
    assert!(one.leader().await.unwrap().unwrap().is_this_process);
    first.proclaim("10.0.0.7:81").await.unwrap();
    assert_eq!(proclaimed(&two).await.as_deref(), Some("10.0.0.7:81"));
    let term = first.token();
    first.resign().await.unwrap();
    assert_eq!(two.leader().await.unwrap(), None);
    let second = two.campaign().await.unwrap();
    assert!(second.token() > term, "L2");
    assert_eq!(proclaimed(&one).await, None, "the address is that of the first one");
}

/// It is said for as long as the leader leads, and forgotten an hour after that: nothing is left for ever.
#[tokio::test(start_paused = true)]
async fn what_is_proclaimed_lasts_as_long_as_the_lead() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let leadership = election(&actor).campaign().await.unwrap();
    leadership.proclaim("10.0.0.7:80").await.unwrap();
    for _ in 0..10 {
        pass(HOUR).await;
        assert_eq!(proclaimed(&election(&other)).await.as_deref(), Some("10.0.0.7:80"));
    }
    leadership.proclaim("10.0.0.7:81").await.unwrap();
    pass(HOUR).await;
    assert_eq!(proclaimed(&election(&other)).await.as_deref(), Some("10.0.0.7:81"));
    leadership.resign().await.unwrap();
    pass(HOUR + ms(5)).await;
    assert_eq!(stage.view().await.memo, None);
    let asked = actor.gates.asked(Verb::Note);
    // 20 minutes count anew from what is said.
    assert!(
        (33..=34).contains(&asked),
        "{asked}: twice, and once in each of 20 minutes of 10 hours and of one"
    );
}

/// The task that repeats what was proclaimed belonged to the runtime that said it first: when that one ended or rested, the address of
/// a leader was gone after an hour, though it went on leading.
#[tokio::test(start_paused = true)]
async fn what_is_proclaimed_outlives_the_runtime_that_proclaimed_it() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor_without_a_runtime(), stage.actor());
    let leadership = election(&actor).campaign().await.unwrap();
    leadership.proclaim("10.0.0.7:80").await.unwrap();
    pass(10 * HOUR).await;
    assert_eq!(proclaimed(&election(&other)).await.as_deref(), Some("10.0.0.7:80"));
    leadership.resign().await.unwrap();
}

/// A store that failed when a leader said something hears of it soon after.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_proclaimed_is_said_again() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let leadership = election(&actor).campaign().await.unwrap();
    actor.set(Verb::Note, Gate::Refuse);
    assert!(leadership.proclaim("10.0.0.7:80").await.is_err());
    pass(TTL).await;
    assert_eq!(proclaimed(&election(&other)).await, None);
    actor.set(Verb::Note, Gate::Open);
    pass(TTL).await;
    assert_eq!(proclaimed(&election(&other)).await.as_deref(), Some("10.0.0.7:80"));
}

/// L1: who loses the lead stops its work before another leads, and campaigns again.
#[tokio::test(start_paused = true)]
async fn who_loses_the_lead_campaigns_again() {
    let stage = Stage::new();
    let (inside, terms) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::<FencingToken>::new())));
    struct Inside(Arc<AtomicU32>);
    impl Drop for Inside {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let actors: Vec<Actor> = (0..3).map(|_| stage.actor()).collect();
    let tasks: Vec<_> = actors
        .iter()
        .map(|actor| {
            let (election, stage) = (election(actor), stage.clone());
            let (inside, terms) = (inside.clone(), terms.clone());
            tokio::spawn(async move {
                election
                    .lead(async move |term| {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "L1: two lead");
                        let _inside = Inside(inside.clone());
                        terms.lock().unwrap().push(term.token());
                        while !stage.is_over() {
                            pass(ms(10)).await;
                        }
                    })
                    .await
            })
        })
        .collect();
    // Renewals do not arrive any more, for two ttls: whoever leads stops in time.
    for round in 0..6 {
        pass(TTL).await;
        assert!(terms.lock().unwrap().len() > round, "nobody leads in round {round}");
        actors.iter().for_each(|actor| actor.set(Verb::Renew, Gate::Hang));
        pass(2 * TTL).await;
        actors.iter().for_each(|actor| actor.set(Verb::Renew, Gate::Open));
    }
    let seen = terms.lock().unwrap().clone();
    assert!(seen.len() >= 6 && seen.is_sorted(), "L2: {seen:?}");
    stage.finish();
    for task in tasks {
        in_time(task).await.unwrap().unwrap();
    }
    stage.settle(0, 0).await;
}

/// L2: a robbed leader leads again, in a later term.
#[tokio::test(start_paused = true)]
async fn a_robbed_leader_campaigns_again() {
    let stage = Stage::new();
    let election = election(&stage.actor());
    let mut terms = Vec::new();
    let robber = stage.clone();
    let led = in_time(election.lead(async |term| {
        terms.push(term.token());
        let is_first = terms.len() == 1;
        if is_first {
            robber.break_lock().await;
            pass(TTL).await;
        }
        is_first
    }));
    assert!(!led.await.unwrap(), "the first result came too late");
    assert!(terms.len() == 2 && terms[0] < terms[1], "{terms:?}");
    stage.settle(0, 0).await;
}

/// Every leader that led for longer than a pause is seen, in order, and no later than a pause after it came.
#[tokio::test(start_paused = true)]
async fn an_observer_sees_every_change_in_order() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let watched = election(&other);
    let seen = Arc::new(Mutex::new(Vec::<(Duration, Option<Leader>)>::new()));
    let watching = tokio::spawn({
        let (seen, stage, mut observer) = (seen.clone(), stage.clone(), watched.observe());
        async move {
            while let Ok(leader) = observer.next().await.map(Observed::leader) {
                seen.lock().unwrap().push((stage.clock(), leader));
            }
        }
    });
    let mut expected = vec![(stage.clock(), None)];
    for n in 0..5 {
        pass(ms(2300)).await;
        let leadership = election(&actor).campaign().await.unwrap();
        expected.push((stage.clock(), Some((leadership.token(), None))));
        pass(ms(2300)).await;
        leadership.proclaim(format!("address {n}")).await.unwrap();
        expected.push((stage.clock(), Some((leadership.token(), Some(format!("address {n}"))))));
        pass(ms(2300)).await;
        leadership.resign().await.unwrap();
        expected.push((stage.clock(), None));
    }
    pass(ms(2300)).await;
    watching.abort();
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), expected.len(), "{seen:?}");
    for ((at, leader), (came, expected)) in seen.into_iter().zip(expected) {
        assert_eq!(leader.map(|leader| (leader.term, leader.proclaimed)), expected);
        assert!(at - came <= ms(1100), "seen {:?} late", at - came);
    }
}

/// Leaders tell of what changes, so that nobody waits for the next look; of a leader that is gone nobody tells.
#[tokio::test(start_paused = true)]
async fn an_observer_is_told_at_once_and_looks_in_its_own_time() {
    let stage = Stage::new();
    let (one, two) = (election(&stage.actor()), election(&stage.actor()));
    let mut observer = two.clone().poll_interval(HOUR).observe();
    assert_eq!(observer.next().await.unwrap(), Observed::Vacant);
    let began = stage.clock();
    let mut sees = async || {
        let leader = tokio::time::timeout(2 * HOUR, observer.next()).await.unwrap().unwrap().leader();
        (leader.map(|leader| (leader.term, leader.proclaimed)), stage.clock() - began)
    };
    let first = one.campaign().await.unwrap();
    let term = first.token();
    assert_eq!(sees().await.0, Some((term, None)));
    first.proclaim("10.0.0.7:80").await.unwrap();
    assert_eq!(sees().await.0, Some((term, Some("10.0.0.7:80".into()))));
    first.resign().await.unwrap();
    let (nobody, at) = sees().await;
    assert_eq!(nobody, None);
    assert!(at < ms(100), "seen after {at:?}");
    let silent = in_time(two.campaign()).await.unwrap();
    assert_eq!(sees().await.0.map(|(term, _)| term), Some(silent.token()));
    silent.detach().await.unwrap();
    let (nobody, at) = sees().await;
    assert_eq!(nobody, None);
    assert!(at >= HOUR, "seen after {at:?}");
}

/// L6: whoever looks at something else meanwhile, and asks again and again, sees the next leader all the same. Each call began its
/// pause anew.
#[tokio::test(start_paused = true)]
async fn an_observer_that_is_asked_now_and_then_goes_on_looking() {
    let stage = Stage::new();
    let (actor, two) = (stage.actor(), election(&stage.actor()));
    let mut observer = two.observe();
    assert_eq!(observer.next().await.unwrap(), Observed::Vacant);
    // It tells nobody: it is a lock.
    let leadership = in_time(actor.locks.mutex("stage").ttl(TTL).acquire()).await.unwrap();
    let mut seen = None;
    for _ in 0..3 {
        if let Ok(answer) = tokio::time::timeout(ms(500), observer.next()).await {
            seen = answer.unwrap().leader();
            break;
        }
    }
    assert_eq!(seen.map(|leader| leader.term), Some(leadership.token()));
}

/// Whoever gives up saying something has it said all the same, and as often as anything else.
#[tokio::test(start_paused = true)]
async fn what_was_given_up_half_said_is_said_and_repeated() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let leadership = election(&actor).campaign().await.unwrap();
    actor.gates.plan(Verb::Note, &[Gate::Hang], Gate::Open);
    let said = tokio::time::timeout(ms(200), leadership.proclaim("10.0.0.7:80")).await;
    assert!(said.is_err());
    for _ in 0..3 {
        pass(HOUR).await;
        assert_eq!(proclaimed(&election(&other)).await.as_deref(), Some("10.0.0.7:80"));
    }
}

/// One that was proclaimed and whose future rested kept every later one from the store, and what was to be said again as well.
#[tokio::test(start_paused = true)]
async fn a_proclamation_that_rests_delays_no_other() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let leadership = election(&actor).campaign().await.unwrap();
    for gate in [Gate::Open, Gate::Slow(ms(100)), Gate::Hang] {
        actor.gates.plan(Verb::Note, &[gate], Gate::Open);
        let mut rests = Box::pin(leadership.proclaim("10.0.0.7:80"));
        let _rests = is_pending(&mut rests).await;
        let term = leadership.term();
        tokio::time::timeout(ms(50), term.proclaim("10.0.0.7:81")).await.unwrap().unwrap();
        assert_eq!(proclaimed(&election(&other)).await.as_deref(), Some("10.0.0.7:81"), "{gate:?}");
        pass(HOUR).await;
        assert_eq!(proclaimed(&election(&other)).await.as_deref(), Some("10.0.0.7:81"), "{gate:?}");
    }
}

/// What was proclaimed last stays, even if the store hears of an earlier one later.
#[tokio::test(start_paused = true)]
async fn what_was_proclaimed_before_does_not_come_after() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let leadership = election(&actor).campaign().await.unwrap();
    actor.gates.plan(Verb::Note, &[Gate::Late(ms(300))], Gate::Open);
    let (first, second) = tokio::join!(leadership.proclaim("10.0.0.7:80"), async {
        pass(ms(10)).await;
        leadership.proclaim("10.0.0.7:81").await
    });
    first.and(second).unwrap();
    pass(ms(50)).await;
    assert_eq!(proclaimed(&election(&other)).await.as_deref(), Some("10.0.0.7:81"));
}

/// An owner that was chosen would be that of every term, and the words of one term those of the next.
#[tokio::test(start_paused = true)]
async fn a_term_has_no_owner_that_was_chosen() {
    let stage = Stage::new();
    let actor = stage.actor();
    let owner = actor.locks.new_owner();
    let refused = election(&actor).with(|lock| lock.owner(owner)).campaign().await;
    assert!(matches!(refused, Err(AcquireError::Config(ConfigError::OwnerInUse { .. }))));
    assert!(stage.is_free().await);
}

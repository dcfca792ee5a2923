//! Several locks at once, and one of several.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure::{
    AcquireError, AllOf, ConfigError, HoldError, LockName, Loss,
    backend::{Backend, Released},
    view::BreakScope,
};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
    polls::{dropped_after, is_pending},
};

use crate::stage::{Actor, RETRY_MAX, SOON, Stage, TTL, VALIDITY, in_time, ms};

/// Who is inside of which lock: another one there is a loss of exclusion.
#[derive(Clone, Default)]
struct Rooms(Arc<Mutex<BTreeMap<String, usize>>>);

impl Rooms {
    fn enter(&self, who: usize, name: &str) {
        let other = self.0.lock().unwrap().insert(name.to_owned(), who);
        assert_eq!(other, None, "L1: {who} came into {name}");
    }

    fn leave(&self, who: usize, name: &str) {
        assert_eq!(self.0.lock().unwrap().remove(name), Some(who), "L1: {name}");
    }
}

fn all(actor: &Actor, names: &[&str]) -> AllOf {
    actor.locks.all(names).with(|lock| lock.ttl(TTL))
}

/// How many hold and wait, of all locks together.
async fn crowd(stage: &Stage) -> (usize, usize) {
    let views = stage.store.list("").await.unwrap();
    views.iter().fold((0, 0), |(held, queued), view| (held + view.holders.len(), queued + view.queue.len()))
}

async fn settle(stage: &Stage, crowded: (usize, usize)) {
    for _ in 0..1000 {
        if crowd(stage).await == crowded {
            return;
        }
        pass(ms(1)).await;
    }
    panic!("{:?} hold and wait instead of {crowded:?}", crowd(stage).await);
}

/// Leases that outlive their guards are not renewed, and end with their owners or their ttl.
#[tokio::test(start_paused = true)]
async fn guards_that_are_detached_leave_their_leases_to_the_ttl() {
    let stage = Stage::new();
    let actor = stage.actor();
    let leases = all(&actor, &["a", "b"]).acquire().await.unwrap().detach().await.unwrap();
    let [a, b] = &leases[..] else { panic!("{leases:?}") };
    assert_eq!(a.release().await.unwrap(), Released::Released);
    assert_eq!(crowd(&stage).await, (1, 0));
    pass(TTL + ms(5)).await;
    assert_eq!(crowd(&stage).await, (0, 0), "nothing has renewed it");
    assert_eq!(b.release().await.unwrap(), Released::WasGone);
}

/// A number below `limit` from a seed that moves on.
fn draw(seed: &mut u64, limit: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % limit
}

/// Jain's index: 1 if all had as many.
fn jain(turns: &[u32]) -> f64 {
    let (sum, squares) = turns.iter().map(|&n| f64::from(n)).fold((0.0, 0.0), |(s, q), n| (s + n, q + n * n));
    // OK because a few tens are exact.
    sum * sum / (turns.len() as f64 * squares)
}

/// L1, L6, L8: thirty processes want random triples of six names, in random order, for a minute.
#[tokio::test(start_paused = true)]
async fn who_takes_several_in_any_order_never_waits_for_who_waits_for_it() {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let (stage, rooms) = (Stage::new(), Rooms::default());
    let tasks = (0..30).map(|who| {
        let (stage, rooms, actor) = (stage.clone(), rooms.clone(), stage.actor());
        tokio::spawn(async move {
            let (mut seed, mut turns) = (who as u64 + 1, 0);
            while !stage.is_over() {
                let mut names = NAMES.to_vec();
                while names.len() > 3 {
                    names.remove(usize::try_from(draw(&mut seed, names.len() as u64)).unwrap());
                }
                if draw(&mut seed, 2) == 0 {
                    names.reverse();
                }
                let guards = in_time(all(&actor, &names).acquire()).await.unwrap();
                names.iter().for_each(|name| rooms.enter(who, name));
                pass(ms(draw(&mut seed, 20))).await;
                guards.check().unwrap();
                names.iter().for_each(|name| rooms.leave(who, name));
                guards.release().await.unwrap();
                turns += 1;
                pass(ms(draw(&mut seed, 5))).await;
            }
            turns
        })
    });
    let tasks: Vec<_> = tasks.collect();
    pass(Duration::from_secs(60)).await;
    stage.finish();
    let mut turns = Vec::new();
    for task in tasks {
        turns.push(task.await.unwrap());
    }
    println!("turns: {turns:?}, Jain {:.3}", jain(&turns));
    assert!(turns.iter().all(|&turns| turns > 10) && jain(&turns) > 0.9, "L6: {turns:?}");
    settle(&stage, (0, 0)).await;
}

/// Tokens by name, in the order of the names; `get` finds them.
#[tokio::test(start_paused = true)]
async fn each_lock_has_a_token_of_its_own() {
    let stage = Stage::new();
    let actor = stage.actor();
    drop(in_time(all(&actor, &["b"]).acquire()).await.unwrap());
    let guards = in_time(all(&actor, &["b", "c", "a"]).acquire()).await.unwrap();
    let names: Vec<&str> = guards.iter().map(|lease| lease.name().as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for lease in guards.iter() {
        let view = stage.store.inspect(lease.name()).await.unwrap();
        assert_eq!(view.holders[0].token, Some(lease.token()));
        assert_eq!(guards.get(lease.name().as_str()).unwrap().token(), lease.token());
    }
    assert!(guards.get("d").is_none());
    guards.release().await.unwrap();
}

/// L8: a time-out gives back what was held, before it says so.
#[tokio::test(start_paused = true)]
async fn a_time_out_leaves_nothing_behind() {
    let stage = Stage::new();
    let (holder, actor) = (stage.actor(), stage.actor());
    let held = in_time(all(&holder, &["c"]).acquire()).await.unwrap();
    let refused = in_time(all(&actor, &["a", "b", "c", "d"]).within(ms(700)).acquire()).await.unwrap_err();
    let AcquireError::TimedOut { waited, holder: Some(by), .. } = refused else { panic!("{refused}") };
    assert!((ms(700)..ms(700) + SOON).contains(&waited), "{waited:?}");
    assert_eq!(by.owner, held.iter().next().unwrap().owner().to_string());
    assert_eq!(crowd(&stage).await, (1, 0), "L8");
    assert!(all(&actor, &["a", "b", "c", "d"]).try_acquire().await.unwrap().is_none());
    assert_eq!(crowd(&stage).await, (1, 0), "L8");
    held.release().await.unwrap();
    assert!(all(&actor, &["a", "b", "c", "d"]).try_acquire().await.unwrap().is_some());
}

/// L8: wherever it is dropped.
#[tokio::test(start_paused = true)]
async fn an_acquisition_of_several_that_is_dropped_anywhere_leaves_nothing_behind() {
    for polls in 1..12 {
        let stage = Stage::new();
        let (holder, actor) = (stage.actor(), stage.actor());
        let held = in_time(all(&holder, &["b"]).acquire()).await.unwrap();
        let both = all(&actor, &["a", "b"]);
        let got = dropped_after(polls, both.acquire()).await;
        assert!(got.is_none(), "somebody holds b");
        let any = actor.locks.any(["b", "b2"]).with(|lock| lock.ttl(TTL));
        drop(dropped_after(polls, any.acquire()).await);
        assert!(actor.locks.flush(TTL).await);
        held.release().await.unwrap();
        settle(&stage, (0, 0)).await;
    }
}

/// L1: one of them broken, all of them lost, at once and for good.
#[tokio::test(start_paused = true)]
async fn one_lost_name_ends_all() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guards = in_time(all(&actor, &["a", "b", "c"]).acquire()).await.unwrap();
    let leases = guards.leases();
    let mut lost = Box::pin(leases.lost());
    assert!(is_pending(&mut lost).await && !leases.remaining().is_zero());
    stage.store.break_lock(&LockName::new("b").unwrap(), BreakScope::Leases).await.unwrap();
    assert_eq!(in_time(lost).await.cause(), Loss::Taken);
    assert_eq!(guards.check().unwrap_err().cause(), Loss::Taken);
    assert!(leases.remaining().is_zero());
    assert_eq!(guards.expires_within(ms(1)).await.unwrap_err().cause(), Loss::Taken);
    assert!(guards.release().await.is_err(), "L9: it says that it was lost");
    settle(&stage, (0, 0)).await;
    let both = all(&actor, &["a", "b"]);
    let robbed = both.hold(async |_| {
        stage.store.break_lock(&LockName::new("a").unwrap(), BreakScope::Leases).await.unwrap();
        pass(TTL).await;
    });
    assert!(matches!(in_time(robbed).await, Err(HoldError::Lost(lost)) if lost.cause() == Loss::Taken));
    settle(&stage, (0, 0)).await;
}

/// L1: whoever is robbed while it waits for the next lock takes them anew, and does not enter with what it has lost.
#[tokio::test(start_paused = true)]
async fn what_is_lost_while_the_next_is_waited_for_is_taken_anew() {
    let stage = Stage::new();
    let (holder, actor) = (stage.actor(), stage.actor());
    let held = in_time(all(&holder, &["b"]).acquire()).await.unwrap();
    let both = all(&actor, &["a", "b"]);
    let waiting = tokio::spawn(async move { in_time(both.acquire()).await.unwrap() });
    settle(&stage, (2, 1)).await;
    let a = LockName::new("a").unwrap();
    let first = stage.store.inspect(&a).await.unwrap().holders[0].owner.clone();
    stage.store.break_lock(&a, BreakScope::Leases).await.unwrap();
    settle(&stage, (2, 1)).await;
    assert_ne!(stage.store.inspect(&a).await.unwrap().holders[0].owner, first);
    held.release().await.unwrap();
    let guards = waiting.await.unwrap();
    guards.check().unwrap();
    guards.release().await.unwrap();
    settle(&stage, (0, 0)).await;
}

/// Hazard 25: the cap counts from when the work can begin, not from the first of the locks.
#[tokio::test(start_paused = true)]
async fn max_hold_of_several_counts_from_when_all_are_held() {
    let stage = Stage::new();
    let (holder, actor) = (stage.actor(), stage.actor());
    let held = in_time(all(&holder, &["b"]).acquire()).await.unwrap();
    let both = all(&actor, &["a", "b"]).with(|lock| lock.max_hold(3 * TTL));
    let waiting = tokio::spawn(async move { in_time(both.acquire()).await.unwrap() });
    pass(4 * TTL).await;
    held.release().await.unwrap();
    let guards = waiting.await.unwrap();
    let entered = stage.clock();
    let leases = guards.leases();
    assert_eq!(in_time(leases.lost()).await.cause(), Loss::MaxHold);
    let lasted = stage.clock() - entered;
    assert!((3 * TTL - SOON..3 * TTL + SOON).contains(&lasted), "{lasted:?}");
    drop(guards);
    settle(&stage, (0, 0)).await;
}

/// L1: of several leases one that cannot be renewed ends all, at the end of its validity.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_costs_all_of_them_at_the_end_of_validity() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guards = in_time(all(&actor, &["a", "b"]).acquire()).await.unwrap();
    actor.set(Verb::Renew, Gate::Hang);
    let began = stage.clock();
    in_time(guards.renewal_failing()).await;
    assert!(guards.is_renewal_failing() && guards.check().is_ok());
    assert_eq!(in_time(guards.lost()).await.cause(), Loss::Expired);
    assert!(stage.clock() - began <= VALIDITY + SOON);
}

/// Nothing is asked for that cannot be had.
#[tokio::test(start_paused = true)]
async fn names_that_cannot_be_taken_together_are_refused_before_anything_is_sent() {
    let stage = Stage::new();
    let actor = stage.actor();
    let many: Vec<String> = (0..65).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let cases: [(&[&str], &str); 4] = [
        (&[], "no lock is named"),
        (&["a", "b", "a"], "the lock a is named twice"),
        (&many, "more than 64 locks"),
        (&["a", ""], "name"),
    ];
    for (names, expected) in cases {
        let all = actor.locks.all(names).acquire().await.map(drop).unwrap_err();
        let any = actor.locks.any(names).acquire().await.map(drop).unwrap_err();
        for refused in [all, any] {
            assert!(matches!(refused, AcquireError::Config(_)), "{refused:?}");
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
    let long = actor.locks.all(["a", "b"]).with(|lock| lock.ttl(ms(1))).acquire().await.unwrap_err();
    assert!(matches!(long, AcquireError::Config(ConfigError::Ttl(_))), "{long:?}");
    assert_eq!(actor.gates.asked(Verb::Claim), 0);
}

/// L1, L7: ten processes on four names. Never more than four, and nobody is passed by more than one who came later.
#[tokio::test(start_paused = true)]
async fn of_four_names_each_has_one_holder_and_who_came_first_enters_first() {
    const NAMES: [&str; 4] = ["gpu0", "gpu1", "gpu2", "gpu3"];
    let (stage, rooms) = (Stage::new(), Rooms::default());
    // Who asks, in the order of asking: arrival and whether it has entered; passed by how many who came later.
    let line = Arc::new(Mutex::new(Vec::<(usize, u32)>::new()));
    let tasks: Vec<_> = (0..10)
        .map(|who| {
            let (stage, rooms, line, actor) = (stage.clone(), rooms.clone(), line.clone(), stage.actor());
            tokio::spawn(async move {
                let (mut seed, mut turns, mut passed_most) = (who as u64 + 7, 0, 0);
                while !stage.is_over() {
                    line.lock().unwrap().push((who, 0));
                    let any = actor.locks.any(NAMES).with(|lock| lock.ttl(TTL));
                    let guard = in_time(any.acquire()).await.unwrap();
                    {
                        let mut line = line.lock().unwrap();
                        let at = line.iter().position(|&(other, _)| other == who).unwrap();
                        passed_most = passed_most.max(line.remove(at).1);
                        line[..at].iter_mut().for_each(|(_, passed)| *passed += 1);
                    }
                    let name = guard.name().to_string();
                    rooms.enter(who, &name);
                    assert!(rooms.0.lock().unwrap().len() <= NAMES.len());
                    pass(ms(20 + draw(&mut seed, 40))).await;
                    guard.check().unwrap();
                    rooms.leave(who, &name);
                    guard.release().await.unwrap();
                    turns += 1;
                    pass(ms(1 + draw(&mut seed, 5))).await;
                }
                (turns, passed_most)
            })
        })
        .collect();
    pass(Duration::from_secs(60)).await;
    stage.finish();
    let (mut turns, mut passed) = (Vec::new(), 0);
    for task in tasks {
        let (own, by) = task.await.unwrap();
        turns.push(own);
        passed = passed.max(by);
    }
    println!("turns: {turns:?}, Jain {:.3}, passed at most {passed} times", jain(&turns));
    assert!(passed <= 1, "L7: passed {passed} times");
    assert!(jain(&turns) > 0.95, "L6: {turns:?}");
    settle(&stage, (0, 0)).await;
}

/// L8: the places in the other queues are withdrawn, and what was granted there as well is given back.
#[tokio::test(start_paused = true)]
async fn who_has_one_of_several_leaves_the_other_queues() {
    let stage = Stage::new();
    let (holder, actor) = (stage.actor(), stage.actor());
    let mut held = Vec::new();
    for name in ["x", "y", "z"] {
        held.push(in_time(all(&holder, &[name]).acquire()).await.unwrap());
    }
    let any = actor.locks.any(["x", "y", "z"]).with(|lock| lock.ttl(TTL));
    let waiting = tokio::spawn(async move { in_time(any.acquire()).await.unwrap() });
    settle(&stage, (3, 3)).await;
    // All at once: each is handed to it, and it keeps one.
    for guards in held {
        drop(guards);
    }
    let guard = waiting.await.unwrap();
    settle(&stage, (1, 0)).await;
    let began = stage.clock();
    for name in ["x", "y", "z"].into_iter().filter(|name| *name != guard.name().as_str()) {
        in_time(all(&holder, &[name]).acquire()).await.unwrap().release().await.unwrap();
    }
    assert!(stage.clock() - began < RETRY_MAX);
    guard.release().await.unwrap();
    settle(&stage, (0, 0)).await;
}

/// L8: a time-out of any leaves no place, and names a holder.
#[tokio::test(start_paused = true)]
async fn a_time_out_of_one_of_several_leaves_no_place() {
    let stage = Stage::new();
    let (holder, actor) = (stage.actor(), stage.actor());
    let held = in_time(all(&holder, &["x", "y"]).acquire()).await.unwrap();
    let any = actor.locks.any(["x", "y"]).with(|lock| lock.ttl(TTL));
    let refused = in_time(any.clone().within(ms(300)).acquire()).await.unwrap_err();
    assert!(matches!(&refused, AcquireError::TimedOut { holder: Some(_), .. }), "{refused:?}");
    assert_eq!(crowd(&stage).await, (2, 0), "L8");
    assert!(any.try_acquire().await.unwrap().is_none());
    assert!(any.try_hold(async |_| ()).await.unwrap().is_none());
    assert_eq!(crowd(&stage).await, (2, 0), "L8");
    held.release().await.unwrap();
    let name = any.within(ms(300)).hold(async |lease| lease.name().to_string()).await.unwrap();
    assert_eq!(name, "x");
    settle(&stage, (0, 0)).await;
}

/// L1, L2, L8: waiters of one process pass leases on to each other, and some want all, some one of them.
#[tokio::test(start_paused = true)]
async fn turns_inside_a_process_go_with_all_and_any() {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let (stage, rooms) = (Stage::new(), Rooms::default());
    let actors = [stage.actor(), stage.actor()];
    let tokens = Arc::new(Mutex::new(BTreeMap::<String, tenure::FencingToken>::new()));
    let tasks: Vec<_> = (0..24)
        .map(|who| {
            let (rooms, tokens, actor) = (rooms.clone(), tokens.clone(), actors[who % 2].clone());
            tokio::spawn(async move {
                let mut seed = who as u64 + 3;
                for _ in 0..20 {
                    let guards = match draw(&mut seed, 3) {
                        0 => in_time(all(&actor, &["c", "a"]).acquire()).await.unwrap(),
                        1 => in_time(actor.locks.any(NAMES).with(|lock| lock.ttl(TTL)).acquire())
                            .await
                            .unwrap()
                            .into(),
                        _ => in_time(actor.locks.mutex("a").ttl(TTL).acquire()).await.unwrap().into(),
                    };
                    for lease in guards.iter() {
                        rooms.enter(who, lease.name().as_str());
                        let before = tokens.lock().unwrap().insert(lease.name().to_string(), lease.token());
                        assert!(
                            before.is_none_or(|before| before < lease.token()),
                            "L2: {before:?}, {lease:?}"
                        );
                    }
                    if draw(&mut seed, 3) == 0 {
                        pass(ms(draw(&mut seed, 4))).await;
                    }
                    guards.check().unwrap();
                    guards.iter().for_each(|lease| rooms.leave(who, lease.name().as_str()));
                    guards.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    settle(&stage, (0, 0)).await;
}

//! Memos, and jobs that run once per interval.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tenure::{
    AcquireError, ConfigError, HoldError, Loss, MemoError,
    once::{RunOnce, RunOutcome},
};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
};

use crate::stage::{Actor, Stage, TTL, in_time, ms, name};

const HOUR: Duration = Duration::from_secs(3600);

/// What is said of the lock of this stage.
async fn said(stage: &Stage) -> Option<String> {
    stage.view().await.memo.map(|memo| memo.text)
}

/// L4: a lease that is over leaves nothing, and says why.
#[tokio::test(start_paused = true)]
async fn only_a_lease_that_is_held_leaves_a_memo() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    let lease = guard.lease();
    in_time(lease.set_memo("mine", HOUR)).await.unwrap();
    guard.release().await.unwrap();
    let late = in_time(lease.set_memo("late", HOUR)).await;
    assert!(matches!(late, Err(MemoError::Lost(lost)) if lost.cause() == Loss::Released), "{late:?}");

    // Robbed, and its process has not heard of it yet.
    let guard = actor.acquire().await;
    stage.break_lock().await;
    let robbed = in_time(guard.set_memo("robbed", HOUR)).await;
    assert!(matches!(robbed, Err(MemoError::Lost(lost)) if lost.cause() == Loss::Taken), "{robbed:?}");
    assert_eq!(said(&stage).await.as_deref(), Some("mine"));
    pass(HOUR + ms(5)).await;
    assert_eq!(said(&stage).await, None);
}

/// What no store takes is refused before anything is sent.
#[tokio::test(start_paused = true)]
async fn a_memo_that_is_too_long_is_not_sent() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    for (text, kept) in [("x".repeat(1025), HOUR), ("x".into(), Duration::ZERO), ("x".into(), 10_000 * HOUR)]
    {
        let refused = guard.set_memo(text, kept).await;
        assert!(matches!(refused, Err(MemoError::Config(ConfigError::Memo(_)))), "{refused:?}");
    }
    assert_eq!(actor.gates.asked(Verb::Note), 0);
}

/// L9: every outcome of the request. What fails for a moment is asked again; a store that hangs costs 5 s.
#[tokio::test(start_paused = true)]
async fn a_memo_is_asked_for_again_while_the_store_fails_for_a_moment() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    let once = [Gate::Refuse, Gate::LoseReply, Gate::Slow(ms(300)), Gate::Late(ms(300))];
    for gate in once {
        actor.gates.plan(Verb::Note, &[gate], Gate::Open);
        in_time(guard.set_memo(format!("{gate:?}"), HOUR)).await.unwrap();
        assert_eq!(said(&stage).await.unwrap(), format!("{gate:?}"));
    }
    for gate in [Gate::Refuse, Gate::Hang] {
        actor.set(Verb::Note, gate);
        let began = stage.clock();
        let failed = in_time(guard.set_memo("never", HOUR)).await;
        assert!(matches!(failed, Err(MemoError::Store(_))), "{failed:?}");
        assert!(stage.clock() - began <= Duration::from_secs(6), "{gate:?}");
    }
    assert_eq!(guard.check(), Ok(()), "it is renewed meanwhile");
    assert_eq!(said(&stage).await.unwrap(), format!("{:?}", once[3]));
}

/// A wall clock that was set forward cut the time short in which a memo is asked for again: it was not left, and a job of an interval
/// ran twice.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_wall_clock_does_not_shorten_the_attempts_to_leave_a_memo() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    actor.gates.plan(Verb::Note, &[Gate::Refuse; 2], Gate::Open);
    // Longer than a memo may take, and shorter than the lease.
    let stepping = async { stage.host.step_wall(6_000) };
    let (noted, ()) = tokio::join!(in_time(guard.set_memo("mine", HOUR)), stepping);
    noted.unwrap();
    assert_eq!(said(&stage).await.as_deref(), Some("mine"));
}

fn nightly(actor: &Actor) -> RunOnce {
    actor.locks.once("stage").interval(10 * TTL).jitter(Duration::ZERO).with(|lock| lock.ttl(TTL))
}

/// A run that takes so long, and succeeds.
async fn runs(once: &RunOnce, takes: Duration) -> bool {
    let run = in_time(once.run(async |_| {
        pass(takes).await;
        Ok::<_, Infallible>(())
    }));
    matches!(run.await.unwrap(), RunOutcome::Ran(Ok(())))
}

/// Counted from the start of the run, by the store's clock, and over all processes.
#[tokio::test(start_paused = true)]
async fn between_two_starts_lies_the_interval() {
    let stage = Stage::new();
    let (one, two) = (nightly(&stage.actor()), nightly(&stage.actor()));
    let began = stage.clock();
    assert!(runs(&one, 3 * TTL).await);
    for _ in 0..6 {
        assert!(!runs(&two, ms(1)).await && !runs(&one, ms(1)).await);
        pass(TTL).await;
    }
    let Some(last) = two.last().await.unwrap() else { panic!("it ran 9 ttls ago") };
    assert!(last.ago >= 9 * TTL - ms(1) && last.ago < 10 * TTL, "{last:?}");
    assert!(last.by.contains(&format!("pid {}", std::process::id())), "{last:?}");
    // A hundredth of the run for a clock that is fast, and one of the interval for a test that is.
    pass(TTL + TTL / 30 + TTL / 10).await;
    assert!(runs(&two, ms(1)).await);
    assert!(stage.clock() - began >= 10 * TTL);
    assert!(stage.is_free().await, "L8");
}

/// A job every 10 ttl whose scheduler has the same period, to some ms: exact, each second run would be skipped.
#[tokio::test(start_paused = true)]
async fn a_scheduler_with_the_period_of_the_interval_runs_each_time() {
    let stage = Stage::new();
    let once = nightly(&stage.actor()).jitter(TTL);
    let mut next = stage.clock();
    for (tick, late) in [0, 30, 0, 9, 200, 0, 1, 0, 90, 0, 0, 7, 0].into_iter().enumerate() {
        pass(next + ms(late) - stage.clock()).await;
        assert!(runs(&once, 3 * TTL).await, "tick {tick}");
        next += 10 * TTL;
    }
}

/// The next run is due an interval after the due time: asked all the time, it does not run faster and faster.
#[tokio::test(start_paused = true)]
async fn n_intervals_hold_n_and_one_runs_at_most() {
    let stage = Stage::new();
    let (one, two) = (nightly(&stage.actor()).jitter(TTL), nightly(&stage.actor()).jitter(TTL));
    let (began, mut starts) = (stage.clock(), Vec::new());
    while stage.clock() - began < 205 * TTL {
        let start = stage.clock();
        if runs(if starts.len() % 2 == 0 { &one } else { &two }, TTL).await {
            starts.push(start - began);
        }
        pass(TTL / 20).await;
    }
    assert!(starts.len() >= 20, "{starts:?}");
    for n in 1..starts.len() {
        for (at, start) in starts.iter().enumerate().skip(n) {
            let apart = *start - starts[at - n];
            let interval = 10 * TTL - TTL / 100;
            let least = interval * u32::try_from(n).unwrap() - TTL;
            assert!(apart >= least, "{n} intervals: {apart:?} < {least:?}");
        }
    }
    // More than half of the interval is half of it.
    let stage = Stage::new();
    let eager = nightly(&stage.actor()).jitter(9 * TTL);
    assert!(runs(&eager, ms(1)).await);
    pass(4 * TTL).await;
    assert!(!runs(&eager, ms(1)).await);
    pass(TTL + ms(100)).await;
    assert!(runs(&eager, ms(1)).await);
}

/// Each goes by its own interval from the last run of any; and once per slot of a calendar counts runs by their starts.
#[tokio::test(start_paused = true)]
async fn of_two_intervals_each_has_its_own() {
    let stage = Stage::new();
    let (long, short) = (nightly(&stage.actor()), nightly(&stage.actor()).interval(4 * TTL));
    assert!(runs(&long, ms(1)).await);
    pass(4 * TTL - ms(100)).await;
    assert!(!runs(&short, ms(1)).await && !runs(&long, ms(1)).await);
    pass(ms(200)).await;
    assert!(!runs(&long, ms(1)).await && runs(&short, ms(1)).await);
    pass(4 * TTL + ms(100)).await;
    assert!(!runs(&long, ms(1)).await, "4 ttls ago is less than 10");
    pass(6 * TTL + TTL / 10).await;
    assert!(runs(&long, ms(1)).await);

    let guard = stage.actor().acquire().await;
    let now = stage.view().await.holders[0].since.unwrap();
    guard.release().await.unwrap();
    let slot = |second: u64| {
        let began = now + ms(1000 * second);
        nightly(&stage.actor()).slot(began, began - ms(1000))
    };
    assert!(!runs(&slot(0).slot(now - TTL, now - 2 * TTL), ms(1)).await, "the last run began in it");
    assert!(runs(&slot(2), ms(1)).await);
    for (second, is_new) in [(2, false), (1, false), (3, true), (2, false), (3, false)] {
        pass(20 * TTL).await;
        assert_eq!(runs(&slot(second), ms(1)).await, is_new, "{second}");
    }
    assert!(runs(&long, ms(1)).await && !runs(&slot(3), ms(1)).await);
}

/// One host whose clock was a month ahead for one run kept the others from their daily run for days, in silence.
#[tokio::test(start_paused = true)]
async fn a_run_in_a_slot_that_lies_ahead_does_not_count() {
    let stage = Stage::new();
    let guard = stage.actor().acquire().await;
    let now = stage.view().await.holders[0].since.unwrap();
    guard.release().await.unwrap();
    let slot = |began| nightly(&stage.actor()).interval(24 * HOUR).slot(began, began - 24 * HOUR);
    assert!(runs(&slot(now + 30 * 24 * HOUR), ms(1)).await);
    let turn = slot(now).turn().await.unwrap().expect("only under the lock it is decided");
    assert!(turn.ahead().is_some_and(|ahead| ahead > 29 * 24 * HOUR), "{turn:?}");
    assert!(runs(&slot(now), ms(1)).await);
    assert!(!runs(&slot(now), ms(1)).await, "this one counts");
    // Clocks differ a little.
    assert!(runs(&slot(now + HOUR / 2), ms(1)).await);
    assert!(!runs(&slot(now), ms(1)).await);
}

/// Without a word, the library and the command let a run begin a tenth early.
#[tokio::test(start_paused = true)]
async fn a_run_may_begin_a_tenth_early_if_nothing_else_is_said() {
    let stage = Stage::new();
    let once = || stage.actor().locks.once("stage").interval(10 * TTL).with(|lock| lock.ttl(TTL));
    assert!(runs(&once(), ms(1)).await);
    pass(9 * TTL - TTL / 2).await;
    assert!(!runs(&once(), ms(1)).await);
    pass(TTL / 2 + ms(100)).await;
    assert!(runs(&once(), ms(1)).await);
}

/// L1: of many who come at once one runs, also if it takes longer than the others came late.
#[tokio::test(start_paused = true)]
async fn of_many_who_come_at_once_one_runs() {
    let stage = Stage::new();
    let ran = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (once, ran) = (nightly(&stage.actor()), ran.clone());
            tokio::spawn(async move {
                let took = in_time(once.run(async |_| {
                    ran.fetch_add(1, Ordering::SeqCst);
                    pass(2 * TTL).await;
                    Ok::<_, Infallible>(())
                }));
                took.await.unwrap()
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

/// A proxy sent readings to a replica that had not the last run yet, and the job ran twice (`run --once-per` behind a proxy that
/// splits reads and writes): the store was asked for the memo under the lock, and not for one that a write confirms.
#[tokio::test(start_paused = true)]
async fn a_reading_that_is_old_lets_no_job_run_again() {
    let stage = Stage::new();
    let (one, two) = (stage.actor(), stage.actor());
    two.gates.look_at_a_replica(&name()).await.unwrap();
    assert!(runs(&nightly(&one), ms(1)).await);
    assert!(nightly(&two).last().await.unwrap().is_none(), "the test shows something");
    assert!(!runs(&nightly(&two), ms(1)).await);
    assert!(stage.is_free().await, "L8");
}

/// A run that failed, that lost its lease or that was dropped does not count, unless that was asked for.
#[tokio::test(start_paused = true)]
async fn only_a_success_counts_unless_the_start_does() {
    let stage = Stage::new();
    let actor = stage.actor();
    for counts in [false, true] {
        let once = if counts { nightly(&actor).even_if_failed() } else { nightly(&actor) };
        let failed = in_time(once.run(async |_| Err::<(), _>("no disk"))).await.unwrap();
        assert_eq!(failed, RunOutcome::Ran(Err("no disk")));
        assert_eq!(once.last().await.unwrap().is_some(), counts);
        pass(11 * TTL).await;

        let robbed = in_time(once.run(async |_| {
            stage.break_lock().await;
            std::future::pending::<Result<(), Infallible>>().await
        }));
        let robbed = robbed.await;
        assert!(matches!(robbed, Err(HoldError::Lost(lost)) if lost.cause() == Loss::Taken), "{robbed:?}");
        assert_eq!(once.last().await.unwrap().is_some(), counts);
        pass(11 * TTL).await;

        let dropped = once.run(async |_| std::future::pending::<Result<(), Infallible>>().await);
        assert!(tokio::time::timeout(TTL, dropped).await.is_err());
        assert_eq!(once.last().await.unwrap().is_some(), counts);
        pass(11 * TTL).await;
        assert!(stage.is_free().await, "L8");
    }
}

/// A success that cannot be counted is said; a start that is to count and cannot is none.
#[tokio::test(start_paused = true)]
async fn a_run_that_cannot_be_counted_says_so() {
    let stage = Stage::new();
    let actor = stage.actor();
    actor.set(Verb::Note, Gate::Refuse);
    let mut ran = 0;
    for once in [nightly(&actor), nightly(&actor).even_if_failed()] {
        let run = in_time(once.run(async |_| {
            ran += 1;
            Ok::<_, Infallible>(())
        }));
        assert!(matches!(run.await, Err(HoldError::NotCounted(MemoError::Store(_)))));
        assert_eq!(ran, 1, "one that counts from its start must not start");
    }
    stage.settle(0, 0).await;
}

/// An interval of zero, or of none, is refused before anything is sent.
#[tokio::test(start_paused = true)]
async fn an_interval_is_checked_before_anything_is_sent() {
    let stage = Stage::new();
    let actor = stage.actor();
    for once in [actor.locks.once("stage"), nightly(&actor).interval(10_000 * HOUR)] {
        let refused = once.run(async |_| Ok::<_, Infallible>(())).await;
        assert!(matches!(
            refused,
            Err(HoldError::Acquire(AcquireError::Config(ConfigError::IntervalOutOfRange)))
        ));
    }
    assert_eq!(actor.gates.asked(Verb::Claim), 0);
}

/// A memo that somebody else left beside the lock of a job says nothing of a run.
#[tokio::test(start_paused = true)]
async fn a_memo_of_another_kind_is_no_run() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    guard.set_memo("10.0.0.7:80", HOUR).await.unwrap();
    guard.release().await.unwrap();
    assert!(runs(&nightly(&actor), ms(1)).await);
    assert!(!runs(&nightly(&actor), ms(1)).await);
}

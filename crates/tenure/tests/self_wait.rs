//! A process that waits for itself is told so.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use tenure::{AcquireError, HoldError};
use tenure_testkit::host::pass;

use crate::heard::Heard;
use crate::stage::{Stage, TTL, ms};

fn warnings(heard: &Heard) -> Vec<String> {
    heard.lines().into_iter().filter(|line| line.contains("held by this process")).collect()
}

/// A task acquires a lock that it holds: without a word it would wait for ever.
#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_itself_is_told_once() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    let held = actor.lock().hold(async |_lease| actor.lock().within(3 * TTL).acquire().await.map(drop)).await;
    let refused = held.unwrap().unwrap_err();
    let text = refused.to_string();
    assert!(text.contains(": held by this process ("), "{text}");
    let AcquireError::TimedOut { holder: Some(holder), .. } = refused else { panic!("{text}") };
    assert!(holder.is_this_process);
    let warnings = warnings(&heard);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("WARN") && warnings[0].contains("lock=stage"), "{warnings:?}");
}

/// Asked once, the error says it as well; there was no wait to speak of.
#[tokio::test(start_paused = true)]
async fn a_single_question_is_answered_and_not_warned_about() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    let _guard = actor.acquire().await;
    let refused = actor.lock().within(ms(0)).hold(async |_| ()).await.unwrap_err();
    assert!(matches!(&refused, HoldError::Acquire(error) if error.to_string().contains("this process (")));
    let view = actor.locks.inspect("stage").await.unwrap();
    assert!(view.holders[0].is_this_process);
    assert!(actor.locks.list("").await.unwrap()[0].holders[0].is_this_process);
    assert_eq!(warnings(&heard), [""; 0]);
}

/// Whoever waits for another process, or for tasks of its own that come and go, hears nothing of it.
#[tokio::test(start_paused = true)]
async fn a_wait_for_others_is_no_wait_for_itself() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let guard = other.acquire().await;
    let refused = actor.lock().within(TTL).acquire().await.unwrap_err();
    assert!(!refused.to_string().contains("this process"), "{refused}");
    guard.release().await.unwrap();

    let workers: Vec<_> = (0..40)
        .map(|_| {
            let lock = actor.lock();
            tokio::spawn(async move { lock.hold(async |_| pass(ms(200)).await).await.unwrap() })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(warnings(&heard), [""; 0]);
}

/// A waiter that is let in after more than a second was told, at that moment, that it waits for ever: the holder of its last question was
/// looked at once more, with the grant.
#[tokio::test(start_paused = true)]
async fn whoever_is_let_in_is_not_warned_about_the_former_holder() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    let lock = actor.lock();
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    pass(ms(1500)).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert_eq!(warnings(&heard), [""; 0]);
}

//! Classes of waiters: which settings are refused with one, and what a waiter of one shares with the others of its process.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure::{AcquireError, ConfigError, Lock, Priority};
use tenure_testkit::host::pass;

use crate::stage::{Deaf, Stage, TTL};

/// L7: a task of a higher class does not stand behind other tasks of its process, although one of them asks the store for all.
#[tokio::test(start_paused = true)]
async fn an_urgent_task_passes_the_tasks_of_its_own_process() {
    let stage = Stage::new();
    let actor = stage.actor();
    let lock = || actor.lock().ttl(TTL);
    let guard = lock().acquire().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    let classes = [Priority::Normal, Priority::Normal, Priority::Low, Priority::Urgent];
    for (n, class) in classes.into_iter().enumerate() {
        let (lock, order) = (lock().priority(class), order.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            order.lock().unwrap().push(n);
            // Longer than a lease is passed on.
            pass(Duration::from_millis(50)).await;
            guard.release().await.unwrap();
        }));
        pass(Duration::from_millis(20)).await;
    }
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    // The first of the default class has had its turn from this process; the next one comes behind the urgent one.
    let order = order.lock().unwrap().clone();
    let place = |n: usize| order.iter().position(|other| *other == n).unwrap();
    assert!(place(3) <= 1 && place(3) < place(1) && place(2) == 3, "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn a_class_is_refused_with_what_has_one_order() {
    let stage = Stage::new();
    let actor = stage.actor();
    let refused = |error: AcquireError| matches!(error, AcquireError::Config(ConfigError::NoPriority { .. }));
    for lock in [
        actor.locks.mutex("stage").priority(Priority::High).latest(),
        actor.locks.mutex("stage").priority(Priority::Low).replace(),
        actor.locks.mutex("stage").priority(Priority::Urgent).keep_idle(TTL),
    ] {
        assert!(refused(lock.acquire().await.unwrap_err()));
    }
    let mut plain = Deaf::new(&stage.store);
    plain.promises.classes = false;
    let plain = stage.actor_on(Arc::new(plain));
    assert!(refused(plain.lock().priority(Priority::Low).acquire().await.unwrap_err()));
    let normal = |lock: Lock| lock.priority(Priority::Normal);
    normal(plain.lock()).acquire().await.unwrap().release().await.unwrap();
    normal(actor.lock().latest()).acquire().await.unwrap().release().await.unwrap();
}

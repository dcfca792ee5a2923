//! Settings that cannot be honoured are refused before anything is sent.

use std::{sync::Arc, time::Duration};

use tenure::{
    AcquireError, ConfigError, ErrorKind, HoldError, Lock,
    backend::{Outcome, Sharing},
};
use tenure_testkit::gate::Verb;

use crate::stage::{Actor, Deaf, Stage, ms};

/// The refusal, which every way to acquire gives.
async fn refusal(actor: &Actor, lock: Lock) -> ConfigError {
    let answers = [
        lock.acquire().await.map(drop),
        lock.clone().within(ms(1_000)).acquire().await.map(drop),
        lock.try_acquire().await.map(drop),
        lock.hold(|_| async {}).await.map_err(|error| match error {
            HoldError::Acquire(error) => error,
            other => panic!("{other:?}"),
        }),
    ];
    assert_eq!(actor.gates.asked(Verb::Claim), 0, "something was sent");
    let errors = answers.map(|answer| match answer {
        Err(AcquireError::Config(error)) => error,
        other => panic!("{other:?}"),
    });
    assert!(errors.iter().all(|error| error.to_string() == errors[0].to_string()));
    errors[0].clone()
}

#[tokio::test(start_paused = true)]
async fn a_bad_name_is_refused() {
    let stage = Stage::new();
    let actor = stage.actor();
    for bad in ["", "a\nb", "a\0", &"x".repeat(513)] {
        let error = refusal(&actor, actor.locks.mutex(bad)).await;
        assert!(matches!(error, ConfigError::Name(_)), "{bad:?}: {error:?}");
        let error = refusal(&actor, actor.locks.rwlock(bad).read()).await;
        assert!(matches!(error, ConfigError::Name(_)), "{bad:?}: {error:?}");
    }
}

/// Hazard 40.
#[tokio::test(start_paused = true)]
async fn a_ttl_outside_the_bounds_is_refused() {
    let stage = Stage::new();
    let actor = stage.actor();
    for bad in [Duration::ZERO, ms(99), Duration::from_secs(25 * 3600), Duration::MAX] {
        let error = refusal(&actor, actor.locks.mutex("x").ttl(bad)).await;
        assert!(matches!(error, ConfigError::Ttl(_)), "{bad:?}: {error:?}");
    }
    for good in [ms(100), Duration::from_secs(24 * 3600)] {
        assert!(actor.locks.mutex("x").ttl(good).try_acquire().await.unwrap().is_some(), "{good:?}");
        assert!(actor.locks.flush(ms(1_000)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_semaphore_without_slots_is_refused() {
    let stage = Stage::new();
    let actor = stage.actor();
    let error = refusal(&actor, actor.locks.semaphore("x", 0)).await;
    assert!(matches!(error, ConfigError::NoSlots), "{error:?}");
}

/// A claim takes at least one permit, no more than there are, and only of a semaphore that is counted.
#[tokio::test(start_paused = true)]
async fn permits_that_cannot_be_taken_are_refused() {
    let stage = Stage::new();
    let actor = stage.actor();
    for permits in [0, 4, u32::MAX] {
        let error = refusal(&actor, actor.locks.semaphore("x", 3).take(permits)).await;
        assert!(matches!(error, ConfigError::PermitsOutOfRange { slots: 3, .. }), "{permits}: {error:?}");
    }
    for lock in [actor.locks.mutex("x"), actor.locks.rwlock("x").read()] {
        let error = refusal(&actor, lock.take(1)).await;
        assert!(matches!(error, ConfigError::NoPermits), "{error:?}");
    }
    let mut store = Deaf::new(&stage.store);
    store.promises.sharing = Sharing::Slots { most: 8 };
    let slots = stage.actor_on(Arc::new(store));
    let error = refusal(&slots, slots.locks.semaphore("x", 3).take(2)).await;
    assert!(matches!(error, ConfigError::OnePermit { .. }), "{error:?}");
    let all = actor.locks.semaphore("x", 3).take(3).acquire().await.unwrap();
    assert_eq!(actor.locks.inspect("x").await.unwrap().holders[0].mode.permits(), 3);
    assert!(actor.locks.semaphore("x", 3).try_acquire().await.unwrap().is_none());
    all.release().await.unwrap();
}

/// Where a store accepts less than 10 s, every lock without a ttl of its own was refused: the default did not know the store.
#[tokio::test(start_paused = true)]
async fn who_names_no_ttl_gets_no_more_than_the_store_accepts() {
    let stage = Stage::new();
    for (max_ttl, ttl) in [(ms(3_000), ms(3_000)), (ms(10_000), ms(10_000)), (ms(60_000), ms(10_000))] {
        let mut store = Deaf::new(&stage.store);
        store.promises.max_ttl = max_ttl;
        let actor = stage.actor_on(Arc::new(store));
        assert_eq!(actor.locks.promises().default_ttl(), ttl);
        let guard = actor.locks.mutex("x").acquire().await.unwrap();
        let left = actor.locks.inspect("x").await.unwrap().holders[0].expires_in.unwrap();
        assert!(left > ttl - ms(100) && left <= ttl, "{left:?}");
        guard.release().await.unwrap();
        let longer = actor.locks.mutex("x").ttl(max_ttl + ms(1)).acquire().await;
        assert!(matches!(longer, Err(AcquireError::Config(ConfigError::TtlAboveMaximum { .. }))));
    }
}

/// A name is any text, wherever one is asked for; a bad one is refused before anything is sent.
#[tokio::test(start_paused = true)]
async fn a_bad_name_is_refused_by_every_question() {
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    let (owner, locks) = (guard.owner(), &actor.locks);
    assert_eq!(
        locks.inspect(String::from("stage")).await.unwrap(),
        locks.inspect(guard.name()).await.unwrap()
    );
    let refused = [
        locks.inspect("").await.map(drop),
        locks.force_release("a\nb").await.map(drop),
        locks.detached("stage", owner).unwrap().renew(ms(99)).await.map(drop),
    ];
    assert!(matches!(locks.detached("", owner), Err(ConfigError::Name(_))));
    for answer in refused {
        let error = answer.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Invalid, Outcome::NotApplied), "{error}");
    }
    assert_eq!(actor.gates.asked(Verb::Renew) + actor.gates.asked(Verb::Release), 0);
    assert_eq!(guard.check(), Ok(()));
}

/// L8: on a quorum each slot is a lock of its own, and nothing bounded how many were asked for. Where it has as many as are
/// counted, they are no locks at all.
#[tokio::test(start_paused = true)]
async fn a_semaphore_of_more_slots_than_the_backend_has_is_refused() {
    let stage = Stage::new();
    let mut store = Deaf::new(&stage.store);
    store.promises.sharing = Sharing::Slots { most: 8 };
    let actor = stage.actor_on(Arc::new(store));
    for slots in [9, 400_000_000, u32::MAX] {
        let error = refusal(&actor, actor.locks.semaphore("x", slots)).await;
        assert!(matches!(error, ConfigError::TooManySlots { most: 8, .. }), "{slots}: {error:?}");
    }
    assert!(actor.locks.semaphore("x", 8).try_acquire().await.unwrap().is_some());
    let counted = stage.actor();
    assert!(counted.locks.semaphore("y", u32::MAX).try_acquire().await.unwrap().is_some());
}

/// The message names the parameter that helps.
#[tokio::test(start_paused = true)]
async fn what_the_backend_does_not_promise_is_refused() {
    let stage = Stage::new();
    let mut store = Deaf::new(&stage.store);
    store.promises.sharing = Sharing::No;
    store.promises.max_ttl = ms(30_000);
    store.promises.max_ttl_parameter = Some("max_ttl");
    let actor = stage.actor_on(Arc::new(store));
    let error = refusal(&actor, actor.locks.mutex("x").ttl(ms(30_001))).await;
    assert!(matches!(error, ConfigError::TtlAboveMaximum { .. }), "{error:?}");
    assert!(error.to_string().ends_with("raise it with ?max_ttl="), "{error}");
    for lock in [actor.locks.rwlock("x").read(), actor.locks.semaphore("x", 3)] {
        let error = refusal(&actor, lock).await;
        assert!(matches!(error, ConfigError::NotShared { .. }), "{error:?}");
    }
    for lock in [actor.locks.rwlock("x").write(), actor.locks.mutex("y").ttl(ms(30_000))] {
        assert!(lock.try_acquire().await.unwrap().is_some());
    }
}

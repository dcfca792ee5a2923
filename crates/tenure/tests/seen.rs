//! What is seen of a lock: one warning of each loss, an outcome on each span, and metrics.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use tenure::{AcquireError, Guard, Loss, ReleaseError};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
};

use crate::heard::Heard;
use crate::stage::{Stage, TTL, VALIDITY, ms};

/// The warnings of a loss.
fn losses(heard: &Heard) -> Vec<String> {
    heard.lines().into_iter().filter(|line| line.contains("WARN") && line.contains("lease lost")).collect()
}

/// How the spans of this name ended, in the order in which they did.
fn outcomes(heard: &Heard, name: &str) -> Vec<String> {
    let is_close = |line: &String| line.contains(&format!(" {name}{{")) && line.contains(": close ");
    let outcome = |line: String| {
        let said = line.matches("outcome=").count();
        assert_eq!(said, 1, "{line}");
        line.split("outcome=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    heard.lines().into_iter().filter(is_close).map(outcome).collect()
}

/// The only warning of a loss that was heard, and what it must say.
fn is_warned_once(heard: &Heard, guard: &(String, String), cause: &str) -> String {
    let losses = losses(heard);
    let [line] = &losses[..] else { panic!("{:#?}", heard.lines()) };
    let (owner, token) = guard;
    for field in [
        "lock=stage",
        &format!("owner={owner}"),
        &format!("token={token}"),
        &format!("cause=\"{cause}\""),
        "held=",
        "backend=\"memory\"",
    ] {
        assert!(line.contains(field), "{field} is missing in {line}");
    }
    line.clone()
}

async fn named(stage: &Stage, guard: &Guard) -> (String, String) {
    (stage.holder().await.to_string(), guard.token().to_string())
}

/// The keeper finds it, although the holder never asks.
#[tokio::test(start_paused = true)]
async fn a_lease_that_expires_is_warned_of_once_even_if_its_holder_never_looks() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    let named = named(&stage, &guard).await;
    actor.set(Verb::Renew, Gate::Hang);
    pass(VALIDITY - ms(100)).await;
    assert_eq!(losses(&heard), [""; 0]);
    pass(ms(200)).await;
    let line = is_warned_once(&heard, &named, "expired");
    assert!(line.contains("held=9.8") || line.contains("held=9.9"), "{line}");
    assert_eq!(guard.check().unwrap_err().cause(), Loss::Expired);
    assert!(matches!(guard.release().await, Err(ReleaseError::AlreadyLost(_))));
    pass(TTL).await;
    is_warned_once(&heard, &named, "expired");
    assert_eq!(outcomes(&heard, "hold"), ["lost"]);
}

/// A look at the clock finds it before the keeper does: the machine slept.
#[tokio::test(start_paused = true)]
async fn a_loss_that_a_check_finds_first_is_warned_of_once() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    let named = named(&stage, &guard).await;
    stage.host.suspend(TTL);
    assert!(guard.check().is_err());
    is_warned_once(&heard, &named, "expired");
    pass(TTL).await;
    drop(guard);
    is_warned_once(&heard, &named, "expired");
    assert_eq!(outcomes(&heard, "hold"), ["lost"]);
}

/// A lease that was dropped after it had expired was lost before.
#[tokio::test(start_paused = true)]
async fn a_loss_that_is_found_when_the_guard_is_dropped_is_warned_of_once() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let guard = stage.actor().acquire().await;
    let named = named(&stage, &guard).await;
    stage.host.suspend(TTL);
    drop(guard);
    is_warned_once(&heard, &named, "expired");
    pass(TTL).await;
    is_warned_once(&heard, &named, "expired");
    assert_eq!(outcomes(&heard, "hold"), ["lost"]);
}

/// The store tells the holder, or a renewal, that the lease was broken.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_broken_is_warned_of_once() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    let (named, lease) = (named(&stage, &guard).await, guard.lease());
    pass(ms(1)).await;
    stage.break_lock().await;
    assert_eq!(lease.lost().await.cause(), Loss::Taken);
    pass(TTL).await;
    is_warned_once(&heard, &named, "taken");
    drop(guard);
    assert_eq!(
        (outcomes(&heard, "hold"), outcomes(&heard, "renewal")),
        (vec!["lost".into()], vec!["gone".into()])
    );
}

/// Nothing was known of the loss before the store answered the release.
#[tokio::test(start_paused = true)]
async fn a_loss_that_a_release_finds_is_warned_of_once() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    let named = named(&stage, &guard).await;
    stage.break_lock().await;
    assert!(matches!(guard.release().await, Err(ReleaseError::AlreadyLost(_))));
    pass(TTL).await;
    is_warned_once(&heard, &named, "taken");
    assert_eq!(outcomes(&heard, "hold"), ["lost"]);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_bounded_is_warned_of_when_it_ends_by_that() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let guard = stage.actor().lock().max_hold(ms(1500)).acquire().await.unwrap();
    let named = named(&stage, &guard).await;
    pass(ms(1600)).await;
    is_warned_once(&heard, &named, "max_hold");
}

/// What is released, dropped or detached is not lost, however long ago that was.
#[tokio::test(start_paused = true)]
async fn what_is_released_dropped_or_detached_is_not_warned_of() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    let released = actor.acquire().await;
    let leases = [released.lease()];
    released.release().await.unwrap();
    drop(actor.acquire().await);
    let detached = actor.acquire().await;
    let [released] = leases;
    let lease = detached.lease();
    detached.detach().await.unwrap();
    pass(3 * TTL).await;
    assert_eq!(released.check().unwrap_err().cause(), Loss::Released);
    assert_eq!(lease.check().unwrap_err().cause(), Loss::Expired, "it goes by the clock alone");
    pass(TTL).await;
    assert_eq!(losses(&heard), [""; 0]);
    assert_eq!(outcomes(&heard, "hold"), ["released", "dropped", "detached"]);
}

/// A release that is not answered leaves the hold unknown; one that is cancelled is a drop.
#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_is_unknown_and_a_cancelled_one_is_a_drop() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    actor.gates.plan(Verb::Release, &[Gate::LoseReply], Gate::Open);
    assert!(matches!(actor.acquire().await.release().await, Err(ReleaseError::Unknown(_))));
    pass(TTL).await;
    actor.gates.plan(Verb::Release, &[Gate::Hang], Gate::Open);
    assert!(tokio::time::timeout(ms(50), actor.acquire().await.release()).await.is_err());
    pass(3 * TTL).await;
    assert_eq!(outcomes(&heard, "hold"), ["unknown", "dropped"]);
    assert_eq!(losses(&heard), [""; 0]);
}

/// Of guards that share a lease one after the other, the last one alone loses it. A lease that is kept idle has no holder
/// that could lose it.
#[tokio::test(start_paused = true)]
async fn only_a_holder_loses_a_lease_that_is_passed_on_or_kept_idle() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    let lock = actor.mutex().keep_idle(10 * TTL);
    lock.acquire().await.unwrap().release().await.unwrap();
    actor.set(Verb::Renew, Gate::Hang);
    pass(2 * TTL).await;
    assert_eq!(losses(&heard), [""; 0], "no client held it");
    actor.set(Verb::Renew, Gate::Open);
    lock.acquire().await.unwrap().release().await.unwrap();
    pass(ms(5)).await;
    let guard = lock.acquire().await.unwrap();
    let named = named(&stage, &guard).await;
    actor.set(Verb::Renew, Gate::Hang);
    pass(2 * TTL).await;
    is_warned_once(&heard, &named, "expired");
    drop(guard);
    assert_eq!(outcomes(&heard, "hold"), ["released", "released", "lost"]);
}

/// Also of a future that was dropped while it waited.
#[tokio::test(start_paused = true)]
async fn each_acquisition_says_how_it_ended() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let guard = other.acquire().await;
    assert!(matches!(actor.lock().within(ms(300)).acquire().await, Err(AcquireError::TimedOut { .. })));
    assert!(actor.lock().try_acquire().await.unwrap().is_none());
    assert!(tokio::time::timeout(ms(50), actor.lock().acquire()).await.is_err());
    actor.set(Verb::Claim, Gate::Refuse);
    assert!(matches!(actor.lock().within(ms(300)).acquire().await, Err(AcquireError::Store(_))));
    drop(guard);
    let expected = ["acquired", "timed_out", "timed_out", "cancelled", "failed"];
    assert_eq!(outcomes(&heard, "acquire"), expected);
}

#[tokio::test(start_paused = true)]
async fn each_renewal_says_what_came_of_it() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    actor.gates.plan(Verb::Renew, &[Gate::Refuse, Gate::LoseReply, Gate::Open], Gate::Hang);
    let guard = actor.acquire().await;
    pass(TTL).await;
    stage.break_lock().await;
    drop(guard);
    drop(actor);
    pass(TTL).await;
    let outcomes = outcomes(&heard, "renewal");
    assert_eq!(outcomes[..3], ["failed", "unknown", "renewed"]);
    assert!(outcomes[3..].iter().all(|outcome| outcome == "unknown") && outcomes.len() > 3, "{outcomes:?}");
}

#[cfg(feature = "metrics")]
mod metrics {
    use std::time::Duration;

    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

    use super::*;
    use crate::stage::Actor;

    /// A process whose metrics are those of the second alone.
    fn counted(stage: &Stage) -> (Actor, PrometheusHandle) {
        let recorder = PrometheusBuilder::new().set_buckets(&[1.0, 10.0]).unwrap().build_recorder();
        (::metrics::with_local_recorder(&recorder, || stage.actor()), recorder.handle())
    }

    /// The value of the series that is written like this; zero if there is none.
    fn value(handle: &PrometheusHandle, series: &str) -> f64 {
        let text = handle.render();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    #[track_caller]
    fn are(handle: &PrometheusHandle, expected: &[(&str, f64)]) {
        for (series, expected) in expected {
            let found = value(handle, series);
            assert!(
                (found - expected).abs() < 0.06,
                "{series} is {found}, not {expected}: {}",
                handle.render()
            );
        }
    }

    /// A run with a wait, a hold, a failed renewal and a loss.
    #[tokio::test(start_paused = true)]
    async fn a_wait_a_hold_a_failed_renewal_and_a_loss_are_counted() {
        let stage = Stage::new();
        let (actor, handle) = counted(&stage);
        let first = stage.actor().acquire().await;
        let (second, third) = (actor.waiting(), actor.waiting());
        stage.settle(1, 2).await;
        assert!(actor.lock().try_acquire().await.unwrap().is_none());
        pass(Duration::from_secs(2)).await;
        first.release().await.unwrap();
        let second = second.await.unwrap();
        are(&handle, &[("tenure_leases_held{backend=\"memory\"}", 1.0)]);
        actor.gates.plan(Verb::Renew, &[Gate::Refuse, Gate::Open], Gate::Open);
        pass(Duration::from_secs(4)).await;
        second.release().await.unwrap();
        let third = third.await.unwrap();
        actor.set(Verb::Renew, Gate::LoseReply);
        stage.break_lock().await;
        pass(TTL).await;
        drop(third);
        pass(TTL).await;
        are(
            &handle,
            &[
                (
                    "tenure_acquire_seconds_count{backend=\"memory\",mode=\"exclusive\",outcome=\"acquired\"}",
                    2.0,
                ),
                (
                    "tenure_acquire_seconds_sum{backend=\"memory\",mode=\"exclusive\",outcome=\"acquired\"}",
                    8.0,
                ),
                (
                    "tenure_acquire_seconds_count{backend=\"memory\",mode=\"exclusive\",outcome=\"timed_out\"}",
                    1.0,
                ),
                ("tenure_queue_ahead_count{backend=\"memory\"}", 2.0),
                ("tenure_queue_ahead_sum{backend=\"memory\"}", 1.0),
                ("tenure_leases_held{backend=\"memory\"}", 0.0),
                ("tenure_hold_seconds_count{backend=\"memory\",outcome=\"released\"}", 1.0),
                ("tenure_hold_seconds_sum{backend=\"memory\",outcome=\"released\"}", 4.0),
                ("tenure_hold_seconds_count{backend=\"memory\",outcome=\"lost\"}", 1.0),
                ("tenure_hold_seconds_sum{backend=\"memory\",outcome=\"lost\"}", VALIDITY.as_secs_f64()),
                ("tenure_hold_seconds_count{backend=\"memory\",outcome=\"dropped\"}", 0.0),
                ("tenure_renewals_total{backend=\"memory\",result=\"failed\"}", 1.0),
                ("tenure_renewals_total{backend=\"memory\",result=\"renewed\"}", 1.0),
                ("tenure_renewals_total{backend=\"memory\",result=\"gone\"}", 0.0),
                ("tenure_renewal_margin_seconds_count{backend=\"memory\"}", 1.0),
                ("tenure_leases_lost_total{backend=\"memory\",cause=\"expired\"}", 1.0),
                ("tenure_leases_lost_total{backend=\"memory\",cause=\"taken\"}", 0.0),
                ("tenure_releases_total{backend=\"memory\",outcome=\"released\"}", 1.0),
            ],
        );
        // A ttl/3 and a ttl/24 after it was acquired.
        let margin = value(&handle, "tenure_renewal_margin_seconds_sum{backend=\"memory\"}");
        assert!((5.5..6.7).contains(&margin), "{margin}");
        assert!(value(&handle, "tenure_renewals_total{backend=\"memory\",result=\"unknown\"}") > 3.0);
    }

    /// An alert on a counter that is not there before its first event does not see that event.
    #[tokio::test(start_paused = true)]
    async fn what_has_not_happened_is_counted_as_zero() {
        let (_actor, handle) = counted(&Stage::new());
        let text = handle.render();
        for series in [
            "tenure_leases_lost_total{backend=\"memory\",cause=\"max_hold\"} 0",
            "tenure_renewals_total{backend=\"memory\",result=\"failed\"} 0",
            "tenure_releases_total{backend=\"memory\",outcome=\"given_up\"} 0",
            "tenure_leases_held{backend=\"memory\"} 0",
            "# TYPE tenure_leases_lost_total counter",
            "# HELP tenure_leases_lost_total Leases that a holder lost, by cause.",
        ] {
            assert!(text.contains(series), "{series} is missing in {text}");
        }
    }

    /// Each of them is a hold of its own, and none is left over.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_passed_on_or_kept_idle_counts_once_for_each_holder() {
        let stage = Stage::new();
        let (actor, handle) = counted(&stage);
        let lock = actor.mutex().keep_idle(TTL);
        // From now on the keeper hears whether a client waits elsewhere: before that no lease is kept.
        drop(actor.locks.mutex("other").acquire().await.unwrap());
        pass(ms(5)).await;
        let first = lock.acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap() }
        });
        pass(ms(5)).await;
        first.release().await.unwrap();
        let second = waiting.await.unwrap();
        are(&handle, &[("tenure_leases_held{backend=\"memory\"}", 1.0)]);
        second.release().await.unwrap();
        are(&handle, &[("tenure_leases_held{backend=\"memory\"}", 0.0)]);
        drop(lock.acquire().await.unwrap());
        assert!(actor.locks.flush(TTL).await);
        are(
            &handle,
            &[
                ("tenure_hold_seconds_count{backend=\"memory\",outcome=\"released\"}", 2.0),
                ("tenure_hold_seconds_count{backend=\"memory\",outcome=\"dropped\"}", 2.0),
                ("tenure_releases_total{backend=\"memory\",outcome=\"passed_on\"}", 2.0),
                ("tenure_releases_total{backend=\"memory\",outcome=\"released\"}", 0.0),
                ("tenure_leases_held{backend=\"memory\"}", 0.0),
                ("tenure_leases_lost_total{backend=\"memory\",cause=\"expired\"}", 0.0),
            ],
        );
    }

    /// A release that the background gives up is to be seen.
    #[tokio::test(start_paused = true)]
    async fn a_release_that_is_given_up_is_counted() {
        let stage = Stage::new();
        let (actor, handle) = counted(&stage);
        let guard = actor.acquire().await;
        actor.set(Verb::Release, Gate::Refuse);
        assert!(guard.release().await.is_err());
        pass(3 * TTL).await;
        are(
            &handle,
            &[
                ("tenure_releases_total{backend=\"memory\",outcome=\"unknown\"}", 1.0),
                ("tenure_releases_total{backend=\"memory\",outcome=\"given_up\"}", 1.0),
                ("tenure_hold_seconds_count{backend=\"memory\",outcome=\"unknown\"}", 1.0),
            ],
        );
    }

    /// Names of locks are a label only where a program asks for it, and no more than a hundred of them.
    #[tokio::test(start_paused = true)]
    async fn names_of_locks_are_a_label_if_asked_for_and_are_bounded() {
        let stage = Stage::new();
        let (recorder, actor) = {
            let recorder = PrometheusBuilder::new().build_recorder();
            let actor = ::metrics::with_local_recorder(&recorder, || stage.actor());
            (recorder, actor)
        };
        let handle = recorder.handle();
        let _local = ::metrics::set_default_local_recorder(&recorder);
        actor.acquire().await.release().await.unwrap();
        assert!(!handle.render().contains("lock="));
        actor.locks.metrics_by_lock();
        for number in 0..110 {
            let lock = actor.locks.mutex(format!("lock-{number}"));
            lock.acquire().await.unwrap().release().await.unwrap();
        }
        let released = "outcome=\"released\"";
        are(
            &handle,
            &[
                (&format!("tenure_releases_total{{backend=\"memory\",lock=\"lock-7\",{released}}}"), 1.0),
                (&format!("tenure_releases_total{{backend=\"memory\",lock=\"lock-99\",{released}}}"), 1.0),
                (&format!("tenure_releases_total{{backend=\"memory\",lock=\"lock-100\",{released}}}"), 0.0),
                (&format!("tenure_releases_total{{backend=\"memory\",{released}}}"), 11.0),
            ],
        );
    }
}

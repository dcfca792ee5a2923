//! Leases in Redis that are lost, or nearly: a server that hangs, dies or forgets, a network that breaks, a robbery.

#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::{
    future::pending,
    time::{Duration, Instant},
};

use tenure::{Guard, HoldError, Locker, Loss, ReleaseError};
use tenure_testkit::{
    patience::{slowness, stretch},
    redis::{RedisServer, Reply},
};
use tokio::sync::oneshot;

use crate::redis_stage::{
    Flag, LONG, NAME, PATIENCE, Stage, acquire, connect, drained, entry, in_time, ms, name, renewed, until,
    waiting,
};

/// How much later than it should a busy machine may tell.
fn late() -> Duration {
    Duration::from_millis(300) * slowness()
}

/// How the lease was lost, and when `lost` told.
async fn loss(guard: &Guard) -> (Loss, Instant) {
    let lost = in_time(guard.lost()).await;
    let at = Instant::now();
    assert_eq!(guard.check(), Err(lost), "both tell the same");
    assert_eq!(guard.remaining(), Duration::ZERO);
    (lost.cause(), at)
}

async fn holder(stage: &Stage, ttl: Duration) -> (Locker, Guard) {
    let locks = stage.locks("").await;
    let guard = acquire(locks.mutex(NAME).ttl(ttl)).await;
    (locks, guard)
}

/// L1, hazard 60: not later than validity ends, which is before the server lets anybody else in; and not much earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_costs_the_lease_at_the_end_of_its_validity() {
    let (stage, ttl) = (Stage::new().await, ms(2_000) * stretch());
    let (locks, guard) = holder(&stage, ttl).await;
    let token = guard.token();
    // In the middle of a hold, and not when a renewal is on its way.
    renewed(&guard);
    stage.assert_no_belief_beyond_the_server(&guard);
    stage.server.stop();
    let ends = Instant::now() + guard.remaining();
    in_time(guard.renewal_failing()).await;
    assert_eq!(guard.check(), Ok(()), "the first of the two signals comes while it holds");
    let (cause, at) = loss(&guard).await;
    assert_eq!(cause, Loss::Expired);
    assert!(at >= ends, "{:?} too early", ends - at);
    assert!(at <= ends + late(), "{:?} too late", at - ends);

    let next = waiting(&locks, ttl);
    stage.server.resume();
    let (next, _) = entry(next).await;
    assert!(next.token() > token, "L2");
    drop(guard);
    drained(&locks).await;
    assert_eq!(next.check(), Ok(()), "L4");
}

/// L1: the same at the end of a lease that the server keeps for longer than we believe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_fails_before_a_server_that_hung_lets_anybody_else_in() {
    let (stage, ttl) = (Stage::new().await, ms(1_000));
    let (_locks, guard) = holder(&stage, ttl).await;
    stage.server.stop();
    let mut raw = stage.server.raw();
    // Done as soon as the server goes on, and before anything that was sent later.
    raw.send(&["SET", NAME, "next", "NX", "PX", "60000"]).unwrap();
    let mut answers = stage.server.raw();
    while guard.check().is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(guard.check().unwrap_err().cause(), Loss::Expired);
    tokio::time::sleep(ttl / 10).await;
    stage.server.resume();
    assert_eq!(raw.read().unwrap(), Reply::Text("OK".into()));
    assert_eq!(answers.command(&["GET", NAME]), Reply::Text("next".into()));
    assert!(guard.check().is_err(), "L5");
}

/// L1, hazard 16: a new connection is made and the lease renewed over it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_in_the_middle_of_a_hold_does_not_cost_the_lease() {
    let (stage, ttl) = (Stage::new().await, ms(3_000));
    let far = stage.far("").await;
    let guard = acquire(far.locks.mutex(NAME).ttl(ttl)).await;
    far.proxy.cut();
    far.proxy.heal();
    outlives(&guard, ttl).await;
    in_time(guard.release()).await.unwrap();
}

/// L1, hazard 16: the same where nobody tells that the connection is dead, as when a firewall forgot it. A request that stays
/// unanswered for the response time-out, by default 1 s, says so; a lease of five times that leaves time for another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_goes_silent_in_the_middle_of_a_hold_does_not_cost_the_lease() {
    let stage = Stage::new().await;
    let cases = [("&response_timeout=300ms", ms(3_000)), ("", ms(5_000))];
    let holds = cases.map(async |(query, ttl)| {
        let far = stage.far(query).await;
        let key = format!("silent/{}", ttl.as_millis());
        let guard = acquire(far.locks.mutex(&key).ttl(ttl)).await;
        far.proxy.stall();
        far.proxy.pass_new();
        outlives(&guard, ttl).await;
        // It goes over the connection that has been silent all the time.
        let answer = in_time(guard.release()).await;
        assert!(matches!(answer, Ok(()) | Err(ReleaseError::Unknown(_))), "{answer:?}");
        let is_free = async || stage.value(&key).is_none();
        until("it is released in the background", PATIENCE, is_free).await;
    });
    let [first, second] = holds;
    tokio::join!(first, second);
}

/// Watches a lease for longer than it lasts unless it is renewed.
async fn outlives(guard: &Guard, ttl: Duration) {
    let began = Instant::now();
    while began.elapsed() < ttl + ttl / 4 {
        assert_eq!(guard.check(), Ok(()), "{guard:?}, a lease of {ttl:?}, after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// L1: whoever is robbed by a server that lost everything knows it no later than at the end of validity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_killed_and_came_back_empty_costs_the_lease_in_time() {
    for comes_back in [true, false] {
        let (stage, ttl) = (Stage::new().await, ms(2_000));
        let (_locks, guard) = holder(&stage, ttl).await;
        stage.server.kill();
        let ends = Instant::now() + guard.remaining();
        if comes_back {
            stage.server.start_again();
        }
        let (cause, at) = loss(&guard).await;
        assert!(at <= ends + late(), "{:?} too late", at - ends);
        // If the server took its time to start, validity ended first.
        assert!(cause == Loss::Expired || (comes_back && cause == Loss::Taken), "{cause:?}");
        if !comes_back {
            assert!(at >= ends, "{:?} too early", ends - at);
            stage.server.start_again();
        }
        // The same process goes on with the new server.
        let again = acquire(stage.locks("").await.mutex(NAME).ttl(ttl)).await;
        assert!(again.token() > guard.token(), "L2: the counter begins at the server's time");
    }
}

/// A robbed holder is told at once, and does not wait for its renewal, which is due after 200 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_broken_elsewhere_is_lost_at_once() {
    let stage = Stage::new().await;
    for protocol in ["&protocol=3", "&protocol=2"] {
        let locks = stage.locks(protocol).await;
        let guard = acquire(locks.mutex(NAME).ttl(LONG)).await;
        let unhurt = acquire(locks.mutex("other").ttl(LONG)).await;
        stage.hears_of_robbery(&guard);
        let robbed = stage.locks(protocol).await.force_release(&name(NAME)).await.unwrap();
        assert_eq!(robbed.len(), 1);
        assert_eq!(robbed[0].owner, guard.owner().to_string());
        let (cause, _) = loss(&guard).await;
        assert_eq!(cause, Loss::Taken, "{protocol}");
        assert_eq!(unhurt.check(), Ok(()), "{protocol}");
        unhurt.release().await.unwrap();
    }
}

/// L1, H1.6: the connection of a holder is lost, and the hint that it was robbed with it. Its next renewal is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_broken_while_its_holder_is_cut_off_is_lost_when_it_is_back() {
    let (stage, ttl) = (Stage::new().await, ms(3_000));
    let far = stage.far("").await;
    let guard = acquire(far.locks.mutex(NAME).ttl(ttl)).await;
    stage.hears_of_robbery(&guard);
    far.proxy.cut();
    assert_eq!(stage.watcher.force_release(&name(NAME)).await.unwrap().len(), 1);
    assert_eq!(guard.check(), Ok(()), "it cannot know");
    far.proxy.heal();
    let healed = Instant::now();
    let (cause, at) = loss(&guard).await;
    assert_eq!(cause, Loss::Taken);
    assert!(at - healed <= ttl / 3 + late(), "{:?}", at - healed);
}

/// Hazards 35 and 37: somebody else's DEL tells nobody, but the next renewal does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_foreign_client_deletes_is_lost_at_the_next_renewal() {
    let (stage, ttl) = (Stage::new().await, ms(3_000));
    let words: [&[&str]; 3] = [&["DEL", NAME], &["FLUSHALL"], &["SET", NAME, "foreign", "PX", "60000"]];
    for words in words {
        let (_locks, guard) = holder(&stage, ttl).await;
        let began = Instant::now();
        stage.ask(words);
        let (cause, at) = loss(&guard).await;
        assert_eq!(cause, Loss::Taken, "{words:?}");
        assert!(at - began <= ttl / 3 + late(), "{words:?}: {:?}", at - began);
    }
    assert_eq!(stage.value(NAME).as_deref(), Some("foreign"), "L4: nothing of ours touched it");
}

/// L1: work is dropped when the lease is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_drops_the_work_when_the_lease_is_lost() {
    let stage = Stage::new().await;
    for is_broken in [true, false] {
        let (lock, flag) = (stage.locks("").await.mutex(NAME).ttl(ms(3_000)), Flag::default());
        let was_dropped = flag.was_dropped();
        let (says, begun) = oneshot::channel();
        let held = tokio::spawn(async move {
            lock.hold(|_lease| async move {
                let _flag = flag;
                says.send(()).unwrap();
                pending::<()>().await;
            })
            .await
        });
        in_time(begun).await.unwrap();
        assert!(stage.held().is_some() && !was_dropped());
        let began = Instant::now();
        if is_broken {
            stage.watcher.force_release(&name(NAME)).await.unwrap();
        } else {
            stage.server.stop();
        }
        let answer = in_time(held).await.unwrap();
        let Err(HoldError::Lost(lost)) = answer else { panic!("{answer:?}") };
        assert_eq!(lost.cause(), if is_broken { Loss::Taken } else { Loss::Expired });
        assert!(was_dropped(), "the work goes on beside the next holder");
        assert!(began.elapsed() < ms(3_000) + late(), "{:?}", began.elapsed());
    }
    stage.server.resume();
    stage.settle(0, 0).await;
}

/// A server that is not there, and one that comes later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_bears_a_server_that_is_away_for_a_while() {
    let server = RedisServer::start();
    let locks = connect(server.port(), "").await;
    let guard = acquire(locks.mutex(NAME).ttl(LONG)).await;
    server.kill();
    let next = waiting(&connect(server.port(), "").await, LONG);
    assert!(in_time(guard.release()).await.is_err(), "nobody hears it");
    server.start_again();
    let (next, _) = entry(next).await;
    drained(&locks).await;
    assert_eq!(next.check(), Ok(()));
}

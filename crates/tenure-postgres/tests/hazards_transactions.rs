//! Poolers, isolation, clocks and strangers' transactions (hazards 54, 55, 56): what goes wrong with other locks in SQL.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tenure_core::{ErrorKind, Outcome, Released, Renewal};
use tenure_testkit::{
    conformance::player::Player,
    patience::{slowness, stretch},
    postgres::{Pgbouncer, PostgresServer, Recipe},
};

use crate::stage::{
    enter_in_time, is_anybody_waiting, lock_row, player, postgres, soon, statements, talkative, until,
};

/// L1, L2: processes that come and go through one lock; each finds it empty and has a larger token than everybody before.
async fn contend(url: &str, processes: usize, rounds: usize) {
    let (inside, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks = (0..processes).map(|_| {
        let (url, inside, last) = (url.to_owned(), inside.clone(), last.clone());
        async move {
            let backend = postgres(&url);
            for _ in 0..rounds {
                let player = Player::new(backend.clone(), "contended");
                let token = enter_in_time(&player).await.token.get();
                assert_eq!(inside.fetch_add(1, SeqCst), 0, "two are inside");
                assert!(last.swap(token, SeqCst) < token, "tokens grow");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, SeqCst);
                assert_eq!(player.leave().await, Released::Released);
            }
        }
    });
    join_all(tasks).await;
}

/// Hazard 54: each statement may run on another connection, and none may leave anything in it.
#[tokio::test]
async fn through_a_pooler_one_holds_at_a_time_and_nothing_is_left_behind() {
    let server = talkative();
    let pooler = Pgbouncer::before(&server);
    contend(&pooler.url(""), 12, 5).await;
    assert_eq!(server.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "0");
    let said = statements(&server);
    assert!(said.iter().any(|statement| statement.contains("execute <unnamed>: UPDATE")), "{said:#?}");
    // The pooler itself gives a connection the name that its client has.
    let foreign = ["pg_locks", "SET application_name="];
    let ours = said.iter().filter(|said| !foreign.iter().any(|foreign| said.contains(foreign)));
    for left in ["LISTEN", "SET ", "execute s", "BEGIN", "advisory", "PREPARE", "TEMP"] {
        let found: Vec<_> =
            ours.clone().filter(|said| said.contains(left) && !said.contains("UPDATE ")).collect();
        assert_eq!(found, Vec::<&String>::new(), "{left}");
    }
}

/// Hazard 54: who has no hints asks again, and is let in.
#[tokio::test]
async fn through_a_pooler_a_waiter_is_let_in_without_hints() {
    let server = PostgresServer::start();
    let pooler = Pgbouncer::before(&server);
    let (a, b) = (player(&pooler.url(""), "one"), player(&pooler.url(""), "one"));
    a.enter().await;
    assert!(b.queue_behind(0).await <= Duration::from_secs(2));
    a.leave().await;
    b.enter().await;
}

/// Hazard 56: the loser of a race is no loser of the lock.
#[tokio::test]
async fn in_every_isolation_a_lost_race_is_tried_again() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let settings = format!("default_transaction_isolation = '{isolation}'");
        let server = Recipe::new().config(&settings).start();
        contend(&server.url(""), 8, 6).await;
    }
}

/// H6.3, hazard 55: a stranger's transaction keeps a claim waiting; the lease lasts as long as its owner believes all the same.
#[tokio::test]
async fn a_lease_is_not_shorter_in_the_table_than_its_owner_believes() {
    let server = PostgresServer::start();
    let a = player(&server.url(""), "one");
    a.enter().await;
    a.leave().await;
    let stranger = lock_row(&server, "one").await;
    let sent = Instant::now();
    let (grant, ()) = tokio::join!(a.enter(), async {
        until("the claim waits for the row", async || is_anybody_waiting(&server)).await;
        stranger.batch_execute("ROLLBACK").await.unwrap();
    });
    let view = a.backend.inspect(&a.claim.name).await.unwrap();
    let left = view.holders[0].expires_in.unwrap();
    assert!(left + sent.elapsed() >= grant.ttl, "{left:?} left {:?} after it was sent", sent.elapsed());
}

/// A row that a stranger has locked does not stop other locks of the process: their renewals go on.
#[tokio::test]
async fn a_locked_row_stops_no_other_lock() {
    let server = PostgresServer::start();
    let backend = postgres(&server.url(""));
    // Long enough that no lease ends while a busy machine prepares the rest: what is gone is never renewed.
    let lasting = |name: &str| {
        let mut player = Player::new(backend.clone(), name);
        player.claim.ttl = Duration::from_secs(600);
        player
    };
    let stuck = lasting("stuck");
    let others: Vec<Player> = (0..5).map(|n| lasting(&format!("other/{n}"))).collect();
    let stuck_grant = stuck.enter().await;
    let mut grants = Vec::new();
    for other in &others {
        grants.push(other.enter().await);
    }
    let (leaving, late) = (lasting("leaving"), lasting("stuck"));
    leaving.enter().await;
    let strangers = [lock_row(&server, "stuck").await, lock_row(&server, "leaving").await];
    // As the engine does, which asks again.
    let told = Arc::new(AtomicU32::new(0));
    let waits = tokio::spawn({
        let told = told.clone();
        async move {
            while let Err(error) = late.backend.claim(&late.claim).await {
                assert!(error.kind().is_transient(), "{error:?}");
                told.fetch_add(1, Relaxed);
            }
        }
    });
    let hangs =
        tokio::spawn(async move { leaving.backend.release(&leaving.claim.name, leaving.claim.owner).await });
    until("the release waits for the row", async || is_anybody_waiting(&server)).await;
    let begun = Instant::now();
    for _ in 0..5 {
        // As the watchdog does, which gives up after a sixth of the ttl and asks again.
        let renewed = async || {
            let asked =
                tokio::time::timeout(Duration::from_millis(1667) * slowness(), backend.renew(&grants));
            asked
                .await
                .is_ok_and(|answers| answers.into_iter().all(|answer| answer.unwrap() == Renewal::Renewed))
        };
        until("the others are renewed", renewed).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(5) * slowness(), "{:?}", begun.elapsed());
    // The one that hung was stopped, and says so; the one that waited was told why.
    let answer = soon(hangs).await.unwrap();
    until("the claim is told", async || told.load(Relaxed) > 0).await;
    for stranger in strangers {
        stranger.batch_execute("ROLLBACK").await.unwrap();
    }
    if let Err(error) = answer {
        assert!(error.kind().is_transient(), "{error:?}");
    }
    soon(waits).await.unwrap();
    assert_eq!(stuck.renew(&stuck_grant).await, Renewal::Renewed);
}

/// L6: a claim of a row that a stranger has locked waits for it in short steps, so that the connection serves others in between, and
/// is told why. Its claim stood in line for as long as the stranger stayed, or until the connection was given up.
#[tokio::test]
async fn who_comes_to_a_row_that_a_stranger_has_locked_is_told() {
    let server = PostgresServer::start();
    let mut holder = player(&server.url(""), "one");
    holder.claim.ttl = Duration::from_secs(600);
    holder.enter().await;
    let late = player(&server.url(""), "one");
    let stranger = lock_row(&server, "one").await;
    let error = soon(late.backend.claim(&late.claim)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains("the row of the lock is locked by another transaction"), "{error:?}");
    stranger.batch_execute("ROLLBACK").await.unwrap();
    late.queue_behind(0).await;
}

/// In one batch, the rows that somebody else has locked are left out, and the others are extended and answered at once. They were
/// extended but not answered: their answers waited for that of the locked row, and all leases of the process were lost with it.
#[tokio::test]
async fn a_batch_of_renewals_waits_for_no_locked_row() {
    let server = PostgresServer::start();
    let backend = postgres(&server.url(""));
    let players: Vec<Player> = (0..6).map(|n| Player::new(backend.clone(), &format!("many/{n}"))).collect();
    let mut grants = Vec::new();
    for player in &players {
        let mut grant = player.enter().await;
        grant.ttl = Duration::from_secs(3600);
        grants.push(grant);
    }
    let stranger = lock_row(&server, "many/3").await;
    let mut answers = soon(backend.renew(&grants)).await;
    let error = answers.remove(3).unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains("locked by another transaction"), "{error:?}");
    assert!(answers.into_iter().all(|answer| answer.unwrap() == Renewal::Renewed));
    let error = soon(backend.renew(&grants[3..4])).await.remove(0).unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    let reader = postgres(&server.url(""));
    let is_extended = async |n: usize| {
        let view = reader.inspect(&grants[n].name).await.unwrap();
        view.holders[0].expires_in.unwrap() > Duration::from_secs(3000)
    };
    for n in [0, 1, 2, 4, 5] {
        assert!(is_extended(n).await);
    }
    assert!(!is_extended(3).await);
    stranger.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(players[3].renew(&grants[3]).await, Renewal::Renewed);
    assert!(is_extended(3).await);
}

/// L5: leases that are held through the engine outlive a stranger's lock on the row of another one of the same process, which alone
/// is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_a_stranger_has_locked_costs_one_lease_only() {
    let server = PostgresServer::start();
    let locker = tenure::connect(&server.url("")).await.unwrap();
    let hold = |n: usize| {
        let mutex = locker.mutex(format!("held/{n}")).ttl(Duration::from_secs(4) * stretch());
        async move { mutex.acquire().await.unwrap() }
    };
    let guards = join_all((0..8).map(hold)).await;
    let stranger = lock_row(&server, "held/3").await;
    until("that one is lost", async || guards[3].check().is_err()).await;
    // As long again.
    tokio::time::sleep(Duration::from_secs(4) * stretch()).await;
    let lost: Vec<usize> = (0..8).filter(|n| guards[*n].check().is_err()).collect();
    assert_eq!(lost, [3]);
    drop(stranger);
}

/// A renewal never waits for another one's commit for long, and does not take it for a stranger's lock: many processes write to one
/// row all the time, and its holders are renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_contention_a_renewal_gets_through() {
    let server = Recipe::new().durable().start();
    let holders: Vec<Player> = (0..2).map(|_| player(&server.url(""), "busy").reading()).collect();
    let grants = [holders[0].enter().await, holders[1].enter().await];
    let done = Arc::new(AtomicU32::new(0));
    let crowd: Vec<_> = (0..6)
        .map(|_| (player(&server.url(""), "busy").reading(), done.clone()))
        .map(|(reader, done)| {
            tokio::spawn(async move {
                loop {
                    if reader.backend.claim(&reader.claim).await.is_ok() {
                        done.fetch_add(1, Relaxed);
                        let _ = reader.backend.release(&reader.claim.name, reader.claim.owner).await;
                    }
                }
            })
        })
        .collect();
    // A lease of ten seconds has so long from one renewal to the next.
    const THIRD: Duration = Duration::from_millis(3_333);
    let (mut put_off, began) = (0, Instant::now());
    for _ in 0..50 {
        for (holder, grant) in holders.iter().zip(&grants) {
            let begun = Instant::now();
            while let Err(error) = soon(holder.backend.renew(std::slice::from_ref(grant))).await.remove(0) {
                assert!(error.kind().is_transient(), "{error:?}");
                put_off += 1;
                assert!(
                    begun.elapsed() < THIRD * slowness(),
                    "{put_off} were put off, the last one for too long"
                );
            }
        }
    }
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
    let (visits, took) = (done.load(Relaxed).max(1), began.elapsed());
    println!("under contention {put_off} renewals were put off before 100 got through");
    // How slow the machine and its disk are shows in how long a visit of the crowd takes, two writes, in the same seconds.
    let visit = took * 6 / visits;
    assert!(took / 100 < 20 * visit, "a renewal takes {:?}, and a visit of others {visit:?}", took / 100);
}

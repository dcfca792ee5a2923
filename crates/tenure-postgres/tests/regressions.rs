//! Bugs that were found by an adversarial review on real servers, each with its story.

use std::time::Duration;

use tenure_core::{
    Audience, BackendError, BackendHandle, ClaimAnswer, ErrorKind, Grant, LockName, Outcome, Released,
    Renewal, WakeEvent,
};
use tenure_testkit::{
    conformance::player::Player,
    patience::connections_that_impatience_costs,
    postgres::{PostgresServer, Recipe},
    proxy::Proxy,
};

use crate::stage::{self, enter_in_time, lock_row, player, postgres, soon, until};

/// What a standby had of the table when its primary failed.
struct Copy<'a>(&'a PostgresServer);

impl<'a> Copy<'a> {
    fn of(server: &'a PostgresServer) -> Self {
        server.psql("CREATE TABLE copy AS SELECT * FROM tenure_lock");
        Self(server)
    }

    /// Everything that was committed since the copy is forgotten.
    fn takes_over(&self) {
        self.0.psql("BEGIN; TRUNCATE tenure_lock; INSERT INTO tenure_lock SELECT * FROM copy; COMMIT");
    }
}

/// L1, L2: a fail-over forgot two writes of one process, and two of another brought the row to the same version. The first
/// process still remembered its own, compared nothing but the version, and wrote its ledger over the other's lease.
#[tokio::test]
async fn what_a_process_remembers_is_not_written_over_another_history() {
    let server = PostgresServer::start();
    let (p, q) = (player(&server.url(""), "one"), player(&server.url(""), "one"));
    p.enter().await;
    p.leave().await;
    let standby = Copy::of(&server);
    p.enter().await;
    p.leave().await;
    standby.takes_over();
    let held = q.enter().await;
    assert_eq!(q.renew(&held).await, Renewal::Renewed);
    assert!(!p.try_enter().await, "somebody else holds");
    assert_eq!(q.renew(&held).await, Renewal::Renewed);
    assert_eq!(q.leave().await, Released::Released);
    assert!(enter_in_time(&p).await.token > held.token);
}

/// L1, L5: the same with leases that are renewed together.
#[tokio::test]
async fn leases_that_are_renewed_together_are_not_written_over_another_history() {
    let server = PostgresServer::start();
    let p = postgres(&server.url(""));
    let [one, two] = ["one", "two"].map(|name| Player::new(p.clone(), name));
    for player in [&one, &two] {
        player.enter().await;
        player.leave().await;
    }
    let standby = Copy::of(&server);
    let grants = [one.enter().await, two.enter().await];
    standby.takes_over();
    let q = player(&server.url(""), "one");
    let held = q.enter().await;
    let answers: Vec<Renewal> = p.renew(&grants).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, [Renewal::Gone, Renewal::Gone], "both were forgotten");
    assert_eq!(q.renew(&held).await, Renewal::Renewed);
}

/// A server whose commits wait for a standby that never comes, and a handle that does not wait.
async fn without_its_standby() -> (PostgresServer, BackendHandle) {
    let server = Recipe::new().config("synchronous_standby_names = 'nobody'").start();
    let careless = postgres(&server.url("?options=-c%20synchronous_commit%3Dlocal"));
    Player::new(careless.clone(), "warm").enter().await;
    (server, careless)
}

/// Asks for something else over the same connection, which finds it stuck, until a verb is answered.
async fn pestered<A: Send + 'static>(
    server: &PostgresServer,
    backend: &BackendHandle,
    verb: impl Future<Output = A> + Send + 'static,
) -> A {
    let verb = tokio::spawn(verb);
    let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until("a commit waits for the standby", async || server.psql(waits) == "t").await;
    let warm = LockName::new("warm").unwrap();
    until("the verb is answered", async || {
        let _ = tokio::time::timeout(Duration::from_millis(100), backend.inspect(&warm)).await;
        verb.is_finished()
    })
    .await;
    verb.await.unwrap()
}

fn must_be_unknown(error: &BackendError) {
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error:?}");
}

/// A3, L1: another verb found the connection stuck and asked the server to stop its statement, which waited for a standby. The
/// server ended the wait, with a warning and with success, and a lease that no standby had was taken for granted.
#[tokio::test]
async fn a_commit_that_no_standby_has_is_no_grant() {
    let (server, _careless) = without_its_standby().await;
    let a = player(&server.url(""), "one");
    let (backend, claim) = (a.backend.clone(), a.claim.clone());
    let answer = pestered(&server, &a.backend, async move { backend.claim(&claim).await }).await;
    must_be_unknown(&answer.unwrap_err());
    server.psql("ALTER SYSTEM SET synchronous_standby_names = ''");
    server.psql("SELECT pg_reload_conf()");
    enter_in_time(&a).await;
}

/// A3, L5: the same with renewals, of one lease and of several.
#[tokio::test]
async fn a_commit_that_no_standby_has_is_no_renewal() {
    let (server, careless) = without_its_standby().await;
    let mut players = ["one", "two"].map(|name| Player::new(careless.clone(), name));
    // The second lease outlasts the commits of the first that nobody answers.
    players.iter_mut().for_each(|player| player.claim.ttl = Duration::from_secs(300));
    let grants: Vec<Grant> = vec![players[0].enter().await, players[1].enter().await];
    for some in [&grants[..1], &grants[..]] {
        let backend = postgres(&server.url(""));
        let (renewing, some) = (backend.clone(), some.to_vec());
        let answers = pestered(&server, &backend, async move { renewing.renew(&some).await }).await;
        for answer in answers {
            must_be_unknown(&answer.unwrap_err());
        }
    }
}

/// L2: a claim read that a lock has no row, and its write came late: others had been granted the lock, and the table had been emptied.
/// There was no row again, and the claim was granted a token of the time of its read, below theirs.
#[tokio::test]
async fn a_claim_that_finds_no_row_again_is_granted_no_old_token() {
    for (what, stranger) in [
        ("it is read", "LOCK TABLE tenure_lock IN ACCESS EXCLUSIVE MODE"),
        ("it is made", "INSERT INTO tenure_lock VALUES ('new', 1, false, now(), '{}')"),
    ] {
        let server = PostgresServer::start();
        let proxy = Proxy::to(server.port(), 1);
        let a = player(&format!("postgres://tenure@127.0.0.1:{}/tenure", proxy.port()), "new");
        Player::new(a.backend.clone(), "warm").enter().await;
        let stranger = stage::connect(&server, &format!("BEGIN; {stranger}")).await;
        let (backend, claim) = (a.backend.clone(), a.claim.clone());
        let late = tokio::spawn(async move { backend.claim(&claim).await });
        until(what, async || stage::is_anybody_waiting(&server)).await;
        proxy.hold_replies();
        stranger.batch_execute("ROLLBACK").await.unwrap();
        until("it is done", async || proxy.traffic().held_replies > 0).await;
        let b = player(&server.url(""), "new");
        let mut last = enter_in_time(&b).await.token;
        b.leave().await;
        for _ in 0..2 {
            server.psql("DELETE FROM tenure_lock");
            let granted = enter_in_time(&b).await.token;
            assert!(granted > last, "{granted:?} after {last:?}");
            last = granted;
            b.leave().await;
        }
        server.psql("DELETE FROM tenure_lock");
        proxy.release();
        let ClaimAnswer::Granted(grant) = soon(late).await.unwrap().unwrap() else { panic!("it is free") };
        assert!(grant.token > last, "{what}: {:?} after {last:?}", grant.token);
    }
}

/// H1.5, L9: a first claim of a lock waited for a stranger's row of that name, and was given up. Its release found no row, wrote
/// nothing, and said that nothing was there; then the claim went through, and nobody held the lock until its ttl was over.
#[tokio::test]
async fn a_first_claim_that_was_given_up_is_not_granted_after_its_release() {
    let server = PostgresServer::start();
    let a = player(&server.url(""), "new");
    Player::new(a.backend.clone(), "warm").enter().await;
    let reaper = a.backend.handle().await.unwrap();
    let insert = "BEGIN; INSERT INTO tenure_lock VALUES ('new', 1, false, now(), '{}')";
    let stranger = stage::connect(&server, insert).await;
    {
        let claim = a.backend.claim(&a.claim);
        tokio::pin!(claim);
        until("the claim waits for the stranger", async || {
            assert!(tokio::time::timeout(Duration::from_millis(5), &mut claim).await.is_err());
            stage::is_anybody_waiting(&server)
        })
        .await;
    }
    assert_eq!(soon(reaper.release(&a.claim.name, a.claim.owner)).await.unwrap(), Released::WasGone);
    stranger.batch_execute("ROLLBACK").await.unwrap();
    // Behind the claim in the same connection: what is answered now was asked after it.
    a.backend.inspect(&a.claim.name).await.unwrap();
    assert!(player(&server.url(""), "new").try_enter().await, "nobody holds it");
}

/// Two verbs of one process met at a row that a stranger had locked: the release was given up, and was applied when the stranger
/// left. Whoever waited in the same process was never told, and asked 2 s later.
#[tokio::test]
async fn a_release_that_is_given_up_wakes_who_waits_in_the_same_process() {
    let server = PostgresServer::start();
    let (a, other) = (player(&server.url(""), "one"), player(&server.url(""), "other"));
    let b = Player::new(a.backend.clone(), "one");
    let mut wakes = b.backend.wakes(b.claim.owner.process(), Audience::Waiters);
    a.enter().await;
    b.queue_behind(0).await;
    let stranger = lock_row(&server, "one").await;
    {
        let release = a.backend.release(&a.claim.name, a.claim.owner);
        tokio::pin!(release);
        until("the release waits for the row", async || {
            assert!(tokio::time::timeout(Duration::from_millis(5), &mut release).await.is_err());
            stage::is_anybody_waiting(&server)
        })
        .await;
    }
    assert_eq!(soon(wakes.next()).await, WakeEvent::Owner(b.claim.owner));
    stranger.batch_execute("ROLLBACK").await.unwrap();
    other.enter().await;
    // It was told to ask, and asks behind the release, which makes it the holder.
    let _ = enter_in_time(&b).await;
}

/// One cancel was sent for a connection that was left behind, and what had been sent behind the statement that it stopped waited for
/// a locked row as well: neither answered nor closed as long as the stranger stayed, and with time there were many of them.
#[tokio::test]
async fn whatever_waits_in_a_connection_that_is_left_behind_is_stopped() {
    let server = PostgresServer::start();
    let backend = postgres(&server.url(""));
    let players = ["a", "b", "c"].map(|name| Player::new(backend.clone(), name));
    for player in &players {
        player.enter().await;
        player.leave().await;
    }
    let stranger = stage::connect(&server, "BEGIN; SELECT FROM tenure_lock FOR UPDATE").await;
    let claim = |player: Player| async move { player.backend.claim(&player.claim).await };
    let claims = players.map(|player| tokio::spawn(claim(player)));
    let warm = LockName::new("warm").unwrap();
    until("all of them are stopped", async || {
        let _ = tokio::time::timeout(Duration::from_millis(100), backend.inspect(&warm)).await;
        claims.iter().all(tokio::task::JoinHandle::is_finished)
    })
    .await;
    for claim in claims {
        let error = claim.await.unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::Unavailable, Outcome::NotApplied),
            "{error:?}"
        );
    }
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'";
    until("what was left behind is closed", async || server.psql(ours) == "1").await;
    drop(stranger);
}

/// A name or a label with a character that the database's encoding lacks: the label was refused too, with no word of why.
#[tokio::test]
async fn a_label_may_have_characters_that_the_database_lacks() {
    let server = PostgresServer::start();
    // Only what is called so may be copied into another encoding.
    server.psql("CREATE DATABASE template0 TEMPLATE tenure");
    server.psql(
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0 OWNER tenure",
    );
    let backend = postgres(&format!("postgres://tenure@{}/latin", server.address()));
    let mut a = Player::new(backend.clone(), "caf\u{e9}");
    let host = "host-\u{65e5}\u{1f512}";
    a.claim.label = std::sync::Arc::new(tenure_core::Label::new(host, 1, "u", "p"));
    let grant = a.enter().await;
    assert_eq!(a.renew(&grant).await, Renewal::Renewed);
    let seen = backend.inspect(&a.claim.name).await.unwrap();
    assert!(format!("{seen:?}").contains(host), "{seen:?}");
    assert_eq!(a.leave().await, Released::Released);
    let b = Player::new(backend.clone(), "\u{65e5}");
    let error = backend.claim(&b.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Invalid, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains("encoding"), "{error}");
}

/// The queue of notifications was full, as it is behind one listener that never comes back from its transaction, and every verb
/// that had somebody to tell failed.
#[tokio::test]
async fn without_room_for_hints_locks_change_hands_all_the_same() {
    let server = PostgresServer::start();
    // Nothing else is as fast as 8 GB of notifications.
    server.psql(
        "CREATE FUNCTION pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$",
    );
    let url = server.url("?options=-c%20search_path%3Dpublic,pg_catalog");
    let (a, b) = (player(&url, "one"), player(&url, "one"));
    a.enter().await;
    assert!(matches!(b.ask().await, ClaimAnswer::Queued { .. }));
    assert_eq!(a.leave().await, Released::Released);
    b.enter().await;
}

/// Two requests that were dropped at once, by callers with little patience, left the stall detector armed: after an idle second the
/// connection, which had answered both, was dropped as dead. It was mended on one store and not on its sibling.
#[tokio::test]
async fn callers_with_little_patience_cost_no_connection() {
    let server = PostgresServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let backend = postgres(&format!("postgres://tenure@127.0.0.1:{}/tenure", proxy.port()));
    assert_eq!(connections_that_impatience_costs(&backend, &proxy).await, 0);
}

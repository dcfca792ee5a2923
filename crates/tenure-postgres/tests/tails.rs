//! Places behind the queue: who comes late has a row of its own, and is neither passed, nor forgotten, nor in anybody's way.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure_core::{ClaimAnswer, LockName, Outcome, Released, Renewal, Severity, Timing};
use tenure_testkit::{
    conformance::player::Player,
    postgres::{PostgresServer, Recipe},
    proxy::Proxy,
};

use tokio::time::timeout;

use crate::stage::{connect, enter_in_time, is_anybody_waiting, player, postgres, soon, until};

/// Rows that are no locks.
const TAIL: &str = "FROM tenure_lock WHERE position(chr(1) IN name) > 0";

fn tail(server: &PostgresServer) -> usize {
    server.psql(&format!("SELECT count(*) {TAIL}")).parse().unwrap()
}

fn version(server: &PostgresServer) -> String {
    server.psql("SELECT version FROM tenure_lock WHERE name = 'one'")
}

/// Whether the row of the lock says that somebody may stand behind it.
fn is_long(server: &PostgresServer) -> bool {
    server.psql("SELECT state LIKE '{\"long\":true,%' FROM tenure_lock WHERE name = 'one'") == "t"
}

/// On a slow machine nobody loses its turn, nor is told that the server does not answer.
const PATIENT: &str = "?claim_ttl=6s&connect_timeout=30s";

/// So many in a line, each in a process of its own, behind one who holds.
async fn in_line(server: &PostgresServer, count: usize) -> (Player, Vec<Player>) {
    let new = || player(&server.url(PATIENT), "one");
    let holder = holding(server).await;
    let waiters: Vec<Player> = (0..count).map(|_| new()).collect();
    connected(&waiters).await;
    let mut places = Places::just_made();
    for (ahead, waiter) in waiters.iter().enumerate() {
        waiter.queue_behind(ahead).await;
        places.keep(waiters[..=ahead].iter()).await;
    }
    (holder, waiters)
}

/// One that holds for longer than a test needs.
async fn holding(server: &PostgresServer) -> Player {
    let mut holder = player(&server.url(PATIENT), "one");
    holder.claim.ttl = Duration::from_secs(300);
    holder.enter().await;
    holder
}

/// So that nobody loses its place while those behind it connect.
async fn connected(players: &[Player]) {
    for answer in join_all(players.iter().map(|player| player.backend.inspect(&player.claim.name))).await {
        answer.unwrap();
    }
}

/// Places that are kept by asking again, as a waiter does: on a busy machine they end before a test is through.
struct Places {
    kept: Instant,
}

impl Places {
    fn just_made() -> Self {
        Self { kept: Instant::now() }
    }

    /// Asks for all of these, whose turn has not come, if that is due.
    async fn keep(&mut self, waiting: impl Iterator<Item = &Player>) {
        if self.kept.elapsed() > Duration::from_secs(1) {
            for answer in join_all(waiting.map(Player::ask)).await {
                assert!(!matches!(answer, ClaimAnswer::Granted(_)), "{answer:?}");
            }
            self.kept = Instant::now();
        }
    }

    /// Whether none that was not kept since has ended.
    fn are_kept(&self) -> bool {
        self.kept.elapsed() < Timing::PLACE_TTL - Duration::from_secs(2)
    }
}

/// L6: each of those who came, and each who kept its place, wrote the row of the lock, and the holder's renewals and its release
/// raced all of them for it: with 500 processes the holder lost its lease.
#[tokio::test]
async fn who_waits_behind_the_first_few_never_writes_the_row_of_the_lock() {
    // Where it takes long the first few keep their places, by writing to the row.
    for _ in 0..10 {
        if late_ones_write_nothing().await {
            return;
        }
    }
    panic!("a place is never kept for long enough here");
}

/// False if it took too long to be sure.
async fn late_ones_write_nothing() -> bool {
    let server = Recipe::new().config("max_connections = 200").start();
    let late: Vec<Player> = (0..40).map(|_| player(&server.url(PATIENT), "one")).collect();
    connected(&late).await;
    let (holder, waiters) = in_line(&server, 4).await;
    let places = Places::just_made();
    let before = version(&server);
    for _ in 0..3 {
        for answer in join_all(late.iter().map(|late| late.backend.claim(&late.claim))).await {
            assert!(
                matches!(answer, Ok(ClaimAnswer::Queued { ahead: 4.., .. })) || !places.are_kept(),
                "{answer:?}"
            );
        }
    }
    let seen = (version(&server), tail(&server));
    if !places.are_kept() {
        return false;
    }
    assert_eq!(seen, (before.clone(), 40), "nobody wrote to it");
    assert_eq!(waiters.len(), 4);
    // Who gives up takes its own row away, and nothing else.
    for late in &late {
        assert_eq!(late.leave().await, Released::Released);
    }
    let seen = (version(&server), tail(&server));
    if !places.are_kept() {
        return false;
    }
    assert_eq!(seen, (before, 0));
    assert_eq!(holder.leave().await, Released::Released);
    true
}

/// L7, L8: all are served in the order in which they came, those who leave or die in between hold nobody up, and nothing is left.
#[tokio::test]
async fn those_behind_are_served_in_their_order_and_leave_nothing() {
    let server = PostgresServer::start();
    let (holder, waiters) = in_line(&server, 30).await;
    assert_eq!(tail(&server), 26);
    for gone in [3, 9, 10, 11, 28] {
        assert_eq!(waiters[gone].leave().await, Released::Released);
    }
    // The fifth died long ago.
    server.psql(&format!(
        "UPDATE tenure_lock SET state = regexp_replace(state, '\"ends_us\":\\d+', '\"ends_us\":1') \
         WHERE name = (SELECT min(name) {TAIL})"
    ));
    let is_there = |at: usize| ![3, 9, 10, 11, 28, 4].contains(&at);
    let there = |from: usize| (from..waiters.len()).filter(|&at| is_there(at)).map(|at| &waiters[at]);
    let mut places = Places::just_made();
    assert_eq!(holder.leave().await, Released::Released);
    let mut last = 0;
    for (at, waiter) in waiters.iter().enumerate().filter(|(at, _)| is_there(*at)) {
        places.keep(there(at + 1)).await;
        // The last one of all was there from the beginning.
        if let Some(other) = waiters.last().filter(|_| at + 1 < waiters.len()) {
            assert!(!matches!(other.ask().await, ClaimAnswer::Granted(_)), "{at} is passed");
        }
        let grant = waiter.enter().await;
        assert!(grant.token.get() > last);
        last = grant.token.get();
        assert_eq!(waiter.renew(&grant).await, Renewal::Renewed);
        assert_eq!(waiter.leave().await, Released::Released);
    }
    assert_eq!(tail(&server), 0);
    assert_eq!(server.psql("SELECT count(*), bool_or(busy) FROM tenure_lock"), "1|f");
}

/// L6: readers who stand behind the queue come in together, as those in it do, though nobody leaves meanwhile.
#[tokio::test]
async fn readers_behind_the_queue_come_in_together() {
    let server = PostgresServer::start();
    let holder = holding(&server).await;
    let url = server.url(PATIENT);
    let read = |url: String| async move {
        let locker = tenure::connect(&url).await.unwrap();
        locker.rwlock("one").read().acquire().await.unwrap()
    };
    let readers: Vec<_> = (0..30).map(|_| tokio::spawn(read(url.clone()))).collect();
    let (view, name) = (postgres(&server.url(PATIENT)), LockName::new("one").unwrap());
    until("all wait", async || view.inspect(&name).await.unwrap().queue.len() == 30).await;
    assert!(tail(&server) >= 26);
    holder.leave().await;
    let guards = soon(join_all(readers)).await;
    assert_eq!(guards.len(), 30);
    let holders = view.inspect(&name).await.unwrap().holders;
    assert_eq!(holders.len(), 30, "all at once");
    assert_eq!(tail(&server), 0);
}

/// What waits behind the queue is seen, and named in its order.
#[tokio::test]
async fn those_behind_are_shown() {
    let server = PostgresServer::start();
    let (_holder, waiters) = in_line(&server, 24).await;
    let view = postgres(&server.url(PATIENT));
    let expected: Vec<String> = waiters.iter().map(|waiter| waiter.claim.owner.to_string()).collect();
    let owners = |view: &tenure_core::LockView| -> Vec<String> {
        view.queue.iter().map(|waiter| waiter.owner.clone()).collect()
    };
    player(&server.url(PATIENT), "one more").enter().await;
    assert_eq!(owners(&view.inspect(&waiters[0].claim.name).await.unwrap()), expected);
    let all = view.list("one").await.unwrap();
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(owners(&all[0]), expected);
    assert!(all[1].queue.is_empty());
}

/// L6, L7: whoever stands behind a queue that went empty without being asked, as an older tenure or a race leaves it, is not passed by
/// newcomers, and finds out by its own question.
#[tokio::test]
async fn who_was_forgotten_behind_an_empty_queue_is_next() {
    let server = PostgresServer::start();
    let newcomers = [player(&server.url(PATIENT), "one"), player(&server.url(PATIENT), "one")];
    connected(&newcomers).await;
    let (_holder, waiters) = in_line(&server, 6).await;
    server.psql(
        "UPDATE tenure_lock SET version = version + 1, busy = false, \
         state = '{\"fence\":7,\"holders\":[],\"queue\":[]}' WHERE name = 'one'",
    );
    assert!(!newcomers[0].try_enter().await, "somebody waits");
    newcomers[1].queue_behind(2).await;
    assert!(matches!(waiters[4].ask().await, ClaimAnswer::Granted(_)), "the first of those who are left");
    assert_eq!(waiters[4].leave().await, Released::Released);
    enter_in_time(&waiters[5]).await;
}

/// Nobody writes to the table: who wants to waits for that.
const SHUT: &str = "BEGIN; LOCK TABLE tenure_lock IN SHARE MODE";

/// L7: a release had read that nobody stands behind the queue, and wrote so after somebody had come there. Whoever knew the row from that
/// write, and so did not read it again, passed those behind.
#[tokio::test]
async fn a_row_does_not_say_that_nobody_is_behind_it_if_somebody_is() {
    let server = PostgresServer::start();
    let (holder, _waiters) = in_line(&server, 4).await;
    let late = player(&server.url(PATIENT), "one");
    late.queue_behind(4).await;
    let ever = "regexp_replace(state, '\"ends_us\":[0-9]+', '\"ends_us\":9000000000000000')";
    let row = server.psql(&format!("SELECT quote_literal({ever}) {TAIL}"));
    assert_eq!(late.leave().await, Released::Released);
    assert_eq!((is_long(&server), tail(&server)), (true, 0));
    let shut = connect(&server, SHUT).await;
    let come = async {
        until("the release is to be written", async || is_anybody_waiting(&server)).await;
        let insert =
            format!("INSERT INTO tenure_lock VALUES ('one' || chr(1) || '0', 1, false, now(), {row})");
        shut.batch_execute(&format!("{insert}; COMMIT")).await.unwrap();
    };
    // One that knows nothing, and so reads first.
    let other = postgres(&server.url(PATIENT));
    let release = other.release(&holder.claim.name, holder.claim.owner);
    let (released, ()) = soon(async { tokio::join!(release, come) }).await;
    assert_eq!((released.unwrap(), is_long(&server), tail(&server)), (Released::Released, true, 1));
}

/// L7: who had read that the queue is full came to stand behind a row that says meanwhile that nobody does.
#[tokio::test]
async fn nobody_comes_to_stand_behind_a_row_that_does_not_say_so() {
    let server = PostgresServer::start();
    let (_holder, _waiters) = in_line(&server, 4).await;
    let late = player(&server.url(PATIENT), "one");
    // Connected.
    late.backend.inspect(&late.claim.name).await.unwrap();
    let shut = connect(&server, SHUT).await;
    let shorten = async {
        until("its place is to be made", async || is_anybody_waiting(&server)).await;
        shut.batch_execute(
            "UPDATE tenure_lock SET version = version + 1, state = replace(state, '\"long\":true,', ''); COMMIT",
        )
        .await
        .unwrap();
    };
    let (answer, ()) = soon(async { tokio::join!(late.backend.claim(&late.claim), shorten) }).await;
    assert!(matches!(answer, Ok(ClaimAnswer::Queued { ahead: 4, .. })), "{answer:?}");
    assert_eq!((is_long(&server), tail(&server)), (true, 1));
}

/// L8, L9: the answer to a place that was made is lost. Whoever asks again finds it, and there is no second one.
#[tokio::test]
async fn a_place_whose_answer_was_lost_is_found_again() {
    let server = PostgresServer::start();
    let proxy = Proxy::to(server.port(), 7);
    let (_holder, _waiters) = in_line(&server, 5).await;
    let late = player(&format!("postgres://tenure@127.0.0.1:{}/tenure{PATIENT}", proxy.port()), "one");
    // Connected, and told how many there are.
    late.backend.inspect(&late.claim.name).await.unwrap();
    let shut = connect(&server, SHUT).await;
    let cut = async {
        until("its place is to be made", async || is_anybody_waiting(&server)).await;
        proxy.drop_replies();
        shut.batch_execute("COMMIT").await.unwrap();
        until("it is made", async || tail(&server) == 2).await;
        proxy.cut();
        proxy.heal();
    };
    let (answer, ()) = soon(async { tokio::join!(late.backend.claim(&late.claim), cut) }).await;
    assert_eq!(answer.unwrap_err().outcome(), Outcome::Unknown);
    let answer = soon(late.backend.claim(&late.claim)).await;
    assert!(matches!(answer, Ok(ClaimAnswer::Queued { ahead: 5.., .. })), "{answer:?}");
    assert_eq!(tail(&server), 2, "one place for each");
    assert_eq!(late.leave().await, Released::Released);
    assert_eq!(tail(&server), 1);
}

/// L8: a release may have read the places behind the queue, and move up one whose owner leaves in the same moment.
#[tokio::test]
async fn nobody_moves_up_who_has_left() {
    let server = PostgresServer::start();
    let (holder, waiters) = in_line(&server, 5).await;
    for waiter in &waiters[..3] {
        assert_eq!(waiter.leave().await, Released::Released);
    }
    // One is left in the queue: the next write moves up who stands behind it.
    let late = &waiters[4];
    assert_eq!(tail(&server), 1);
    let other = postgres(&server.url(PATIENT));
    other.inspect(&holder.claim.name).await.unwrap();
    let locked = connect(&server, "BEGIN; SELECT 1 FROM tenure_lock WHERE name = 'one' FOR UPDATE").await;
    let release = other.release(&holder.claim.name, holder.claim.owner);
    let leave = async {
        until("the release is to be written", async || is_anybody_waiting(&server)).await;
        let mut left = late.backend.release(&late.claim.name, late.claim.owner);
        // It may have to wait for the row, too, after it has taken the place away.
        let early = timeout(Duration::from_millis(300), &mut left).await;
        assert_eq!(tail(&server), 0);
        locked.batch_execute("COMMIT").await.unwrap();
        match early {
            Ok(answer) => answer,
            Err(_) => left.await,
        }
    };
    let (released, left) = soon(async { tokio::join!(release, leave) }).await;
    assert_eq!((released.unwrap(), left.unwrap()), (Released::Released, Released::Released));
    let view = other.inspect(&holder.claim.name).await.unwrap();
    assert!(!view.queue.iter().any(|place| place.owner == late.claim.owner.to_string()), "{view:?}");
    assert_eq!(tail(&server), 0);
}

/// A role that may not delete, names that are sorted by the rules of a language, names of 512 bytes: waiters have their places in the
/// row of the lock then, as they had, and the doctor says so.
#[tokio::test]
async fn where_places_cannot_have_rows_they_are_in_the_row_of_the_lock() {
    for change in [
        "ALTER TABLE tenure_lock OWNER TO postgres; GRANT SELECT, INSERT, UPDATE ON tenure_lock TO tenure",
        "ALTER TABLE tenure_lock ALTER COLUMN name TYPE text COLLATE \"default\"",
    ] {
        let server = PostgresServer::start();
        player(&server.url(PATIENT), "warm").enter().await;
        server.psql(change);
        let (holder, waiters) = in_line(&server, 9).await;
        assert_eq!(tail(&server), 0, "{change}");
        assert_eq!(holder.leave().await, Released::Released);
        for waiter in &waiters {
            enter_in_time(waiter).await;
            assert_eq!(waiter.leave().await, Released::Released);
        }
        let findings = waiters[0].backend.diagnose().await.unwrap();
        let told = findings.iter().find(|finding| finding.what.contains("have their places in its row"));
        assert!(told.is_some_and(|told| told.severity == Severity::Note), "{change}: {findings:?}");
    }
    let server = PostgresServer::start();
    let long = "n".repeat(LockName::MAX_BYTES);
    for ahead in 0..9_usize {
        let player = player(&server.url(PATIENT), &long);
        match ahead.checked_sub(1) {
            None => drop(player.enter().await),
            Some(ahead) => drop(player.queue_behind(ahead).await),
        }
    }
    assert_eq!(tail(&server), 0);
}

/// L8: a row behind the queue that is no place of ours ends with the next write, and keeps nobody from the lock.
#[tokio::test]
async fn what_is_no_place_is_thrown_away() {
    let server = PostgresServer::start();
    let (holder, waiters) = in_line(&server, 5).await;
    server.psql(
        "INSERT INTO tenure_lock SELECT 'one' || chr(1) || '0', 1, false, used, 'a joke' FROM tenure_lock WHERE name = 'one'",
    );
    assert_eq!(holder.leave().await, Released::Released);
    for waiter in &waiters {
        enter_in_time(waiter).await;
        assert_eq!(waiter.leave().await, Released::Released);
    }
    assert_eq!(tail(&server), 0);
}

//! Servers that die, stand still, are full, are replicas or cut connections: never two holders, one clear line, and the lock goes on.

use std::{
    fs,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::join_all;
use mysql_async::prelude::Queryable;
use tenure_core::{BreakScope, ErrorKind, Memo, Outcome, Released, Renewal, Severity};
use tenure_testkit::{
    clock::Clock,
    conformance::player::Player,
    disk::SmallDisk,
    mysql::{MysqlServer, Recipe},
    patience::{becomes_ok, slowness},
    polls::dropped_after,
    proxy::Proxy,
};

use crate::stage::{chain, connect, contend, enter_in_time, finding, mysql, player, refused_as, soon, until};

const LONG: Duration = Duration::from_secs(600);
const UNAVAILABLE: ErrorKind = ErrorKind::Unavailable;

/// Restart::Survives; L1, L2: a crash of the server forgets neither lease nor token.
#[tokio::test]
async fn a_lease_survives_a_crash_of_the_server() {
    let server = Recipe::new().durable().start();
    let (a, b) = (player(&server.url(""), "one").lasting(LONG), player(&server.url(""), "one"));
    let first = a.enter().await;
    b.queue_behind(0).await;
    server.kill();
    let error = soon(b.backend.claim(&b.claim)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (UNAVAILABLE, Outcome::NotApplied), "{error:?}");
    refused_as(&server.url(""), UNAVAILABLE, "cannot reach").await;
    server.start_again();
    assert!(!soon(b.try_enter()).await, "it is still held");
    assert_eq!(soon(a.renew(&first)).await, Renewal::Renewed);
    assert_eq!(a.leave().await, Released::Released);
    assert!(enter_in_time(&b).await.token > first.token);
}

/// L3: a lease ends by the server's clock alone, and tokens grow wherever that goes.
#[tokio::test]
async fn a_lease_ends_by_the_clock_of_the_server_alone() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    let (a, b) = (player(&server.url(""), "one"), player(&server.url(""), "one"));
    let first = a.enter().await;
    assert!(!b.try_enter().await);
    clock.step(3_600_000);
    assert_eq!(a.renew(&first).await, Renewal::Gone, "its time was over");
    let second = enter_in_time(&b).await;
    assert!(second.token > first.token);
    // Back by two hours: it has not ended, and lasts two hours longer.
    clock.step(-3_600_000);
    assert!(!player(&server.url(""), "one").try_enter().await);
    assert_eq!(b.renew(&second).await, Renewal::Renewed);
    assert_eq!(b.leave().await, Released::Released);
    let third = enter_in_time(&a).await;
    assert!(third.token > second.token, "{:?} after {:?}", third.token, second.token);
    clock.advance(Duration::from_secs(9) / slowness());
    assert_eq!(a.renew(&third).await, Renewal::Renewed);
    clock.advance(Duration::from_secs(11));
    assert!(enter_in_time(&b).await.token > third.token);
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_told_from_one_that_does() {
    let (bad, good) = (Recipe::new().set("read-only=1").start(), MysqlServer::start());
    bad.sql("DROP TABLE tenure_lock");
    refused_as(&bad.url(""), UNAVAILABLE, "this MySQL server takes no writes").await;
    assert_eq!(bad.sql("SHOW TABLES"), "", "no table was made");
    finding(&mysql(&bad.url("")), Severity::Problem, "read_only is on: nothing can be locked").await;
    let url = |first: &MysqlServer, second: &MysqlServer| {
        format!("mysql://tenure@{},{}/tenure", first.address(), second.address())
    };
    enter_in_time(&player(&url(&bad, &good), "one")).await;
    assert!(!player(&url(&good, &bad), "one").try_enter().await, "it is held on the good one");
    refused_as(&url(&bad, &bad), UNAVAILABLE, "takes no writes: read_only is on").await;
    // Under a connection that is open already: it is left for the other server, and found again.
    let a = player(&url(&good, &bad), "two");
    a.enter().await;
    good.sql("SET GLOBAL read_only = 1");
    let error = soon(a.backend.claim(&Player::new(a.backend.clone(), "new").claim)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (UNAVAILABLE, Outcome::NotApplied), "{error:?}");
    bad.sql("SET GLOBAL read_only = 0");
    // What was copied to it.
    enter_in_time(&player(&bad.url(""), "warm")).await;
    enter_in_time(&Player::new(a.backend.clone(), "new")).await;
    assert_eq!(bad.sql("SELECT name FROM tenure_lock WHERE name = 'new'"), "new");
}

/// L1: after a failover a user that may write despite `read_only`, such as `root`, continued to renew on the old primary,
/// and another client was granted the lock on the new one.
#[tokio::test]
async fn a_user_that_may_write_to_a_replica_holds_nothing_there() {
    let (old, new) = (MysqlServer::start(), Recipe::new().set("read-only=1").start());
    for server in [&old, &new] {
        server.sql("GRANT SUPER, READ ONLY ADMIN ON *.* TO tenure@'127.0.0.1'");
    }
    let both = format!("mysql://tenure@{},{}/tenure", old.address(), new.address());
    let (a, b) = (player(&both, "one").lasting(LONG), player(&both, "one"));
    let first = enter_in_time(&a).await;
    assert!(!b.try_enter().await);
    old.sql("SET GLOBAL read_only = 1");
    new.sql("SET GLOBAL read_only = 0");
    let renewed = soon(a.backend.renew(std::slice::from_ref(&first))).await.remove(0);
    let error = renewed.expect_err("it is renewed where no other client reads it");
    assert_eq!((error.kind(), error.outcome()), (UNAVAILABLE, Outcome::NotApplied), "{}", chain(&error));
    assert!(error.to_string().contains("takes no writes: read_only is on"), "{}", chain(&error));
    enter_in_time(&b).await;
    assert_eq!(soon(a.renew(&first)).await, Renewal::Gone, "it was not copied");
    assert_eq!(old.sql("SELECT COUNT(*) FROM tenure_lock WHERE name = 'one' AND busy = 1"), "1");
}

/// L1: such a user was granted locks on a single read-only server, although `doctor` reported that locks are impossible
/// there.
#[tokio::test]
async fn no_verb_of_a_user_that_may_write_through_read_only_writes() {
    let server = MysqlServer::start();
    server.sql("GRANT SUPER, READ ONLY ADMIN ON *.* TO tenure@'127.0.0.1'");
    let backend = mysql(&server.url(""));
    let of = |name: &str| Player::new(backend.clone(), name).lasting(LONG);
    let held = of("held");
    let grant = held.enter().await;
    let mut waiters = Vec::new();
    for ahead in 0..7 {
        waiters.push(of("held"));
        waiters[ahead].queue_behind(ahead).await;
    }
    // One place is in the row of the lock, and one has its own row.
    let (near, far) = (&waiters[0], &waiters[6]);
    server.sql("SET GLOBAL read_only = 1");
    let before = server.sql("SELECT * FROM tenure_lock ORDER BY name");
    let (name, owner) = (&held.claim.name, held.claim.owner);
    let memo = Memo::new("memo", LONG).unwrap();
    let refused = |what: &str, answer: Result<(), tenure_core::BackendError>| {
        let error = answer.expect_err(what);
        assert_eq!((error.kind(), error.outcome()), (UNAVAILABLE, Outcome::NotApplied), "{what}: {error:?}");
        assert!(error.to_string().contains("takes no writes: read_only is on"), "{what}: {}", chain(&error));
    };
    for _ in 0..2 {
        refused("new", soon(backend.claim(&of("new").claim)).await.map(drop));
        refused("queue", soon(backend.claim(&of("held").claim)).await.map(drop));
        refused("renew", soon(backend.renew(std::slice::from_ref(&grant))).await.remove(0).map(drop));
        refused("note", soon(backend.note(name, owner, grant.token, &memo)).await.map(drop));
        refused("break", soon(backend.break_lock(name, BreakScope::Leases)).await.map(drop));
        refused("leave", soon(backend.release(name, near.claim.owner)).await.map(drop));
        refused("leave far", soon(backend.release(name, far.claim.owner)).await.map(drop));
        refused("release", soon(backend.release(name, owner)).await.map(drop));
    }
    assert_eq!(server.sql("SELECT * FROM tenure_lock ORDER BY name"), before);
    assert_eq!(soon(backend.inspect(name)).await.unwrap().holders.len(), 1, "it can be read");
    finding(&backend, Severity::Problem, "read_only is on: nothing can be locked").await;
    server.sql("SET GLOBAL read_only = 0");
    assert_eq!(soon(held.renew(&grant)).await, Renewal::Renewed);
    assert_eq!(soon(far.leave()).await, Released::Released);
    server.sql("SET GLOBAL read_only = 1; DROP TABLE tenure_lock");
    refused_as(&server.url(""), UNAVAILABLE, "takes no writes: read_only is on").await;
    assert_eq!(server.sql("SHOW TABLES"), "", "no table was made");
}

/// The replica copies from the primary, which has a binary log, from now on.
fn replicate(primary: &MysqlServer, replica: &MysqlServer) {
    primary.sql("CREATE USER copy@'127.0.0.1'; GRANT REPLICATION SLAVE ON *.* TO copy@'127.0.0.1'");
    replica.sql(&format!(
        "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='copy', MASTER_USE_GTID=slave_pos; \
         START SLAVE",
        primary.port()
    ));
}

/// A replica repeats the statements with `read_only` on. When it is promoted, it must have the lease.
#[tokio::test]
async fn a_replica_that_runs_the_statements_again_has_the_leases() {
    let primary =
        Recipe::new().set("log-bin=binlog").set("server-id=1").set("binlog-format=STATEMENT").start();
    let replica = Recipe::new().set("server-id=2").set("read-only=1").start();
    replicate(&primary, &replica);
    let a = player(&primary.url(""), "one").lasting(LONG);
    let first = enter_in_time(&a).await;
    assert_eq!(soon(a.renew(&first)).await, Renewal::Renewed);
    let rows = "SELECT name, version, busy, state FROM tenure_lock WHERE name = 'one'";
    assert!(primary.sql(rows).contains(&a.claim.owner.to_string()));
    until("the replica has the lease", async || replica.sql(rows) == primary.sql(rows)).await;
}

/// L6: a primary that accepted connections and did not answer kept the client from the new one for 10 s and more, because
/// both shared a slot. A replicated lease was lost.
#[tokio::test]
async fn a_server_that_hangs_keeps_no_client_from_its_successor() {
    let (old, new) = (MysqlServer::start(), Recipe::new().set("read-only=1").start());
    let url = format!("mysql://tenure@{},{}/tenure?connect_timeout=500ms", old.address(), new.address());
    let a = player(&url, "one").lasting(LONG);
    enter_in_time(&a).await;
    old.stop();
    let begun = std::time::Instant::now();
    let claim = async || a.backend.claim(&Player::new(a.backend.clone(), "new").claim).await;
    let mut last = String::new();
    while begun.elapsed() < Duration::from_secs(5) {
        let answered = tokio::time::timeout(Duration::from_secs(3), claim()).await;
        last = answered.map_or(last, |answer| chain(&answer.expect_err("no server takes writes")));
    }
    let named = last.contains("has not ended an earlier connection") && last.contains(&old.address());
    assert!(named && !last.contains(&new.address()), "{last}");
    new.sql("SET GLOBAL read_only = 0");
    let promoted = std::time::Instant::now();
    until("the new one is used", async || claim().await.is_ok()).await;
    assert!(promoted.elapsed() < Duration::from_secs(4), "after {:?}", promoted.elapsed());
}

/// Each process would use the one that it reaches first.
#[tokio::test]
async fn two_servers_of_one_url_that_both_take_writes_are_refused_and_found() {
    let (one, other) = (MysqlServer::start(), MysqlServer::start());
    let url = format!("mysql://tenure@{},{}/tenure", one.address(), other.address());
    finding(&mysql(&url), Severity::Problem, "are two servers, and both take writes").await;
    refused_as(&url, UNAVAILABLE, "two servers of the URL take writes").await;
    // One that hangs keeps the other two from nothing.
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = hangs.local_addr().unwrap();
    let three = format!("mysql://tenure@{},{hung},{}/tenure", one.address(), other.address());
    refused_as(&three, UNAVAILABLE, "two servers of the URL take writes").await;
    let twice = format!("mysql://tenure@{0},{0}/tenure", one.address());
    let findings = mysql(&twice).diagnose().await.unwrap();
    assert!(findings.iter().all(|it| !it.what.contains("two servers")), "{findings:?}");
    player(&twice, "one").enter().await;
}

/// A replica is refused until it is promoted; what it has copied is held there, and tokens go on.
#[tokio::test]
async fn a_replica_takes_over() {
    let primary = Recipe::new().set("log-bin=binlog").set("server-id=1").start();
    let replica = Recipe::new().set("server-id=2").set("read-only=1").start();
    replicate(&primary, &replica);
    let both = format!("mysql://tenure@{},{}/tenure", replica.address(), primary.address());
    let (a, b) = (player(&both, "one").lasting(LONG), player(&both, "one"));
    let first = enter_in_time(&a).await;
    b.queue_behind(0).await;
    let place = format!("SELECT COUNT(*) FROM tenure_lock WHERE state LIKE '%{}%'", b.claim.owner);
    until("the replica has the table", async || replica.sql("SHOW TABLES") == "tenure_lock").await;
    until("the replica has the place", async || replica.sql(&place) == "1").await;
    refused_as(&replica.url(""), UNAVAILABLE, "this MySQL server takes no writes").await;
    replica.sql("GRANT REPLICA MONITOR ON *.* TO tenure@'127.0.0.1'");
    finding(&mysql(&replica.url("")), Severity::Problem, "the server is a replica").await;
    finding(&mysql(&primary.url("")), Severity::Note, "do not wait for a replica").await;
    primary.kill();
    replica.sql("STOP SLAVE; SET GLOBAL read_only = 0");
    assert!(!soon(b.try_enter()).await, "the lease was copied");
    assert_eq!(soon(a.renew(&first)).await, Renewal::Renewed);
    assert_eq!(a.leave().await, Released::Released);
    assert!(enter_in_time(&b).await.token > first.token);
}

#[tokio::test]
async fn a_server_with_too_many_connections_says_so() {
    let server = Recipe::new().set("max-connections=10").start();
    let holder = player(&server.url(""), "held").lasting(LONG);
    let grant = holder.enter().await;
    let others = join_all((0..9).map(|_| connect(server.port(), &[]))).await;
    refused_as(&server.url(""), UNAVAILABLE, "has too many connections").await;
    assert_eq!(holder.renew(&grant).await, Renewal::Renewed, "who has a connection needs none");
    drop(others);
    enter_in_time(&player(&server.url(""), "one")).await;
}

#[tokio::test]
async fn a_full_disk_is_told_and_the_lock_works_again_when_there_is_room() {
    let Some(disk) = SmallDisk::new(48) else { return };
    let data = disk.path().join("data");
    let server = Recipe::new().data(&data).start();
    let backend = mysql(&server.url(""));
    let held = Player::new(backend.clone(), "held").lasting(LONG);
    let grant = held.enter().await;
    let error = 'full: {
        for count in 0..20_000 {
            // What the server gives back is taken as well.
            if count % 500 == 0 {
                disk.fill();
            }
            let new = Player::new(backend.clone(), &format!("new/{count}/{}", "n".repeat(400)));
            if let Err(error) = soon(backend.claim(&new.claim)).await {
                break 'full error;
            }
        }
        panic!("the disk is never full");
    };
    assert_eq!((error.kind(), error.outcome()), (UNAVAILABLE, Outcome::NotApplied), "{}", chain(&error));
    assert!(error.to_string().contains("the disk of the MySQL server is full"), "{}", chain(&error));
    // What is there already is written in its place.
    assert_eq!(soon(held.renew(&grant)).await, Renewal::Renewed);
    disk.free();
    enter_in_time(&Player::new(backend.clone(), "new")).await;
    assert_eq!(held.leave().await, Released::Released);
    enter_in_time(&player(&server.url(""), "held")).await;
}

/// L1, L2, L6: every connection is cut again and again, in whatever statement it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_killed_all_the_time_cost_no_exclusion() {
    let server = Arc::new(MysqlServer::start());
    let is_over = Arc::new(AtomicBool::new(false));
    let kills = Arc::new(AtomicUsize::new(0));
    let killer = std::thread::spawn({
        let (server, is_over, kills) = (server.clone(), is_over.clone(), kills.clone());
        move || {
            while !is_over.load(SeqCst) {
                server.sql("KILL USER tenure@'127.0.0.1'");
                kills.fetch_add(1, SeqCst);
                std::thread::sleep(Duration::from_millis(300));
            }
        }
    });
    let url = server.url("");
    while kills.load(SeqCst) < 10 {
        contend(&url, 4, 4).await;
    }
    is_over.store(true, SeqCst);
    killer.join().unwrap();
}

/// L1: a server that stands still: claims end with one clear error in the end, and go on after it.
#[tokio::test]
async fn a_server_that_stands_still_is_told_and_goes_on() {
    let server = MysqlServer::start();
    let (a, b) = (player(&server.url(""), "one").lasting(LONG), player(&server.url(""), "one"));
    let first = a.enter().await;
    b.queue_behind(0).await;
    server.stop();
    refused_as(&server.url("?connect_timeout=200ms"), UNAVAILABLE, "the MySQL server does not answer").await;
    let name = b.claim.name.clone();
    let (claimed, inspected) = soon(async {
        let stuck = b.backend.claim(&b.claim);
        // Behind it comes another one, which finds the connection stuck.
        let late = async {
            let _ =
                tokio::time::timeout(Duration::from_millis(600) * slowness(), std::future::pending::<()>())
                    .await;
            b.backend.inspect(&name).await
        };
        tokio::join!(stuck, late)
    })
    .await;
    for error in [claimed.unwrap_err(), inspected.unwrap_err()] {
        assert!(matches!(error.kind(), UNAVAILABLE | ErrorKind::TimedOut), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("not answer"), "{text}");
    }
    server.resume();
    assert!(!soon(b.try_enter()).await);
    assert_eq!(soon(a.renew(&first)).await, Renewal::Renewed);
    assert_eq!(a.leave().await, Released::Released);
    assert!(enter_in_time(&b).await.token > first.token);
}

/// L8: a future that is dropped at whatever await leaves nothing, once its release was answered.
#[tokio::test]
async fn what_is_dropped_anywhere_leaves_nothing() {
    let server = MysqlServer::start();
    let backend = mysql(&server.url(""));
    let witness = mysql(&server.url(""));
    Player::new(witness.clone(), "busy").lasting(LONG).enter().await;
    let memo = Memo::new("memo", LONG).unwrap();
    let mut dropped = 0;
    for verb in ["claim", "queue", "renew", "note", "release", "break"] {
        for polls in 0..40 {
            let name = if verb == "queue" { "busy".to_owned() } else { format!("{verb}/{polls}") };
            let a = Player::new(backend.clone(), &name).lasting(LONG);
            let (name, owner) = (&a.claim.name, a.claim.owner);
            let grant = if matches!(verb, "claim" | "queue") { None } else { Some(a.enter().await) };
            let grants = grant.as_slice();
            let is_done = match verb {
                "claim" | "queue" => dropped_after(polls, a.backend.claim(&a.claim)).await.is_some(),
                "renew" => dropped_after(polls, a.backend.renew(grants)).await.is_some(),
                "note" => {
                    dropped_after(polls, a.backend.note(name, owner, grants[0].token, &memo)).await.is_some()
                }
                "release" => dropped_after(polls, a.backend.release(name, owner)).await.is_some(),
                _ => dropped_after(polls, a.backend.break_lock(name, BreakScope::Leases)).await.is_some(),
            };
            dropped += usize::from(!is_done);
            // As the reaper has it, on a handle of its own.
            let reaper = soon(backend.handle()).await.unwrap();
            soon(reaper.release(name, owner)).await.unwrap();
            if is_done && polls > 0 {
                break;
            }
        }
    }
    assert!(dropped > 12, "only {dropped}");
    let left = async || {
        let views = witness.list("").await.unwrap();
        let is_left = views.len() != 1 || views[0].holders.len() != 1 || !views[0].queue.is_empty();
        if is_left { Err(format!("{views:?}")) } else { Ok(()) }
    };
    becomes_ok("nothing is left", Duration::from_millis(100), left).await;
    let enters = backend.handle().await.unwrap();
    Player::new(enters, "claim/1").enter().await;
}

/// A server that waits for a lock does not notice that its client has left: eight elections filled one of 151 connections beside a
/// `mysqldump`, since what was left or given up stayed there, and its successor was stuck as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_has_one_connection_whatever_its_server_does() {
    let locked = async |mode: &str| {
        let server = MysqlServer::start();
        let crowd = Crowd::new(&server.url("")).await;
        let mut stranger = connect(server.port(), &[&format!("LOCK TABLES tenure_lock {mode}")]).await;
        let count = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'tenure'";
        let most =
            crowd.asks(async || stranger.query_first::<usize, _>(count).await.unwrap().unwrap() - 1).await;
        drop(stranger);
        crowd.goes_on().await;
        (most, mode.to_owned())
    };
    let behind = async |name: &str, fault: fn(&Proxy)| {
        let server = MysqlServer::start();
        let proxy = Proxy::to(server.port(), 1);
        let url = format!("mysql://tenure@127.0.0.1:{}/tenure?ssl-mode=DISABLED", proxy.port());
        let crowd = Crowd::new(&url).await;
        fault(&proxy);
        let most = crowd.asks(async || sockets(proxy.port())).await;
        proxy.heal();
        crowd.goes_on().await;
        (most, name.to_owned())
    };
    let counts = tokio::join!(
        locked("READ"),
        locked("WRITE"),
        behind("no answer", Proxy::stall),
        behind("slow answers", |proxy| proxy.delay(Duration::from_millis(400)..=Duration::from_millis(700))),
    );
    for (most, fault) in [counts.0, counts.1, counts.2, counts.3] {
        assert!(most <= Crowd::HANDLES + 3, "{fault}: {most} connections of {} handles", Crowd::HANDLES);
    }
}

/// L6: a server may keep a login that was given up: until another service has told it who that is, for example.
#[tokio::test]
async fn a_login_that_is_given_up_counts_as_there() {
    let server = MysqlServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let url =
        format!("mysql://tenure@127.0.0.1:{}/tenure?ssl-mode=DISABLED&connect_timeout=500ms", proxy.port());
    proxy.stall();
    let asks = player(&url, "one");
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        let _ = asks.backend.inspect(&asks.claim.name).await;
    }
    let logins = proxy.traffic().accepted;
    assert!((1..=4).contains(&logins), "{logins} logins in 8 s");
    proxy.heal();
    until("it is served again", async || asks.backend.inspect(&asks.claim.name).await.is_ok()).await;
}

/// How many sockets of this process lead to a port of 127.0.0.1.
fn sockets(port: u16) -> usize {
    let all = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let leads_there = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Without an inode the process has closed it.
        fields[2].ends_with(&format!(":{port:04X}")) && fields[9] != "0"
    };
    all.lines().filter(leads_there).count()
}

/// Handles that hold a lock each.
struct Crowd(Vec<(Player, tenure_core::Grant)>);

impl Crowd {
    const HANDLES: usize = 8;

    async fn new(url: &str) -> Self {
        let holder = async |n: usize| {
            let holder = player(url, &format!("held/{n}")).lasting(LONG);
            let grant = holder.enter().await;
            (holder, grant)
        };
        Self(join_all((0..Self::HANDLES).map(holder)).await)
    }

    /// The most connections while they ask without patience.
    async fn asks(&self, mut connections: impl AsyncFnMut() -> usize) -> usize {
        let is_over = AtomicBool::new(false);
        let asks = join_all(self.0.iter().flat_map(|it| [(it, true), (it, false)]).map(
            async |((holder, grant), renews)| {
                while !is_over.load(SeqCst) {
                    let asked = async {
                        if renews {
                            let _ = holder.backend.renew(std::slice::from_ref(grant)).await;
                        } else {
                            let new = Player::new(holder.backend.clone(), "new");
                            let _ = holder.backend.claim(&new.claim).await;
                        }
                    };
                    let _ = tokio::time::timeout(Duration::from_millis(700), asked).await;
                    let _ =
                        tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>()).await;
                }
            },
        ));
        let counts = async {
            let (begun, mut most) = (std::time::Instant::now(), 0);
            while begun.elapsed() < Duration::from_secs(6) {
                most = most.max(connections().await);
                let _ = tokio::time::timeout(Duration::from_millis(30), std::future::pending::<()>()).await;
            }
            is_over.store(true, SeqCst);
            most
        };
        tokio::join!(asks, counts).1
    }

    /// No client has lost anything, and all are served again.
    async fn goes_on(&self) {
        for (holder, grant) in &self.0 {
            until("it renews", async || {
                matches!(&holder.backend.renew(std::slice::from_ref(grant)).await[0], Ok(Renewal::Renewed))
            })
            .await;
        }
    }
}

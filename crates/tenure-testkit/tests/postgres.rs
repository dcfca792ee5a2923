//! Real PostgreSQL servers start, answer, stop, die, come back, and are gone after the test.

#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::{net::TcpStream, process::Command, time::Duration};

use tenure_testkit::{
    clock::Clock,
    patience::eventually,
    postgres::{Pgbouncer, PostgresServer, Recipe},
    redis::Certificates,
};

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_server_answers_and_is_gone_after_the_drop() {
    let server = PostgresServer::start();
    assert_eq!(server.psql_as("tenure", "SELECT 40 + 2, current_user"), "42|tenure");
    assert_eq!(server.psql("SHOW fsync"), "off");
    assert_eq!(server.url("?a=b"), format!("postgres://tenure@{}/tenure?a=b", server.address()));
    let (port, folder) = (server.port(), server.folder().to_owned());
    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(!folder.exists());
}

#[test]
fn many_servers_start_at_the_same_time() {
    let starts: Vec<_> = (0..3).map(|_| std::thread::spawn(PostgresServer::start)).collect();
    let servers: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
    for server in &servers {
        assert_eq!(server.psql("SHOW port"), server.port().to_string());
    }
}

#[test]
fn what_was_committed_is_there_after_a_crash() {
    let server = Recipe::new().durable().start();
    server.psql("CREATE TABLE t (n int); INSERT INTO t VALUES (7)");
    server.kill();
    assert!(!server.is_running());
    server.start_again();
    assert_eq!(server.psql("SELECT n FROM t"), "7");
}

#[test]
fn a_stopped_server_answers_nothing_until_it_goes_on() {
    let server = PostgresServer::start();
    server.stop();
    std::thread::scope(|threads| {
        let asked = threads.spawn(|| server.psql("SELECT 1"));
        // It cannot be seen that nothing happens; a server that answers does so in a tenth of this.
        std::thread::sleep(Duration::from_millis(300));
        assert!(!asked.is_finished());
        server.resume();
        assert_eq!(asked.join().unwrap(), "1");
    });
}

#[test]
fn a_servers_clock_is_moved() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    let year = |server: &PostgresServer| server.psql("SELECT extract(year FROM clock_timestamp())::int");
    let now: u32 = year(&server).parse().unwrap();
    clock.advance(Duration::from_secs(366 * 24 * 3600));
    assert_eq!(year(&server).parse::<u32>().unwrap(), now + 1);
}

#[test]
fn a_server_speaks_tls_and_wants_passwords_if_told_so() {
    let server = Recipe::new().tls(&Certificates::new()).passwords().start();
    assert_eq!(server.psql("SHOW ssl"), "on");
    server.psql("ALTER ROLE tenure PASSWORD 'secret'");
    assert!(
        server
            .psql("SELECT rolpassword FROM pg_authid WHERE rolname = 'tenure'")
            .starts_with("SCRAM-SHA-256")
    );
}

#[test]
fn a_pooler_leads_to_its_server() {
    let server = PostgresServer::start();
    let pooler = Pgbouncer::before(&server);
    assert!(pooler.show("SHOW CONFIG").contains("pool_mode|transaction"));
    pooler.kill();
    assert!(TcpStream::connect(("127.0.0.1", pooler.port())).is_err());
    pooler.start_again();
    let is_there = || TcpStream::connect(("127.0.0.1", pooler.port())).ok();
    eventually("the pooler is back", PATIENCE, is_there);
}

#[test]
fn a_standby_follows_and_is_promoted() {
    let primary = PostgresServer::start();
    primary.psql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)");
    let standby = Recipe::new().standby_of(&primary).start();
    assert_eq!(standby.psql("SELECT pg_is_in_recovery()"), "t");
    primary.psql("INSERT INTO t VALUES (2)");
    let has_both = || (standby.psql("SELECT count(*) FROM t") == "2").then_some(());
    eventually("the standby has both", PATIENCE, has_both);
    primary.kill();
    assert_eq!(standby.psql("SELECT pg_promote()"), "t");
    standby.psql("INSERT INTO t VALUES (3)");
}

/// Every test that ended with its server killed left a piece of shared memory behind: after 4096 of them no PostgreSQL started any more
/// on that machine, and the suite was red from there on.
#[test]
fn a_server_leaves_no_shared_memory_behind() {
    for is_killed in [false, true] {
        let server = PostgresServer::start();
        let id = server.shared_memory().unwrap();
        let is_there = || Command::new("ipcs").args(["-m", "-i", &id]).output().unwrap().stdout;
        let shown = String::from_utf8(is_there()).unwrap();
        assert!(shown.contains(&format!("shmid={id}")), "{shown}");
        if is_killed {
            server.kill();
        }
        drop(server);
        // It is removed, and goes with the last process of the server, which may end a moment later.
        let is_gone =
            || (!String::from_utf8_lossy(&is_there()).contains(&format!("shmid={id}"))).then_some(());
        eventually("it is gone", PATIENCE, is_gone);
    }
}

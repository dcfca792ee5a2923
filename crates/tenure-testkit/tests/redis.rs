//! Real Redis servers start, answer, stop, die, come back, and are gone after the test.

use std::{net::TcpListener, process::Command, time::Duration};

use tenure_testkit::{
    patience::eventually,
    redis::{Certificates, Raw, Recipe, RedisServer, Reply, Sync},
};

const PATIENCE: Duration = Duration::from_secs(20);

fn text(text: &str) -> Reply {
    Reply::Text(text.into())
}

#[test]
fn a_server_answers_and_is_gone_after_the_drop() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["SET", "key", "value"]), text("OK"));
    assert_eq!(server.command(&["GET", "key"]), text("value"));
    assert_eq!(server.command(&["GET", "nothing"]), Reply::Nil);
    assert_eq!(server.info("server", "tcp_port"), server.port().to_string());
    assert_eq!(server.info("server", "process_id"), server.pid().to_string());
    let (port, folder) = (server.port(), server.folder().to_owned());
    drop(server);
    assert!(Raw::try_connect(port).is_err());
    assert!(!folder.exists());
}

#[test]
fn many_servers_start_at_the_same_time() {
    let starts: Vec<_> = (0..5).map(|_| std::thread::spawn(RedisServer::start)).collect();
    let servers: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
    for server in &servers {
        assert_eq!(server.info("server", "process_id"), server.pid().to_string());
    }
}

#[test]
fn a_restart_loses_everything_without_persistence() {
    let server = RedisServer::start();
    server.command(&["SET", "key", "value"]);
    let (port, run) = (server.port(), server.info("server", "run_id"));
    server.kill();
    assert!(!server.is_running());
    assert!(Raw::try_connect(port).is_err());
    server.start_again();
    assert_eq!(server.port(), port);
    assert_ne!(server.info("server", "run_id"), run);
    assert_eq!(server.command(&["GET", "key"]), Reply::Nil);
}

#[test]
fn a_persistent_server_keeps_what_it_answered() {
    let server = Recipe::new().persistent(Sync::Always).start();
    server.command(&["SET", "key", "value"]);
    server.kill();
    server.start_again();
    assert_eq!(server.command(&["GET", "key"]), text("value"));
    assert_eq!(server.info("persistence", "aof_enabled"), "1");
}

#[test]
fn a_restart_waits_until_its_port_is_given_back() {
    let server = RedisServer::start();
    server.kill();
    let thief = TcpListener::bind(server.address()).unwrap();
    std::thread::scope(|scope| {
        let restart = scope.spawn(|| server.start_again());
        let has_tried = || server.folder().join("log-3").exists().then_some(());
        eventually("the restart is tried twice", PATIENCE, has_tried);
        assert!(!restart.is_finished());
        drop(thief);
    });
    assert_eq!(server.command(&["PING"]), text("PONG"));
}

#[test]
fn a_stopped_server_takes_requests_and_answers_when_it_goes_on() {
    let server = RedisServer::start();
    let mut raw = server.raw();
    server.stop();
    server.stop();
    raw.send(&["INCR", "count"]).unwrap();
    raw.set_patience(Duration::from_millis(200)).unwrap();
    assert_eq!(raw.read().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    server.resume();
    raw.set_patience(PATIENCE).unwrap();
    assert_eq!(raw.read().unwrap(), Reply::Int(1));
}

#[test]
fn a_stopped_server_can_be_killed() {
    let server = RedisServer::start();
    server.stop();
    server.kill();
    server.start_again();
    assert_eq!(server.command(&["PING"]), text("PONG"));
}

#[test]
fn settings_come_from_the_recipe() {
    let recipe = Recipe::new().args(&["--databases", "3"]).memory(3 << 20, "volatile-ttl");
    let server = recipe.config("lua-time-limit 77\nsave 600 1").start();
    let setting = |name: &str| server.command(&["CONFIG", "GET", name]).field(name).text();
    assert_eq!(setting("databases"), "3");
    assert_eq!(setting("maxmemory"), (3 << 20).to_string());
    assert_eq!(setting("maxmemory-policy"), "volatile-ttl");
    assert_eq!(setting("lua-time-limit"), "77");
    assert_eq!(setting("save"), "600 1");
}

#[test]
fn a_replica_follows_its_master() {
    let master = RedisServer::start();
    let replica = Recipe::new().replica_of(master.port()).start();
    master.command(&["SET", "key", "value"]);
    eventually("the replica has the key", PATIENCE, || {
        (replica.command(&["GET", "key"]) == text("value")).then_some(())
    });
    assert_eq!(replica.info("replication", "role"), "slave");
}

#[test]
fn users_come_from_the_settings_and_the_server_logs_in_for_the_test() {
    let users =
        "user default off\nuser admin on >root ~* &* +@all\nuser lock on >pw ~lock:* &* +@all -@dangerous";
    let server = Recipe::new().config(users).login("admin", "root").start();
    assert_eq!(server.command(&["ACL", "WHOAMI"]), text("admin"));
    let mut stranger = Raw::connect(server.port());
    assert!(stranger.command(&["GET", "lock:a"]).error().unwrap().starts_with("NOAUTH"));
    stranger.log_in("lock", "pw");
    assert_eq!(stranger.command(&["GET", "lock:a"]), Reply::Nil);
    assert!(stranger.command(&["GET", "other"]).error().unwrap().starts_with("NOPERM"));
}

#[test]
fn a_raw_connection_may_speak_nonsense_and_read_late() {
    let server = RedisServer::start();
    let mut raw = server.raw();
    raw.send(&["INCR", "count"]).unwrap();
    raw.send(&["INCR", "count"]).unwrap();
    assert_eq!((raw.read().unwrap(), raw.read().unwrap()), (Reply::Int(1), Reply::Int(2)));
    raw.send_bytes(b"*1\r\n!\r\n").unwrap();
    assert!(raw.read().unwrap().error().unwrap().contains("Protocol error"));
    assert!(raw.read_to_end().unwrap().is_empty());
}

#[test]
fn a_tls_server_speaks_to_whom_trusts_its_authority() {
    let certificates = Certificates::new();
    let server = Recipe::new().tls(&certificates).start();
    assert_eq!(server.command(&["SET", "key", "value"]), text("OK"));
    assert_eq!(server.url("x"), format!("rediss://127.0.0.1:{}/x", server.port()));
    for host in ["127.0.0.1", "localhost"] {
        assert_eq!(over_tls(&server, host, &certificates), Ok("value".to_owned()));
    }
    let stranger = over_tls(&server, "127.0.0.1", &Certificates::new()).unwrap_err();
    assert!(stranger.contains("certificate verify failed"), "{stranger}");
    let mut plain = Raw::connect(server.port());
    assert!(plain.try_command(&["PING"]).is_err());
}

/// What `GET key` says through TLS, or why there is none.
fn over_tls(server: &RedisServer, host: &str, certificates: &Certificates) -> Result<String, String> {
    let output = Command::new("redis-cli")
        .args(["--tls", "-h", host, "-p", &server.port().to_string(), "--cacert"])
        .arg(certificates.ca_file())
        .args(["GET", "key"])
        .output()
        .expect("redis-cli is missing; `cargo xtask test` installs it");
    let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
    if output.status.success() { Ok(words(output.stdout)) } else { Err(words(output.stderr)) }
}

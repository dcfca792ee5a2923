//! A password that is replaced while leases are held: the new one is read when a connection is made, and no lease is lost.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;
use tempfile::TempDir;
#[cfg(feature = "etcd")]
use tenure_testkit::etcd;
use tenure_testkit::{patience::eventually, postgres, redis::RedisServer};

use crate::stage::{PATIENCE, Stage, scaled_ttl};

/// A command holds, another one waits, a third leads, while the password changes and all connections end. For a while the file
/// has the old password, which is refused.
fn nothing_is_lost(stage: &Stage, file: &Path, rotate: impl FnOnce()) {
    let (ttl, text) = scaled_ttl(Duration::from_secs(6));
    let sleeps = ["--", "sh", "-c", "echo up; exec sleep 600"];
    let mut holder = stage.start(&[&["run", "--ttl", &text, "job"], &sleeps[..]].concat());
    let mut leader = stage.start(&[&["lead", "--ttl", &text, "lead"], &sleeps[..]].concat());
    for process in [&holder, &leader] {
        eventually("it runs", PATIENCE, || process.printed().contains("up").then_some(()));
    }
    let mut waiter = stage.start_waiter("job", &["run", "--ttl", &text, "job", "--", "echo", "entered"]);
    rotate();
    eventually("the old password is refused", PATIENCE, || {
        (stage.run(&["show", "job"]).code == 69).then_some(())
    });
    eventually("that is said", PATIENCE, || holder.said().contains("a renewal is refused").then_some(()));
    fs::write(file, "new\n").unwrap();
    // By then a lease that is not renewed has ended.
    holder.runs_on(ttl + ttl / 3);
    assert!(leader.is_running() && waiter.is_running(), "{}{}", leader.said(), waiter.said());
    assert_eq!(holder.printed(), "up\n", "{}", holder.said());
    assert_eq!(leader.printed(), "up\n", "it began once: {}", leader.said());
    assert_eq!(stage.show("job")["holders"][0]["label"]["pid"], holder.pid());
    holder.signal(Signal::SIGTERM);
    holder.ended();
    let entered = waiter.ended();
    assert_eq!((entered.code, entered.out.as_str()), (0, "entered\n"), "{entered:?}");
}

/// A file that has the old password, in a folder of its own, and a stage whose URL names it.
fn stage(url: &str) -> (Stage, TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, "old\n").unwrap();
    (Stage::at(format!("{url}password_file={}", file.display())), folder, file)
}

#[test]
fn a_password_of_redis_is_replaced_under_a_holder() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "lock", "on", ">old", "~*", "&*", "+@all"]);
    let (stage, _folder, file) = stage(&format!("redis://lock@127.0.0.1:{}/?guard=off&", server.port()));
    nothing_is_lost(&stage, &file, || {
        server.command(&["ACL", "SETUSER", "lock", ">new", "<old"]);
        server.command(&["CLIENT", "KILL", "USER", "lock"]);
    });
}

#[test]
fn a_password_of_postgres_is_replaced_under_a_holder() {
    let server = postgres::PostgresServer::start();
    server.psql("CREATE ROLE locks LOGIN SUPERUSER PASSWORD 'old'");
    let hba = "local all all trust\nhost all locks 127.0.0.1/32 scram-sha-256\n";
    fs::write(server.data().join("pg_hba.conf"), hba).unwrap();
    server.psql("SELECT pg_reload_conf()");
    let (stage, _folder, file) = stage(&format!("postgres://locks@{}/tenure?", server.address()));
    nothing_is_lost(&stage, &file, || {
        server.psql("ALTER ROLE locks PASSWORD 'new'");
        server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'locks'");
    });
}

/// etcd ends the sessions of a user whose password changes, and not the connections.
#[cfg(feature = "etcd")]
#[test]
fn a_password_of_etcd_is_replaced_under_a_holder() {
    use std::{io::Write, process::Stdio};

    let server = etcd::Recipe::new().login("secret").start();
    for arguments in [
        &["user", "add", "locks:old"][..],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "--prefix=true", "readwrite", ""],
        &["user", "grant-role", "locks", "locks"],
    ] {
        server.ask(arguments);
    }
    let (stage, _folder, file) = stage(&format!("etcd://locks@{}?", server.address()));
    nothing_is_lost(&stage, &file, || {
        let mut changes = server.etcdctl(&["user", "passwd", "locks", "--interactive=false"]);
        let mut child = changes.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"new\n").unwrap();
        assert!(child.wait().unwrap().success());
    });
}

/// A URL that stands in a file has its password read there anew.
#[test]
fn the_password_of_a_url_in_a_file_is_replaced_under_a_holder() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "lock", "on", ">old", "~*", "&*", "+@all"]);
    let stage = Stage::new();
    let (file, (ttl, text)) = (stage.path("url"), scaled_ttl(Duration::from_secs(6)));
    let write = |word: &str| {
        fs::write(&file, format!("redis://lock:{word}@127.0.0.1:{}/?guard=off\n", server.port())).unwrap();
    };
    write("old");
    let mut command =
        stage.command(&["run", "--ttl", &text, "job", "--", "sh", "-c", "echo up; exec sleep 600"]);
    command.env_remove("TENURE_URL").env("TENURE_URL_FILE", &file);
    let mut holder = stage.start_command(command);
    eventually("it runs", PATIENCE, || holder.printed().contains("up").then_some(()));
    server.command(&["ACL", "SETUSER", "lock", ">new", "<old"]);
    server.command(&["CLIENT", "KILL", "USER", "lock"]);
    write("new");
    holder.runs_on(ttl + ttl / 3);
    assert_eq!(holder.printed(), "up\n", "{}", holder.said());
}

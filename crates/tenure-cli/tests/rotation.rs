//! A password that is replaced while leases are held: the new one is read when a connection is made, and no lease is lost.

use std::{fs, path::Path, time::Duration};

use nix::sys::signal::Signal;
use tenure_testkit::{patience::eventually, redis::RedisServer, rotation::Rotating};

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

fn rotated(server: &Rotating) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, "old\n").unwrap();
    let stage = Stage::at(format!("{}&password_file={}", server.url(), file.display()));
    nothing_is_lost(&stage, &file, || server.change("new"));
}

#[test]
fn a_password_of_redis_is_replaced_under_a_holder() {
    rotated(&Rotating::redis());
}

#[test]
fn a_password_of_postgres_is_replaced_under_a_holder() {
    rotated(&Rotating::postgres());
}

#[cfg(feature = "mysql")]
#[test]
fn a_password_of_mysql_is_replaced_under_a_holder() {
    rotated(&Rotating::mysql());
}

#[cfg(feature = "etcd")]
#[test]
fn a_password_of_etcd_is_replaced_under_a_holder() {
    rotated(&Rotating::etcd());
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

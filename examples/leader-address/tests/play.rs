//! The program, as a user starts it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::{Command, Output};

use tenure_testkit::redis::RedisServer;

fn play(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_leader-address")).args(arguments).output().unwrap()
}

#[track_caller]
fn assert_went_well(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{out}{err}");
    let found = |line: &&str| line.starts_with("client  finds the leader at its address, and hears: ");
    assert_eq!(out.lines().filter(found).count(), 2, "{out}");
    assert!(out.lines().last().unwrap().starts_with("The third one leads now: "), "{out}");
}

/// L2: leaders come one after the other, in terms that grow, and each is found where it is.
#[test]
fn each_leader_is_found_at_its_address() {
    assert_went_well(&play(&[]));
}

#[test]
fn another_store_does_as_well() {
    let server = RedisServer::start();
    assert_went_well(&play(&[&server.url("?guard=off")]));
}

#[test]
fn what_cannot_work_is_said() {
    for (arguments, part) in [
        (&["memory:"][..], "seen by one process only"),
        (&["--help"], "usage: leader-address [URL]"),
        (&["nonsense://"], "unknown URL scheme"),
    ] {
        let output = play(arguments);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && err.contains(part), "{arguments:?}: {err}");
        assert!(output.stdout.is_empty());
    }
}

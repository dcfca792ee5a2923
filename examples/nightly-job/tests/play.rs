//! The program, as a user starts it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::{Command, Output};

use tenure_testkit::redis::RedisServer;

fn play(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nightly-job")).args(arguments).output().unwrap()
}

#[track_caller]
fn assert_went_well(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{out}{err}");
    let count = |what: &str| out.lines().filter(|line| line.contains(what)).count();
    let counts = (count("has made the backup"), count("has failed: no disk"), count("has nothing to do: "));
    assert_eq!(counts, (3, 1, 5), "{out}");
    assert_eq!(out.lines().last(), Some("Three nights, three backups"));
}

/// L1: of three hosts one makes the backup, also in the night in which the first one that tries fails.
#[test]
fn each_night_has_one_backup() {
    assert_went_well(&play(&[]));
}

#[test]
fn another_store_does_as_well() {
    let server = RedisServer::start();
    assert_went_well(&play(&[&server.url("?guard=off")]));
}

#[test]
fn what_cannot_work_is_said() {
    for (arguments, part) in
        [(&["memory:"][..], "seen by one process only"), (&["--help"], "usage: nightly-job [URL]")]
    {
        let output = play(arguments);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && err.contains(part), "{arguments:?}: {err}");
        assert!(output.stdout.is_empty());
    }
}

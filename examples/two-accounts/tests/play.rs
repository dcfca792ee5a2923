//! The program, as a user starts it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::{Command, Output};

use tenure_testkit::redis::RedisServer;

fn play(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_two-accounts")).args(arguments).output().unwrap()
}

/// L1, L6: no money is lost or made, and all tellers come to their end.
#[track_caller]
fn assert_went_well(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{out}{err}");
    let count = |start: &str| out.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((count("teller "), count("account ")), (4, 5), "{out}");
    let balances = out.lines().filter_map(|line| line.strip_prefix("account "));
    let balances: Vec<i64> = balances.map(|line| line[1..].trim().parse().unwrap()).collect();
    assert!(balances.iter().sum::<i64>() == 5000 && balances.iter().all(|&balance| balance >= 0), "{out}");
    assert!(balances.iter().any(|&balance| balance != 1000), "{out}");
    assert!(out.ends_with("in all      5000, as at the start: 5000\n"), "{out}");
}

#[test]
fn no_money_is_lost_with_locks_in_a_file() {
    assert_went_well(&play(&[]));
}

#[test]
fn no_money_is_lost_with_locks_in_redis() {
    let server = RedisServer::start();
    assert_went_well(&play(&[&server.url("?guard=off")]));
}

#[test]
fn what_cannot_be_played_is_one_line() {
    for (arguments, part) in [
        (&["memory:"][..], "a lock in memory is seen by one process only"),
        (&["--help"], "usage: two-accounts [URL]"),
        (&["a", "b"], "usage: two-accounts [URL]"),
    ] {
        let output = play(arguments);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), err.lines().count()), (Some(1), 1), "{err}");
        assert!(err.contains(part), "{err}");
    }
}

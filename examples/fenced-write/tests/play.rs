//! The program, as a user starts it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tenure_testkit::redis::RedisServer;

fn play(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fenced-write")).args(arguments).output().unwrap()
}

/// Checks what it says, line by line, with the numbers taken out.
#[track_caller]
fn assert_went_well(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let tokens: Vec<&str> = out
        .lines()
        .filter_map(|line| line.split_once("holds the lock, token ")?.1.split(',').next())
        .collect();
    let [former, later] = tokens[..] else { panic!("two tokens: {out}") };
    assert!(former.parse::<u64>().unwrap() < later.parse().unwrap(), "{out}");
    let lines: Vec<String> = out.lines().map(|line| line.replace(former, "A").replace(later, "B")).collect();
    let expected = "\
first   holds the lock, token A, and has looked: its lease is good, it may write
        It is stopped there (SIGSTOP), for longer than its lease of 1 s
second  holds the lock, token B
second  fenced.txt: written
second  plain.txt: written
        The first goes on (SIGCONT) with what it was about to do
first   fenced.txt: token A is refused: a later holder with token B has been here
first   plain.txt: written

fenced.txt has what the second wrote: the late write did no harm
plain.txt has what the first wrote: the second's work is lost";
    assert_eq!(lines.join("\n"), expected);
    assert_eq!(err, "");
}

fn assert_files(folder: &Path) {
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(text("fenced.txt"), "written by the second\n");
    assert_eq!(text("plain.txt"), "written by the first\n");
}

/// L3: a holder that was stopped past its lease, between its check and its write, is refused; without the fence its write
/// goes through.
#[test]
fn the_late_write_is_refused_by_the_fence_and_goes_through_without_it() {
    assert_went_well(&play(&[]));
}

/// L3: the same twice on the same files, and with the locks in files of the user's own.
#[test]
fn the_files_stay_in_the_folder_that_was_named_and_go_on_being_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    for _ in 0..2 {
        assert_went_well(&play(&[&url, folder.path().to_str().unwrap()]));
        assert_files(folder.path());
    }
}

#[test]
fn another_store_does_as_well() {
    let (server, folder) = (RedisServer::start(), tempfile::tempdir().unwrap());
    assert_went_well(&play(&[&server.url("?guard=off"), folder.path().to_str().unwrap()]));
    assert_files(folder.path());
}

#[test]
fn what_cannot_work_is_said() {
    for (arguments, part) in [
        (&["memory:"][..], "seen by one process only"),
        (&["--help"], "usage: fenced-write [URL [FOLDER]]"),
        (&["sqlite:/nowhere/at/all.db"], "the first ended too soon"),
        (&["nonsense://"], "the first ended too soon"),
    ] {
        let output = play(arguments);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && err.contains(part), "{arguments:?}: {err}");
        assert!(output.stdout.is_empty());
    }
}

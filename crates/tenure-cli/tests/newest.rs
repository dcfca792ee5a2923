//! `run --latest` and `run --replace`: of the runs that wait, the newest goes on; and it may ask the holder to stop.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::stage::{self, Process, Stage, files::HOLD};

/// Notes that it came, and whether it was asked to stop.
const LISTENS: &str = "trap 'echo $0 stops >>log; exit 3' TERM; echo $0 >>log; while :; do sleep 0.05; done";

/// L1, L4: a command is asked by TERM, ends when it likes, and the newest follows. Those between have given way.
fn the_newest_replaces_the_holder_and_those_between(stage: &Stage) {
    let run = |name: &str, flag: &str| {
        stage.start(&["run", flag, "--skip-exit-code", "9", "job", "--", "sh", "-c", LISTENS, name])
    };
    let skipped = |older: Process| {
        let skipped = older.ended();
        assert_eq!(skipped.code, 9, "{skipped:?}");
        assert!(skipped.err.contains("skipped: ") && skipped.err.contains("came later"), "{skipped:?}");
    };
    let mut holder = run("first", "--replace");
    stage.has_lines("log", 1);
    // It asks nothing of the holder, and waits until a newer one comes.
    let latest = run("second", "--latest");
    stage.queued("job", &latest);
    let later = run("third", "--latest");
    skipped(latest);
    holder.runs_on(Duration::ZERO);
    let newest = run("fourth", "--replace");
    let ended = holder.ended();
    assert_eq!(ended.code, 3, "{ended:?}");
    assert!(ended.err.contains("asks it to stop: sent TERM"), "{ended:?}");
    skipped(later);
    stage.has_lines("log", 3);
    newest.signal(Signal::SIGTERM);
    assert_eq!(newest.ended().code, 3);
    assert_eq!(stage.lines("log"), ["first", "first stops", "fourth", "fourth stops"]);
}

/// L1: nothing is taken from a holder that does not listen.
fn a_holder_without_the_flag_is_not_disturbed(stage: &Stage) {
    let mut holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let newer = stage.start(&["run", "--replace", "job", "--", "true"]);
    stage.queued("job", &newer);
    holder.runs_on(Duration::from_millis(1500));
    stage.touch("go");
    holder.ended().silent(0);
    newer.ended().silent(0);
}

stage::on_every_store!(; but_quorums:
    the_newest_replaces_the_holder_and_those_between,
    a_holder_without_the_flag_is_not_disturbed,
);

/// L1: what the command has begun elsewhere may go on after a TERM, even if the command says its own code.
#[test]
fn one_that_was_asked_to_stop_lingers() {
    let stage = Stage::new();
    let holder =
        stage.start(&["run", "--replace", "--linger", "30s", "job", "--", "sh", "-c", LISTENS, "first"]);
    stage.has_lines("log", 1);
    let newest = stage.start(&["run", "--replace", "job", "--", "true"]);
    let asked = holder.ended();
    assert_eq!(asked.code, 3, "{asked:?}");
    newest.signal(Signal::SIGTERM);
    newest.ended();
    let held = stage.show("job");
    assert_eq!((held["holders"].as_array().unwrap().len(), stage.lines("log").len()), (1, 2), "{held}");
}

#[test]
fn what_cannot_be_is_refused_in_a_line() {
    let stage = Stage::on_quorum();
    let refused = stage.run(&["run", "--latest", "job", "--", "true"]);
    assert_eq!(refused.code, 64, "{refused:?}");
    assert!(refused.err.contains("waiters of a mutex have an order"), "{refused:?}");
    let stage = Stage::new();
    for words in [
        &["--latest", "-n"][..],
        &["--replace", "--slots", "2"],
        &["--latest", "--replace"],
        &["--replace", "--every", "1h"],
    ] {
        let refused = stage.run(&[&["run"], words, &["job", "--", "true"]].concat());
        assert_eq!(refused.code, 64, "{refused:?}");
    }
    // Nothing is said with -q, and the code is 0 unless another one is named.
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let older = stage.start(&["-q", "run", "--latest", "job", "--", "true"]);
    stage.queued("job", &older);
    let newer = stage.start(&["run", "--latest", "job", "--", "true"]);
    older.ended().silent(0);
    stage.touch("go");
    holder.ended().silent(0);
    newer.ended().silent(0);
}

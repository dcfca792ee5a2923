//! How `tenure run` ends: when it waits for the answer to its release, and when not.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rusqlite::Connection;
use tenure_testkit::{patience::eventually, proxy::Proxy, redis::RedisServer};

use crate::stage::{
    self, PATIENCE, Process, START, Stage, assert_within,
    files::{BEAT, HOLD},
    scaled_ttl,
};

/// Leaves its pid, and ends with 3 when the file `go` is there.
const FINISH: &str = "echo $$ >pid.holder; echo >started; until [ -e go ]; do sleep 0.05; done; exit 3";

/// A holder whose command has ended while its store was taken away.
fn ending(stage: &Stage, arguments: &[&str]) -> (Process, Connection) {
    let arguments = [arguments, &["job", "--", "sh", "-c", FINISH]].concat();
    let holder = stage.start(&arguments);
    stage.has_lines("started", 1);
    let hog = stage.hog();
    stage.touch("go");
    stage.dies("pid.holder");
    (holder, hog)
}

/// The work is done, and its code is what counts. One warning, and no wait beyond the lease.
#[test]
fn a_store_that_is_locked_at_the_end_costs_a_warning_and_no_more_than_the_lease() {
    for (seconds, quiet) in [(3, false), (8, false), (3, true)] {
        let stage = Stage::new();
        let (longest, ttl) = scaled_ttl(Duration::from_secs(seconds));
        let arguments: &[&str] = if quiet { &["-q", "run", "--ttl", &ttl] } else { &["run", "--ttl", &ttl] };
        let (holder, hog) = ending(&stage, arguments);
        let gone = Instant::now();
        let ended = holder.ended();
        assert_within(longest + START, gone.elapsed(), "ending with a locked store");
        if quiet {
            ended.mute(3);
        } else {
            ended.complained(3, ". The lock is free after its ttl of ");
        }
        drop(hog);
    }
}

/// A busy store that answered after three seconds cost a warning and a lock that was held for the rest of its ttl: two seconds were all
/// that a release was given.
#[test]
fn a_release_that_is_answered_late_is_waited_for_without_a_word() {
    let stage = Stage::new();
    let (mut holder, hog) = ending(&stage, &["run", "--ttl", "60s"]);
    holder.runs_on(Duration::from_secs(3));
    drop(hog);
    holder.ended().mute(3);
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// A request that had no answer made the warning at once, although the release was repeated and then succeeded.
#[test]
fn a_release_that_is_repeated_and_then_answered_is_no_failure() {
    let stage = Stage::new();
    let (mut holder, hog) = ending(&stage, &["run", "--ttl", "60s"]);
    // Longer than the first request may take.
    holder.runs_on(Duration::from_millis(5_500));
    drop(hog);
    let ended = holder.ended();
    assert_eq!(ended.code, 3, "{ended:?}");
    assert!(ended.err.lines().count() <= 1 && !ended.err.contains("not released"), "{ended:?}");
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// Whoever insists does not wait for a store that hangs: the command's code, and a word about the lock.
#[test]
fn the_second_signal_ends_the_wait_for_a_release() {
    let stage = Stage::new();
    let (mut holder, _hog) = ending(&stage, &["run", "--ttl", "60s"]);
    holder.signal(Signal::SIGTERM);
    holder.runs_on(Duration::from_millis(300));
    holder.signal(Signal::SIGINT);
    holder
        .ended()
        .complained(3, "a signal ended the wait for the release. The lock is free after its ttl of");
}

/// The signal that ended the command was the first one.
#[test]
fn the_signal_that_ended_the_command_counts() {
    let stage = Stage::new();
    let script = &format!("echo $$ >pid.holder; {HOLD}");
    let mut holder = stage.start(&["run", "--ttl", "60s", "job", "--", "sh", "-c", script, "holder"]);
    stage.beats("holder");
    let _hog = stage.hog();
    holder.signal(Signal::SIGTERM);
    stage.dies("pid.holder");
    holder.runs_on(Duration::from_millis(300));
    holder.signal(Signal::SIGTERM);
    holder.ended().complained(143, "a signal ended the wait for the release");
}

/// The work is done: a signal that comes while the lock is given back changes neither the code nor that it is given back.
#[test]
fn a_signal_during_the_release_changes_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let stage = Stage::new();
        let (mut holder, hog) = ending(&stage, &["run"]);
        holder.signal(signal);
        holder.runs_on(Duration::from_millis(100));
        drop(hog);
        holder.ended().mute(3);
        assert!(stage.show("job")["holders"].as_array().unwrap().is_empty());
    }
}

/// When the lease could not be renewed, `run` waited two seconds more for a release that the same store could not answer.
#[test]
fn after_a_loss_it_ends_as_soon_as_its_command_is_gone() {
    let mut stage = Stage::on_redis();
    let (_, ttl) = scaled_ttl(Duration::from_secs(3));
    let holder = stage.start(&["run", "--ttl", &ttl, "job", "--", "sh", "-c", BEAT, "meek"]);
    stage.beats("meek");
    stage.server().stop();
    stage.dies("pid.meek");
    let gone = Instant::now();
    let ended = holder.ended();
    assert_within(Duration::from_secs(1) + START, gone.elapsed(), "the end after the command's");
    ended.complained(79, "no renewal succeeded for ");
}

/// A lock that was broken is lost whatever the store does afterwards.
#[test]
fn after_a_break_no_release_is_waited_for() {
    let stage = Stage::new();
    let slow = "exec 2>/dev/null; trap 'echo >told; until [ -e go ]; do sleep 0.05; done; exit' TERM; echo $$ >pid.robbed; echo >started
        while :; do sleep 0.05; done";
    let holder = stage.start(&["run", "--ttl", "60s", "--grace", "19s", "job", "--", "sh", "-c", slow]);
    stage.has_lines("started", 1);
    stage.run(&["-q", "break", "job"]).silent(0);
    stage.has_lines("told", 1);
    let _hog = stage.hog();
    stage.touch("go");
    stage.dies("pid.robbed");
    let gone = Instant::now();
    let ended = holder.ended();
    assert_within(Duration::from_secs(1) + START, gone.elapsed(), "the end after the command's");
    ended.complained(79, "tenure break or unlock ended it");
}

/// The owners of all leases on these locks.
fn owners(stage: &Stage, names: &[&str]) -> Vec<(String, String)> {
    let owner = |name: &&str| {
        Some(((*name).to_owned(), stage.show(name)["holders"][0]["owner"].as_str()?.to_owned()))
    };
    names.iter().filter_map(owner).collect()
}

/// A command that holds the last of these locks, which is taken from it behind its back: another process is in while it runs. Then
/// it ends by itself.
fn robbed(stage: &Stage, arguments: &[&str], names: &[&str]) -> stage::Ended {
    let holder = stage.start(&[arguments, &["sh", "-c", &format!("{HOLD}; exit 3"), "robbed"]].concat());
    stage.beats("robbed");
    let (name, owner) = owners(stage, names).pop().unwrap();
    stage.run(&["unlock", &name, &owner]).silent(0);
    stage.run(&["run", "-n", &name, "--", "sh", "-c", "echo other >>beats"]).silent(0);
    stage.touch("go");
    let ended = holder.ended();
    assert_eq!(stage.turns(), ["robbed", "other"], "both were in");
    std::fs::remove_file(stage.path("go")).unwrap();
    std::fs::remove_file(stage.path("beats")).unwrap();
    ended
}

/// L1: a command that ended by itself after its lease was gone, and another one had been in, was reported as a success: what the
/// store answered to the release was thrown away.
fn a_lease_that_was_gone_at_the_release_is_lost(stage: &Stage) {
    robbed(stage, &["run", "job", "--"], &["job"]).complained(79, "job: the lease was lost: ");
}

/// The same for each way to hold a lock.
#[test]
fn every_verb_says_that_its_lease_was_gone() {
    let stage = Stage::new();
    let lost = "the lease was lost: it expired, tenure break or unlock ended it, or the store lost its data. The command had ended by itself, \
                with code 3";
    let long = ["--ttl", "60s"];
    let run = [&["run"], &long[..], &["--lost-exit-code", "7", "job", "--"]].concat();
    robbed(&stage, &run, &["job"]).complained(7, lost);
    let lead = [&["lead"], &long[..], &["job", "--"]].concat();
    robbed(&stage, &lead, &["job"]).complained(79, lost);
    let also = [&["run"], &long[..], &["--also", "b", "a", "--"]].concat();
    robbed(&stage, &also, &["a", "b"]).complained(79, "b (of a, b): the lease was lost: ");
    let any = [&["run"], &long[..], &["--any", "a,b", "--"]].concat();
    robbed(&stage, &any, &["a", "b"]).complained(79, "a: the lease was lost: ");
    let every = [&["run"], &long[..], &["--every", "1h", "job", "--"]].concat();
    robbed(&stage, &every, &["job"]).complained(79, lost);
    let lease = stage.run(&["lock", "job", "--ttl", "60s"]).out;
    let owner = lease.split('"').nth(7).unwrap();
    let attach = [&["attach"], &long[..], &["job", owner, "--"]].concat();
    robbed(&stage, &attach, &["job"]).complained(79, lost);
    let hold = [&["run"], &long[..], &["--min-hold", "1ms", "job", "--"]].concat();
    robbed(&stage, &hold, &["job"]).complained(79, lost);
    assert!(stage.show("job")["memo"].is_null(), "a run whose lease was lost does not count");
}

/// A run of `--every` that succeeded: the store says so when it is to count it.
#[test]
fn a_run_whose_lease_was_gone_is_not_counted_and_lost() {
    let stage = Stage::new();
    let every = ["run", "--ttl", "60s", "--every", "1h", "job", "--", "sh", "-c", HOLD, "holder"];
    let holder = stage.start(&every);
    stage.beats("holder");
    stage.run(&["unlock", "job", &owners(&stage, &["job"])[0].1]).silent(0);
    stage.touch("go");
    holder.ended().complained(79, "job: the lease was lost: ");
    stage.run(&every).silent(0);
}

/// The store tells how: nothing was granted since, or it was emptied, and perhaps has opened anew since then.
#[test]
fn how_the_lease_ended_is_said_as_far_as_the_store_tells() {
    let mut stage = Stage::on_redis_with("?guard=off&max_ttl=60s");
    let ends = |stage: &mut Stage, end: &dyn Fn(&mut Stage)| {
        let holder = stage.start(&["run", "--ttl", "60s", "job", "--", "sh", "-c", HOLD, "holder"]);
        stage.beats("holder");
        end(stage);
        stage.touch("go");
        let ended = holder.ended();
        std::fs::remove_file(stage.path("go")).unwrap();
        std::fs::remove_file(stage.path("beats")).unwrap();
        ended
    };
    let unlock = |stage: &mut Stage| stage.run(&["unlock", "job", &owners(stage, &["job"])[0].1]).silent(0);
    ends(&mut stage, &unlock).complained(79, "the lease was lost: it expired, or tenure unlock ended it. ");
    let empty = |stage: &mut Stage| drop(stage.server().command(&["FLUSHALL"]));
    ends(&mut stage, &empty).complained(79, "the store lost its data");
    let rob = |stage: &mut Stage| {
        unlock(stage);
        stage.run(&["lock", "job", "--ttl", "1m"]).silent(0);
    };
    ends(&mut stage, &rob).complained(79, "; held by ");
}

/// What the release was answered had no way back, so that it was repeated: it may have ended the lease itself, and a warning says so.
#[test]
fn a_release_without_an_answer_that_finds_the_lease_gone_is_a_warning() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let stage = Stage::at(format!("redis://127.0.0.1:{}/?guard=off&max_ttl=60s", proxy.port()));
    let direct = Stage::at(server.url("?guard=off&max_ttl=60s"));
    // The server knows the script afterwards.
    direct.run(&["run", "job", "--", "true"]).silent(0);
    let holder = stage.start(&["run", "--ttl", "60s", "job", "--", "sh", "-c", FINISH]);
    stage.has_lines("started", 1);
    proxy.drop_replies();
    stage.touch("go");
    eventually("the release was done", PATIENCE, || {
        direct.show("job")["holders"].as_array().unwrap().is_empty().then_some(())
    });
    proxy.heal();
    holder.ended().complained(3, "job: the lease was gone when its release was repeated");
}

stage::on_every_store!(a_lease_that_was_gone_at_the_release_is_lost);

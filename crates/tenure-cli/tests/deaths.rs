//! A lock is free as soon as its holder is certainly dead, and else when its ttl has passed.

#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tenure_testkit::patience::eventually;

use crate::{
    loss::watchers,
    stage::{
        self, PATIENCE, Process, Stage, assert_within,
        files::{BEAT, ENTER},
        process::is_alive,
    },
};

/// Long enough that no lock here is free by it.
const TTL: &str = "30s";
/// What a death may take until the next holder runs; the aim on a calm machine is 0.3 s.
const SOON: Duration = Duration::from_secs(3);

/// A holder with a command and a child of it, both beating, and a waiter behind it.
fn held(stage: &Stage, flags: &[&str], command: &str) -> (Process, Process) {
    let holder = stage
        .start(&[&["-q", "run", "--ttl", TTL], flags, &["job", "--", "sh", "-c", command, "first"]].concat());
    stage.beats("first");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "sh", "-c", ENTER, "second"]);
    (holder, waiter)
}

fn family() -> String {
    format!("sh -c '{BEAT}' child & {BEAT}")
}

/// The next holder ran after all of the first one's family had ended, and soon.
#[track_caller]
fn is_freed(stage: &Stage, waiter: Process, killed: Instant) {
    waiter.ended().silent(0);
    assert_within(SOON + stage.grain(), killed.elapsed(), "the next holder after a death");
    for process in ["pid.first", "pid.child"] {
        assert!(!is_alive(stage.number(process)), "{process} lived beside the next holder");
    }
    assert_eq!(stage.lines("beats").last().unwrap(), "second", "L1");
    assert_eq!(stage.queue("job"), Vec::<u64>::new(), "L8");
}

/// L1, L8: the process that a user sees and kills. The one behind it ends the command, and then releases.
fn a_killed_tenure_frees_the_lock_as_soon_as_its_command_has_ended(stage: &Stage) {
    let (mut holder, waiter) = held(stage, &[], &family());
    stage.beats("child");
    let killed = Instant::now();
    holder.kill_front();
    is_freed(stage, waiter, killed);
}

/// L1, L8: the process that does the work, alone and with its watcher: the one that the user sees frees the lock.
fn a_killed_worker_frees_the_lock_as_soon_as_its_command_has_ended(stage: &Stage) {
    for with_watcher in [false, true] {
        let (holder, waiter) = held(stage, &[], &family());
        stage.beats("child");
        let killed = Instant::now();
        if with_watcher {
            watchers(&holder).into_iter().for_each(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap());
        }
        kill(holder.worker(), Signal::SIGKILL).unwrap();
        is_freed(stage, waiter, killed);
        assert_eq!(holder.ended().code, 137);
        for file in ["beats", "pid.first", "pid.child", "entered.second"] {
            std::fs::remove_file(stage.path(file)).unwrap();
        }
    }
}

/// L1: a watcher that is stopped kills nothing. What the command had left ran on until the front gave up, and the end of a short
/// ttl came before that.
#[test]
fn a_stopped_watcher_does_not_save_what_a_killed_worker_leaves() {
    let stage = Stage::new();
    let (holder, waiter) = held(&stage, &[], &family());
    stage.beats("child");
    watchers(&holder).into_iter().for_each(|pid| kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap());
    // The front gives the watcher 5 s, which is not scaled. Without that it gave up after 10 s, and freed nothing.
    let killed = Instant::now() + Duration::from_secs(5);
    kill(holder.worker(), Signal::SIGKILL).unwrap();
    is_freed(&stage, waiter, killed);
    assert_eq!(holder.ended().code, 137);
}

/// L1: the same beside a child of the shell that became `tenure`, which is not the command's, and lives on.
#[test]
fn what_a_killed_worker_leaves_is_told_from_children_of_before() {
    let stage = Stage::new();
    let script =
        format!("sleep 600 & echo $! >pid.before; exec \"$0\" -q run --ttl {TTL} job -- sh -c \"$1\" first");
    let mut shell = stage.program("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_tenure"), &family()]);
    let holder = stage.start_command(shell);
    stage.beats("first");
    stage.beats("child");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "sh", "-c", ENTER, "second"]);
    // Quickly, because the worker starts another watcher.
    let (worker, watchers, killed) = (holder.worker(), watchers(&holder), Instant::now());
    watchers.into_iter().for_each(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap());
    kill(worker, Signal::SIGKILL).unwrap();
    is_freed(&stage, waiter, killed);
    let before = stage.number("pid.before");
    assert!(is_alive(before));
    kill(Pid::from_raw(before), Signal::SIGKILL).unwrap();
}

/// L8: a waiter whose front is killed leaves no place behind.
fn a_killed_waiter_leaves_the_queue(stage: &Stage) {
    let (holder, mut waiter) = held(stage, &[], BEAT);
    waiter.kill_front();
    eventually("the queue is empty", PATIENCE, || stage.queue("job").is_empty().then_some(()));
    holder.signal(Signal::SIGTERM);
    holder.ended();
    assert!(!stage.path("entered.second").exists());
}

stage::on_every_store!(
    a_killed_tenure_frees_the_lock_as_soon_as_its_command_has_ended,
    a_killed_waiter_leaves_the_queue;
    but_sessions: a_killed_worker_frees_the_lock_as_soon_as_its_command_has_ended,
);

/// A store that is not free although its holder was killed: the lease lasts.
#[track_caller]
fn is_kept(stage: &Stage, waiter: Process) {
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(stage.show("job")["holders"].as_array().map(Vec::len), Some(1), "only the ttl ends it");
    assert!(!stage.path("entered.second").exists());
    drop(waiter);
}

/// Kills the front of one holder with these flags, and the worker of another. `judge` sees each when its command has ended.
fn after_each_death(
    flags: &[&str],
    command: &str,
    ready: impl Fn(&Process),
    judge: impl Fn(&Stage, Process),
) {
    for is_front in [true, false] {
        let stage = Stage::new();
        let (mut holder, waiter) = held(&stage, flags, command);
        ready(&holder);
        match is_front {
            true => holder.kill_front(),
            false => kill(holder.worker(), Signal::SIGKILL).unwrap(),
        }
        stage.dies("pid.first");
        judge(&stage, waiter);
    }
}

/// Waits until the watcher has recorded the family again: it kills a daemon that it has seen as one of the family.
fn watcher_has_looked(holder: &Process) {
    let watcher = watchers(holder)[0];
    let naps = || {
        let status = std::fs::read_to_string(format!("/proc/{watcher}/status")).unwrap();
        let naps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        naps.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = naps();
    // It is in one look, which may have begun too early, and then in the next.
    eventually("the watcher has looked again", PATIENCE, || (naps() >= before + 2).then_some(()));
}

/// L1: what left the session may still work, and is not stopped; so the ttl decides.
#[test]
fn a_daemon_of_the_command_keeps_the_lock() {
    let is_there = "until [ -s pid.daemon ]; do sleep 0.02; done";
    let command = format!("setsid -f sh -c '{BEAT}' daemon; {is_there}; {BEAT}");
    after_each_death(&[], &command, watcher_has_looked, |stage, waiter| {
        is_kept(stage, waiter);
        let daemon = stage.number("pid.daemon");
        assert!(is_alive(daemon));
        kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
    });
}

/// A user can choose the pause of a ttl.
#[test]
fn with_free_at_death_no_only_the_ttl_ends_the_lease() {
    after_each_death(&["--free-at-death", "no"], BEAT, |_| {}, is_kept);
}

/// Death is no good end: what the command began elsewhere has its time.
#[test]
fn linger_holds_though_tenure_is_killed() {
    after_each_death(
        &["--linger", "90s"],
        BEAT,
        |_| {},
        |stage, _waiter| {
            lingers(stage);
        },
    );
}

fn lingers(stage: &Stage) {
    eventually("the lease is renewed for as long as that", PATIENCE, || {
        let left = stage.show("job")["holders"][0]["expires_in_ms"].as_u64()?;
        (left > 31_000).then_some(())
    });
}

/// The same where the command had ended well, and what it had left in the background was killed.
#[test]
fn linger_holds_though_only_background_work_is_killed_with_tenure() {
    let stage = Stage::new();
    let command = format!("echo $$ >pid.first; sh -c '{BEAT}' child &");
    let mut holder = stage.start(&[
        "-q",
        "run",
        "--ttl",
        TTL,
        "--linger",
        "90s",
        "--free-at-death",
        "no",
        "job",
        "--",
        "sh",
        "-c",
        &command,
    ]);
    stage.beats("child");
    stage.dies("pid.first");
    holder.kill_front();
    stage.dies("pid.child");
    lingers(&stage);
}

/// A front that is stopped holds nothing up, and one whose worker is stopped frees nothing: a stop is no death.
#[test]
fn a_stop_is_no_death() {
    let stage = Stage::new();
    let (holder, waiter) = held(&stage, &[], BEAT);
    stage.stop(&holder);
    is_kept(&stage, waiter);
    holder.signal(Signal::SIGCONT);
    stage.run(&["-q", "break", "job"]).silent(0);
    assert_eq!(holder.ended().code, 79);
}

/// The line says what became of the lock.
#[test]
fn a_killed_front_is_told_in_one_line() {
    let stage = Stage::new();
    let mut holder = stage.start(&["run", "job", "--", "sh", "-c", BEAT, "first"]);
    stage.beats("first");
    holder.kill_front();
    eventually("the line is there", PATIENCE, || {
        (holder.said() == "tenure: job: the outer process of tenure was killed; stopped the command\n")
            .then_some(())
    });
    stage.run(&["run", "job", "--", "true"]).silent(0);
}

/// The same.
#[test]
fn a_killed_worker_is_told_in_one_line() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "sh", "-c", BEAT, "first"]);
    stage.beats("first");
    kill(holder.worker(), Signal::SIGKILL).unwrap();
    holder
        .ended()
        .complained(137, "was killed by signal 9; the command was stopped, the lock is free [exit 137]");
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

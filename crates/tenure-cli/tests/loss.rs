//! Holders that are killed, live on, or are stopped past their lease.

#![cfg(target_os = "linux")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tenure_testkit::patience::eventually;

use crate::stage::{
    self, PATIENCE, Process, Stage, assert_within,
    files::{BEAT, DEAF_BEAT, ENTER, HOLD},
    process::{children, is_alive, state},
    scaled_ttl,
};

const SECOND: Duration = Duration::from_secs(1);

/// L1, L8, hazard 33. The lease is read after the kill, when nobody can renew it any more: it is exact.
fn a_killed_holder_frees_the_lock_within_a_second_of_its_lease(stage: &Stage) {
    let (ttl, text) = scaled_ttl(2 * SECOND);
    let mut holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", BEAT, "first"]);
    stage.beats("first");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "sh", "-c", ENTER, "second"]);
    holder.kill();
    let end = stage.end_of_the_dead("job", ttl);
    waiter.ended().silent(0);
    let entered = stage.entered("second");
    assert!(entered >= end.earliest, "{:?} before the lease's end", end.earliest - entered);
    assert_within(
        SECOND + stage.grain(),
        entered.saturating_sub(end.latest),
        "entering after the lease's end",
    );
    assert_eq!(stage.turns(), ["first", "second"]);
}

/// L1: not only the command, but all that it started in its group.
fn a_killed_tenure_takes_its_command_and_what_that_started_with_it(stage: &Stage) {
    let family = format!("sh -c '{BEAT}' grandchild & {BEAT}");
    let mut holder = stage.start(&["run", "job", "--", "sh", "-c", &family, "child"]);
    stage.beats("child");
    stage.beats("grandchild");
    let killed = Instant::now();
    holder.kill();
    stage.dies("pid.child");
    stage.dies("pid.grandchild");
    assert_within(SECOND, killed.elapsed(), "dying with tenure");
}

/// L6: five times its ttl, and nobody else gets in.
fn a_living_holder_is_renewed_for_as_long_as_it_runs(stage: &Stage) {
    let (ttl, text) = scaled_ttl(3 * SECOND);
    let holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", HOLD, "first"]);
    stage.beats("first");
    let held = Instant::now();
    let before = stage.show("job");
    eventually("five ttls have passed", 5 * ttl, || {
        std::thread::sleep(ttl / 20);
        stage.run(&["run", "-n", "job", "--", "touch", "stolen"]).complained(1, "held by");
        (held.elapsed() > 5 * ttl - ttl / 10).then_some(())
    });
    let after = stage.show("job");
    for field in ["owner", "token", "since"] {
        assert_eq!(before["holders"][0][field], after["holders"][0][field], "it is still the same lease");
    }
    stage.touch("go");
    holder.ended().silent(0);
    assert!(!stage.path("stolen").exists());
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// L1: what is stopped stops nobody; so the watcher ends the command before the lease is over. Once it only knew that `tenure`
/// was dead, and the command of a stopped one ran on beside the next holder.
fn the_command_of_a_stopped_tenure_is_ended_before_the_lease(stage: &Stage) {
    // A shell that lives long enough says what became of its jobs.
    let family = format!("exec 2>/dev/null; trap '' TERM; timeout 60 sh -c '{BEAT}' left & {BEAT}");
    let (ttl, text) = scaled_ttl(2 * SECOND);
    let holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", &family, "first"]);
    stage.beats("first");
    stage.beats("left");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "sh", "-c", ENTER, "second"]);
    stage.stop(&holder);
    let end = stage.end_of_the_dead("job", ttl);
    waiter.ended().silent(0);
    assert!(stage.entered("second") >= end.earliest);
    for process in ["pid.first", "pid.left"] {
        assert!(!is_alive(stage.number(process)), "{process} lives beside the next holder");
    }
    assert_eq!(stage.lines("beats").last().unwrap(), "second");
    holder.signal(Signal::SIGCONT);
    holder.ended().complained(79, "lost");
}

/// L5: a `tenure` that goes on while its watcher ends the command does not take that for an end of its own.
fn a_tenure_that_goes_on_while_its_watcher_acts_says_that_the_lease_was_over(stage: &Stage) {
    let deaf = "trap 'touch termed' TERM; echo $0 >>beats; while :; do sleep 0.05; done";
    let holder =
        stage.start(&["run", "--ttl", "9s", "--grace", "3s", "job", "--", "sh", "-c", deaf, "first"]);
    stage.beats("first");
    stage.stop(&holder);
    eventually("the watcher has sent TERM", PATIENCE, || stage.path("termed").exists().then_some(()));
    holder.signal(Signal::SIGCONT);
    let ended = holder.ended();
    assert_eq!(ended.code, 79, "{ended:?}");
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// L5, hazards 11 and 26: if the watcher is stopped as well, nobody is left to stop the command, and it goes on past the
/// lease; that is what the token is for. But the moment `tenure` goes on, it knows, and its command is killed.
fn a_tenure_that_was_stopped_with_its_watcher_kills_the_command_when_it_goes_on(stage: &Stage) {
    let (ttl, text) = scaled_ttl(2 * SECOND);
    let holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", BEAT, "first"]);
    stage.beats("first");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "sh", "-c", ENTER, "second"]);
    stop_watcher(&holder, Signal::SIGSTOP);
    stage.stop(&holder);
    let end = stage.end_of_the_dead("job", ttl);
    waiter.ended().silent(0);
    assert!(stage.entered("second") >= end.earliest);
    assert!(is_alive(stage.number("pid.first")), "nobody was there to stop it");
    let resumed = Instant::now();
    holder.signal(Signal::SIGCONT);
    stage.dies("pid.first");
    assert_within(SECOND, resumed.elapsed(), "killing the command");
    holder.ended().complained(79, "lost");
}

/// A watcher that is killed is replaced; one that is stopped does not keep `tenure` from ending.
fn a_watcher_that_is_killed_is_replaced(stage: &Stage) {
    let family = format!("sh -c '{BEAT}' grandchild & {BEAT}");
    let mut holder = stage.start(&["run", "job", "--", "sh", "-c", &family, "child"]);
    stage.beats("grandchild");
    let killed = stop_watcher(&holder, Signal::SIGKILL);
    eventually("there is another watcher", PATIENCE, || {
        watchers(&holder).into_iter().find(|pid| *pid != killed)
    });
    holder.kill();
    stage.dies("pid.grandchild");
    let holder = stage.start(&["run", "other", "--", "sh", "-c", HOLD, "other"]);
    stage.beats("other");
    stop_watcher(&holder, Signal::SIGSTOP);
    stage.touch("go");
    holder.ended().silent(0);
}

/// L1: after eight that were killed there was no watcher, and not a word of it: what the command had started outlived a killed
/// `tenure`, and its lease.
#[test]
fn a_watcher_is_replaced_however_often_it_is_killed() {
    let stage = Stage::new();
    let family = format!("sh -c '{BEAT}' grandchild & {BEAT}");
    let mut holder = stage.start(&["run", "job", "--", "sh", "-c", &family, "child"]);
    stage.beats("grandchild");
    let (began, mut killed) = (Instant::now(), 0);
    for _ in 0..12 {
        killed = eventually("there is another watcher", PATIENCE, || {
            watchers(&holder).into_iter().find(|pid| *pid != killed)
        });
        kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    }
    eventually("there is another watcher", PATIENCE, || {
        watchers(&holder).into_iter().find(|pid| *pid != killed)
    });
    let said = holder.said();
    assert!(
        said.starts_with("tenure: the watcher process") && said.contains("was killed: another one"),
        "{said}"
    );
    let minutes = usize::try_from(began.elapsed().as_secs() / 60).unwrap();
    assert!(said.lines().count() <= 1 + minutes, "a line a minute: {said}");
    holder.kill();
    stage.dies("pid.grandchild");
}

/// L1: for as long as there is none, that is said once, and another one is started as soon as that can be.
#[test]
fn a_watcher_that_cannot_be_started_is_missed_aloud() {
    let stage = Stage::new();
    let family = format!("sh -c '{BEAT}' grandchild & {BEAT}");
    let mut holder = stage.start(&["run", "job", "--", "sh", "-c", &family, "child"]);
    stage.beats("grandchild");
    open_files(&holder, 3);
    stop_watcher(&holder, Signal::SIGKILL);
    let says = |part: &str| {
        eventually(&format!("it says {part}"), PATIENCE, || holder.said().contains(part).then_some(()));
    };
    says("another one cannot be started yet: ");
    assert!(watchers(&holder).is_empty());
    open_files(&holder, 1024);
    says("was killed: another one was started");
    assert_eq!(holder.said().lines().count(), 2, "{}", holder.said());
    holder.kill();
    stage.dies("pid.grandchild");
}

/// L6: a watcher that was stopped hears of later deadlines before it acts. Once it took the first one in its pipe, long over
/// by then, and ended a command whose lease was renewed all the time.
fn a_watcher_that_was_stopped_hears_the_news_before_it_acts(stage: &Stage) {
    let (ttl, text) = scaled_ttl(3 * SECOND);
    let holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let watcher = stop_watcher(&holder, Signal::SIGSTOP);
    // Not for a condition: nothing shows what it does not read.
    std::thread::sleep(ttl + SECOND);
    kill(Pid::from_raw(watcher), Signal::SIGCONT).unwrap();
    std::thread::sleep(SECOND / 2);
    assert_eq!(watchers(&holder), [watcher], "it has not ended the command");
    stage.touch("go");
    holder.ended().silent(0);
}

/// How many files it may have open from now on.
fn open_files(process: &Process, most: usize) {
    let mut limit = std::process::Command::new("prlimit");
    limit.args([format!("--pid={}", process.worker()), format!("--nofile={most}:")]);
    assert!(limit.status().unwrap().success());
}

/// Its watcher processes: one, or none for a moment.
pub(crate) fn watchers(holder: &Process) -> Vec<i32> {
    let is_watcher = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|b| *b == 0).nth(1) == Some(b"__watch"))
    };
    let worker = u32::try_from(holder.worker().as_raw()).unwrap();
    children(worker).into_iter().filter(is_watcher).collect()
}

/// Sends a signal to the watcher, and waits for what it does.
fn stop_watcher(holder: &Process, signal: Signal) -> i32 {
    let pid = eventually("there is a watcher", PATIENCE, || watchers(holder).first().copied());
    kill(Pid::from_raw(pid), signal).unwrap();
    eventually("the watcher is stopped", PATIENCE, || matches!(state(pid), 'T' | 'Z' | 'X').then_some(()));
    pid
}

/// The resource: refuses a token that is smaller than the largest it has seen. One writer at a time calls it here.
const RESOURCE: &str = "#!/bin/sh
if [ \"$1\" -lt \"$(cat mark 2>/dev/null || echo 0)\" ]; then echo \"$2 refused\" >>writes; exit 1; fi
echo \"$1\" >mark; echo \"$2 written\" >>writes
";

/// L2, L3, hazards 11 and 13: the write of a holder that was stopped past its lease comes after the next holder's, and is
/// refused for its token.
fn the_late_write_of_a_stopped_holder_is_refused_for_its_token(stage: &Stage) {
    fs::write(stage.path("resource"), RESOURCE).unwrap();
    fs::set_permissions(stage.path("resource"), fs::Permissions::from_mode(0o755)).unwrap();
    let write = "./resource $TENURE_TOKEN $0";
    let late = format!("{write}; echo $0 >>beats; until [ -e go ]; do sleep 0.05; done; {write}; sleep 60");
    let (_, text) = scaled_ttl(2 * SECOND);
    let holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", &late, "first"]);
    stage.beats("first");
    stop_watcher(&holder, Signal::SIGSTOP);
    stage.stop(&holder);
    stage.run(&["run", "job", "--", "sh", "-c", write, "second"]).silent(0);
    stage.touch("go");
    stage.has_lines("writes", 3);
    holder.signal(Signal::SIGCONT);
    assert_eq!(holder.ended().code, 79);
    assert_eq!(stage.lines("writes"), ["first written", "second written", "first refused"]);
}

/// L1: what a command leaves running in its group works under the lock, so the lock is held until it has ended.
fn the_lock_is_held_while_anybody_of_the_commands_group_lives(stage: &Stage) {
    let family = format!("sh -c '{HOLD}' left & exit 3");
    let holder = stage.start(&["run", "job", "--", "sh", "-c", &family]);
    stage.beats("left");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "sh", "-c", ENTER, "second"]);
    stage.touch("go");
    holder.ended().silent(3);
    waiter.ended().silent(0);
    assert_eq!(stage.turns(), ["left", "second"]);
}

/// L1: the same if it is the lease that ends: nobody of the group is forgotten because the command itself has ended.
fn what_a_command_left_running_is_stopped_when_the_lease_is_lost(stage: &Stage) {
    let family = format!("sh -c '{BEAT}' left & exit 0");
    let (_, text) = scaled_ttl(2 * SECOND);
    let holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", &family]);
    stage.beats("left");
    stage.run(&["-q", "break", "job"]).silent(0);
    holder.ended().complained(79, "the lease was lost");
    assert!(!is_alive(stage.number("pid.left")));
}

/// L1: a background job whose program has a name of other than UTF-8, as when it is cut inside a character. It was skipped
/// once, as if it were gone, and the lock was released beside it.
fn a_job_of_any_name_keeps_the_lock(stage: &Stage) {
    let job = "nachtsicherung\u{fc}";
    fs::copy("/bin/sleep", stage.path(job)).unwrap();
    // With somebody dead in the group, whom nobody waits for.
    let family = format!("sh -c 'true & echo $$ >pid.left; exec ./{job} 60' & echo $$ >pid.command; exit 3");
    let holder = stage.start(&["run", "job", "--", "sh", "-c", &family]);
    stage.dies("pid.command");
    let left = stage.number("pid.left");
    eventually("the job has its name", PATIENCE, || {
        fs::read(format!("/proc/{left}/comm")).is_ok_and(|name| name.starts_with(b"nacht")).then_some(())
    });
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    kill(Pid::from_raw(left), Signal::SIGKILL).unwrap();
    holder.ended().silent(3);
}

/// A command that leaves its group for that of `tenure`, and says so.
const LEAVER: &str = "setpgrp 0, getpgrp getppid; open F, '>', 'pid.leaver'; print F \"$$\\n\"; close F;
    while (1) { open B, '>>', 'beats'; print B \"leaver\\n\"; close B; select undef, undef, undef, 0.02 }";

/// L1: a command that leaves its group is stopped and waited for all the same. Only the group was signalled and looked at
/// once: "Stopped the command" was said of one that ran on beside the next holder.
fn a_command_that_leaves_its_group_is_stopped(stage: &Stage) {
    let (_, text) = scaled_ttl(2 * SECOND);
    let holder = stage.start(&["run", "--ttl", &text, "job", "--", "perl", "-e", LEAVER]);
    stage.beats("leaver");
    stage.run(&["-q", "break", "job"]).silent(0);
    holder.ended().complained(79, "Stopped the command");
    assert!(!is_alive(stage.number("pid.leaver")));
    let holder = stage.start(&["run", "job", "--", "perl", "-e", LEAVER]);
    stage.has_lines("beats", stage.lines("beats").len() + 1);
    holder.signal(Signal::SIGTERM);
    holder.ended().silent(143);
}

/// L1: the same for what the command starts in a group of its own, as `timeout` does: it is stopped, and waited for.
fn what_left_the_group_works_under_the_lock(stage: &Stage) {
    let family = format!("timeout 60 sh -c '{BEAT}' left & exit 0");
    let (_, text) = scaled_ttl(2 * SECOND);
    let holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", &family]);
    stage.beats("left");
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    stage.run(&["-q", "break", "job"]).silent(0);
    holder.ended().complained(79, "the lease was lost");
    assert!(!is_alive(stage.number("pid.left")));
    let mut holder = stage.start(&["run", "job", "--", "sh", "-c", &family.replace("left", "orphan")]);
    stage.beats("orphan");
    holder.kill();
    stage.dies("pid.orphan");
}

/// L1: after a `kill -9` of `tenure`, processes in a separate session, or in a separate group with a clean environment,
/// ran next to the next holder: `su -c`, `timeout … env -i`, a title written over the environment. The death of the
/// command hid whose children they were.
#[test]
fn a_killed_tenure_takes_what_does_not_look_like_its_own() {
    let clean = format!("env -i PATH=$PATH sh -c '{BEAT}' work");
    for family in [
        format!("exec setsid -w sh -c '{BEAT}' work"),
        format!("timeout 60 {clean}"),
        format!("set -m; {clean} & wait"),
        format!("{clean} & exit 0"),
    ] {
        let stage = Stage::new();
        let mut holder = stage.start(&["run", "--ttl", "1s", "job", "--", "bash", "-c", &family]);
        stage.beats("work");
        // The watcher records the family each second.
        std::thread::sleep(Duration::from_millis(1100));
        holder.kill();
        stage.dies("pid.work");
    }
}

/// L1: a process in a separate session whose parent waits for it is stopped too.
#[test]
fn a_session_that_is_waited_for_is_stopped() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "setsid", "-w", "sh", "-c", DEAF_BEAT, "deaf"]);
    stage.beats("deaf");
    stage.run(&["-q", "break", "job"]).silent(0);
    holder.ended().complained(79, "Stopped the command");
    assert!(!is_alive(stage.number("pid.deaf")));
}

/// L1: at `--max-hold` the lock was released although the line named a running daemon.
#[test]
fn a_lease_is_not_released_beside_a_daemon() {
    let stage = Stage::new();
    let family = format!("(setsid sh -c '{BEAT}' daemon &) ; exec sleep 60");
    let ended = stage.run(&["run", "--ttl", "30s", "--max-hold", "1s", "job", "--", "sh", "-c", &family]);
    ended.complained(79, "a lease that is left is not released");
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    kill(Pid::from_raw(stage.number("pid.daemon")), Signal::SIGKILL).unwrap();
}

/// L1: after the command had ended, another process could get its pid, and was signalled.
#[test]
fn the_pid_of_the_command_is_kept_while_what_it_left_works() {
    let stage = Stage::new();
    let family = format!("echo $$ >pid.command; sh -c '{BEAT}' left & exit 0");
    let holder = stage.start(&["run", "job", "--", "sh", "-c", &family]);
    stage.beats("left");
    let command: u32 = stage.number("pid.command");
    eventually("the command has ended", PATIENCE, || {
        let stat = fs::read_to_string(format!("/proc/{command}/stat")).expect("its pid is not free");
        stat.contains(") Z ").then_some(())
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(fs::exists(format!("/proc/{command}")).unwrap());
    kill(Pid::from_raw(stage.number("pid.left")), Signal::SIGKILL).unwrap();
    holder.ended().silent(0);
}

/// L1: while `tenure` cannot open anything, as where all of the system's files are open, it does not know who is left. Once
/// it took that for nobody, and released the lock beside a job in a group of its own.
#[test]
fn while_nobody_can_be_looked_for_nobody_is_gone() {
    let stage = Stage::new();
    let family = format!("timeout 60 sh -c '{BEAT}' left & until [ -e go ]; do sleep 0.05; done");
    let holder = stage.start(&["run", "job", "--", "sh", "-c", &family]);
    stage.beats("left");
    let open = fs::read_dir(format!("/proc/{}/fd", holder.pid())).unwrap();
    let open: Vec<usize> =
        open.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    // With no descriptor left, and with one: then the first file can be opened, and the second cannot.
    let one_left = (0..).find(|most| most - open.iter().filter(|fd| *fd < most).count() == 1).unwrap();
    open_files(&holder, 3);
    stage.touch("go");
    for most in [3, one_left] {
        open_files(&holder, most);
        stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    }
    open_files(&holder, 1024);
    kill(Pid::from_raw(stage.number("pid.left")), Signal::SIGKILL).unwrap();
    holder.ended().silent(0);
}

/// A process in a separate session whose parent has ended is a daemon: neither waited for nor stopped, and named at a
/// loss.
fn a_daemon_is_neither_waited_for_nor_stopped(stage: &Stage) {
    let family = format!("(setsid sh -c '{BEAT}' daemon &) ; until [ -e pid.daemon ]; do sleep 0.05; done");
    stage.run(&["run", "job", "--", "sh", "-c", &family]).silent(0);
    let daemon: i32 = stage.number("pid.daemon");
    assert!(is_alive(daemon));
    kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
    fs::remove_file(stage.path("pid.daemon")).unwrap();
    let holder = stage.start(&["run", "job", "--", "sh", "-c", &format!("{family}; {HOLD}"), "holder"]);
    stage.beats("holder");
    stage.run(&["-q", "break", "job"]).silent(0);
    let daemon: i32 = stage.number("pid.daemon");
    holder.ended().complained(79, &format!("Still running: pid {daemon} (started its own session, setsid)"));
    assert!(is_alive(daemon));
    kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
}

stage::on_every_store!(
    a_killed_holder_frees_the_lock_within_a_second_of_its_lease,
    a_killed_tenure_takes_its_command_and_what_that_started_with_it,
    a_living_holder_is_renewed_for_as_long_as_it_runs,
    the_command_of_a_stopped_tenure_is_ended_before_the_lease,
    a_tenure_that_goes_on_while_its_watcher_acts_says_that_the_lease_was_over,
    a_tenure_that_was_stopped_with_its_watcher_kills_the_command_when_it_goes_on,
    a_watcher_that_is_killed_is_replaced,
    a_watcher_that_was_stopped_hears_the_news_before_it_acts,
    a_job_of_any_name_keeps_the_lock,
    a_command_that_leaves_its_group_is_stopped,
    what_left_the_group_works_under_the_lock,
    a_daemon_is_neither_waited_for_nor_stopped,
    the_late_write_of_a_stopped_holder_is_refused_for_its_token,
    the_lock_is_held_while_anybody_of_the_commands_group_lives,
    what_a_command_left_running_is_stopped_when_the_lease_is_lost,
);

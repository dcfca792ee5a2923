//! Holders that are killed, live on, or are stopped past their lease.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and real processes live in real time"
)]

mod stage;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use stage::{
    Stage, assert_within,
    files::{BEAT, ENTER, HOLD},
    process::is_alive,
    scaled_ttl,
};
use tenure_testkit::patience::eventually;

const SECOND: Duration = Duration::from_secs(1);

/// L1, L8, hazard 33; issue 2, point 4. The lease is read after the kill, when nobody can renew it any more: it is exact.
fn a_killed_holder_frees_the_lock_within_a_second_of_its_lease(stage: &Stage) {
    let mut holder = stage.start(&["run", "--ttl", "2s", "job", "--", "sh", "-c", BEAT, "first"]);
    stage.beats("first");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "sh", "-c", ENTER, "second"]);
    holder.kill();
    let end = stage.end_of_the_dead("job", 2 * SECOND);
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

/// L1; issue 2, point 4: not only the command, but all that it started in its group.
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

/// L6; issue 2, point 4: five times its ttl, and nobody else gets in.
fn a_living_holder_is_renewed_for_as_long_as_it_runs(stage: &Stage) {
    let (ttl, text) = scaled_ttl(Duration::from_millis(500));
    let holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", HOLD, "first"]);
    stage.beats("first");
    let held = Instant::now();
    let before = stage.show("job");
    eventually("five ttls have passed", 5 * ttl, || {
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

/// L5, hazards 11 and 26: a process that is stopped can stop nothing, so that its command goes on past the lease; that is
/// what the token is for. But the moment it goes on, it knows, and its command is killed.
fn a_tenure_that_was_stopped_past_its_lease_kills_the_command_when_it_goes_on(stage: &Stage) {
    let holder = stage.start(&["run", "--ttl", "1s", "job", "--", "sh", "-c", BEAT, "first"]);
    stage.beats("first");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "sh", "-c", ENTER, "second"]);
    holder.signal(Signal::SIGSTOP);
    let end = stage.end_of_the_dead("job", SECOND);
    waiter.ended().silent(0);
    assert!(stage.entered("second") >= end.earliest);
    assert!(is_alive(stage.number("pid.first")), "nobody was there to stop it");
    let resumed = Instant::now();
    holder.signal(Signal::SIGCONT);
    stage.dies("pid.first");
    assert_within(SECOND, resumed.elapsed(), "killing the command");
    holder.ended().complained(79, "lost");
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
    let late = format!("{write}; echo $0 >>beats; until [ -e go ]; do sleep 0.01; done; {write}; sleep 60");
    let holder = stage.start(&["run", "--ttl", "1s", "job", "--", "sh", "-c", &late, "first"]);
    stage.beats("first");
    holder.signal(Signal::SIGSTOP);
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
    let holder = stage.start(&["run", "--ttl", "2s", "job", "--", "sh", "-c", &family]);
    stage.beats("left");
    stage.run(&["-q", "break", "job"]).silent(0);
    holder.ended().complained(79, "the lease was lost");
    assert!(!is_alive(stage.number("pid.left")));
}

stage::on_every_store!(
    a_killed_holder_frees_the_lock_within_a_second_of_its_lease,
    a_killed_tenure_takes_its_command_and_what_that_started_with_it,
    a_living_holder_is_renewed_for_as_long_as_it_runs,
    a_tenure_that_was_stopped_past_its_lease_kills_the_command_when_it_goes_on,
    the_late_write_of_a_stopped_holder_is_refused_for_its_token,
    the_lock_is_held_while_anybody_of_the_commands_group_lives,
    what_a_command_left_running_is_stopped_when_the_lease_is_lost,
);

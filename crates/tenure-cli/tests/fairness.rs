//! Who comes first is served first, and the dead hold nobody up for long.

use std::time::{Duration, Instant};

use tenure_testkit::patience::{eventually, slowness};

use crate::stage::{
    self, PATIENCE, Process, START, Stage, assert_within,
    files::{ENTER, HOLD},
    scaled_ttl,
};

/// A waiter that has been handed the lock has so long to enter.
const CLAIM_TTL: Duration = Duration::from_millis(500);
/// Whoever waits asks again after so long at the latest.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// A place in the queue lives so long without being asked for.
const PLACE_TTL: Duration = Duration::from_secs(6);

fn holder(stage: &Stage, mode: &[&str]) -> Process {
    let holder = stage.start(&[&["run"], mode, &["job", "--", "sh", "-c", HOLD, "holder"]].concat());
    stage.beats("holder");
    holder
}

fn waiter(stage: &Stage, mode: &[&str], name: &str) -> Process {
    stage.start_waiter("job", &[&["run"], mode, &["job", "--", "sh", "-c", ENTER, name]].concat())
}

/// L7. The next one starts only when the one before it stands in the queue.
fn twenty_waiters_enter_in_the_order_of_their_arrival(stage: &Stage) {
    stage.gives_long_turns();
    let holder = holder(stage, &[]);
    let names: Vec<String> = (0..20).map(|n| format!("waiter{n}")).collect();
    let waiters: Vec<Process> = names.iter().map(|name| waiter(stage, &[], name)).collect();
    let pids: Vec<u64> = waiters.iter().map(|waiter| u64::from(waiter.pid())).collect();
    assert_eq!(stage.queue("job"), pids);
    stage.touch("go");
    for process in waiters.into_iter().chain([holder]) {
        process.ended().silent(0);
    }
    assert_eq!(stage.lines("beats")[1..], names);
}

/// L6, hazard 33: where a turn is handed over, the dead one has 500 ms to take it.
fn a_killed_waiter_costs_the_next_one_claim_ttl_at_its_turn(stage: &Stage) {
    let holder = holder(stage, &[]);
    let mut dead = waiter(stage, &[], "dead");
    let next = waiter(stage, &[], "next");
    let last = waiter(stage, &[], "last");
    dead.kill();
    let freed = Instant::now();
    stage.touch("go");
    next.ended().silent(0);
    assert_within(CLAIM_TTL + START, freed.elapsed(), "the turn behind a dead waiter");
    for process in [holder, last] {
        process.ended().silent(0);
    }
    assert_eq!(stage.turns(), ["holder", "next", "last"]);
}

/// L6, hazard 33: where a turn is not handed over, it stays until the place ends, which is a lease.
fn a_killed_waiter_costs_those_behind_it_its_place(stage: &Stage) {
    let ttl = Duration::from_secs(2);
    let holder = holder(stage, &[]);
    let mut dead = waiter(stage, &["--ttl", "2s"], "dead");
    let others = ["next", "last"].map(|name| waiter(stage, &[], name));
    dead.kill();
    let killed = Instant::now();
    stage.touch("go");
    for process in others.into_iter().chain([holder]) {
        process.ended().silent(0);
    }
    assert_within(
        ttl + Duration::from_secs(1) + stage.grain(),
        killed.elapsed(),
        "the turns behind a dead waiter",
    );
    assert_eq!(stage.turns(), ["holder", "next", "last"]);
}

/// L6, hazard 33: the same where nobody promises whose turn it is. A dead one at the head of the queue costs less than
/// its place would last.
fn a_killed_waiter_holds_nobody_up_for_as_long_as_its_place_lasts(stage: &Stage) {
    let holder = holder(stage, &[]);
    let mut dead = waiter(stage, &["--ttl", "2s"], "dead");
    let others = ["one", "two"].map(|name| waiter(stage, &[], name));
    dead.kill();
    let freed = Instant::now();
    stage.touch("go");
    for process in others.into_iter().chain([holder]) {
        process.ended().silent(0);
    }
    assert_within(2 * RETRY_MAX + START, freed.elapsed(), "the turns of two behind a dead waiter");
    let mut turns = stage.turns();
    turns[1..].sort_unstable();
    assert_eq!(turns, ["holder", "one", "two"]);
}

/// L6: while readers hold it, the readers behind a writer wait for it. If it is dead they go on when its
/// place ends.
fn a_killed_writer_holds_the_readers_behind_it_up_for_its_place_at_most(stage: &Stage) {
    let holder = holder(stage, &["-s"]);
    let mut writer = waiter(stage, &["--ttl", "4s"], "writer");
    let readers = ["reader0", "reader1"].map(|name| waiter(stage, &["-s"], name));
    writer.kill();
    let killed = Instant::now();
    for reader in readers {
        reader.ended().silent(0);
    }
    assert_within(PLACE_TTL + START + stage.grain(), killed.elapsed(), "the turn behind a dead writer");
    assert!(!stage.turns().contains(&"writer".to_owned()));
    stage.touch("go");
    holder.ended().silent(0);
}

/// L6, L8: whoever gives up leaves no place behind that others would have to wait for.
fn a_waiter_that_gives_up_holds_nobody_up(stage: &Stage) {
    let holder = holder(stage, &["-s"]);
    // Within it those behind it come, and are seen in the queue.
    let wait = format!("{}s", 2 * slowness());
    let writer = stage.start(&["run", "-w", &wait, "job", "--", "sh", "-c", ENTER, "writer"]);
    stage.queued("job", &writer);
    let reader = waiter(stage, &["-s"], "reader");
    writer.ended().complained(1, "held by");
    let gone = Instant::now();
    reader.ended().silent(0);
    assert_within(START, gone.elapsed(), "the turn behind one who gave up");
    assert_eq!(stage.queue("job"), Vec::<u64>::new());
    stage.touch("go");
    holder.ended().silent(0);
    assert_eq!(stage.turns(), ["holder", "reader"]);
}

/// L6, L8: the same among those who want it alone.
fn a_waiter_that_gives_up_leaves_no_place_behind(stage: &Stage) {
    let holder = holder(stage, &[]);
    // Within it those behind it come, and are seen in the queue.
    let wait = format!("{}s", 2 * slowness());
    let hasty = stage.start(&["run", "-w", &wait, "job", "--", "sh", "-c", ENTER, "hasty"]);
    stage.queued("job", &hasty);
    let patient = waiter(stage, &[], "patient");
    hasty.ended().complained(1, "held by");
    assert_eq!(stage.queue("job"), [u64::from(patient.pid())]);
    let freed = Instant::now();
    stage.touch("go");
    patient.ended().silent(0);
    assert_within(START, freed.elapsed(), "the turn behind one who gave up");
    holder.ended().silent(0);
    assert_eq!(stage.turns(), ["holder", "patient"]);
}

/// L6: with some 500 waiting processes on SQLite the holder lost its lease, because each of their polls rewrote the whole queue
/// under the only write lock. What a poll costs is counted in `many_waiters.rs` of `tenure-sqlite`; here a hundred real processes
/// wait through two renewals of the holder, and all are served.
#[test]
fn a_hundred_waiting_processes_leave_the_holder_its_lease_and_are_all_served() {
    let stage = Stage::new();
    let (_, ttl) = scaled_ttl(Duration::from_secs(6));
    let holder = holder(&stage, &["--ttl", &ttl]);
    let waiters: Vec<Process> = (0..100).map(|_| stage.start(&["run", "job", "--", "true"])).collect();
    eventually("all stand in the queue", 4 * PATIENCE, || (stage.queue("job").len() == 100).then_some(()));
    let left = || stage.show("job")["holders"][0]["expires_in_ms"].as_u64().unwrap();
    for _ in 0..2 {
        let mut least = left();
        eventually("the lease was renewed", 4 * PATIENCE, || {
            let now = left();
            let renewed = now > least;
            least = now;
            renewed.then_some(())
        });
    }
    assert_eq!(stage.queue("job").len(), 100, "nobody lost its place");
    stage.touch("go");
    holder.ended().silent(0);
    for process in waiters {
        process.ended_within(Duration::from_secs(60)).silent(0);
    }
}

stage::on_every_store!(
    a_killed_waiter_holds_nobody_up_for_as_long_as_its_place_lasts,
    a_waiter_that_gives_up_leaves_no_place_behind;
    but_quorums:
    twenty_waiters_enter_in_the_order_of_their_arrival,
    a_killed_writer_holds_the_readers_behind_it_up_for_its_place_at_most,
    a_waiter_that_gives_up_holds_nobody_up;
    queues: a_killed_waiter_costs_the_next_one_claim_ttl_at_its_turn;
    lines: a_killed_waiter_costs_those_behind_it_its_place,
);

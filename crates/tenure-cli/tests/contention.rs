//! Many processes at one lock: mutex, slots, readers and writers.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use tenure_testkit::patience::{eventually, slowness};

use crate::stage::{self, PATIENCE, Process, Stage, assert_within};

/// Says in `log` that it (`$0`) came, waits until as many as `$1` came in all, and says that it goes.
const MEET: &str =
    "echo + $0 >>log; until [ $(grep -c '^+' log) -ge $1 ]; do sleep 0.05; done; echo - $0 >>log";

/// Says in `log` that it (`$0`) came, stays for `$1`, and says that it goes.
const STAY: &str = "echo + $0 >>log; sleep $1; echo - $0 >>log";

/// How many were inside together at most, of those whose name starts so.
fn most_together(log: &[String], names: &str) -> usize {
    let (mut inside, mut most) = (0_usize, 0);
    for line in log.iter().filter(|line| line[2..].starts_with(names)) {
        inside = if line.starts_with('+') { inside + 1 } else { inside - 1 };
        most = most.max(inside);
    }
    most
}

/// Asserts that nobody was inside while one whose name starts so was.
fn assert_alone(log: &[String], names: &str) {
    let mut inside: Vec<&str> = Vec::new();
    for line in log {
        let who = &line[2..];
        if line.starts_with('+') {
            inside.push(who);
        } else {
            inside.retain(|other| *other != who);
        }
        let alone = inside.len() < 2 || !inside.iter().any(|who| who.starts_with(names));
        assert!(alone, "{inside:?} were inside together: {log:#?}");
    }
}

fn all_succeed(processes: Vec<Process>) {
    for process in processes {
        let ended = process.ended_within(Duration::from_secs(60));
        ended.silent(0);
        assert_eq!(ended.out, "");
    }
}

/// L1: a counter that each reads, sleeps over and writes.
fn fifty_processes_lose_no_increment_and_none_fails(stage: &Stage) {
    fs::write(stage.path("f"), "0\n").unwrap();
    let increment = "n=$(cat f); sleep 0.01; echo $((n+1)) >f";
    let command = ["run", "-w", "60s", "counter", "--", "sh", "-c", increment];
    all_succeed((0..50).map(|_| stage.start(&command)).collect());
    assert_eq!(stage.lines("f"), ["50"]);
}

/// L1. Three go only when three have met, so that three did run together.
fn as_many_run_together_as_there_are_slots_and_never_more(stage: &Stage) {
    let start = |n: u32| {
        stage.start(&["run", "--slots", "3", "gpu", "--", "sh", "-c", MEET, &format!("slot{n}"), "3"])
    };
    all_succeed((0..12).map(start).collect());
    let log = stage.lines("log");
    assert_eq!((log.len(), most_together(&log, "slot")), (24, 3), "{log:#?}");
}

/// L1, L7. One that takes all three slots comes in its turn, while others take fewer.
fn those_who_take_several_slots_count_as_several(stage: &Stage) {
    let start = |n: usize| {
        let take = (n % 3 + 1).to_string();
        let name = format!("took{take}.{n}");
        stage.start(&["run", "--slots", "3", "--take", &take, "gpu", "--", "sh", "-c", STAY, &name, "0.02"])
    };
    all_succeed((0..12).map(start).collect());
    let log = stage.lines("log");
    let taken = |line: &str| -> i32 { line.split("took").nth(1).unwrap()[..1].parse().unwrap() };
    let (mut inside, mut most) = (0, 0);
    for line in &log {
        inside += if line.starts_with('+') { taken(line) } else { -taken(line) };
        most = most.max(inside);
    }
    assert_eq!((log.len(), inside, most), (24, 0, 3), "{log:#?}");
}

/// L7. A run of a higher class comes first, and the one that has waited longest after eight others.
fn a_higher_class_goes_first(stage: &Stage) {
    stage.gives_long_turns();
    let first = stage.start(&["run", "builds", "--", "sh", "-c", stage::files::HOLD, "first"]);
    stage.beats("first");
    let waits = |class: &str, n: u32| {
        let name = format!("{class}{n}");
        let command = ["run", "--priority", class, "builds", "--", "sh", "-c", STAY, &name, "0.02"];
        stage.start_waiter("builds", &command)
    };
    let low = waits("low", 0);
    let urgent: Vec<Process> = (0..3).map(|n| waits("urgent", n)).collect();
    let normal = waits("normal", 0);
    let view = stage.show("builds");
    let classes: Vec<&str> =
        view["queue"].as_array().unwrap().iter().map(|waits| waits["priority"].as_str().unwrap()).collect();
    stage.touch("go");
    all_succeed([vec![first, low, normal], urgent].into_iter().flatten().collect());
    let log = stage.lines("log");
    let began: Vec<&str> = log.iter().filter_map(|line| line.strip_prefix("+ ")).collect();
    assert_eq!(began, ["urgent0", "urgent1", "urgent2", "normal0", "low0"], "{log:#?}");
    assert_eq!(classes.len(), 5);
    assert_eq!(classes[..3], ["urgent"; 3]);
}

/// A store whose order other libraries share, or that has none.
fn a_class_is_refused_where_there_is_one_order(stage: &Stage) {
    let refused = "a priority is refused here: this store has one order for all waiters";
    stage.run(&["run", "--priority", "high", "builds", "--", "true"]).complained(64, refused);
    stage.run(&["run", "--priority", "normal", "builds", "--", "true"]).silent(0);
}

/// L1. Readers go only when all four have met; the writers come before, between and after.
fn readers_run_together_and_a_writer_runs_alone(stage: &Stage) {
    stage.gives_long_turns();
    let writer = |n: u32| stage.start(&["run", "cfg", "--", "sh", "-c", STAY, &format!("writer{n}"), "0.05"]);
    let reader = |n: u32| {
        stage.start_waiter("cfg", &["run", "-s", "cfg", "--", "sh", "-c", MEET, &format!("reader{n}"), "4"])
    };
    // Whoever holds it while they queue decides that all readers are let in by one hand-off.
    let first = stage.start(&["run", "cfg", "--", "sh", "-c", stage::files::HOLD, "first"]);
    stage.beats("first");
    let readers: Vec<Process> = (0..4).map(reader).collect();
    let writers: Vec<Process> = (0..4).map(writer).collect();
    stage.touch("go");
    all_succeed([vec![first], readers, writers].into_iter().flatten().collect());
    let log = stage.lines("log");
    assert_eq!(most_together(&log, "reader"), 4, "{log:#?}");
    assert_alone(&log, "writer");
}

/// L6, L7: readers come one after the other, and there is always one inside. A writer waits for those
/// who were there before it, and for nobody else. A store that answers nobody for seconds starves nobody: in the same seconds
/// another lock is taken, on which nobody waits.
fn a_stream_of_readers_does_not_starve_a_writer(stage: &Stage) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let mut readers = Vec::new();
            while !is_over.load(Ordering::Relaxed) && readers.len() < 200 {
                let name = format!("reader{}", readers.len());
                readers.push(stage.start(&["run", "-s", "cfg", "--", "sh", "-c", STAY, &name, "0.4"]));
                thread::sleep(Duration::from_millis(80));
            }
            readers
        });
        let beside = scope.spawn(|| {
            let (mut slowest, mut times) = (Duration::ZERO, 0..200);
            while !is_over.load(Ordering::Relaxed) && times.next().is_some() {
                let asked = Instant::now();
                stage.run(&["run", "other", "--", "true"]).silent(0);
                slowest = slowest.max(asked.elapsed());
                thread::sleep(Duration::from_millis(80));
            }
            slowest
        });
        eventually("readers overlap", PATIENCE, || {
            (most_together(&stage.lines("log"), "reader") >= 2).then_some(())
        });
        let came = Instant::now();
        let writer = stage.start(&["run", "cfg", "--", "sh", "-c", STAY, "writer", "0"]);
        let ended = writer.ended();
        let took = came.elapsed();
        is_over.store(true, Ordering::Relaxed);
        let (readers, slowest) = (stream.join().unwrap(), beside.join().unwrap());
        ended.silent(0);
        let bound = Duration::from_millis(400) + stage::START;
        assert_within(bound.max(2 * slowest / slowness()), took, "the writer's turn behind the readers");
        all_succeed(readers);
    });
    assert_alone(&stage.lines("log"), "writer");
}

/// L1: one name is one lock, whatever the modes of those who want it.
fn a_mutex_excludes_the_slots_and_the_readers_of_its_name(stage: &Stage) {
    let holder = stage.start(&["run", "job", "--", "sh", "-c", stage::files::HOLD, "mutex"]);
    stage.beats("mutex");
    for mode in [&["-s"][..], &["--slots", "9"], &[]] {
        stage.run(&[&["run", "-n"], mode, &["job", "--", "true"]].concat()).complained(1, "held by");
    }
    stage.touch("go");
    holder.ended().silent(0);
}

stage::on_every_store!(
    fifty_processes_lose_no_increment_and_none_fails,
    as_many_run_together_as_there_are_slots_and_never_more;
    but_quorums:
    readers_run_together_and_a_writer_runs_alone,
    a_stream_of_readers_does_not_starve_a_writer,
    those_who_take_several_slots_count_as_several,
    a_mutex_excludes_the_slots_and_the_readers_of_its_name;
    queues:
    a_higher_class_goes_first;
    lines:
    a_class_is_refused_where_there_is_one_order,
);

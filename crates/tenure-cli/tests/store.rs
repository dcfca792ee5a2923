//! The store out of reach while a command runs: locked, deleted, replaced.

#![cfg(target_os = "linux")]

use std::{
    fs,
    time::{Duration, Instant},
};

use tenure_testkit::patience::eventually;

use crate::stage::{
    LeaseEnd, PATIENCE, Process, Stage,
    files::{DEAF_BEAT, ENTER},
    now, scaled_ttl,
};

const TTL: Duration = Duration::from_secs(3);

/// A command that hears no TERM, so that only KILL in time saves the day.
fn deaf_holder(stage: &Stage, ttl: &str) -> Process {
    let holder = stage.start(&["run", "--ttl", ttl, "job", "--", "sh", "-c", DEAF_BEAT, "first"]);
    stage.beats("first");
    holder
}

/// The command is dead, and the lease is not over yet.
fn died_in_time(stage: &Stage, end: LeaseEnd) {
    stage.dies("pid.first");
    let died = now();
    assert!(died < end.earliest, "alive {:?} after the lease's end", died - end.earliest);
}

/// L1, L5: another process holds the store for longer than the ttl.
#[test]
fn a_store_that_is_locked_past_the_ttl_ends_the_command_before_its_lease() {
    let stage = Stage::new();
    let (ttl, text) = scaled_ttl(TTL);
    let holder = deaf_holder(&stage, &text);
    let waiter = stage.start_waiter("job", &["run", "job", "--", "sh", "-c", ENTER, "second"]);
    let hog = stage.hog();
    let end = stage.lease_end("job");
    // Nobody else beats meanwhile: so its last beat shows when it died, however late we look.
    stage.dies_before("first", end.earliest);
    eventually("the lease is over", ttl, || (now() > end.latest).then_some(()));
    drop(hog);
    holder.ended().complained(79, "no renewal succeeded for ");
    waiter.ended().silent(0);
    assert!(stage.entered("second") >= end.earliest);
    assert_eq!(stage.turns(), ["first", "second"]);
}

/// The file and what SQLite keeps beside it.
fn delete(stage: &Stage) {
    let database = stage.database();
    for suffix in ["-wal", "-shm", ""] {
        let _ = fs::remove_file(format!("{}{suffix}", database.display()));
    }
    assert!(!database.exists());
}

/// Another tenure's file, with a lock in it, that nobody has open.
fn other_store() -> (Stage, std::path::PathBuf) {
    let other = Stage::new();
    other.run(&["lock", "elsewhere", "--ttl", "1h"]);
    other.sql().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let file = other.database();
    (other, file)
}

/// Takes the store away while a deaf command runs, another waits, and a third comes afterwards.
fn survives_without_overlap(vanish: impl FnOnce(&Stage)) {
    let stage = Stage::new();
    let (ttl, text) = scaled_ttl(TTL);
    let enter = |name| ["run", "--ttl", &text, "job", "--", "sh", "-c", ENTER, name];
    let holder = deaf_holder(&stage, &text);
    let waiter = stage.start_waiter("job", &enter("second"));
    let end = stage.fresh_lease_end("job", ttl);
    vanish(&stage);
    let late = stage.start(&enter("third"));
    died_in_time(&stage, end);
    holder.ended().complained(79, "lost");
    for (process, name) in [(waiter, "second"), (late, "third")] {
        let ended = process.ended();
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(ended.err.lines().all(|line| line.contains("nothing is granted for another")), "{ended:?}");
        let entered = stage.entered(name);
        assert!(
            entered >= end.earliest,
            "{name} came {:?} before the old lease's end",
            end.earliest - entered
        );
    }
    assert_eq!(stage.turns().len(), 3, "{:?}", stage.turns());
}

/// L1.
#[test]
fn a_deleted_store_ends_the_command_and_lets_nobody_in_before_its_lease_is_over() {
    survives_without_overlap(delete);
}

/// L1: a second client found neither log nor shared memory, made new ones and was granted, while the holder went on in those
/// that were deleted; both wrote into one file.
#[test]
fn a_store_whose_log_is_deleted_ends_the_command_and_lets_nobody_in_before_its_lease_is_over() {
    survives_without_overlap(|stage| {
        for suffix in ["-wal", "-shm"] {
            fs::remove_file(format!("{}{suffix}", stage.database().display())).unwrap();
        }
    });
}

/// L1: nor where only the shared memory is deleted, or both are replaced by copies, as a cleaner or `rsync` does. What the log
/// says is read again, so the holder keeps its lease; no client is granted until the longest ttl has passed, and then behind it.
#[test]
fn a_store_whose_log_is_replaced_by_a_copy_lets_nobody_in_beside_the_holder() {
    for suffixes in [&["-shm"][..], &["-wal", "-shm"]] {
        for is_copied in [false, true] {
            if suffixes.len() == 2 && !is_copied {
                continue;
            }
            let stage = Stage::new();
            let (ttl, text) = scaled_ttl(TTL);
            let enter = ["run", "--ttl", &text, "job", "--", "sh", "-c", ENTER, "second"];
            let mut holder = deaf_holder(&stage, &text);
            let end = stage.fresh_lease_end("job", ttl);
            for suffix in suffixes {
                let part = format!("{}{suffix}", stage.database().display());
                let copy = stage.path("copy");
                fs::copy(&part, &copy).unwrap();
                if is_copied { fs::rename(copy, part) } else { fs::remove_file(part) }.unwrap();
            }
            let late = stage.start(&enter);
            eventually("the lease would have expired", ttl, || (now() > end.latest).then_some(()));
            stage.queued("job", &late);
            assert!(
                holder.is_running() && stage.turns() == ["first"],
                "{suffixes:?} {is_copied}: {}",
                holder.said()
            );
            assert_eq!(stage.show("job")["holders"][0]["label"]["pid"], holder.pid());
            drop(holder);
            let ended = late.ended();
            assert_eq!(ended.code, 0, "{ended:?}");
            stage.run(&["doctor", "-q"]).silent(0);
        }
    }
}

/// L1.
#[test]
fn a_replaced_store_ends_the_command_and_lets_nobody_in_before_its_lease_is_over() {
    let (_other, file) = other_store();
    survives_without_overlap(|stage| {
        delete(stage);
        fs::rename(&file, stage.database()).unwrap();
    });
}

/// L1: moved over the old one in a single step, the old log still beside it. SQLite makes of both what it
/// can, so that the old lock may live on in the new file or be lost with it; nobody else gets in either way.
#[test]
fn a_store_that_another_was_moved_over_lets_nobody_in_beside_the_holder() {
    let (_other, file) = other_store();
    let stage = Stage::new();
    let (ttl, text) = scaled_ttl(TTL);
    let _holder = deaf_holder(&stage, &text);
    fs::rename(&file, stage.database()).unwrap();
    let came = Instant::now();
    eventually("half a lease has passed", ttl, || {
        let late =
            stage.run(&["run", "-w", "200ms", "--ttl", &text, "job", "--", "sh", "-c", ENTER, "second"]);
        assert!(matches!(late.code, 1 | 69), "{late:?}");
        (came.elapsed() > ttl / 2).then_some(())
    });
    assert_eq!(stage.turns(), ["first"]);
}

/// While waiting, a store out of reach is tried again for as long as `-w` says, and then is an error.
#[test]
fn a_store_that_stays_locked_is_an_error_when_the_wait_is_over() {
    let stage = Stage::new();
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let hog = stage.hog();
    stage.run(&["run", "-w", "300ms", "job", "--", "true"]).complained(69, "locked by another process");
    let asked_once = stage.run(&["run", "-n", "job", "--", "true"]);
    // One request takes longer here than a wait that is not announced.
    let lines: Vec<&str> = asked_once.err.lines().collect();
    assert_eq!((asked_once.code, lines.len()), (69, 2), "{asked_once:?}");
    assert!(lines.iter().all(|line| line.contains("locked by another process")), "{asked_once:?}");
    stage.run(&["lock", "job", "--ttl", "5s", "-w", "100ms"]).complained(69, "locked by another process");
    drop(hog);
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// L6: and one that comes back in time was never missed.
#[test]
fn a_store_that_comes_back_lets_the_waiter_in() {
    let stage = Stage::new();
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let hog = stage.hog();
    let mut waiter = stage.start(&["run", "job", "--", "sh", "-c", ENTER, "first"]);
    // For longer than a request lasts.
    waiter.runs_on(Duration::from_secs(4));
    eventually("it says that it waits", PATIENCE, || (!waiter.said().is_empty()).then_some(()));
    drop(hog);
    waiter.ended().complained(0, "job: waiting: ");
    assert_eq!(stage.turns(), ["first"]);
}

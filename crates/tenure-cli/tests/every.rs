//! `run --every`: once per interval, from whichever process.

use std::{
    thread,
    time::{Duration, Instant},
};

use tenure_testkit::{
    patience::{eventually, slowness},
    postgres::PostgresServer,
};

use crate::stage::{self, PATIENCE, START, Stage};

/// Who comes within the interval skips, says why in one line, and ends with 0 or what it was told.
fn a_second_run_within_the_interval_is_skipped(stage: &Stage) {
    let every = ["run", "--every", "1h", "job", "--", "sh", "-c", "echo >>ran"];
    stage.run(&every).silent(0);
    stage.run(&every).complained(0, "skipped: ");
    stage.run(&[&["-q"], &every[..]].concat()).mute(0);
    let code = ["run", "--every", "1h", "--skip-exit-code", "9", "job", "--", "sh", "-c", "echo >>ran"];
    stage.run(&code).complained(9, "; next run in ");
    // A lock without an interval does not care, and does not change it.
    stage.run(&["run", "job", "--", "sh", "-c", "echo >>ran"]).silent(0);
    stage.run(&every).complained(0, "skipped: ");
    assert_eq!(stage.lines("ran").len(), 2);
    let view = stage.show("job");
    let (memo, said) = (&view["memo"], view["memo"]["text"].as_str().unwrap());
    assert!(said.starts_with("ran, once every 3600000 ms, after ") && said.ends_with(" sh"), "{view}");
    assert!(
        memo["left_ms"].as_u64().unwrap() > 3_000_000 && memo["token"].as_u64() <= view["fence"].as_u64()
    );
    let shown = stage.run(&["show", "job"]).out;
    assert!(shown.contains("\n  memo of ") && shown.contains(&format!(": {said}\n")), "{shown}");
    assert_eq!(stage.json(&["ls"]), serde_json::json!([]), "nobody holds it");
}

/// A failed run does not count, unless its start does.
fn a_run_that_fails_does_not_count(stage: &Stage) {
    let run = |flags: &[&str], command: &str| {
        stage.run(&[&["run", "--every", "1h"], flags, &["job", "--", "sh", "-c", command]].concat())
    };
    run(&[], "echo >>ran; exit 7").silent(7);
    run(&[], "echo >>ran; kill -9 $$").silent(137);
    run(&["--even-if-failed"], "echo >>ran; exit 7").silent(7);
    run(&[], "echo >>ran").complained(0, "skipped: ");
    run(&["--even-if-failed"], "echo >>ran").complained(0, "skipped: ");
    assert_eq!(stage.lines("ran").len(), 3);
}

/// L1: of many that come at once one runs, while the others wait for it and skip then.
fn of_many_that_come_at_once_one_runs(stage: &Stage) {
    let command =
        ["run", "-q", "--every", "1h", "-w", "60s", "job", "--", "sh", "-c", "echo >>ran; sleep 0.3"];
    let all: Vec<_> = (0..10).map(|_| stage.start(&command)).collect();
    for process in all {
        process.ended_within(Duration::from_secs(60)).mute(0);
    }
    assert_eq!(stage.lines("ran").len(), 1);
}

/// Counted from the start of the run: whoever tries all the time runs it once in each interval.
fn between_two_starts_lies_the_interval(stage: &Stage) {
    let interval = Duration::from_secs(4);
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                eventually("it has run three times", PATIENCE * 3, || {
                    let ended = stage.run(&[
                        "run",
                        "-q",
                        "--every",
                        "4s",
                        "job",
                        "--",
                        "sh",
                        "-c",
                        "date +%s%N >>ran; sleep 1",
                    ]);
                    ended.mute(0);
                    thread::sleep(Duration::from_millis(100));
                    (stage.lines("ran").len() >= 3).then_some(())
                });
            });
        }
    });
    assert!(began.elapsed() >= 2 * interval - START * slowness());
    let starts: Vec<u64> = stage.lines("ran").iter().map(|line| line.parse().unwrap()).collect();
    for pair in starts.windows(2) {
        let apart = Duration::from_nanos(pair[1] - pair[0]);
        assert!(apart + START * slowness() >= interval, "{apart:?} apart: {starts:?}");
    }
}

/// What is not possible is refused, and nothing is taken.
#[test]
fn an_interval_that_is_none_is_refused() {
    let stage = Stage::new();
    let run = |flags: &[&str]| stage.run(&[&["run"], flags, &["job", "--", "touch", "ran"]].concat());
    run(&["--every", "0s"]).complained(64, "an interval must be 1ms to 366 days");
    run(&["--every", "367d"]).complained(64, "an interval must be 1ms to 366 days");
    run(&["--every", "often"]).complained(64, "write a duration like");
    run(&["--every", "1h", "-s"]).complained(64, "cannot be used with");
    run(&["--every", "1h", "--slots", "2"]).complained(64, "cannot be used with");
    run(&["--even-if-failed"]).complained(64, "--every");
    run(&["--skip-exit-code", "3"]).complained(64, "--every");
    assert!(!stage.path("ran").exists() && !stage.path(".local").exists());
}

/// With `-n` who comes while it runs is refused like anybody else; nothing is said of a skip.
#[test]
fn a_run_that_is_under_way_is_waited_for_unless_that_is_not_wanted() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "--every", "1h", "job", "--", "sh", "-c", stage::files::HOLD, "first"]);
    stage.beats("first");
    stage.run(&["run", "-n", "--every", "1h", "job", "--", "touch", "ran"]).complained(1, "held by");
    let waiter = stage.start_waiter("job", &["run", "--every", "1h", "job", "--", "touch", "ran"]);
    stage.touch("go");
    holder.ended().silent(0);
    waiter.ended().complained(0, "skipped: ");
    assert!(!stage.path("ran").exists());
}

/// What the papers say of a server that is restarted: one that keeps what it acknowledged remembers the run.
#[test]
fn a_server_that_keeps_its_data_remembers_the_run() {
    let server = PostgresServer::start();
    let stage = Stage::at(server.url(""));
    stage.run(&["run", "--every", "1h", "job", "--", "touch", "ran"]).silent(0);
    server.kill();
    server.start_again();
    stage.run(&["run", "--every", "1h", "job", "--", "touch", "ran again"]).complained(0, "skipped: ");
    assert!(stage.path("ran").exists() && !stage.path("ran again").exists());
}

/// And one that has lost its memory lets it run again; nothing else is promised of it.
#[test]
fn a_server_that_lost_its_memory_lets_it_run_again() {
    let mut stage = Stage::on_redis();
    stage.run(&["run", "--every", "1h", "job", "--", "touch", "ran"]).silent(0);
    stage.server().kill();
    stage.server().start_again();
    stage.run(&["run", "--every", "1h", "job", "--", "touch", "ran again"]).silent(0);
    stage.run(&["run", "--every", "1h", "job", "--", "touch", "and again"]).complained(0, "skipped: ");
    assert!(stage.path("ran again").exists() && !stage.path("and again").exists());
}

stage::on_every_store!(
    a_second_run_within_the_interval_is_skipped,
    a_run_that_fails_does_not_count,
    of_many_that_come_at_once_one_runs,
    between_two_starts_lies_the_interval,
);

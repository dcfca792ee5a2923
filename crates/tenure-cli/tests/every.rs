//! `run --every`: once per interval, from whichever process.

use std::{
    thread,
    time::{Duration, Instant},
};

use tenure_testkit::{
    clock::Clock,
    patience::{eventually, slowness},
    postgres::PostgresServer,
};

use crate::stage::{self, PATIENCE, START, Stage, files::HOLD};

/// Who comes within the interval skips, says why in one line, and ends with 0 or what it was told.
fn a_second_run_within_the_interval_is_skipped(stage: &Stage) {
    let every = ["run", "--every", "1h", "job", "--", "sh", "-c", "echo >>ran"];
    stage.run(&every).silent(0);
    stage.run(&every).complained(0, "skipped: ");
    stage.run(&[&["-q"], &every[..]].concat()).mute(0);
    let code = ["run", "--every", "1h", "--skip-exit-code", "9", "job", "--", "sh", "-c", "echo >>ran"];
    stage.run(&code).complained(9, "; it runs once in ");
    // A lock without an interval does not care, and does not change it.
    stage.run(&["run", "job", "--", "sh", "-c", "echo >>ran"]).silent(0);
    stage.run(&every).complained(0, "skipped: ");
    assert_eq!(stage.lines("ran").len(), 2);
    let view = stage.show("job");
    let (memo, said) = (&view["memo"], view["memo"]["text"].as_str().unwrap());
    assert!(said.starts_with("ran, once every 3600000 ms, due in 3") && said.ends_with(" sh"), "{view}");
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
    run(&["--every", "1h", "--once-per", "day"]).complained(64, "cannot be used with");
    run(&["--once-per", "month"]).complained(64, "write hour, day, week or a duration");
    run(&["--once-per", "day", "--also", "other"]).complained(64, "cannot be used with");
    run(&["--once-per", "day", "--tz", "Europe/Nowhere"])
        .complained(64, "no time zone Europe/Nowhere is known");
    run(&["--tz", "UTC"]).complained(64, "--once-per");
    run(&["--even-if-failed"]).complained(64, "--every");
    run(&["--skip-exit-code", "3"]).complained(64, "--every");
    assert!(!stage.path("ran").exists() && !stage.database().exists());
}

/// With `-n` who comes while it runs is refused like anybody else; nothing is said of a skip.
#[test]
fn a_run_that_is_under_way_is_waited_for_unless_that_is_not_wanted() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "--every", "1h", "job", "--", "sh", "-c", HOLD, "first"]);
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

/// A scheduler with the period of the interval started each second run a few ms too early, and it was skipped.
#[test]
fn a_run_may_begin_a_tenth_of_the_interval_early() {
    let stage = Stage::new();
    let every = ["run", "--every", "10s", "job", "--", "sh", "-c", "echo >>ran"];
    let age = || stage.show("job")["memo"]["age_ms"].as_u64().unwrap_or(0);
    stage.run(&every).silent(0);
    stage.run(&every).complained(0, "skipped: ");
    eventually("it is nearly due", PATIENCE, || (age() > 9_100).then_some(()));
    stage.run(&every).silent(0);
    assert_eq!(stage.lines("ran").len(), 2);
    // Of a job that runs once a day, a minute at most.
    let daily = ["run", "--every", "1d", "daily", "--", "true"];
    stage.run(&daily).silent(0);
    stage.run(&daily).complained(0, "once in 24 h");
}

/// A scheduler piled up processes behind a job that hung: of thirty ticks thirty waited.
#[test]
fn one_process_of_a_host_waits_for_a_job() {
    let stage = Stage::new();
    let hung = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "hung"]);
    stage.beats("hung");
    let every = ["run", "--every", "1h", "--skip-exit-code", "9", "job", "--", "sh", "-c", "echo >>ran"];
    let waits = stage.start(&every);
    stage.queued("job", &waits);
    stage.run(&every).complained(9, "of this host waits for it already");
    // A run with `--wait` waits, and so does another command line of the same program, which was once skipped with 0.
    let named = ["run", "-w", "200ms", "--every", "1h", "job", "--", "sh", "-c", "echo >>ran"];
    stage.run(&named).complained(1, "gave up after ");
    let other = stage.start(&["run", "--every", "1h", "job", "--", "sh", "-c", "echo other"]);
    stage.queued("job", &other);
    stage.touch("go");
    assert_eq!((hung.ended().code, waits.ended().code, other.ended().code), (0, 0, 0));
    assert_eq!(stage.lines("ran").len(), 1);
}

/// A process waited without a limit for a job that hung on another host, and printed nothing.
#[test]
fn a_wait_ends_with_the_interval() {
    let stage = Stage::new();
    let hung = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "hung"]);
    stage.beats("hung");
    let began = Instant::now();
    stage
        .run(&["run", "--every", "1s", "job", "--", "true"])
        .complained(1, "not acquired within its interval, 30 s: held by ");
    assert!(began.elapsed() >= Duration::from_secs(30));
    stage.touch("go");
    assert_eq!(hung.ended().code, 0);
}

/// The moment of a day, since the epoch.
fn moment(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

/// Three hosts whose cron starts a job at these moments: it runs once in each slot.
#[track_caller]
fn runs_once_in_each(flags: &[&str], moments: &[&str]) {
    let (stage, clock) = (Stage::new(), Clock::new());
    for (number, at) in moments.iter().enumerate() {
        for host in 0..3 {
            let now = jiff::Timestamp::now().as_millisecond();
            clock.step(moment(at) + host * 400 - now);
            let run = [&["run"], flags, &["nightly", "--", "sh", "-c", "echo >>ran"]].concat();
            let mut command = stage.command(&run);
            command.envs(clock.env());
            let ended = stage.run_command(command);
            match host {
                0 => ended.silent(0),
                _ => ended.complained(0, "nightly: skipped: "),
            }
        }
        assert_eq!(stage.lines("ran").len(), number + 1, "{at}");
    }
}

/// `--every 23h` skipped the night of 23 hours, in which the job came a moment early.
#[test]
fn once_per_day_runs_each_day_whatever_its_length() {
    let berlin = ["--once-per", "day", "--tz", "Europe/Berlin"];
    // Half past three: after 24, 23, 24 hours, and after 24, 25, 24.
    let spring = ["2026-03-27T02:30Z", "2026-03-28T02:30Z", "2026-03-29T01:30Z", "2026-03-30T01:30Z"];
    let autumn = ["2026-10-23T01:30Z", "2026-10-24T01:30Z", "2026-10-25T02:30Z", "2026-10-26T02:30Z"];
    runs_once_in_each(&berlin, &spring);
    runs_once_in_each(&berlin, &autumn);
    // As systemd and Kubernetes start it, by UTC: at 22 and at 23 hours of one day in Berlin, and in the next one.
    runs_once_in_each(&["--once-per", "day", "--tz", "UTC"], &["2026-03-28T23:30Z", "2026-03-29T00:10Z"]);
}

/// An hour that the clock shows twice is two.
#[test]
fn once_per_hour_week_and_duration() {
    let berlin = ["--tz", "Europe/Berlin"];
    let hours = ["2026-10-25T00:30Z", "2026-10-25T01:30Z", "2026-10-25T02:30Z"];
    runs_once_in_each(&[&["--once-per", "hour"], &berlin[..]].concat(), &hours);
    let quarters = ["2026-10-25T00:59Z", "2026-10-25T01:00Z", "2026-10-25T01:15Z"];
    runs_once_in_each(&[&["--once-per", "15m"], &berlin[..]].concat(), &quarters);
    // A Sunday and a Monday.
    let weeks = ["2026-10-25T22:30Z", "2026-10-25T23:30Z"];
    runs_once_in_each(&[&["--once-per", "week"], &berlin[..]].concat(), &weeks);
}

/// A host whose clock is late does not run what another one ran in the next slot; a failure does not count.
#[test]
fn of_a_slot_one_run_counts() {
    let (stage, clock) = (Stage::new(), Clock::new());
    let run = |at: &str, flags: &[&str], command: &str| {
        clock.step(moment(at) - jiff::Timestamp::now().as_millisecond());
        let all = ["run", "--once-per", "day", "--tz", "UTC"];
        let mut program = stage.command(&[&all, flags, &["job", "--", "sh", "-c", command]].concat());
        program.envs(clock.env());
        stage.run_command(program)
    };
    run("2026-05-02T00:00:01Z", &[], "exit 7").silent(7);
    run("2026-05-02T00:00:03Z", &[], "exit 0").silent(0);
    run("2026-05-01T23:59:59Z", &[], "exit 5").complained(0, "; it runs once per day of UTC");
    run("2026-05-02T23:59:59Z", &["--skip-exit-code", "9"], "exit 5").complained(9, "skipped: ");
    run("2026-05-03T00:00:00Z", &["--even-if-failed"], "exit 6").silent(6);
    run("2026-05-03T12:00:00Z", &[], "exit 5").complained(0, "skipped: ");
}

stage::on_every_store!(
    a_second_run_within_the_interval_is_skipped,
    a_run_that_fails_does_not_count,
    of_many_that_come_at_once_one_runs,
    between_two_starts_lies_the_interval,
);

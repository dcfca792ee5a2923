//! What `bench` prints, that it leaves nothing behind, and what a person sees of it.

#![cfg(target_os = "linux")]

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tenure_testkit::patience::eventually;

use crate::screen::Screen;
use crate::stage::{PATIENCE, Stage};

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");
const SHORT: [&str; 5] = ["bench", "--duration", "200ms", "--waiters", "4"];

#[track_caller]
fn is_clean(stage: &Stage) {
    assert_eq!(stage.json(&["ls"]), json!([]));
}

/// For people: one table, and what to know of a build with all checks.
#[test]
fn the_table_has_all_parts() {
    let stage = Stage::new();
    let ended = stage.run(&SHORT);
    ended.silent(0);
    let mut lines: Vec<&str> = ended.out.lines().collect();
    if cfg!(debug_assertions) {
        assert!(lines.pop().is_some_and(|line| line.starts_with("unoptimised build: ")), "{ended:?}");
    }
    let heads: Vec<&str> = lines[0].split("  ").map(str::trim).filter(|head| !head.is_empty()).collect();
    assert_eq!(heads, ["PART", "PER SECOND", "P50", "P99", "WORST", "NOTES"]);
    for (line, part) in lines[1..].iter().zip([
        "round trip ",
        "cycle ",
        "cycle, 64 tasks ",
        "change of owner, 2 waiters ",
        "change of owner, 4 waiters ",
        "4 waiters hold 1 ms ",
    ]) {
        assert!(line.starts_with(part) && line.contains("s  "), "{part}: {ended:?}");
    }
    assert_eq!(lines.len(), 7);
    assert_eq!(ended.out.matches(" per change, Jain ").count(), 3, "{ended:?}");
    is_clean(&stage);
}

/// For programs: names and units are a contract.
#[test]
fn json_has_numbers_with_units() {
    let stage = Stage::new();
    let ended = stage.run(&[&SHORT[..], &["--json"]].concat());
    ended.silent(0);
    assert_eq!(ended.out.lines().count(), 1);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&report["backend"], &report["duration_ms"]), (&json!("sqlite"), &json!(200)));
    assert_eq!(report["unoptimised"], json!(cfg!(debug_assertions)));
    let parts = report["parts"].as_array().unwrap();
    let names: Vec<_> = parts.iter().map(|part| (part["part"].as_str().unwrap(), &part["tasks"])).collect();
    let [one, two, four, many] = [1, 2, 4, 64].map(|tasks| json!(tasks));
    assert_eq!(
        names,
        [
            ("round_trip", &one),
            ("cycle", &one),
            ("cycle", &many),
            ("change_of_owner", &two),
            ("change_of_owner", &four),
            ("hold", &four)
        ]
    );
    for part in parts {
        let number = |name: &str| part[name].as_f64().unwrap_or_else(|| panic!("{name}: {part}"));
        assert!(number("per_second") > 0.0, "{part}");
        assert!(0.0 < number("p50_us") && number("p50_us") <= number("p99_us"), "{part}");
        assert!(number("p99_us") <= number("worst_us"), "{part}");
        let is_shared = part["timed"] == "wait";
        for name in ["us_per_change", "jain", "starved"] {
            assert_eq!(part[name].is_number(), is_shared, "{name}: {part}");
        }
        if is_shared {
            assert!(number("us_per_change") > 0.0, "{part}");
            assert!((0.0..=1.0).contains(&number("jain")), "{part}");
        }
    }
    let hold = &parts[5];
    assert!(
        hold["us_per_change"].as_f64().unwrap() >= 500.0,
        "all but the last hold for a millisecond: {hold}"
    );
    is_clean(&stage);
}

/// Whatever else is in the store stays as it is, and nobody can know the names that are used.
#[test]
fn nobodys_locks_are_touched() {
    let stage = Stage::new();
    stage.run(&["lock", "job", "--ttl", "1h"]).silent(0);
    let held = stage.show("job")["holders"][0]["token"].clone();
    let bench = stage.start(&["bench", "--duration", "1s", "--waiters", "4"]);
    let names = eventually("the bench holds a lock", PATIENCE, || {
        let list = stage.json(&["ls"]);
        let names: Vec<String> =
            list.as_array().unwrap().iter().map(|view| view["name"].as_str().unwrap().to_owned()).collect();
        (names.len() > 1).then_some(names)
    });
    let prefix = format!("tenure-bench/{}-", bench.pid());
    for name in names.iter().filter(|name| *name != "job") {
        let rest = name.strip_prefix(&prefix).unwrap_or_else(|| panic!("{name}"));
        let (chance, number) = rest.split_once('/').unwrap();
        assert!(chance.len() == 32 && number.parse::<u32>().is_ok(), "{name}");
    }
    bench.signal(Signal::SIGTERM);
    bench.ended().silent(143);
    assert_eq!(stage.show("job")["holders"][0]["token"], held);
    assert_eq!(stage.json(&["ls"]).as_array().unwrap().len(), 1);
}

/// L8: also from the middle of a queue.
#[test]
fn a_bench_that_is_stopped_gives_back_what_it_has() {
    let stage = Stage::new();
    for (duration, part) in [("1h", "1 of 6: round trip"), ("1s", "5 of 6: change of owner, 8 waiters")] {
        let arguments = ["bench", "--duration", duration, "--waiters", "8"];
        let mut screen = Screen::start(&stage, &[&[TENURE], &arguments[..]].concat());
        screen.sees(part);
        screen.types("\x03");
        assert_eq!(screen.ended(), 130);
        is_clean(&stage);
    }
}

/// A person sees which part runs; the table follows where the bar was.
#[test]
fn a_person_sees_which_part_runs() {
    let stage = Stage::new();
    let mut screen = Screen::start(&stage, &[&[TENURE], &SHORT[..]].concat());
    screen.sees("1 of 6: round trip");
    screen.sees("6 of 6: 4 waiters hold 1 ms");
    screen.sees("\x1b[2K");
    screen.sees("PART ");
    assert_eq!(screen.ended(), 0);
    let mut quiet = Screen::start(&stage, &[&[TENURE, "-q"], &SHORT[..]].concat());
    quiet.sees("PART ");
    assert_eq!(quiet.ended(), 0);
    assert!(quiet.all().starts_with("PART "), "{}", quiet.all());
}

/// Issue: one line and 69.
#[test]
fn a_store_that_fails_is_69() {
    let stage = Stage::new();
    std::fs::write(stage.path("notes.txt"), "this is no database at all\n".repeat(100)).unwrap();
    for (url, part) in [
        ("sqlite:nowhere/locks.db", "its directory must exist"),
        ("sqlite:notes.txt", "not an SQLite database"),
    ] {
        stage.run(&[&SHORT[..], &["--json", "--url", url]].concat()).complained(69, part);
    }
}

/// The same in the middle, when all else is at work: the files are taken away, and what is no store stands there.
#[test]
fn a_store_that_fails_in_the_middle_is_69() {
    let stage = Stage::new();
    let mut screen = Screen::start(&stage, &[TENURE, "bench", "--duration", "1h", "--waiters", "4"]);
    screen.sees("1 of 6: round trip");
    for suffix in ["-wal", "-shm", ""] {
        let _ = std::fs::remove_file(format!("{}{suffix}", stage.database().display()));
    }
    std::fs::write(stage.path("notes.txt"), "this is no database at all\n".repeat(100)).unwrap();
    std::fs::rename(stage.path("notes.txt"), stage.database()).unwrap();
    screen.sees("\x1b[2K");
    screen.sees("tenure: the file is not an SQLite database");
    assert_eq!(screen.ended(), 69);
}

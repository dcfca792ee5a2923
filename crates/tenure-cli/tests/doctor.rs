//! What `doctor` says of a store, with which code, and what `--adopt` does where there is nothing to adopt.

#![cfg(target_os = "linux")]

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::{Value, json};
use tenure_testkit::patience::slowness;

use crate::screen::Screen;
use crate::stage::{self, Ended, Stage};

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// A store in which a lock was taken and given back.
fn used() -> Stage {
    let stage = Stage::new();
    stage.run(&["run", "job", "--", "true"]).silent(0);
    stage
}

/// The same, in a directory that every user may write to.
fn open_to_all() -> Stage {
    let stage = used();
    let folder = stage.database().parent().unwrap().to_owned();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    stage
}

fn list(ended: &Ended) -> Vec<Value> {
    let list: Value = serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    list.as_array().unwrap().clone()
}

/// What was found, but that this machine is too busy for a ttl of ten seconds.
fn without_pace(mut findings: Vec<Value>) -> Vec<Value> {
    findings.retain(|found| !found["what"].as_str().unwrap().starts_with("the default ttl of"));
    findings
}

fn findings(stage: &Stage) -> Vec<Value> {
    without_pace(stage.json(&["doctor"]).as_array().unwrap().clone())
}

/// The advice has its reason and its numbers, on every store; it makes no store and is not for programs.
fn doctor_says_which_ttl(stage: &Stage) {
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let ended = stage.run(&["doctor"]);
    let line = ended.out.lines().last().unwrap();
    let parts = [
        "ttl: ",
        ". Measured for 2 s: the slowest of ",
        " answers took ",
        "the longest pause of this machine ",
        "; the shortest useful ttl here is ",
    ];
    assert!(parts.iter().all(|part| line.contains(part)), "{ended:?}");
}

/// Issue: exit 0 if all is well, in one line that says what was looked at.
#[test]
fn a_healthy_store_is_well() {
    let stage = used();
    let ended = stage.run(&["doctor"]);
    ended.silent(0);
    let store = format!("all is well: sqlite:{} answers", stage.database().display());
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(lines[0].starts_with(&store) || slowness() > 1, "{ended:?}");
    assert!(lines.last().unwrap().starts_with("ttl: ") && (lines.len() == 2 || slowness() > 1), "{ended:?}");
    assert!(findings(&stage).is_empty());
    let quiet = stage.run(&["doctor", "-q"]);
    quiet.silent(0);
    assert_eq!(quiet.out, "");
}

/// A note is good to know, and nothing that a script must act on.
#[test]
fn a_note_alone_is_no_failure_and_looking_makes_no_store() {
    let stage = Stage::new();
    let ended = stage.run(&["doctor"]);
    ended.silent(0);
    assert!(ended.out.starts_with("note: there is no file "), "{ended:?}");
    let found = findings(&stage);
    assert_eq!((found.len(), &found[0]["severity"]), (1, &json!("note")));
    assert_eq!(stage.run(&["doctor", "-q"]).out, "");
    assert!(!stage.database().exists());
}

/// Issue: exit 1 with findings, each with what to do.
#[test]
fn a_finding_is_one_and_says_what_to_do() {
    let stage = open_to_all();
    for arguments in [&["doctor"][..], &["doctor", "-q"]] {
        let ended = stage.run(arguments);
        ended.silent(1);
        let lines: Vec<&str> = ended.out.lines().collect();
        assert!(lines[0].starts_with("warning: every user may write to "), "{ended:?}");
        assert!(lines[1].starts_with("  to do: ") && lines[1].contains("chmod o-w"), "{ended:?}");
        assert_eq!(lines.iter().filter(|line| line.starts_with("ttl: ")).count(), 2 - arguments.len());
    }
    let ended = stage.run(&["doctor", "--json"]);
    ended.silent(1);
    let [found] = &without_pace(list(&ended))[..] else { panic!("{ended:?}") };
    let fields: Vec<&str> = found.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["remedy", "severity", "what"], "in the order of the alphabet: {ended:?}");
    assert_eq!(found["severity"], "warning");
    assert!(found["remedy"].as_str().unwrap().contains("chmod o-w"), "{ended:?}");
}

#[test]
fn the_worst_comes_first() {
    let stage = open_to_all();
    stage.run(&["lock", "long", "--ttl", "1h"]).silent(0);
    stage.sql().execute("UPDATE lock SET state = 'mine' WHERE name = 'job'", []).unwrap();
    let ended = stage.run(&["doctor", "--json"]);
    ended.silent(1);
    let order: Vec<Value> =
        without_pace(list(&ended)).iter().map(|found| found["severity"].clone()).collect();
    assert_eq!(order, ["problem", "warning", "note"]);
    let quiet = stage.run(&["-q", "doctor"]);
    quiet.silent(1);
    assert!(quiet.out.starts_with("problem: ") && !quiet.out.contains("note: "), "{quiet:?}");
}

/// Issue: a store that cannot be reached is 69, as everywhere.
#[test]
fn a_store_that_cannot_be_reached_is_69() {
    let stage = Stage::new();
    fs::write(stage.path("notes.txt"), "this is no database at all\n".repeat(100)).unwrap();
    for (url, part) in [
        ("sqlite:nowhere/locks.db", "its directory must exist"),
        ("sqlite:notes.txt", "not an SQLite database"),
        ("sqlite:notes.txt/locks.db", "cannot reach"),
    ] {
        for arguments in [&["doctor"][..], &["doctor", "--json"]] {
            stage.run(&[arguments, &["--url", url]].concat()).complained(69, part);
        }
    }
    stage.run(&["doctor", "--url", "memory:"]).complained(64, "ends with this process");
}

/// There is nothing to adopt in a file: the trait's own answer, in one line.
#[test]
fn a_store_without_a_record_of_settings_has_nothing_to_adopt() {
    let stage = used();
    for arguments in
        [&["doctor", "--adopt"][..], &["doctor", "--adopt", "--json"], &["-q", "doctor", "--adopt"]]
    {
        stage.run(arguments).complained(69, "this store keeps no record of settings");
    }
}

/// Colour only on a terminal, and only where it is wanted.
#[test]
fn colour_is_for_terminals_that_want_it() {
    let stage = open_to_all();
    for (environment, word) in [
        (&[][..], "\x1b[33mwarning\x1b[0m: "),
        (&[("NO_COLOR", "1")], "warning: "),
        (&[("NO_COLOR", "")], "\x1b[33m"),
    ] {
        let mut screen = Screen::start_with(&stage, &[TENURE, "doctor", "-q"], environment);
        screen.sees("chmod o-w");
        assert_eq!(screen.ended(), 1);
        assert!(screen.all().starts_with(word), "{environment:?}: {:?}", screen.all());
    }
    assert!(!stage.run(&["doctor"]).out.contains('\x1b'));
}

/// A large or a busy store takes its time: on a terminal something moves meanwhile, and is wiped afterwards.
#[test]
fn a_person_sees_that_a_slow_store_is_looked_at() {
    let stage = used();
    let hog = stage.hog_from_readers();
    let piped = stage.start(&["ls"]);
    let mut screens =
        [("ls", "looking through the store"), ("doctor", "looking at the store")].map(|(verb, line)| {
            let mut screen = Screen::start(&stage, &[TENURE, verb]);
            screen.sees(line);
            screen
        });
    drop(hog);
    for screen in &mut screens {
        screen.sees("\x1b[2K");
        assert_eq!(screen.ended(), 0);
    }
    piped.ended().silent(0);
}

stage::on_every_store!(doctor_says_which_ttl);

//! What `ls`, `show`, `break` and `completions` print: JSON for programs, lines for people.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::stage::{self, Stage, files::HOLD};

fn fields(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).keys().map(String::as_str).collect()
}

/// Names and kinds are a contract.
#[test]
fn show_prints_the_json_of_the_contract() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let waiter = stage.start_waiter("job", &["run", "-s", "job", "--", "/usr/bin/env", "true"]);
    let text = stage.run(&["show", "job", "--json"]).out;
    assert_eq!(text.lines().count(), 1, "one line, for `while read`: {text}");
    let view: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(fields(&view), BTreeSet::from(["name", "holders", "queue", "fence", "memo", "kept_by"]));
    assert_eq!(view["name"], "job");
    let held = &view["holders"][0];
    let names = BTreeSet::from(["owner", "mode", "token", "label", "since", "expires_in_ms"]);
    assert_eq!(fields(held), names);
    assert_eq!((held["owner"].as_str().unwrap().len(), &held["mode"]), (48, &json!("exclusive")));
    assert!(held["token"].is_u64() && view["fence"].as_u64() >= held["token"].as_u64());
    assert!((1..=10_000).contains(&held["expires_in_ms"].as_u64().unwrap()));
    let since: jiff::Timestamp = held["since"].as_str().unwrap().parse().unwrap();
    let age = stage::now().as_secs_f64() - since.as_millisecond() as f64 / 1000.0;
    assert!((-0.1..20.0).contains(&age), "RFC 3339, since it was granted: {since}");
    assert_eq!(fields(&held["label"]), BTreeSet::from(["host", "pid", "user", "command", "runs"]));
    assert_eq!((&held["label"]["pid"], &held["label"]["command"]), (&json!(holder.pid()), &json!("sh")));
    assert!(held["label"]["host"].is_string() && held["label"]["user"].is_string());
    let waits = &view["queue"][0];
    assert_eq!(fields(waits), BTreeSet::from(["owner", "mode", "priority", "label", "waiting_ms"]));
    assert_eq!((&waits["mode"], &waits["label"]["pid"]), (&json!("shared"), &json!(waiter.pid())));
    assert_eq!(waits["label"]["command"], "env", "the base name");
    assert!(waits["waiting_ms"].is_u64());
    stage.touch("go");
    for process in [holder, waiter] {
        process.ended().silent(0);
    }
}

/// A free lock is no error, and it need not exist.
#[test]
fn a_free_lock_is_shown_as_free() {
    let stage = Stage::new();
    assert_eq!(
        stage.show("never"),
        json!({"name": "never", "holders": [], "queue": [], "fence": 0, "memo": null, "kept_by": null})
    );
    assert!(!stage.database().exists(), "looking makes no store");
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let view = stage.show("job");
    assert!(view["fence"].as_u64().unwrap() > 0, "the fence outlives the holder");
    assert_eq!((&view["holders"], &view["queue"]), (&json!([]), &json!([])));
    assert!(stage.run(&["show", "job"]).out.starts_with("job is free\n"));
}

/// `ls` is a list of what `show` shows, of those that are held or waited for.
#[test]
fn ls_lists_what_is_held_by_prefix() {
    let stage = Stage::new();
    assert_eq!(stage.json(&["ls"]), json!([]));
    assert_eq!(stage.run(&["ls"]).out, "");
    for name in ["b/2", "a_1", "a%1", "b/1", "A"] {
        stage.run(&["lock", name, "--ttl", "1h"]).silent(0);
    }
    stage.run(&["run", "b/free", "--", "true"]).silent(0);
    let names = |arguments: &[&str]| -> Vec<String> {
        let list = stage.json(arguments);
        list.as_array().unwrap().iter().map(|view| view["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&["ls"]), ["A", "a%1", "a_1", "b/1", "b/2"]);
    assert_eq!(names(&["ls", "b/"]), ["b/1", "b/2"]);
    assert_eq!(names(&["ls", "a_"]), ["a_1"], "nothing in a prefix is a pattern");
    assert_eq!(names(&["ls", "%"]), Vec::<String>::new());
    let one = &stage.json(&["ls", "b/1"])[0];
    let mut shown = stage.show("b/1");
    shown["holders"][0]["expires_in_ms"] = one["holders"][0]["expires_in_ms"].clone();
    assert_eq!(*one, shown);
}

/// Modes as words.
#[test]
fn modes_are_words() {
    let stage = Stage::new();
    let start = |flags: &[&str], name| {
        let process = stage.start(&[&["run"], flags, &[name, "--", "sh", "-c", HOLD, name]].concat());
        stage.beats(name);
        process
    };
    let processes = [
        start(&[], "mutex"),
        start(&["-s"], "cfg"),
        start(&["--slots", "3"], "gpu"),
        start(&["--shared"], "cfg2"),
    ];
    for (name, mode) in [("mutex", "exclusive"), ("cfg", "shared"), ("gpu", "shared:3"), ("cfg2", "shared")] {
        assert_eq!(stage.show(name)["holders"][0]["mode"], mode);
    }
    stage.touch("go");
    for process in processes {
        process.ended().silent(0);
    }
}

/// For people: who holds it, since when, for how long, and who waits.
#[test]
fn people_see_who_holds_and_who_waits() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "true"]);
    let shown = stage.run(&["show", "job"]).out;
    let held = format!("  held (exclusive) by {} pid {} sh since ", host(&stage), holder.pid());
    let waits = format!(": {} pid {} true", host(&stage), waiter.pid());
    let lines: Vec<&str> = shown.lines().collect();
    assert!(
        lines[0] == "job" && lines[1].starts_with(&held) && lines[1].contains(", expires in "),
        "{shown}"
    );
    assert!(lines[2].starts_with("  1. waits (exclusive) for ") && lines[2].ends_with(&waits), "{shown}");
    assert!(lines[3].starts_with("  fence ") && lines.len() == 4, "{shown}");
    let listed = stage.run(&["ls"]).out;
    let rows: Vec<&str> = listed.lines().collect();
    assert!(rows[0].starts_with("NAME") && rows[0].ends_with("WAITING") && rows.len() == 2, "{listed}");
    assert!(rows[1].starts_with("job") && rows[1].ends_with('1') && rows[1].contains(" sh "), "{listed}");
    stage.touch("go");
    for process in [holder, waiter] {
        process.ended().silent(0);
    }
}

fn host(stage: &Stage) -> String {
    stage.show("job")["holders"][0]["label"]["host"].as_str().unwrap().to_owned()
}

/// The completions name every verb for people and no verb of our own; printing them needs no store.
#[test]
fn completions_know_the_verbs() {
    let stage = Stage::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stage.run(&["completions", shell]);
        script.silent(0);
        for word in ["run", "unlock", "doctor", "adopt", "bench", "waiters"] {
            assert!(script.out.contains(word), "{shell}: {word}");
        }
        // As words of their own: clap's names for what is offered end in them.
        let mut words = script.out.split(|c: char| !c.is_alphanumeric() && c != '_');
        assert!(!words.any(|word| word == "__exec" || word == "__watch"), "{shell}: not for people");
    }
    assert!(!stage.database().exists());
}

/// What a stranger wrote into the record of the store stands in the log and in the error, and paints nothing there, and makes no
/// line of its own.
#[test]
fn what_a_store_holds_makes_no_line_of_the_log() {
    let mut stage = Stage::on_redis_with("?max_ttl=2s");
    stage.run(&["-q", "ls"]).silent(0);
    let evil = "guard=on\x1b[31m\r\n2026-01-01T00:00:00Z forged\u{202e}\u{9b}1m";
    stage.server().command(&["HSET", "tenure:one", "settings", evil]);
    let ended = stage.run(&["-vvv", "run", "--ttl", "2s", "-w", "1500ms", "job", "--", "true"]);
    let tame = "guard=on?[31m??2026-01-01T00:00:00Z forged??1m";
    let (logged, said): (Vec<_>, Vec<_>) = ended.err.lines().partition(|line| !line.starts_with("tenure: "));
    assert!(logged.iter().any(|line| line.contains("a claim failed") && line.contains(tame)), "{ended:?}");
    assert!(said.len() == 1 && said[0].contains(tame), "{ended:?}");
    assert!(logged.iter().all(|line| line.starts_with("20") && !line.starts_with("2026-01-01")), "{ended:?}");
    let acts = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
    assert!(!ended.err.contains(acts), "{ended:?}");
}

/// Help and version go to the standard output and are no errors.
#[test]
fn help_and_version_are_no_errors() {
    let stage = Stage::new();
    for arguments in [
        &["--help"][..],
        &["-h"],
        &["run", "--help"],
        &["help", "show"],
        &["bench", "--help"],
        &["--version"],
    ] {
        let ended = stage.run(arguments);
        ended.silent(0);
        assert!(!ended.out.is_empty(), "{arguments:?}");
    }
    let kind = if cfg!(debug_assertions) { " (unoptimised build)" } else { "" };
    assert_eq!(stage.run(&["--version"]).out, format!("tenure {}{kind}\n", env!("CARGO_PKG_VERSION")));
}

/// A reader that has seen enough is no error.
#[test]
fn a_closed_standard_output_is_no_error() {
    let stage = Stage::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    for verb in ["completions bash", "--help", "ls --json", "show job --json", "doctor", "doctor --json"] {
        let pipe = format!("{{ {tenure} {verb}; echo $? >code; }} | true");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &pipe]).current_dir(stage.path("")).env("HOME", stage.path(""));
        stage.run_command(command).silent(0);
        assert_eq!(stage.number::<i32>("code"), 0, "{verb}");
    }
}

//! Bad names, durations and URLs: one line, the right code, and nothing changed.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use tenure_testkit::patience::eventually;

use crate::stage::{PATIENCE, Stage};

/// Every verb that takes a name, with a place for it.
fn with_name(name: &str) -> Vec<Vec<&str>> {
    const OWNER: &str = "000000000000000000000000000000000000000000000000";
    vec![
        vec!["run", name, "--", "touch", "ran"],
        vec!["run", "-n", name, "touch", "ran"],
        vec!["show", name],
        vec!["break", name],
        vec!["lock", name, "--ttl", "5s"],
        vec!["renew", name, OWNER, "--ttl", "5s"],
        vec!["unlock", name, OWNER],
    ]
}

/// A name is text of 1 to 512 bytes without control characters; every verb says so, and does nothing.
#[test]
fn bad_names_are_refused_by_every_verb() {
    let stage = Stage::new();
    let (long, wide) = ("n".repeat(513), "é".repeat(257));
    for (name, part) in [
        ("", "must not be empty"),
        (&long[..], "at most 512 bytes; this one has 513"),
        (&wide[..], "at most 512 bytes; this one has 514"),
        ("two\nlines", "control characters"),
        ("two\n\nlines", "control characters"),
        ("tab\t", "control characters"),
        ("\x1b[31mred", "control characters"),
        ("bell\x07", "control characters"),
        ("del\x7f", "control characters"),
        ("c1\u{85}", "control characters"),
    ] {
        for arguments in with_name(name) {
            stage.run(&arguments).complained(64, part);
        }
    }
    assert!(!stage.path("ran").exists() && !stage.database().exists());
}

/// What is no text is no name.
#[test]
fn a_name_that_is_not_utf_8_is_refused() {
    let stage = Stage::new();
    let mut command = stage.command(&["run"]);
    command.arg(OsStr::from_bytes(b"\xff\xfe")).args(["--", "touch", "ran"]);
    stage.run_command(command).complained(64, "UTF-8");
    assert!(!stage.path("ran").exists());
}

/// What is allowed is taken as it is, and shown as it is.
#[test]
fn strange_names_are_names() {
    let stage = Stage::new();
    let long = "n".repeat(512);
    let names =
        [&long[..], " ", "../../etc/passwd", "a'b\"c;DROP TABLE lock", "%_*?[", "ünïcödé 🔒", "--", "-n"];
    for name in names {
        stage.run(&["run", "--", name, "true"]).silent(0);
        assert_eq!(stage.json(&["show", "--", name])["name"], *name);
    }
}

/// Arguments of the command need not be text.
#[test]
fn arguments_of_the_command_may_be_any_bytes() {
    let stage = Stage::new();
    let mut command = stage.command(&["run", "job", "--", "touch"]);
    command.arg(OsStr::from_bytes(b"\xff\n\x01"));
    stage.run_command(command).silent(0);
    assert!(stage.path("").join(OsStr::from_bytes(b"\xff\n\x01")).exists());
}

/// Hazard 40: zero, negative, too short, too long, huge.
#[test]
fn bad_ttls_are_refused_by_every_verb() {
    let stage = Stage::new();
    let owner = "0".repeat(48);
    let outside = "a ttl must be between 100ms and 24h";
    let no_duration = "write a duration like 500ms, 30s or 5m";
    for (ttl, part) in [
        ("0", outside),
        ("0s", outside),
        ("99ms", outside),
        ("24h 1ms", outside),
        ("300000y", outside),
        ("-5s", no_duration),
        ("5", no_duration),
        ("", no_duration),
        ("NaN", no_duration),
        ("1e9s", no_duration),
        ("99999999999999999999999999s", no_duration),
        ("5 s\x1b[31m", no_duration),
    ] {
        stage.run(&["run", "--ttl", ttl, "job", "--", "touch", "ran"]).complained(64, part);
        stage.run(&["lock", "job", "--ttl", ttl]).complained(64, part);
        stage.run(&["renew", "job", &owner, "--ttl", ttl]).complained(64, part);
    }
    assert!(!stage.path("ran").exists() && !stage.database().exists());
    for ttl in ["24h", "1d"] {
        stage.run(&["run", "--ttl", ttl, "job", "--", "true"]).silent(0);
    }
    // It is accepted; whether so short a lease lasts until the command has ended is a matter of the machine.
    let shortest = stage.run(&["run", "--ttl", "100ms", "job", "--", "true"]);
    assert_ne!(shortest.code, 64, "{shortest:?}");
}

/// However long somebody wants to wait or to hold, the clock does not overflow.
#[test]
fn huge_durations_do_no_harm() {
    let stage = Stage::new();
    let huge = "500000000000y";
    stage.run(&["run", "-w", huge, "job", "--", "true"]).silent(0);
    stage.run(&["run", "--max-hold", huge, "job", "--", "true"]).silent(0);
    stage.run(&["run", "--ttl", "24h", "--max-hold", huge, "job", "--", "true"]).silent(0);
    let holder = stage.start(&["run", "--min-hold", huge, "job", "--", "sh", "-c", "echo >ended"]);
    stage.has_lines("ended", 1);
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    holder.signal(nix::sys::signal::Signal::SIGINT);
    eventually("the hold is said", PATIENCE, || holder.said().contains("by --min-hold").then_some(()));
    holder.signal(nix::sys::signal::Signal::SIGINT);
    holder.ended().complained(0, "job: held for another ");
}

/// The known schemes are named.
#[test]
fn an_unknown_scheme_is_refused_and_the_known_are_named() {
    let stage = Stage::new();
    for (url, part) in [
        ("foo://host/x", "unknown URL scheme; use one of: sqlite:PATH"),
        ("SQLITE:x.db", "unknown URL scheme"),
        ("locks.db", "a URL without a scheme"),
        ("", "a URL without a scheme"),
        (":", "a URL without a scheme"),
        ("sqlite:", "needs the path of a file"),
        ("sqlite::memory:", "needs the path of a file"),
        ("sqlite:/no/x.db?nope=1", "does not know parameter 1"),
        ("sqlite:/no/x.db?claim_ttl=soon", "claim_ttl= is no duration"),
        ("sqlite:/no/x.db?claim_ttl=1ms", "outside"),
        ("memory:", "memory: store ends with this process"),
        ("memory://x", "memory: store ends with this process"),
    ] {
        for arguments in
            [&["run", "job", "--", "touch", "ran"][..], &["ls"], &["show", "job"], &["break", "job"]]
        {
            stage.run(&[&["--url", url], arguments].concat()).complained(64, part);
        }
        // A variable that is empty is unset.
        if url.is_empty() {
            continue;
        }
        let mut command = stage.command(&["run", "job", "--", "touch", "ran"]);
        command.env("TENURE_URL", url);
        stage.run_command(command).complained(64, part);
    }
    assert!(!stage.path("ran").exists() && !stage.path("x.db").exists() && !stage.database().exists());
}

/// Secrets never appear in output, however much of it was asked for.
#[test]
fn no_part_of_a_url_that_may_be_a_secret_is_shown() {
    let stage = Stage::new();
    for url in [
        "foo://user:hunter2@host/db",
        "foo://host/db?password=hunter2",
        "sqlite:x.db?password=hunter2",
        "memory://user:hunter2@host",
        "//user:hunter2@host",
    ] {
        for arguments in [&["-vv", "run", "job", "--", "true"][..], &["ls"], &["--help"], &["lock", "job"]] {
            let mut command = stage.command(arguments);
            command.env("TENURE_URL", url);
            let by_variable = stage.run_command(command);
            let by_flag = stage.run(&[arguments, &["--url", url]].concat());
            for ended in [by_variable, by_flag] {
                assert!(!format!("{ended:?}").contains("hunter2"), "{url}: {ended:?}");
            }
        }
    }
}

/// A URL that stands where none belongs is not repeated. Once the part of a password behind a blank was.
#[test]
fn a_url_in_the_wrong_place_is_not_repeated() {
    let stage = Stage::new();
    for arguments in [
        &["run", "--ttl", "redis://user:a hunter2 b@host", "job", "--", "true"][..],
        &["unlock", "job", "redis://:a' hunter2@host"],
        &["ls", "redis://:a hunter2@host", "redis://:a hunter2@host"],
    ] {
        let ended = stage.run(arguments);
        assert_eq!(ended.code, 64, "{ended:?}");
        let said = format!("{ended:?}");
        assert!(said.contains("redis://…") && !said.contains("hunter2"), "{ended:?}");
    }
}

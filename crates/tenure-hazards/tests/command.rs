//! The command: flags, exit codes, and what it writes.

#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

use std::{
    fs,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tenure_testkit::redis::{Recipe, RedisServer};

fn hazards(args: &[&str]) -> Output {
    run(Command::new(env!("CARGO_BIN_EXE_tenure-hazards")).args(args))
}

fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

fn error(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn list(output: &Output) -> Vec<Value> {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn what_cannot_be_meant_is_a_usage_error() {
    for (args, words) in [
        (&["--only", "22"][..], "there are 1 to 21"),
        (&["--only", "x"], "invalid value 'x'"),
        (&["--url", "postgres://a/b"], "only a Redis server"),
        (&["--nonsense"], "unexpected argument"),
    ] {
        let output = hazards(args);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(error(&output).contains(words), "{args:?}: {}", error(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn without_its_program_a_scene_says_what_to_install_and_the_others_are_played() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-hazards"));
    let output = run(command.args(["--json", "--only", "1", "--only", "17"]).env("PATH", "/nonexistent"));
    assert_eq!(output.status.code(), Some(69), "{}", error(&output));
    let scenes = list(&output);
    assert_eq!(scenes[0]["naive"]["verdict"], "not played");
    assert!(scenes[0]["naive"]["what"].as_str().unwrap().contains("apt-get install redis-server"));
    let verdicts = [&scenes[1]["naive"], &scenes[1]["tenure"]].map(|half| half["verdict"].clone());
    assert_eq!(verdicts, ["harmed", "safe"]);
}

#[test]
fn the_page_is_one_file_that_fetches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (page, pictures) = (folder.path().join("page.html"), folder.path().join("pictures"));
    let [file, folder] = [&page, &pictures].map(|path| path.to_str().unwrap().to_owned());
    let output = hazards(&["--json", "--only", "17", "--html", &file, "--pictures", &folder]);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let page = fs::read_to_string(page).unwrap();
    for word in ["<script", "src=", "@import", "url(", "<link"] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.matches("<svg").count() == 2 && page.contains("SELECT amount FROM stock"));
    assert!(pictures.join("17-naive.svg").is_file() && pictures.join("17-tenure.svg").is_file());
    let compared = hazards(&["--json", "--only", "17", "--compare", &folder]);
    assert_eq!(compared.status.code(), Some(0), "{}", error(&compared));
    fs::write(pictures.join("17-naive.svg"), "<svg><text class='line'>another story</text></svg>").unwrap();
    let compared = hazards(&["--json", "--only", "17", "--compare", &folder]);
    assert_eq!(compared.status.code(), Some(1));
    assert!(
        error(&compared).contains("17-naive.svg: was told, and is not: another story"),
        "{}",
        error(&compared)
    );
}

#[test]
fn a_given_server_is_written_to_only_after_a_yes_and_nothing_of_a_scheme_stays() {
    let server = Recipe::new().login("default", "seesaw").config("requirepass seesaw").start();
    // The leases of a scene are no longer, on the busiest machine.
    let url = format!("redis://:seesaw@{}/?max_ttl=3s", server.address());
    let refused = hazards(&["--url", &url, "--only", "1"]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(error(&refused).contains("--yes"), "{}", error(&refused));
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);

    let played = hazards(&["--url", &url, "--yes", "--json", "--only", "1", "--only", "2"]);
    assert_eq!(played.status.code(), Some(0), "{} {:?}", error(&played), list(&played));
    assert_eq!(keys(&server), 0);
    let shown =
        [&played.stdout, &played.stderr].map(|bytes| String::from_utf8_lossy(bytes).contains("seesaw"));
    assert_eq!(shown, [false, false], "a password is shown");
}

/// Locks that are left.
fn keys(server: &RedisServer) -> usize {
    server.command(&["KEYS", "tenure-hazards:*"]).list().len()
}

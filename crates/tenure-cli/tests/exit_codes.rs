//! Exit codes are a contract: one test per row of the table in `exit.rs`.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::Stdio,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tenure_testkit::patience::eventually;

use crate::stage::{self, PATIENCE, Stage, assert_within, files::HOLD};

/// Its own code, or 128 and the signal that ended it.
///
/// A signal without a name of its own, as the real-time ones are, was 70 once: the library that read the status knew no such
/// signal, and answered with an error.
fn the_commands_own_code_is_the_code(stage: &Stage) {
    let cases = [("exit 0", 0), ("exit 3", 3), ("exit 255", 255)];
    let signals = [("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -35 $$", 163), ("kill -64 $$", 192)];
    for (script, code) in cases.into_iter().chain(signals) {
        stage.run(&["run", "job", "--", "sh", "-c", script]).silent(code);
    }
    assert_eq!(stage.show("job")["holders"].as_array().unwrap().len(), 0, "all of them gave it back");
}

/// As `flock` does, and the line names the holder.
fn a_conflict_is_one_or_what_was_asked_for(stage: &Stage) {
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let who = format!("pid {} sh since", holder.pid());
    let waits = stage.start(&["run", "-w", &longer_than_silent(), "-E", "75", "job", "--", "touch", "ran"]);
    for (arguments, code) in [
        (&["run", "-n"][..], 1),
        (&["run", "-n", "-E", "5"], 5),
        (&["run", "-n", "--conflict-exit-code", "0"], 0),
        (&["run", "-w", "0s"], 1),
    ] {
        stage.run(&[arguments, &["job", "--", "touch", "ran"]].concat()).complained(code, &who);
    }
    stage.run(&["run", "-q", "-n", "job", "--", "touch", "ran"]).silent(1);
    waits.ended().complained(75, &who);
    assert!(!stage.path("ran").exists());
    stage.touch("go");
    holder.ended().silent(0);
}

/// The same for leases of scripts.
fn a_conflict_of_leases_is_one_or_what_was_asked_for(stage: &Stage) {
    stage.run(&["lock", "job", "--ttl", "1h"]).silent(0);
    let who = format!("pid {} ", std::process::id());
    let waits = stage.start(&["lock", "job", "--ttl", "5s", "-w", &longer_than_silent(), "-E", "75"]);
    stage.run(&["lock", "job", "--ttl", "5s", "-w", "0s"]).complained(1, &who);
    waits.ended().complained(75, &who);
}

/// A wait in which the slowest store answers on a busy machine: or the line is that it does not.
fn longer_than_silent() -> String {
    stage::scaled_ttl(Duration::from_secs(3)).1
}

/// A wait lasts as long as was asked, no shorter and not much longer.
fn a_wait_lasts_as_long_as_was_asked(stage: &Stage) {
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let (wait, text) = stage::scaled_ttl(Duration::from_secs(2));
    let came = Instant::now();
    stage.run(&["run", "-w", &text, "job", "--", "true"]).complained(1, "held by");
    assert!(came.elapsed() >= wait, "{:?}", came.elapsed());
    assert_within(wait + stage::START, came.elapsed(), "a wait of 2 s");
    assert!(stage.queue("job").is_empty());
    stage.touch("go");
    holder.ended().silent(0);
}

const USAGE: &[(&[&str], &str)] = &[
    (&[], "a command is missing"),
    (&["frobnicate"], "unrecognized subcommand 'frobnicate'"),
    (&["run"], "<NAME>"),
    (&["run", "job"], "<COMMAND>"),
    (&["run", "job", "--"], "<COMMAND>"),
    (&["run", "-n", "-w", "1s", "job", "--", "true"], "cannot be used with"),
    (&["run", "-s", "--slots", "2", "job", "--", "true"], "cannot be used with"),
    (&["run", "--slots", "0", "job", "--", "true"], "'--slots <N>'"),
    (&["run", "--slots", "-1", "job", "--", "true"], "'-1'"),
    (&["run", "--slots", "many", "job", "--", "true"], "'--slots <N>'"),
    (&["run", "--slots", "4294967296", "job", "--", "true"], "'--slots <N>'"),
    (&["run", "--take", "2", "job", "--", "true"], "were not provided: --slots <N>"),
    (&["run", "--slots", "3", "--take", "0", "job", "--", "true"], "'--take <N>'"),
    (&["run", "--slots", "3", "--take", "4", "job", "--", "true"], "--take 4: there are 3 slots"),
    (&["lock", "--slots", "3", "--take", "4", "--ttl", "1m", "job"], "--take 4: there are 3 slots"),
    (&["run", "-w", "soon", "job", "--", "true"], "write a duration like 500ms, 30s or 5m"),
    (&["run", "-w", "5", "job", "--", "true"], "write a duration like"),
    (&["run", "-w", "-5s", "job", "--", "true"], "write a duration like"),
    (&["run", "--min-hold", "-5s", "job", "--", "true"], "write a duration like"),
    (&["run", "--max-hold", "long", "job", "--", "true"], "write a duration like"),
    (&["run", "--ttl", "9s", "--grace", "3001ms", "job", "--", "true"], "more than a third of the ttl"),
    (&["run", "--grace", "-1s", "job", "--", "true"], "write a duration like"),
    (&["run", "-E", "256", "job", "--", "true"], "'--conflict-exit-code <CODE>'"),
    (&["run", "-E", "-1", "job", "--", "true"], "'-1'"),
    (&["run", "--lost-exit-code", "x", "job", "--", "true"], "'--lost-exit-code <CODE>'"),
    (&["run", "--no-such-flag", "job", "--", "true"], "'--no-such-flag'"),
    (&["show"], "<NAME>"),
    (&["show", "one", "two"], "'two'"),
    (&["break"], "<NAME>"),
    (&["ls", "one", "two"], "'two'"),
    (&["doctor", "job"], "'job'"),
    (&["bench", "job"], "'job'"),
    (&["bench", "--duration", "soon"], "write a duration like"),
    (&["bench", "--duration", "0s"], "between 10ms and 24h"),
    (&["bench", "--duration", "300000years"], "between 10ms and 24h"),
    (&["bench", "--waiters", "1"], "'--waiters <N>'"),
    (&["bench", "--waiters", "513"], "'--waiters <N>'"),
    (&["lock", "job"], "--ttl <DUR>"),
    (&["renew", "job", "not-an-owner", "--ttl", "5s"], "48 hex digits"),
    (&["renew", "job", "--ttl", "5s"], "<OWNER>"),
    (&["unlock", "job"], "<OWNER>"),
    (&["unlock", "job", ""], "48 hex digits"),
    (&["completions", "klingon"], "'klingon'"),
    (&["completions"], "<SHELL>"),
];

/// Each in one line, and nothing is run or written.
fn wrong_usage_is_64(stage: &Stage) {
    for (arguments, part) in USAGE {
        stage.run(arguments).complained(64, part);
    }
    assert!(!stage.database().exists(), "no store was made for any of it");
}

/// A third of the ttl is still right.
fn a_grace_of_a_third_of_the_ttl_is_right(stage: &Stage) {
    stage.run(&["run", "--ttl", "9s", "--grace", "3s", "job", "--", "true"]).silent(0);
    stage.run(&["run", "--ttl", "9s", "--grace", "0s", "job", "--", "true"]).silent(0);
}

/// A store that is not there is 69, for every verb that needs one.
fn a_store_that_cannot_be_made_is_69(stage: &Stage) {
    let owner = "0".repeat(48);
    for arguments in [
        &["run", "-n", "job", "--", "touch", "ran"][..],
        &["run", "-w", "200ms", "job", "--", "touch", "ran"],
        &["lock", "job", "--ttl", "5s", "-w", "200ms"],
        &["break", "job"],
    ] {
        let arguments = [&["--url", "sqlite:no/such/folder/locks.db"], arguments].concat();
        stage.run(&arguments).complained(69, "its directory must exist");
    }
    // Where there is no store, there is no lock: reading and leaving need not make one.
    stage
        .run(&["--url", "sqlite:no/such/folder/locks.db", "unlock", "job", &owner])
        .complained(79, "has ended");
    assert!(!stage.path("ran").exists() && !stage.path("no").exists());
}

/// 126 and 127, as a shell says it; the lock was given back.
fn a_command_that_cannot_be_run_is_126_or_127(stage: &Stage) {
    fs::write(stage.path("data"), "no program").unwrap();
    fs::set_permissions(stage.path("data"), fs::Permissions::from_mode(0o644)).unwrap();
    stage.run(&["run", "job", "--", "./data"]).complained(126, "./data: ");
    stage.run(&["run", "job", "--", "/"]).complained(126, "/: ");
    stage.run(&["run", "job", "--", "no-such-program"]).complained(127, "no-such-program: not found");
    stage.run(&["run", "job", "--", "./no/such/program"]).complained(127, "not found");
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// Lost is 79, or what was asked for.
fn a_lost_lease_is_79_or_what_was_asked_for(stage: &Stage) {
    for (arguments, code) in [(&["run"][..], 79), (&["run", "--lost-exit-code", "7"], 7)] {
        let holder = stage.start(&[arguments, &["job", "--", "sh", "-c", HOLD, "holder"]].concat());
        stage.beats("holder");
        stage.run(&["break", "job"]).silent(0);
        holder.ended().complained(code, "job: the lease was lost");
        fs::remove_file(stage.path("beats")).unwrap();
    }
}

/// L8: a signal ends a wait, and the next in the queue never knows that somebody stood there.
fn a_signal_while_waiting_leaves_no_waiter_behind(stage: &Stage) {
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        signal_to_a_waiter(stage, &["run", "job", "--", "touch", "ran"], signal, code);
    }
    assert!(!stage.path("ran").exists());
    stage.touch("go");
    holder.ended().silent(0);
}

/// L8: the same for leases of scripts.
fn a_signal_while_waiting_for_a_lease_leaves_no_waiter_behind(stage: &Stage) {
    stage.run(&["lock", "job", "--ttl", "1h"]).silent(0);
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        signal_to_a_waiter(stage, &["lock", "job", "--ttl", "5s"], signal, code);
    }
}

fn signal_to_a_waiter(stage: &Stage, verb: &[&str], signal: Signal, code: i32) {
    let waiter = stage.start(verb);
    eventually("somebody waits", PATIENCE, || (!stage.queue("job").is_empty()).then_some(()));
    waiter.signal(signal);
    waiter.ended().silent(code);
    assert!(stage.queue("job").is_empty(), "after {signal}");
}

/// Who is started with a signal ignored, as by `&` in a script, leaves it so. Once only HUP was: INT and TERM were listened to,
/// so that they ended a command that was meant to be deaf to them.
fn a_signal_that_was_ignored_stays_ignored(stage: &Stage) {
    let mut shell = stage.program("sh");
    let script = "trap '' INT TERM HUP; exec \"$0\" run job -- sh -c \"$1\" holder";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_tenure"), HOLD]);
    let holder = stage.start_command(shell);
    stage.beats("holder");
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        holder.signal(signal);
        stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    }
    stage.touch("go");
    holder.ended().silent(0);
}

/// L8: where the system gives no more, here of open files, a command runs with all that watches over it or not at all, and the
/// lock is given back. Once a missing watcher was a warning only.
#[test]
fn a_command_that_cannot_be_watched_is_not_started() {
    let stage = Stage::new();
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let mut refused = 0;
    for files in 8..30 {
        let mut shell = stage.program("sh");
        let script = format!("ulimit -n {files}; exec \"$0\" run -w 1s job -- sh -c 'echo {files} >>ran'");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_tenure")]);
        let (before, ended) = (stage.lines("ran").len(), stage.run_command(shell));
        let ran = stage.lines("ran").len() - before;
        match ended.code {
            0 => assert_eq!((ran, ended.err.as_str()), (1, ""), "with {files} files"),
            69 | 70 => assert_eq!(ran, 0, "with {files} files: {ended:?}"),
            _ => panic!("with {files} files: {ended:?}"),
        }
        refused += usize::from(ended.code == 70);
        stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
    }
    assert!(refused > 0 && !stage.lines("ran").is_empty(), "both happened");
}

/// Where no file can be opened, the library beneath panicked and said so in three lines, with a path of whoever built it.
#[test]
fn without_a_single_file_to_open_one_line_says_so() {
    let stage = Stage::new();
    for files in 3..12 {
        let mut shell = stage.program("sh");
        let script = format!("ulimit -n {files}; exec \"$0\" ls");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_tenure")]);
        let ended = stage.run_command(shell);
        // The loader of programs gives up before us: 127.
        assert!([0, 69, 70, 127].contains(&ended.code), "with {files} files: {ended:?}");
        if ended.code == 70 {
            ended.complained(70, "open files");
        }
    }
}

/// Whatever is asked for and cannot be printed was 0: a script took a full disk for an empty store. A reader that has seen
/// enough is another thing.
#[test]
fn a_standard_output_that_is_full_is_70_and_one_that_is_closed_is_not() {
    let stage = Stage::new();
    stage.run(&["lock", "job", "--ttl", "1h"]);
    let printing = |verb: &str, out: Stdio| {
        let words: Vec<&str> = verb.split(' ').collect();
        let output = stage.command(&words).stdout(out).stderr(Stdio::piped()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), err)
    };
    for verb in [
        "ls",
        "ls --json",
        "show job",
        "show job --json",
        "doctor",
        "doctor --json",
        "bench --duration 10ms",
        "bench --duration 10ms --json",
        "break job",
        "break other",
        "completions bash",
        "--help",
        "--version",
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let line = "cannot write to the standard output: No space left on device (os error 28) [exit 70]\n";
        // What was done is done.
        let done = verb.strip_prefix("break ").map(|name| format!("{name}: the lock was broken, but "));
        let line = format!("tenure: {}{line}", done.unwrap_or_default());
        assert_eq!(printing(verb, full.into()), (70, line), "{verb}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(printing(verb, writer.into()), (0, String::new()), "{verb}");
    }
}

/// Where a lease is a session, no script can keep it, and none gets one.
fn a_lease_for_scripts_is_refused_where_it_would_end_with_the_process(stage: &Stage) {
    let owner = "0".repeat(48);
    for arguments in [&["lock", "job", "--ttl", "5s"][..], &["renew", "job", &owner, "--ttl", "5s"]] {
        stage.run(arguments).complained(64, "so a script cannot keep it; use `tenure run`");
    }
    assert!(stage.show("job")["holders"].as_array().unwrap().is_empty());
    stage.run(&["unlock", "job", &owner]).complained(79, "has ended");
}

#[test]
fn a_lease_of_zookeeper_is_refused_to_scripts() {
    a_lease_for_scripts_is_refused_where_it_would_end_with_the_process(&Stage::on_zookeeper());
}

stage::on_every_store!(
    the_commands_own_code_is_the_code,
    a_conflict_is_one_or_what_was_asked_for,
    a_wait_lasts_as_long_as_was_asked,
    wrong_usage_is_64,
    a_grace_of_a_third_of_the_ttl_is_right,
    a_store_that_cannot_be_made_is_69,
    a_command_that_cannot_be_run_is_126_or_127,
    a_lost_lease_is_79_or_what_was_asked_for,
    a_signal_while_waiting_leaves_no_waiter_behind,
    a_signal_that_was_ignored_stays_ignored;
    but_sessions:
    a_conflict_of_leases_is_one_or_what_was_asked_for,
    a_signal_while_waiting_for_a_lease_leaves_no_waiter_behind,
);

//! `watch`: JSON lines in a pipe, a table on a terminal.

#![cfg(target_os = "linux")]

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::Value;
use tenure::blocking::connect;
use tenure_testkit::{
    patience::{eventually, slowness},
    redis::RedisServer,
};

use crate::screen::Screen;
use crate::stage::{self, PATIENCE, Process, Stage, files::HOLD};

const PERIOD: Duration = Duration::from_secs(1);

/// What a watch has printed by now, a whole line at a time.
fn seen(watch: &Process) -> Vec<Value> {
    let text = watch.printed();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits for a line about this lock that shows so many holders and waiters, after the first `from` lines.
fn shows(watch: &Process, name: &str, crowd: (usize, usize), from: usize) -> usize {
    let size = |list: &Value| list.as_array().unwrap().len();
    eventually(&format!("{name} is shown with {crowd:?}"), PATIENCE, || {
        let lines = seen(watch);
        let is_it =
            |view: &Value| view["name"] == name && (size(&view["holders"]), size(&view["queue"])) == crowd;
        (from..lines.len()).find(|&at| is_it(&lines[at])).map(|at| at + 1)
    })
}

/// Each change, in order, in the shape of `show --json`, and no line without one; a signal ends it.
fn changes_are_lines_of_json(stage: &Stage) {
    stage.run(&["run", "job/1", "--", "true"]).silent(0);
    let watch = stage.start(&["watch", "-q", "job/"]);
    let holder = stage.start(&["run", "job/1", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let at = shows(&watch, "job/1", (1, 0), 0);
    let other = stage.start(&["run", "other", "--", "sh", "-c", HOLD, "other"]);
    stage.beats("other");
    let waiter = stage.start_waiter("job/1", &["run", "job/1", "--", "true"]);
    let at = shows(&watch, "job/1", (1, 1), at);
    assert_eq!(seen(&watch)[at - 1]["holders"][0]["owner"], stage.show("job/1")["holders"][0]["owner"]);
    stage.touch("go");
    for process in [holder, waiter, other] {
        process.ended().silent(0);
    }
    let at = shows(&watch, "job/1", (0, 0), at);
    let lines = seen(&watch);
    assert!(lines.iter().all(|view| view["name"] == "job/1"), "{lines:?}");
    assert_eq!(lines.len(), at, "nothing has changed since");
    watch.signal(Signal::SIGTERM);
    assert_eq!(watch.ended().code, 143);
}

/// Some stores count the tokens of all locks together: a lock that did not change was reported in each look.
fn a_lock_that_did_not_change_is_not_reported(stage: &Stage) {
    let holder = stage.start(&["run", "still", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let watch = stage.start(&["watch", "-q"]);
    shows(&watch, "still", (1, 0), 0);
    // Where an answer takes long, `bench` complains.
    let bench = ["bench", "-q", "--duration", "500ms", "--waiters", "2"];
    eventually("others were granted", PATIENCE, || (stage.run(&bench).code == 0).then_some(()));
    let mark = stage.start(&["run", "mark", "--", "sh", "-c", HOLD, "mark"]);
    shows(&watch, "mark", (1, 0), 0);
    let lines = seen(&watch);
    assert_eq!(lines.iter().filter(|view| view["name"] == "still").count(), 1, "{lines:?}");
    stage.touch("go");
    for process in [holder, mark] {
        process.ended().silent(0);
    }
}

/// L8: nothing of it is in the store; and what a reader that has gone does not see is no failure.
#[test]
fn a_reader_that_has_gone_ends_it() {
    let stage = Stage::new();
    stage.run(&["lock", "job", "--ttl", "1h"]).silent(0);
    let program = env!("CARGO_BIN_EXE_tenure");
    let script = format!(
        "{program} watch | head -1 >first & sleep 0.2; until [ -s first ]; do sleep 0.05; done; \
                          {program} break job >/dev/null; wait"
    );
    let mut command = stage.program("sh");
    command.args(["-c", &script]);
    assert_eq!(stage.run_command(command).code, 0);
    assert!(stage.lines("first")[0].contains("\"job\""));
}

/// One that sees no change noticed that its reader had gone only at the next one.
#[test]
fn a_reader_that_has_gone_ends_it_without_a_change() {
    let stage = Stage::new();
    stage.run(&["lock", "job", "--ttl", "1h"]).silent(0);
    let mut command = stage.program("sh");
    let script = format!("{{ {} watch; echo $? >ended; }} | head -1 >first", env!("CARGO_BIN_EXE_tenure"));
    command.args(["-c", &script]);
    assert_eq!(stage.run_command(command).code, 0);
    assert_eq!((stage.lines("first").len(), stage.lines("ended")), (1, vec!["0".to_owned()]));
}

/// A table that is drawn anew where it stands, with the time that is left; Ctrl-C ends it.
#[test]
fn on_a_terminal_it_is_a_live_table() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let mut screen = Screen::start(&stage, &[env!("CARGO_BIN_EXE_tenure"), "watch"]);
    screen.sees("1 locks in sqlite:");
    screen.sees("NAME");
    screen.sees("job");
    screen.sees("\x1b[H");
    stage.touch("go");
    holder.ended().silent(0);
    screen.sees("0 locks in");
    screen.types("\x03");
    assert_eq!(screen.ended(), 130);
    let mut json = Screen::start(&stage, &[env!("CARGO_BIN_EXE_tenure"), "watch", "--json"]);
    stage.run(&["lock", "job", "--ttl", "1h"]).silent(0);
    json.sees("{\"name\":\"job\"");
    assert!(!json.all().contains('\x1b'), "{}", json.all());
}

/// A store that is not there is said once, and given up in the end; one that cannot be used ends it at once.
#[test]
fn a_store_that_fails_is_said_and_asked_again() {
    let stage = Stage::at("redis://127.0.0.1:1/".to_owned());
    let watch = stage.start(&["watch"]);
    eventually("it says what is wrong", PATIENCE, || watch.said().contains("asking again").then_some(()));
    watch.signal(Signal::SIGINT);
    let ended = watch.ended();
    assert_eq!((ended.code, ended.err.lines().count()), (130, 1), "{ended:?}");
    let stage = Stage::new();
    fs::write(stage.path("no.db"), "this is no database, but a text that is long enough").unwrap();
    let ended = stage.run(&["watch", "--url", "sqlite:no.db"]);
    assert_eq!(ended.code, 69, "{ended:?}");
}

/// No change is missed that lasts longer than the period, and a thousand locks cost little: the store a few commands a second,
/// this machine a few per cent of a processor.
#[test]
fn a_thousand_locks_are_watched_and_no_change_is_missed() {
    const LOCKS: usize = 1000;
    let server = RedisServer::start();
    let url = server.url("?guard=off");
    let stage = Stage::at(url.clone());
    let locks = connect(&url).unwrap();
    let guards: Vec<_> = (0..LOCKS).map(|n| locks.mutex(format!("job/{n}")).acquire().unwrap()).collect();
    // What came over the wire, what was done for it, and the time that took, in seconds.
    let cost = || -> [f64; 3] {
        let text = server.command(&["INFO", "everything"]).text();
        let after =
            |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or("0").to_owned();
        let calls =
            |command: &str| after(&format!("cmdstat_{command}:calls=")).split(',').next().unwrap().to_owned();
        let sum = |texts: &[String]| texts.iter().map(|text| text.trim().parse::<f64>().unwrap()).sum();
        [
            sum(&["evalsha", "eval", "fcall", "scan"].map(calls)),
            sum(&[after("total_commands_processed:")]),
            sum(&["used_cpu_user:", "used_cpu_sys:"].map(after)),
        ]
    };
    let rate = |before: [f64; 3], began: Instant| {
        let (seconds, now) = (began.elapsed().as_secs_f64(), cost());
        [0, 1, 2].map(|what| (now[what] - before[what]) / seconds)
    };
    // What the holder's renewals cost, which is no matter of the watch.
    let (before, began) = (cost(), Instant::now());
    std::thread::sleep(4 * PERIOD);
    let renewals = rate(before, began);
    let watch = stage.start(&["watch", "-q", "job/"]);
    eventually("all are shown", PATIENCE, || (seen(&watch).len() >= LOCKS).then_some(()));
    let (before, cpu, began) = (cost(), processor_time(&watch), Instant::now());
    let mut token = guards[0].token();
    let mut guards = guards.into_iter();
    for _ in 0..5 {
        guards.next().unwrap().release().unwrap();
        let next = locks.mutex("job/0").acquire().unwrap();
        assert!(next.token() > token, "L2");
        token = next.token();
        let begun = Instant::now();
        eventually("it is shown", PATIENCE, || {
            let last = seen(&watch).into_iter().rev().find(|view| view["name"] == "job/0").unwrap();
            (last["holders"][0]["token"] == token.get()).then_some(())
        });
        let (took, longest) = (begun.elapsed(), PERIOD + PERIOD / 2 * slowness());
        assert!(took <= longest, "it lasted longer than a period: {took:?}");
        // What the watch costs is counted by the second.
        std::thread::sleep((PERIOD + PERIOD / 2).saturating_sub(took));
        guards = std::iter::once(next).chain(guards).collect::<Vec<_>>().into_iter();
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), processor_time(&watch) - cpu);
    let all = rate(before, began);
    let [requests, commands, server_cpu] = [0, 1, 2].map(|what| all[what] - renewals[what]);
    println!(
        "{LOCKS} locks: {requests:.1} requests per second, which are {commands:.0} commands in scripts; {:.1} % of a \
         processor for the watch, {:.1} % for the server",
        100.0 * cpu / seconds,
        100.0 * server_cpu
    );
    assert!(requests < 1.5 * LOCKS as f64, "once a second, one request for a lock, and the walk: {requests}");
    assert!(cpu / seconds < 0.5, "{cpu} s of a processor in {seconds} s");
    drop(guards);
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.ended().code, 130);
}

/// User and system time of a process, in seconds.
fn processor_time(process: &Process) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    // Behind the name, which may have blanks in it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // 100 ticks a second, as Linux shows them to every program.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

stage::on_every_store!(changes_are_lines_of_json, a_lock_that_did_not_change_is_not_reported);

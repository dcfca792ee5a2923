//! The command under the lock: what it finds, what reaches it, how long it may and must run.

#![cfg(target_os = "linux")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tenure_testkit::{
    clock::Clock,
    patience::{eventually, slowness},
};

use crate::stage::{self, PATIENCE, Stage, an_owner, assert_within, files::HOLD, process::state, scaled_ttl};

const SECOND: Duration = Duration::from_secs(1);

/// What an outer `tenure run` left in the environment does not reach the inner command.
#[test]
fn the_command_finds_its_own_lock_token_and_owner() {
    let stage = Stage::new();
    let say = "echo $TENURE_LOCK; echo $TENURE_TOKEN; echo $TENURE_OWNER; echo >started; until [ -e go ]; do sleep 0.05; done";
    let mut command = stage.command(&["run", "jobs/ä b", "--", "sh", "-c", say]);
    for variable in ["TENURE_LOCK", "TENURE_TOKEN", "TENURE_OWNER"] {
        command.env(variable, "inherited");
    }
    let holder = stage.start_command(command);
    stage.has_lines("started", 1);
    let view = stage.show("jobs/ä b");
    stage.touch("go");
    let ended = holder.ended();
    ended.silent(0);
    let held = &view["holders"][0];
    let expected =
        ["jobs/ä b".to_owned(), held["token"].to_string(), held["owner"].as_str().unwrap().to_owned()];
    assert_eq!(ended.out.lines().collect::<Vec<_>>(), expected);
}

/// An inner lock is another lock.
#[test]
fn a_command_may_take_another_lock() {
    let stage = Stage::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let inner = format!("echo $TENURE_LOCK; {tenure} run inner -- printenv TENURE_LOCK");
    let ended = stage.run(&["run", "outer", "--", "sh", "-c", &inner]);
    ended.silent(0);
    assert_eq!(ended.out, "outer\ninner\n");
}

/// Never a shell unless it was asked for.
#[test]
fn a_shell_comes_only_with_c() {
    let stage = Stage::new();
    stage.run(&["run", "job", "--", "exit 4"]).complained(127, "exit 4: not found");
    stage.run(&["run", "-c", "job", "exit 4"]).silent(4);
    let ended = stage.run(&["run", "-c", "job", "echo \"$0 $1\" | tr a-z A-Z", "zero", "one"]);
    assert_eq!((ended.code, ended.out.as_str()), (0, "ZERO ONE\n"));
    let ended = stage.run(&["run", "job", "echo", "-n", "--", "$HOME"]);
    assert_eq!((ended.code, ended.out.as_str()), (0, "-- $HOME"));
}

/// A label names the program, never its arguments nor what stands before it: they hold passwords.
#[test]
fn no_argument_of_the_command_is_shown_to_others() {
    let stage = Stage::new();
    let url = "postgres://joe:hunter2@db/x";
    let secret = format!("PASSWORD=hunter2 sh -c 'echo >started; sleep 60' {url}");
    let quoted = "'hunter2' 2>/dev/null; echo >started; sleep 60";
    let plain = format!("echo >started; sleep 60 # {url}");
    for (command, shown) in [
        (vec!["/bin/sh", "-c", "echo >started; sleep 60", url], "sh"),
        (vec!["-c", &secret], "sh"),
        (vec!["-c", quoted], "sh"),
        (vec!["-c", &plain], "echo"),
    ] {
        let (flags, argv) =
            if command[0] == "-c" { (&command[..1], &command[1..]) } else { (&[][..], &command[..]) };
        let holder = stage.start(&[&["run"], flags, &["job", "--"], argv].concat());
        stage.has_lines("started", 1);
        let shown_to_others = [
            stage.run(&["show", "job"]).out,
            stage.run(&["show", "job", "--json"]).out,
            stage.run(&["ls"]).out,
            stage.run(&["run", "-n", "job", "--", "true"]).err,
            String::from_utf8_lossy(&fs::read(stage.database()).unwrap()).into_owned(),
            stage.run(&["break", "job"]).out,
        ];
        assert!(shown_to_others.iter().all(|text| !text.contains("hunter2")), "{shown_to_others:#?}");
        assert!(
            shown_to_others[0].contains(&format!("pid {} {shown} since", holder.pid())),
            "{shown_to_others:#?}"
        );
        fs::remove_file(stage.path("started")).unwrap();
    }
}

/// Says that it is there, and that the signal `$2` came; then ends.
const LISTENER: &str =
    "exec 2>/dev/null; trap 'echo $1 >>$2; exit 1' $2; echo $1 >>beats; while :; do sleep 0.05; done";

/// A signal goes on to the whole group, and the command decides what becomes of it.
#[test]
fn signals_are_passed_on_to_the_whole_group() {
    for (signal, name) in [(Signal::SIGINT, "INT"), (Signal::SIGTERM, "TERM"), (Signal::SIGHUP, "HUP")] {
        let stage = Stage::new();
        fs::write(stage.path("listener"), LISTENER).unwrap();
        let family = format!(
            "trap 'echo leader >>{name}; exit 7' {name}; sh listener one {name} | sh listener two {name}"
        );
        let holder = stage.start(&["run", "job", "--", "sh", "-c", &family]);
        stage.has_lines("beats", 2);
        holder.signal(signal);
        holder.ended().silent(7);
        let mut heard = stage.lines(name);
        heard.sort();
        assert_eq!(heard, ["leader", "one", "two"], "{name}");
    }
}

/// The lock stays held until then, and the code is the command's all the same.
#[test]
fn min_hold_keeps_the_lock_after_a_short_command() {
    let stage = Stage::new();
    // Within it two more processes start.
    let min_hold = Duration::from_millis(800) * slowness();
    let text = format!("{}ms", min_hold.as_millis());
    let started = Instant::now();
    let holder = stage.start(&["run", "--min-hold", &text, "job", "--", "sh", "-c", "echo >started; exit 3"]);
    stage.has_lines("started", 1);
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    let waiter = stage.start(&["run", "job", "--", "true"]);
    holder.ended().silent(3);
    assert!(started.elapsed() >= min_hold, "{:?}", started.elapsed());
    waiter.ended().silent(0);
    assert_within(min_hold + stage::START, started.elapsed(), "the shortest hold");
}

/// A HUP, as of a terminal that is closed, ended it. Now a second signal does: the first one may have been for the command.
#[test]
fn a_second_signal_ends_min_hold() {
    for [first, second] in [
        [Signal::SIGHUP, Signal::SIGHUP],
        [Signal::SIGHUP, Signal::SIGTERM],
        [Signal::SIGINT, Signal::SIGINT],
        [Signal::SIGTERM, Signal::SIGHUP],
    ] {
        let stage = Stage::new();
        let mut holder = stage.start(&["run", "--min-hold", "1h", "job", "--", "sh", "-c", "echo $$ >ended"]);
        let pid = stage.number("ended");
        // Before, a HUP would be for the command.
        eventually("it is seen that the command has ended", PATIENCE, || (state(pid) == 'X').then_some(()));
        holder.signal(first);
        holder.runs_on(Duration::from_millis(300));
        stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
        holder.signal(second);
        holder.ended().complained(0, "job: held for another 59 min");
    }
}

/// One that came while the command ran, and was passed on to it, is the first.
#[test]
fn the_signal_that_ended_the_command_does_not_end_min_hold() {
    let stage = Stage::new();
    let script = &format!("echo $$ >pid.holder; {HOLD}");
    let min_hold = ["run", "--min-hold", "1h", "job", "--", "sh", "-c", script, "holder"];
    let mut holder = stage.start(&min_hold);
    stage.beats("holder");
    holder.signal(Signal::SIGTERM);
    stage.dies("pid.holder");
    holder.runs_on(Duration::from_millis(300));
    holder.signal(Signal::SIGTERM);
    holder.ended().complained(143, "by --min-hold; a second signal ends the hold");
}

/// A wall clock that was set forward, as a time service does, cut the shortest hold short: it counted by the earlier of two clocks, as
/// a belief in a lease does.
#[test]
fn a_step_of_the_wall_clock_does_not_shorten_min_hold() {
    let (stage, clock) = (Stage::new(), Clock::new());
    let mut command = stage.command(&[
        "run",
        "--ttl",
        "60s",
        "--min-hold",
        "20s",
        "job",
        "--",
        "sh",
        "-c",
        "echo $$ >ended",
    ]);
    command.envs(clock.env());
    let mut holder = stage.start_command(command);
    stage.dies("ended");
    // The lease outlives it.
    clock.step(30_000);
    holder.runs_on(Duration::from_secs(2));
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    holder.signal(Signal::SIGTERM);
    holder.runs_on(Duration::from_millis(100));
    holder.signal(Signal::SIGTERM);
    holder.ended().complained(0, "by --min-hold");
}

/// The same with the time that a command has after a break: the whole grace.
#[test]
fn a_step_of_the_wall_clock_does_not_shorten_the_grace_after_a_break() {
    let (stage, clock) = (Stage::new(), Clock::new());
    let slow =
        "exec 2>/dev/null; trap 'echo >told; until [ -e go ]; do sleep 0.05; done; echo >tidied; exit' TERM
        echo >started; while :; do sleep 0.05; done";
    let mut command =
        stage.command(&["run", "--ttl", "60s", "--grace", "19s", "job", "--", "sh", "-c", slow]);
    command.envs(clock.env());
    let mut holder = stage.start_command(command);
    stage.has_lines("started", 1);
    stage.run(&["-q", "break", "job"]).silent(0);
    stage.has_lines("told", 1);
    clock.step(30_000);
    holder.runs_on(Duration::from_millis(500));
    stage.touch("go");
    holder.ended().complained(79, "the lease was lost");
    assert!(stage.path("tidied").exists());
}

/// What a shell runs is the command's text, also if it looks like a flag: `sh` took it for one of its own.
#[test]
fn a_command_text_that_begins_with_a_dash_is_no_flag_of_the_shell() {
    let stage = Stage::new();
    for name in ["-run", "+run", "--"] {
        fs::write(stage.path(name), "#!/bin/sh\necho \"$*\" >>ran\n").unwrap();
        fs::set_permissions(stage.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", stage.path("").display());
    let owner = &*an_owner();
    stage.run(&["lock", "leased", "--ttl", "1h", "--owner", owner]).silent(0);
    for arguments in [
        &["run", "-c", "job", "--", "-run 1"][..],
        &["run", "-c", "job", "--", "+run 2"],
        &["run", "-c", "job", "--", "-- 3"],
        &["run", "-c", "--any", "a,b", "--", "-run 4"],
        &["lead", "-c", "job", "--", "-run 5"],
        &["attach", "-c", "leased", owner, "--", "-run 6"],
    ] {
        let mut command = stage.command(arguments);
        command.env("PATH", &path);
        stage.run_command(command).silent(0);
    }
    assert_eq!(stage.lines("ran"), ["1", "2", "3", "4", "5", "6"]);
}

/// Hazard 25: the command runs for as long as it may, is stopped, and that is a loss. It was stopped at once
/// where the time to stop it was longer than the time it had.
#[test]
fn max_hold_stops_the_command_then_and_not_before() {
    let stage = Stage::new();
    // Within it the command starts, and says what to do when it is stopped.
    let max_hold = Duration::from_millis(600) * slowness();
    let text = format!("{}ms", max_hold.as_millis());
    let stopped =
        "exec 2>/dev/null; trap 'echo >termed; exit 0' TERM; echo >started; while :; do sleep 0.05; done";
    let asked = Instant::now();
    let holder = stage.start(&["run", "--max-hold", &text, "job", "--", "sh", "-c", stopped]);
    stage.has_lines("started", 1);
    let started = Instant::now();
    let ended = holder.ended();
    assert!(asked.elapsed() >= max_hold, "{:?}", asked.elapsed());
    assert_within(max_hold + SECOND, started.elapsed(), "the longest hold");
    ended.complained(79, "--max-hold ");
    assert!(stage.path("termed").exists(), "it could tidy up");
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
    // A command that ends in time never hears of it.
    stage.run(&["run", "--max-hold", "1h", "job", "--", "sh", "-c", "exit 3"]).silent(3);
}

/// A program started by `tenure` finds its signals as any other parent would have left them.
#[test]
fn the_command_starts_with_the_signals_of_a_fresh_process() {
    let stage = Stage::new();
    let look = ["-E", "^Sig(Blk|Ign|Cgt):", "/proc/self/status"];
    let direct = std::process::Command::new("grep").args(look).output().unwrap();
    let ended = stage.run(&[&["run", "job", "--", "grep"], &look[..]].concat());
    ended.silent(0);
    assert_eq!(ended.out, String::from_utf8(direct.stdout).unwrap());
}

/// Two that hold different locks do not meet.
#[test]
fn other_locks_are_not_concerned() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    for name in ["jo", "job2", "JOB", "job/", "job ", "ĵob"] {
        stage.run(&["run", "-n", name, "--", "true"]).silent(0);
    }
    stage.touch("go");
    holder.ended().silent(0);
}

/// Who asks what went on is told at the end what to choose a ttl by; nobody else is.
#[test]
fn a_verbose_run_says_how_its_lease_went() {
    let stage = Stage::new();
    let (ttl, text) = scaled_ttl(Duration::from_secs(2));
    let run = |flags: &[&str], command: &[&str]| {
        let claim = ["run", "--ttl", &text, "job", "--"];
        stage.run(&[flags, &claim[..], command].concat()).err
    };
    let said = run(&["-v"], &["sleep", &(3 * ttl).as_secs_f64().to_string()]);
    for part in ["tenure: job: acquired after ", ": token ", "tenure: job: released\n"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let line = said.lines().find(|line| line.contains("job: waited")).unwrap_or_else(|| panic!("{said}"));
    let parts = ["tenure: job: waited ", " s, held ", " renewals, the slowest ", "; the ttl is "];
    assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    let renewals = line.split(" renewals").next().unwrap().rsplit(' ').next().unwrap();
    assert!(renewals.parse::<u32>().unwrap() >= 4, "every third of a ttl, for three: {line}");
    assert!(!run(&[], &["true"]).contains("waited"));
    assert_eq!(run(&["-v", "-q"], &["true"]), "");
}

/// A migration whose client was killed went on in the server while the next one ran.
#[test]
fn a_lock_lingers_after_a_command_that_did_not_end_well() {
    let stage = Stage::new();
    let run = |command: &str| {
        stage.run(&["run", "--ttl", "1s", "--linger", "1m", "job", "--", "sh", "-c", command])
    };
    let is_free = || stage.run(&["run", "-n", "job", "--", "true"]).code == 0;
    run("exit 0").silent(0);
    run("exit 7").silent(7);
    assert!(is_free(), "it ended by itself");
    run("kill -9 $$").complained(137, "the lock stays taken for 1 min (--linger)");
    let left = stage.show("job")["holders"][0]["expires_in_ms"].as_u64().unwrap();
    assert!(!is_free() && left > 30_000, "{left}");
    assert_eq!(stage.run(&["break", "job"]).code, 0);
    let stopped = ["run", "--max-hold", "300ms", "--linger", "1m", "job", "--", "sleep", "60"];
    let ended = stage.run(&stopped);
    assert!(ended.code == 79 && ended.err.contains("--max-hold 300ms reached"), "{ended:?}");
    assert!(!is_free());
    assert_eq!(stage.run(&["break", "job"]).code, 0);
    // It was asked to end, and failed. After HUP, as from a closed terminal, the lock was free.
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let command = format!("trap 'kill $!; exit 3' {}; echo >>up; sleep 60 & wait", &signal.as_str()[3..]);
        let asked = stage.start(&["run", "--linger", "1m", "job", "--", "sh", "-c", &command]);
        eventually("it runs", PATIENCE, || stage.path("up").exists().then_some(()));
        asked.signal(signal);
        assert_eq!(asked.ended().code, 3);
        assert!(!is_free(), "{signal}");
        assert_eq!(stage.run(&["break", "job"]).code, 0);
        fs::remove_file(stage.path("up")).unwrap();
    }
}

/// The store does not grant a lease that long.
#[test]
fn a_lock_that_cannot_linger_is_refused_before_anything_runs() {
    let mut stage = Stage::on_redis_with("?max_ttl=5s");
    stage
        .run(&["run", "--linger", "1m", "job", "--", "touch", "ran"])
        .complained(64, "--linger: redis accepts 5 s at most");
    // While a larger `max_ttl` is rolled out, the first grant tells the client.
    stage.run(&["-q", "run", "job", "--", "true"]).silent(0);
    let larger = stage.server().url("?max_ttl=2m");
    let rolled_out = ["--url", &larger, "run", "--linger", "1m", "job", "--", "touch", "ran"];
    stage.run(&rolled_out).complained(64, "job: --linger: this redis grants 5 s at most as yet");
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
    assert!(!stage.path("ran").exists());
}

/// L8: the lease stayed, and its owner was not printed.
#[test]
fn a_closed_standard_output_is_an_error_before_anything_is_left() {
    let stage = Stage::new();
    let mut command = stage.program("sh");
    command.args(["-c", "$0 lock job --ttl 1h >&-; echo $? >code", env!("CARGO_BIN_EXE_tenure")]);
    let ended = stage.run_command(command);
    assert!(ended.err.contains("cannot print the owner: the standard output is closed"), "{ended:?}");
    assert_eq!(stage.lines("code"), ["70"]);
    assert!(stage.show("job")["holders"].as_array().unwrap().is_empty());
}

/// Started through the loader, `tenure` would start the loader instead of itself.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
fn a_start_through_the_loader_is_refused_before_anything_runs() {
    let stage = Stage::new();
    let mut command = stage.program("/lib64/ld-linux-x86-64.so.2");
    command.args([env!("CARGO_BIN_EXE_tenure"), "run", "job", "--", "touch", "ran"]);
    stage.run_command(command).complained(64, "start it by its own path");
    assert!(!stage.path("ran").exists());
}

/// The error line was lost if its reader paused for a second, as a pager does.
#[test]
fn the_line_of_an_error_waits_for_its_reader() {
    let stage = Stage::new();
    let script = "(yes | head -c 65536; $0 nosuchverb; echo $? >code) 2>&1 | (sleep 3; cat) | tail -n 1";
    let mut command = stage.program("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tenure")]);
    let ended = stage.run_command(command);
    assert!(ended.out.contains("nosuchverb") && ended.out.contains("[exit 64]"), "{ended:?}");
    assert_eq!(stage.lines("code"), ["64"]);
}

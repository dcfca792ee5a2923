//! As in a container: `tenure` is process 1, its root is read-only, its user has no name.

#![cfg(target_os = "linux")]

use std::{fs, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tenure_testkit::patience::eventually;

use crate::procfs::World;
use crate::stage::{
    PATIENCE, Process, Stage, an_owner,
    files::HOLD,
    process::{children, is_alive, worker},
};

/// Notes each signal that comes, and ends with 7 when `go` is there.
const NOTER: &str = "exec 2>/dev/null; for s in $0; do trap \"echo $s >>heard\" $s; done; echo >started
    until [ -e go ]; do sleep 0.05; done; exit 7";

/// A PID namespace whose first process is `tenure`.
fn container(stage: &Stage) -> World {
    World::new(stage, &["--pid", "--fork", "--mount-proc"], "").expect("this machine allows namespaces")
}

/// The first process, under `unshare`.
pub(crate) fn init(stage: &Stage, outer: &Process) -> Pid {
    let pid = eventually("it is process 1", PATIENCE, || {
        let pid = *children(outer.pid()).first()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let is_first = status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"));
        (is_first && status.starts_with("Name:\ttenure")).then_some(pid)
    });
    assert!(is_alive(pid), "{:?}", stage.path(""));
    Pid::from_raw(pid)
}

/// A signal without a handler does not reach process 1: each that is passed on has one.
#[test]
fn process_1_passes_each_signal_on() {
    let stage = Stage::new();
    let (world, owner) = (container(&stage), &*an_owner());
    let signals = [Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGTERM];
    let names = signals.map(|signal| &signal.as_str()[3..]);
    for verb in [&["run", "job"][..], &["lead", "job"], &["attach", "job", owner]] {
        if verb[0] == "attach" {
            stage.run(&["lock", "job", "--ttl", "20s", "--owner", owner]).silent(0);
        }
        let outer = world.start(&stage, &[verb, &["--", "bash", "-c", NOTER, &names.join(" ")]].concat());
        stage.has_lines("started", 1);
        let tenure = init(&stage, &outer);
        for (number, signal) in signals.into_iter().enumerate() {
            kill(tenure, signal).unwrap();
            stage.has_lines("heard", number + 1);
        }
        assert_eq!(stage.lines("heard"), names);
        stage.touch("go");
        outer.ended().silent(7);
        for file in ["started", "heard", "go"] {
            fs::remove_file(stage.path(file)).unwrap();
        }
    }
}

/// It cannot die by a signal; the exit code says which.
#[test]
fn process_1_ends_with_the_code_of_the_signal() {
    let stage = Stage::new();
    let world = container(&stage);
    for (signal, code) in
        [(Signal::SIGINT, 130), (Signal::SIGQUIT, 131), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)]
    {
        let command = "echo >started; exec sleep 60";
        let holder = world.start(&stage, &["run", "job", "--", "sh", "-c", command]);
        stage.has_lines("started", 1);
        let waiter = world.start(&stage, &["run", "job", "--", "touch", "ran"]);
        eventually("it waits", PATIENCE, || (!stage.queue("job").is_empty()).then_some(()));
        for process in [waiter, holder] {
            kill(init(&stage, &process), signal).unwrap();
            let ended = process.ended();
            assert_eq!((ended.code, ended.signal, ended.err.as_str()), (code, None, ""), "{ended:?}");
        }
        fs::remove_file(stage.path("started")).unwrap();
    }
    assert!(!stage.path("ran").exists());
}

/// L1: process 1 is the parent of all orphans, daemons included, and leaves no zombie; a second TERM kills what is left.
#[test]
fn process_1_waits_for_what_the_command_left() {
    let stage = Stage::new();
    // It begins once the command has ended: a TERM before that would end the command.
    let orphaned = "while grep -q \"^PPid:.$1$\" /proc/$$/status; do sleep 0.05; done";
    let deaf = format!("trap \"\" TERM; {orphaned}; echo $$ >beats.deaf; while :; do sleep 0.05; done");
    let command = format!("setsid true & sh -c '{deaf}' deaf $$ & exit 3");
    let outer = container(&stage).start(&stage, &["run", "job", "--", "sh", "-c", &command]);
    stage.has_lines("beats.deaf", 1);
    let tenure = init(&stage, &outer);
    eventually("no zombie is left but the command, whose pid is kept", PATIENCE, || {
        let pids = children(u32::try_from(worker(tenure).as_raw()).unwrap());
        (pids.into_iter().filter(|pid| !is_alive(*pid)).count() == 1).then_some(())
    });
    kill(tenure, Signal::SIGTERM).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    kill(tenure, Signal::SIGTERM).unwrap();
    outer.ended().silent(3);
}

/// The watcher process could not be started without `/dev/null`.
#[test]
fn a_dev_with_nothing_in_it_is_enough() {
    let stage = Stage::on_redis();
    let world =
        World::new(&stage, &["-m"], "mount -t tmpfs none /dev;").expect("this machine allows namespaces");
    world.start(&stage, &["run", "job", "--", "sh", "-c", "exit 4"]).ended().silent(4);
    world.start(&stage, &["lead", "job", "--", "sh", "-c", "exit 5"]).ended().silent(5);
}

/// `readOnlyRootFilesystem`, `runAsNonRoot` with a number that no account has, no HOME, and all rights dropped.
#[test]
fn a_read_only_root_and_a_user_without_a_name_are_enough() {
    let stage = Stage::on_redis();
    let mount = "chmod 711 .; mount -o remount,bind,ro /;";
    let world = World::new(&stage, &["--pid", "--fork", "--mount-proc"], mount);
    let world = world.expect("this machine allows namespaces");
    let tenure = stage.command(&[]);
    let mut shell = world.program(&stage, "setpriv");
    let random =
        ["--reuid=123456789", "--regid=0", "--clear-groups", "--no-new-privs", "--bounding-set=-all"];
    shell.args(random).args(["env", "-u", "HOME"]).arg(tenure.get_program());
    shell.args([
        "run",
        "-E",
        "0",
        "job",
        "--",
        "sh",
        "-c",
        "id -u; (touch /x 2>/dev/null) || echo read-only; exit 6",
    ]);
    let ended = stage.run_command(shell);
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (6, "123456789\nread-only\n", ""));
    let _holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
}

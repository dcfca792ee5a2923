//! A `/proc` that shows other processes, hides ours, or is missing.

#![cfg(target_os = "linux")]

use std::{
    ffi::OsStr,
    process::{Command, Stdio},
};

use nix::unistd::geteuid;

use crate::screen::Screen;
use crate::stage::{
    Stage, an_owner,
    files::{BEAT, ENTER, HOLD},
    process::Process,
};

/// What a command says whose `/proc` does not show what leaves its group.
const BLIND: &str = "/proc is missing, or hides our processes";

/// A command that ends and leaves a job in a group of its own, which ends when `go` is there.
fn leaver() -> String {
    format!("timeout 600 sh -c '{HOLD}' left & exit 3")
}

/// Namespaces of its own, as those of a container: with another `/proc`.
pub(crate) struct World {
    /// Up to the program that is started there.
    argv: Vec<String>,
}

impl World {
    /// `unshare` with these flags, and a script that changes mounts; `None` if this machine forbids it. Without the rights
    /// of root it is tried in a namespace of users.
    pub(crate) fn new(stage: &Stage, flags: &[&str], script: &str) -> Option<Self> {
        let user: &[&str] = if geteuid().is_root() { &[] } else { &["-r"] };
        let script = format!("set -e; {script} exec \"$@\"");
        let argv = [&["unshare"], user, flags, &["sh", "-c", &script, "sh"]].concat();
        let world = Self { argv: argv.into_iter().map(str::to_owned).collect() };
        let mut trial = world.program(stage, "true");
        trial.stderr(Stdio::null()).status().unwrap().success().then_some(world)
    }

    pub(crate) fn program(&self, stage: &Stage, program: impl AsRef<OsStr>) -> Command {
        let mut command = stage.program(&self.argv[0]);
        command.args(&self.argv[1..]).arg(program);
        command
    }

    /// Starts `tenure` there.
    pub(crate) fn start(&self, stage: &Stage, arguments: &[&str]) -> Process {
        let tenure = stage.command(arguments);
        let mut command = self.program(stage, tenure.get_program());
        command.args(tenure.get_args());
        stage.start_command(command)
    }
}

/// L1: in a PID namespace that sees the `/proc` of the outer one, or in one that sees that of an inner one, other processes were
/// taken for those of the command: the lock was released beside a job that had left the group, or never.
#[test]
fn a_proc_of_another_pid_namespace_is_refused() {
    let stage = Stage::new();
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let owner = &*an_owner();
    // It lives until it is told to end.
    let mount = "mkdir -p inner; rm -f made; unshare -pf sh -c 'mount -t proc proc inner; touch made
        while [ -e made ]; do sleep 0.1; done' & until [ -e made ]; do sleep 0.05; done
        mount --bind inner /proc; rm made;";
    let worlds = [World::new(&stage, &["-p", "-f"], ""), World::new(&stage, &["-m"], mount)];
    for world in worlds.into_iter().flatten() {
        for verb in [&["run", "job"][..], &["lead", "job"], &["attach", "job", owner]] {
            let arguments = [verb, &["--", "touch", "ran"]].concat();
            world.start(&stage, &arguments).ended().complained(70, "another PID namespace");
        }
    }
    assert!(!stage.path("ran").exists());
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// L1: the `/proc` of the namespace itself will do.
#[test]
fn a_proc_of_the_own_pid_namespace_is_enough() {
    let stage = Stage::new();
    let Some(world) = World::new(&stage, &["-p", "-f", "--mount-proc"], "") else { return };
    let holder = world.start(&stage, &["run", "job", "--", "sh", "-c", &leaver()]);
    stage.beats("left");
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    stage.touch("go");
    holder.ended().silent(3);
}

/// L1: a `/proc` that hides others' processes, or all but processes, shows enough of ours.
#[test]
fn a_proc_that_hides_others_is_enough() {
    let stage = Stage::on_redis();
    for option in ["hidepid=1", "hidepid=2", "subset=pid"] {
        let mount = format!("mount -t proc -o {option} proc /proc;");
        let Some(world) = World::new(&stage, &["-m"], &mount) else { continue };
        let holder = world.start(&stage, &["run", "job", "--", "sh", "-c", &leaver()]);
        stage.beats("left");
        stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
        stage.touch("go");
        holder.ended().silent(3);
        for file in ["go", "beats"] {
            std::fs::remove_file(stage.path(file)).unwrap();
        }
    }
}

/// A group of which `/proc` shows no process is not taken for one without a shell: Ctrl-Z suspends, and `fg` goes on.
#[test]
fn ctrl_z_suspends_without_a_proc() {
    let stage = Stage::on_redis();
    let Some(world) = World::new(&stage, &["-m"], "mount -t tmpfs none /proc;") else { return };
    let mut program: Vec<&str> = world.argv.iter().map(String::as_str).collect();
    program.extend(["bash", "--norc", "--noprofile", "-i"]);
    let environment = [("TERM", "dumb"), ("PS1", "ready> "), ("HISTFILE", "")];
    let mut shell = Screen::start_with(&stage, &program, &environment);
    shell.sees("ready> ");
    shell.types("$tenure -q run job -- sh -c 'echo star''ted; read x; echo got $x'\n");
    shell.sees("started");
    shell.types("\x1a");
    shell.sees("Stopped");
    shell.types("fg\n");
    shell.types("hello\n");
    shell.sees("got hello");
}

/// Without a `/proc` no command could be started. Its group is waited for and stopped, which is said once.
#[test]
fn without_a_proc_the_group_is_watched_and_that_is_said() {
    let stage = Stage::on_redis();
    let Some(world) = World::new(&stage, &["-m"], "mount -t tmpfs none /proc;") else { return };
    let blind = |arguments: &[&str]| world.start(&stage, arguments);
    let family = format!("sh -c '{HOLD}' left & exit 3");
    let holder = blind(&["run", "job", "--", "sh", "-c", &family]);
    stage.beats("left");
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    stage.touch("go");
    // On a busy machine a second line names what the run waits for.
    let ended = holder.ended();
    assert!(ended.code == 3 && ended.err.contains(BLIND), "{ended:?}");
    blind(&["-q", "run", "job", "--", "sh", "-c", "exit 4"]).ended().silent(4);

    // The command is stopped at a loss, also one that left its group; and `lead` says the line once.
    let leaver = "perl -e 'setpgrp 0, getpgrp getppid; exec @ARGV' sh -c";
    let led = format!("echo term >>terms; exec {leaver} '{BEAT}' term.$TENURE_TOKEN");
    let lead = blind(&["-q", "lead", "job", "--", "sh", "-c", &led]);
    for term in 1..=2 {
        stage.has_lines("terms", term);
        let name = format!("term.{}", stage.show("job")["holders"][0]["token"]);
        stage.beats(&name);
        stage.run(&["-q", "break", "job"]).silent(0);
        stage.dies(&format!("pid.{name}"));
    }
    drop(lead);
    let mut holder =
        blind(&["run", "other", "--", "sh", "-c", &format!("sh -c '{BEAT}' grandchild & {BEAT}"), "child"]);
    stage.beats("grandchild");
    holder.kill();
    stage.dies("pid.grandchild");
    stage.run(&["run", "other", "--", "sh", "-c", ENTER, "next"]).silent(0);
}

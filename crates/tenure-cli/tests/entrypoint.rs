//! A shell with children that became `tenure` (`sidecar & exec tenure …`): what is the command's, and what is not.

#![cfg(target_os = "linux")]

use std::{fs, path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tenure_testkit::patience::eventually;

use crate::loss::watchers;
use crate::stage::{
    PATIENCE, Process, Stage, an_owner,
    files::{BEAT, HOLD},
    process::{is_alive, kill_descendants},
    scaled_ttl,
};

/// A child that leaves an orphan in a group of its own once `fork` is there. Neither of them is the command's.
const SIDECAR: &str = "echo $$ >pid.sidecar; until [ -e fork ]; do sleep 0.05; done
    timeout 600 sh -c 'echo $PPID >pid.orphan; sleep 600' & until [ -s pid.orphan ]; do sleep 0.05; done";

/// Such a shell. Its children are killed when the test ends.
struct Entrypoint<'a> {
    stage: &'a Stage,
    holder: Process,
}

impl<'a> Entrypoint<'a> {
    /// Becomes `tenure` with these arguments, beside the sidecar.
    fn start(stage: &'a Stage, arguments: &[&str]) -> Self {
        let mut shell = stage.program("sh");
        let script = "sh -c \"$0\" & until [ -s pid.sidecar ]; do sleep 0.05; done; exec \"$@\"";
        let tenure = stage.command(arguments);
        shell.args(["-c", script, SIDECAR]).arg(tenure.get_program()).args(tenure.get_args());
        Self { stage, holder: stage.start_command(shell) }
    }

    /// The sidecar ends and leaves its orphan.
    fn forks(&self) {
        self.stage.touch("fork");
        self.stage.dies("pid.sidecar");
        assert!(is_alive(self.stage.number("pid.orphan")));
    }
}

impl Drop for Entrypoint<'_> {
    fn drop(&mut self) {
        kill_descendants(self.holder.pid());
        for file in fs::read_dir(self.stage.path("")).unwrap().flatten() {
            let name = file.file_name().into_string().unwrap();
            let pid = self.stage.lines(&name).first().and_then(|pid| pid.parse().ok());
            if let Some(pid) = pid.filter(|_| name.starts_with("pid.")) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

/// A command that ends and leaves a job in a group of its own, which ends when `go` is there.
fn leaver() -> String {
    format!("timeout 600 sh -c '{HOLD}' left & exit 3")
}

/// The same with a job that lives on.
fn beater(name: &str) -> String {
    format!("timeout 600 sh -c '{BEAT}' {name} & exit 0")
}

/// L1: the lock was released beside such a job: where the shell that became `tenure` had a child, orphans could not be told apart.
/// What the sidecar leaves is not waited for.
#[test]
fn what_left_the_group_is_waited_for_beside_a_sidecar() {
    let stage = Stage::new();
    let entrypoint = Entrypoint::start(&stage, &["run", "job", "--", "sh", "-c", &leaver()]);
    stage.beats("left");
    entrypoint.forks();
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    stage.touch("go");
    eventually("the lock is free", PATIENCE, || {
        stage.show("job")["holders"].as_array().unwrap().is_empty().then_some(())
    });
    assert!(is_alive(stage.number("pid.orphan")));
}

/// L1: the same where the log of a script is the child, as in `exec > >(tee log)`.
#[test]
fn what_left_the_group_is_waited_for_beside_a_log() {
    let stage = Stage::new();
    let mut shell = stage.program("bash");
    let arguments = [env!("CARGO_BIN_EXE_tenure"), "run", "job", "--", "sh", "-c", &leaver()];
    shell.args(["-c", "exec > >(cat >log); exec \"$@\"", "bash"]).args(arguments);
    let holder = stage.start_command(shell);
    stage.beats("left");
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    stage.touch("go");
    holder.ended().silent(3);
}

/// L1: at a loss it is stopped, by `attach` and in each term of `lead` as well; the sidecar is not.
#[test]
fn what_left_the_group_is_stopped_beside_a_sidecar() {
    let stage = Stage::new();
    let owner = &*an_owner();
    stage.run(&["lock", "job", "--ttl", "30s", "--owner", owner]);
    let attached = ["attach", "job", owner, "--", "sh", "-c", &beater("attached")];
    let entrypoint = Entrypoint::start(&stage, &attached);
    stage.beats("attached");
    entrypoint.forks();
    stage.run(&["-q", "break", "job"]).silent(0);
    stage.dies("pid.attached");
    assert!(is_alive(stage.number("pid.orphan")));
    drop(entrypoint);

    let stage = Stage::new();
    let led = format!(
        "echo term >>terms; setsid sleep 600 & timeout 600 sh -c '{BEAT}' term.$TENURE_TOKEN & exec sleep 600"
    );
    let lead = Entrypoint::start(&stage, &["lead", "job", "--", "sh", "-c", &led]);
    for term in 1..=3 {
        stage.has_lines("terms", term);
        let name = format!("term.{}", stage.show("job")["holders"][0]["token"]);
        stage.beats(&name);
        kill_the_parent(&stage, &name);
        stage.run(&["-q", "break", "job"]).silent(0);
        stage.dies(&format!("pid.{name}"));
        assert!(is_alive(stage.number("pid.sidecar")));
    }
    drop(lead);
}

/// Makes an orphan of the job under `timeout`.
fn kill_the_parent(stage: &Stage, name: &str) {
    let pid: i32 = stage.number(&format!("pid.{name}"));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let parent = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    kill(Pid::from_raw(parent), Signal::SIGKILL).unwrap();
    eventually("it is an orphan", PATIENCE, || (!is_alive(parent)).then_some(()));
}

/// L1: the watcher process knows as much: of a `tenure` that is stopped, and of one that is killed.
#[test]
fn the_watcher_ends_what_left_the_group_and_not_the_sidecar() {
    let stage = Stage::new();
    let (_, text) = scaled_ttl(Duration::from_secs(2));
    let arguments = ["run", "--ttl", &text, "job", "--", "sh", "-c", &beater("stopped")];
    let entrypoint = Entrypoint::start(&stage, &arguments);
    stage.beats("stopped");
    stage.stop(&entrypoint.holder);
    stage.dies("pid.stopped");
    assert!(is_alive(stage.number("pid.sidecar")));
    drop(entrypoint);

    let stage = Stage::new();
    let mut entrypoint = Entrypoint::start(&stage, &["run", "job", "--", "sh", "-c", &beater("killed")]);
    stage.beats("killed");
    entrypoint.holder.kill();
    stage.dies("pid.killed");
    assert!(is_alive(stage.number("pid.sidecar")));
}

/// A variable that a script exports, as that of the owner for `attach`, is not the mark of what the command started: all of the
/// session that had it was killed with a killed `tenure`.
#[test]
fn a_script_that_exported_the_owner_outlives_a_killed_attach() {
    let stage = Stage::new();
    let owner = &*an_owner();
    stage.run(&["lock", "job", "--ttl", "9s", "--owner", owner]);
    let mut shell = stage.program("sh");
    let script = "export TENURE_OWNER=$1; sh -c \"$2\" script & exec \"$0\" attach job $1 -- sh -c \"$3\"";
    let command = format!("timeout 600 sh -c '{BEAT}' command & wait");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_tenure"), owner, BEAT, &command]);
    let mut entrypoint = Entrypoint { stage: &stage, holder: stage.start_command(shell) };
    for name in ["script", "command"] {
        stage.beats(name);
    }
    let watcher = eventually("there is a watcher", PATIENCE, || watchers(&entrypoint.holder).pop());
    entrypoint.holder.kill();
    eventually("the watcher is done", PATIENCE, || (!is_alive(watcher)).then_some(()));
    assert!(!is_alive(stage.number("pid.command")));
    assert!(is_alive(stage.number("pid.script")));
}

/// The children of the shell that end do not stay as zombies of `tenure`.
#[test]
fn a_sidecar_that_ended_is_no_zombie() {
    let stage = Stage::new();
    let entrypoint = Entrypoint::start(&stage, &["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    entrypoint.forks();
    let pid: i32 = stage.number("pid.sidecar");
    eventually("it was waited for", PATIENCE, || {
        (!Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    });
    stage.touch("go");
}

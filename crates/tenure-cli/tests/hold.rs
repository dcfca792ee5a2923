//! `hold`: the rest of a script has the lock, until its last process has ended, or until the lock is lost.

#![cfg(target_os = "linux")]

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tenure_testkit::patience::eventually;

use crate::stage::{self, PATIENCE, Process, Stage, assert_within, process::is_alive, scaled_ttl};

/// What a death may take until the lock is free; the aim on a calm machine is 0.3 s.
const SOON: Duration = Duration::from_secs(3);
/// Long enough that no lock here is free by it.
const TTL: &str = "--ttl 30s";

/// A script of this shell that begins with the lock.
fn script(stage: &Stage, shell: &str, flags: &str, rest: &str) -> Process {
    let text = format!("eval \"$($T -q hold {flags} job || echo exit 70)\"\necho $$ >pid.script\n{rest}\n");
    text_of(stage, shell, &text)
}

/// A whole script, in which `$T` is `tenure`.
fn text_of(stage: &Stage, shell: &str, text: &str) -> Process {
    let mut command = stage.program(shell);
    command.arg("-c").arg(text).env("T", env!("CARGO_BIN_EXE_tenure"));
    stage.start_command(command)
}

fn is_free(stage: &Stage) -> bool {
    stage.run(&["-q", "run", "-n", "job", "--", "true"]).code == 0
}

#[track_caller]
fn is_soon_free(stage: &Stage) {
    let before = Instant::now();
    eventually("the lock is free", PATIENCE, || is_free(stage).then_some(()));
    assert_within(SOON + stage.grain(), before.elapsed(), "the lock is free");
}

/// The processes of ours with this word, that hold for the script of this stage.
fn ours(stage: &Stage, word: &str) -> Vec<Pid> {
    let url = format!("HOME={}", stage.path("").display());
    let of = |pid: &i32, file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let line = of(pid, "cmdline");
            line.split(|byte| *byte == 0).skip(1).find(|part| *part != b"-q") == Some(word.as_bytes())
        })
        .filter(|pid| {
            let environment = of(pid, "environ");
            let home = url.trim_end_matches('/').as_bytes();
            environment.split(|byte| *byte == 0).any(|variable| variable == home)
        })
        .map(Pid::from_raw)
        .collect()
}

#[track_caller]
fn nothing_is_left(stage: &Stage) {
    eventually("our processes have ended", PATIENCE, || {
        let left =
            ["hold", "__hold", "__script", "run", "__work", "__watch"].map(|word| ours(stage, word).len());
        (left == [0; 6]).then_some(())
    });
}

/// L8: killed at any moment, with all that it has started.
fn a_killed_script_frees_the_lock(stage: &Stage) {
    for _ in 0..2 {
        let mut killed = script(stage, "sh", TTL, "while :; do sleep 0.05; done");
        stage.number::<i32>("pid.script");
        assert!(!is_free(stage));
        killed.kill();
        is_soon_free(stage);
        fs::remove_file(stage.path("pid.script")).unwrap();
    }
    nothing_is_left(stage);
}

/// L1: TERM first, and the script can clean up; then the next owner has the lock.
fn a_script_is_told_that_the_lock_was_broken(stage: &Stage) {
    let cleans = "trap 'echo cleaned >>log; exit 7' TERM; while :; do sleep 0.05; done";
    let robbed = script(stage, "sh", TTL, cleans);
    stage.number::<i32>("pid.script");
    stage.run(&["-q", "break", "job"]).mute(0);
    let ended = robbed.ended();
    assert_eq!((ended.code, stage.lines("log")), (7, vec!["cleaned".to_owned()]), "{ended:?}");
    is_soon_free(stage);
    nothing_is_left(stage);
}

stage::on_every_store!(a_killed_script_frees_the_lock, a_script_is_told_that_the_lock_was_broken);

const SHELLS: [&str; 3] = ["bash", "dash", "zsh"];

#[test]
fn the_rest_of_a_script_of_each_shell_has_the_lock() {
    let stage = Stage::new();
    for shell in SHELLS {
        let rest = "echo $TENURE_LOCK; $T -q run -n -E 9 job -- true; echo $?; $T ls | grep -c job\n\
                    tenure_release; echo \"<${TENURE_HELD-none}>\"; $T -q run -w 9s job -- echo free";
        let ended = script(&stage, shell, TTL, rest).ended();
        assert_eq!(ended.out, "job\n64\n1\n<none>\nfree\n", "{shell}: {ended:?}");
        // A script that ends without a word of its own releases it too, whether well or not.
        for rest in ["exit 3", "set -e; trap 'echo trapped' EXIT; false; echo not reached"] {
            let ended = script(&stage, shell, TTL, rest).ended();
            assert!(!ended.out.contains("not reached"), "{shell}: {ended:?}");
            assert_eq!(ended.out.contains("trapped"), rest.contains("trapped"), "{shell}: {ended:?}");
            is_soon_free(&stage);
        }
        nothing_is_left(&stage);
    }
}

/// As a lock of `flock` on a descriptor: what the script started has it too.
#[test]
fn what_the_script_has_started_keeps_the_lock() {
    let stage = Stage::new();
    for rest in ["sleep 1000 & echo $! >pid.child; exit 0", "echo $$ >pid.child; exec sleep 1000"] {
        let script = script(&stage, "sh", TTL, rest);
        let child: i32 = stage.number("pid.child");
        std::thread::sleep(Duration::from_millis(300));
        assert!(!is_free(&stage), "{rest}");
        kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
        is_soon_free(&stage);
        drop(script);
        fs::remove_file(stage.path("pid.child")).unwrap();
    }
    nothing_is_left(&stage);
}

#[test]
fn a_subshell_has_the_lock_for_itself() {
    let stage = Stage::new();
    let text = "( eval \"$($T hold job || echo exit 70)\"; echo inside; $T -q run -n -E 9 job -- true; echo $? )\n\
                $T -q run -w 9s job -- echo outside";
    for shell in SHELLS {
        let ended = text_of(&stage, shell, text).ended();
        assert_eq!(ended.out, "inside\n64\noutside\n", "{shell}: {ended:?}");
    }
}

/// The status of a substitution in `eval` is lost: the script must not go on.
#[test]
fn a_script_does_not_go_on_without_the_lock() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "sleep", "1000"]);
    eventually("it is held", PATIENCE, || (!is_free(&stage)).then_some(()));
    for shell in SHELLS {
        for (flags, code) in [("-n", 1), ("-w 0s -E 5", 5), ("--ttl 1ms", 64)] {
            let ended = script(&stage, shell, flags, "echo went on").ended();
            assert_eq!((ended.code, &*ended.out), (code, ""), "{shell} {flags}: {ended:?}");
        }
    }
    nothing_is_left_but(&stage, holder);
}

#[track_caller]
fn nothing_is_left_but(stage: &Stage, holder: Process) {
    drop(holder);
    nothing_is_left(stage);
}

/// L8: a script that is killed while it waits leaves no place in the queue.
#[test]
fn a_script_that_is_killed_while_it_waits_leaves_the_queue() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "sleep", "1000"]);
    eventually("it is held", PATIENCE, || (!is_free(&stage)).then_some(()));
    let waiter = script(&stage, "sh", TTL, "echo went on");
    eventually("it waits", PATIENCE, || (!stage.queue("job").is_empty()).then_some(()));
    let asking = ours(&stage, "hold").into_iter().next().unwrap();
    kill(asking, Signal::SIGKILL).unwrap();
    eventually("the queue is empty", PATIENCE, || stage.queue("job").is_empty().then_some(()));
    drop(waiter);
    nothing_is_left_but(&stage, holder);
}

/// L1: whichever of our processes is killed, the script is dead before the lock is free.
#[test]
fn without_one_of_our_processes_the_script_is_killed() {
    for words in [&["__hold"][..], &["__script"], &["run"], &["__work"], &["__work", "__watch"]] {
        let stage = Stage::new();
        let deaf = "trap '' TERM; sh -c 'echo $$ >pid.child; exec sleep 1000' & while :; do sleep 0.05; done";
        let script = script(&stage, "sh", "--ttl 3s", deaf);
        let pids = [stage.number("pid.script"), stage.number("pid.child")];
        assert!(!is_free(&stage));
        for word in words {
            for pid in ours(&stage, word) {
                // OK to fail: it may have ended with another one.
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
        eventually("the lock is free", PATIENCE, || {
            let is_free = is_free(&stage);
            // Seen after the lock was.
            let alive = pids.map(is_alive);
            assert!(!is_free || alive == [false; 2], "{words:?}: {alive:?} beside the next owner");
            is_free.then_some(())
        });
        drop(script);
        nothing_is_left(&stage);
    }
}

/// L1: a run that is stopped renews nothing. Its watcher ends the stand-in, and so the script.
#[test]
fn a_run_that_is_stopped_takes_the_script_with_it() {
    let stage = Stage::new();
    let (_, ttl) = scaled_ttl(Duration::from_secs(3));
    let script = script(&stage, "sh", &format!("--ttl {ttl}"), "trap '' TERM; while :; do sleep 0.05; done");
    let shell: i32 = stage.number("pid.script");
    let worker = ours(&stage, "__work").into_iter().next().unwrap();
    kill(worker, Signal::SIGSTOP).unwrap();
    eventually("the lock is free", PATIENCE, || {
        let is_free = is_free(&stage);
        assert!(!is_free || !is_alive(shell), "it works beside the next owner");
        is_free.then_some(())
    });
    drop(script);
    let _ = kill(worker, Signal::SIGKILL);
}

/// The shell finds no `tenure`, or one that cannot start.
#[test]
fn a_script_does_not_go_on_without_tenure() {
    let stage = Stage::new();
    for shell in SHELLS {
        for ask in ["./no-such-tenure hold job", "ulimit -n 7; $T hold job", "$T hold"] {
            let text = format!("eval \"$({ask} || echo exit 70)\"; echo went on");
            let ended = text_of(&stage, shell, &text).ended();
            assert!([64, 70].contains(&ended.code) && ended.out.is_empty(), "{shell} {ask}: {ended:?}");
        }
    }
    nothing_is_left(&stage);
}

/// L1: the guard has given up by then, and may be releasing the lock.
#[test]
fn a_script_that_takes_the_lock_too_late_does_not_go_on() {
    let stage = Stage::new();
    let text = "code=$($T hold job); sleep 11; eval \"$code\"; echo went on";
    let ended = text_of(&stage, "sh", text).ended();
    assert_eq!((ended.code, &*ended.out), (70, ""), "{ended:?}");
    is_soon_free(&stage);
    nothing_is_left(&stage);
}

/// L1: a guard that is stopped kills nothing. The stand-in does.
#[test]
fn a_stopped_guard_does_not_save_the_script() {
    let stage = Stage::new();
    let script = script(&stage, "sh", "--ttl 9s --grace 2s", "trap '' TERM; while :; do sleep 0.05; done");
    let shell: i32 = stage.number("pid.script");
    let guard = ours(&stage, "__hold").into_iter().next().unwrap();
    kill(guard, Signal::SIGSTOP).unwrap();
    stage.run(&["-q", "break", "job"]).mute(0);
    eventually("the script is dead", PATIENCE, || (!is_alive(shell)).then_some(()));
    kill(guard, Signal::SIGCONT).unwrap();
    drop(script);
    nothing_is_left(&stage);
}

/// What the shell has open is not for our processes, and what is strange in its environment is not read.
#[test]
fn our_processes_keep_nothing_of_the_script() {
    let stage = Stage::new();
    let text = "exec 4>file; flock 4; sh() { echo '+ sh'; command sh \"$@\"; }\n\
                export ODD=$(printf '\\351')\n\
                eval \"$($T -q hold job || echo exit 70)\"; exec 4>&-; flock -n file echo free; echo $TENURE_LOCK\n\
                tenure_release; exec 9>other; tenure_release; echo kept >&9";
    for shell in SHELLS {
        let ended = text_of(&stage, shell, text).ended();
        assert_eq!((&*ended.out, &*ended.err), ("free\njob\n", ""), "{shell}: {ended:?}");
        is_soon_free(&stage);
    }
    nothing_is_left(&stage);
}

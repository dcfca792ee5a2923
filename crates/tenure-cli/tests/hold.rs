//! `hold`: the rest of a script has the lock, until its last process has ended, or until the lock is lost.

#![cfg(target_os = "linux")]

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tenure_testkit::patience::eventually;

use crate::procfs::World;
use crate::stage::{
    self, PATIENCE, Process, Stage, assert_within,
    process::{children, is_alive},
    scaled_ttl,
};

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

/// The run of a guard, for [`ours`].
const RUN: &str = "--script";

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
            let is_run = line.split(|byte| *byte == 0).any(|part| part == b"--script");
            match line.split(|byte| *byte == 0).skip(1).find(|part| *part != b"-q") {
                Some(b"hold") if is_run => word == RUN,
                found => found == Some(word.as_bytes()),
            }
        })
        .filter(|pid| {
            let environment = of(pid, "environ");
            let home = url.trim_end_matches('/').as_bytes();
            environment.split(|byte| *byte == 0).any(|variable| variable == home)
        })
        .map(Pid::from_raw)
        .collect()
}

/// Sends a signal to the processes of ours with this word.
fn signal(stage: &Stage, word: &str, signal: Signal) {
    for pid in ours(stage, word) {
        // OK to fail: it may have ended with another one.
        let _ = kill(pid, signal);
    }
}

/// The lock stays held for a while.
#[track_caller]
fn stays_held(stage: &Stage) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(700) {
        assert!(!is_free(stage));
    }
}

/// In which the script has its FIFO open.
fn descriptor(script: i32) -> PathBuf {
    let all = fs::read_dir(format!("/proc/{script}/fd")).unwrap().map(|entry| entry.unwrap().path());
    let is_fifo =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("tenure-hold"));
    all.into_iter().find(is_fifo).unwrap()
}

#[track_caller]
fn nothing_is_left(stage: &Stage) {
    eventually("our processes have ended", PATIENCE, || {
        let left =
            ["hold", "__hold", "__script", RUN, "__work", "__watch"].map(|word| ours(stage, word).len());
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
    for words in [&["__hold"][..], &["__script"], &[RUN], &["__work"], &["__work", "__watch"]] {
        let stage = Stage::new();
        let deaf = "trap '' TERM; sh -c 'echo $$ >pid.child; exec sleep 1000' & while :; do sleep 0.05; done";
        let script = script(&stage, "sh", "--ttl 3s", deaf);
        let pids = [stage.number("pid.script"), stage.number("pid.child")];
        assert!(!is_free(&stage));
        words.iter().for_each(|word| signal(&stage, word, Signal::SIGKILL));
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
                tenure_release; exec 7>other; tenure_release; echo kept >&7";
    for shell in SHELLS {
        let ended = text_of(&stage, shell, text).ended();
        assert_eq!((&*ended.out, &*ended.err), ("free\njob\n", ""), "{shell}: {ended:?}");
        is_soon_free(&stage);
    }
    nothing_is_left(&stage);
}

/// L1: a run that had lost its stand-in released the lock while the guard still listed what to kill.
#[test]
fn a_killed_run_leaves_the_lock_to_its_ttl() {
    for word in [RUN, "__script"] {
        let stage = Stage::new();
        let script = script(&stage, "sh", TTL, "while :; do sleep 0.05; done");
        let shell: i32 = stage.number("pid.script");
        // One that takes long.
        signal(&stage, "__hold", Signal::SIGSTOP);
        signal(&stage, word, Signal::SIGKILL);
        stays_held(&stage);
        assert!(is_alive(shell));
        signal(&stage, "__hold", Signal::SIGCONT);
        eventually("the script is dead", PATIENCE, || (!is_alive(shell)).then_some(()));
        drop(script);
        nothing_is_left(&stage);
    }
}

/// L1: the same, where to kill takes long.
#[test]
fn many_processes_of_a_script_end_before_the_next_owner_has_the_lock() {
    let stage = Stage::new();
    let many = "for n in $(seq 400); do sleep 1000 & echo $! >>pids; done; touch started; wait";
    let script = script(&stage, "sh", "--ttl 4s", many);
    eventually("it has started all", PATIENCE, || stage.path("started").exists().then_some(()));
    let looks = "grep -hs ^State: $(sed 's,.*,/proc/&/status,' pids) | grep -vc '[ZX]' >alive";
    let waiter = stage.start(&["-q", "run", "-c", "job", looks]);
    stage.queued("job", &waiter);
    signal(&stage, RUN, Signal::SIGKILL);
    waiter.ended();
    assert_eq!(stage.lines("alive"), ["0"]);
    drop(script);
    nothing_is_left(&stage);
}

/// L1: a process that is not listed counted as ended.
#[test]
fn what_is_not_seen_keeps_the_lock() {
    let stage = Stage::new();
    let text = format!(
        "sh -c 'eval \"$($T -q hold {TTL} job || echo exit 70)\"; touch started; while :; do sleep 0.05; done'; sleep 1000"
    );
    let mut world = container(&stage).program(&stage, "sh");
    world.arg("-c").arg(text).env("T", env!("CARGO_BIN_EXE_tenure"));
    let outer = stage.start_command(world);
    eventually("it is held", PATIENCE, || stage.path("started").exists().then_some(()));
    let shell = ours_of_shell(&outer);
    // From outside of the namespace in which the script is.
    let unseen = fs::File::options().write(true).open(descriptor(shell)).unwrap();
    signal(&stage, "__hold", Signal::SIGKILL);
    eventually("the script is dead", PATIENCE, || (!is_alive(shell)).then_some(()));
    stays_held(&stage);
    drop(unseen);
    is_soon_free(&stage);
}

/// A PID namespace, as in a container.
fn container(stage: &Stage) -> World {
    World::new(stage, &["--fork", "--pid", "--mount-proc"], "").expect("this machine allows namespaces")
}

/// The script under process 1.
fn ours_of_shell(outer: &Process) -> i32 {
    let first = children(outer.pid())[0];
    children(u32::try_from(first).unwrap())[0]
}

/// L1: no process inside can kill process 1, so it went on beside the next owner.
#[test]
fn process_1_does_not_get_the_lock() {
    let stage = Stage::new();
    for shell in SHELLS {
        let mut world = container(&stage).program(&stage, shell);
        let text = "eval \"$($T -q hold job || echo exit 70)\"; echo went on";
        world.arg("-c").arg(text).env("T", env!("CARGO_BIN_EXE_tenure"));
        let ended = stage.run_command(world);
        assert_eq!((ended.code, &*ended.out), (64, ""), "{shell}: {ended:?}");
        assert!(ended.err.contains("docker run --init"), "{shell}: {ended:?}");
        is_soon_free(&stage);
    }
    nothing_is_left(&stage);
}

/// L1: `--max-hold` released the lock beside a script that could not be killed.
#[test]
fn a_script_that_cannot_be_killed_keeps_the_lock() {
    let stage = Stage::new();
    let (_, limit) = scaled_ttl(Duration::from_secs(2));
    // Without the line that refuses process 1.
    let text = format!(
        "code=$($T -q hold {TTL} --max-hold {limit} --grace 300ms job || echo exit 70)
         eval \"$(printf '%s\n' \"$code\" | sed 1d)\"; touch started; while :; do sleep 0.05; done"
    );
    let mut world = container(&stage).program(&stage, "sh");
    world.arg("-c").arg(text).env("T", env!("CARGO_BIN_EXE_tenure"));
    let outer = stage.start_command(world);
    eventually("it is held", PATIENCE, || stage.path("started").exists().then_some(()));
    eventually("the run has ended", PATIENCE, || ours(&stage, RUN).is_empty().then_some(()));
    stays_held(&stage);
    drop(outer);
}

/// L8: each process of a service gets TERM. The guard died of it, and so the script, in the middle of its trap.
#[test]
fn a_script_in_a_service_that_is_stopped_can_clean_up() {
    let stage = Stage::new();
    let cleans = "trap 'sleep 2; echo cleaned >>log; exit 7' TERM; while :; do sleep 0.05; done";
    let script = script(&stage, "sh", "--ttl 3s", cleans);
    let shell: i32 = stage.number("pid.script");
    for _ in 0..2 {
        for word in ["__hold", RUN, "__work", "__watch", "__script"] {
            signal(&stage, word, Signal::SIGTERM);
        }
    }
    stays_held(&stage);
    kill(Pid::from_raw(shell), Signal::SIGTERM).unwrap();
    stays_held(&stage);
    let ended = script.ended();
    assert_eq!((ended.code, stage.lines("log")), (7, vec!["cleaned".to_owned()]), "{ended:?}");
    is_soon_free(&stage);
    nothing_is_left(&stage);
}

/// L1: `exec 9>file`, the idiom of `flock`, released the lock in silence.
#[test]
fn a_script_that_closes_the_descriptor_is_stopped() {
    let stage = Stage::new();
    let rest = "trap 'echo cleaned; exit 7' TERM; exec 9>file; flock 9; touch started
                until [ -e go ]; do sleep 0.05; done
                for n in 3 4 5 6 7 8; do eval \"exec $n>file\"; done; while :; do sleep 0.05; done";
    for shell in SHELLS {
        let script = script(&stage, shell, TTL, rest);
        eventually("it has its file", PATIENCE, || stage.path("started").exists().then_some(()));
        stays_held(&stage);
        stage.touch("go");
        stays_held(&stage);
        let ended = script.ended();
        assert_eq!((ended.code, &*ended.out), (7, "cleaned\n"), "{shell}: {ended:?}");
        assert!(ended.err.contains("job: the script has closed the descriptor"), "{shell}: {ended:?}");
        is_soon_free(&stage);
        for name in ["go", "started"] {
            fs::remove_file(stage.path(name)).unwrap();
        }
    }
    nothing_is_left(&stage);
}

#[test]
fn a_script_may_have_two_locks() {
    let stage = Stage::new();
    let rest = "eval \"$($T -q hold other || echo exit 70)\"; $T ls | grep -c 'job\\|other'; tenure_release\n\
                $T -q run -w 9s other -- echo free; $T -q run -n job -- true; echo $?";
    for shell in SHELLS {
        let ended = script(&stage, shell, TTL, rest).ended();
        assert_eq!((ended.code, &*ended.out), (0, "2\nfree\n64\n"), "{shell}: {ended:?}");
        is_soon_free(&stage);
    }
    nothing_is_left(&stage);
}

/// A background process had the lock still, and its loss stopped the shell that had released it.
#[test]
fn a_shell_that_has_released_the_lock_does_not_lose_it() {
    let stage = Stage::new();
    let rest = "sleep 1000 & echo $! >pid.child; tenure_release; touch released
                until [ -e go ]; do sleep 0.05; done; exit 3";
    let script = script(&stage, "sh", TTL, rest);
    eventually("it was released", PATIENCE, || stage.path("released").exists().then_some(()));
    stays_held(&stage);
    stage.run(&["-q", "break", "job"]).mute(0);
    let child: i32 = stage.number("pid.child");
    eventually("the child is dead", PATIENCE, || (!is_alive(child)).then_some(()));
    nothing_is_left(&stage);
    stage.touch("go");
    let ended = script.ended();
    assert_eq!(ended.code, 3, "{ended:?}");
}

/// L1: the stand-in counted the grace of the ttl that was asked for. It was killed before it could kill the script.
#[test]
fn a_stopped_guard_does_not_save_the_script_of_a_short_lease() {
    // A stand-in that is not run for a second is killed before it can kill, and with a stopped guard no process is left to do it.
    let is_killed = || {
        let stage = Stage::on_redis_with("?max_ttl=4s");
        let script = script(&stage, "sh", "", "trap '' TERM; while :; do sleep 0.05; done");
        let shell: i32 = stage.number("pid.script");
        signal(&stage, "__hold", Signal::SIGSTOP);
        stage.run(&["-q", "break", "job"]).mute(0);
        let until = Instant::now() + Duration::from_secs(20);
        while is_alive(shell) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let is_dead = !is_alive(shell);
        signal(&stage, "__hold", Signal::SIGCONT);
        drop(script);
        nothing_is_left(&stage);
        is_dead
    };
    assert!((0..3).any(|_| is_killed()), "the script went on each time");
}

/// The FIFO had no reader any more, and the shell that opened it hung.
#[test]
fn a_shell_does_not_take_the_lock_from_a_dead_guard() {
    for words in [&["__hold"][..], &["__work", RUN, "__hold", "__watch", "__script"]] {
        for shell in SHELLS {
            let stage = Stage::new();
            let text = "export TMPDIR=$PWD; code=$($T -q hold job); touch started
                        until [ -e go ]; do sleep 0.05; done; eval \"$code\"; echo went on";
            let script = text_of(&stage, shell, text);
            eventually("it is held", PATIENCE, || stage.path("started").exists().then_some(()));
            words.iter().for_each(|word| signal(&stage, word, Signal::SIGKILL));
            eventually("the guard is dead", PATIENCE, || ours(&stage, "__hold").is_empty().then_some(()));
            stage.touch("go");
            let ended = script.ended();
            assert_eq!((ended.code, &*ended.out), (70, ""), "{shell} {words:?}: {ended:?}");
            nothing_is_left(&stage);
        }
    }
}

/// L8: its run waited on, for no script.
#[test]
fn a_guard_that_is_killed_while_it_waits_leaves_the_queue() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "sleep", "1000"]);
    eventually("it is held", PATIENCE, || (!is_free(&stage)).then_some(()));
    let waiter = script(&stage, "sh", TTL, "echo went on");
    eventually("it waits", PATIENCE, || (!stage.queue("job").is_empty()).then_some(()));
    signal(&stage, "__hold", Signal::SIGKILL);
    let ended = waiter.ended();
    assert_eq!((ended.code, &*ended.out), (70, ""), "{ended:?}");
    eventually("the queue is empty", PATIENCE, || stage.queue("job").is_empty().then_some(()));
    nothing_is_left_but(&stage, holder);
}

#[test]
fn the_name_may_come_in_any_place() {
    let stage = Stage::new();
    for words in ["hold -- job", "hold job -n --ttl 9s", "--url $TENURE_URL hold -n job"] {
        let text = format!("eval \"$($T {words} || echo exit 70)\"; echo $TENURE_LOCK");
        let ended = text_of(&stage, "sh", &text).ended();
        assert_eq!((ended.code, &*ended.out), (0, "job\n"), "{words}: {ended:?}");
        is_soon_free(&stage);
    }
    nothing_is_left(&stage);
}

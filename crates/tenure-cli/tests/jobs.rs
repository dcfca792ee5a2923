//! Under a shell with job control: Ctrl-Z, `fg`, `bg`, `&`.

#![cfg(target_os = "linux")]

use std::{
    fs::{self, File},
    io::Write,
    ops::Deref,
    thread,
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, mkfifo},
};
use tenure_testkit::patience::eventually;

use crate::screen::Screen;
use crate::stage::{
    PATIENCE, Stage,
    process::{is_alive, state},
    scaled_ttl,
};

/// A command that says its pid in `pid.job` and that it is there, and then reads a line.
const READER: &str = "echo $PPID >pid.tenure; echo $$ >pid.job; echo started; read x; echo got $x";
/// A command that says so as well and ends when somebody writes to `go`. It starts no other program: a shell that is about
/// to, by `vfork`, cannot be stopped if the other is stopped first.
const IDLER: &str = "echo $PPID >pid.tenure; echo $$ >pid.job; echo started; read x <go; echo finished";

/// A program that changes the settings of the terminal, and shows what is left of that when `over` is there.
const EDITOR: &str = "stty -echo; echo edit''ing; until [ -e over ]; do sleep 0.05; done
    stty -a | tr ' ;' '\n\n' | grep -x -e echo -e -echo; stty echo";

/// A command that ends when `go.next` is there.
const WAITER: &str = "until [ -e go.next ]; do sleep 0.05; done";

/// A stage with these programs as scripts, so that what is typed has none of the words that are waited for.
struct Jobs {
    stage: Stage,
    /// Kept open, so that what is written waits for its reader.
    go: File,
}

impl Jobs {
    fn new() -> Self {
        let stage = Stage::new();
        fs::write(stage.path("reader"), READER).unwrap();
        fs::write(stage.path("idler"), IDLER).unwrap();
        fs::write(stage.path("editor"), EDITOR).unwrap();
        mkfifo(&stage.path("go"), Mode::S_IRWXU).unwrap();
        let go = File::options().read(true).write(true).open(stage.path("go")).unwrap();
        Self { stage, go }
    }

    /// Lets the idler end.
    fn go(&self) {
        (&self.go).write_all(b"\n").unwrap();
    }
}

impl Deref for Jobs {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

/// The command and both processes of `tenure` with all threads: only then is the shell told.
fn is_stopped(stage: &Stage) {
    let job = Pid::from_raw(stage.number("pid.job"));
    let [front, worker] = front_and_worker(stage);
    for pid in [job, worker, front] {
        eventually(&format!("{pid} is stopped"), PATIENCE, || {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
            let mut ids = threads.map(|thread| thread.unwrap().file_name().into_string().unwrap());
            ids.all(|id| state(id.parse().unwrap()) == 'T').then_some(())
        });
    }
}

/// The process that a user sees, and the one behind it.
fn front_and_worker(stage: &Stage) -> [Pid; 2] {
    let worker: i32 = stage.number("pid.tenure");
    let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap();
    let front = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap();
    [front.parse().unwrap(), worker].map(Pid::from_raw)
}

/// What ends in the background while an editor runs leaves it the terminal and its settings.
fn leaves_the_terminal(stage: &Stage, shell: &mut Screen, ends: impl FnOnce()) {
    shell.types("sh editor\n");
    shell.sees("editing");
    let editor = shell.foreground();
    ends();
    assert_eq!(shell.foreground(), editor);
    stage.touch("over");
    shell.sees("\n-echo\r");
}

/// Types a line that shows the exit code of the one before.
fn code(shell: &mut Screen, code: u8) {
    shell.types("echo co''de $?.\n");
    shell.sees(&format!("code {code}."));
}

/// Suspended and continued as any other program.
#[test]
fn ctrl_z_suspends_and_fg_goes_on() {
    let stage = Jobs::new();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure run job -- sh reader\n");
    shell.sees("started");
    for _ in 0..2 {
        shell.types("\x1a");
        shell.sees("Stopped");
        shell.sees("ready> ");
        is_stopped(&stage);
        assert_eq!(shell.foreground(), shell.pid());
        shell.types("fg\n");
        let pid: i32 = stage.number("pid.job");
        eventually("the command has the terminal", PATIENCE, || {
            (shell.foreground() == pid && state(pid) != 'T').then_some(())
        });
    }
    shell.types("hello\n");
    shell.sees("got hello");
    code(&mut shell, 0);
}

/// L1, L5: what is suspended is not renewed; once the lease is over, the command does not run on for a single step.
#[test]
fn a_command_that_was_suspended_past_its_lease_is_killed_by_fg() {
    let stage = Jobs::new();
    let (ttl, text) = scaled_ttl(Duration::from_secs(2));
    let mut shell = Screen::shell(&stage);
    shell.types(&format!("$tenure run --ttl {text} job -- sh idler\n"));
    shell.sees("started");
    shell.types("\x1a");
    shell.sees("Stopped");
    is_stopped(&stage);
    eventually("the lease is over", 3 * ttl, || {
        stage.show("job")["holders"].as_array().unwrap().is_empty().then_some(())
    });
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
    // It would end at once if it went on at all.
    stage.go();
    shell.types("fg\n");
    shell.sees("the lease was lost");
    code(&mut shell, 79);
    assert!(!is_alive(stage.number("pid.job")));
    assert!(!shell.all().contains("finished"));
}

/// A shell whose job was suspended, and goes on in the background.
fn in_the_background(stage: &Jobs) -> Screen {
    let mut shell = Screen::shell(stage);
    shell.types("$tenure run job -- sh idler\n");
    shell.sees("started");
    shell.types("\x1a");
    shell.sees("Stopped");
    shell.types("bg\n");
    let pid: i32 = stage.number("pid.job");
    eventually("the command goes on", PATIENCE, || (state(pid) != 'T').then_some(()));
    shell
}

/// A job that goes on in the background leaves the terminal to the shell, also when it ends.
#[test]
fn bg_leaves_the_terminal_to_the_shell() {
    let stage = Jobs::new();
    let mut shell = in_the_background(&stage);
    stage.go();
    shell.sees("finished");
    eventually("the job has ended", PATIENCE, || {
        stage.json(&["ls"]).as_array().unwrap().is_empty().then_some(())
    });
    shell.types("wait; echo sti''ll here\n");
    shell.sees("still here");
    assert_eq!(shell.foreground(), shell.pid());
}

/// The death of a job that had the terminal once took it from the editor of the user, and changed its settings.
#[test]
fn a_death_in_the_background_leaves_the_terminal_to_another_job() {
    let stage = Jobs::new();
    let mut shell = in_the_background(&stage);
    let [front, worker] = front_and_worker(&stage);
    leaves_the_terminal(&stage, &mut shell, || {
        kill(worker, Signal::SIGKILL).unwrap();
        eventually("the job has ended", PATIENCE, || (!is_alive(front.as_raw())).then_some(()));
    });
}

/// The same at a good end, for a shell that has taken the terminal although the command was never stopped.
#[test]
fn a_stop_of_the_front_alone_leaves_the_terminal_to_another_job() {
    let stage = Jobs::new();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure run job -- sh idler\n");
    shell.sees("started");
    let [front, worker] = front_and_worker(&stage);
    kill(front, Signal::SIGSTOP).unwrap();
    shell.sees("Stopped");
    leaves_the_terminal(&stage, &mut shell, || {
        stage.go();
        eventually("the worker has ended", PATIENCE, || (!is_alive(worker.as_raw())).then_some(()));
    });
    kill(front, Signal::SIGCONT).unwrap();
}

/// What goes on in the background and wants to read is stopped, and `fg` gives it what it wants.
#[test]
fn a_job_in_the_background_that_reads_waits_for_fg() {
    let stage = Jobs::new();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure run job -- sh reader &\n");
    shell.sees("started");
    is_stopped(&stage);
    shell.types("jobs\n");
    shell.sees("Stopped");
    shell.types("fg\n");
    let pid: i32 = stage.number("pid.job");
    eventually("the command has the terminal", PATIENCE, || (shell.foreground() == pid).then_some(()));
    shell.types("hello\n");
    shell.sees("got hello");
    code(&mut shell, 0);
}

/// L1: what stops `tenure`, and with it the renewals, stops the command as well: here it has no terminal to read from,
/// so that Ctrl-Z comes to `tenure` alone.
#[test]
fn ctrl_z_stops_a_command_that_does_not_read_from_the_terminal() {
    let stage = Jobs::new();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure run job -- sh idler </dev/null\n");
    shell.sees("started");
    shell.types("\x1a");
    shell.sees("Stopped");
    is_stopped(&stage);
    shell.types("fg\n");
    let pid: i32 = stage.number("pid.job");
    eventually("the command goes on", PATIENCE, || (state(pid) != 'T').then_some(()));
    stage.go();
    shell.sees("finished");
    code(&mut shell, 0);
}

/// L1: sent into the background and fetched again without having stopped, so that nobody told `tenure`.
#[test]
fn ctrl_z_after_bg_and_fg_stops_the_command() {
    let stage = Jobs::new();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure run job -- sh idler\n");
    shell.sees("started");
    shell.types("\x1a");
    shell.sees("Stopped");
    shell.types("bg\n");
    shell.sees("ready> ");
    let pid: i32 = stage.number("pid.job");
    eventually("the command goes on", PATIENCE, || (state(pid) != 'T').then_some(()));
    shell.types("fg\n");
    eventually("the job has the terminal", PATIENCE, || (shell.foreground() != shell.pid()).then_some(()));
    shell.types("\x1a");
    shell.sees("Stopped");
    is_stopped(&stage);
    stage.go();
    shell.types("fg\n");
    shell.sees("finished");
    code(&mut shell, 0);
}

/// L6: a CONT that came while TSTP was handled was handled first. Then `tenure` stopped itself, nothing continued it, and its
/// lease expired.
#[test]
fn a_stop_that_was_cancelled_stops_nothing() {
    let stage = Jobs::new();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure run job -- sh idler </dev/null\n");
    shell.sees("started");
    let pid = Pid::from_raw(stage.number("pid.tenure"));
    for _ in 0..100 {
        kill(pid, Signal::SIGTSTP).unwrap();
        kill(pid, Signal::SIGCONT).unwrap();
    }
    for process in ["pid.job", "pid.tenure"] {
        let pid = stage.number(process);
        eventually("it goes on", PATIENCE, || (state(pid) != 'T').then_some(()));
    }
    stage.go();
    shell.sees("finished");
    // The shell may have seen a stop between two signals.
    eventually("the lock is free", PATIENCE, || {
        stage.json(&["ls"]).as_array().unwrap().is_empty().then_some(())
    });
}

/// Waiting is suspended and continued as well.
#[test]
fn ctrl_z_suspends_a_wait() {
    let stage = Jobs::new();
    let lease: serde_json::Value =
        serde_json::from_str(&stage.run(&["lock", "job", "--ttl", "1h"]).out).unwrap();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure run job -- sh reader\n");
    eventually("it waits", PATIENCE, || (!stage.queue("job").is_empty()).then_some(()));
    shell.types("\x1a");
    shell.sees("Stopped");
    shell.types("fg\n");
    stage.run(&["unlock", "job", lease["owner"].as_str().unwrap()]).silent(0);
    shell.sees("started");
    shell.types("hello\n");
    shell.sees("got hello");
    code(&mut shell, 0);
}

/// A leader that campaigns again was deaf to Ctrl-Z, which it had handled for its command.
#[test]
fn ctrl_z_suspends_a_leader_that_campaigns_again() {
    let stage = Jobs::new();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure lead job -- sh idler\n");
    shell.sees("started");
    let mut next = stage.start_waiter("job", &["run", "job", "--", "sh", "-c", WAITER]);
    stage.run(&["-q", "break", "job"]).silent(0);
    shell.sees("Campaigning again");
    eventually("it waits", PATIENCE, || (!stage.queue("job").is_empty()).then_some(()));
    let [front, _] = front_and_worker(&stage);
    for _ in 0..2 {
        // More than once, because a stop that comes with the CONT of `fg` is dropped.
        eventually("it is stopped", PATIENCE, || {
            shell.types("\x1a");
            thread::sleep(Duration::from_millis(100));
            (state(front.as_raw()) == 'T').then_some(())
        });
        shell.sees("Stopped");
        shell.sees("ready> ");
        shell.types("fg\n");
        eventually("the job has the terminal", PATIENCE, || {
            (shell.foreground() != shell.pid()).then_some(())
        });
    }
    assert!(next.is_running());
    stage.touch("go.next");
    next.ended().silent(0);
    shell.sees("started");
    stage.go();
    shell.sees("finished");
    code(&mut shell, 0);
}

/// Ctrl-Z is meant for all of the job: here for the script as well that started `tenure`.
#[test]
fn ctrl_z_suspends_a_script_with_the_command_that_it_runs() {
    let stage = Jobs::new();
    fs::write(stage.path("script"), "$tenure run job -- sh reader; echo scri''pt done").unwrap();
    let mut shell = Screen::shell(&stage);
    shell.types("sh script\n");
    shell.sees("started");
    shell.types("\x1a");
    shell.sees("Stopped");
    is_stopped(&stage);
    shell.types("fg\n");
    let pid: i32 = stage.number("pid.job");
    eventually("the command has the terminal", PATIENCE, || (shell.foreground() == pid).then_some(()));
    shell.types("hello\n");
    shell.sees("got hello");
    shell.sees("script done");
    code(&mut shell, 0);
}

/// Where no shell could ever continue it, nothing is suspended for good: as with any other program there.
#[test]
fn ctrl_z_without_a_shell_does_not_hang_the_terminal() {
    let stage = Jobs::new();
    let mut screen =
        Screen::start(&stage, &[env!("CARGO_BIN_EXE_tenure"), "run", "job", "--", "sh", "reader"]);
    screen.sees("started");
    screen.types("\x1a");
    screen.sees("^Z");
    screen.types("hello\n");
    screen.sees("got hello");
    assert_eq!(screen.ended(), 0);
}

/// In a pipeline the keyboard may be somebody else's, as a pager's; a command that reads gets it when it does.
#[test]
fn a_pager_behind_the_command_keeps_the_keyboard() {
    let stage = Jobs::new();
    fs::write(stage.path("pager"), "read line; echo page of $line; read key </dev/tty; echo key is $key")
        .unwrap();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure run job -- sh idler | sh pager\n");
    shell.sees("page of started");
    shell.types("up\n");
    shell.sees("key is up");
    stage.go();
    shell.sees("ready> ");
    shell.types("$tenure run job -- sh reader | cat\n");
    shell.sees("started");
    shell.types("down\n");
    shell.sees("got down");
}

/// L1: somebody in the group who is deaf to Ctrl-Z is stopped as well: nobody renews the lease meanwhile.
#[test]
fn ctrl_z_stops_those_who_are_deaf_to_it() {
    let stage = Jobs::new();
    // It starts no other program, for the reason that stands at `IDLER`.
    let deaf = "(trap '' TSTP; while :; do :; done) & echo $! >pid.deaf; read x <go; kill $!; wait";
    fs::write(
        stage.path("family"),
        format!("echo $PPID >pid.tenure; echo $$ >pid.job; echo started; {deaf}"),
    )
    .unwrap();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure run job -- sh family\n");
    shell.sees("started");
    let pid: i32 = stage.number("pid.deaf");
    shell.types("\x1a");
    shell.sees("Stopped");
    is_stopped(&stage);
    eventually("the deaf one is stopped", PATIENCE, || (state(pid) == 'T').then_some(()));
    shell.types("fg\n");
    eventually("it goes on", PATIENCE, || (state(pid) != 'T').then_some(()));
    stage.go();
    shell.sees("ready> ");
}

/// Where nobody could ever give it the terminal, a command that reads gets an error, as it would alone. Once `tenure` let it go
/// on each time that it was stopped for that, so that both turned round for ever and held the lock.
#[test]
fn a_command_that_reads_behind_the_back_of_the_shell_gets_an_error() {
    let stage = Jobs::new();
    let mut shell = Screen::shell(&stage);
    fs::write(stage.path("orphan"), "sleep 0.5; exec $tenure run job -- sh reader").unwrap();
    shell.types("(sh orphan &)\n");
    shell.sees("started");
    shell.sees("got");
    eventually("the lock is free", PATIENCE, || {
        stage.json(&["ls"]).as_array().unwrap().is_empty().then_some(())
    });
    shell.types("echo sti''ll here\n");
    shell.sees("still here");
    assert!(!shell.all().contains("tenure: "), "{}", shell.all());
}

/// The same for what cannot be answered with an error: HUP, as the system has it, and the lock is free.
#[test]
fn a_command_that_sets_up_a_terminal_that_it_cannot_have_is_hung_up() {
    let stage = Jobs::new();
    let mut shell = Screen::shell(&stage);
    fs::write(stage.path("setter"), "echo started; stty -echo </dev/tty; echo finished").unwrap();
    fs::write(stage.path("orphan"), "sleep 0.5; $tenure run job -- sh setter; echo co''de $?.").unwrap();
    shell.types("(sh orphan &)\n");
    shell.sees("started");
    shell.sees("the command reads from a terminal");
    shell.sees("code 129.");
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
    assert!(!shell.all().contains("finished"));
}

/// L6: on a terminal with `stty tostop` a line of `tenure`, which is in the background while its command has the terminal, was a
/// stop: it renewed no more, and the command was killed although the store was there again.
#[test]
fn a_line_of_tenure_does_not_stop_it() {
    let stage = Jobs::new();
    let (_, text) = scaled_ttl(Duration::from_secs(5));
    let mut shell = Screen::shell(&stage);
    shell.types(&format!("stty tostop; $tenure run -v --ttl {text} job -- sh idler\n"));
    shell.sees("started");
    let hog = stage.hog();
    shell.sees("a renewal failed");
    drop(hog);
    assert_ne!(state(stage.number("pid.tenure")), 'T');
    stage.go();
    shell.sees("finished");
    code(&mut shell, 0);
}

/// The same for a job in the background, and for the step between `tenure` and the command. The command itself is stopped when it
/// writes, as any other program is.
#[test]
fn a_job_in_the_background_of_a_terminal_that_stops_writers_says_why_it_ends() {
    let stage = Jobs::new();
    let holder = stage.start(&["run", "held", "--", "sh", "idler"]);
    eventually("it is held", PATIENCE, || stage.path("pid.job").exists().then_some(()));
    let mut shell = Screen::shell(&stage);
    shell.types("stty tostop\n");
    shell.sees("ready> ");
    shell.types("$tenure run -n held -- true &\n");
    shell.sees("held: not acquired: held by");
    shell.types("wait $!; echo co''de $?.\n");
    shell.sees("code 1.");
    shell.types("$tenure run job -- ./nosuch &\n");
    shell.sees("./nosuch: not found");
    shell.types("wait $!; echo co''de $?.\n");
    shell.sees("code 127.");
    stage.go();
    holder.ended().silent(0);
    fs::remove_file(stage.path("pid.job")).unwrap();
    shell.types("$tenure run job -- sh idler &\n");
    is_stopped(&stage);
    shell.types("fg\n");
    shell.sees("started");
    stage.go();
    shell.sees("finished");
}

//! A command in a shell on a terminal behaves under `tenure` as it does without, for each standard input, way to start it
//! and event. [`REASONS`] lists the differences.

#![cfg(target_os = "linux")]

use std::{fs, thread, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tenure_testkit::patience::eventually;

use crate::screen::Screen;
use crate::stage::{PATIENCE, Stage, process::is_alive};

/// The standard input: its name, and what is typed before and after the command.
const INPUTS: [(&str, &str, &str); 4] =
    [("terminal", "", ""), ("pipe", "echo data | ", ""), ("null", "", " </dev/null"), ("here", "", " <doc")];

/// How it is started: typed; by a script; by a script that `exec`s it; without an interactive shell.
const STARTS: [&str; 4] = ["typed", "dash", "exec", "alone"];

/// A command that asks on the terminal, and one that runs until a signal; each writes how it ended.
const ASKS: &str = "echo $$ >pid; printf 'name? ' >/dev/tty; read x </dev/tty; echo got $x; echo $x >end";
const WORKS: &str = "trap 'echo int >>end; exit 7' INT; trap 'echo hup >>end; exit 8' HUP; trap 'echo term >>end; exit 9' TERM; \
                     echo $$ >pid; while :; do sleep 0.05; done";
/// The same without traps.
const PLAIN: &str = "echo $$ >pid; exec sleep 600";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    AsksOnTheTerminal,
    CtrlC,
    CtrlCTwiceToATrap,
    CtrlZAndFg,
    CtrlSAndCtrlQ,
    HangUp,
    Killed,
}

const EVENTS: [Event; 7] = [
    Event::AsksOnTheTerminal,
    Event::CtrlC,
    Event::CtrlCTwiceToATrap,
    Event::CtrlZAndFg,
    Event::CtrlSAndCtrlQ,
    Event::HangUp,
    Event::Killed,
];

/// The differences, with their reasons.
const REASONS: [(Event, &str); 1] = [(
    Event::Killed,
    "who kills `tenure` kills what holds the lock: its command ends with it. A plain command of a shell that is killed goes on",
)];

/// A terminal with a shell in which the command runs.
struct Cell {
    stage: Stage,
    shell: Screen,
    is_under_tenure: bool,
}

impl Cell {
    fn start(input: usize, start: &str, event: Event, is_under_tenure: bool) -> Self {
        let stage = Stage::new();
        let command = match event {
            Event::AsksOnTheTerminal => ASKS,
            Event::CtrlCTwiceToATrap | Event::HangUp => WORKS,
            _ => PLAIN,
        };
        fs::write(stage.path("command"), command).unwrap();
        fs::write(stage.path("doc"), "data\n").unwrap();
        let (_, before, behind) = INPUTS[input];
        let tenure = if is_under_tenure { "$tenure run --ttl 60s job -- " } else { "" };
        let line = format!("{before}{tenure}sh ./command{behind}");
        fs::write(stage.path("dash"), format!("{line}; echo $? >code")).unwrap();
        fs::write(stage.path("exec"), format!("{before}exec {tenure}sh ./command{behind}")).unwrap();
        let shell = match start {
            "alone" => Screen::start(&stage, &["sh", "-c", &format!("{line}; echo $? >code; echo done")]),
            _ => {
                let mut shell = Screen::shell(&stage);
                shell.types(&match start {
                    "typed" => format!("{line}; echo $? >code\n"),
                    script => format!("dash ./{script}; echo $? >code\n"),
                });
                shell
            }
        };
        let cell = Self { stage, shell, is_under_tenure };
        let _: i32 = cell.stage.number("pid");
        cell
    }

    fn pid(&self) -> i32 {
        self.stage.number("pid")
    }

    fn has_ended(&self) {
        let pid = self.pid();
        eventually("the command has ended", PATIENCE, || (!is_alive(pid)).then_some(()));
    }

    /// The exit code, and what the command wrote.
    fn outcome(&self) -> String {
        self.has_ended();
        let code: String = eventually("the shell has gone on", PATIENCE, || {
            fs::read_to_string(self.stage.path("code")).ok().filter(|code| code.ends_with('\n'))
        });
        format!("code {} said {:?}", code.trim(), self.stage.lines("end"))
    }

    fn is_free(&self) -> bool {
        self.stage.run(&["run", "-n", "job", "--", "true"]).code == 0
    }

    fn play(&mut self, event: Event, start: &str) -> String {
        let outcome = match event {
            Event::AsksOnTheTerminal => {
                self.shell.sees("name? ");
                self.shell.types("secret\n");
                self.outcome()
            }
            Event::CtrlC => {
                self.shell.types("\x03");
                // A script without a trap ends with its command.
                self.has_ended();
                "ended".to_owned()
            }
            Event::CtrlCTwiceToATrap => {
                self.shell.types("\x03");
                self.shell.types("\x03");
                self.has_ended();
                format!("said {:?}", self.stage.lines("end").first())
            }
            Event::CtrlZAndFg if start == "alone" => {
                // No shell could continue it, so nothing is suspended.
                self.shell.types("\x1a");
                let is_there = is_alive(self.pid());
                kill(Pid::from_raw(self.pid()), Signal::SIGKILL).unwrap();
                format!("there {is_there}")
            }
            Event::CtrlZAndFg => {
                self.shell.types("\x1a");
                self.shell.sees("Stopped");
                self.shell.sees("ready> ");
                self.shell.types("fg\n");
                let pid = self.pid();
                let what = format!("it goes on; the terminal shows {:?}", self.shell.all());
                eventually(&what, PATIENCE, || {
                    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
                    stat.contains(") S ").then_some(())
                });
                self.shell.types("\x03");
                self.has_ended();
                "went on and ended".to_owned()
            }
            Event::CtrlSAndCtrlQ => {
                self.shell.types("\x13");
                thread::sleep(Duration::from_millis(300));
                let is_there = is_alive(self.pid());
                self.shell.types("\x11\x03");
                self.has_ended();
                format!("there {is_there}")
            }
            Event::HangUp => {
                let pid = self.pid();
                self.shell.hang_up();
                eventually("the command has ended", PATIENCE, || (!is_alive(pid)).then_some(()));
                format!("said {:?}", self.stage.lines("end").first())
            }
            Event::Killed => {
                let parent = parent(self.pid());
                kill(Pid::from_raw(parent), Signal::SIGKILL).unwrap();
                let pid = self.pid();
                thread::sleep(Duration::from_millis(300));
                if self.is_under_tenure {
                    self.has_ended();
                }
                let is_there = is_alive(pid);
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                format!("there {is_there}")
            }
        };
        if self.is_under_tenure && event != Event::Killed {
            eventually("the lock is free", PATIENCE, || self.is_free().then_some(()));
        }
        outcome
    }
}

fn parent(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    line.trim().parse().unwrap()
}

/// One event, with all inputs and ways to start.
fn row(event: Event) {
    for start in STARTS {
        let cells: Vec<_> = (0..INPUTS.len())
            .map(|input| {
                thread::spawn(move || {
                    let [plain, under] = [false, true]
                        .map(|is_under| Cell::start(input, start, event, is_under).play(event, start));
                    (INPUTS[input].0, plain, under)
                })
            })
            .collect();
        for cell in cells {
            let (input, plain, under) = cell.join().unwrap();
            if !REASONS.iter().any(|(what, _)| *what == event) {
                assert_eq!(plain, under, "{event:?}, {start}, {input}: plain, and under tenure");
            }
        }
    }
}

macro_rules! rows {
    ($($name:ident: $event:ident),*) => {
        $(
            #[test]
            fn $name() {
                row(Event::$event);
            }
        )*

        #[test]
        fn each_thing_that_happens_is_a_row() {
            let rows = [$(Event::$event),*];
            assert!(EVENTS.iter().all(|event| rows.contains(event)));
            assert!(REASONS.iter().all(|(event, why)| rows.contains(event) && !why.is_empty()));
        }
    };
}

rows!(
    asks_on_the_terminal: AsksOnTheTerminal,
    ctrl_c: CtrlC,
    ctrl_c_twice_to_a_trap: CtrlCTwiceToATrap,
    ctrl_z_and_fg: CtrlZAndFg,
    ctrl_s_and_ctrl_q: CtrlSAndCtrlQ,
    hang_up: HangUp,
    killed: Killed
);

/// `kill -STOP` of `tenure`: the shell takes the terminal, and one `fg` returns it to the command.
#[test]
fn one_fg_is_enough_after_a_stop() {
    let stage = Stage::new();
    let command = "echo $PPID >pid; echo started; until [ -e go ]; do sleep 0.05; done; read x; echo got $x";
    fs::write(stage.path("command"), command).unwrap();
    let mut shell = Screen::shell(&stage);
    shell.types("$tenure run job -- sh ./command\n");
    shell.sees("started");
    kill(Pid::from_raw(stage.number("pid")), Signal::SIGSTOP).unwrap();
    shell.sees("Stopped");
    shell.types("fg\n");
    shell.sees("./command");
    stage.touch("go");
    shell.types("hello\n");
    shell.sees("got hello");
}

/// L6: after Ctrl-Z and `fg` of a pipeline the command got the terminal. Then the next read of `cat` stopped `cat` and
/// `tenure`, and no renewal followed.
#[test]
fn fg_of_a_pipeline_leaves_the_keyboard_to_it() {
    let stage = Stage::new();
    fs::write(stage.path("command"), PLAIN).unwrap();
    let mut shell = Screen::shell(&stage);
    shell.types("cat | $tenure run --ttl 60s job -- sh ./command\n");
    let pid: i32 = stage.number("pid");
    shell.types("\x1a");
    shell.sees("Stopped");
    shell.sees("ready> ");
    shell.types("fg\n");
    eventually("it goes on", PATIENCE, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.contains(") S ").then_some(())
    });
    thread::sleep(Duration::from_millis(300));
    assert_ne!(shell.foreground(), pid);
    shell.types("\x03");
    eventually("it has ended", PATIENCE, || (!is_alive(pid)).then_some(()));
}

/// A menu that reads each key itself exits with 130 if nothing was chosen. No signal was sent, so a loop around it
/// continues.
#[test]
fn an_exit_with_130_of_a_menu_ends_no_loop() {
    let stage = Stage::new();
    let menu = "old=$(stty -g); stty raw -echo; echo up; head -c 1 >/dev/null; stty $old; exit 130";
    fs::write(stage.path("menu"), menu).unwrap();
    let script = "for i in 1 2; do $tenure run job -- sh ./menu; echo code $?; done; echo over";
    let mut screen = Screen::start(&stage, &["sh", "-c", script]);
    for _ in 0..2 {
        screen.sees("up");
        thread::sleep(Duration::from_millis(200));
        screen.types("\x1b");
        screen.sees("code ");
    }
    screen.sees("over");
    assert_eq!(screen.ended(), 0);
}

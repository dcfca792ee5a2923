//! On a terminal: who has the foreground, what Ctrl-C reaches, what a waiting person sees.

#![cfg(target_os = "linux")]

use crate::screen::Screen;
use crate::stage::{Process, Stage, files::HOLD};

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// `psql` and its like read what is typed.
#[test]
fn an_interactive_command_reads_what_is_typed() {
    let stage = Stage::new();
    let mut screen = Screen::start(&stage, &[TENURE, "run", "job", "--", "sh", "-c", "read x; echo got $x"]);
    screen.types("hello\n");
    screen.sees("got hello");
    assert_eq!(screen.ended(), 0);
}

/// A command that reads the terminal would be stopped by it in the background.
#[test]
fn the_command_has_the_foreground_of_the_terminal() {
    let stage = Stage::new();
    let look = "set -- $(cat /proc/$$/stat); echo pid $1 group $5 foreground $8.; read x";
    let mut screen = Screen::start(&stage, &[TENURE, "run", "job", "--", "sh", "-c", look]);
    screen.sees("foreground ");
    let group = screen.foreground();
    assert_ne!(group, screen.pid());
    screen.types("\n");
    assert_eq!(screen.ended(), 0);
    let expected = format!("pid {group} group {group} foreground {group}.");
    assert!(screen.all().contains(&expected), "{expected}: {}", screen.all());
}

/// It is the command's to decide what Ctrl-C means; `tenure` itself never hears of it.
#[test]
fn ctrl_c_reaches_the_command_and_only_it() {
    let stage = Stage::new();
    let deaf = "trap 'echo heard' INT; echo started; until [ -e go ]; do sleep 0.05; done; exit 7";
    let mut screen = Screen::start(&stage, &[TENURE, "run", "job", "--", "sh", "-c", deaf]);
    screen.sees("started");
    screen.types("\x03");
    screen.sees("heard");
    assert_eq!(stage.show("job")["holders"].as_array().unwrap().len(), 1);
    stage.touch("go");
    assert_eq!(screen.ended(), 7);
    assert_eq!(screen.all().matches("heard").count(), 1, "{}", screen.all());
    let mut screen =
        Screen::start(&stage, &[TENURE, "run", "job", "--", "sh", "-c", "echo started; exec sleep 60"]);
    screen.sees("started");
    screen.types("\x03");
    assert_eq!(screen.ended(), 130);
}

/// Whoever started `tenure` reads on afterwards.
#[test]
fn the_terminal_is_given_back_afterwards() {
    let stage = Stage::new();
    let script = "$tenure run job -- true; read x; echo back $x";
    let mut screen = Screen::start(&stage, &["sh", "-c", script]);
    screen.types("again\n");
    screen.sees("back again");
    assert_eq!(screen.ended(), 0);
}

/// A command that was killed in the middle of something does not leave a terminal that shows nothing.
#[test]
fn a_terminal_is_usable_after_a_command_that_had_to_be_killed() {
    let stage = Stage::new();
    let script = "$tenure run --max-hold 300ms --grace 0s job -- sh -c 'stty -echo; sleep 60'; echo code $?
        stty -a | tr ' ;' '\n\n' | grep -x -e echo -e -echo; read x; echo back $x";
    let mut screen = Screen::start(&stage, &["sh", "-c", script]);
    screen.sees("code 79");
    screen.sees("\necho\r");
    screen.types("again\n");
    screen.sees("back again");
}

fn holder(stage: &Stage) -> Process {
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    holder
}

/// A person sees who holds it, the place in the queue and the time.
#[test]
fn a_waiting_person_sees_the_holder_the_place_and_the_time() {
    let stage = Stage::new();
    let holder = holder(&stage);
    let first = stage.start_waiter("job", &["run", "job", "--", "true"]);
    let mut screen = Screen::start(&stage, &[TENURE, "run", "job", "--", "echo", "entered"]);
    screen.sees("job: waiting for ");
    screen.sees(&format!("pid {} sh since ", holder.pid()));
    screen.sees(", 1 ahead");
    stage.touch("go");
    screen.sees("\x1b[2K");
    screen.sees("entered");
    assert_eq!(screen.ended(), 0);
    for process in [holder, first] {
        process.ended().silent(0);
    }
}

/// What another client wrote into the store is not on the line of a waiter: it paints nothing, sets no title and makes no line.
#[test]
fn what_a_store_holds_cannot_act_on_the_terminal_of_who_waits() {
    let mut stage = Stage::on_redis();
    stage.server().command(&[
        "SET",
        "job",
        "evil\x1b]0;owned\x07\r\ntenure: forged\u{202e}\x1b[31m",
        "PX",
        "60000",
    ]);
    let mut screen = Screen::start(&stage, &[TENURE, "run", "job", "--", "true"]);
    screen.sees("held by a client that is not Tenure");
    screen.types("\x03");
    assert_eq!(screen.ended(), 130);
    let all = screen.all();
    for bad in ["evil", "\x1b]", "\x07", "\ntenure: forged", "\rtenure: forged", "\u{202e}", "\x1b[31m"] {
        assert!(!all.contains(bad), "{bad:?} is in {all:?}");
    }
}

/// Nothing of it in a pipe, nor with `--quiet`.
#[test]
fn waiting_is_silent_in_a_pipe_and_if_asked_to_be_quiet() {
    let stage = Stage::new();
    let holder = holder(&stage);
    let arguments = ["run", "-w", "700ms", "job", "--", "true"];
    let piped = stage.start(&arguments);
    let mut quiet = Screen::start(&stage, &[&[TENURE, "--quiet"], &arguments[..]].concat());
    piped.ended().complained(1, "held by");
    assert_eq!(quiet.ended(), 1);
    assert_eq!(quiet.all(), "");
    stage.touch("go");
    holder.ended().silent(0);
}

/// Colour only where it is wanted.
#[test]
fn no_color_is_respected() {
    let stage = Stage::new();
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let _hog = stage.hog();
    let coloured = |text: &str| {
        text.split("\x1b[")
            .skip(1)
            .any(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'))
    };
    for (environment, is_coloured) in
        [(&[][..], true), (&[("NO_COLOR", "1")], false), (&[("NO_COLOR", "")], true)]
    {
        let program = [TENURE, "-vv", "run", "-w", "400ms", "job", "--", "true"];
        let mut screen = Screen::start_with(&stage, &program, environment);
        screen.sees("a claim failed");
        screen.sees("tenure: ");
        assert_eq!(screen.ended(), 69);
        assert_eq!(coloured(&screen.all()), is_coloured, "{environment:?}: {:?}", screen.all());
    }
}

/// L8: typed, not sent.
#[test]
fn ctrl_c_while_waiting_leaves_no_waiter_behind() {
    let stage = Stage::new();
    let holder = holder(&stage);
    let mut screen = Screen::start(&stage, &[TENURE, "run", "job", "--", "touch", "ran"]);
    screen.sees("waiting");
    assert_eq!(stage.queue("job").len(), 1);
    screen.types("\x03");
    assert_eq!(screen.ended(), 130);
    assert!(stage.queue("job").is_empty());
    stage.touch("go");
    holder.ended().silent(0);
    assert!(!stage.path("ran").exists());
}

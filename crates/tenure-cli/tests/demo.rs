//! The picture at the top of README: two terminals, drawn from what they showed. It is committed, compared here, and
//! written anew when asked.

#![cfg(target_os = "linux")]

use std::{env, fs, os::unix::fs::PermissionsExt, path::Path, time::Instant};

use nix::sys::signal::Signal;
use tenure_picture::terminals::{Kind, Row, Terminals, words};
use tenure_testkit::patience::eventually;

use crate::{
    screen::Screen,
    stage::{PATIENCE, Stage, process::is_alive},
};

/// With this variable the picture is written, not compared.
const WRITE: &str = "TENURE_WRITE_DEMO";

const HOW: &str = "TENURE_WRITE_DEMO=1 cargo test -p tenure-cli --test tests demo";

/// What is typed into both terminals.
const TYPED: &str = "tenure run --ttl 3s deploy -- ./deploy.sh";

const JOB: &str = "#!/bin/sh
echo $$ >>pids
echo \"deploying with token $TENURE_TOKEN\"
until [ -e go ]; do sleep 0.1; done
";

/// What a waiting terminal repaints; the last thing that it showed of it.
fn waits(screen: &Screen) -> String {
    let all = screen.all();
    let painted = all.rsplit("\x1b[2K").find(|line| line.contains("held by")).unwrap().trim();
    // Its first letter turns.
    painted.split_once(' ').unwrap().1.to_owned()
}

/// What is typed, in a shell that outlives it, as on a terminal.
fn terminal(stage: &Stage) -> Screen {
    let script = format!("{}; exit", TYPED.replacen("tenure", "$tenure", 1));
    Screen::start(stage, &["sh", "-c", &script])
}

/// Two terminals, one lock: the second command waits, the first is killed, the second acquires the lock.
fn play() -> Terminals {
    let stage = Stage::new();
    fs::write(stage.path("deploy.sh"), JOB).unwrap();
    fs::set_permissions(stage.path("deploy.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let (begun, mut rows) = (Instant::now(), Vec::new());
    let mut row = |terminal, kind, text: &str| {
        rows.push(Row { at: begun.elapsed(), terminal, kind, text: text.to_owned() });
    };
    let token = |screen: &Screen| {
        let all = screen.all();
        let (_, token) = all.rsplit_once("deploying with token ").unwrap();
        token.split_whitespace().next().unwrap().to_owned()
    };
    row(0, Kind::Typed, TYPED);
    let mut first = terminal(&stage);
    first.sees("deploying with token ");
    first.sees("\n");
    row(0, Kind::Printed, &format!("deploying with token {}", token(&first)));
    row(1, Kind::Typed, TYPED);
    let mut second = terminal(&stage);
    // As often as a person needs to read it.
    for _ in 0..20 {
        second.sees("held by ");
    }
    let label = stage.show("deploy")["holders"][0]["label"].clone();
    // The picture is published: it does not show the name of this host.
    let host = format!("held by {} ", label["host"].as_str().unwrap());
    row(1, Kind::Printed, &waits(&second).replace(&host, "held by web-1 "));
    let holder = i32::try_from(label["pid"].as_i64().unwrap()).unwrap();
    row(0, Kind::Event, &format!("tenure is killed: kill -9 {holder}"));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(holder), Signal::SIGKILL).unwrap();
    first.sees("Killed");
    row(0, Kind::Printed, "Killed");
    let job: i32 = stage.lines("pids")[0].parse().unwrap();
    eventually("the job of the killed command is stopped", PATIENCE, || (!is_alive(job)).then_some(()));
    row(0, Kind::Event, "deploy.sh was stopped with it, and the lock is free");
    second.sees("deploying with token ");
    second.sees("\n");
    let (older, newer) = (token(&first), token(&second));
    assert!(newer.parse::<u64>().unwrap() > older.parse().unwrap(), "{older} {newer}");
    row(1, Kind::Printed, &format!("deploying with token {newer}"));
    stage.touch("go");
    assert_eq!(second.ended(), 0);
    Terminals {
        title: "Two terminals run the same command under one lock".into(),
        description:
            "The second command waits and shows the holder. The first is killed: its job is stopped, and the \
                      second command acquires the lock with a greater token."
                .into(),
        names: vec!["terminal 1".into(), "terminal 2".into()],
        rows,
    }
}

#[test]
fn the_picture_in_the_readme_has_the_words_that_two_terminals_show() {
    let played = play();
    let svg = played.svg();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images/demo.svg");
    if env::var_os(WRITE).is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &svg).unwrap();
    }
    let shown = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(words(&shown), words(&svg), "docs/images/demo.svg is not what the terminals show: {HOW}");
}

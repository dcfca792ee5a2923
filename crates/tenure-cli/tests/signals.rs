//! Signals that were ignored or blocked at the start, and a limit on the size of files.

#![cfg(target_os = "linux")]

use std::{fs, os::unix::net::UnixDatagram, time::Duration};

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
    PATIENCE, Process, Stage, an_owner,
    files::{BEAT, HOLD},
    process::{Ended, is_alive},
};

/// Becomes a program with these signals ignored, and with those blocked.
const BEQUEATH: &str =
    "use POSIX; my ($ignored, $blocked) = (shift, shift); $SIG{$_} = 'IGNORE' for split ',', $ignored;
    my @blocked = map { eval \"SIG$_\" } split ',', $blocked;
    sigprocmask(SIG_BLOCK, POSIX::SigSet->new(@blocked)) if @blocked; exec @ARGV";

/// The line of `/proc/self/status` with this key, as a command shows it.
fn mask(ended: &Ended, key: &str) -> u64 {
    let line =
        ended.out.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{ended:?}"));
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// PIPE was default in the command, and once what `tenure` needs for itself was changed it would have been so for others. Only
/// CHLD, without which `tenure` would not hear of the command's end, is default there.
#[test]
fn the_command_has_the_signals_that_tenure_was_started_with() {
    let stage = Stage::new();
    let show = ["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"];
    let chld = 1 << (nix::sys::signal::SIGCHLD as i32 - 1);
    // Signals of the C library, which ignores them in what `posix_spawn` starts.
    let own = 0b11 << 31;
    for (ignored, blocked) in [
        ("", ""),
        ("PIPE", ""),
        ("XFSZ,TTOU,TTIN,TSTP,HUP,INT,QUIT,TERM,PIPE,USR1,CHLD", ""),
        ("", "XFSZ,TTOU,USR1,PIPE"),
        ("XFSZ,TTOU", "XFSZ,TTOU"),
        ("PIPE", "TTOU"),
    ] {
        let start = |program: Vec<String>| {
            let mut command = stage.program("perl");
            command.args(["-e", BEQUEATH, ignored, blocked]).args(program);
            let ended = stage.run_command(command);
            assert_eq!(ended.code, 0, "{ended:?}");
            ended
        };
        let alone = start(show.map(str::to_owned).to_vec());
        let tenure = [&[env!("CARGO_BIN_EXE_tenure"), "run", "job", "--"], &show[..]].concat();
        let under = start(tenure.into_iter().map(str::to_owned).collect());
        for (key, but) in [("SigBlk:", 0), ("SigIgn:", chld | own)] {
            let [alone, under] = [&alone, &under].map(|ended| mask(ended, key) & !but);
            assert_eq!(under, alone, "{key} {under:x} {alone:x}, ignored {ignored}, blocked {blocked}");
        }
    }
}

/// A file at its limit was a death by XFSZ: of the store, or that for the output. It is an error; for the command it is what it was.
#[test]
fn a_file_at_its_limit_is_an_error() {
    let stage = Stage::new();
    let limited = |stage: &Stage, limit: u32, arguments: &[&str]| {
        let mut shell = stage.program("sh");
        shell.args(["-c", &format!("ulimit -f {limit}; exec \"$@\""), "sh"]);
        shell.arg(env!("CARGO_BIN_EXE_tenure")).args(arguments);
        stage.run_command(shell)
    };
    limited(&stage, 1, &["run", "-n", "job", "--", "touch", "ran"]).complained(69, "disk");
    limited(&stage, 0, &["--version"]).mute(70);
    limited(&stage, 0, &["run", "--nosuch"]).mute(64);
    assert!(!stage.path("ran").exists());
    assert_eq!(stage.run(&["run", "job", "--", "sh", "-c", "ulimit -f 0; echo x >full"]).code, 153);
    // The step between `tenure` and the command has something to say, too.
    limited(&Stage::on_redis(), 0, &["run", "job", "--", "./nosuch"]).mute(127);
}

/// What people and programs send.
const SENT: [&str; 15] = [
    "HUP", "QUIT", "USR1", "USR2", "ALRM", "WINCH", "CONT", "VTALRM", "PROF", "IO", "PWR", "RTMIN",
    "RTMIN+5", "RTMAX-1", "RTMAX",
];

/// Notes each signal that comes, until `go` is there.
const NOTER: &str = "exec 2>/dev/null; for s in $0; do trap \"echo $s >>heard\" $s; done; echo >started
    until [ -e go ]; do sleep 0.05; done";

/// Sends a signal, which may be one without a name.
fn send(stage: &Stage, process: &Process, signal: &str) {
    let mut kill = stage.program("bash");
    kill.args(["-c", "kill -s $0 $1", signal, &process.pid().to_string()]);
    stage.run_command(kill).mute(0);
}

/// Those beside INT, TERM and HUP ended `tenure`, and its command got KILL: a reload, a rotated log, a larger window.
#[test]
fn each_signal_goes_on_to_the_command_once() {
    let stage = Stage::new();
    let owner = &*an_owner();
    for verb in [&["run", "job"][..], &["lead", "job"], &["attach", "job", owner]] {
        if verb[0] == "attach" {
            stage.run(&["lock", "job", "--ttl", "20s", "--owner", owner]).silent(0);
        }
        let holder = stage.start(&[verb, &["--", "bash", "-c", NOTER, &SENT.join(" ")]].concat());
        stage.has_lines("started", 1);
        for (number, signal) in SENT.iter().enumerate() {
            send(&stage, &holder, signal);
            stage.has_lines("heard", number + 1);
        }
        stage.touch("go");
        holder.ended().silent(0);
        assert_eq!(stage.lines("heard"), SENT);
        for file in ["started", "heard", "go"] {
            fs::remove_file(stage.path(file)).unwrap();
        }
    }
}

/// A waiter has no command yet: such a signal neither ends the wait nor the command that starts later.
#[test]
fn what_is_for_a_command_does_not_end_a_wait() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let mut waiter = stage.start_waiter("job", &["run", "job", "--", "touch", "ran"]);
    for signal in SENT.iter().filter(|signal| !["HUP", "QUIT"].contains(signal)) {
        send(&stage, &waiter, signal);
    }
    waiter.runs_on(Duration::from_millis(300));
    stage.touch("go");
    holder.ended().silent(0);
    waiter.ended().silent(0);
    assert!(stage.path("ran").exists());
}

/// L1: it is killed, with what it left, and the lock is held until all are gone.
#[test]
fn a_second_signal_kills_the_command_and_what_it_left() {
    for (command, code) in [
        ("exec sh deaf", 137),
        ("echo $$ >pid.command; sh deaf & exit 3", 3),
        ("echo $$ >pid.command; timeout 600 sh deaf & exit 3", 3),
    ] {
        let stage = Stage::new();
        let deaf = "trap 'echo told >>told' TERM; echo $$ >pid.deaf; while :; do sleep 0.05; done";
        fs::write(stage.path("deaf"), deaf).unwrap();
        let mut holder = stage.start(&["run", "job", "--", "sh", "-c", command]);
        let pid: i32 = stage.number("pid.deaf");
        if code == 3 {
            stage.dies("pid.command");
        }
        holder.signal(Signal::SIGTERM);
        stage.has_lines("told", 1);
        // A stop that arrives twice counts once.
        holder.signal(Signal::SIGTERM);
        holder.runs_on(Duration::from_millis(1100));
        stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
        holder.signal(Signal::SIGTERM);
        let ended = holder.ended();
        assert_eq!(ended.code, code, "{ended:?}");
        assert!(!is_alive(pid), "{command}");
        stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
    }
}

/// One stop of a service comes to each process of it. On a slow machine that which the front passes on came a second later, and the
/// command got KILL instead of its grace.
#[test]
fn a_stop_that_comes_both_ways_counts_once() {
    let stage = Stage::new();
    let deaf = "trap 'echo told >>told' TERM; echo $$ >pid.deaf; while :; do sleep 0.05; done";
    for is_direct in [true, false] {
        let mut holder = stage.start(&["run", "job", "--", "sh", "-c", deaf]);
        let pid: i32 = stage.number("pid.deaf");
        let by = |is_direct| if is_direct { holder.worker() } else { holder.raw() };
        let [first, other] = [by(is_direct), by(!is_direct)];
        kill(first, Signal::SIGTERM).unwrap();
        stage.has_lines("told", 1);
        holder.runs_on(Duration::from_millis(1100));
        kill(other, Signal::SIGTERM).unwrap();
        stage.has_lines("told", 2);
        holder.runs_on(Duration::from_millis(300));
        assert!(is_alive(pid));
        holder.signal(Signal::SIGTERM);
        assert_eq!(holder.ended().code, 137);
        for file in ["told", "pid.deaf"] {
            fs::remove_file(stage.path(file)).unwrap();
        }
    }
}

/// A worker that does not handle them yet was killed by signals that are for a command.
#[test]
fn what_is_for_a_command_does_not_end_a_start() {
    let stage = Stage::new();
    let url = stage.path("url");
    mkfifo(&url, Mode::S_IRWXU).unwrap();
    let mut command = stage.command(&["run", "job", "--", "true"]);
    command.env_remove("TENURE_URL").env("TENURE_URL_FILE", &url);
    let mut holder = stage.start_command(command);
    let handles = |pid: Pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
        u64::from_str_radix(mask.trim(), 16).unwrap_or(0) >> (Signal::SIGUSR1 as i32 - 1) & 1 == 1
    };
    eventually("both run", PATIENCE, || {
        (handles(holder.raw()) && holder.worker() != holder.raw()).then_some(())
    });
    for signal in SENT.iter().filter(|signal| !["HUP", "QUIT"].contains(signal)) {
        send(&stage, &holder, signal);
    }
    holder.runs_on(Duration::from_millis(300));
    assert!(!handles(holder.worker()), "it waits for its URL");
    fs::write(&url, format!("sqlite:{}", stage.path("locks.db").display())).unwrap();
    holder.ended().silent(0);
}

/// L1: one TERM ended the command, and not the process in a separate session that it waited for. That one counted as a
/// daemon, and the lock was released while it ran.
#[test]
fn what_the_command_waits_for_is_no_daemon_after_a_signal() {
    let stage = Stage::new();
    let family = format!("setsid -w sh -c '{BEAT}' work; exit 5");
    let mut holder = stage.start(&["run", "job", "--", "sh", "-c", &family]);
    let work: i32 = stage.number("pid.work");
    holder.signal(Signal::SIGTERM);
    holder.runs_on(Duration::from_millis(500));
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    kill(Pid::from_raw(work), Signal::SIGKILL).unwrap();
    assert_eq!(holder.ended().code, 143);
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// HUP and QUIT have other meanings, however often they come.
#[test]
fn a_second_hup_kills_nothing() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "bash", "-c", NOTER, "HUP QUIT"]);
    stage.has_lines("started", 1);
    for (number, signal) in ["HUP", "QUIT", "HUP", "QUIT"].iter().enumerate() {
        send(&stage, &holder, signal);
        stage.has_lines("heard", number + 1);
    }
    stage.touch("go");
    holder.ended().silent(0);
}

/// A shell, `make` and `xargs` go on after an exit with 130.
#[test]
fn after_int_and_quit_the_parent_sees_a_death_by_it() {
    let stage = Stage::new();
    let _holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    for (signal, death) in [
        (Signal::SIGINT, Some(2)),
        (Signal::SIGQUIT, Some(3)),
        (Signal::SIGTERM, None),
        (Signal::SIGHUP, None),
    ] {
        let waiter = stage.start_waiter("job", &["run", "job", "--", "touch", "ran"]);
        waiter.signal(signal);
        assert_eq!(waiter.ended().signal, death, "{signal} while it waits");
        let command = stage.start(&["run", "other", "--", "sh", "-c", "echo >started; exec sleep 60"]);
        stage.has_lines("started", 1);
        command.signal(signal);
        let ended = command.ended();
        assert_eq!((ended.code, ended.signal), (128 + signal as i32, death), "{signal} while it runs");
        fs::remove_file(stage.path("started")).unwrap();
    }
    assert!(!stage.path("ran").exists() && !stage.path("core").exists());
    // The command's own code says nothing of a signal.
    let ended = stage.run(&["run", "other", "--", "sh", "-c", "exit 130"]);
    assert_eq!((ended.code, ended.signal), (130, None));
}

/// Ctrl-C went to the command alone, and the loop around `tenure` went on.
#[test]
fn ctrl_c_ends_the_loop_around_it() {
    let stage = Stage::new();
    let make = "all: a b\na b:\n\t-@echo start''ed $@; $(W) sleep 60\n";
    fs::write(stage.path("Makefile"), make).unwrap();
    let job = "for h in a b; do echo start''ed $h; $tenure run job -- sleep 60; done";
    let deaf = "for h in a b; do $tenure run job -- sh -c 'trap \"exit 130\" INT; echo start\"\"ed a; while :; do sleep 0.05; done'; done";
    let xargs =
        "printf 'a\\nb\\n' | xargs -I{} sh -c 'echo start\"\"ed {}; exec $tenure run job -- sleep 60'";
    let nested = "for h in a b; do echo start''ed $h; $tenure run job -- $tenure run other -- sleep 60; done";
    let waits = "for h in a b; do echo start''ed $h; $tenure run held -- sleep 60; done";
    stage.run(&["lock", "held", "--ttl", "1h"]).silent(0);
    for program in [
        &["dash", "-c", job][..],
        &["bash", "-c", job],
        &["dash", "-c", deaf],
        &["bash", "-c", nested],
        &["bash", "-c", waits],
        &["make", "-s", "W=$$tenure run job --"],
        &["sh", "-c", xargs],
    ] {
        let mut screen = Screen::start(&stage, program);
        screen.sees("started a");
        let wanted = if program.contains(&nested) { 2 } else { usize::from(!program.contains(&waits)) };
        eventually("it is held, or waited for", PATIENCE, || {
            let locks = stage.json(&["ls"]);
            let locks = locks.as_array().unwrap();
            let waits = locks.iter().any(|lock| !lock["queue"].as_array().unwrap().is_empty());
            (locks.len() == 1 + wanted && (wanted > 0 || waits)).then_some(())
        });
        // What `xargs` starts reads nothing from it.
        if wanted > 0 && !program.contains(&xargs) {
            eventually("the command has the terminal", PATIENCE, || {
                (screen.foreground() != screen.pid()).then_some(())
            });
        }
        if program.contains(&nested) {
            eventually("the inner command has the terminal", PATIENCE, || {
                let name = fs::read_to_string(format!("/proc/{}/comm", screen.foreground()));
                name.is_ok_and(|name| name == "sleep\n").then_some(())
            });
        }
        screen.types("\x03");
        assert_ne!(screen.ended(), 0, "{program:?}");
        assert!(!screen.all().contains("started b"), "{program:?}: {}", screen.all());
        eventually("all is released", PATIENCE, || {
            (stage.json(&["ls"]).as_array().unwrap().len() == 1).then_some(())
        });
    }
}

/// Sockets that systemd opened for `tenure` were for a pid that was not the command's, and so for nobody.
#[test]
fn what_systemd_named_us_for_is_for_the_command() {
    let stage = Stage::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    for (ignored, pid, is_ours) in
        [("", "$$", true), ("PIPE", "$$", true), ("", "1", false), ("PIPE", "1", false)]
    {
        let script = format!(
            "trap '' {ignored}; LISTEN_FDS=1 LISTEN_PID={pid} LISTEN_PIDFDID=7 WATCHDOG_PID={pid} exec {tenure} run job -- \
             sh -c 'echo $LISTEN_FDS $LISTEN_PIDFDID $LISTEN_PID $WATCHDOG_PID $$'"
        );
        let script = if ignored.is_empty() { script.replacen("trap '' ; ", "", 1) } else { script };
        let mut shell = stage.program("sh");
        shell.args(["-c", &script]);
        let ended = stage.run_command(shell);
        let words: Vec<&str> = ended.out.split_whitespace().collect();
        let [fds, listen, watchdog, command] = words[..] else { panic!("{ended:?}") };
        assert_eq!(fds, "1");
        let expected = if is_ours { command } else { "1" };
        assert_eq!([listen, watchdog], [expected; 2], "{ended:?}");
    }
}

/// A service that waits for the lead is ready; the supervisor is told what it does.
#[test]
fn lead_reports_to_a_supervisor_that_asks() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    let stage = Stage::new();
    let path = stage.path("notify").to_str().unwrap().to_owned();
    let hidden = format!("tenure-test-{}", std::process::id());
    let sockets = [
        (UnixDatagram::bind(&path).unwrap(), path),
        (
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&hidden).unwrap()).unwrap(),
            format!("@{hidden}"),
        ),
    ];
    for (socket, name) in sockets {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let hears = || {
            let mut message = [0; 4096];
            let length = socket.recv(&mut message).unwrap();
            String::from_utf8(message[..length].to_vec()).unwrap()
        };
        let mut command = stage.command(&["-q", "lead", "job", "--", "sh", "-c", HOLD, "leader"]);
        let lead = stage.start_command({
            command.env("NOTIFY_SOCKET", &name);
            command
        });
        assert_eq!(hears(), "READY=1\nSTATUS=campaigning for job");
        let told = hears();
        let token = stage.show("job")["holders"][0]["token"].to_string();
        assert_eq!(told, format!("STATUS=leading job, token {token}"));
        stage.run(&["-q", "break", "job"]).silent(0);
        assert!(hears().starts_with("STATUS=campaigning again; job: the lease was lost"));
        assert!(hears().starts_with("STATUS=leading job, token "));
        lead.signal(Signal::SIGTERM);
        lead.ended().silent(143);
    }
    // Nobody listens there.
    let mut command = stage.command(&["lead", "job", "--", "true"]);
    command.env("NOTIFY_SOCKET", "/nosuch/socket");
    stage.run_command(command).silent(0);
}

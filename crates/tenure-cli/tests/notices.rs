//! A long wait that nobody asked for is announced in a pipe too, once, unless `-q`.

use std::time::Duration;

use nix::sys::signal::Signal;
use tenure_testkit::{
    patience::eventually, ports, postgres::PostgresServer, redis::RedisServer, zookeeper::ZooKeeperServer,
};

use crate::screen::Screen;
use crate::stage::{self, PATIENCE, Process, Stage, files::HOLD};

const OWNER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef";

/// Longer than a wait that is not announced.
const LONG: Duration = Duration::from_secs(3);

/// Waits until the process has said its line, which says all of this.
#[track_caller]
fn says(process: &Process, parts: &[&str]) {
    let said = eventually("the wait is announced", PATIENCE, || {
        let said = process.said();
        said.ends_with('\n').then_some(said)
    });
    let line = said.lines().next().unwrap();
    assert!(
        line.starts_with("tenure: ") && parts.iter().all(|part| line.contains(part)),
        "{parts:?}: {said}"
    );
}

/// A server that does not answer: whoever waits for it says so once, with its address, and enters when it answers again. `-q`
/// says nothing.
fn hangs(url: &str, address: &str, stop: impl Fn(), resume: impl Fn()) {
    let stage = Stage::at(url.to_owned());
    stage.run(&["run", "job", "--", "true"]).silent(0);
    stop();
    let quiet = stage.start(&["-q", "run", "a", "--", "true"]);
    let loud = stage.start(&["run", "b", "--", "true"]);
    says(&loud, &["b: waiting: ", address, "; giving up after 30 s"]);
    resume();
    quiet.ended().mute(0);
    loud.ended().complained(0, address);
}

/// The first lock on a server that hung waited for up to 30 s without a word where there was no terminal.
#[test]
fn a_redis_server_that_hangs_is_named_once() {
    let server = RedisServer::start();
    let address = format!("127.0.0.1:{}", server.port());
    hangs(&server.url("?guard=off"), &address, || server.stop(), || server.resume());
}

/// As above.
#[test]
fn a_quorum_that_hangs_is_named_once() {
    let stage = Stage::on_quorum();
    let url = stage::quorum_url(stage.nodes(), "?guard=off");
    let address = format!("127.0.0.1:{}", stage.nodes()[0].port());
    let each = |what: fn(&RedisServer)| stage.nodes().iter().for_each(what);
    hangs(&url, &address, || each(RedisServer::stop), || each(RedisServer::resume));
}

/// As above.
#[test]
fn a_postgresql_server_that_hangs_is_named_once() {
    let server = PostgresServer::start();
    hangs(&server.url(""), &server.address(), || server.stop(), || server.resume());
}

/// As above.
#[cfg(feature = "mysql")]
#[test]
fn a_mysql_server_that_hangs_is_named_once() {
    let server = tenure_testkit::mysql::MysqlServer::start();
    hangs(&server.url(""), &server.address(), || server.stop(), || server.resume());
}

/// As above.
#[test]
fn a_zookeeper_server_that_hangs_is_named_once() {
    let server = ZooKeeperServer::start();
    hangs(&server.url(""), &server.address(), || server.stop(), || server.resume());
}

/// The same for a server that is not there yet.
#[test]
fn a_server_that_is_not_there_yet_is_named_once() {
    let mut stage = Stage::on_redis();
    stage.server().kill();
    let waiting = stage.start(&["run", "job", "--", "true"]);
    let address = format!("127.0.0.1:{}", stage.server().port());
    says(&waiting, &["job: waiting: ", "cannot reach", &address]);
    stage.server().start_again();
    waiting.ended().complained(0, &address);
}

/// A reason that changes is said: the server that was not there is there, and lets nobody in yet.
#[test]
fn another_reason_is_another_line() {
    let mut stage = Stage::on_redis_with("?max_ttl=4s");
    stage.server().kill();
    let waiting = stage.start(&["run", "job", "--", "true"]);
    says(&waiting, &["cannot reach"]);
    stage.server().start_again();
    let ended = waiting.ended();
    let lines: Vec<&str> = ended.err.lines().collect();
    assert_eq!((ended.code, lines.len()), (0, 2), "{ended:?}");
    assert!(lines[1].contains("grants no locks for another"), "{ended:?}");
}

/// The README's first minute: a server that was started a moment ago says for how long it makes us wait, and how to be spared.
#[test]
fn a_server_that_was_just_started_says_how_long_and_how_to_be_spared() {
    let server = RedisServer::start();
    let stage = Stage::at(server.url(""));
    let waiting = stage.start(&["run", "job", "--", "true"]);
    let parts = ["grants no locks for another ", " s, ", "?guard=off or a smaller ?max_ttl= to the URL"];
    says(&waiting, &parts);
    Stage::on_redis().run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// A wait behind a holder was silent in a pipe, so a job that hung had an empty log. Each verb that waits names the holder after ten
/// seconds, and once more if another process holds then.
#[test]
fn to_queue_behind_a_holder_is_said_after_ten_seconds_and_when_another_holds() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let until_done = "until [ -e done ]; do sleep 0.05; done";
    let second = stage.start_waiter("job", &["-q", "run", "job", "--", "sh", "-c", until_done]);
    let waiters: [&[&str]; 5] = [
        &["run", "job", "--", "true"],
        &["lock", "job", "--ttl", "5s"],
        &["lead", "job", "--", "true"],
        &["run", "--every", "1h", "job", "--", "env", "true"],
        &["run", "--also", "job", "another", "--", "true"],
    ];
    let mut ahead = 1..;
    let mut waiters = waiters.map(|arguments| {
        let (waiter, wanted) = (stage.start(arguments), ahead.next().unwrap() + 1);
        eventually("it is in the queue", PATIENCE, || (stage.queue("job").len() == wanted).then_some(()));
        waiter
    });
    waiters[0].runs_on(LONG);
    assert_eq!(waiters[0].said(), "");
    let lines = |process: &Process| process.said().lines().map(str::to_owned).collect::<Vec<_>>();
    for (ahead, waiter) in waiters.iter().enumerate() {
        says(waiter, &["job", ": waiting for 1", ", held by ", &format!(" pid {} sh since ", holder.pid())]);
        let line = &lines(waiter)[0];
        assert!(line.ends_with(&format!(", {} ahead", ahead + 1)), "{line}");
    }
    stage.touch("go");
    holder.ended().silent(0);
    let of_second = format!(" pid {} sh since ", second.pid());
    for waiter in &waiters {
        let said =
            eventually("another line", PATIENCE, || Some(lines(waiter)).filter(|lines| lines.len() > 1));
        assert!(said.len() == 2 && said[1].contains(&of_second), "{said:?}");
    }
    assert_eq!(second.said(), "");
}

/// Every other verb asks the store once: it says so too if that takes long, and what a question is about.
#[test]
fn every_verb_says_that_the_store_does_not_answer() {
    let stage = Stage::new();
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let hog = stage.hog_from_readers();
    let file = stage.database();
    let silent = format!("no answer from sqlite:{} for ", file.to_str().unwrap());
    let asked: [(&[&str], &str); 7] = [
        (&["show", "job"], "job: looking at the lock: "),
        (&["ls"], "looking through the store: "),
        (&["doctor"], "looking at the store: "),
        (&["break", "job"], "job: breaking the lock: "),
        (&["renew", "job", OWNER, "--ttl", "1m"], "job: renewing the lease: "),
        (&["unlock", "job", OWNER], "job: releasing the lock: "),
        (&["lock", "job", "--ttl", "1m"], "the database is locked by another process"),
    ];
    let mut processes = asked.map(|(verb, what)| (stage.start(verb), verb, what));
    for (process, verb, what) in &mut processes {
        let part = if what.ends_with(": ") { &silent } else { "; giving up after 30 s" };
        eventually("the wait is announced", PATIENCE, || {
            let said = process.said();
            let line = said.lines().next().filter(|_| said.ends_with('\n'))?;
            let is_announced = line.contains(*what) && line.contains(part);
            if !is_announced {
                // It gave up after its five seconds, before it had seen for long enough that it waits: a busy machine. Or another
                // one of these processes, which waits for the hog, was about to open the file, one at a time.
                let is_opened = line.contains("another process is opening a database in this directory");
                assert!(is_opened || line.contains("locked by another process"), "{said}");
                *process = stage.start(verb);
            }
            is_announced.then_some(())
        });
    }
    drop(hog);
    for (process, _, what) in processes {
        let ended = process.ended();
        assert_eq!(ended.err.matches(what).count(), 1, "{ended:?}");
    }
}

/// A store that hangs after the command has ended: what a run of `--every` still asks of it was waited for without a word, and no
/// signal ended that.
#[test]
fn a_second_signal_ends_the_wait_for_a_run_to_be_counted() {
    let stage = Stage::new();
    let finish = "echo $$ >pid.holder; echo >started; until [ -e go ]; do sleep 0.05; done";
    let mut holder = stage.start(&["run", "--ttl", "60s", "--every", "1h", "job", "--", "sh", "-c", finish]);
    stage.has_lines("started", 1);
    let _hog = stage.hog();
    stage.touch("go");
    stage.dies("pid.holder");
    holder.signal(Signal::SIGTERM);
    holder.runs_on(Duration::from_millis(300));
    holder.signal(Signal::SIGHUP);
    let ended = holder.ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    let [counted, released] = ended.err.lines().collect::<Vec<_>>()[..] else {
        panic!("two lines: {ended:?}")
    };
    assert!(counted.contains("job: a signal ended the wait for the store to count the run"), "{ended:?}");
    let is_free = released.contains(". The lock is free after its ttl of 1 min");
    assert!(is_free && !released.contains("giving up in"), "not waited for: {ended:?}");
}

/// The same before the command starts, for each question that is asked then: the first signal ends it.
#[test]
fn a_signal_ends_each_question_and_a_long_one_is_said() {
    let stage = Stage::new();
    let lease = stage.run(&["lock", "leased", "--ttl", "1h"]).out;
    let owner = lease.split('"').nth(7).unwrap();
    let held = [owner, owner].join(":");
    let _hog = stage.hog_from_readers();
    let silent = format!("no answer from sqlite:{} for ", stage.database().display());
    let asked: [(&[&str], &str); 5] = [
        (&["run", "--every", "1h", "job", "--", "true"], "job: looking for the last run: "),
        (&["attach", "leased", owner, "--", "true"], "leased: attaching to the lease: "),
        (&["run", "job", "--", "true"], "job: looking at the lock: "),
        (&["lead", "job", "--", "true"], "job: looking at the lock: "),
        (&["lock", "job", "--ttl", "1m"], "job: looking at the lock: "),
    ];
    let start = |(verb, what): (&[&str], &str)| {
        let mut command = stage.command(verb);
        if what.contains("looking at the lock") {
            command.env("TENURE_HELD", &held);
        }
        stage.start_command(command)
    };
    let running: Vec<_> = asked.map(|asked| (start(asked), asked)).into();
    for (mut process, asked) in running {
        let (_, what) = asked;
        eventually("the wait is announced", PATIENCE, || {
            let said = process.said();
            let line = said.lines().next().filter(|_| said.ends_with('\n'))?;
            let is_announced = line.contains(what) && line.contains(&silent);
            if !is_announced {
                // It gave up after its five seconds, before it had seen for long enough that it waits: a busy machine. Or another
                // one of these processes, which waits for the hog, was about to open the file, one at a time.
                let is_opened = line.contains("another process is opening a database in this directory");
                assert!(is_opened || line.contains("locked by another process"), "{said}");
                process = start(asked);
            }
            is_announced.then_some(())
        });
        process.signal(Signal::SIGTERM);
        process.ended().complained(143, what);
    }
}

/// A watch of a store that hangs said nothing until its request was given up.
#[test]
fn a_watch_says_that_the_store_does_not_answer() {
    let stage = Stage::new();
    stage.run(&["lock", "job", "--ttl", "1h"]).silent(0);
    let _hog = stage.hog_from_readers();
    let watch = stage.start(&["watch"]);
    let mut table = Screen::start(&stage, &[env!("CARGO_BIN_EXE_tenure"), "watch"]);
    says(&watch, &["no answer from sqlite:"]);
    table.sees("no answer from ");
    watch.signal(Signal::SIGTERM);
    assert_eq!(watch.ended().code, 143);
}

/// No secret is in the line of a server that takes connections and never says a word.
#[test]
fn the_place_that_is_silent_is_named_without_its_password() {
    let hole = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = hole.local_addr().unwrap().port();
    let urls = [
        format!("redis://:s3cret@127.0.0.1:{port}/"),
        format!("postgres://app:s3cret@127.0.0.1:{port}/app"),
        #[cfg(feature = "mysql")]
        format!("mysql://app:s3cret@127.0.0.1:{port}/app"),
        format!("zookeeper://127.0.0.1:{port}/locks"),
        format!(
            "redlock:redis://:s3cret@127.0.0.1:{port},redis://:s3cret@127.0.0.1:{},redis://:s3cret@127.0.0.1:{}",
            ports::free(false),
            ports::free(false)
        ),
    ];
    let waiting = urls.map(|url| {
        let stage = Stage::at(url);
        (stage.start(&["run", "job", "--", "true"]), stage)
    });
    for (process, _stage) in &waiting {
        says(process, &["job: waiting: ", "127.0.0.1:", "; giving up after 30 s"]);
        assert!(!process.said().contains("s3cret"), "{}", process.said());
    }
}

/// A command that had ended, and a job of it that held the lock for hours: not a word.
#[test]
fn what_a_command_left_is_named_after_two_seconds() {
    let stage = Stage::new();
    let left = "(exec sleep 600) & echo $! >pid.one; timeout 600 sleep 600 & echo $! >pid.two; exit 3";
    let quiet = stage.start(&["-q", "run", "other", "--", "sh", "-c", "sleep 600 & exit 4"]);
    let mut holder = stage.start(&["run", "job", "--", "sh", "-c", left]);
    let pids: Vec<i32> = ["pid.one", "pid.two"].map(|file| stage.number(file)).into();
    says(
        &holder,
        &["job: the command has ended with code 3; the lock is held until what it left has ended: "],
    );
    let line = holder.said();
    for (name, pid) in ["sleep", "timeout"].iter().zip(&pids) {
        assert!(line.contains(&format!("{name} pid {pid}")), "{line}");
    }
    holder.runs_on(LONG);
    for process in [&holder, &quiet] {
        process.signal(Signal::SIGTERM);
    }
    quiet.ended().mute(4);
    holder.ended().complained(3, "what it left");
}

/// Ctrl-C reached neither what was left, which a shell had told to ignore it, nor `tenure`.
#[test]
fn ctrl_c_twice_ends_what_a_command_left() {
    let stage = Stage::new();
    let program = [env!("CARGO_BIN_EXE_tenure"), "run", "job", "--", "sh", "-c", "sleep 600 & exit 3"];
    let mut screen = Screen::start(&stage, &program);
    screen.sees("what it left has ended: sleep pid ");
    screen.types("\x03");
    std::thread::sleep(Duration::from_millis(300));
    screen.types("\x03");
    assert_eq!(screen.ended(), 3);
}

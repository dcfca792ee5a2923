//! A lock on SQLite is free as soon as the process of its guard has ended, and only then.

#![allow(clippy::disallowed_methods, reason = "real processes live in real time")]

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use fork::{Fork, fork};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use tenure::{
    OwnerId,
    blocking::{Lock, Locker, connect},
};
use tenure_testkit::patience::{eventually, slowness};

/// Tells a process of this very program which lock to hold, and how.
const URL: &str = "DEATH_TEST_URL";
const HOW: &str = "DEATH_TEST_HOW";
const OWNER: &str = "00000000000000010000000000000000000000000000abcd";

/// No test waits for it.
const TTL: Duration = Duration::from_secs(3600);
/// A lock that is not free after this long is not freed by a death.
const STAYS: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder with a database.
struct Stage {
    folder: TempDir,
    locks: Locker,
}

/// A process that holds `job` of a stage.
struct Holder {
    process: Child,
    /// What it said when it held the lock.
    said: String,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let locks = connect(&format!("sqlite:{}/locks.db", folder.path().display())).unwrap();
        Self { folder, locks }
    }

    fn holder(&self, how: &str) -> Holder {
        self.holder_under(&[], how)
    }

    /// The same, started by these words.
    fn holder_under(&self, words: &[&str], how: &str) -> Holder {
        let ours = env::current_exe().unwrap();
        let mut command = match words {
            [] => Command::new(ours),
            [program, words @ ..] => {
                let mut command = Command::new(program);
                command.args(words).arg(ours);
                command
            }
        };
        command.args(["--exact", "deaths::a_process_that_holds", "--nocapture"]);
        command.env(URL, format!("sqlite:{}/locks.db", self.folder.path().display())).env(HOW, how);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let said = held_line(process.stdout.take().unwrap());
        Holder { process, said }
    }

    fn job(&self) -> Lock {
        self.locks.mutex("job").with(|lock| lock.ttl(TTL))
    }

    fn is_free(&self) -> bool {
        self.job().try_acquire().unwrap().is_some_and(|guard| guard.release().is_ok())
    }

    #[track_caller]
    fn assert_stays_held(&self) {
        let until = Instant::now() + STAYS;
        while Instant::now() < until {
            assert!(!self.is_free(), "the lock was freed");
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.locks.inspect("job").unwrap().holders.len(), 1);
    }

    /// L8: the death of this holder leaves the lock to its ttl.
    #[track_caller]
    fn assert_outlives(&self, holder: Holder) {
        holder.killed();
        self.assert_stays_held();
    }
}

impl Holder {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    fn killed(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// What follows `held` in what a holder prints. The harness prints other things, some on the same line.
fn held_line(output: ChildStdout) -> String {
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    let mut said = lines.filter_map(|line| Some(line.split_once("tenure-test held")?.1.trim().to_owned()));
    said.next().expect("it ended before it held the lock")
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The process of the other tests: it holds the lock until it is killed, or until its test has ended.
#[test]
fn a_process_that_holds() {
    let Ok(url) = env::var(URL) else { return };
    let locks = connect(&url).unwrap();
    let lock = locks.mutex("job").with(|lock| lock.ttl(TTL));
    let parent = std::os::unix::process::parent_id();
    let stays = || {
        while std::os::unix::process::parent_id() == parent {
            thread::sleep(Duration::from_millis(50));
        }
    };
    let (mut guard, mut left, mut all) = (None, None, None);
    let how = env::var(HOW).unwrap();
    match &*how {
        "plain" | "fork" => guard = Some(lock.acquire().unwrap()),
        "shared" => guard = Some(locks.semaphore("job", 2).with(|lock| lock.ttl(TTL)).acquire().unwrap()),
        "no" => guard = Some(lock.with(|lock| lock.free_at_death(false)).acquire().unwrap()),
        "linger" => guard = Some(lock.with(|lock| lock.linger(TTL)).acquire().unwrap()),
        "all" => {
            all = Some(
                locks
                    .all(["job", "other"])
                    .with(|all| all.with(|lock| lock.ttl(TTL).linger(TTL)))
                    .acquire()
                    .unwrap(),
            )
        }
        "owner" => guard = Some(lock.with(|lock| lock.owner(OWNER.parse().unwrap())).acquire().unwrap()),
        "detached" => left = Some(lock.acquire().unwrap().detach().unwrap()),
        "fifo" => {
            // Passed on from a task that does not linger, and not to one that does.
            drop(lock.clone().with(tenure::Lock::fifo).acquire().unwrap());
            guard = Some(lock.with(|lock| lock.fifo().linger(TTL)).acquire().unwrap());
        }
        _ => unreachable!("{how}"),
    }
    let child = if how == "fork" { sleeper() } else { String::new() };
    println!("tenure-test held {child}");
    stays();
    // Its test was killed.
    drop((guard, left, all));
}

/// A child that has a copy of all that this process has. Returns its id.
fn sleeper() -> String {
    match fork().unwrap() {
        Fork::Child => {
            thread::sleep(PATIENCE * 2);
            // By no way on which it meets what it has of its parent.
            kill(Pid::this(), Signal::SIGKILL).unwrap();
            unreachable!("it was killed");
        }
        Fork::Parent(child) => child.to_string(),
    }
}

/// L8: the first waiter has it as soon as the holder has ended, and the next token is larger.
#[test]
fn a_waiter_is_woken_by_the_death_of_the_holder() {
    let stage = Stage::new();
    for _ in 0..5 {
        let holder = stage.holder("plain");
        let (job, (said, hears)) = (stage.job(), std::sync::mpsc::channel());
        let waiter = thread::spawn(move || {
            let guard = job.acquire().unwrap();
            said.send(Instant::now()).unwrap();
            guard.release().unwrap();
        });
        eventually("it waits", PATIENCE, || {
            (stage.locks.inspect("job").unwrap().queue.len() == 1).then_some(())
        });
        assert!(hears.try_recv().is_err());
        let before = Instant::now();
        holder.killed();
        let after = hears.recv().unwrap() - before;
        assert!(after < Duration::from_secs(1) * slowness(), "{after:?}");
        waiter.join().unwrap();
    }
}

#[test]
fn one_who_does_not_wait_finds_it_free_and_shown_free() {
    let stage = Stage::new();
    stage.holder("plain").killed();
    let view = stage.locks.inspect("job").unwrap();
    assert!(view.holders.is_empty(), "{view:?}");
    assert!(stage.locks.list("").unwrap().is_empty());
    assert!(stage.is_free());
}

#[test]
fn a_dead_holder_frees_its_permit_and_no_other() {
    let stage = Stage::new();
    let (one, _other) = (stage.holder("shared"), stage.holder("shared"));
    let permits = stage.locks.semaphore("job", 2).with(|lock| lock.ttl(TTL));
    assert!(permits.try_acquire().unwrap().is_none());
    one.killed();
    let guard = permits.try_acquire().unwrap().unwrap();
    assert!(permits.try_acquire().unwrap().is_none());
    guard.release().unwrap();
}

/// A zombie has ended, with all of its threads: nothing has waited for this one yet.
#[test]
fn a_zombie_has_ended() {
    let stage = Stage::new();
    let holder = stage.holder("plain");
    holder.signal(Signal::SIGKILL);
    eventually("the lock is free", PATIENCE, || stage.is_free().then_some(()));
}

#[test]
fn a_stopped_holder_has_not_ended() {
    let stage = Stage::new();
    let holder = stage.holder("plain");
    holder.signal(Signal::SIGSTOP);
    stage.assert_stays_held();
    holder.signal(Signal::SIGCONT);
    holder.killed();
    assert!(stage.is_free());
}

/// A child of a fork has a copy of all that its parent had under the lock.
#[test]
fn a_fork_of_the_holder_keeps_the_lock() {
    let stage = Stage::new();
    let holder = stage.holder("fork");
    let child: i32 = holder.said.parse().unwrap();
    stage.assert_outlives(holder);
    kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
    eventually("the lock is free", PATIENCE, || stage.is_free().then_some(()));
}

#[test]
fn a_lock_that_says_so_outlives_its_process() {
    let stage = Stage::new();
    stage.assert_outlives(stage.holder("no"));
}

#[test]
fn a_lock_that_lingers_outlives_its_process() {
    let stage = Stage::new();
    stage.assert_outlives(stage.holder("linger"));
}

#[test]
fn several_locks_that_linger_outlive_their_process() {
    let stage = Stage::new();
    stage.assert_outlives(stage.holder("all"));
}

#[test]
fn a_lock_that_lingers_takes_no_lease_that_ends_with_the_process() {
    let stage = Stage::new();
    stage.assert_outlives(stage.holder("fifo"));
}

#[test]
fn a_chosen_owner_outlives_its_process() {
    let stage = Stage::new();
    stage.assert_outlives(stage.holder("owner"));
    let again = stage.job().with(|lock| lock.owner(OWNER.parse().unwrap())).acquire().unwrap();
    again.release().unwrap();
}

#[test]
fn a_detached_lease_outlives_its_process() {
    let stage = Stage::new();
    stage.assert_outlives(stage.holder("detached"));
}

/// The process that attached holds the lease, until the ttl has passed.
#[test]
fn a_lease_that_another_process_attached_to_outlives_its_process() {
    let stage = Stage::new();
    let holder = stage.holder("plain");
    let owner: OwnerId = stage.locks.inspect("job").unwrap().holders[0].owner.parse().unwrap();
    let guard = stage.job().attach(owner).unwrap();
    stage.assert_outlives(holder);
    guard.check().unwrap();
    guard.release().unwrap();
}

/// The ids of one namespace mean nothing in another.
#[test]
fn a_holder_in_another_namespace_of_processes_is_left_to_its_ttl() {
    let stage = Stage::new();
    let words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !can_unshare(&words) {
        return;
    }
    stage.assert_outlives(stage.holder_under(&words, "plain"));
}

/// Its `/proc` is that of the outer namespace, which shows it under another id.
#[test]
fn a_holder_whose_proc_is_of_another_namespace_is_left_to_its_ttl() {
    let stage = Stage::new();
    let words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    if !can_unshare(&words) {
        return;
    }
    stage.assert_outlives(stage.holder_under(&words, "plain"));
}

/// The time of a start is another one there.
#[test]
fn a_holder_in_another_namespace_of_time_is_left_to_its_ttl() {
    let stage = Stage::new();
    let words =
        ["unshare", "--user", "--map-root-user", "--time", "--boottime", "1000", "--fork", "--kill-child"];
    if !can_unshare(&words) {
        return;
    }
    stage.assert_outlives(stage.holder_under(&words, "plain"));
}

/// Whether this machine lets a user make these namespaces.
fn can_unshare(words: &[&str]) -> bool {
    let status = Command::new(words[0]).args(&words[1..]).arg("true").stderr(Stdio::null()).status();
    let can = status.is_ok_and(|status| status.success());
    if !can {
        eprintln!("this machine makes no such namespace: nothing was tried");
    }
    can
}

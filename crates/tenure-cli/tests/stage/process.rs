//! A running `tenure`, and what is left of one.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use tenure_testkit::patience::{eventually, slowness};

use super::PATIENCE;

/// A process that does not outlive the test, nor do the groups of its children.
pub(crate) struct Process {
    child: Child,
    out: PathBuf,
    err: PathBuf,
    status: Option<ExitStatus>,
}

/// What a process said and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code; 128 + n if signal n ended it, as a shell has it.
    pub(crate) code: i32,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Process {
    pub(crate) fn new(child: Child, out: PathBuf, err: PathBuf) -> Self {
        Self { child, out, err, status: None }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn raw(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.pid()).unwrap())
    }

    /// Sends a signal to this process alone.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.raw(), signal).unwrap();
    }

    /// The process that does the work behind a front; itself where it has none.
    pub(crate) fn worker(&self) -> Pid {
        worker(self.raw())
    }

    /// Kills all of `tenure` with -9, so that nothing of it can free the lock, and reaps it.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::SIGSTOP);
        let _ = kill(self.worker(), Signal::SIGKILL);
        self.kill_front();
    }

    /// Kills this process alone with -9, and reaps it.
    pub(crate) fn kill_front(&mut self) {
        self.signal(Signal::SIGKILL);
        self.status = Some(self.child.wait().unwrap());
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.status = self.status.or_else(|| self.child.try_wait().unwrap());
        self.status.is_none()
    }

    /// Waits until that much time has passed, while it runs.
    #[track_caller]
    pub(crate) fn runs_on(&mut self, time: Duration) {
        let began = Instant::now();
        eventually("the time has passed", PATIENCE, || {
            assert!(self.is_running(), "it has ended: {}", self.said());
            (began.elapsed() > time).then_some(())
        });
    }

    /// Waits for the end.
    pub(crate) fn ended(self) -> Ended {
        self.ended_within(PATIENCE)
    }

    pub(crate) fn ended_within(mut self, patience: Duration) -> Ended {
        let what = format!("the process ends; it says: {}", self.said());
        eventually(&what, patience, || (!self.is_running()).then_some(()));
        let status = self.status.unwrap();
        let signal = status.signal();
        let code = status.code().or_else(|| Some(128 + signal?)).unwrap();
        Ended { code, signal, out: fs::read_to_string(&self.out).unwrap(), err: self.said() }
    }

    /// What stands on its standard output by now.
    pub(crate) fn printed(&self) -> String {
        fs::read_to_string(&self.out).unwrap()
    }

    /// What stands on its standard error by now.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.err).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_running() {
            return;
        }
        kill_descendants(self.pid());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// It ended with this code and said nothing, but perhaps that a store was too busy to answer.
    #[track_caller]
    pub(crate) fn silent(&self, code: i32) {
        assert_eq!((self.code, self.err.lines().all(is_of_a_busy_machine)), (code, true), "{self:?}");
    }

    /// It ended with this code and said nothing at all.
    #[track_caller]
    pub(crate) fn mute(&self, code: i32) {
        assert_eq!((self.code, self.err.as_str()), (code, ""), "{self:?}");
    }

    /// It ended with this code and one line that has `part` in it; nothing went to the standard output.
    #[track_caller]
    pub(crate) fn complained(&self, code: i32, part: &str) {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{self:?}");
        let mut lines: Vec<&str> = self.err.lines().collect();
        if !lines.iter().all(|line| is_of_a_busy_machine(line)) {
            lines.retain(|line| !is_of_a_busy_machine(line));
        }
        assert_eq!(lines.len(), 1, "one line: {self:?}");
        assert!(lines[0].starts_with("tenure: ") && lines[0].contains(part), "{part}: {self:?}");
        assert!(!lines[0].contains(char::is_control), "{self:?}");
    }
}

/// Whether this line says no more than that the store did not answer in time, as may be where the machine is busy; or that
/// a queue took more than 10 s.
fn is_of_a_busy_machine(line: &str) -> bool {
    if line.contains(": the lease was gone when its release was repeated: ")
        || line.contains(": waiting for 1")
        // A cluster that elects answers nothing for as long as that takes.
        || line.contains(": no answer from the etcd store at ")
    {
        return true;
    }
    let is_wait = line.contains(": waiting") || line.contains(" has not confirmed the release for ");
    slowness() > 1 && is_wait && (line.contains("; giving up ") || line.contains(", held by "))
}

/// The process that does the work behind a front; the process itself where it has none.
pub(crate) fn worker(front: Pid) -> Pid {
    let is_worker = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"__work"))
    };
    let children = children(u32::try_from(front.as_raw()).unwrap());
    children.into_iter().find(is_worker).map_or(front, Pid::from_raw)
}

/// Whether a process lives; one that is dead but not reaped does not.
pub(crate) fn is_alive(pid: i32) -> bool {
    !matches!(state(pid), 'Z' | 'X')
}

/// Kills the children of a process and theirs, and the groups that they lead.
pub(crate) fn kill_descendants(pid: u32) {
    for child in children(pid) {
        kill_descendants(u32::try_from(child).unwrap());
        let _ = killpg(Pid::from_raw(child), Signal::SIGKILL);
        let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
    }
}

/// The state of a process, as one letter of `/proc`; `X` if there is none.
pub(crate) fn state(pid: i32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next()).unwrap_or('X')
}

/// The children of a process; empty where there is no `/proc`.
pub(crate) fn children(pid: u32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().map(|t| fs::read_to_string(t.path().join("children")).unwrap_or_default());
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

//! What the commands of a test leave in files, and how the test speaks to them.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use nix::sys::signal::{Signal, kill};
use rusqlite::Connection;
use tenure_testkit::patience::eventually;

use super::{PATIENCE, Process, Stage, process::is_alive};

/// A command that adds its name (`$0`) to `beats` for as long as it lives. A shell says so if its `sleep` is stopped before it is
/// itself: that is no word of ours.
pub(crate) const BEAT: &str =
    "exec 2>/dev/null; echo $$ >pid.$0; while :; do echo $0 >>beats; sleep 0.02; done";

/// The same, deaf to everything but KILL.
pub(crate) const DEAF_BEAT: &str =
    "trap '' TERM INT HUP; echo $$ >pid.$0; while :; do echo $0 >>beats; sleep 0.02; done";

/// A command that says when it was let in, and beats once.
pub(crate) const ENTER: &str = "date +%s%N >entered.$0; echo $0 >>beats";

/// A command that says that it was let in and ends when the file `go` is there.
pub(crate) const HOLD: &str = "echo $0 >>beats; until [ -e go ]; do sleep 0.1; done";

impl Stage {
    /// The lines of a file; none if there is none.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Waits until a file has `count` lines.
    pub(crate) fn has_lines(&self, name: &str, count: usize) {
        eventually(&format!("{name} has {count} lines"), PATIENCE, || {
            (self.lines(name).len() >= count).then_some(())
        });
    }

    /// Waits until `beats` has the name in it.
    pub(crate) fn beats(&self, who: &str) {
        eventually(&format!("{who} beats"), PATIENCE, || {
            self.lines("beats").iter().any(|line| line == who).then_some(())
        });
    }

    pub(crate) fn touch(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    /// A number that a command writes into a file of one line.
    pub(crate) fn number<N: std::str::FromStr>(&self, name: &str) -> N {
        eventually(&format!("{name} has a number"), PATIENCE, || {
            let text = fs::read_to_string(self.path(name)).ok()?;
            // Without its end, the line may not be whole yet.
            text.strip_suffix('\n')?.parse().ok()
        })
    }

    /// When the command of this name was let in, on the wall clock.
    pub(crate) fn entered(&self, who: &str) -> Duration {
        Duration::from_nanos(self.number(&format!("entered.{who}")))
    }

    /// Waits until the process whose pid is in this file is no more.
    pub(crate) fn dies(&self, pid_file: &str) {
        let pid = self.number(pid_file);
        eventually(&format!("the process of {pid_file} is dead"), PATIENCE, || {
            (!is_alive(pid)).then_some(())
        });
    }

    /// Waits until a command that beats is dead, and asserts that it last beat before this time: whenever the test looks.
    #[track_caller]
    pub(crate) fn dies_before(&self, who: &str, end: Duration) {
        self.dies(&format!("pid.{who}"));
        let written = fs::metadata(self.path("beats")).unwrap().modified().unwrap();
        let last = written.duration_since(UNIX_EPOCH).unwrap();
        assert!(last < end, "{who} beat {:?} after the lease", last.saturating_sub(end));
    }

    /// Who beat, in order; two at once show as one that comes back.
    pub(crate) fn turns(&self) -> Vec<String> {
        let mut turns = self.lines("beats");
        turns.dedup();
        turns
    }

    /// The store, for a test that gets in its way.
    pub(crate) fn sql(&self) -> Connection {
        let connection = Connection::open(self.database()).unwrap();
        connection.busy_timeout(PATIENCE).unwrap();
        connection
    }

    /// Stops a `tenure`, but not in the middle of a write to the file of locks: nobody else could use that until it goes on.
    pub(crate) fn stop(&self, holder: &Process) {
        let worker = holder.worker();
        eventually("the holder is stopped between two writes", PATIENCE, || {
            kill(worker, Signal::SIGSTOP).unwrap();
            if self.url.is_some() {
                return Some(());
            }
            let file = Connection::open(self.database()).unwrap();
            file.busy_timeout(Duration::from_secs(1)).unwrap();
            let is_free = file.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok();
            if !is_free {
                kill(worker, Signal::SIGCONT).unwrap();
            }
            is_free.then_some(())
        });
    }

    /// Takes the store away from everybody until the connection is dropped.
    pub(crate) fn hog(&self) -> Connection {
        let connection = self.sql();
        connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
        connection
    }

    /// The same, and from those who only read.
    pub(crate) fn hog_from_readers(&self) -> Connection {
        let connection = self.sql();
        connection.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
        connection
    }
}

/// All files below a folder with what is in them.
pub(crate) fn snapshot(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.path().to_str().unwrap().to_owned();
        if entry.file_type().unwrap().is_dir() {
            files.extend(snapshot(&entry.path()));
            files.insert(name, Vec::new());
        } else {
            files.insert(name, fs::read(entry.path()).unwrap_or_default());
        }
    }
    files
}

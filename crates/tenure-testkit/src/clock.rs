//! `Clock`: the wall clock of a server's process, moved, stopped and started by a test.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use tempfile::TempDir;

use crate::{folder, shim};

/// A wall clock that runs as the machine's does, until a test moves or stops it. Clones are the same clock.
///
/// It works by a library that is loaded before the libraries of the server. A change is in force when the call
/// returns: a server that reads the time after that reads the new one. The clock that never steps (`CLOCK_MONOTONIC`)
/// does not change. So what a server measures with it, such as its rounds of work, continues while the wall clock is
/// stopped. What Redis times by the wall clock waits with it: the end of a `BLPOP` or of a `CLIENT PAUSE`, and the
/// timeouts of replication.
#[derive(Clone, Debug)]
pub struct Clock {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    file: File,
    folder: TempDir,
}

/// The contents of the file, in µs.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Added to the time that the clock would show otherwise.
    offset: i64,
    /// The time at which the clock is stopped; 0: it runs.
    frozen: i64,
}

impl Clock {
    /// A clock that shows the correct time.
    pub fn new() -> Self {
        let folder = folder::temporary("tenure-clock-");
        let file = File::create(folder.path().join("clock")).expect("a file in the temporary folder");
        let inner = Inner { state: Mutex::default(), file, folder };
        inner.write(State::default());
        Self { inner: Arc::new(inner) }
    }

    /// The environment variables that the server needs. See also [`Recipe::clock`](crate::redis::Recipe::clock).
    ///
    /// # Panics
    /// If there is no C compiler.
    pub fn env(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().expect("a path in plain words").to_owned();
        let (library, file) = (shim::library("clock", SOURCE), self.inner.folder.path().join("clock"));
        vec![("LD_PRELOAD".into(), text(&library)), ("TENURE_CLOCK".into(), text(&file))]
    }

    /// From now on the clock is ahead by `ms`, or behind if that is negative. That is relative to the machine's time,
    /// or to the time at which the clock is stopped.
    pub fn step(&self, ms: i64) {
        self.change(|state| state.offset = ms * 1000);
    }

    /// Moves the clock forward by this much, whether it runs or is stopped.
    ///
    /// # Panics
    /// If the µs do not fit in an i64.
    pub fn advance(&self, by: Duration) {
        self.change(|state| state.offset += micros(by));
    }

    /// Stops the clock at exactly this time since the Unix epoch, to the µs. An earlier [`step`](Self::step) no
    /// longer applies.
    ///
    /// # Panics
    /// If the time is zero, or its µs do not fit in an i64.
    pub fn freeze_at(&self, since_epoch: Duration) {
        assert!(!since_epoch.is_zero(), "a clock cannot stand at the epoch itself");
        self.change(|state| *state = State { offset: 0, frozen: micros(since_epoch) });
    }

    /// Stops the clock at the time that it shows. Returns that time since the Unix epoch.
    pub fn freeze(&self) -> Duration {
        self.change(|state| *state = State { offset: 0, frozen: state.shows() })
    }

    /// Lets the clock run from the time at which it is stopped. [`step`](Self::step) with 0 makes it correct again.
    pub fn run(&self) {
        self.change(|state| {
            if state.frozen != 0 {
                *state = State { offset: state.shows() - machine(), frozen: 0 };
            }
        });
    }

    /// The time that the clock shows, since the Unix epoch, to the µs.
    pub fn shows(&self) -> Duration {
        duration(self.inner.locked().shows())
    }

    /// Returns the time that the clock shows after the change.
    fn change(&self, change: impl FnOnce(&mut State)) -> Duration {
        let mut state = self.inner.locked();
        change(&mut state);
        self.inner.write(*state);
        duration(state.shows())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Inner {
    fn locked(&self) -> MutexGuard<'_, State> {
        tenure_core::locked(&self.state)
    }

    /// Writes the offset, the frozen time, and a checksum by which a reader detects half of a change.
    fn write(&self, state: State) {
        let words = [state.offset, state.frozen, !(state.offset ^ state.frozen)];
        let bytes: Vec<u8> = words.into_iter().flat_map(i64::to_ne_bytes).collect();
        self.file.write_all_at(&bytes, 0).expect("our own file can be written");
    }
}

impl State {
    fn shows(self) -> i64 {
        let base = if self.frozen == 0 { machine() } else { self.frozen };
        base + self.offset
    }
}

fn machine() -> i64 {
    micros(SystemTime::UNIX_EPOCH.elapsed().expect("the machine's clock is after 1970"))
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("a time of our age")
}

fn duration(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).expect("a time after 1970"))
}

const SOURCE: &str = include_str!("clock/shim.c");

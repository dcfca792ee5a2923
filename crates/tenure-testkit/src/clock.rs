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
/// Made of a library that is loaded before the server's own. A change is in force when the call returns: a
/// server that reads the time after that reads the new one. The clock that never steps (`CLOCK_MONOTONIC`)
/// is left alone, so what a server measures by it, such as its rounds of work, goes on while the wall clock
/// stands. What Redis does after a while by the wall clock waits with it: the end of a `BLPOP` or of a
/// `CLIENT PAUSE`, and the time limits of replication.
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

/// What the file says, in µs.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Is added to what the clock would show.
    offset: i64,
    /// Where the clock stands; 0: it runs.
    frozen: i64,
}

impl Clock {
    /// A clock that is right.
    pub fn new() -> Self {
        let folder = folder::temporary("tenure-clock-");
        let file = File::create(folder.path().join("clock")).expect("a file in the temporary folder");
        let inner = Inner { state: Mutex::default(), file, folder };
        inner.write(State::default());
        Self { inner: Arc::new(inner) }
    }

    /// What the server must find in its environment. See also [`Recipe::clock`](crate::redis::Recipe::clock).
    ///
    /// # Panics
    /// If there is no C compiler.
    pub fn env(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().expect("a path in plain words").to_owned();
        let (library, file) = (shim::library("clock", SOURCE), self.inner.folder.path().join("clock"));
        vec![("LD_PRELOAD".into(), text(&library)), ("TENURE_CLOCK".into(), text(&file))]
    }

    /// From now on it is wrong by so many ms: of the machine's time, or of the time at which it stands.
    pub fn step(&self, ms: i64) {
        self.change(|state| state.offset = ms * 1000);
    }

    /// Moves it on by this much, whether it runs or stands.
    ///
    /// # Panics
    /// If that is more than an i64 of µs.
    pub fn advance(&self, by: Duration) {
        self.change(|state| state.offset += micros(by));
    }

    /// It stands at this time since the Unix epoch, exactly, to the µs. A [`step`](Self::step) of before is
    /// over.
    ///
    /// # Panics
    /// If that is zero, or more than an i64 of µs.
    pub fn freeze_at(&self, since_epoch: Duration) {
        assert!(!since_epoch.is_zero(), "a clock cannot stand at the epoch itself");
        self.change(|state| *state = State { offset: 0, frozen: micros(since_epoch) });
    }

    /// It stands where it is. Returns that time since the Unix epoch.
    pub fn freeze(&self) -> Duration {
        self.change(|state| *state = State { offset: 0, frozen: state.shows() })
    }

    /// It runs on from where it stands. [`step`](Self::step) with 0 makes it right again.
    pub fn run(&self) {
        self.change(|state| {
            if state.frozen != 0 {
                *state = State { offset: state.shows() - machine(), frozen: 0 };
            }
        });
    }

    /// What it shows: the time since the Unix epoch, to the µs.
    pub fn shows(&self) -> Duration {
        duration(self.inner.locked().shows())
    }

    /// Returns what it shows then.
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

    /// Offset, frozen, and a word by which a reader knows that it has not seen half of a change.
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

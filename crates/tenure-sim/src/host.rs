//! `SimHost`: one process on a machine with simulated clocks.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tenure_core::{BoxFuture, Host, Moment, Start, locked};

use crate::{
    chance::Chance,
    clockwork::{Clockwork, Micros, Pid},
};

/// Where the wall clocks of every world start, in µs since the Unix epoch.
pub(crate) const EPOCH: u64 = 1_700_000_000_000_000;

/// How long a machine has been running when the world begins.
const BOOTED: u64 = 1_000_000_000;

/// A clock that runs at its own rate and may be stepped.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// µs that it gains per second of true time.
    pub(crate) ppm: i64,
    /// What its wall clock is off by, in µs; changes when it is stepped.
    pub(crate) offset: AtomicI64,
}

impl Clock {
    pub(crate) fn new(ppm: i64, offset: i64) -> Self {
        Self { ppm, offset: AtomicI64::new(offset) }
    }

    /// How far it has run since the world began.
    pub(crate) fn run(&self, at: Micros) -> u64 {
        (at * (1_000_000u64.saturating_add_signed(self.ppm))) / 1_000_000
    }

    pub(crate) fn wall(&self, at: Micros) -> u64 {
        (EPOCH + self.run(at)).saturating_add_signed(self.offset.load(Ordering::Relaxed))
    }

    /// The true time that passes while its clock runs for `run`; never less.
    pub(crate) fn true_of(&self, run: u64) -> u64 {
        (run * 1_000_000).div_ceil(1_000_000u64.saturating_add_signed(self.ppm))
    }

    /// The true time that surely passes while its clock runs for that time; never more.
    pub(crate) fn true_within(&self, run: u64) -> u64 {
        run * 1_000_000 / 1_000_000u64.saturating_add_signed(self.ppm)
    }

    pub(crate) fn step(&self, by: i64) {
        self.offset.fetch_add(by, Ordering::Relaxed);
    }
}

/// One process of a world.
pub(crate) struct SimHost {
    clockwork: Arc<Clockwork>,
    process: Pid,
    pub(crate) clock: Arc<Clock>,
    chance: Mutex<Chance>,
}

impl SimHost {
    pub(crate) fn new(
        clockwork: Arc<Clockwork>,
        process: Pid,
        clock: Arc<Clock>,
        chance: Chance,
    ) -> Arc<Self> {
        Arc::new(Self { clockwork, process, clock, chance: Mutex::new(chance) })
    }
}

impl Host for SimHost {
    fn now(&self) -> Moment {
        let now = self.clockwork.now();
        let boot = Duration::from_micros(BOOTED + self.clock.run(now));
        Moment { boot, wall: Duration::from_micros(self.clock.wall(now)) }
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        let now = self.clockwork.now();
        // Never early, not even by a part of a µs: otherwise a loop that waits for a deadline would spin.
        let until = u64::try_from(until.boot.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX / 4);
        let left = until.saturating_sub(BOOTED + self.clock.run(now));
        if left == 0 {
            return Box::pin(std::future::ready(()));
        }
        // Longer than any world lasts.
        let left = left.min(1 << 40);
        // A timer is never early, and a little late.
        let late = locked(&self.chance).below(800);
        Box::pin(self.clockwork.until(now + self.clock.true_of(left) + 1 + late))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.clockwork.spawn(self.process, task);
    }

    fn spawn_apart(&self, _name: &'static str, start: Start) -> io::Result<()> {
        self.clockwork.spawn(self.process, start());
        Ok(())
    }

    fn random(&self, bytes: &mut [u8]) {
        locked(&self.chance).fill(bytes);
    }
}

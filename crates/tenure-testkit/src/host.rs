//! `PausedHost`: tokio's paused clock as a host. Tests can step its wall clock and suspend it.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use tenure_core::{BoxFuture, Host, Moment, Start};
use tokio::time::Instant;

/// The time of the wall clock at the start, less `UPTIME`.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// How long a machine has been up, in tests where that does not matter.
const UPTIME: Duration = Duration::from_secs(1000);

/// A host whose time is tokio's paused time. It advances by itself while all tasks wait.
pub struct PausedHost {
    start: Instant,
    /// How long the machine had been up at `start`.
    uptime: Duration,
    step_ms: AtomicI64,
    suspended_ms: AtomicU64,
    chance: Mutex<u64>,
}

impl PausedHost {
    /// A host for a `#[tokio::test(start_paused = true)]`.
    pub fn new(seed: u64) -> Arc<Self> {
        Self::up_for(UPTIME, seed)
    }

    /// The same on a machine that has been up for `uptime`. A shorter time than another host's means a later boot.
    pub fn up_for(uptime: Duration, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            uptime,
            step_ms: AtomicI64::new(0),
            suspended_ms: AtomicU64::new(0),
            chance: Mutex::new(seed | 1),
        })
    }

    /// Steps the wall clock only.
    pub fn step_wall(&self, ms: i64) {
        self.step_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// The machine is suspended for this long: both clocks advance, timers do not.
    pub fn suspend(&self, d: Duration) {
        self.suspended_ms
            .fetch_add(u64::try_from(d.as_millis()).expect("BUG: a test's sleep is short"), Ordering::SeqCst);
    }
}

/// Lets time pass in a `#[tokio::test(start_paused = true)]`.
pub async fn pass(d: Duration) {
    tokio::time::sleep(d).await;
}

impl Host for PausedHost {
    fn now(&self) -> Moment {
        let slept = Duration::from_millis(self.suspended_ms.load(Ordering::SeqCst));
        let passed = self.start.elapsed() + slept;
        let step = self.step_ms.load(Ordering::SeqCst);
        let stepped = Duration::from_millis(step.unsigned_abs());
        let wall = EPOCH + UPTIME + passed;
        let wall = if step < 0 { wall - stepped } else { wall + stepped };
        Moment { boot: self.uptime + passed, wall }
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        let wait = until.boot.saturating_sub(self.now().boot);
        Box::pin(tokio::time::sleep(wait))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn spawn_apart(&self, _name: &'static str, start: Start) -> io::Result<()> {
        tokio::spawn(start());
        Ok(())
    }

    fn random(&self, bytes: &mut [u8]) {
        let mut state = tenure_core::locked(&self.chance);
        for byte in bytes {
            // xorshift64: the random bytes of a test only have to be repeatable.
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            *byte = state.to_be_bytes()[3];
        }
    }
}

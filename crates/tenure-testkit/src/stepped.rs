//! `SteppedHost`: real time as a host. A test can step it, and sleeping tasks notice.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tenure_core::{BoxFuture, Host, Moment, Start};
use tokio::{runtime::Builder, sync::Notify};

/// A host for tests with real servers whose leases end by the *client's* clock. Both clocks run in real time, and a
/// test can step them. What is spawned apart runs on a separate thread, as in production.
pub struct SteppedHost(Arc<Clock>);

struct Clock {
    start: Instant,
    stepped_ms: AtomicU64,
    has_stepped: Notify,
    draws: AtomicU64,
}

impl SteppedHost {
    /// A host that has not stepped yet.
    pub fn new() -> Arc<Self> {
        let (stepped_ms, draws) = (AtomicU64::new(0), AtomicU64::new(0));
        let has_stepped = Notify::new();
        Arc::new(Self(Arc::new(Clock { start: Instant::now(), stepped_ms, has_stepped, draws })))
    }

    /// Steps both clocks; tasks that sleep check them again.
    pub fn step(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).expect("BUG: a test's step is short");
        self.0.stepped_ms.fetch_add(ms, Ordering::SeqCst);
        self.0.has_stepped.notify_waiters();
    }
}

impl Clock {
    fn now(&self) -> Moment {
        let stepped = Duration::from_millis(self.stepped_ms.load(Ordering::SeqCst));
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
        Moment { boot: Duration::from_secs(1000) + self.start.elapsed() + stepped, wall: epoch + stepped }
    }
}

impl Host for SteppedHost {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        let clock = self.0.clone();
        Box::pin(async move {
            loop {
                let stepped = clock.has_stepped.notified();
                tokio::pin!(stepped);
                // From here on no step is missed.
                stepped.as_mut().enable();
                let left = until.boot.saturating_sub(clock.now().boot);
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(left) => {}
                    () = stepped => {}
                }
            }
        })
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn spawn_apart(&self, name: &'static str, start: Start) -> io::Result<()> {
        let run = move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { start().await });
        };
        thread::Builder::new().name(name.into()).spawn(run).map(drop)
    }

    fn random(&self, bytes: &mut [u8]) {
        // Unique is enough for a test.
        let draw = self.0.draws.fetch_add(1, Ordering::SeqCst).to_be_bytes();
        for (byte, source) in bytes.iter_mut().zip(draw.iter().rev().cycle()) {
            *byte = *source;
        }
    }
}

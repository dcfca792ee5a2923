//! Whoever is near the front hears of a hint of another process at once, and not by its poll.

#![cfg(target_os = "linux")]

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tenure_core::{
    Audience, BackendHandle, BoxFuture, ClaimAnswer, Host, Moment, Released, Start, WakeEvent,
};
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{conformance::player::Player, host::PausedHost, patience::in_time};

/// A host whose timers stand still when that is said: nobody polls from then on.
struct StillHost {
    /// In real time, for the runtime is not paused.
    host: Arc<PausedHost>,
    is_still: AtomicBool,
    /// Timers that were set since.
    sleeps: AtomicUsize,
}

impl Host for StillHost {
    fn now(&self) -> Moment {
        self.host.now()
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        if self.is_still.load(Ordering::SeqCst) {
            self.sleeps.fetch_add(1, Ordering::SeqCst);
            return Box::pin(std::future::pending());
        }
        self.host.sleep_until(until)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.host.spawn(task);
    }

    fn spawn_apart(&self, name: &'static str, start: Start) -> io::Result<()> {
        self.host.spawn_apart(name, start)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.host.random(bytes);
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

fn player(file: &Path, host: Arc<dyn Host>) -> Player {
    let backend: BackendHandle = Arc::new(Sqlite::new(Config::new(file), host));
    Player::new(backend, "job")
}

#[tokio::test]
async fn the_next_one_hears_of_its_turn_without_a_poll() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let real = PausedHost::new(1);
    let holder = player(&file, real.clone());
    holder.enter().await;
    let (is_still, sleeps) = (AtomicBool::new(false), AtomicUsize::new(0));
    let host = Arc::new(StillHost { host: real, is_still, sleeps });
    let next = player(&file, host.clone());
    let mut hints = next.backend.wakes(next.claim.owner.process(), Audience::Waiters);
    assert!(matches!(next.ask().await, ClaimAnswer::Queued { .. }));
    let owner = next.claim.owner;
    // It polls for a while, and so knows that its turn is near.
    assert!(tokio::time::timeout(Duration::from_millis(200), hints.next()).await.is_err());
    host.is_still.store(true, Ordering::SeqCst);
    let listening = tokio::spawn(async move { hints.next().await });
    in_time("its last timer is set", PATIENCE, async {
        while host.sleeps.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(holder.leave().await, Released::Released);
    let heard = in_time("it hears of its turn", PATIENCE, listening).await;
    assert_eq!(heard.unwrap(), WakeEvent::Owner(owner));
}

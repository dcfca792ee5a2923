//! Programs of the plan of jobs: some run a job once per interval, others leave memos in a lock and read them.

use std::{sync::Arc, time::Duration};

use tenure::{Locker, once::RunOutcome};

use crate::{
    chance::Chance,
    clockwork::Micros,
    history::{What, lock_id},
    world::World,
};

/// From the start of a run that counts to the start of the next, in µs.
pub(crate) const INTERVAL: Micros = 20_000_000;

/// How much earlier a run of the second job may begin, in µs.
pub(crate) const EARLY: Micros = INTERVAL / 10;

/// How long a memo is kept, in µs: some expire before the next one comes.
const KEPT: Micros = 15_000_000;

pub(crate) struct JobProgram {
    pub(crate) world: Arc<World>,
    pub(crate) locker: Locker,
    pub(crate) ttl: Duration,
    pub(crate) chance: Chance,
}

impl JobProgram {
    pub(crate) async fn run(mut self) {
        loop {
            let rest = self.chance.millis(50, 4000);
            self.pause(rest).await;
            if self.chance.per_mille(600) { self.once().await } else { self.note().await }
        }
    }

    async fn pause(&self, d: Duration) {
        let us = u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        self.world.clockwork.until(self.world.now() + us).await;
    }

    /// A job, which takes a while and may fail: `a` is exact, and `c` may begin early.
    async fn once(&mut self) {
        let (name, early) = if self.chance.per_mille(500) { ("a", 0) } else { ("c", EARLY) };
        let once = self.locker.once(name).interval(Duration::from_micros(INTERVAL));
        let once = once.jitter(Duration::from_micros(early));
        let ttl = self.ttl;
        let once = once.with(|lock| lock.ttl(ttl));
        let (takes, fails) = (self.chance.millis(0, 3000), self.chance.per_mille(200));
        let run = self.world.next_ask();
        let done = once.run(async |_| {
            self.world.note(What::JobStarted { run, early });
            self.pause(takes).await;
            if fails { Err(()) } else { Ok(()) }
        });
        if let Ok(RunOutcome::Ran(Ok(()))) = done.await {
            self.world.note(What::JobCounted { run });
        }
    }

    /// The lock `b`, whose lease may be passed on inside the process.
    async fn note(&mut self) {
        let lock = self.locker.mutex("b").ttl(self.ttl);
        if self.chance.per_mille(300) {
            return self.look().await;
        }
        let Ok(guard) = lock.within(Duration::from_secs(10)).acquire().await else { return };
        for _ in 0..self.chance.between(1, 3) {
            let (token, asked_at) = (guard.token().get(), self.world.now());
            if guard.set_memo(token.to_string(), Duration::from_micros(KEPT)).await.is_ok() {
                // It was written no sooner than that, and clocks differ by at most 1 % (A1).
                let until = asked_at + KEPT - KEPT / 100;
                self.world.note(What::MemoLeft { lock: lock_id(guard.name()), token, until });
            }
            if self.chance.per_mille(500) {
                let held = self.chance.millis(0, 800);
                self.pause(held).await;
            }
        }
        drop(guard);
        self.look().await;
    }

    async fn look(&self) {
        let asked_at = self.world.now();
        let Ok(view) = self.locker.inspect("b").await else { return };
        let token = view.memo.as_ref().map(|memo| memo.token.get());
        let text = view.memo.map(|memo| memo.text);
        assert_eq!(text, token.map(|token| token.to_string()), "BUG: a memo says its token");
        self.world.note(What::MemoSeen { lock: lock_id(&view.name), token, asked_at });
    }
}

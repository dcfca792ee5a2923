//! Programs that use the store directly. They ask for blocks of tokens, which the engine does not do yet, or at moments that
//! a plan has chosen.

use std::{sync::Arc, time::Duration};

use futures_util::future::{Either, select};
use tenure_core::{
    BackendHandle, Claim, ClaimAnswer, Grant, Host, Label, LockName, Mode, OwnerId, ProcessId, Timing,
    WaitMode,
};

use crate::{
    chance::Chance,
    clockwork::{Micros, Pid},
    history::{Leaving, NotEntered, Patience, What, lock_id},
    host::Clock,
    world::World,
};

/// When such a program asks.
pub(crate) enum Schedule {
    /// After a rest, for some tokens.
    Often,
    /// At these times, for one token.
    At(Vec<Micros>),
}

pub(crate) struct BlockProgram {
    pub(crate) world: Arc<World>,
    pub(crate) process: Pid,
    pub(crate) clock: Arc<Clock>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) store: BackendHandle,
    pub(crate) ttl: Duration,
    pub(crate) schedule: Schedule,
    pub(crate) chance: Chance,
}

impl BlockProgram {
    pub(crate) async fn run(mut self) {
        match std::mem::replace(&mut self.schedule, Schedule::Often) {
            Schedule::Often => loop {
                let rest = self.chance.millis(20, 1500);
                self.pause(rest).await;
                let block = u32::try_from(self.chance.between(1, 4)).expect("BUG: a few");
                self.once(block).await;
            },
            Schedule::At(times) => {
                for at in times {
                    self.world.clockwork.until(at).await;
                    self.once(1).await;
                }
                std::future::pending().await
            }
        }
    }

    async fn pause(&self, d: Duration) {
        let us = u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        self.world.clockwork.until(self.world.now() + us).await;
    }

    fn claim(&self, block: u32) -> Claim {
        let (mut process, mut owner) = ([0; 8], [0; 16]);
        self.host.random(&mut process);
        self.host.random(&mut owner);
        let owner = OwnerId::from_random(ProcessId::from_random(process), owner);
        let name = LockName::new("a").expect("BUG: a good name");
        let (mode, ttl, label, wait) = (Mode::Exclusive, self.ttl, Arc::<Label>::default(), WaitMode::No);
        Claim::new(name, owner, mode, ttl).with_label(label).with_block(block).with_wait(wait)
    }

    async fn once(&mut self, block: u32) {
        let claim = self.claim(block);
        let (world, lock) = (self.world.clone(), lock_id(&claim.name));
        let (ask, process, patience) = (world.next_ask(), self.process, Patience::None);
        world.note(What::Asked { ask, process, lock, patience, limit: 1, is_queue: false, keeps: false });
        let timing = Timing::new(self.ttl).expect("BUG: a good ttl");
        let sent_at = self.host.now();
        let over = self.host.sleep_until(sent_at + timing.request_timeout());
        let answer = match select(Box::pin(self.store.claim(&claim)), over).await {
            Either::Left((answer, _)) => answer.ok(),
            Either::Right(_) => None,
        };
        let until = timing.believed_until(sent_at, self.ttl);
        match answer {
            Some(ClaimAnswer::Granted(grant)) if !until.is_over(self.host.now()) => {
                let left = until.remaining(self.host.now());
                self.hold(ask, &grant, left).await;
            }
            _ => world.note(What::NotEntered { ask, why: NotEntered::Busy }),
        }
        // Whatever the result was: the lease or the place may be there.
        let over = self.host.sleep_until(self.host.now() + timing.request_timeout());
        let _ = select(Box::pin(self.store.release(&claim.name, claim.owner)), over).await;
    }

    async fn hold(&mut self, ask: usize, granted: &Grant, left: Duration) {
        let world = self.world.clone();
        let (grant, lock, token) = (world.next_grant(), lock_id(&granted.name), granted.token.get());
        let (process, owner, last) = (self.process, granted.owner, token + u64::from(granted.block) - 1);
        world.note(What::Entered { ask, grant, process, lock, owner, token, last, limit: 1, permits: 1 });
        let left_us = self.clock.true_within(u64::try_from(left.as_micros()).unwrap_or(0));
        world.note(What::Believes { grant, until: world.now() + left_us });
        for token in token..=last {
            let work = self.chance.millis(5, 300).min(left / 8);
            self.pause(work).await;
            world.write(grant, lock, token, Duration::from_micros(self.chance.between(0, 5_000)));
        }
        self.pause(Duration::from_millis(10)).await;
        world.note(What::Left { grant, how: Leaving::Dropped });
    }
}

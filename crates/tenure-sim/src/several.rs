//! Programs that ask for several locks together, or for one of several.

use std::{sync::Arc, time::Duration};

use futures_util::future::{Either, select};
use tenure::{AcquireError, Guards, ReleaseError};
use tenure_core::Outcome;

use crate::{
    client::{Program, micros},
    history::{AskId, GrantId, Leaving, LockId, NotEntered, Patience, ReleaseAnswer, What, lock_id},
    world::World,
};

/// How many locks there are: `a` to `d`.
pub(crate) const LOCKS: u8 = 4;

/// Acquisitions under way, one for each lock. Without another result they are noted as given up.
struct Asking<'a> {
    world: &'a World,
    asks: Vec<AskId>,
}

impl Asking<'_> {
    fn over(&mut self, why: NotEntered) {
        self.asks.drain(..).for_each(|ask| self.world.note(What::NotEntered { ask, why }));
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.over(NotEntered::GaveUp);
    }
}

/// What a program holds. When it is dropped, it first ends the tenures, and then drops the guards.
struct Tenures {
    world: Arc<World>,
    grants: Vec<(GrantId, LockId, u64)>,
    guards: Option<Arc<Guards>>,
}

impl Tenures {
    fn end(&self, how: Leaving) {
        self.grants.iter().for_each(|(grant, ..)| self.world.disbelieve(*grant, how));
    }
}

impl Drop for Tenures {
    fn drop(&mut self) {
        if self.guards.is_some() {
            self.end(Leaving::Dropped);
        }
    }
}

fn name(letter: u8) -> String {
    char::from(b'a' + letter).to_string()
}

impl Program {
    /// One to three locks, in any order.
    fn draw(&mut self) -> Vec<u8> {
        let mut left: Vec<u8> = (0..LOCKS).collect();
        let count = 1 + self.chance.index(3);
        (0..count).map(|_| left.swap_remove(self.chance.index(left.len()))).collect()
    }

    pub(crate) async fn several(&mut self) {
        let (letters, is_all) = (self.draw(), self.chance.per_mille(600));
        let is_healed = self.world.is_healed();
        let patience = match if is_healed { 999 } else { self.chance.below(1000) } {
            0..200 => Patience::None,
            200..400 => Patience::Some(self.chance.between(50_000, 8_000_000)),
            _ => Patience::Endless,
        };
        let gives_up = self.chance.per_mille(self.habits.fickle) && !is_healed;
        let gives_up_after = gives_up.then(|| self.chance.millis(0, 900));
        let world = self.world.clone();
        // A program that wants any one of them asks once.
        let asked = if is_all { letters.len() } else { 1 };
        let ask = |letter: &u8| {
            let (ask, lock) = (world.next_ask(), u16::from(*letter) * 256);
            world.note(What::Asked {
                ask,
                process: self.process,
                lock,
                patience,
                limit: 1,
                is_queue: true,
                keeps: false,
            });
            ask
        };
        let mut asking = Asking { world: &world, asks: letters[..asked].iter().map(ask).collect() };
        let acquiring = Box::pin(self.acquire(letters, is_all, patience));
        let answer = match gives_up_after {
            None => acquiring.await,
            Some(after) => match select(acquiring, Box::pin(self.pause(after))).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => return,
            },
        };
        match answer {
            Ok(guards) => self.hold_several(guards, asking, is_healed).await,
            Err(AcquireError::TimedOut { .. }) => asking.over(NotEntered::Busy),
            Err(AcquireError::Store(error)) => {
                asking.over(NotEntered::Failed(error.outcome() == Outcome::NotApplied));
            }
            Err(error) => unreachable!("BUG: a program asks in vain: {error}"),
        }
    }

    async fn acquire(
        &self,
        letters: Vec<u8>,
        is_all: bool,
        patience: Patience,
    ) -> Result<Guards, AcquireError> {
        let (names, ttl) = (letters.into_iter().map(name), self.habits.ttl);
        let budget = match patience {
            Patience::None => Some(Duration::ZERO),
            Patience::Some(us) => Some(Duration::from_micros(us)),
            Patience::Endless => None,
        };
        if is_all {
            let all = self.locker.all(names).with(|lock| lock.ttl(ttl));
            return match budget {
                Some(budget) => all.within(budget).acquire().await,
                None => all.acquire().await,
            };
        }
        let any = self.locker.any(names).with(|lock| lock.ttl(ttl));
        let guard = match budget {
            Some(budget) => any.within(budget).acquire().await,
            None => any.acquire().await,
        };
        guard.map(Guards::from)
    }

    async fn hold_several(&mut self, guards: Guards, mut asking: Asking<'_>, is_healed: bool) {
        let (world, process, guards) = (self.world.clone(), self.process, Arc::new(guards));
        let asks = std::mem::take(&mut asking.asks);
        let mut grants = Vec::new();
        for (lease, ask) in guards.iter().zip(asks) {
            let (lock, token) = (lock_id(lease.name()), lease.token().get());
            let owner = world.owner_of(lock, token);
            let grant = world.believe(process, &guards, &self.clock);
            world.note(What::Entered {
                ask,
                grant,
                process,
                lock,
                owner,
                token,
                last: token,
                limit: 1,
                permits: 1,
            });
            grants.push((grant, lock, token));
        }
        let mut tenures = Tenures { world: world.clone(), grants, guards: Some(guards) };
        let ttl = micros(self.habits.ttl) / 1000;
        let length = match self.chance.below(1000) {
            _ if is_healed => self.chance.millis(5, 500),
            fate if fate < self.habits.long => self.chance.millis(ttl / 2, ttl * 5 / 2),
            0..400 => self.chance.millis(0, 4),
            _ => self.chance.millis(5, 1500),
        };
        self.work_on_several(&tenures, length).await;
        if self.chance.per_mille(300) {
            return;
        }
        let guards = tenures.guards.take().expect("BUG: it was there");
        tenures.end(Leaving::Released);
        let guards = Arc::try_unwrap(guards).expect("BUG: nobody else keeps them");
        let answer = match guards.release().await {
            Ok(()) => ReleaseAnswer::Released,
            Err(ReleaseError::AlreadyLost(_)) => ReleaseAnswer::AlreadyLost,
            Err(_) => ReleaseAnswer::Unknown,
        };
        // The answers for several locks come together. By then another holder may have the lease of one of them.
        if let [(grant, ..)] = tenures.grants[..] {
            world.note(What::Answered { grant, answer });
        }
    }

    /// Checks all guards now and then, and writes to what each lock protects, until the time has passed.
    async fn work_on_several(&mut self, tenures: &Tenures, length: Duration) {
        let guards = tenures.guards.as_ref().expect("BUG: they are there");
        let over = self.world.now() + micros(length);
        loop {
            for &(grant, lock, token) in &tenures.grants {
                if self.world.check(grant, &**guards) {
                    let is_late = self.chance.per_mille(50);
                    let after =
                        if is_late { self.chance.millis(100, 8000) } else { self.chance.millis(0, 5) };
                    self.world.write(grant, lock, token, after);
                }
            }
            if self.world.now() >= over {
                return;
            }
            let next = (self.world.now() + micros(self.chance.millis(50, 1500))).min(over);
            self.world.clockwork.until(next).await;
        }
    }
}

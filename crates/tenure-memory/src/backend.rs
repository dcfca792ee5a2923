//! `Memory`: a map of ledgers behind a mutex.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{
    Absent, Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer, EndOfGrant,
    FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, Memos, Minting, Moment, Noted,
    Notifier, Order, Outcome, OwnerId, ProcessId, Promises, QuorumNode, Raised, Released, Renewal, Restart,
    Severity, Sharing, WakeStream, WakeSupport, locked,
};
use tenure_ledger::{Change, Ledger, LedgerError, Rules};

/// Locks inside one process. Clones share them.
#[derive(Clone)]
pub struct Memory {
    host: Arc<dyn Host>,
    rules: Rules,
    world: Arc<Mutex<World>>,
    notifier: Notifier,
}

#[derive(Default)]
struct World {
    locks: HashMap<LockName, Ledger>,
    /// No smaller than the fence of any ledger that was dropped because it was free.
    floor: u64,
}

impl Memory {
    /// An empty store that counts time by the clock of `host`.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self { host, rules: Rules::default(), world: Arc::default(), notifier: Notifier::default() }
    }

    /// The same with other durations of the queue.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// Runs a verb that may refuse. A verb that refuses has removed only expired entries.
    fn attempt<A>(
        &self,
        name: &LockName,
        verb: impl FnOnce(&mut Ledger, Moment, &Rules) -> Result<Change<A>, LedgerError>,
    ) -> Result<A, BackendError> {
        let answer = self.step(name, |ledger, now, rules| match verb(ledger, now, rules) {
            Ok(Change { answer, wakes, changed }) => Change { answer: Ok(answer), wakes, changed },
            Err(refusal) => Change { answer: Err(refusal), wakes: Vec::new(), changed: false },
        });
        answer.map_err(refused)
    }

    /// Runs one verb as one atomic step, then notifies.
    fn step<A>(&self, name: &LockName, verb: impl FnOnce(&mut Ledger, Moment, &Rules) -> Change<A>) -> A {
        let now = self.host.now();
        let change = {
            // OK because a ledger is whole between any two statements that can panic.
            let mut world = locked(&self.world);
            let floor = world.floor;
            if !world.locks.contains_key(name) {
                world.locks.insert(name.clone(), Ledger::new(floor));
            }
            let ledger = world.locks.get_mut(name).expect("BUG: inserted a line ago");
            let change = verb(ledger, now, &self.rules);
            if ledger.is_free() && !ledger.has_memo(now) {
                world.floor = floor.max(ledger.fence());
                world.locks.remove(name);
            }
            change
        };
        for (audience, owner) in change.wakes {
            self.notifier.notify(audience, owner);
        }
        change.answer
    }

    /// Forgets free locks whose memo has expired. It checks all locks, which are no more than one process has.
    fn forget_old_memos(&self) {
        let now = self.host.now();
        let mut world = locked(&self.world);
        let mut floor = world.floor;
        world.locks.retain(|_, ledger| {
            let is_kept = !ledger.is_free() || ledger.has_memo(now);
            floor = if is_kept { floor } else { floor.max(ledger.fence()) };
            is_kept
        });
        world.floor = floor;
    }

    fn look<A>(&self, see: impl FnOnce(&World, Moment) -> A) -> A {
        let now = self.host.now();
        see(&locked(&self.world), now)
    }
}

fn refused(error: LedgerError) -> BackendError {
    BackendError::new(error.kind(), Outcome::NotApplied, error.to_string()).with("backend", "memory")
}

#[async_trait]
impl Backend for Memory {
    fn promises(&self) -> Promises {
        let mut promises = Promises::least("memory");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        promises.restart = Restart::Lost;
        promises.fail_over = None;
        promises.reach = "one process";
        promises.end = EndOfGrant::Ttl;
        promises.chosen_owner = true;
        promises.classes = true;
        promises.wake = WakeSupport::Pushed;
        promises.memo = Memos::Kept;
        promises.ttl_grain = Duration::from_micros(1);
        promises
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(self.clone()))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        self.attempt(&claim.name, |ledger, now, rules| ledger.claim(now, rules, claim))
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let renew = |grant: &Grant| {
            self.step(&grant.name, |ledger, now, rules| ledger.renew(now, rules, grant.owner, grant.ttl))
        };
        grants.iter().map(|grant| Ok(renew(grant))).collect()
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        Ok(self.step(name, |ledger, now, rules| ledger.release(now, rules, owner)))
    }

    async fn tell(&self, _name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        self.notifier.notify(whom, owner);
        Ok(())
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.forget_old_memos();
        Ok(self.step(name, |ledger, now, rules| ledger.note((now, now), rules, (owner, token), memo)))
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        Box::new(self.notifier.subscribe(process, audience))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        Ok(self.look(|world, now| {
            let fallback = Ledger::new(world.floor);
            world.locks.get(name).unwrap_or(&fallback).view(name.clone(), now)
        }))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        let mut views: Vec<LockView> = self.look(|world, now| {
            let chosen = world.locks.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
            chosen.map(|(name, ledger)| ledger.view(name.clone(), now)).collect()
        });
        views.retain(|view| !(view.holders.is_empty() && view.queue.is_empty()));
        views.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(views)
    }

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        self.attempt(name, |ledger, now, rules| ledger.break_lock(now, rules, scope))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        let what = "the locks are in the memory of this process: nobody else sees them, and they end with it";
        let remedy = "for locks between processes use another store, such as sqlite:PATH";
        Ok(vec![Finding::new(Severity::Note, what, remedy)])
    }
}

#[async_trait]
impl QuorumNode for Memory {
    async fn identity(&self) -> Result<String, BackendError> {
        // OK because two worlds of one process have different addresses, and no other process has either.
        Ok(format!("{:p}", Arc::as_ptr(&self.world)))
    }

    async fn another(&self) -> Result<Self, BackendError> {
        Ok(self.clone())
    }

    async fn raise(&self, name: &LockName, owner: OwnerId, to: FencingToken) -> Result<Raised, BackendError> {
        if to > FencingToken::MAX {
            return Err(refused(LedgerError::TokensSpent));
        }
        Ok(self.step(name, |ledger, now, rules| ledger.raise(now, rules, owner, to)))
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{Grant, Label, Mode, WaitMode};
    use tenure_testkit::host::{PausedHost, pass};

    use super::*;

    /// L8, L2: a free lock with a memo is kept until the memo expires. Its fence is kept indefinitely.
    #[tokio::test(start_paused = true)]
    async fn locks_with_memos_that_are_over_are_forgotten() {
        let store = Memory::new(PausedHost::new(1));
        let memo = Memo::new("done", Duration::from_secs(60)).unwrap();
        let note = async |job: u8| -> Grant {
            let name = LockName::new(format!("job-{job}")).unwrap();
            let owner = OwnerId::from_random(ProcessId::from_random([7; 8]), [job; 16]);
            let (mode, ttl, wait) = (Mode::Exclusive, Duration::from_secs(9), WaitMode::No);
            let claim =
                Claim::new(name, owner, mode, ttl).with_label(Arc::new(Label::default())).with_wait(wait);
            let ClaimAnswer::Granted(grant) = store.claim(&claim).await.unwrap() else {
                panic!("it is free")
            };
            assert_eq!(store.note(&claim.name, owner, grant.token, &memo).await.unwrap(), Noted::Noted);
            store.release(&claim.name, owner).await.unwrap();
            grant
        };
        let mut last = 0;
        for job in 0..10 {
            last = note(job).await.token.get();
        }
        assert_eq!(locked(&store.world).locks.len(), 10);
        pass(Duration::from_secs(61)).await;
        assert!(note(11).await.token.get() > last);
        assert_eq!(locked(&store.world).locks.len(), 1);
        let old = store.inspect(&LockName::new("job-9").unwrap()).await.unwrap();
        assert!(old.fence.get() >= last && old.memo.is_none());
    }
}

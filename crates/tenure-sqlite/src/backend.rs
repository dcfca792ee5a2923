//! `Sqlite`: the backend.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{
    Absent, Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer, EndOfGrant,
    ErrorKind, FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, Memos, Minting,
    Moment, Noted, Notifier, Order, OwnerId, Priority, ProcessId, Promises, QuorumNode, Raised, Released,
    Renewal, Restart, Sharing, WakeStream, WakeSupport,
};
use tenure_ledger::{Ledger, Rules};

use crate::{
    config::Config,
    diagnosis,
    error::{self, RowError},
    front, sql,
    store::{FileStore, Haste, InUse, Tx},
    wake::PolledHints,
};

/// Locks in one SQLite file. Nothing is opened before the first request.
pub struct Sqlite {
    config: Config,
    host: Arc<dyn Host>,
    notifier: Notifier,
    store: Arc<Mutex<FileStore>>,
}

impl Sqlite {
    /// A handle of the file that `config` names. Its leases end by the clock of `host`.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        Self::sharing(config.absolute(), host, Notifier::default())
    }

    fn sharing(config: Config, host: Arc<dyn Host>, notifier: Notifier) -> Self {
        let store = FileStore::shared(config.clone(), host.clone(), notifier.clone());
        Self { config, host, notifier, store }
    }

    fn store(&self) -> InUse<'_> {
        InUse::of(&self.store)
    }

    /// Reads ledgers from one snapshot of the file; returns `nothing` if there is no file yet.
    fn read<A>(
        &self,
        nothing: A,
        read: impl FnOnce(&rusqlite::Connection, Moment, &dyn Fn(&str) -> bool) -> Result<A, RowError>,
    ) -> Result<A, BackendError> {
        let mut store = self.store();
        if !store.reach(false)? {
            return Ok(nothing);
        }
        let now = store.now();
        let conn = store.conn().expect("BUG: reached a line ago");
        let path = &self.config.path;
        let snapshot = conn.unchecked_transaction().map_err(|e| error::before_commit(path, e))?;
        read(&snapshot, now, &|mark| store.is_dead(mark)).map_err(|e| error::row(path, e))
    }
}

#[async_trait]
impl Backend for Sqlite {
    fn promises(&self) -> Promises {
        let mut promises = Promises::least("sqlite");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        promises.restart = Restart::Survives;
        promises.fail_over = None;
        promises.reach = "one host";
        promises.end = EndOfGrant::Ttl;
        promises.free_at_death = true;
        promises.chosen_owner = true;
        promises.classes = true;
        promises.wake = WakeSupport::Polled(Duration::from_millis(25));
        promises.memo = Memos::Kept;
        promises.ttl_grain = Duration::from_micros(1);
        promises
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(self.another().await?))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let mut store = self.store();
        let answer = match store.still_waits(claim) {
            Ok(answer) => answer,
            Err(haste) => store.claim(claim, haste)?,
        };
        store.remember_place(claim, &answer);
        Ok(answer)
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        renew(&mut self.store(), grants)
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let mut store = self.store();
        store.places.leave(name, owner);
        let verb = |ledger: &mut Ledger, now, rules: &Rules| Ok(ledger.release(now, rules, owner));
        if let Some(answer) = store.at_once(name, None, verb)? {
            return Ok(answer);
        }
        let answer = store
            .transact(false, Haste::Holder, |tx| tx.step(name, Some((owner, Priority::Normal)), verb))?;
        Ok(answer.unwrap_or(Released::WasGone))
    }

    async fn tell(&self, _name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        if whom != Audience::Observers && self.notifier.notify(whom, owner) {
            return Ok(());
        }
        let tell = |tx: &mut Tx<'_>| {
            tx.wakes.push((whom, owner));
            Ok(())
        };
        self.store().transact(false, Haste::Waiter, tell).map(drop)
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        let answer = self.store().transact_flushed(Haste::Holder, |tx| {
            tx.step(name, None, |ledger, now, rules| Ok(ledger.note((now, now), rules, (owner, token), memo)))
        })?;
        Ok(answer.unwrap_or(Noted::Gone))
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        let notifications = self.notifier.subscribe(process, audience);
        Box::new(PolledHints::new(self.store.clone(), notifications, process, audience))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let nothing = Ledger::new(0).view(name.clone(), Moment::default());
        self.read(nothing, |conn, now, is_dead| {
            let mut ledger = front::whole(conn, name)?;
            ledger.remove_dead(is_dead);
            Ok(ledger.view(name.clone(), now))
        })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        let mut last = None;
        let views = self.read(Vec::new(), |conn, now, is_dead| {
            let mut list = conn.prepare_cached(sql::LIST)?;
            let names = list.query_map([prefix], front::name)?;
            let mut views = Vec::new();
            for name in names {
                let Some(Ok(name)) = name?.map(LockName::new) else { continue };
                let mut ledger = front::whole(conn, last.insert(name.clone()))?;
                ledger.remove_dead(is_dead);
                views.push(ledger.view(name, now));
            }
            Ok(views)
        });
        let named = |error: BackendError| match last {
            Some(name) if error.kind() == ErrorKind::Corrupt => error.with("lock", name),
            _ => error,
        };
        let mut views = views.map_err(named)?;
        views.retain(|view| !(view.holders.is_empty() && view.queue.is_empty()));
        Ok(views)
    }

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        let robbed = self.store().transact(true, Haste::Holder, |tx| {
            tx.step(name, None, |ledger, now, rules| ledger.break_lock(now, rules, scope))
        })?;
        Ok(robbed.expect("BUG: a break makes the file"))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        diagnosis::diagnose(&mut self.store())
    }
}

#[async_trait]
impl QuorumNode for Sqlite {
    async fn identity(&self) -> Result<String, BackendError> {
        Ok(self.config.path.display().to_string())
    }

    async fn another(&self) -> Result<Self, BackendError> {
        Ok(Self::sharing(self.config.clone(), self.host.clone(), self.notifier.clone()))
    }

    async fn raise(&self, name: &LockName, owner: OwnerId, to: FencingToken) -> Result<Raised, BackendError> {
        let answer = self.store().transact(false, Haste::Holder, |tx| {
            tx.step(name, None, |ledger, now, rules| Ok(ledger.raise(now, rules, owner, to)))
        })?;
        Ok(answer.unwrap_or(Raised::Gone))
    }
}

fn renew(store: &mut FileStore, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
    let answers = store.transact(false, Haste::Holder, |tx| {
        let mut longest = Duration::ZERO;
        let mut answers = Vec::with_capacity(grants.len());
        for Grant { name, owner, ttl, ends_with_process, .. } in grants {
            let answer = tx.step(name, None, |ledger, now, rules| {
                let change = ledger.renew(now, rules, *owner, *ttl);
                if !ends_with_process {
                    ledger.tie(*owner, None);
                }
                Ok(change)
            })?;
            if answer == Renewal::Renewed {
                longest = longest.max(*ttl);
            }
            answers.push(answer);
        }
        tx.remember_ttl(longest)?;
        Ok(answers)
    });
    match answers {
        Ok(Some(answers)) => answers.into_iter().map(Ok).collect(),
        // The file is gone, and with it the lease.
        Ok(None) => grants.iter().map(|_| Ok(Renewal::Gone)).collect(),
        // In halves: it is not known for how many renewals in one transaction the disk has room.
        Err(error) if grants.len() > 1 && error::lacks_room(&error) => {
            let (some, others) = grants.split_at(grants.len() / 2);
            [renew(store, some), renew(store, others)].concat()
        }
        Err(error) => grants.iter().map(|_| Err(error.clone())).collect(),
    }
}

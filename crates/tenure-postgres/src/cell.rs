//! A lock is a row: what `tenure-cas` asks of a cell, said in statements.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_cas::{
    Cell, Failure, Listed, Look, Made, NewPlace, Newcomer, OldPlace, Purpose, Reading, Stored, TOLERANCE,
    Trouble, Write,
};
use tenure_core::{
    Absent, Audience, BackendError, EndOfGrant, Finding, Hint, LockName, Memos, Minting, Order, ProcessId,
    Promises, Restart, Sharing, WakeUp, Wakes,
};

use crate::{error, session::Session, store::Store, wake::Hints};

/// Leases that one statement renews: what it holds it holds for one commit.
const BATCH: usize = 128;

#[async_trait]
impl Cell for Store {
    type Connection = Arc<Session>;

    fn promises(&self) -> Promises {
        let mut promises = Promises::least("postgres");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        promises.restart = Restart::Survives;
        // A standby that is not waited for has not everything yet.
        promises.fail_over = Some(Restart::Lost);
        promises.reach = "all clients of the database";
        promises.end = EndOfGrant::Ttl;
        promises.chosen_owner = true;
        promises.wake = WakeUp::Pushed;
        promises.memo = Memos::Kept;
        promises.places = Some(8);
        promises.ttl_grain = TOLERANCE;
        promises
    }

    async fn another(&self) -> Result<Self, BackendError> {
        let store = Self::new(self.shared().clone());
        store.sessions.session().await?;
        Ok(store)
    }

    async fn connect(&self, purpose: Purpose) -> Result<Arc<Session>, BackendError> {
        let session = match purpose {
            Purpose::Wait => self.listening().await?,
            Purpose::Use | Purpose::Keep => self.sessions.session().await?,
        };
        if purpose != Purpose::Keep {
            session.facts().must_be_ours(session.name())?;
        }
        Ok(session)
    }

    async fn read(&self, session: &Arc<Session>, name: &LockName, look: &Look) -> Result<Reading, Failure> {
        Ok(self.read_row(session, name, look).await?)
    }

    async fn read_many(
        &self,
        session: &Arc<Session>,
        names: &[&LockName],
    ) -> Result<Vec<Option<Reading>>, Failure> {
        Ok(self.read_rows(session, names).await?)
    }

    async fn make(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        state: &str,
    ) -> Result<Option<Made>, Failure> {
        let made = self.make_row(session, name, state).await?;
        if made.is_some() {
            self.sweep_now_and_then(session);
        }
        Ok(made)
    }

    async fn write(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        write: &Write<'_>,
    ) -> Result<Option<Stored>, Failure> {
        Ok(self.write_row(session, name, write).await?)
    }

    async fn enqueue(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &Newcomer<'_>,
    ) -> Result<Option<Reading>, Failure> {
        Ok(self.enqueue_in_row(session, name, place).await?)
    }

    fn batch(&self) -> usize {
        BATCH
    }

    async fn write_many(
        &self,
        session: &Arc<Session>,
        writes: &[(&LockName, Write<'_>)],
    ) -> Result<Vec<Option<Stored>>, Failure> {
        Ok(self.write_rows(session, writes).await?)
    }

    async fn append_place(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &NewPlace<'_>,
    ) -> Result<Option<String>, Failure> {
        Ok(self.append_row(session, name, place).await?)
    }

    async fn keep_place(&self, session: &Arc<Session>, key: &str, state: &str) -> Result<bool, Failure> {
        Ok(self.keep_row(session, key, state).await?)
    }

    async fn remove_place(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &OldPlace<'_>,
    ) -> Result<bool, Failure> {
        Ok(self.remove_row(session, name, place).await?)
    }

    async fn places(&self, session: &Arc<Session>, name: &LockName) -> Result<Vec<String>, Failure> {
        Ok(self.read_places(session, name).await?)
    }

    async fn list(&self, session: &Arc<Session>, prefix: &str) -> Result<Vec<Listed>, Failure> {
        Ok(self.read_list(session, prefix).await?)
    }

    fn error(&self, trouble: Trouble) -> BackendError {
        let place = &self.shared().config.place_name();
        match trouble {
            Trouble::Overtaken => error::overtaken(place),
            Trouble::Unsettled => error::unsettled(place),
            Trouble::Locked => error::row_locked(place),
            Trouble::Swallowed => error::swallowed(place),
            Trouble::Altered => error::altered(place),
            Trouble::Ledger(error) => error::ledger(place, error),
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.examine().await
    }

    async fn tell(&self, session: &Arc<Session>, hint: Hint) -> Result<(), Failure> {
        Ok(self.tell_process(session, &hint).await?)
    }

    fn reaches(&self, hint: Hint) -> bool {
        self.shared().hints.reach(hint.audience, hint.owner)
    }

    fn ring(&self, hint: Hint) {
        self.router.route(hint);
    }

    fn wakes(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        Box::new(Hints::new(self.clone(), process, audience))
    }

    fn hears(&self) -> bool {
        self.hears_hints()
    }
}

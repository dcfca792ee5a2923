//! The lock of Tenure, and transactions that rely on its owner.

use tenure::{
    blocking::{Guard, Locker, connect},
    ownership::SqlOwnership,
};

use crate::{
    protocol::{Client, Step},
    schemes::{
        Database, Scheme,
        tenure::{say_if_lost, watch},
    },
};

/// A lease. The transaction that writes begins with the statement of its ownership.
pub(crate) struct TenureOwned {
    locks: Locker,
    database: Database,
    guard: Option<Guard>,
    ownership: Option<SqlOwnership>,
}

impl TenureOwned {
    pub(crate) fn new(me: &Client) -> Step<Self> {
        let (locks, database) = (connect(&me.url)?, Database::open(&me.url)?);
        Ok(Self { locks, database, guard: None, ownership: None })
    }
}

impl Scheme for TenureOwned {
    fn lock(&mut self, me: &Client) -> Step {
        let guard = self.locks.mutex(&me.lock).with(|lock| lock.ttl(me.ttl)).acquire()?;
        self.ownership = guard.ownership()?.sql().cloned();
        watch(guard.lease());
        self.guard = Some(guard);
        Ok(())
    }

    fn add(&mut self, me: &Client) -> Step<bool> {
        let amount: i32 = self.database.value("SELECT amount FROM stock", &[])?;
        me.gap("between SELECT and UPDATE")?;
        let owns = self.ownership.as_ref().ok_or("there is no lease")?;
        self.database.run("BEGIN", &[])?;
        if self.database.run(owns.statement(), &[&owns.row(), &owns.proof()])? == 0 {
            self.database.run("ROLLBACK", &[])?;
            return Ok(false);
        }
        self.database.run("UPDATE stock SET amount = $1", &[&(amount + 1)])?;
        self.database.run("COMMIT", &[])?;
        Ok(true)
    }

    fn unlock(&mut self, _: &Client) -> Step {
        say_if_lost(self.guard.take().map(Guard::release));
        Ok(())
    }

    fn alias(&self, _: &Client) -> String {
        self.guard.as_ref().map_or_else(String::new, |guard| guard.owner().to_string())
    }
}

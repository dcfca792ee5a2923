//! A row with owner and expiry, in the database that has the data.

use std::{thread, time::Duration};

use crate::{
    protocol::{Client, Step},
    schemes::{Database, Scheme},
};

/// One UPDATE takes the lock. The transaction that writes checks the row, and locks nothing by that.
pub(crate) struct LockRow(Database);

impl LockRow {
    pub(crate) fn new(me: &Client) -> Step<Self> {
        Ok(Self(Database::open(&me.url)?))
    }
}

impl Scheme for LockRow {
    fn lock(&mut self, me: &Client) -> Step {
        let take =
            "UPDATE job SET owner = $1, expires = now() + make_interval(secs => $2) WHERE expires < now()";
        while self.0.run(take, &[&me.name, &me.ttl.as_secs_f64()])? == 0 {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn add(&mut self, me: &Client) -> Step<bool> {
        self.0.run("BEGIN", &[])?;
        if self.0.run("SELECT owner FROM job WHERE owner = $1 AND expires > now()", &[&me.name])? == 0 {
            self.0.run("ROLLBACK", &[])?;
            return Ok(false);
        }
        let amount: i32 = self.0.value("SELECT amount FROM stock", &[])?;
        me.gap("between SELECT and UPDATE")?;
        self.0.run("UPDATE stock SET amount = $1", &[&(amount + 1)])?;
        self.0.run("COMMIT", &[])?;
        Ok(true)
    }

    fn unlock(&mut self, me: &Client) -> Step {
        self.0.run("UPDATE job SET expires = '-infinity' WHERE owner = $1", &[&me.name])?;
        Ok(())
    }
}

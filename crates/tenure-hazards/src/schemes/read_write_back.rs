//! Read a row, change it, write it back.

use rusqlite::Connection;

use crate::{
    protocol::{Client, Step},
    schemes::Scheme,
};

/// Takes no lock at all: each statement is a transaction, after all.
pub(crate) struct ReadWriteBack(Connection);

impl ReadWriteBack {
    pub(crate) fn new(me: &Client) -> Step<Self> {
        Ok(Self(Connection::open(&me.url)?))
    }
}

impl Scheme for ReadWriteBack {
    fn add(&mut self, me: &Client) -> Step<bool> {
        let amount: i64 = self.0.query_row("SELECT amount FROM stock", (), |row| row.get(0))?;
        me.gap("between SELECT and UPDATE")?;
        Ok(self.0.execute("UPDATE stock SET amount = ?1", [amount + 1])? == 1)
    }

    fn lock(&mut self, _: &Client) -> Step {
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        Ok(())
    }
}

//! `Answer`: what the server answered to one statement.

use std::time::Duration;

use mysql_async::{Row, Value};

/// What the server answered to one statement.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    /// How many rows were written.
    pub(crate) written: u64,
    /// The last `LAST_INSERT_ID(x)`, if the server returns it.
    pub(crate) id: u64,
    /// A transaction is open after the statement: what was written is not committed.
    pub(crate) is_in_transaction: bool,
    pub(crate) is_autocommit: bool,
}

impl Answer {
    /// The last `LAST_INSERT_ID(x)`, which is a time in µs. `None` if the server does not return it: if the table has
    /// any trigger, it returns 0, and if a column counts the rows, that count.
    pub(crate) fn micros(&self) -> Option<u64> {
        (self.id >= EARLIEST).then_some(self.id)
    }

    /// The same as a time.
    pub(crate) fn time(&self) -> Option<Duration> {
        self.micros().map(Duration::from_micros)
    }

    /// A column of a row; `None` if it is NULL or does not exist.
    pub(crate) fn bytes(&self, row: usize, column: usize) -> Option<&[u8]> {
        match self.rows.get(row)?.as_ref(column)? {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn text(&self, row: usize, column: usize) -> Option<String> {
        String::from_utf8(self.bytes(row, column)?.to_vec()).ok()
    }

    /// A number by the name of its column.
    pub(crate) fn named(&self, row: usize, name: &str) -> Option<i64> {
        let columns = self.rows.get(row)?.columns();
        let at = columns.iter().position(|column| column.name_str() == name)?;
        self.number(row, at)
    }

    pub(crate) fn number(&self, row: usize, column: usize) -> Option<i64> {
        std::str::from_utf8(self.bytes(row, column)?).ok()?.parse().ok()
    }
}

/// In µs since the Unix epoch: the year 2001. No clock shows less, and no table has so many rows.
const EARLIEST: u64 = 1_000_000_000_000_000;

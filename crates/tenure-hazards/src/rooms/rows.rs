//! `Rows`: a database file with one number, and beside it the file of the locks.

use rusqlite::Connection;
use tempfile::TempDir;

use crate::{
    record::{Kind, What},
    schemes::ROWS,
    world::{Address, World},
};

/// A folder with both files.
pub(crate) struct Rows {
    folder: TempDir,
    pub(crate) address: Address,
}

impl Rows {
    /// The number is zero.
    pub(crate) fn open(world: &World) -> Self {
        world.writes_down(LANE, What::Opens(Kind::Resource));
        let folder = tempfile::Builder::new().prefix("tenure-rows-").tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let address = Address { naive: path(ROWS), tenure: format!("sqlite:{}", path("locks.db")) };
        let rows = Connection::open(&address.naive).expect("a file in the temporary folder");
        rows.execute_batch(
            "CREATE TABLE stock (amount INTEGER, mark INTEGER); INSERT INTO stock VALUES (0, 0)",
        )
        .expect("a new table");
        Self { folder, address }
    }

    /// What the number is now.
    pub(crate) fn sum(&self, world: &World) {
        let rows = Connection::open(self.folder.path().join(ROWS)).expect("the file is there");
        let sum = rows.query_row("SELECT amount FROM stock", (), |row| row.get(0)).expect("the row is there");
        world.writes_down(LANE, What::Sum(sum));
    }
}

const LANE: &str = "row";

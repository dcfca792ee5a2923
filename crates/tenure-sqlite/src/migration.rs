//! A file of an older schema becomes one of ours.

use std::path::Path;

use rusqlite::Connection;
use tenure_core::BackendError;
use tenure_ledger::Ledger;

use crate::{
    error::{self, RowError},
    front::add_place,
    sql,
};

/// The schemas that [`migrate`] knows, besides ours.
pub(crate) fn is_old(version: i64) -> bool {
    version == i64::from(sql::SCHEMA_WITHOUT_PLACES)
}

/// Inside a write transaction: gives every place a row of its own. Holders, fences and the order of the queues stay.
///
/// An older tenure that has the file open goes on writing places into the row of the lock, where nobody looks for them:
/// it may lose its place, but not a lease, and nobody enters beside a holder.
pub(crate) fn migrate(conn: &Connection, path: &Path) -> Result<(), BackendError> {
    let version: i64 = conn
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(|e| error::before_commit(path, e))?;
    if is_old(version) { move_places(conn).map_err(|e| error::row(path, e)) } else { Ok(()) }
}

fn move_places(conn: &Connection) -> Result<(), RowError> {
    conn.execute_batch(sql::PLACES)?;
    let mut all = conn.prepare(sql::ALL_BUSY)?;
    let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for (name, state) in rows.collect::<rusqlite::Result<Vec<(String, String)>>>()? {
        // A row that nobody can read is said by whoever asks for that lock, and hinders no other.
        let Ok(mut ledger) = Ledger::decode(&state) else { continue };
        for place in ledger.take_queue() {
            add_place(conn, &name, &place)?;
        }
        conn.execute(sql::WRITE_STATE, (name, ledger.encode()))?;
    }
    conn.pragma_update(None, "user_version", sql::SCHEMA_VERSION)?;
    Ok(())
}

//! Ownership inside a transaction of one's own: it commits only while no other client has acquired the lock.
//!
//! A holder that is stopped past its ttl does not know that another client has the lock, and writes. A fencing token stops
//! that write where the data has a column for it. Where lock and data are in **one database**, the database itself can
//! see in the transaction that writes whether the lock has had another owner since. That needs no column, and no clock.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = tenure::connect("postgres://app@db/app").await?;
//! let guard = locks.mutex("stock/4711").acquire().await?;
//! let ownership = guard.ownership().await?;
//!
//! let (mut client, connection) = tokio_postgres::connect("postgres://app@db/app", tokio_postgres::NoTls).await?;
//! tokio::spawn(connection);
//! let transaction = client.transaction().await?;
//! let owns = ownership.sql().ok_or("the locks are in another store")?;
//! // First the check, then what is read and written.
//! let held = transaction.query_opt(owns.statement(), &[&owns.row(), &owns.proof()]).await?;
//! if held.is_none() {
//!     transaction.rollback().await?;
//!     return Err("another client has the lock".into());
//! }
//! transaction.execute("UPDATE stock SET amount = amount - 1 WHERE item = 4711", &[]).await?;
//! transaction.commit().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # The rules
//! 1. The statement and the writes are in **one transaction**, on the primary server that has the lock. In autocommit the
//!    statement locks nothing, and still returns its row.
//! 2. **One row: go on. No row: roll back**, immediately. An error: roll back, and begin anew.
//! 3. The transaction **reads after the grant** what it bases its writes on. What was read before the lock was acquired may
//!    be older than the former holder's writes.
//! 4. No `ROLLBACK TO` a savepoint that was set before the statement: on PostgreSQL that unlocks the row.
//! 5. Release the guard after the transaction has ended. A release before waits for it for up to a second, is refused then
//!    ([`ReleaseError::Unknown`](crate::ReleaseError), with the reason), and repeated in the background.
//!
//! # Why that is enough
//! Asking for the ownership writes a row next to the lock, with the owner and the token of this lease. Every change of owner
//! empties that row: a release, a grant to another client after the ttl, a release by force. It does so in the same atomic
//! step as its change of the lock. The statement locks the row against that step. So:
//!
//! * If the statement found the text, the step comes after the end of the transaction. Who acquires the lock next reads
//!   what it has committed.
//! * If the step came first, the row has another text, and the statement finds none.
//!
//! *PostgreSQL*: `FOR SHARE`. In `READ COMMITTED` a statement that waited for the step checks its condition again, on the
//! row as it is then. In `REPEATABLE READ` and `SERIALIZABLE` it fails with 40001, or reads the state at the first statement
//! of the transaction, which does not have the text if the lock was acquired later.
//!
//! *MySQL and MariaDB*: `LOCK IN SHARE MODE` on InnoDB. It reads the newest row in every isolation level. With
//! `innodb_snapshot_isolation` it fails with 1020 instead, if the row has changed since the first read. In
//! `REPEATABLE READ` a transaction reads the state at its first read, and in `READ UNCOMMITTED` what a refused holder has
//! written and takes back: begin with the statement.
//!
//! # What it costs
//! One request for each lease that asks, one more row that is written by the release, and one round trip in each
//! transaction. Renewals, waiters and other locks are not delayed. A lease that does not ask pays nothing.
//!
//! # Bounds
//! While a transaction relies on it, no client acquires the lock, even after the ttl: waiters keep their places, and
//! `try_acquire` finds it busy. The statement finds no row from the moment at which another client has asked for the expired
//! lock, or a release by its holder or by force was asked for. A release that is refused because of an open transaction has ended the
//! lease: the next client acquires the lock when the transaction has ended. So transactions of several tasks that overlap without a gap keep
//! no client waiting for longer than one of them lasts; on MySQL and MariaDB not in `SERIALIZABLE`.
//!
//! A client that dies without closing its connection leaves its transaction open. On PostgreSQL the statement limits how long
//! its transaction may stand still, to the ttl, for this transaction only. On MariaDB your program sets
//! `idle_transaction_timeout` in its sessions, on MySQL `wait_timeout`.
//!
//! # What is not promised
//! * What is written outside this database: use the [token](crate::Lease::token).
//! * Two-phase commit on MySQL and MariaDB: `XA PREPARE` on MariaDB, and a restart of either server, gives up the lock of the
//!   row. On PostgreSQL a prepared transaction keeps the lock until it is committed or rolled back.
//! * A copy of the table: on another server, such as a replica that was promoted without the last writes, an old row may
//!   still have the text.
//! * Shared locks, SQLite, memory, Redlock, and clusters in which several MySQL servers take writes: refused as
//!   [`Unsupported`](crate::ErrorKind::Unsupported).
//!
//! # etcd, ZooKeeper and Redis
//! There a transaction is one request, so it waits for nothing and delays nothing. The condition goes into it, beside the
//! writes: a `Compare` on the create revision of [a key](Ownership::Etcd), a `check` of [a node](Ownership::ZooKeeper), or
//! a line of Lua in [a script](RedisOwnership). If it fails, another client has the lock, or the lease has ended. On Redis
//! the end of a lease is that of a key, by the clock of the server.
//!
//! # Rights
//! The role of the transaction needs `SELECT` on the table of the locks. On PostgreSQL it also needs `UPDATE` on one column,
//! `GRANT SELECT, UPDATE (used)`, and on MySQL `LOCK TABLES` or `UPDATE`.

pub use tenure_core::{Ownership, RedisOwnership, SqlOwnership};

//! Real PostgreSQL servers and poolers, each on free ports and in its own folder. They end with the test, or with the
//! run that shares them.

mod pgbouncer;
mod recipe;
mod server;
mod template;

pub use pgbouncer::Pgbouncer;
pub use recipe::Recipe;
pub use server::PostgresServer;

use std::process::Command;

use crate::{daemon::checked, shared::Shared};

/// Makes a table of locks on the server at this address, as the README shows it. A table that a client makes is not
/// used for 10 s.
///
/// # Panics
/// If there is an error.
pub fn make_table(address: &str, table: &str) {
    let mut psql = Command::new(template::program("psql"));
    psql.args([
        "-X",
        "-q",
        "-v",
        "ON_ERROR_STOP=1",
        "-d",
        &format!("postgres://tenure@{address}/tenure"),
        "-c",
    ]);
    checked(psql.arg(format!("CREATE TABLE {table} ({COLUMNS}) WITH (fillfactor = 50)")));
}

pub(crate) const COLUMNS: &str = "name text COLLATE \"C\" PRIMARY KEY, version bigint NOT NULL, busy boolean NOT NULL, \
     used timestamptz NOT NULL, state text NOT NULL";

/// The server of this run, for tests that do not harm it.
///
/// # Panics
/// If it does not start.
pub fn shared() -> Shared {
    Shared::server("postgres", PostgresServer::start, PostgresServer::address)
}

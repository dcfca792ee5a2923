//! Real PostgreSQL servers and poolers: on free ports, in folders of their own. They go with the test, or with the run that shares them.

mod pgbouncer;
mod recipe;
mod server;
mod template;

pub use pgbouncer::Pgbouncer;
pub use recipe::Recipe;
pub use server::PostgresServer;

use crate::shared::Shared;

/// The server of this run, for tests that do not harm it.
///
/// # Panics
/// If it does not start.
pub fn shared() -> Shared {
    Shared::server("postgres", PostgresServer::start, PostgresServer::address)
}

//! Real PostgreSQL servers and poolers for one test: on free ports, in folders of their own, gone with the test.

mod pgbouncer;
mod recipe;
mod server;
mod template;

pub use pgbouncer::Pgbouncer;
pub use recipe::Recipe;
pub use server::PostgresServer;

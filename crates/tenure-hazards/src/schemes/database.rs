//! `Database`: one connection of a client to PostgreSQL.

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{
    Client, NoTls,
    types::{FromSqlOwned, ToSql},
};

use crate::protocol::Step;

/// A connection, with the thread that serves it.
pub(crate) struct Database {
    runtime: Runtime,
    client: Client,
}

impl Database {
    pub(crate) fn open(url: &str) -> Step<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
        runtime.spawn(connection);
        Ok(Self { runtime, client })
    }

    /// Runs a statement. Returns how many rows it found, or changed.
    pub(crate) fn run(&self, sql: &str, given: &[&(dyn ToSql + Sync)]) -> Step<u64> {
        Ok(self.runtime.block_on(self.client.execute(sql, given))?)
    }

    /// The value of the only row.
    pub(crate) fn value<T: FromSqlOwned>(&self, sql: &str, given: &[&(dyn ToSql + Sync)]) -> Step<T> {
        Ok(self.runtime.block_on(self.client.query_one(sql, given))?.try_get(0)?)
    }
}

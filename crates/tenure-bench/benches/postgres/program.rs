//! A program that has data in the database of the locks.

use tenure::ownership::SqlOwnership;
use tokio_postgres::{Client, NoTls, Statement};

use crate::database::ownership::Program;

/// Its connection, and the check if it was prepared.
pub(crate) struct Clerk {
    client: Client,
    change: Statement,
    check: Option<Statement>,
}

impl Program for Clerk {
    async fn connect(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server");
        tokio::spawn(connection);
        // Many connect at the same time.
        client.batch_execute("SELECT pg_advisory_lock(1)").await.expect("a lock");
        let table = "CREATE TABLE IF NOT EXISTS stock (item int PRIMARY KEY, amount int NOT NULL); \
                     INSERT INTO stock SELECT n, 0 FROM generate_series(0, 99) AS n ON CONFLICT DO NOTHING";
        client.batch_execute(table).await.expect("a table");
        client.batch_execute("SELECT pg_advisory_unlock(1)").await.expect("a lock");
        let change = "UPDATE stock SET amount = amount + 1 WHERE item = $1";
        let change = client.prepare(change).await.expect("a statement");
        Self { client, change, check: None }
    }

    async fn run(&mut self, sql: &str) -> bool {
        self.client.batch_execute(sql).await.is_ok()
    }

    async fn owns(&mut self, sql: &SqlOwnership) -> bool {
        let check = match &self.check {
            Some(check) => check,
            None => self.check.insert(self.client.prepare(sql.statement()).await.expect("a statement")),
        };
        matches!(self.client.query_opt(check, &[&sql.row(), &sql.proof()]).await, Ok(Some(_)))
    }

    async fn change(&mut self, row: u32) {
        let item = i32::try_from(row).expect("a few rows");
        self.client.execute(&self.change, &[&item]).await.expect("a row");
    }
}

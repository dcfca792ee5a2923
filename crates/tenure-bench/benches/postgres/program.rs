//! A program that has data in the database of the locks.

use std::time::Duration;

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

    async fn round_trip(&mut self) {
        self.client.simple_query("SELECT 1").await.expect("an answer");
    }

    async fn transaction(
        &mut self,
        owns: Option<&SqlOwnership>,
        row: usize,
        statements: usize,
        rest: Duration,
    ) -> bool {
        if let (None, Some(sql)) = (&self.check, owns) {
            self.check = Some(self.client.prepare(sql.statement()).await.expect("a statement"));
        }
        self.client.batch_execute("BEGIN").await.expect("a transaction");
        if let (Some(check), Some(sql)) = (&self.check, owns) {
            match self.client.query_opt(check, &[&sql.row(), &sql.proof()]).await {
                Ok(Some(_)) => {}
                _ => {
                    self.client.batch_execute("ROLLBACK").await.expect("an answer");
                    return false;
                }
            }
        }
        let item = i32::try_from(row).expect("a few rows");
        for _ in 0..statements {
            self.client.execute(&self.change, &[&item]).await.expect("a row");
        }
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
        self.client.batch_execute("COMMIT").await.is_ok()
    }
}

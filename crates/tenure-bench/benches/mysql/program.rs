//! A program that has data in the database of the locks.

use std::time::Duration;

use mysql_async::{Conn, prelude::Queryable};
use tenure::ownership::SqlOwnership;

use crate::database::ownership::Program;

/// Its connection, which keeps the statements that it has prepared.
pub(crate) struct Clerk(Conn);

impl Program for Clerk {
    async fn connect(url: &str) -> Self {
        let mut conn = Conn::from_url(url).await.expect("a server");
        let rows: Vec<String> = (0..100).map(|n| format!("({n}, 0)")).collect();
        for sql in [
            "CREATE TABLE IF NOT EXISTS stock (item int PRIMARY KEY, amount int NOT NULL)".to_owned(),
            format!("INSERT IGNORE INTO stock VALUES {}", rows.join(", ")),
        ] {
            conn.query_drop(sql).await.expect("a table");
        }
        Self(conn)
    }

    async fn round_trip(&mut self) {
        self.0.query_drop("SELECT 1").await.expect("an answer");
    }

    async fn transaction(
        &mut self,
        owns: Option<&SqlOwnership>,
        row: usize,
        statements: usize,
        rest: Duration,
    ) -> bool {
        self.0.query_drop("BEGIN").await.expect("a transaction");
        if let Some(sql) = owns {
            let found = self.0.exec_first::<i64, _, _>(sql.statement(), (sql.row(), sql.proof())).await;
            if !matches!(found, Ok(Some(_))) {
                self.0.query_drop("ROLLBACK").await.expect("an answer");
                return false;
            }
        }
        for _ in 0..statements {
            let change = "UPDATE stock SET amount = amount + 1 WHERE item = ?";
            self.0.exec_drop(change, (row,)).await.expect("a row");
        }
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
        self.0.query_drop("COMMIT").await.is_ok()
    }
}

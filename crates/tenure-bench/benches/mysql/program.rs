//! A program that has data in the database of the locks.

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

    async fn run(&mut self, sql: &str) -> bool {
        self.0.query_drop(sql).await.is_ok()
    }

    async fn owns(&mut self, sql: &SqlOwnership) -> bool {
        let found = self.0.exec_first::<i64, _, _>(sql.statement(), (sql.row(), sql.proof())).await;
        matches!(found, Ok(Some(_)))
    }

    async fn change(&mut self, row: u32) {
        let change = "UPDATE stock SET amount = amount + 1 WHERE item = ?";
        self.0.exec_drop(change, (row,)).await.expect("a row");
    }
}

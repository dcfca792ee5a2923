//! The statements of a cycle by hand: what a lock in a table costs at least if it is told from a stranger's.

use std::{cell::Cell, sync::Arc};

use tokio_postgres::{Client, NoTls, Statement, types::Type};

/// As long as the ledger of a lock that one holds.
const STATE: &str = "{\"fence\":1795293008751683,\"holders\":[{\"owner\":\"000000000000006100000000000000000000000000000062\",\"mode\":\"exclusive\",\"ends_us\":1795293018751683,\"token\":1795293008751683,\"since_ms\":1795293008751,\"label\":{\"host\":\"host\",\"pid\":12345,\"user\":\"root\",\"command\":\"postgres\"}}],\"queue\":[]}";

const WRITE: &str = "UPDATE by_hand SET version = version + 1, busy = $3, used = clock_timestamp(), state = $4 \
                     WHERE name = $1 AND version = $2 RETURNING clock_timestamp()";

/// One row, and the connection that it shares with the others.
pub(crate) struct ByHand {
    client: Arc<Client>,
    name: String,
    version: Cell<i64>,
}

/// So many rows over one connection.
pub(crate) async fn connect(url: &str, rows: usize) -> Vec<ByHand> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server");
    tokio::spawn(connection);
    let table = "CREATE TABLE IF NOT EXISTS by_hand (name text COLLATE \"C\" PRIMARY KEY, version bigint NOT NULL, \
                 busy boolean NOT NULL, used timestamptz NOT NULL, state text NOT NULL) WITH (fillfactor = 50)";
    client.batch_execute(table).await.expect("a table");
    let (client, mut hands) = (Arc::new(client), Vec::new());
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.expect("an answer").get(0);
    for n in 0..rows {
        let name = format!("hand/{pid}/{n}");
        let insert = "INSERT INTO by_hand VALUES ($1, 1, false, clock_timestamp(), '')";
        client.execute(insert, &[&name]).await.expect("a row");
        hands.push(ByHand { client: client.clone(), name, version: Cell::new(1) });
    }
    hands
}

impl ByHand {
    pub(crate) async fn cycle(&self) {
        for (is_busy, state) in [(true, STATE), (false, &STATE[..24])] {
            let version = self.version.get();
            let rows = self
                .client
                .query_typed(
                    WRITE,
                    &[
                        (&self.name, Type::TEXT),
                        (&version, Type::INT8),
                        (&is_busy, Type::BOOL),
                        (&state, Type::TEXT),
                    ],
                )
                .await
                .expect("an answer");
            assert_eq!(rows.len(), 1);
            self.version.set(version + 1);
        }
    }
}

/// The same with a statement that the server keeps.
pub(crate) struct Prepared {
    hand: ByHand,
    write: Statement,
}

impl Prepared {
    pub(crate) async fn new(hand: ByHand) -> Self {
        let write = hand.client.prepare(WRITE).await.expect("a statement");
        Self { hand, write }
    }

    pub(crate) async fn cycle(&self) {
        let hand = &self.hand;
        for (is_busy, state) in [(true, STATE), (false, &STATE[..24])] {
            let version = hand.version.get();
            let rows = hand.client.query(&self.write, &[&hand.name, &version, &is_busy, &state]).await;
            assert_eq!(rows.expect("an answer").len(), 1);
            hand.version.set(version + 1);
        }
    }
}

//! The statements of a cycle by hand: what a lock in a table costs at least if it is told from a stranger's.

use mysql_async::{Conn, prelude::Queryable};

/// As long as the ledger of a lock that one holds.
const STATE: &str = "{\"fence\":1795293008751683,\"holders\":[{\"owner\":\"000000000000006100000000000000000000000000000062\",\"mode\":\"exclusive\",\"ends_us\":1795293018751683,\"token\":1795293008751683,\"since_ms\":1795293008751,\"label\":{\"host\":\"host\",\"pid\":12345,\"user\":\"root\",\"command\":\"mysql\"}}],\"queue\":[]}";

/// One row, and its connection.
pub(crate) struct ByHand {
    conn: Conn,
    version: u64,
}

impl ByHand {
    pub(crate) async fn connect(url: &str) -> Self {
        let mut conn = Conn::from_url(url).await.expect("a server");
        let table = "CREATE TABLE by_hand (name varbinary(512) NOT NULL PRIMARY KEY, version bigint NOT NULL, \
                     busy tinyint NOT NULL, used bigint NOT NULL, state mediumblob NOT NULL)";
        conn.query_drop(table).await.expect("a table");
        conn.query_drop("INSERT INTO by_hand VALUES ('hand', 1, 0, 0, '')").await.expect("a row");
        Self { conn, version: 1 }
    }

    pub(crate) async fn cycle(&mut self) {
        for (is_busy, state) in [(1, STATE), (0, &STATE[..24])] {
            let version = self.version;
            let write = format!(
                "UPDATE by_hand SET version = version + 1, busy = {is_busy}, used = LAST_INSERT_ID(\
                 TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), state = '{state}' \
                 WHERE name = 'hand' AND version = {version}"
            );
            let answer = self.conn.query_iter(write).await.expect("an answer");
            assert!(answer.affected_rows() == 1 && answer.last_insert_id().is_some());
            drop(answer);
            self.version += 1;
        }
    }
}

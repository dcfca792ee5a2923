//! Fenced rows in PostgreSQL, MySQL, MariaDB and SQLite: SQL text for any driver.
//!
//! # A table that gets a column
//! [`Column`] gives the two parts for your own statement. If it changes no row, the holder is refused. On MySQL and
//! MariaDB the table gets a second column, see [`Column::with_counter`].
//!
//! ```
//! use rusqlite::Connection;
//! use tenure::{FencingToken, fence::{Pass, sql::Column}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let db = Connection::open_in_memory()?;
//! db.execute_batch(
//!     "CREATE TABLE report (id TEXT PRIMARY KEY, body TEXT, mark BIGINT NOT NULL DEFAULT 0);
//!      INSERT INTO report (id) VALUES ('q3')",
//! )?;
//! let write = |pass: Pass, body: &str| -> Result<usize, Box<dyn std::error::Error>> {
//!     let mark = Column::new("mark", "?1").expect("two good names");
//!     let sql =
//!         format!("UPDATE report SET body = ?2, {} WHERE id = ?3 AND {}", mark.assignment(pass), mark.condition());
//!     let token = i64::try_from(pass.token().get())?;
//!     Ok(db.execute(&sql, (token, body, "q3"))?)
//! };
//! let (former, later) = (Pass::exclusive(FencingToken::new(7)), Pass::exclusive(FencingToken::new(8)));
//! assert_eq!(write(later, "the new text")?, 1);
//! assert_eq!(write(former, "the late text")?, 0, "refused");
//! # Ok(()) }
//! ```
//!
//! # Anything else in the same database
//! [`Table`] keeps the marks of data that cannot get a column: several rows, several tables, rows that are inserted
//! and deleted. Its statement is the first of the transaction. If it returns one row, continue; if it returns none,
//! the holder is refused: roll back.
//!
//! ```
//! use rusqlite::{Connection, OptionalExtension, TransactionBehavior::Immediate};
//! use tenure::{FencingToken, fence::{Pass, sql::{Dialect, Table}}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut db = Connection::open_in_memory()?;
//! let fence = Table::new("fence", Dialect::Sqlite)?;
//! db.execute_batch(&fence.create())?;
//! db.execute_batch("CREATE TABLE stock (item TEXT, amount INTEGER)")?;
//!
//! let pass = Pass::exclusive(FencingToken::new(7));
//! let transaction = db.transaction_with_behavior(Immediate)?;
//! let token = i64::try_from(pass.token().get())?;
//! let mark: Option<i64> = transaction
//!     .query_row(&fence.touch(pass), ("stock", token), |row| row.get(0))
//!     .optional()?;
//! if mark.is_some() {
//!     transaction.execute("INSERT INTO stock VALUES ('bolt', 12)", ())?;
//!     transaction.commit()?;
//! }
//! # assert_eq!(mark, Some(7));
//! # Ok(()) }
//! ```
//!
//! On MySQL and MariaDB an exclusive pass changes one row where the others return one, see [`Table::touch`].
//!
//! # Why this is one atomic step
//! * *PostgreSQL*, in `READ COMMITTED`, or in `SERIALIZABLE` if all transactions are. A raise (and a write to a row
//!   with a [`Column`]) locks the row until the transaction ends. Another statement waits for that end, and then
//!   its condition is checked again, on the changed row. A check takes `FOR SHARE`: several checks run at the same
//!   time, a raise waits for them, and they wait for a raise. Above `READ COMMITTED` the transaction that waited
//!   may get a serialization failure instead: nothing was written, begin anew. **In `REPEATABLE READ` touch in a
//!   separate transaction first**, and again in that of the write. Such a transaction reads the state at the start
//!   of its first statement. A raise that waits for a check continues when that transaction has committed, and then
//!   still reads the state before it. Where both are `SERIALIZABLE`, the server detects that they have no order,
//!   and the one that reads so fails.
//! * *MySQL and MariaDB*, on InnoDB, in every isolation level. A raise (and a write to a row with a [`Column`])
//!   locks the row until the transaction ends. Another statement waits for that end, and judges the row as it is
//!   then, even in `REPEATABLE READ`. A check takes `LOCK IN SHARE MODE`: several checks run at the same time, a
//!   raise waits for them, and they wait for a raise. A transaction reads the state at its first read. So begin
//!   with the touch, and not with `START TRANSACTION WITH CONSISTENT SNAPSHOT`. A statement wrote nothing if it
//!   waited too long (1205), was in a deadlock (1213), or found a row that has changed since the first read (1020,
//!   only MariaDB). Then roll back and begin anew.
//! * *SQLite*. There is one writer at a time. Begin with `BEGIN IMMEDIATE`. After a plain `BEGIN`, a transaction
//!   that checked cannot write any more if another one wrote in the meantime: safe, but an error.
//!
//! In autocommit the statement of a [`Table`] protects nothing: it must be in the transaction of the write. The
//! role needs `SELECT`, `INSERT` and `UPDATE` on the table.
//!
//! A holder that is stopped inside its transaction delays the next one until its connection ends. PostgreSQL's
//! `idle_in_transaction_session_timeout` and MariaDB's `idle_transaction_timeout` limit that; in MySQL
//! `wait_timeout` does, and in SQLite only the end of the process.
//!
//! # Tokens as numbers
//! A mark is a `BIGINT`. Tokens of all backends fit: `i64::try_from(pass.token().get())`.
//!
//! # What is not promised
//! A deleted row loses its mark, and a row that does not exist yet has none. Use a [`Table`] for those, and delete
//! nothing from it. Reads are not fenced: touch first, then read; in PostgreSQL's `REPEATABLE READ` that is not
//! enough, see above. A statement without the condition is not fenced.

use crate::fence::pass::Pass;

/// A column that keeps the mark of its row: `BIGINT NOT NULL DEFAULT 0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    column: String,
    token: String,
    counter: Option<String>,
}

impl Column {
    /// With the name of the column and the placeholder of the token: `$1`, `?1`, `:token`. For a MySQL driver that
    /// supports only `?`, use a variable, `@token`, and run `SET @token = ?` before, over the same connection.
    ///
    /// # Errors
    /// [`NotSql`] if one of them is not valid.
    pub fn new(column: &str, token: &str) -> Result<Self, NotSql> {
        Ok(Self { column: identifier(column)?, token: placeholder(token)?, counter: None })
    }

    /// With a second column that counts the writes: `BIGINT NOT NULL DEFAULT 0`. **Needed on MySQL and MariaDB.**
    ///
    /// Their servers count the rows that a statement *changes*. A holder that writes the present value with the
    /// present token changes no row, and would take that for a refusal. (With `CLIENT_FOUND_ROWS` a client gets the
    /// number of rows found.) With a counter each write changes its row, and both counts are the same.
    ///
    /// # Errors
    /// [`NotSql`] if it is not a valid name.
    pub fn with_counter(self, column: &str) -> Result<Self, NotSql> {
        Ok(Self { counter: Some(identifier(column)?), ..self })
    }

    /// The condition on the row, for `WHERE … AND …`: `mark <= $1`.
    pub fn condition(&self) -> String {
        format!("{} <= {}", self.column, self.token)
    }

    /// The new mark, for `SET …, …`: `mark = $1`, and for a pass that does not raise it `mark = mark`. With a
    /// counter `, writes = writes + 1` follows.
    ///
    /// To touch, use it alone: `UPDATE … SET mark = $1 WHERE id = $2 AND mark <= $1`, before the first read.
    pub fn assignment(&self, pass: Pass) -> String {
        let value = if pass.raises() { &self.token } else { &self.column };
        let mark = format!("{} = {value}", self.column);
        match &self.counter {
            Some(counter) => format!("{mark}, {counter} = {counter} + 1"),
            None => mark,
        }
    }
}

/// The dialect of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL 9.5 and later. Placeholders are `$1` and `$2`.
    Postgres,
    /// SQLite 3.35 and later. Placeholders are `?1` and `?2`.
    Sqlite,
    /// MySQL 5.7 and later, and MariaDB. Placeholders are `:resource` and `:token`, which the drivers `mysql` and
    /// `mysql_async` support. For a driver that supports only `?`, use `@resource` and `@token`
    /// ([`with_placeholders`](Table::with_placeholders)), and run `SET @resource = ?, @token = ?` before, over the
    /// same connection.
    Mysql,
}

/// A table that stores the marks of resources by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    name: String,
    dialect: Dialect,
    resource: String,
    token: String,
}

impl Table {
    /// A table of this name, with or without a schema: `fence`, `app.fence`.
    ///
    /// # Errors
    /// [`NotSql`] if the name is not valid.
    pub fn new(name: &str, dialect: Dialect) -> Result<Self, NotSql> {
        for part in name.splitn(2, '.') {
            identifier(part)?;
        }
        let (resource, token) = match dialect {
            Dialect::Postgres => ("$1", "$2"),
            Dialect::Sqlite => ("?1", "?2"),
            Dialect::Mysql => (":resource", ":token"),
        };
        Ok(Self { name: name.to_owned(), dialect, resource: resource.to_owned(), token: token.to_owned() })
    }

    /// Sets other placeholders for the name of the resource and the token.
    ///
    /// # Errors
    /// [`NotSql`] if one of them is not valid.
    pub fn with_placeholders(self, resource: &str, token: &str) -> Result<Self, NotSql> {
        Ok(Self { resource: placeholder(resource)?, token: placeholder(token)?, ..self })
    }

    /// Creates the table if it does not exist, even if others do at the same time. No parameters.
    pub fn create(&self) -> String {
        let name = &self.name;
        match self.dialect {
            // Bytes: no collation makes two names equal. Other engines than InnoDB would lock nothing.
            Dialect::Mysql => format!(
                "CREATE TABLE IF NOT EXISTS {name} (resource VARBINARY(512) PRIMARY KEY, mark BIGINT NOT NULL, \
                 writes BIGINT NOT NULL) ENGINE = InnoDB"
            ),
            // Of two that create it at the same time, PostgreSQL lets one fail at an index of its catalogue.
            Dialect::Postgres => format!(
                "DO $$ BEGIN CREATE TABLE IF NOT EXISTS {name} (resource TEXT PRIMARY KEY, mark BIGINT NOT NULL); \
                 EXCEPTION WHEN unique_violation OR duplicate_table OR duplicate_object THEN NULL; END $$"
            ),
            Dialect::Sqlite => {
                format!("CREATE TABLE IF NOT EXISTS {name} (resource TEXT PRIMARY KEY, mark BIGINT NOT NULL)")
            }
        }
    }

    /// Registers a resource without a write so far. Its parameter is the name of the resource.
    ///
    /// Changes nothing if the resource is registered. Needed on MySQL and MariaDB, and elsewhere for shared
    /// holders, which otherwise have no row to lock. Run it before [`touch`](Self::touch), in the same transaction
    /// or long before.
    pub fn register(&self) -> String {
        let Self { name, resource, .. } = self;
        match self.dialect {
            // Not IGNORE, which hides other errors. It also takes a lock that leads to a deadlock when two
            // transactions raise.
            Dialect::Mysql => format!(
                "INSERT INTO {name} (resource, mark, writes) VALUES ({resource}, 0, 0) ON DUPLICATE KEY UPDATE mark = mark"
            ),
            Dialect::Postgres | Dialect::Sqlite => format!(
                "INSERT INTO {name} (resource, mark) VALUES ({resource}, 0) ON CONFLICT (resource) DO NOTHING"
            ),
        }
    }

    /// Shows a pass: raises the mark or checks it. Its parameters are the name of the resource and the token.
    ///
    /// **If it returns one row, with the mark, continue. If it returns none, the holder is refused, or a shared
    /// holder touched a resource that was never [registered](Self::register).** Run it as the first statement of
    /// the transaction, before its reads and its writes.
    ///
    /// On MySQL and MariaDB a shared pass returns that row. **An exclusive pass returns no row there, but changes
    /// one: one row changed, continue; none, refused or never registered.** Each raise also increments a counter in
    /// the row, so the number is the same with and without `CLIENT_FOUND_ROWS`.
    pub fn touch(&self, pass: Pass) -> String {
        let Self { name, resource, token, .. } = self;
        if pass.raises() && self.dialect == Dialect::Mysql {
            return format!(
                "UPDATE {name} SET mark = {token}, writes = writes + 1 WHERE resource = {resource} AND mark <= {token}"
            );
        }
        if pass.raises() {
            // By an alias: the row of a table that is named `excluded` would be compared with itself, and no token
            // be refused.
            return format!(
                "INSERT INTO {name} AS fenced (resource, mark) VALUES ({resource}, {token}) ON CONFLICT (resource) \
                 DO UPDATE SET mark = excluded.mark WHERE fenced.mark <= excluded.mark RETURNING mark"
            );
        }
        let lock = match self.dialect {
            Dialect::Postgres => " FOR SHARE",
            // MariaDB supports this clause, too.
            Dialect::Mysql => " LOCK IN SHARE MODE",
            // OK because the transaction has the lock, or its write fails if it came too late.
            Dialect::Sqlite => "",
        };
        format!("SELECT mark FROM {name} WHERE resource = {resource} AND mark <= {token}{lock}")
    }
}

/// A name or a placeholder that is not safe in a statement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotSql {
    /// Not a valid name.
    #[error("{0:?} is no plain SQL name: take letters, digits and `_`, no digit first, 63 at most")]
    Name(String),
    /// Not a valid placeholder.
    #[error("{0:?} is no placeholder: take `$1`, `?1`, `:token` or `@token`")]
    Placeholder(String),
}

/// Put into statements unquoted, so that it has the same meaning as in your own statements.
fn identifier(name: &str) -> Result<String, NotSql> {
    let is_good = is_word(name) && !name.starts_with(|c: char| c.is_ascii_digit()) && name.len() <= 63;
    is_good.then(|| name.to_owned()).ok_or_else(|| NotSql::Name(name.to_owned()))
}

/// A bare `?` is refused, because its number depends on its position.
fn placeholder(text: &str) -> Result<String, NotSql> {
    let is_good = match text.split_at_checked(1) {
        Some(("$" | "?", number)) => {
            let has_digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            has_digits && !number.starts_with('0')
        }
        Some((":" | "@", name)) => identifier(name).is_ok(),
        _ => false,
    };
    is_good.then(|| text.to_owned()).ok_or_else(|| NotSql::Placeholder(text.to_owned()))
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use tenure_core::FencingToken;

    use super::*;

    const RAISE: Pass = Pass::exclusive(FencingToken::new(1));
    const CHECK: Pass = Pass::shared(FencingToken::new(1));

    #[test]
    fn fragments_have_the_callers_names() {
        for token in ["$1", "?12", ":token", "@t"] {
            let column = Column::new("mark", token).unwrap();
            assert_eq!(column.condition(), format!("mark <= {token}"));
            assert_eq!(column.assignment(RAISE), format!("mark = {token}"));
            assert_eq!(column.assignment(CHECK), "mark = mark");
            let counted = column.with_counter("writes").unwrap();
            assert_eq!(counted.condition(), format!("mark <= {token}"));
            assert_eq!(counted.assignment(RAISE), format!("mark = {token}, writes = writes + 1"));
            assert_eq!(counted.assignment(CHECK), "mark = mark, writes = writes + 1");
        }
    }

    #[test]
    fn nothing_but_names_and_placeholders_gets_into_a_statement() {
        for name in ["", "1a", "a b", "a;b", "a\"", "a'", "a-b", "é", "a\n", "a.b", &"a".repeat(64)] {
            assert_eq!(Column::new(name, "$1"), Err(NotSql::Name(name.to_owned())), "{name:?}");
            let counted = Column::new("mark", "$1").unwrap().with_counter(name);
            assert_eq!(counted, Err(NotSql::Name(name.to_owned())), "{name:?}");
        }
        for text in ["", "?", "$", "1", "$0", "?01", "$1;", ":", ":1a", ":a b", "token", "é", "'x'"] {
            assert_eq!(Column::new("mark", text), Err(NotSql::Placeholder(text.to_owned())), "{text:?}");
        }
        for name in ["", ".", "a.", ".a", "a.b.c", "a b.c"] {
            assert!(Table::new(name, Dialect::Postgres).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_table_may_have_a_schema_and_other_placeholders() {
        let table =
            Table::new("app.fence", Dialect::Postgres).unwrap().with_placeholders("$7", "$9").unwrap();
        assert_eq!(
            table.touch(RAISE),
            "INSERT INTO app.fence AS fenced (resource, mark) VALUES ($7, $9) ON CONFLICT (resource) DO UPDATE SET \
             mark = excluded.mark WHERE fenced.mark <= excluded.mark RETURNING mark"
        );
        assert_eq!(
            table.touch(CHECK),
            "SELECT mark FROM app.fence WHERE resource = $7 AND mark <= $9 FOR SHARE"
        );
        assert!(table.clone().with_placeholders("?", "$1").is_err());
    }

    #[test]
    fn mysql_is_asked_in_words_that_mariadb_knows() {
        let table = Table::new("app.fence", Dialect::Mysql).unwrap();
        assert_eq!(
            table.touch(RAISE),
            "UPDATE app.fence SET mark = :token, writes = writes + 1 WHERE resource = :resource AND mark <= :token"
        );
        let table = table.with_placeholders("@resource", "@token").unwrap();
        assert_eq!(
            table.touch(CHECK),
            "SELECT mark FROM app.fence WHERE resource = @resource AND mark <= @token LOCK IN SHARE MODE"
        );
    }
}

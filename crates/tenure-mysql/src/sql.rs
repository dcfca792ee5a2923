//! The statements, each with its contract. Each is a separate transaction in one packet of text, and none needs a
//! session.
//!
//! Texts and names are written in hexadecimal, which means the same in every `sql_mode` and character set.
//! What a statement returns travels with its own answer, `LAST_INSERT_ID(x)` as well: a pooler may lead the next one to
//! another connection. A write does nothing if autocommit is off, because its success would not be a commit, or if the
//! server takes no writes.

use std::time::Duration;

use tenure_cas::{
    BESIDE, CellWrite, END, NewPlace, Newcomer, OPENS, OPENS_AFTER, Patience, slot_row, stop_row,
};
use tenure_core::{LockName, OwnerId};

/// The server's clock when the statement began, in µs since the Unix epoch. In UTC: in a time zone with summer time one
/// hour comes twice.
pub(crate) const CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The settings that a session needs, whatever the server or another client of a pooler has set. A statement waits for
/// a row or a table for a second, which is the shortest time, and no answer is cut off. MySQL gets them once for each
/// connection.
pub(crate) const SESSION: &str = "SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, \
                                  sql_select_limit = 18446744073709551615, sql_big_selects = 1, \
                                  sql_safe_updates = 0";

/// The same in each statement, which only MariaDB reads, and how long the statement waits for a lock, in s.
macro_rules! waiting {
    ($seconds:literal) => {
        concat!(
            "/*M! SET STATEMENT lock_wait_timeout = ",
            $seconds,
            ", innodb_lock_wait_timeout = ",
            $seconds,
            ", sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_safe_updates = 0, \
             max_statement_time = 0, character_set_results = utf8mb4 FOR */ "
        )
    };
}

/// The statement waits for no lock. On MySQL it waits as [`SESSION`] sets it.
const NOT_WAITING: &str = waiting!("0");
/// The statement waits for a lock for a second.
const WAITING: &str = waiting!("1");

/// A statement as it is sent. If it does not set how long it waits, it waits for a second. `sets_clock`: it uses the
/// server's clock, whatever `SET timestamp` has made of the session's.
pub(crate) fn sent(sql: String, sets_clock: bool) -> String {
    let is_bare = ["SELECT", "(", "SHOW", "CREATE"].iter().any(|verb| sql.starts_with(verb));
    let sql = if is_bare { format!("{WAITING}{sql}") } else { sql };
    if sets_clock { sql.replacen(SETS, &format!("{SETS}timestamp = 0, "), 1) } else { sql }
}

/// The same on MySQL, once for each connection.
pub(crate) const CLOCK_OF_SERVER: &str = "SET SESSION timestamp = DEFAULT";

/// The settings in a statement begin with this.
const SETS: &str = "/*M! SET STATEMENT ";

/// The condition of each write. `root` may write despite `read_only`, but after a failover no other client would see it.
/// `CONCAT`, because some servers return 0 and some OFF. With `binlog_format=STATEMENT` a replica repeats the statement
/// with `read_only` on, as a user without a host.
const COUNTS: &str =
    "@@autocommit = 1 AND (CONCAT(@@global.read_only) IN ('0', 'OFF') OR RIGHT(USER(), 1) IN ('', '@'))";

/// Whether autocommit is on; 8 if it is on and the server takes no writes; 9 if the clock of the session still differs
/// from the server's, because a pooler has dropped the setting. `SYSDATE()` is the server's clock, and both are in the
/// time zone of the session.
const AUTOCOMMIT: &str = "IF(ABS(TIMESTAMPDIFF(SECOND, SYSDATE(), NOW())) < 5, \
                          IF(CONCAT(@@global.read_only) IN ('0', 'OFF'), @@autocommit, @@autocommit * 8), 9)";

/// The server's clock. Out: as [`Sql::read`], without a row.
pub(crate) fn time() -> String {
    format!("SELECT NULL, NULL, {CLOCK}, {AUTOCOMMIT}")
}

/// The triggers of a table that this user may see. Out: name.
pub(crate) fn triggers(schema: Option<&str>, table: &str) -> String {
    format!(
        "SELECT trigger_name FROM information_schema.triggers WHERE {} ORDER BY trigger_name",
        is_table(["event_object_schema", "event_object_table"], schema, table)
    )
}

/// The condition that a row of `information_schema`, with these two columns for the table, is about this table.
pub(crate) fn is_table(columns: [&str; 2], schema: Option<&str>, table: &str) -> String {
    // Compared as the server compares its own names.
    let text = |name: &str| format!("CONVERT({} USING utf8)", hex(name));
    let schema = schema.map_or_else(|| "DATABASE()".to_owned(), text);
    format!("{} = {schema} AND {} = {}", columns[0], columns[1], text(table))
}

/// The statements for one table.
pub(crate) struct Sql {
    /// The table, quoted.
    table: String,
}

impl Sql {
    pub(crate) fn new(table: String) -> Self {
        Self { table }
    }

    /// Reads one lock with the first places behind its queue. `until`: the key up to which places are counted. Out:
    /// version, state, time, autocommit, how many places are before that key; no version: there is no such lock. Then a
    /// row for each place, with its name and state in place of version and state. In place of autocommit it has 2 for
    /// the place at that key, 3 for each of the first places, and 4 for emptied ones, if they may be deleted.
    /// `most`: how many of the first places are read.
    pub(crate) fn read(&self, name: &LockName, (until, most): (&str, usize), may_delete: bool) -> String {
        let emptied = if may_delete { self.emptied(name) } else { String::new() };
        let (table, all, ahead) = (&self.table, places_of(name), self.ahead(name, until));
        format!(
            "(SELECT t.version, t.state, {CLOCK}, {AUTOCOMMIT}, {ahead} FROM (SELECT 1 AS one) AS one \
             LEFT JOIN {table} AS t ON t.name = {}) UNION ALL (SELECT name, state, 0, 2, 0 FROM {table} WHERE name = {}) \
             UNION ALL (SELECT name, state, 0, 3, 0 FROM {table} WHERE {all} AND {THERE} ORDER BY name LIMIT {most}) \
             {emptied}LIMIT {MOST}",
            hex(name.as_str()),
            place_row(name, until)
        )
    }

    /// Emptied places among the first ones. They were the first, so all of them are found in time.
    fn emptied(&self, name: &LockName) -> String {
        let (table, all) = (&self.table, places_of(name));
        format!(
            "UNION ALL (SELECT name, state, 0, 4, 0 FROM (SELECT name, state FROM {table} WHERE {all} ORDER BY name \
             LIMIT {EMPTIED}) AS tenure_first WHERE state = X'') "
        )
    }

    /// How many places are before that key.
    fn ahead(&self, name: &LockName, until: &str) -> String {
        if until.is_empty() {
            return "0".to_owned();
        }
        let (table, all, until) = (&self.table, places_of(name), place_row(name, until));
        format!("(SELECT COUNT(*) FROM {table} WHERE {all} AND {THERE} AND name < {until})")
    }

    /// The same of many locks, without those that do not exist. Out: also the name.
    pub(crate) fn read_many(&self, names: &[&LockName]) -> String {
        let names: Vec<String> = names.iter().map(|name| hex(name.as_str())).collect();
        let (table, names) = (&self.table, names.join(", "));
        format!(
            "SELECT version, state, {CLOCK}, {AUTOCOMMIT}, name FROM {table} WHERE name IN ({names}) LIMIT {MOST}"
        )
    }

    /// Makes the row of a lock that has no holder, if locks may be made; its version is the time. Out: the time as the
    /// inserted id, or another id; no row: it may not be made here, or not yet.
    pub(crate) fn make(&self, name: &LockName, state: &str) -> String {
        let (table, name, state) = (&self.table, hex(name.as_str()), hex(state));
        format!(
            "{WAITING}INSERT INTO {table} (name, version, busy, used, state) \
             SELECT {name}, LAST_INSERT_ID({CLOCK}), 0, {CLOCK}, {state} FROM (SELECT 1 AS one) AS one \
             WHERE {COUNTS} AND NOT EXISTS (SELECT 1 FROM {table} AS o WHERE o.name = {} AND o.version > {CLOCK})",
            hex(OPENS)
        )
    }

    /// How long no lock may be made yet. Out: µs; no row: locks may be made.
    pub(crate) fn opens(&self) -> String {
        let (table, name) = (&self.table, hex(OPENS));
        format!("SELECT version - {CLOCK} FROM {table} WHERE name = {name} AND version > {CLOCK}")
    }

    /// Reads a row that was made and not written since. Out: as [`Self::read`], or no row.
    pub(crate) fn made(&self, name: &LockName) -> String {
        let (table, name) = (&self.table, hex(name.as_str()));
        format!(
            "SELECT version, state, {CLOCK}, {AUTOCOMMIT} FROM {table} WHERE name = {name} AND version = used"
        )
    }

    /// Writes a row if it is unchanged and the server's time is between two points. Out: the time as the inserted id,
    /// or another id; no row: it was not written.
    pub(crate) fn write(&self, lock: &LockName, write: &CellWrite<'_>) -> String {
        let (version, before) = write.on;
        let (table, name, before, state) = (&self.table, hex(lock.as_str()), hex(before), hex(write.state));
        let in_time = is_within(write.within);
        let how = if write.patience == Patience::None { NOT_WAITING } else { WAITING };
        let busy = u8::from(write.is_busy);
        let alone = if write.is_last { self.is_alone(lock, write.gone) } else { String::new() };
        format!(
            "{how}UPDATE {table} SET version = version + 1, busy = {busy}, used = LAST_INSERT_ID({CLOCK}), \
             state = {state} WHERE name = {name} AND version = {version} AND state = {before} \
             AND {in_time} AND {COUNTS}{alone}"
        )
    }

    /// Whether a transaction has the row locked in which transactions look for an owner: an error then, without a wait if the
    /// server can.
    pub(crate) fn slot(&self, row: &str, knows_nowait: bool) -> String {
        let nowait = if knows_nowait { " NOWAIT" } else { "" };
        format!("SELECT 1 FROM {} WHERE name = {} FOR UPDATE{nowait}", self.table, hex(row))
    }

    /// Makes that row, without an owner, and the one that stops transactions, if they do not exist: a transaction that looks for
    /// a row that does not exist may lock the gap, with the rows of other locks in it.
    pub(crate) fn make_slot(&self, name: &LockName, slot: u32) -> String {
        let (table, row, stop) = (&self.table, hex(slot_row(name, slot)), hex(stop_row(name, slot)));
        format!(
            "{NOT_WAITING}INSERT INTO {table} (name, version, busy, used, state) SELECT made.name, 1, 0, {CLOCK}, X'' \
             FROM (SELECT {row} AS name UNION ALL SELECT {stop}) AS made WHERE {COUNTS} \
             ON DUPLICATE KEY UPDATE version = version + 1, used = {CLOCK}"
        )
    }

    /// Stops transactions that begin to rely on this text, if the row of the lock is unchanged and the server's time is between
    /// two points.
    pub(crate) fn stop_relying(
        &self,
        lock: &LockName,
        write: &CellWrite<'_>,
        (slot, text): (u32, &str),
    ) -> String {
        let (version, before) = write.on;
        let (table, name, before) = (&self.table, hex(lock.as_str()), hex(before));
        let (stop, text, in_time) = (hex(stop_row(lock, slot)), hex(text), is_within(write.within));
        format!(
            "{NOT_WAITING}INSERT INTO {table} (name, version, busy, used, state) SELECT {stop}, 1, 0, {CLOCK}, {text} \
             FROM (SELECT 1 AS one FROM {table} WHERE name = {name} AND version = {version} AND state = {before} \
             AND {in_time}) AS one WHERE {COUNTS} ON DUPLICATE KEY UPDATE version = version + 1, used = {CLOCK}, state = {text}"
        )
    }

    /// As [`write`](Self::write), which also writes the row in which transactions look for the owner. Both are written by one
    /// statement, because each is a transaction.
    pub(crate) fn write_shown(
        &self,
        lock: &LockName,
        write: &CellWrite<'_>,
        (row, text): (&str, &str),
    ) -> String {
        let (version, before) = write.on;
        let (table, name, before, state) = (&self.table, hex(lock.as_str()), hex(before), hex(write.state));
        let (row, is_shown, text, in_time) =
            (hex(row), u8::from(!text.is_empty()), hex(text), is_within(write.within));
        let busy = u8::from(write.is_busy);
        let alone = if write.is_last { self.is_alone(lock, write.gone) } else { String::new() };
        format!(
            "{NOT_WAITING}UPDATE {table} AS t LEFT JOIN {table} AS s ON s.name = {row} \
             SET t.version = t.version + 1, t.busy = {busy}, t.used = LAST_INSERT_ID({CLOCK}), t.state = {state}, \
             s.version = s.version + 1, s.busy = {is_shown}, s.used = {CLOCK}, s.state = {text} \
             WHERE t.name = {name} AND t.version = {version} AND t.state = {before} AND {in_time} AND {COUNTS}{alone}"
        )
    }

    /// The condition that no place but these is next to the lock. In a derived table, because MySQL requires that.
    fn is_alone(&self, name: &LockName, gone: &[String]) -> String {
        let (table, all) = (&self.table, places_of(name));
        let gone =
            if gone.is_empty() { String::new() } else { format!(" AND name NOT IN ({})", rows(name, gone)) };
        format!(
            " AND NOT EXISTS (SELECT 1 FROM (SELECT name FROM {table} WHERE {all} AND {THERE}{gone} LIMIT 1) AS tenure_others)"
        )
    }

    /// Deletes places. If that is not allowed it empties them, and another user deletes the empty rows with those that
    /// it deletes. `those`: [`THERE`] or [`ANY`].
    pub(crate) fn remove(
        &self,
        (name, keys): (&LockName, &[String]),
        those: &str,
        may_delete: bool,
    ) -> String {
        let (table, rows) = (&self.table, rows(name, keys));
        let what = if may_delete {
            format!("DELETE FROM {table}")
        } else {
            format!("UPDATE {table} SET state = X''")
        };
        format!("{WAITING}{what} WHERE name IN ({rows}) AND {those} AND {COUNTS}")
    }

    /// What a newcomer must know. Out: whether the lock has the required beginning, the last place of its class, that of the owner.
    pub(crate) fn end(&self, name: &LockName, place: &NewPlace<'_>) -> String {
        let (table, length, behind) = (&self.table, place.behind.len(), hex(place.behind));
        let of_class =
            format!("name > {} AND name < {}", place_row(name, place.class), behind_class(name, place.class));
        let own = if place.may_be_there { self.own(name, place.owner) } else { "NULL".to_owned() };
        format!(
            "SELECT LEFT(state, {length}) = {behind}, (SELECT MAX(name) FROM {table} WHERE {of_class}), {own} \
             FROM {table} WHERE name = {}",
            hex(name.as_str())
        )
    }

    /// The name of the row of an owner's place.
    pub(crate) fn own(&self, name: &LockName, owner: OwnerId) -> String {
        let (table, all, owner) = (&self.table, places_of(name), hex(owner.to_string()));
        format!("(SELECT MAX(name) FROM {table} WHERE {all} AND LOCATE({owner}, state) > 0)")
    }

    /// Puts a place behind the last one of its class, by its number. Out: its number as the inserted id, or another id.
    pub(crate) fn stand(&self, name: &LockName, last: u64, place: &NewPlace<'_>) -> String {
        let (state, in_time) = (hex(place.state), is_within(place.within));
        let (table, beside) = (&self.table, place_row(name, place.class));
        format!(
            "{WAITING}INSERT INTO {table} (name, version, busy, used, state) SELECT CONCAT({beside}, \
             CONVERT(LOWER(LPAD(HEX(LAST_INSERT_ID(GREATEST({CLOCK}, {last} + 1))), 16, '0')) USING latin1)), 1, 0, {CLOCK}, {state} \
             FROM (SELECT 1 AS one) AS one WHERE {in_time} AND {COUNTS}"
        )
    }

    /// Rewrites a place that was not emptied.
    pub(crate) fn keep(&self, name: &LockName, key: &str, place: &NewPlace<'_>) -> String {
        let (state, in_time) = (hex(place.state), is_within(place.within));
        let (table, row) = (&self.table, place_row(name, key));
        format!(
            "{WAITING}UPDATE {table} SET version = version + 1, used = {CLOCK}, state = {state} \
             WHERE name = {row} AND {THERE} AND {in_time} AND {COUNTS}"
        )
    }

    /// The places of a lock in their order. Out: state.
    pub(crate) fn places(&self, name: &LockName) -> String {
        let (table, all) = (&self.table, places_of(name));
        format!("SELECT state FROM {table} WHERE {all} AND {THERE} ORDER BY name LIMIT {PLACES}")
    }

    /// Puts a place into the text of a lock, whatever that text is. Waits for the transaction that has the row locked.
    /// No row: the place was not put there.
    pub(crate) fn enqueue(&self, name: &LockName, place: &Newcomer<'_>) -> String {
        let Newcomer { owner, state, long, each, most, within } = *place;
        let (table, name, owner) = (&self.table, hex(name.as_str()), hex(owner.to_string()));
        let there = format!(
            "(LENGTH(state) - LENGTH(REPLACE(state, {each}, {none}))) DIV {length}",
            each = hex(each),
            none = "X''",
            length = each.len()
        );
        let (state, long, long_length, in_time) = (hex(state), hex(long), long.len(), is_within(within));
        format!(
            "{WAITING}UPDATE {table} SET version = version + 1, busy = 1, used = {CLOCK}, \
             state = CONCAT(IF({there} + 1 < {most}, LEFT(state, 1), {long}), {state}, SUBSTRING(state, 2)) \
             WHERE name = {name} AND LEFT(state, {long_length}) <> {long} AND LOCATE({owner}, state) = 0 \
             AND {there} < {most} AND {in_time} AND {COUNTS}"
        )
    }

    /// Locks that are held or waited for. Out: name, state, time; by name, each lock before its places.
    pub(crate) fn list(&self, prefix: &str) -> String {
        let (table, length, beside) = (&self.table, prefix.len(), hex(BESIDE.to_string()));
        let begins = if prefix.is_empty() {
            String::new()
        } else {
            let prefix = hex(prefix);
            format!("AND name >= {prefix} AND LEFT(name, {length}) = {prefix} ")
        };
        format!(
            "SELECT name, state, {CLOCK} FROM {table} WHERE (busy = 1 OR LOCATE({beside}, name) > 1) {begins}ORDER BY name \
             LIMIT {MOST}"
        )
    }

    /// Stores a hint for a process in a separate row, behind the hints that are there.
    pub(crate) fn leave_hint(&self, row: &str, hint: &str) -> String {
        let (table, row, hint) = (&self.table, hex(row), hex(hint));
        format!(
            "{WAITING}INSERT INTO {table} (name, version, busy, used, state) \
             SELECT {row}, 1, 0, {CLOCK}, {hint} FROM (SELECT 1 AS one) AS one WHERE {COUNTS} \
             ON DUPLICATE KEY UPDATE version = version + 1, used = {CLOCK}, \
             state = RIGHT(CONCAT(state, {hint}), {HINTS_MAX})"
        )
    }

    /// The hints for a process. Out: how many there were, the last ones.
    pub(crate) fn hints(&self, row: &str) -> String {
        format!("SELECT version, state FROM {} WHERE name = {}", self.table, hex(row))
    }

    /// Rows behind a name, in their order, without locking any. Out: name, version, state, whether the row is free and
    /// was not used for a day, time. The row that stops transactions stays as long as the one with the owner: a transaction that
    /// looks for a row that does not exist may lock the gap.
    pub(crate) fn old(&self, behind: &[u8]) -> String {
        let (table, behind) = (&self.table, hex(behind));
        format!(
            "SELECT name, version, state, busy = 0 AND used < {CLOCK} - 86400000000 AND NOT (RIGHT(name, 1) = X'02' AND EXISTS \
             (SELECT 1 FROM {table} AS o WHERE o.name = LEFT(t.name, LENGTH(t.name) - 1))), {CLOCK} FROM {table} AS t \
             WHERE name > {behind} ORDER BY name LIMIT 64"
        )
    }

    /// Deletes nothing, if this user may delete.
    pub(crate) fn delete_nothing(&self) -> String {
        let (table, name) = (&self.table, hex(BESIDE.to_string()));
        format!("{NOT_WAITING}DELETE FROM {table} WHERE name = {name} AND version = -1")
    }

    /// Deletes a free row that is unchanged, if the server's time is not before that of its reading, which may be
    /// another server's.
    pub(crate) fn delete(&self, name: &[u8], version: i64, read: Duration) -> String {
        let (table, name, read) = (&self.table, hex(name), micros(read));
        format!(
            "{NOT_WAITING}DELETE FROM {table} WHERE name = {name} AND version = {version} AND busy = 0 \
             AND {CLOCK} >= {read} AND {COUNTS}"
        )
    }

    /// Makes the table, and stores in the same step from when locks may be made in it.
    pub(crate) fn create(&self) -> String {
        let (table, name, wait) = (&self.table, hex(OPENS), OPENS_AFTER.as_micros());
        format!(
            "CREATE TABLE {table} ({COLUMNS}) ENGINE = InnoDB SELECT {name} AS name, \
             {CLOCK} + {wait} AS version, 1 AS busy, {CLOCK} AS used, {} AS state",
            hex("{}")
        )
    }
}

/// The condition that the server's clock is between two times.
fn is_within((from, until): (Duration, Duration)) -> String {
    format!("{CLOCK} BETWEEN {} AND {}", micros(from), micros(until))
}

/// The columns, as the README shows them. All texts are bytes, so no collation makes two names one.
const COLUMNS: &str = "name varbinary(600) NOT NULL PRIMARY KEY, version bigint NOT NULL, \
                       busy tinyint NOT NULL, used bigint NOT NULL, state mediumblob NOT NULL";

/// In bytes: how much is kept of the hints for a process. Each is an owner in 48 hexadecimal digits.
const HINTS_MAX: usize = 64 * 48;

/// The condition that a row is a place of this lock.
fn places_of(name: &LockName) -> String {
    format!("name > {} AND name < {}", hex(format!("{name}{BESIDE}")), hex(format!("{name}{END}")))
}

/// The condition that a place was not emptied.
pub(crate) const THERE: &str = "state <> X''";
/// Any place.
pub(crate) const ANY: &str = "TRUE";

/// The name of the row of a place.
fn place_row(name: &LockName, key: &str) -> String {
    hex(format!("{name}{BESIDE}{key}"))
}

/// Behind all places of a class: the numbers in their keys are hexadecimal.
fn behind_class(name: &LockName, class: &str) -> String {
    place_row(name, &format!("{class}g"))
}

/// A key behind those of all places.
pub(crate) const LAST: &str = "\x7f";

fn rows(name: &LockName, keys: &[String]) -> String {
    keys.iter().map(|key| place_row(name, key)).collect::<Vec<_>>().join(", ")
}

/// How many places are read with the row: some may have expired, and readers move up together.
pub(crate) const READ: usize = 16;
/// Emptied places are looked for among this many of the first places.
const EMPTIED: usize = 64;
/// Used in place of a limit of the session.
const MOST: u64 = u64::MAX;
/// The maximum number of waiters of one lock: no more places are shown.
pub(crate) const PLACES: usize = 4096;

/// A text that every `sql_mode` and character set reads as the same.
pub(crate) fn hex(text: impl AsRef<[u8]>) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let text = text.as_ref();
    let mut hex = String::with_capacity(text.len() * 2 + 3);
    hex.push_str("X'");
    for byte in text {
        hex.push(char::from(DIGITS[usize::from(byte >> 4)]));
        hex.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    hex.push('\'');
    hex
}

/// The statement by which a transaction relies on an owner. Out: one row, or none.
///
/// * The owner is a condition on a column of the row that is locked: the server reads the newest row, in every isolation level.
/// * The other row stops transactions that begin, and protects nothing. It is looked at first, in a table of its own: a
///   transaction that is stopped must not lock the row of the owner, because it may stay open (L6).
/// * `LOCK IN SHARE MODE`, because older servers know no other words. A `COUNT`, because a server may make a join of `NOT
///   EXISTS`, and lock that row too.
pub(crate) fn relies(table: &str, row: &str, proof: &str) -> String {
    format!(
        "SELECT 1 AS owns FROM (SELECT w.name, w.proof FROM (SELECT {row} AS name, {proof} AS proof) AS w WHERE (SELECT COUNT(*) \
         FROM {table} AS s WHERE s.name = CONCAT(w.name, X'02') AND s.state = w.proof) = 0 LIMIT 1) AS w STRAIGHT_JOIN {table} AS o \
         ON o.name = w.name WHERE o.state = w.proof LOCK IN SHARE MODE"
    )
}

/// Transactions that have locked rows, of any table, and have been open for some time, the oldest first. Out: whose, for people.
pub(crate) fn relying(for_s: u64) -> String {
    format!(
        "SELECT CONCAT(IF(t.trx_mysql_thread_id = 0, 'prepared transaction (', CONCAT('session ', t.trx_mysql_thread_id, \
         ' (user ', COALESCE(p.user, 'unknown'), ', ')), 'for ', TIMESTAMPDIFF(SECOND, t.trx_started, NOW()), ' s)') \
         FROM information_schema.innodb_trx AS t \
         LEFT JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id \
         WHERE t.trx_rows_locked > 0 AND t.trx_mysql_thread_id <> CONNECTION_ID() \
         AND TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) >= {for_s} ORDER BY t.trx_started LIMIT 3"
    )
}

/// A time in the unit of the server's clock.
fn micros(since_epoch: Duration) -> i64 {
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}

//! The statements, each with its contract. All of them are transactions of their own, and none needs a
//! session.

use tenure_cas::{OPENS, OPENS_AFTER, Patience};

/// How many of the tail are read with the row: some may be dead, and readers move up together.
pub(crate) const READ: usize = 16;
/// Among how many of the first places emptied ones are looked for. They were the first, so all of them are found in time.
const EMPTIED: usize = 64;

/// The statements for one table.
#[derive(Debug)]
pub(crate) struct Sql {
    /// Reads one lock and the server's clock. In: name. Out: version, state, time; no version: there is no
    /// such lock.
    pub(crate) read: String,
    /// The same with the first places behind its queue. In: and up to which name of a row of the tail is
    /// counted. Out: and names and states of the first rows of the tail, the state of the one that was named,
    /// how many there are before it, and names of emptied rows of the tail, if they may be deleted.
    pub(crate) read_with_tail: String,
    /// The same of many. In: names. Out: name, version, state, time.
    pub(crate) read_many: String,
    /// Makes the row of a lock that has no holder; its version is the time in µs. In: name, state. Out:
    /// version, time, and whether the row is what was written; no row: it was there already. Its commit waits
    /// for no disk, for it says nothing: what is written to the row later is behind it in the log.
    pub(crate) make: String,
    /// Write a ledger on top of the one that it was made from; behind the transaction that has the row
    /// locked.
    pub(crate) write: WriteSql,
    /// The same where no transaction has the row locked.
    pub(crate) write_unlocked: WriteSql,
    /// The same behind the transaction that has the row locked, for 50 ms; that is set for this transaction
    /// and leaves nothing behind.
    pub(crate) write_briefly: WriteSql,
    /// As `write_unlocked` for many rows in one statement, each on its own: rows that another transaction has
    /// locked are left out, so that none is waited for. In: names, versions, busys, states, states before,
    /// from, until. Out: name, time, of those written whether it is what was written, of the others version and state.
    pub(crate) write_many: String,
    /// Puts a place into the text of a lock, whatever that is, behind the transaction that has the row
    /// locked, for 50 ms; that is set for this transaction and leaves nothing behind. In: name, owner, place,
    /// how the text begins where there is no room or with the last place, what is in the text once for each
    /// place, how many there may be, from, until. Out: version, state, time, and whether the row is what was
    /// written; no row: it was not put there.
    pub(crate) enqueue: String,
    /// Of places behind the queue.
    pub(crate) tail: TailSql,
    /// What is held or waited for. In: prefix. Out: name, state, time; by name, each lock before the rows of
    /// its tail.
    pub(crate) list: String,
    /// Deletes free rows that were not used for a day and whose memo has expired, of a few pages that chance
    /// chooses.
    pub(crate) sweep: String,
    /// How long no lock may be made yet. Out: µs, if there is such a time.
    pub(crate) opens: String,
    /// Makes the table, and in the same step says from when locks may be made in it. Rows stay on their page when they are written (no index has a column that changes),
    /// and the page has room for that.
    pub(crate) create: String,
    /// The table with its schema, as `to_regclass` wants it.
    pub(crate) table: String,
}

/// Statements on the rows of the tail of one lock.
#[derive(Debug)]
pub(crate) struct TailSql {
    /// Puts a place at the end of the tail. In: name, owner, state, whether it may be there, how the state of
    /// the lock must begin, from, until. Out: the name of its row, and whether that is what was written; no row: it was
    /// not put there.
    pub(crate) stand: String,
    /// Writes a place of the tail anew. In: name of the row, state, from, until. Out: whether it is what was written; no
    /// row: it is not there, or was emptied.
    pub(crate) keep: String,
    /// Takes a place of the tail away. In: name, owner, name of the row, whether it may have another name.
    /// Out: a row for each.
    pub(crate) withdraw: String,
    /// The places of the tail. In: name. Out: state, in their order.
    pub(crate) places: String,
}

/// Statements that write one ledger if the row is as it was and the server's time lies between two points.
/// In: name, version, busy, state, state before, from, until. Out: time, and whether the row is what was
/// written, which a trigger may prevent; no row: it is not as it was. Of those that do not wait, the plain one answers
/// then with the time, nothing, and version and state of the row as it is: one that is the same is locked.
#[derive(Debug)]
pub(crate) struct WriteSql {
    pub(crate) plain: String,
    /// And notifies other processes in the same transaction: hints leave with the commit or not at all. In:
    /// and channels, payloads.
    pub(crate) notifying: String,
    /// And deletes rows of the tail, but for those that another transaction has locked. In: and their names,
    /// and whether the row is written only if there are no others.
    pub(crate) moving: String,
}

impl WriteSql {
    /// `tail`: that a row is one of the tail of $1.
    fn new(table: &str, (patience, awaiting): (Patience, Awaiting), (tail, remove): (&str, &str)) -> Self {
        let is_ours = "t.name = $1 AND t.version = $2 AND t.state = $5";
        // What goes before the update, and the update, of a row as $1 names it.
        let update = |alone: &str| {
            let when = format!(" AND clock_timestamp() BETWEEN $6 AND $7{alone}");
            let set = "SET version = t.version + 1, busy = $3, used = clock_timestamp(), state = $4";
            // What the row has after a trigger has changed it: a lease that is not in it was not granted
            // (L1).
            let at = "RETURNING clock_timestamp() AS at, (t.name, t.version, t.busy, t.state) IS NOT DISTINCT FROM \
                      ($1, $2 + 1, $3, $4) AS is_ours";
            let own = own(awaiting, patience);
            match patience {
                Patience::Any | Patience::Brief => (
                    String::new(),
                    format!(
                        "UPDATE {table} AS t {set} FROM {own} AS own WHERE {is_ours}{when} AND own.said <> '' {at}"
                    ),
                ),
                Patience::None => (
                    format!(
                        "f AS (SELECT t.name FROM {table} AS t WHERE {is_ours}{when} FOR UPDATE SKIP LOCKED), "
                    ),
                    format!(
                        "UPDATE {table} AS t {set} FROM f, {own} AS own \
                         WHERE t.name = f.name AND {is_ours} AND own.said <> '' {at}"
                    ),
                ),
            }
        };
        let (before, plain) = update("");
        let is_last =
            format!(" AND NOT ($11 AND EXISTS (SELECT FROM {table} WHERE {tail} AND NOT name = ANY($10)))");
        let (before_last, last) = update(&is_last);
        let told = "SELECT c.at, c.is_ours, told.n FROM c, LATERAL (SELECT count(pg_notify(w.channel, w.hint)) AS n \
                    FROM unnest($8::text[], $9::text[]) AS w(channel, hint) WHERE c.at IS NOT NULL) AS told";
        Self {
            notifying: format!("WITH {before}c AS ({plain}) {told}"),
            moving: format!(
                "WITH {before_last}c AS ({last}), gone AS ({remove} WHERE name IN (SELECT name FROM {table} \
                 WHERE name = ANY($10::text[]) AND EXISTS (SELECT FROM c) FOR UPDATE SKIP LOCKED)) {told}"
            ),
            plain: match patience {
                Patience::Any | Patience::Brief => plain,
                Patience::None => format!(
                    "WITH {before}c AS ({plain}) SELECT c.at, c.is_ours, NULL::bigint, NULL::text FROM c UNION ALL \
                     SELECT clock_timestamp(), NULL, t.version, t.state::text FROM {table} AS t \
                     WHERE t.name = $1 AND NOT EXISTS (SELECT FROM c)"
                ),
            },
        }
    }
}

impl TailSql {
    /// `tail`: that a row is one of the tail of $1.
    fn new(table: &str, (tail, remove): (&str, &str)) -> Self {
        Self {
            stand: format!(
                "WITH known AS (SELECT name FROM {table} WHERE $4 AND {tail} AND strpos(state, $2) > 0 LIMIT 1), \
                 made AS (INSERT INTO {table} (name, version, busy, used, state) \
                 SELECT $1 || chr(1) || lpad(to_hex(txid_current()), 16, '0'), 1, false, clock_timestamp(), $3 \
                 WHERE NOT EXISTS (SELECT FROM known) AND clock_timestamp() BETWEEN $6 AND $7 \
                 AND EXISTS (SELECT FROM {table} WHERE name = $1 AND starts_with(state, $5)) ON CONFLICT (name) DO NOTHING RETURNING name, state = $3 AS is_ours) \
                 SELECT name::text, true FROM known UNION ALL SELECT name::text, is_ours FROM made"
            ),
            keep: format!(
                "UPDATE {table} SET used = clock_timestamp(), state = $2 WHERE name = $1 AND state <> '' \
                 AND clock_timestamp() BETWEEN $3 AND $4 RETURNING state = $2"
            ),
            withdraw: format!(
                "{remove} WHERE state <> '' AND (name = $3 OR $4 AND {tail} AND strpos(state, $2) > 0) RETURNING 1"
            ),
            places: format!(
                "SELECT state FROM {table} WHERE {tail} ORDER BY name COLLATE \"C\" LIMIT {PLACES}"
            ),
        }
    }
}

impl Sql {
    /// For a table that is named with its schema.
    pub(crate) fn new(table: &str, awaiting: Awaiting, may_delete: bool) -> Self {
        // In this order also if the column has got another one since we looked.
        let behind = "name COLLATE \"C\" > $1 || chr(1) AND name COLLATE \"C\"";
        let tail = format!("{behind} < $1 || chr(2) AND state <> ''");
        // A role that may not delete empties a place, and another one deletes what is left.
        let remove = match may_delete {
            true => format!("DELETE FROM {table}"),
            false => format!("UPDATE {table} SET state = ''"),
        };
        let emptied = if may_delete { EMPTIED } else { 0 };
        let places = (&*tail, &*remove);
        Self {
            read: format!(
                "SELECT t.version, t.state, clock_timestamp() FROM (VALUES (0)) AS one \
                 LEFT JOIN {table} AS t ON t.name = $1"
            ),
            read_with_tail: format!(
                "SELECT t.version, t.state, clock_timestamp(), tail.names, tail.states, own.state, \
                 (SELECT count(*) FROM {table} WHERE {behind} < $2 AND state <> ''), emptied.names \
                 FROM (VALUES (0)) AS one LEFT JOIN {table} AS t ON t.name = $1 LEFT JOIN {table} AS own ON own.name = $2 \
                 CROSS JOIN (SELECT array_agg(f.name::text) AS names, array_agg(f.state::text) AS states FROM \
                 (SELECT name, state FROM {table} WHERE {tail} ORDER BY name COLLATE \"C\" LIMIT {READ}) AS f) AS tail \
                 CROSS JOIN (SELECT array_agg(f.name::text) AS names FROM (SELECT name, state FROM {table} \
                 WHERE {behind} < $1 || chr(2) ORDER BY name COLLATE \"C\" LIMIT {emptied}) AS f WHERE f.state = '') AS emptied"
            ),
            read_many: format!(
                "SELECT name, version, state, clock_timestamp() FROM {table} WHERE name = ANY($1)"
            ),
            make: format!(
                "WITH new AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS version, \
                 set_config('synchronous_commit', 'off', true) AS quick), \
                 made AS (INSERT INTO {table} (name, version, busy, used, state) \
                 SELECT $1, version, false, clock_timestamp(), $2 FROM new WHERE quick <> '' \
                 AND NOT EXISTS (SELECT FROM {table} AS o WHERE o.name = '{OPENS}' AND o.version > new.version) \
                 ON CONFLICT (name) DO NOTHING RETURNING name, version, busy, state, clock_timestamp() AS at) \
                 SELECT made.version, made.at, (made.name, made.version, made.busy, made.state) \
                 IS NOT DISTINCT FROM ($1, new.version, false, $2) FROM made, new"
            ),
            enqueue: enqueue(table, awaiting),
            tail: TailSql::new(table, places),
            write: WriteSql::new(table, (Patience::Any, awaiting), places),
            write_unlocked: WriteSql::new(table, (Patience::None, awaiting), places),
            write_briefly: WriteSql::new(table, (Patience::Brief, awaiting), places),
            write_many: format!(
                "WITH w AS (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bool[], $4::text[], $5::text[]) \
                 AS w(name, version, busy, state, before)), \
                 f AS (SELECT l.name FROM {table} AS l JOIN w ON l.name = w.name AND l.version = w.version \
                 AND l.state = w.before WHERE clock_timestamp() BETWEEN $6 AND $7 FOR UPDATE OF l SKIP LOCKED), \
                 c AS (UPDATE {table} AS t SET version = t.version + 1, busy = w.busy, used = clock_timestamp(), \
                 state = w.state FROM w, f, {} AS own WHERE t.name = w.name AND f.name = w.name AND t.version = w.version \
                 AND t.state = w.before AND own.said <> '' RETURNING w.name, clock_timestamp() AS at, \
                 (t.name, t.version, t.busy, t.state) IS NOT DISTINCT FROM (w.name, w.version + 1, w.busy, w.state) AS is_ours) \
                 SELECT c.name, c.at, c.is_ours, NULL::bigint, NULL::text FROM c UNION ALL \
                 SELECT w.name, clock_timestamp(), NULL, t.version, t.state::text FROM w JOIN {table} AS t ON t.name = w.name \
                 WHERE NOT EXISTS (SELECT FROM c WHERE c.name = w.name)",
                own(awaiting, Patience::None)
            ),
            list: format!(
                "SELECT name, state, clock_timestamp() FROM {table} \
                 WHERE (busy OR position(chr(1) IN name) > 0) AND starts_with(name, $1) ORDER BY name COLLATE \"C\""
            ),
            sweep: format!(
                "DELETE FROM {table} WHERE name IN (SELECT name FROM {table} TABLESAMPLE SYSTEM \
                 ((SELECT least(100, 1600.0 / greatest(relpages, 1)) FROM pg_class WHERE oid = to_regclass($1))) \
                 WHERE NOT busy AND used < clock_timestamp() - interval '1 day' AND {MEMO_IS_OVER} FOR UPDATE SKIP LOCKED)"
            ),
            create: format!(
                "{AS_AT_LOGIN}; CREATE TABLE {table} ({COLUMNS}) WITH (fillfactor = 50); \
                 INSERT INTO {table} (name, version, busy, used, state) SELECT '{OPENS}', {NOW} + {}, true, clock_timestamp(), '{{}}'",
                OPENS_AFTER.as_micros()
            ),
            opens: format!("SELECT version - {NOW} FROM {table} WHERE name = '{OPENS}' AND version > {NOW}"),
            table: table.to_owned(),
        }
    }
}

/// What the commit of a write waits for, as `synchronous_commit` says it: never for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Awaiting(pub(crate) &'static str);

impl Awaiting {
    /// From the setting as it was at the login of the role, which an operator chose. Without a wait for the disk no lease is
    /// one (A3).
    pub(crate) fn of(at_login: &str) -> Self {
        Self(
            ["local", "remote_write", "remote_apply"]
                .into_iter()
                .find(|known| *known == at_login)
                .unwrap_or("on"),
        )
    }
}

/// What a write relies on, said for its own transaction alone: another client of a pooler may have left something else in the
/// session. That its commit waits; that a wait for a standby which was cancelled is told; and how long it waits for a lock.
fn own(Awaiting(commit): Awaiting, patience: Patience) -> String {
    let brief = if patience == Patience::Brief { " || set_config('lock_timeout', '50ms', true)" } else { "" };
    format!(
        "(SELECT set_config('synchronous_commit', '{commit}', true) || set_config('client_min_messages', 'notice', true){brief} AS said)"
    )
}

/// Says again what the login of the role said, for this transaction: where a table is made, and as whose. `pg_settings`
/// does not list the role.
const AS_AT_LOGIN: &str = "SELECT set_config('role', NULL, true); \
                           SELECT set_config(name, reset_val, true) FROM pg_settings WHERE name IN \
                           ('default_table_access_method', 'default_tablespace')";

fn enqueue(table: &str, awaiting: Awaiting) -> String {
    let there = "(length(t.state) - length(replace(t.state, $5, ''))) / length($5)";
    format!(
        "WITH w AS {}, \
         f AS (SELECT t.name, t.version + 1 AS version, \
         CASE WHEN {there} + 1 < $6 THEN left(t.state, 1) ELSE $4 END || $3 || substr(t.state, 2) AS state \
         FROM {table} AS t, w WHERE t.name = $1 AND NOT starts_with(t.state, $4) AND strpos(t.state, $2) = 0 \
         AND {there} < $6 AND clock_timestamp() BETWEEN $7 AND $8 AND w.said <> '' \
         FOR NO KEY UPDATE OF t) \
         UPDATE {table} AS t SET version = f.version, busy = true, used = clock_timestamp(), state = f.state \
         FROM f WHERE t.name = f.name RETURNING t.version, t.state, clock_timestamp(), \
         (t.version, t.busy, t.state) IS NOT DISTINCT FROM (f.version, true, f.state)",
        own(awaiting, Patience::Brief)
    )
}

/// When the server was started.
pub(crate) const STARTED: &str = "SELECT pg_postmaster_start_time()";
/// What a database and all its copies have in common. Refused to some roles.
pub(crate) const DATABASE: &str = "SELECT system_identifier FROM pg_control_system()";

/// The server's clock in µs since the Unix epoch.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Notifies another process. In: channel, payload.
pub(crate) const NOTIFY: &str = "SELECT pg_notify($1, $2)";

/// Whether the memo in a row has expired, or there is none: as the ledger writes it. No label can look like
/// it, for in a text of JSON every quote has a backslash before it.
const MEMO_IS_OVER: &str = "coalesce(substring(state FROM '\"memo\":[{]\"ends_ms\":([0-9]+)')::bigint, 0) \
                            < extract(epoch FROM clock_timestamp()) * 1000";

/// More than may wait for one lock are not shown.
const PLACES: usize = 4096;

/// The columns, as the README shows them.
const COLUMNS: &str = "name text COLLATE \"C\" PRIMARY KEY, version bigint NOT NULL, busy boolean NOT NULL, \
                       used timestamptz NOT NULL, state text NOT NULL";

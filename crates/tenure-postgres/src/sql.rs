//! The statements, each with its contract. Each is a separate transaction, and none needs a session.

use std::time::Duration;

use tenure_cas::{OPENS, OPENS_AFTER, Patience};

/// How many places of the tail are read with the row: some may have expired, and readers move up together.
pub(crate) const READ: usize = 16;
/// Emptied places are looked for among this many of the first places. They were the first, so all of them are found in
/// time.
const EMPTIED: usize = 64;

/// The statements for one table.
#[derive(Debug)]
pub(crate) struct Sql {
    /// Reads one lock and the server's clock. In: name. Out: version, state, time; no version: there is no
    /// such lock.
    pub(crate) read: String,
    /// The same with the first places behind its queue. In: also the name of a row of the tail, up to which rows are
    /// counted, and how many of the first ones are read. Out: also names and states of the first rows of the tail; the
    /// state of the named row; how many rows are before it; and names of emptied rows, if they may be deleted.
    pub(crate) read_with_tail: String,
    /// The same of many locks. In: names. Out: name, version, state, time.
    pub(crate) read_many: String,
    /// Makes the row of a lock that has no holder; its version is the time in µs. In: name, state. Out: version, time,
    /// and whether the row has what was written; no row: it exists already, or no lock may be made yet. Its commit does
    /// not wait for the disk, because the row grants nothing: a later write to the row comes after it in the log.
    pub(crate) make: String,
    /// Write a ledger on top of the one that it was made from. They wait for the transaction that has the row locked.
    pub(crate) write: WriteSql,
    /// The same if no transaction has the row locked.
    pub(crate) write_unlocked: WriteSql,
    /// The same with a wait of at most 50 ms for the transaction that has the row locked. The limit is set for this
    /// transaction only.
    pub(crate) write_briefly: WriteSql,
    /// As `write_unlocked` for many rows in one statement, each separately. Rows that another transaction has locked
    /// are skipped, so the statement waits for none. In: names, versions, busys, states, states before, from, until.
    /// Out: name and time; for a written row, whether it has what was written; for any other, its version and state.
    pub(crate) write_many: String,
    /// Puts a place into the text of a lock, whatever that text is. Waits at most 50 ms for the transaction that has
    /// the row locked; the limit is set for this transaction only. In: name, owner, place; the beginning of a text that
    /// has no room or gets its last place; the text that each place has once; the maximum number of places; from,
    /// until. Out: version, state, time, and whether the row has what was written; no row: the place was not put there.
    pub(crate) enqueue: String,
    /// Statements on places behind the queue.
    pub(crate) tail: TailSql,
    /// Locks that are held or waited for. In: prefix. Out: name, state, time; by name, each lock before the rows of its
    /// tail.
    pub(crate) list: String,
    /// Deletes free rows that were not used for a day and whose memo has expired, on a few random pages.
    pub(crate) sweep: String,
    /// How long no lock may be made yet. Out: µs; no row: locks may be made.
    pub(crate) opens: String,
    /// Makes the table, and stores in the same step from when locks may be made in it. A written row stays on its page,
    /// because no index has a column that changes, and the page has room for it.
    pub(crate) create: String,
    /// Stops transactions that begin to rely on an owner, if the row of its lock is unchanged and the server's time is between two
    /// points. In: name, version, state, from, until, the name of the row that stops them, and the text of the owner.
    pub(crate) stop_relying: String,
    /// The table with its schema, as `to_regclass` expects it.
    pub(crate) table: String,
}

/// Statements on the rows of the tail of one lock.
#[derive(Debug)]
pub(crate) struct TailSql {
    /// Puts a place at the end of the tail. In: name, owner, state, whether it may exist already, the required
    /// beginning of the state of the lock, from, until. Out: the name of its row, and whether the row has what was
    /// written; no row: the place was not put there.
    pub(crate) stand: String,
    /// Rewrites a place of the tail. In: name of the row, state, from, until. Out: whether the row has what was
    /// written; no row: it does not exist, was emptied, or the server's time is not between from and until.
    pub(crate) keep: String,
    /// Removes a place of the tail. In: name, owner, name of the row, whether it may have another name. Out: one row
    /// for each removed place.
    pub(crate) withdraw: String,
    /// The places of the tail. In: name. Out: state, in their order.
    pub(crate) places: String,
}

/// Statements that write one ledger if the row is unchanged and the server's time is between two points. In: name,
/// version, busy, state, state before, from, until. Out: time, and whether the row has what was written, which a
/// trigger may prevent; no row: it was not written. Among those that do not wait, `plain` then returns the time, NULL,
/// and version and state of the row as it is. If these are unchanged, the row is locked.
#[derive(Debug)]
pub(crate) struct WriteSql {
    pub(crate) plain: String,
    /// Also notifies other processes in the same transaction: hints are sent with the commit or not at all. In: also
    /// channels, payloads.
    pub(crate) notifying: String,
    /// Also deletes rows of the tail, except those that another transaction has locked. In: also their names, and
    /// whether the row is written only if there are no others.
    pub(crate) moving: String,
    /// Also writes the row in which transactions look for the owner, and writes nothing if one has it locked. In: also its
    /// name and its text. Out: time, and whether the rows have what was written; time and NULL: the row of the owner is locked;
    /// no row: it was not written.
    pub(crate) showing: String,
}

impl WriteSql {
    /// `tail`: the condition that a row is in the tail of $1.
    fn new(table: &str, (patience, awaiting): (Patience, Awaiting), (tail, remove): (&str, &str)) -> Self {
        let is_ours = "t.name = $1 AND t.version = $2 AND t.state = $5";
        // The part before the update, and the update, of a row as $1 names it.
        let update = |alone: &str| {
            let when = format!(" AND clock_timestamp() BETWEEN $6 AND $7{alone}");
            let set = "SET version = t.version + 1, busy = $3, used = clock_timestamp(), state = $4";
            // What the row has after a trigger has changed it: a lease that is not in the row was not granted (L1).
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
        let is_unlocked =
            format!("(EXISTS (SELECT FROM o) OR NOT EXISTS (SELECT FROM {table} WHERE name = $12))");
        let (before_shown, shown) = update(&format!("{is_last} AND {is_unlocked}"));
        let gone = format!(
            "gone AS ({remove} WHERE name IN (SELECT name FROM {table} \
             WHERE name = ANY($10::text[]) AND EXISTS (SELECT FROM c) FOR UPDATE SKIP LOCKED))"
        );
        let as_it_is = format!(
            "UNION ALL SELECT clock_timestamp(), NULL, t.version, t.state::text FROM {table} AS t \
             WHERE t.name = $1 AND NOT EXISTS (SELECT FROM c)"
        );
        let told = "SELECT c.at, c.is_ours, told.n FROM c, LATERAL (SELECT count(pg_notify(w.channel, w.hint)) AS n \
                    FROM unnest($8::text[], $9::text[]) AS w(channel, hint) WHERE c.at IS NOT NULL) AS told";
        Self {
            notifying: format!("WITH {before}c AS ({plain}) {told}"),
            moving: format!("WITH {before_last}c AS ({last}), {gone} {told}"),
            showing: format!(
                "WITH o AS (SELECT name FROM {table} WHERE name = $12 FOR UPDATE SKIP LOCKED), {before_shown}c AS ({shown}), \
                 s AS (INSERT INTO {table} AS t (name, version, busy, used, state) SELECT $12, 1, $13 <> '', clock_timestamp(), \
                 $13 FROM c ON CONFLICT (name) DO UPDATE SET version = t.version + 1, busy = excluded.busy, \
                 used = clock_timestamp(), state = excluded.state RETURNING (t.name, t.state) IS NOT DISTINCT FROM ($12, $13) \
                 AS is_ours), {gone} \
                 SELECT c.at, c.is_ours AND coalesce((SELECT s.is_ours FROM s), false), \
                 (SELECT count(pg_notify(w.channel, w.hint)) FROM unnest($8::text[], $9::text[]) AS w(channel, hint) \
                 WHERE c.at IS NOT NULL), NULL::text FROM c \
                 UNION ALL SELECT clock_timestamp(), NULL, 0, NULL WHERE NOT EXISTS (SELECT FROM c) AND NOT {is_unlocked}"
            ),
            plain: match patience {
                Patience::Any | Patience::Brief => plain,
                Patience::None => format!(
                    "WITH {before}c AS ({plain}) SELECT c.at, c.is_ours, NULL::bigint, NULL::text FROM c {as_it_is}"
                ),
            },
        }
    }
}

impl TailSql {
    /// `tail`: the condition that a row is in the tail of $1.
    fn new(table: &str, (tail, remove): (&str, &str)) -> Self {
        Self {
            stand: format!(
                "WITH known AS (SELECT name FROM {table} WHERE $4 AND {tail} AND strpos(state, $2) > 0 LIMIT 1), \
                 made AS (INSERT INTO {table} (name, version, busy, used, state) \
                 SELECT $1 || chr(1) || $8 || lpad(to_hex(txid_current()), 16, '0'), 1, false, clock_timestamp(), $3 \
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
        // In this order even if the column has got another collation since it was checked.
        let behind = "name COLLATE \"C\" > $1 || chr(1) AND name COLLATE \"C\"";
        let tail = format!("{behind} < $1 || chr(2) AND state <> ''");
        // A role that may not delete empties a place, and another role deletes the empty row.
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
                 (SELECT name, state FROM {table} WHERE {tail} ORDER BY name COLLATE \"C\" LIMIT $3) AS f) AS tail \
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
            stop_relying: format!(
                "INSERT INTO {table} AS t (name, version, busy, used, state) SELECT $6, 1, false, clock_timestamp(), $7 \
                 FROM {table} AS l WHERE l.name = $1 AND l.version = $2 AND l.state = $3 \
                 AND clock_timestamp() BETWEEN $4 AND $5 ON CONFLICT (name) DO UPDATE SET version = t.version + 1, used = clock_timestamp(), state = excluded.state \
                 WHERE t.state <> excluded.state"
            ),
            table: table.to_owned(),
        }
    }
}

/// What the commit of a write waits for, as a value of `synchronous_commit`; never `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Awaiting(pub(crate) &'static str);

impl Awaiting {
    /// From the setting at the login of the role, which an operator chose. Without a wait for the disk, a grant is not
    /// a lease (A3).
    pub(crate) fn of(at_login: &str) -> Self {
        Self(
            ["local", "remote_write", "remote_apply"]
                .into_iter()
                .find(|known| *known == at_login)
                .unwrap_or("on"),
        )
    }
}

/// Settings that a write relies on, for its own transaction only: another client of a pooler may have left others in
/// the session. The commit waits, the server reports a cancelled wait for a standby, and the wait for a lock is
/// limited.
fn own(Awaiting(commit): Awaiting, patience: Patience) -> String {
    let brief = if patience == Patience::Brief { " || set_config('lock_timeout', '50ms', true)" } else { "" };
    format!(
        "(SELECT set_config('synchronous_commit', '{commit}', true) || set_config('client_min_messages', 'notice', true){brief} AS said)"
    )
}

/// The statement by which a transaction relies on an owner. In: the name of the row, and its text. Out: one row, or none.
///
/// * The owner is a condition on a column of the row that is locked, without a join: after a wait the server checks it again, on
///   the row as it is then.
/// * The other row stops transactions that begin, and protects nothing: a snapshot may be older than it.
/// * `FOR SHARE`: weaker locks pass a change of the text.
/// * The transaction may stand still for `rest` only: its client may be gone without a trace. A shorter limit of the
///   session stays.
pub(crate) fn relies(table: &str, (row, proof): (&str, &str), rest: Duration) -> String {
    let millis = rest.as_millis().max(1);
    format!(
        "SELECT set_config('idle_in_transaction_session_timeout', \
         CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval BETWEEN interval '1 ms' AND interval '{millis} ms' \
         THEN current_setting('idle_in_transaction_session_timeout') ELSE '{millis}ms' END, true) AS bound \
         FROM {table} WHERE name = {row} AND state = {proof} \
         AND NOT EXISTS (SELECT FROM {table} WHERE name = {row} || chr(2) AND state = {proof}) FOR SHARE"
    )
}

/// Transactions that have locked rows of the table, and have been open for some time, the oldest first: which rows, no other
/// session sees, and a role without `pg_read_all_stats` not since when. In: table, seconds. Out: whose, for people.
pub(crate) const RELYING: &str = "SELECT told.who || coalesce(', for ' || extract(epoch FROM clock_timestamp() - told.since)::bigint || ' s)', ')') \
                                  FROM pg_locks AS l, LATERAL (\
                                  SELECT format('session %s (user %s, %s', a.pid, a.usename, \
                                  coalesce(nullif(a.application_name, ''), 'unnamed')) AS who, a.xact_start AS since \
                                  FROM pg_stat_activity AS a WHERE a.pid = l.pid UNION ALL \
                                  SELECT format('prepared transaction %L (user %s', p.gid, p.owner), p.prepared \
                                  FROM pg_prepared_xacts AS p JOIN pg_locks AS t ON t.transactionid = p.transaction AND t.pid IS NULL AND p.database = current_database() \
                                  WHERE l.pid IS NULL AND t.virtualtransaction = l.virtualtransaction) AS told \
                                  WHERE l.relation = to_regclass($1) AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                                  AND l.mode = 'RowShareLock' \
                                  AND l.pid IS DISTINCT FROM pg_backend_pid() \
                                  AND coalesce(told.since <= clock_timestamp() - make_interval(secs => $2), $2 = 0) ORDER BY told.since LIMIT 3";

/// A text that every setting of the server reads as the same.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("E'");
    for character in text.chars() {
        match character {
            '\'' => quoted.push_str("''"),
            '\\' => quoted.push_str("\\\\"),
            control if control.is_ascii_control() => {
                quoted.push_str(&format!("\\{:03o}", u32::from(control)));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    quoted
}

/// Restores settings of the login for this transaction: where a table is made, and as which role. `pg_settings` does
/// not list the role.
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
/// The identifier that a database and all its copies have in common. Some roles may not read it.
pub(crate) const DATABASE: &str = "SELECT system_identifier FROM pg_control_system()";

/// The server's clock in µs since the Unix epoch.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Notifies another process. In: channel, payload.
pub(crate) const NOTIFY: &str = "SELECT pg_notify($1, $2)";

/// Whether the memo in a row, as the ledger writes it, has expired or does not exist. No label can look like it,
/// because in a JSON string every quote has a backslash before it.
const MEMO_IS_OVER: &str = "coalesce(substring(state FROM '\"memo\":[{]\"ends_ms\":([0-9]+)')::bigint, 0) \
                            < extract(epoch FROM clock_timestamp()) * 1000";

/// The maximum number of waiters of one lock: no more places are shown.
pub(crate) const PLACES: usize = 4096;

/// The columns, as the README shows them.
const COLUMNS: &str = "name text COLLATE \"C\" PRIMARY KEY, version bigint NOT NULL, busy boolean NOT NULL, \
                       used timestamptz NOT NULL, state text NOT NULL";

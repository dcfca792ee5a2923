//! The statements, each with its contract. All of them are transactions of their own, and none needs a session.

/// The statements for one table.
pub(crate) struct Sql {
    /// Reads one lock and the server's clock. In: name. Out: version, state, time; no version: there is no such lock.
    pub(crate) read: String,
    /// The same of many. In: names. Out: name, version, state, time.
    pub(crate) read_many: String,
    /// Makes the row of a lock. In: name, version, busy, state. Out: time, and whether the row is what was written; no row: it was
    /// there already.
    pub(crate) insert: String,
    /// Write a ledger on top of the one that it was made from; behind whoever has the row locked.
    pub(crate) write: Write,
    /// The same where nobody has the row locked.
    pub(crate) write_unlocked: Write,
    /// The same behind whoever has the row locked, for 50 ms; that is set for this transaction and leaves nothing behind.
    pub(crate) write_briefly: Write,
    /// As `write_unlocked` for many at once, each on its own: rows that somebody else has locked are left out, so that nobody is
    /// waited for. In: names, versions, busys, states, states before, from, until. Out: name, time of those written, and whether it is
    /// what was written.
    pub(crate) write_many: String,
    /// What is held or waited for. In: prefix. Out: name, state, time; by name.
    pub(crate) list: String,
    /// Deletes free rows that nobody used for a day, of a few pages that chance chooses.
    pub(crate) sweep: String,
    /// Makes the table. Rows stay on their page when they are written (no index has a column that changes), and the page has
    /// room for that.
    pub(crate) create: String,
    /// The table as `to_regclass` wants it.
    pub(crate) table: String,
}

/// Statements that write one ledger if the row is as it was. In: name, version, busy, state, state before. Out: time, and whether the
/// row is what was written, which a trigger may prevent; no row: it is not as it was; or, of those that do not wait, somebody has it
/// locked.
pub(crate) struct Write {
    pub(crate) plain: String,
    /// If the server's time lies between two points as well. In: and from, until.
    pub(crate) between: String,
    /// And tells other processes in the same transaction: hints leave with the commit or not at all. In: and channels, payloads.
    pub(crate) telling: String,
}

/// How long a write waits for who has the row locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Any,
    None,
    Brief,
}

impl Write {
    fn new(table: &str, patience: Patience) -> Self {
        let is_ours = "t.name = $1 AND t.version = $2 AND t.state = $5";
        let write = |when: &str| {
            let set = "SET version = t.version + 1, busy = $3, used = clock_timestamp(), state = $4";
            // What the row has after a trigger has changed it: a lease that is not in it was not granted (L1).
            let at = "RETURNING clock_timestamp() AS at, (t.name, t.version, t.busy, t.state) IS NOT DISTINCT FROM \
                      ($1, $2 + 1, $3, $4) AS is_ours";
            match patience {
                Patience::Any => format!("UPDATE {table} AS t {set} WHERE {is_ours}{when} {at}"),
                Patience::None => format!(
                    "WITH f AS (SELECT t.name FROM {table} AS t WHERE {is_ours}{when} FOR UPDATE SKIP LOCKED) \
                     UPDATE {table} AS t {set} FROM f WHERE t.name = f.name AND {is_ours} {at}"
                ),
                Patience::Brief => format!(
                    "UPDATE {table} AS t {set} FROM (SELECT set_config('lock_timeout', '50ms', true) AS text) AS brief \
                     WHERE {is_ours}{when} AND brief.text <> '' {at}"
                ),
            }
        };
        Self {
            plain: write(""),
            between: write(" AND clock_timestamp() BETWEEN $6 AND $7"),
            telling: format!(
                "WITH c AS ({}) SELECT c.at, c.is_ours, told.n FROM c, LATERAL (SELECT count(pg_notify(w.channel, w.hint)) AS n \
                 FROM unnest($6::text[], $7::text[]) AS w(channel, hint) WHERE c.at IS NOT NULL) AS told",
                write("")
            ),
        }
    }
}

impl Sql {
    pub(crate) fn new(table: &str) -> Self {
        Self {
            read: format!(
                "SELECT t.version, t.state, clock_timestamp() FROM (VALUES (0)) AS one \
                 LEFT JOIN {table} AS t ON t.name = $1"
            ),
            read_many: format!(
                "SELECT name, version, state, clock_timestamp() FROM {table} WHERE name = ANY($1)"
            ),
            insert: format!(
                "INSERT INTO {table} (name, version, busy, used, state) VALUES ($1, $2, $3, clock_timestamp(), $4) \
                 ON CONFLICT (name) DO NOTHING RETURNING clock_timestamp(), \
                 (name, version, busy, state) IS NOT DISTINCT FROM ($1, $2, $3, $4)"
            ),
            write: Write::new(table, Patience::Any),
            write_unlocked: Write::new(table, Patience::None),
            write_briefly: Write::new(table, Patience::Brief),
            write_many: format!(
                "WITH w AS (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bool[], $4::text[], $5::text[]) \
                 AS w(name, version, busy, state, before)), \
                 f AS (SELECT l.name FROM {table} AS l JOIN w ON l.name = w.name AND l.version = w.version \
                 AND l.state = w.before WHERE clock_timestamp() BETWEEN $6 AND $7 FOR UPDATE OF l SKIP LOCKED) \
                 UPDATE {table} AS t SET version = t.version + 1, busy = w.busy, used = clock_timestamp(), \
                 state = w.state FROM w, f WHERE t.name = w.name AND f.name = w.name AND t.version = w.version \
                 AND t.state = w.before RETURNING w.name, clock_timestamp(), \
                 (t.name, t.version, t.busy, t.state) IS NOT DISTINCT FROM (w.name, w.version + 1, w.busy, w.state)"
            ),
            list: format!(
                "SELECT name, state, clock_timestamp() FROM {table} WHERE busy AND starts_with(name, $1) ORDER BY name"
            ),
            sweep: format!(
                "DELETE FROM {table} WHERE name IN (SELECT name FROM {table} TABLESAMPLE SYSTEM \
                 ((SELECT least(100, 1600.0 / greatest(relpages, 1)) FROM pg_class WHERE oid = to_regclass($1))) \
                 WHERE NOT busy AND used < clock_timestamp() - interval '1 day' FOR UPDATE SKIP LOCKED)"
            ),
            create: format!("CREATE TABLE IF NOT EXISTS {table} ({COLUMNS}) WITH (fillfactor = 50)"),
            table: table.to_owned(),
        }
    }
}

/// The columns, as the README shows them.
const COLUMNS: &str = "name text COLLATE \"C\" PRIMARY KEY, version bigint NOT NULL, busy boolean NOT NULL, \
                       used timestamptz NOT NULL, state text NOT NULL";

/// What must be known of a connection before it is used, in one row. In: table. Out: the port of our end as the server sees it, the
/// server's own port, whether it takes writes, whether it is a standby, its clock; and of what has the table's name: whether there is
/// such a thing, its columns and types, whether it is a table in which names are unique, and whether it has the columns that we use.
///
/// Those may be written (none is generated) and lose nothing of what is written to them: `varchar` is as good as `text`, for a
/// name if it is long enough. What else there is, and in which order, is the business of whoever added it. Servers before 12
/// know no `attgenerated`, hence the way over JSON.
pub(crate) const LOOK: &str = "SELECT inet_client_port(), current_setting('port')::int, \
    current_setting('transaction_read_only') = 'off', pg_is_in_recovery(), clock_timestamp(), c.oid IS NOT NULL, \
    coalesce((SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || \
            CASE to_jsonb(a) ->> 'attgenerated' WHEN 's' THEN ' generated' ELSE '' END, ', ' ORDER BY a.attnum) \
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), ''), \
    coalesce(c.relkind IN ('r', 'p'), false) AND EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indnkeyatts = 1 \
        AND i.indpred IS NULL AND i.indexprs IS NULL AND a.attname = 'name'), \
    (SELECT count(*) = 5 FROM pg_attribute a JOIN (VALUES ('name', ARRAY['text', 'varchar']), ('version', ARRAY['int8']), \
            ('busy', ARRAY['bool']), ('used', ARRAY['timestamptz']), ('state', ARRAY['text', 'varchar'])) AS w(name, types) \
        ON a.attname = w.name AND a.atttypid = ANY (w.types::regtype[]::oid[]) \
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity <> 'a' \
        AND coalesce(to_jsonb(a) ->> 'attgenerated', '') = '' \
        AND (a.attname <> 'name' OR a.atttypmod = -1 OR a.atttypmod >= 516)) \
    FROM (SELECT to_regclass($1) AS oid) AS wanted LEFT JOIN pg_class c ON c.oid = wanted.oid";

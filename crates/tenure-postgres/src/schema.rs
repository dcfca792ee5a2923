//! What a connection finds: the server, and whether the table is one of Tenure.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tenure_core::{BackendError, ErrorKind};
use tokio_postgres::{Error, Row};

use crate::{
    config::Server,
    error::WORDS,
    sql::{Awaiting, Sql},
};

/// What was found when a connection was made.
#[derive(Clone, Debug)]
pub(crate) struct ServerFacts {
    /// No pooler is between this client and the server, so notifications of the server arrive here.
    pub(crate) is_direct: bool,
    pub(crate) takes_writes: bool,
    pub(crate) is_standby: bool,
    /// Places may have separate rows, because names are in the order of their bytes.
    pub(crate) takes_places: bool,
    /// This role may delete rows.
    pub(crate) may_delete: bool,
    pub(crate) table: LockTable,
    pub(crate) clock: Duration,
    /// The product or extension that lets several servers take writes.
    pub(crate) many_writers: Option<&'static str>,
    /// The schema of the table, or the one where it would be made. `None`: the path of the role names no existing
    /// schema.
    pub(crate) schema: Option<String>,
    /// Why the table is ambiguous: a pooler, or another client, has set another `search_path` for this session.
    pub(crate) two_tables: Option<String>,
    /// What the commits of this client's writes wait for.
    pub(crate) awaiting: Awaiting,
    /// The statements for this table in this schema.
    pub(crate) sql: Arc<Sql>,
}

/// What was found where the table should be. A table is Tenure's if it has what Tenure uses, whatever else it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockTable {
    Ours,
    Missing,
    /// Another program's, with these columns.
    Strange(String),
}

/// Whether the server sees the same two ends of the connection as this client.
///
/// The client's port alone proves nothing: where a pooler connects to the server, its end may have the same number by
/// chance. A pooler on this machine listens at another port than the server. A pooler elsewhere has another address
/// than this client.
fn is_direct(place: &Server, own_end: Option<SocketAddr>, (seen, server): (Option<SocketAddr>, i32)) -> bool {
    let (Server::Host(_, port) | Server::Socket(_, port)) = place;
    let is_same = |(own, seen): (SocketAddr, SocketAddr)| (own.ip(), own.port()) == (seen.ip(), seen.port());
    let is_seen = match own_end {
        Some(own) => seen.is_some_and(|seen| is_same((own, seen))),
        None => seen.is_none() && matches!(place, Server::Socket(..)),
    };
    is_seen && server == i32::from(*port)
}

impl ServerFacts {
    /// From the row of [`LOOK`].
    pub(crate) fn read(
        row: &Row,
        (schema, table): (Option<&str>, &str),
        place: &Server,
        own_end: Option<SocketAddr>,
    ) -> Result<Self, Error> {
        let (port, server): (Option<i32>, i32) = (row.try_get(0)?, row.try_get(1)?);
        let address: Option<IpAddr> = row.try_get(10)?;
        let (is_there, columns): (bool, String) = (row.try_get(5)?, row.try_get(6)?);
        let (is_unique, has_ours): (bool, bool) = (row.try_get(7)?, row.try_get(8)?);
        let seen = address.zip(port.and_then(|port| u16::try_from(port).ok())).map(SocketAddr::from);
        let is_direct = is_direct(place, own_end, (seen, server));
        let found: Option<String> = row.try_get(11)?;
        let at_login: &str = row.try_get(17)?;
        let (awaiting, may_delete) = (Awaiting::of(row.try_get(12)?), row.try_get(15)?);
        let sql = Arc::new(Sql::new(&quoted(found.as_deref().or(schema), table), awaiting, may_delete));
        Ok(Self {
            many_writers: many_writers(row.try_get(13)?, row.try_get(14)?),
            schema: found,
            two_tables: row.try_get::<_, Option<_>>(16)?.map(|session| two_tables(table, session, at_login)),
            awaiting,
            sql,
            is_direct,
            takes_writes: row.try_get(2)?,
            is_standby: row.try_get(3)?,
            takes_places: row.try_get(9)?,
            may_delete,
            table: match is_there {
                false => LockTable::Missing,
                true if has_ours && is_unique => LockTable::Ours,
                true => LockTable::Strange(columns),
            },
            clock: since_epoch(row.try_get(4)?),
        })
    }

    /// # Errors
    /// `Unavailable`: a standby may be promoted, and a server is set to read only for a moment while the next primary
    /// takes over. If that does not change, a waiter fails after its patience.
    pub(crate) fn must_take_writes(&self, place: &str) -> Result<(), BackendError> {
        if self.takes_writes {
            return Ok(());
        }
        let message = if self.is_standby {
            "this PostgreSQL server is a standby and takes no writes; name its primary too"
        } else {
            "this PostgreSQL server takes no writes: default_transaction_read_only is on, for the role or in a session of a pooler"
        };
        Err(WORDS.refused(place, ErrorKind::Unavailable, message))
    }

    /// # Errors
    /// `Invalid` where several servers take writes: a lease is compared by one server and ends by its clock.
    pub(crate) fn must_be_one_writer(&self, place: &str) -> Result<(), BackendError> {
        match self.many_writers {
            Some(what) => Err(WORDS.refused(place, ErrorKind::Invalid, not_one_writer(what))),
            None => Ok(()),
        }
    }

    /// # Errors
    /// `Invalid` if the table is ambiguous: another client may use the other one.
    pub(crate) fn must_be_one_table(&self, place: &str) -> Result<(), BackendError> {
        match &self.two_tables {
            Some(what) => Err(WORDS.refused(place, ErrorKind::Invalid, what)),
            None => Ok(()),
        }
    }

    /// # Errors
    /// `Corrupt` for the table of another program: no lock is claimed in it, and nothing of it is shown. A lease that
    /// is already in it is renewed and released as long as the server accepts the statements, because they compare the
    /// whole row.
    pub(crate) fn must_be_ours(&self, place: &str) -> Result<(), BackendError> {
        match &self.table {
            LockTable::Strange(columns) => Err(WORDS.strange(place, columns)),
            LockTable::Ours | LockTable::Missing => Ok(()),
        }
    }
}

/// Why a name without a schema is refused. Takes the `search_path` of the session and that of the role.
fn two_tables(table: &str, session: &str, at_login: &str) -> String {
    format!(
        "this session's search_path ({session}) is not the role's ({at_login}), and they lead to different tables: \
         name the schema with table=SCHEMA.{table}"
    )
}

/// Why a database is refused in which several servers take writes.
pub(crate) fn not_one_writer(what: &str) -> String {
    format!(
        "{what} lets several servers take writes, each by its own clock; locks need a PostgreSQL with one that takes them"
    )
}

/// The product or extension that lets several servers take writes, by this version and these extensions.
fn many_writers(version: &str, extensions: &str) -> Option<&'static str> {
    let is_of = |part: &str| version.contains(part);
    let has = |wanted: &str| extensions.split(' ').any(|name| name == wanted);
    let kinds = [
        (is_of("CockroachDB"), "CockroachDB"),
        (is_of("-YB-"), "YugabyteDB"),
        (has("citus"), "Citus (the extension citus)"),
        (has("bdr"), "EDB Postgres Distributed (the extension bdr)"),
        (has("spock"), "pgEdge (the extension spock)"),
        (has("pgactive"), "pgactive (the extension of this name)"),
    ];
    kinds.into_iter().find(|(is_it, _)| *is_it).map(|(_, what)| what)
}

/// A table as a statement names it.
fn quoted(schema: Option<&str>, table: &str) -> String {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    schema.into_iter().chain([table]).map(quoted).collect::<Vec<_>>().join(".")
}

/// A time of the server, since the Unix epoch.
pub(crate) fn since_epoch(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// What must be known of a connection before it is used. In: schema, or none; table. Out: one row with, in this order:
///
/// * the client's port as the server sees it, and the server's own port;
/// * whether the server takes writes, whether it is a standby, and its clock;
/// * whether anything has the table's name, and its columns and types;
/// * whether it is a table in which names are unique, and whether it has the columns that Tenure uses;
/// * whether names are in the order of their bytes;
/// * the client's address as the server sees it;
/// * the schema of the table, or the one where it would be made;
/// * what a commit waits for, the text of the version, and the extensions;
/// * whether this role may delete;
/// * the path of the session, if that leads to another table or to none; and the path of the login.
///
/// These columns can be written (none is generated) and keep all that is written to them: `varchar` is as good as
/// `text`, and for a name if it is long enough. Other columns do not matter, and neither does their order. Servers
/// before 12 have no `attgenerated`, so it is read as JSON.
///
/// **Nothing of it depends on what another client has left in the session**, where a pooler leads several clients over
/// one. `reset_val` is a setting as the login of the role made it. A name without a schema is looked up along the path
/// of the login, for that role. Temporary tables are left out, although PostgreSQL itself searches them first. The name
/// is also looked up along the path of the session, because a pooler may set that for all of its sessions. `own` is
/// read before `login` changes the path.
pub(crate) const LOOK: &str = "WITH own AS (SELECT current_schemas(false) AS schemas, current_setting('search_path') AS path, clock_timestamp() AS at), \
    set AS (SELECT name, reset_val FROM pg_settings WHERE name IN ('search_path', 'synchronous_commit')), \
    login AS (SELECT set_config('role', NULL, true) || \
        set_config('search_path', coalesce((SELECT nullif(reset_val, '') FROM set WHERE name = 'search_path'), '\"\"'), true) AS said \
        FROM own WHERE at IS NOT NULL), \
    paths AS (SELECT 'own' AS whose, unnest(schemas) AS name, generate_subscripts(schemas, 1) AS at FROM own WHERE $1::text IS NULL \
        UNION ALL SELECT 'login', s.name, s.at FROM login, \
        unnest(CASE WHEN said <> '' THEN CASE WHEN $1::text IS NULL THEN current_schemas(false) ELSE ARRAY[$1::name] END END) \
            WITH ORDINALITY AS s(name, at)), \
    path AS (SELECT n.oid, n.nspname, paths.whose, paths.at FROM paths JOIN pg_namespace n ON n.nspname = paths.name \
        WHERE n.oid <> pg_my_temp_schema()), \
    found AS (SELECT c.oid, path.whose, path.at FROM path JOIN pg_class c ON c.relnamespace = path.oid WHERE c.relname = $2::name), \
    wanted AS (SELECT (SELECT oid FROM found WHERE whose = 'login' ORDER BY at LIMIT 1) AS oid, \
        (SELECT nspname FROM path WHERE whose = 'login' ORDER BY at LIMIT 1) AS schema, \
        (SELECT oid FROM found WHERE whose = 'own' ORDER BY at LIMIT 1) AS own_oid, \
        (SELECT nspname FROM path WHERE whose = 'own' ORDER BY at LIMIT 1) AS own_schema) \
    SELECT inet_client_port(), current_setting('port')::int, \
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
        AND (a.attname <> 'name' OR a.atttypmod = -1 OR a.atttypmod >= 516)), \
    coalesce((SELECT n.collname = 'C' \
        FROM pg_attribute a JOIN pg_collation n ON n.oid = a.attcollation WHERE a.attrelid = c.oid AND a.attname = 'name'), true), inet_client_addr(), \
    coalesce((SELECT nspname FROM pg_namespace WHERE oid = c.relnamespace), wanted.schema)::text, \
    (SELECT reset_val FROM set WHERE name = 'synchronous_commit'), version(), \
    coalesce((SELECT string_agg(extname::text, ' ') FROM pg_extension), ''), \
    coalesce(has_table_privilege(c.oid, 'DELETE'), true), \
    CASE WHEN $1::text IS NULL AND (wanted.oid IS DISTINCT FROM own_oid OR wanted.oid IS NULL AND schema IS DISTINCT FROM own_schema) \
        THEN own.path END, (SELECT reset_val FROM set WHERE name = 'search_path') \
    FROM login JOIN wanted ON said <> '' CROSS JOIN own LEFT JOIN pg_class c ON c.oid = wanted.oid";

#[cfg(test)]
mod tests {
    use super::*;

    /// These databases answered all statements, and two nodes of one cluster compared and set by two clocks.
    #[test]
    fn a_database_with_many_writers_is_known_by_its_name() {
        let yugabyte =
            "PostgreSQL 11.2-YB-2.18.0.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 15.0.3, 64-bit";
        let cockroach =
            "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27 01:53:43, go1.19.10)";
        let plain = "PostgreSQL 15.14 (Debian 15.14-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc 12.2.0, 64-bit";
        for (version, extensions, found) in [
            (yugabyte, "plpgsql pg_stat_statements", Some("YugabyteDB")),
            (cockroach, "", Some("CockroachDB")),
            (plain, "plpgsql citus citus_columnar", Some("Citus")),
            (plain, "plpgsql bdr", Some("EDB Postgres Distributed")),
            (plain, "plpgsql spock", Some("pgEdge")),
            (plain, "pgactive", Some("pgactive")),
            (plain, "plpgsql citus_columnar postgis", None),
        ] {
            let what = many_writers(version, extensions);
            assert_eq!(what.and_then(|what| what.split(" (").next()), found, "{version} {extensions}");
        }
    }

    /// Hazard 54. A pooler's end had the port of this client's end by chance, and `LISTEN` was left in a connection of
    /// its pool. A port identifies neither its machine nor the server behind it.
    #[test]
    fn a_pooler_whose_end_has_our_number_is_still_a_pooler() {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        let at = |port| Server::Host("db".into(), port);
        let own = Some(end("10.0.0.7:40404"));
        assert!(is_direct(&at(5432), own, (own, 5432)));
        assert!(!is_direct(&at(6432), own, (own, 5432)), "on our machine");
        assert!(!is_direct(&at(5432), own, (Some(end("10.0.0.9:40404")), 5432)), "on another one");
        assert!(!is_direct(&at(5432), own, (Some(end("10.0.0.7:40405")), 5432)));
        assert!(!is_direct(&at(5432), own, (None, 5432)), "the pooler uses a socket of its machine");
        let socket = Server::Socket("/run/pg".into(), 5432);
        assert!(is_direct(&socket, None, (None, 5432)));
        assert!(!is_direct(&socket, None, (None, 5433)));
        assert!(!is_direct(&socket, None, (own, 5432)));
    }
}

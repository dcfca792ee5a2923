//! Findings about the server and our assumptions.

use std::time::Duration;

use tenure_core::{BackendError, Finding, Severity};
use tokio_postgres::{Error, Row, types::Type};

use crate::{
    config::Listen,
    error::Failure,
    schema::{Facts, Table, since_epoch},
    session::{Session, Sessions},
};

/// Settings of the server and rights of ours. In: table. Out: see [`Server`].
const QUESTION: &str = "SELECT current_setting('server_version'), current_setting('server_version_num')::int, \
    current_setting('fsync') = 'on', current_setting('synchronous_commit') <> 'off', \
    current_setting('synchronous_standby_names') = '', (SELECT count(*) FROM pg_stat_replication), \
    clock_timestamp(), c.relpersistence::text, \
    coalesce(has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') \
        AND has_table_privilege(c.oid, 'UPDATE'), true), \
    coalesce(has_table_privilege(c.oid, 'DELETE'), true), \
    current_setting('full_page_writes') = 'on', \
    coalesce((SELECT string_agg(quote_ident(tgname), ', ' ORDER BY tgname) FROM pg_trigger \
        WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled <> 'D'), ''), \
    coalesce((SELECT string_agg(quote_ident(rulename), ', ' ORDER BY rulename) FROM pg_rewrite \
        WHERE ev_class = c.oid AND ev_enabled <> 'D' AND c.relkind IN ('r', 'p')), ''), \
    coalesce(row_security_active(c.oid), false) \
    FROM (SELECT to_regclass($1) AS oid) AS wanted LEFT JOIN pg_class c ON c.oid = wanted.oid";

struct Server {
    version: String,
    version_number: i32,
    syncs: bool,
    waits_for_disk: bool,
    waits_for_no_standby: bool,
    standbys: i64,
    clock: Duration,
    persistence: Option<String>,
    may_write: bool,
    may_delete: bool,
    writes_whole_pages: bool,
    triggers: String,
    rules: String,
    has_policies: bool,
}

impl Server {
    fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            version: row.try_get(0)?,
            version_number: row.try_get(1)?,
            syncs: row.try_get(2)?,
            waits_for_disk: row.try_get(3)?,
            waits_for_no_standby: row.try_get(4)?,
            standbys: row.try_get(5)?,
            clock: since_epoch(row.try_get(6)?),
            persistence: row.try_get(7)?,
            may_write: row.try_get(8)?,
            may_delete: row.try_get(9)?,
            writes_whole_pages: row.try_get(10)?,
            triggers: row.try_get(11)?,
            rules: row.try_get(12)?,
            has_policies: row.try_get(13)?,
        })
    }
}

/// Looks at everything that a promise stands on, and tries the table. Leaves nothing behind, and makes no table.
pub(crate) async fn examine(
    sessions: &Sessions,
    hint_sessions: Option<&Sessions>,
    trial: impl Future<Output = Option<Finding>>,
) -> Result<Vec<Finding>, BackendError> {
    let (facts, server, ours) = match question(sessions, &*sessions.session().await?).await {
        // Once more on a new connection.
        Err(Failure::Broken(_)) => {
            let session = sessions.session().await?;
            question(sessions, &session).await.map_err(|failure| failure.into_error(session.name()))?
        }
        answer => answer.map_err(|failure| failure.into_error(&sessions.shared.config.place_name()))?,
    };
    let mut findings = vec![note(
        format!("PostgreSQL {} at {}", server.version, sessions.shared.config.place_name()),
        "nothing to do",
    )];
    findings.extend(durability(&server));
    findings.extend(table(&facts, &server));
    findings.extend(customs(&server));
    if facts.table == Table::Ours && facts.takes_writes && server.may_write {
        findings.extend(trial.await);
    }
    findings.extend(hints(sessions, hint_sessions, &facts).await);
    let apart = server.clock.abs_diff(ours);
    if apart > Duration::from_secs(1) {
        let what = format!("the server's clock and ours are {apart:.1?} apart");
        findings.push(note(what, "leases end by the server's clock alone; labels show times of both"));
    }
    Ok(findings)
}

/// The facts of the connection, the server's own, and our time meanwhile.
async fn question(sessions: &Sessions, session: &Session) -> Result<(Facts, Server, Duration), Failure> {
    let facts = session.look().await?;
    let rows = session.ask(QUESTION, &[(&sessions.shared.sql.table, Type::TEXT)]).await?;
    let ours = sessions.shared.host.now().wall;
    let unreadable = |error| Failure::Refused(session.unreadable(error));
    let row = rows.first().ok_or(Failure::Overtaken)?;
    Ok((facts, Server::read(row).map_err(unreadable)?, ours))
}

/// Whether hints can come.
async fn hints(sessions: &Sessions, hint_sessions: Option<&Sessions>, facts: &Facts) -> Vec<Finding> {
    let slow = "a waiter finds out by asking, every 0.2 to 0.4 s, that another process let it in";
    let found = match &sessions.shared.config.listen {
        Listen::Off => Some(note(format!("hints are off: {slow}"), "leave out listen=off to have them")),
        Listen::Same if facts.is_direct => None,
        Listen::Same => Some(warning(
            format!("somebody stands between us and the server, so no hints come: {slow}"),
            "add listen= with a URL that leads past the pooler; if it is a pooler in session mode or a \
             translation of addresses only, with the same URL",
        )),
        Listen::At(_) => far_hints(hint_sessions, slow).await,
    };
    found.into_iter().collect()
}

async fn far_hints(sessions: Option<&Sessions>, slow: &str) -> Option<Finding> {
    let sessions = sessions?;
    let remedy = "let listen= lead to the server itself";
    match sessions.session().await {
        Ok(session) if session.facts().is_direct => None,
        Ok(_) => Some(note(
            format!(
                "listen= leads to somebody between us and the server: if it is a pooler in transaction mode, {slow}"
            ),
            remedy,
        )),
        Err(error) => {
            Some(warning(format!("no hints come, as listen= cannot be reached ({error}): {slow}"), remedy))
        }
    }
}

/// Whether what was granted is there after a crash.
fn durability(server: &Server) -> Vec<Finding> {
    let mut findings = Vec::new();
    if server.version_number < 110_000 {
        findings.push(problem(
            format!("PostgreSQL {} is older than 11", server.version),
            "use a newer one: some statements are not known to it",
        ));
    }
    if !server.syncs {
        findings.push(problem(
            "fsync is off: a crash of the machine may destroy the table, and with it every lock".into(),
            "set fsync = on",
        ));
    }
    if !server.writes_whole_pages {
        findings.push(problem(
            "full_page_writes is off: a crash of the machine may tear pages of the table, and with them locks".into(),
            "set full_page_writes = on, unless the file system writes pages of 8 KB whole",
        ));
    }
    if !server.waits_for_disk {
        findings.push(problem(
            "synchronous_commit is off: a crash forgets locks that were granted in its last moments".into(),
            "ALTER ROLE … SET synchronous_commit = on, for the role that uses the table",
        ));
    }
    if server.standbys > 0 && server.waits_for_no_standby {
        findings.push(note(
            "commits do not wait for a standby: a fail-over may forget the last locks, and only the token protects then"
                .into(),
            "set synchronous_standby_names, if that is worth its time",
        ));
    }
    findings
}

/// The table and our rights.
fn table(facts: &Facts, server: &Server) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !facts.takes_writes {
        let who = if facts.is_standby { "a standby" } else { "set to read only" };
        findings.push(problem(format!("the server is {who}: nothing can be locked"), "name the primary"));
    }
    match &facts.table {
        Table::Ours => {}
        Table::Missing => findings.push(note(
            "there is no table yet".into(),
            "the first claim makes it; where the role may not, use the lines of the README of tenure-postgres",
        )),
        Table::Strange(columns) => findings.push(problem(
            format!("the table is not one of tenure; it has {columns}"),
            "name another one with table=",
        )),
    }
    if server.persistence.as_deref().is_some_and(|persistence| persistence != "p") {
        findings.push(problem(
            "the table is unlogged or temporary: a crash empties it, and two may hold then".into(),
            "ALTER TABLE … SET LOGGED",
        ));
    }
    if !server.may_write {
        findings.push(problem(
            "the role may not read and write the table".into(),
            "GRANT SELECT, INSERT, UPDATE ON the table TO the role",
        ));
    }
    if !server.may_delete {
        findings.push(note(
            format!(
                "the role may not delete: rows of locks that nobody uses any more stay, and {ALL_IN_ONE}"
            ),
            "GRANT DELETE too",
        ));
    } else if facts.table == Table::Ours && !facts.takes_places {
        findings.push(note(
            format!("the column name is not sorted by its bytes: {ALL_IN_ONE}"),
            "ALTER TABLE … ALTER COLUMN name TYPE text COLLATE \"C\"",
        ));
    }
    findings
}

/// What it costs that waiters have no rows of their own.
const ALL_IN_ONE: &str = "all who wait for a lock have their places in its row: from some fifty processes on they keep its holder from it";

/// What somebody added to the table that may change, swallow or hide what is written to it.
fn customs(server: &Server) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (what, names) in [("triggers", &server.triggers), ("rules", &server.rules)] {
        if !names.is_empty() {
            findings.push(warning(
                format!("the table has {what}: {names}. One that changes rows after a write can undo a lock unseen"),
                "drop them, unless they only read",
            ));
        }
    }
    if server.has_policies {
        findings.push(warning(
            "row level security is on for this role: a row that it hides cannot be locked".into(),
            "ALTER TABLE … DISABLE ROW LEVEL SECURITY",
        ));
    }
    findings
}

fn note(what: String, remedy: &str) -> Finding {
    Finding::new(Severity::Note, what, remedy)
}

fn warning(what: String, remedy: &str) -> Finding {
    Finding::new(Severity::Warning, what, remedy)
}

pub(crate) fn problem(what: String, remedy: &str) -> Finding {
    Finding::new(Severity::Problem, what, remedy)
}

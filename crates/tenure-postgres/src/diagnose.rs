//! Findings about the server and the conditions that the locks need.

use std::{sync::Arc, time::Duration};

use tenure_cas::CellError;
use tenure_client::doctor::{Check, Trial, clocks, described, failed_trial, finding, found, judged};
use tenure_core::{
    Backend, BackendError, Finding,
    Severity::{Note, Problem, Warning},
    Timing,
};
use tokio_postgres::{Error, Row, types::Type};

use crate::{
    config::Listen,
    error::WORDS,
    schema::{LockTable, ServerFacts, since_epoch},
    session::{Identity, Session, Sessions},
    sql::Awaiting,
};

/// Settings of the server and rights of this role. In: table. Out: see [`DatabaseFacts::read`].
const QUESTION: &str = "SELECT current_setting('server_version'), current_setting('server_version_num')::int, \
    current_setting('fsync') = 'on', current_setting('synchronous_standby_names') = '', (SELECT count(*) FROM pg_stat_replication), \
    clock_timestamp(), c.relpersistence::text, \
    coalesce(has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') \
        AND has_table_privilege(c.oid, 'UPDATE'), true), \
    coalesce(has_table_privilege(c.oid, 'DELETE'), true), \
    current_setting('full_page_writes') = 'on', \
    coalesce((SELECT string_agg(quote_ident(tgname), ', ' ORDER BY tgname) FROM pg_trigger \
        WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled <> 'D'), ''), \
    coalesce((SELECT string_agg(quote_ident(rulename), ', ' ORDER BY rulename) FROM pg_rewrite \
        WHERE ev_class = c.oid AND ev_enabled <> 'D' AND c.relkind IN ('r', 'p')), ''), \
    coalesce(row_security_active(c.oid), false), \
    coalesce((SELECT extract(epoch FROM clock_timestamp() - min(xact_start))::float8 FROM pg_stat_activity \
        WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()), 0), \
    coalesce((SELECT extract(epoch FROM clock_timestamp() - min(prepared))::float8 FROM pg_prepared_xacts), 0), \
    coalesce((SELECT max(age(xmin))::int8 FROM pg_replication_slots), 0), \
    coalesce((SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = c.oid), 0) \
    FROM (SELECT to_regclass($1) AS oid) AS wanted LEFT JOIN pg_class c ON c.oid = wanted.oid";

/// What the server reports about itself, and what is known of the connection.
struct DatabaseFacts {
    connection: ServerFacts,
    /// The client's clock when the server had answered.
    ours: Duration,
    version: String,
    version_number: i32,
    syncs: bool,
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
    /// How long the oldest transaction of another session has been open, in seconds, as far as this role may see.
    open_s: f64,
    /// The same of a prepared transaction.
    prepared_s: f64,
    /// How many transactions the oldest replication slot holds back.
    slot_age: i64,
    /// Old versions of rows that could not be removed yet.
    dead_rows: i64,
    /// Transactions that have had rows of the table locked for long, for people.
    relying: String,
}

impl DatabaseFacts {
    async fn read(sessions: &Sessions, session: &Session) -> Result<Self, CellError> {
        let connection = (*session.look().await?).clone();
        let rows = session.ask(QUESTION, &[(&connection.sql.table, Type::TEXT)]).await?;
        let ours = sessions.shared.host.now().wall;
        let row = rows.first().ok_or(CellError::Overtaken)?;
        let facts = Self::of(row, connection, ours);
        let facts = facts.map_err(|error| CellError::Refused(session.unreadable(error)))?;
        Ok(Self { relying: session.relying(LONG_OPEN).await, ..facts })
    }

    fn of(row: &Row, connection: ServerFacts, ours: Duration) -> Result<Self, Error> {
        Ok(Self {
            connection,
            ours,
            version: row.try_get(0)?,
            version_number: row.try_get(1)?,
            syncs: row.try_get(2)?,
            waits_for_no_standby: row.try_get(3)?,
            standbys: row.try_get(4)?,
            clock: since_epoch(row.try_get(5)?),
            persistence: row.try_get(6)?,
            may_write: row.try_get(7)?,
            may_delete: row.try_get(8)?,
            writes_whole_pages: row.try_get(9)?,
            triggers: row.try_get(10)?,
            rules: row.try_get(11)?,
            has_policies: row.try_get(12)?,
            open_s: row.try_get(13)?,
            prepared_s: row.try_get(14)?,
            slot_age: row.try_get(15)?,
            dead_rows: row.try_get(16)?,
            relying: String::new(),
        })
    }
}

/// Checks everything that a promise depends on, and tries the table. Leaves nothing behind, and makes no table. `over`
/// makes a handle whose requests all use this connection.
pub(crate) async fn examine<B: Backend>(
    sessions: &Sessions,
    hint_sessions: Option<&Sessions>,
    over: impl FnOnce(Arc<Session>) -> B,
) -> Result<Vec<Finding>, BackendError> {
    let place = sessions.shared.config.place_name();
    let host = &sessions.shared.host;
    let began = host.now();
    let (session, others) = servers(sessions).await?;
    let opening = began.elapsed(host.now());
    let database = DatabaseFacts::read(sessions, &session).await;
    let database = database.map_err(|failure| WORDS.settled(session.name(), failure))?;
    session.leave();
    let what = format!("PostgreSQL {} at {place}", database.version);
    let mut findings = vec![finding(Note, what, "nothing to do")];
    findings.extend(judged(&CHECKS, &database));
    findings.extend(others);
    findings.extend(slow(opening));
    let facts = &database.connection;
    let is_ours = facts.table == LockTable::Ours && facts.two_tables.is_none();
    if is_ours && facts.takes_writes && database.may_write {
        findings.extend(tried(sessions, over).await);
    }
    findings.extend(hints(sessions, hint_sessions, facts).await);
    findings.extend(clocks(database.clock, database.ours));
    Ok(findings)
}

/// The ttl that a measured opening requires. A holder whose connection breaks opens another one and renews over it,
/// within the two thirds of its lease that are left.
fn slow(opening: Duration) -> Option<Finding> {
    let least = opening * 3;
    let what = format!(
        "a connection takes {opening:.1?} to open: a holder whose connection breaks needs a ttl of {least:.0?} to keep its lease"
    );
    let remedy =
        "use a longer ttl, or a server that is nearer; connect_timeout= bounds each answer of an opening";
    found(least > Timing::DEFAULT_TTL, Warning, what, remedy)
}

/// The server that takes writes, or else the first one that answers; and findings about all named servers.
async fn servers(sessions: &Sessions) -> Result<(Arc<Session>, Vec<Finding>), BackendError> {
    let (mut answering, mut findings, mut last) = (Vec::new(), Vec::new(), None);
    for (name, opened) in sessions.each().await {
        match opened {
            Ok(session) => {
                let facts = NamedServer {
                    name,
                    takes_writes: session.facts().takes_writes,
                    is: session.identity().await,
                };
                answering.push((session, facts));
            }
            Err(error) => {
                let what = format!("cannot reach {name} ({})", described(&error));
                findings.push(finding(Warning, what, "start it, or take it out of the URL"));
                last = Some(error);
            }
        }
    }
    let at = answering.iter().position(|(_, facts)| facts.takes_writes).unwrap_or(0);
    findings.extend(are_one(&answering.iter().map(|(_, facts)| facts).collect::<Vec<_>>()));
    match answering.get(at) {
        Some((session, _)) => Ok((session.clone(), findings)),
        None => Err(last.expect("BUG: a configuration names a server")),
    }
}

/// One named server.
struct NamedServer {
    name: String,
    takes_writes: bool,
    is: Option<Identity>,
}

/// Whether all servers are one database and its copies, of which one takes writes.
fn are_one(servers: &[&NamedServer]) -> Option<Finding> {
    let others = |at: usize| servers[at + 1..].iter();
    let pairs = || (0..servers.len()).flat_map(|at| others(at).map(move |other| (servers[at], *other)));
    let database = |it: &NamedServer| it.is.and_then(|is| is.database);
    let differ = |(one, other): &(&NamedServer, &NamedServer)| {
        database(one).zip(database(other)).is_some_and(|(one, other)| one != other)
    };
    // Two names may lead to one server, as those of two poolers in front of it do.
    let both_write = |(one, other): &(&NamedServer, &NamedServer)| {
        one.takes_writes && other.takes_writes && (one.is.is_none() || one.is != other.is)
    };
    let told = |(one, other): (&NamedServer, &NamedServer), what: &str| {
        let what = format!("{} and {} {what}: two may hold one lock", one.name, other.name);
        finding(Problem, what, "name one primary and its standbys")
    };
    let differing = pairs().find(differ).map(|pair| told(pair, "are two databases, not one and its copy"));
    differing.or_else(|| pairs().find(both_write).map(|pair| told(pair, "both take writes")))
}

/// Whether grants survive a crash; the table and the rights of this role; and additions to the table that may change,
/// discard or hide writes.
const CHECKS: [Check<DatabaseFacts>; 17] = [
    Check::new("version", |it| {
        let what = format!("PostgreSQL {} is older than 11", it.version);
        found(
            it.version_number < 110_000,
            Problem,
            what,
            "use a newer one: some statements are not known to it",
        )
    }),
    Check::new("fsync", |it| {
        let what = "fsync is off: a crash of the machine may destroy the table, and with it every lock";
        found(!it.syncs, Problem, what, "set fsync = on")
    }),
    Check::new("full_page_writes", |it| {
        let what = "full_page_writes is off: a crash of the machine may tear pages of the table, and with \
                    them locks";
        let remedy = "set full_page_writes = on, unless the file system writes pages of 8 KB whole";
        found(!it.writes_whole_pages, Problem, what, remedy)
    }),
    Check::new("standbys", |it| {
        let what = "commits do not wait for a standby: a fail-over may forget the last locks, and only the \
                    token protects then";
        let remedy = "set synchronous_standby_names, and synchronous_commit = on, if that is worth its time";
        let is_alone = it.waits_for_no_standby || it.connection.awaiting == Awaiting("local");
        found(it.standbys > 0 && is_alone, Note, what, remedy)
    }),
    Check::new("writes", |it| {
        let kind = if it.connection.is_standby { "a standby" } else { "set to read only" };
        let what = format!("the server is {kind}: nothing can be locked");
        found(!it.connection.takes_writes, Problem, what, "name the primary")
    }),
    Check::new("two tables", |it| {
        let what = it.connection.two_tables.clone()?;
        Some(finding(Problem, what, "let the pooler and the role say one search_path, or name the schema"))
    }),
    Check::new("no table", |it| {
        let remedy = "the first claim makes it; where the role may not, use the lines of the README of \
                      tenure-postgres";
        found(it.connection.table == LockTable::Missing, Note, "there is no table yet", remedy)
    }),
    Check::new("columns", |it| {
        let LockTable::Strange(columns) = &it.connection.table else { return None };
        let what = format!("the table is not one of tenure; it has {columns}");
        Some(finding(Problem, what, "name another one with table="))
    }),
    Check::new("persistence", |it| {
        let what = "the table is unlogged or temporary: a crash empties it, and two may hold then";
        found(it.persistence.as_ref()? != "p", Problem, what, "ALTER TABLE … SET LOGGED")
    }),
    Check::new("right to write", |it| {
        let what = "the role may not read and write the table";
        found(!it.may_write, Problem, what, "GRANT SELECT, INSERT, UPDATE ON the table TO the role")
    }),
    Check::new("right to delete", |it| {
        let what = format!("the role may not delete: rows of unused locks stay, and {ALL_IN_ONE}");
        found(!it.may_delete, Note, what, "GRANT DELETE too")
    }),
    Check::new("order of names", |it| {
        let is_ours = it.may_delete && it.connection.table == LockTable::Ours;
        let what = format!("the column name is not sorted by its bytes: {ALL_IN_ONE}");
        let remedy = "ALTER TABLE … ALTER COLUMN name TYPE text COLLATE \"C\"";
        found(is_ours && !it.connection.takes_places, Note, what, remedy)
    }),
    Check::new("old snapshot", |it| {
        let cause = match (it.open_s.max(it.prepared_s), it.slot_age) {
            (open, _) if open > OLD_S && it.prepared_s > it.open_s => "a prepared transaction",
            (open, _) if open > OLD_S => "a transaction",
            (_, age) if age > MANY_TRANSACTIONS => "a replication slot",
            _ if it.dead_rows > MANY_DEAD => "a transaction, a replication slot or a lack of autovacuum",
            _ => return None,
        };
        let open = it.open_s.max(it.prepared_s);
        let since = if open > OLD_S { format!(" that is open for {open:.0} s") } else { String::new() };
        let what = format!(
            "{cause}{since} keeps old versions of rows from being removed ({} in the table): a busy lock gets slower and slower",
            it.dead_rows
        );
        let remedy = "end it: see pg_stat_activity by xact_start, pg_prepared_xacts, pg_replication_slots; \
                      idle_in_transaction_session_timeout ends forgotten ones";
        Some(finding(Warning, what, remedy))
    }),
    Check::new("open transactions", |it| {
        let what = format!(
            "a transaction has had rows of the table locked for long, and may keep a lock from its next owner: {}",
            it.relying
        );
        found(!it.relying.is_empty(), Warning, what, "commit it, roll it back, or end its session")
    }),
    Check::new("triggers", |it| added("triggers", &it.triggers)),
    Check::new("rules", |it| added("rules", &it.rules)),
    Check::new("policies", |it| {
        let what = "row level security is on for this role: a row that it hides cannot be locked";
        found(it.has_policies, Warning, what, "ALTER TABLE … DISABLE ROW LEVEL SECURITY")
    }),
];

/// In seconds: a transaction that is open for longer keeps the dead rows of busy locks.
const OLD_S: f64 = 60.0;
/// A transaction that relies on an owner ends sooner.
const LONG_OPEN: Duration = Duration::from_secs(30);
/// A busy lock has this many transactions in some minutes.
const MANY_TRANSACTIONS: i64 = 100_000;
/// With this many old versions of rows each request is slower.
const MANY_DEAD: i64 = 20_000;

/// What it costs if waiters have no separate rows.
const ALL_IN_ONE: &str = "all who wait for a lock have their places in its row: from some fifty processes on \
                          they keep its holder from it";

fn added(kind: &str, names: &str) -> Option<Finding> {
    let what =
        format!("the table has {kind}: {names}. One that changes rows after a write can undo a lock unseen");
    found(!names.is_empty(), Warning, what, "drop them, unless they only read")
}

/// Whether hints can arrive.
async fn hints(
    sessions: &Sessions,
    hint_sessions: Option<&Sessions>,
    facts: &ServerFacts,
) -> Option<Finding> {
    let slow = "waiters poll up to 40 times a second for a release by another process";
    let far = "let listen= lead to the server itself";
    let (severity, what, remedy) = match &sessions.shared.config.listen {
        Listen::Off => (Note, format!("hints are off: {slow}"), "leave out listen=off to have them"),
        Listen::Same if facts.is_direct => return None,
        Listen::Same => (
            Warning,
            format!("a connection pooler is in the way: LISTEN/NOTIFY does not work, so {slow}"),
            "add listen= with a URL that leads past the pooler; if it is a pooler in session mode or a \
             translation of addresses only, with the same URL",
        ),
        Listen::At(_) => match hint_sessions?.session().await {
            Ok(session) if session.facts().is_direct => return None,
            Ok(_) => (
                Note,
                format!(
                    "listen= leads to a connection pooler: in transaction mode LISTEN/NOTIFY does not work, so \
                     {slow}"
                ),
                far,
            ),
            Err(error) => (Warning, format!("cannot reach listen= ({error}), so {slow}"), far),
        },
    };
    Some(finding(severity, what, remedy))
}

/// Tries a lock in a transaction that is rolled back: no other client sees it, and nothing of it stays,
/// whatever rights the role has.
async fn tried<B: Backend>(sessions: &Sessions, over: impl FnOnce(Arc<Session>) -> B) -> Option<Finding> {
    let error = try_apart(sessions, over).await.err()?;
    Some(failed_trial(&error, "look at the triggers, rules, policies, columns and checks of the table"))
}

async fn try_apart<B: Backend>(
    sessions: &Sessions,
    over: impl FnOnce(Arc<Session>) -> B,
) -> Result<(), BackendError> {
    let shared = &sessions.shared;
    let session = Arc::new(sessions.apart().await?);
    let trial = async {
        // Checks that are deferred to the commit come with each statement: this transaction has no commit.
        for begin in ["BEGIN", "SET CONSTRAINTS ALL IMMEDIATE"] {
            let begun = session.ask(begin, &[]).await;
            begun.map_err(|failure| WORDS.settled(&shared.config.place_name(), failure))?;
        }
        let store = over(session.clone());
        Trial::new(&*shared.host, Timing::DEFAULT_TTL).run(&store).await.map_err(|tried| tried.error)
    };
    let tried = trial.await;
    // OK to ignore because a connection that has ended has rolled back too.
    let _ = session.ask("ROLLBACK", &[]).await;
    session.leave();
    tried
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::Sql;

    fn healthy() -> DatabaseFacts {
        DatabaseFacts {
            connection: ServerFacts {
                is_direct: true,
                takes_writes: true,
                is_standby: false,
                takes_places: true,
                may_delete: true,
                table: LockTable::Ours,
                clock: Duration::ZERO,
                many_writers: None,
                schema: None,
                two_tables: None,
                awaiting: Awaiting("on"),
                sql: Arc::new(Sql::new("locks", Awaiting("on"), true)),
            },
            ours: Duration::ZERO,
            version: "11.0".into(),
            version_number: 110_000,
            syncs: true,
            waits_for_no_standby: false,
            standbys: 1,
            clock: Duration::ZERO,
            persistence: Some("p".into()),
            may_write: true,
            may_delete: true,
            writes_whole_pages: true,
            triggers: String::new(),
            rules: String::new(),
            has_policies: false,
            open_s: 59.0,
            prepared_s: 59.0,
            slot_age: 90_000,
            dead_rows: 10_000,
            relying: String::new(),
        }
    }

    /// `doctor` measured one answer and based its advice on ten times that. A connection takes eight answers to open.
    #[test]
    fn an_opening_that_is_slow_is_a_finding() {
        assert_eq!(slow(Duration::from_secs(3)), None);
        let found = slow(Duration::from_secs(4)).unwrap();
        assert!(
            found.what.contains("takes 4.0s to open") && found.what.contains("a ttl of 12s"),
            "{found:?}"
        );
    }

    /// A URL that named two primaries was accepted, and each process used the one that it reached first.
    #[test]
    fn servers_that_are_not_one_are_a_finding() {
        let server = |name: &str, takes_writes, is: Option<(u64, Option<i64>)>| NamedServer {
            name: name.into(),
            takes_writes,
            is: is.map(|(started, database)| Identity { started: Duration::from_secs(started), database }),
        };
        let found = |one: NamedServer, other: NamedServer| are_one(&[&one, &other]).map(|found| found.what);
        let (a, b) = (Some((1, Some(7))), Some((2, Some(7))));
        assert_eq!(found(server("a", true, a), server("b", false, b)), None, "a primary and its standby");
        assert_eq!(found(server("a", true, a), server("b", true, a)), None, "two poolers before one server");
        let both = found(server("a", true, a), server("b", true, b)).unwrap();
        assert!(both.starts_with("a and b both take writes"), "{both}");
        let unknown = found(server("a", true, None), server("b", true, None)).unwrap();
        assert!(unknown.contains("both take writes"), "{unknown}");
        let two = found(server("a", true, a), server("b", false, Some((2, Some(8))))).unwrap();
        assert!(two.contains("are two databases"), "{two}");
        assert_eq!(
            found(server("a", true, Some((1, None))), server("b", false, b)),
            None,
            "the role may not ask"
        );
    }

    type Change = fn(&mut DatabaseFacts);

    #[test]
    fn each_fact_that_is_wrong_is_one_finding() {
        assert_eq!(judged(&CHECKS, &healthy()), []);
        let cases: [(Change, _, _); 22] = [
            (|it| it.version_number = 100_023, Problem, "is older than 11"),
            (|it| it.syncs = false, Problem, "fsync is off"),
            (|it| it.open_s = 90.0, Warning, "a transaction that is open for 90 s"),
            (|it| it.prepared_s = 90.0, Warning, "a prepared transaction that is open for 90 s"),
            (|it| it.slot_age = 200_000, Warning, "a replication slot keeps old versions"),
            (|it| it.dead_rows = 30_000, Warning, "(30000 in the table)"),
            (|it| it.relying = "session 7".into(), Warning, "from its next owner: session 7"),
            (|it| it.writes_whole_pages = false, Problem, "full_page_writes is off"),
            (|it| it.connection.awaiting = Awaiting("local"), Note, "do not wait for a standby"),
            (|it| it.waits_for_no_standby = true, Note, "do not wait for a standby"),
            (|it| it.connection.takes_writes = false, Problem, "set to read only"),
            (
                |it| (it.connection.takes_writes, it.connection.is_standby) = (false, true),
                Problem,
                "a standby: nothing can be locked",
            ),
            (|it| it.connection.two_tables = Some("two tables".into()), Problem, "two tables"),
            (|it| it.connection.table = LockTable::Missing, Note, "there is no table yet"),
            (|it| it.connection.table = LockTable::Strange("a int".into()), Problem, "tenure; it has a int"),
            (|it| it.persistence = Some("u".into()), Problem, "unlogged or temporary"),
            (|it| it.may_write = false, Problem, "may not read and write"),
            (|it| it.may_delete = false, Note, "may not delete"),
            (|it| it.connection.takes_places = false, Note, "not sorted by its bytes"),
            (|it| it.triggers = "meddler".into(), Warning, "triggers: meddler"),
            (|it| it.rules = "meddler".into(), Warning, "rules: meddler"),
            (|it| it.has_policies = true, Warning, "row level security is on"),
        ];
        for (change, severity, what) in cases {
            let mut database = healthy();
            change(&mut database);
            let [found] = &judged(&CHECKS, &database)[..] else { panic!("{what}") };
            assert!(found.severity == severity && found.what.contains(what), "{found:?}");
        }
    }
}

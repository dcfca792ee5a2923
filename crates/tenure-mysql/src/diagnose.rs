//! Findings about the server and the conditions that the locks need.

use std::{sync::Arc, time::Duration};

use tenure_cas::CellError;
use tenure_client::{
    Connections, Slots,
    doctor::{Check, Trial, clocks, failed_trial, finding, found, judged},
};
use tenure_core::{
    Backend, BackendError, Finding,
    Severity::{Note, Problem, Warning},
    Timing,
};

use crate::{
    error::{self, WORDS},
    schema::{LockTable, ServerFacts},
    session::{Session, Shared},
    sql,
};

/// What the server reports about itself.
struct DatabaseFacts {
    server: ServerFacts,
    one_writer: bool,
    /// The server's clock and the client's, at about the same moment.
    clocks: (Duration, Duration),
    /// The triggers that this user may see.
    triggers: String,
    /// The servers of the URL that take writes: name and identity.
    writers: Vec<(String, String)>,
    /// How far this server is behind as a replica, in s; `None` if it is not a replica, or does not report it.
    lag: Option<i64>,
    /// Transactions that have had rows locked for long, for people; empty without the right PROCESS.
    relying: String,
}

impl DatabaseFacts {
    async fn read(shared: &Shared, session: &Session) -> Result<Self, CellError> {
        let server = session.look().await?;
        let now = session.ask(sql::time()).await?.number(0, 2).unwrap_or(0);
        let ours = shared.host.now().wall;
        let (schema, table) = shared.config.table_parts();
        let triggers = session.ask(sql::triggers(schema, table)).await?;
        let triggers = (0..triggers.rows.len()).filter_map(|row| triggers.text(row, 0));
        // Few users have the right to this statement, and some servers do not support it.
        let replica = session.ask("SHOW SLAVE STATUS".into()).await.ok();
        let lag = replica.and_then(|answer| answer.named(0, "Seconds_Behind_Master"));
        Ok(Self {
            server,
            one_writer: shared.config.one_writer,
            clocks: (Duration::from_micros(now.unsigned_abs()), ours),
            triggers: triggers.collect::<Vec<_>>().join(", "),
            writers: Vec::new(),
            lag,
            relying: session.relying(LONG_OPEN).await,
        })
    }
}

/// Checks everything that a promise depends on, and tries the table. Leaves nothing behind, and makes no table. `over`
/// makes a handle whose requests all use this connection.
pub(crate) async fn examine<B: Backend>(
    shared: &Arc<Shared>,
    sessions: &Connections<Session>,
    over: impl FnOnce(Arc<Session>) -> B,
) -> Result<Vec<Finding>, BackendError> {
    let place = shared.config.place_name();
    let facts = match DatabaseFacts::read(shared, &*sessions.get().await?).await {
        // Once more on a new connection.
        Err(CellError::Broken(_)) => DatabaseFacts::read(shared, &*sessions.get().await?).await,
        answer => answer,
    };
    let facts = facts.map_err(|failure| WORDS.settled(&place, failure))?;
    let facts = DatabaseFacts { writers: shared.writers().await, ..facts };
    let kind = if facts.is_mariadb() { "MariaDB" } else { "MySQL" };
    let what = format!("{kind} {} at {place}", facts.server.setting("version"));
    let mut findings = vec![finding(Note, what, "nothing to do")];
    findings.extend(judged(&CHECKS, &facts));
    // Other engines roll nothing back.
    let is_ours = matches!(&facts.server.table, LockTable::Ours(engine) if engine == "innodb");
    let is_usable = facts.server.must_be_ours(&place, facts.one_writer).is_ok();
    if is_ours && is_usable && facts.server.read_only().is_none() {
        findings.extend(tried(shared, over).await);
    }
    findings.extend(clocks(facts.clocks.0, facts.clocks.1));
    let polls = "waiters poll up to 40 times a second for a release by another process";
    findings.push(finding(Note, format!("MySQL pushes nothing: {polls}"), "nothing to do"));
    Ok(findings)
}

impl DatabaseFacts {
    fn is_mariadb(&self) -> bool {
        self.server.setting("version").contains("mariadb")
    }
}

/// A transaction that relies on an owner ends sooner.
const LONG_OPEN: Duration = Duration::from_secs(30);

/// Whether grants survive a crash; which other servers take writes; the table, and additions to it.
const CHECKS: [Check<DatabaseFacts>; 15] = [
    Check::new("autocommit", |it| {
        found(!it.server.is_enabled("autocommit"), Problem, error::NO_AUTOCOMMIT, "SET GLOBAL autocommit = 1")
    }),
    Check::new("writers", |it| {
        let cluster = it.server.many_writers()?;
        let what = format!("the server is one of {cluster}: clocks of several servers would judge one lease");
        let (severity, remedy) = if it.one_writer {
            (Note, "one_writer=yes is set: all clients of these locks must write to the same server")
        } else {
            (Problem, "let all clients write to one server, and set one_writer=yes")
        };
        Some(finding(severity, what, remedy))
    }),
    Check::new("servers", |it| {
        let other = it.writers.iter().find(|(_, identity)| *identity != it.writers[0].1)?;
        let what =
            format!("{} and {} are two servers, and both take writes: each grants", it.writers[0].0, other.0);
        Some(finding(Problem, what, "set read_only = 1 on all but the primary, or name one server"))
    }),
    Check::new("writes", |it| {
        let what = format!("{} is on: nothing can be locked", it.server.read_only()?);
        let what = match it.lag {
            Some(lag) => format!("{what}; the server is a replica, {lag} s behind"),
            None => what,
        };
        Some(finding(Problem, what, "name the primary"))
    }),
    Check::new("replica", |it| {
        let lag = it.lag.filter(|_| it.server.read_only().is_none())?;
        let what = format!("the server is a replica, {lag} s behind, and takes writes of its own");
        Some(finding(Warning, what, "name the primary, or set read_only = 1 here"))
    }),
    Check::new("innodb_flush_log_at_trx_commit", |it| {
        let value = it.server.setting("innodb_flush_log_at_trx_commit");
        let what = format!(
            "innodb_flush_log_at_trx_commit is {value}: a crash of the machine forgets locks that were granted in \
             its last second"
        );
        found(matches!(&*value, "0" | "2"), Problem, what, "set innodb_flush_log_at_trx_commit = 1")
    }),
    Check::new("innodb_doublewrite", |it| {
        let what = "innodb_doublewrite is off: a crash of the machine may tear pages of the table, and with \
                    them locks";
        let is_off = matches!(&*it.server.setting("innodb_doublewrite"), "off" | "0");
        found(is_off, Warning, what, "set innodb_doublewrite = 1")
    }),
    Check::new("binlog_format", |it| {
        let is_bad = it.server.is_enabled("log_bin") && it.server.setting("binlog_format") == "statement";
        let what = "binlog_format is STATEMENT: a replica computes each write again, and may come to another \
                    table";
        found(is_bad, Warning, what, "set binlog_format = ROW or MIXED")
    }),
    Check::new("replicas", |it| {
        let waits = it.server.is_enabled("rpl_semi_sync_master_enabled")
            || it.server.is_enabled("rpl_semi_sync_source_enabled");
        let what = "commits do not wait for a replica: a fail-over may forget the last locks, and only the \
                    token protects then";
        let remedy = "where there is a replica to fail over to, use semi-synchronous replication, if that is \
                      worth its time";
        found(it.server.is_enabled("log_bin") && !waits, Note, what, remedy)
    }),
    Check::new("table", |it| {
        let remedy = "the first claim makes it; where the user may not, use the lines of the README of \
                      tenure-mysql";
        found(it.server.table == LockTable::Missing, Note, "there is no table yet", remedy)
    }),
    Check::new("columns", |it| {
        let LockTable::Strange(columns) = &it.server.table else { return None };
        let what = format!("the table is not one of tenure; it has {columns}");
        Some(finding(Problem, what, "name another one with table="))
    }),
    Check::new("engine", |it| {
        let LockTable::Ours(engine) = &it.server.table else { return None };
        let what =
            format!("the engine of the table is {engine}: a crash may empty it, and two may hold then");
        found(engine != "innodb", Problem, what, "ALTER TABLE … ENGINE = InnoDB")
    }),
    Check::new("right to delete", |it| {
        let what = "the user may not delete: rows of unused locks stay, and all who wait for a \
                    lock have their places in its row: from some hundred processes on they keep its holder from it";
        found(!it.server.may_delete, Note, what, "GRANT DELETE on the table, too")
    }),
    Check::new("open transactions", |it| {
        let what = format!(
            "a transaction has had rows locked for long; if they are of the table, it may keep a lock from its next owner: {}",
            it.relying
        );
        found(!it.relying.is_empty(), Note, what, "commit it, roll it back, or end its session")
    }),
    Check::new("triggers", |it| {
        let what = format!("the table has triggers: {}. One that changes rows can undo a lock", it.triggers);
        found(!it.triggers.is_empty(), Warning, what, "drop them, unless they only read")
    }),
];

/// Tries a lock in a transaction that is rolled back: no other client sees it, and nothing of it stays,
/// whatever rights the user has.
async fn tried<B: Backend>(shared: &Arc<Shared>, over: impl FnOnce(Arc<Session>) -> B) -> Option<Finding> {
    let error = try_apart(shared, over).await.err()?;
    Some(failed_trial(&error, "look at the rights, triggers, columns and checks of the table"))
}

async fn try_apart<B: Backend>(
    shared: &Arc<Shared>,
    over: impl FnOnce(Arc<Session>) -> B,
) -> Result<(), BackendError> {
    let session = Arc::new(shared.clone().open(Slots::new(shared.host.clone())).await?);
    let begun = session.begin_trial().await;
    let trial = async {
        begun.map_err(|failure| WORDS.settled(session.name(), failure))?;
        let backend = over(session.clone());
        Trial::new(&*shared.host, Timing::DEFAULT_TTL).run(&backend).await.map_err(|tried| tried.error)
    };
    let tried = trial.await;
    // OK to ignore because a connection that has ended has rolled back too.
    let _ = session.ask("ROLLBACK".into()).await;
    session.leave();
    tried
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(settings: &[(&str, &str)], engine: &str) -> DatabaseFacts {
        let table = LockTable::Ours(engine.into());
        let server = ServerFacts::of(table, settings);
        let clocks = (Duration::ZERO, Duration::ZERO);
        DatabaseFacts {
            server,
            one_writer: false,
            clocks,
            triggers: String::new(),
            writers: Vec::new(),
            lag: None,
            relying: String::new(),
        }
    }

    const HEALTHY: &[(&str, &str)] = &[("autocommit", "ON"), ("innodb_flush_log_at_trx_commit", "1")];

    #[test]
    fn each_fact_that_is_wrong_is_one_finding() {
        assert_eq!(judged(&CHECKS, &facts(HEALTHY, "innodb")), []);
        let with = |more: &[(&str, &str)]| facts(&[HEALTHY, more].concat(), "innodb");
        let mut without_delete = with(&[]);
        without_delete.server.may_delete = false;
        let cases = [
            (with(&[("autocommit", "OFF")]), Problem, "autocommit is off"),
            (with(&[("wsrep_on", "ON")]), Problem, "one of a Galera cluster"),
            (
                with(&[
                    ("group_replication_group_name", "a"),
                    ("group_replication_single_primary_mode", "OFF"),
                ]),
                Problem,
                "a group with several primaries",
            ),
            (DatabaseFacts { one_writer: true, ..with(&[("wsrep_on", "ON")]) }, Note, "Galera"),
            (
                DatabaseFacts {
                    writers: [("a:1", "x"), ("b:1", "x"), ("c:1", "y")]
                        .map(|(a, b)| (a.into(), b.into()))
                        .into(),
                    ..with(&[])
                },
                Problem,
                "a:1 and c:1 are two servers",
            ),
            (with(&[("read_only", "ON")]), Problem, "read_only is on: nothing can be locked"),
            (DatabaseFacts { lag: Some(7), ..with(&[("read_only", "1")]) }, Problem, "a replica, 7 s behind"),
            (DatabaseFacts { lag: Some(7), ..with(&[]) }, Warning, "takes writes of its own"),
            (with(&[("innodb_flush_log_at_trx_commit", "2")]), Problem, "_commit is 2"),
            (with(&[("innodb_doublewrite", "OFF")]), Warning, "doublewrite is off"),
            (
                with(&[
                    ("log_bin", "ON"),
                    ("binlog_format", "STATEMENT"),
                    ("rpl_semi_sync_master_enabled", "ON"),
                ]),
                Warning,
                "computes each write again",
            ),
            (with(&[("log_bin", "ON")]), Note, "do not wait for a replica"),
            (facts(HEALTHY, "myisam"), Problem, "is myisam"),
            (without_delete, Note, "may not delete"),
            (DatabaseFacts { relying: "session 7".into(), ..with(&[]) }, Note, "next owner: session 7"),
            (DatabaseFacts { triggers: "meddler".into(), ..with(&[]) }, Warning, "triggers: meddler"),
        ];
        for (facts, severity, what) in cases {
            let [found] = &judged(&CHECKS, &facts)[..] else { panic!("{what}") };
            assert!(found.severity == severity && found.what.contains(what), "{found:?}");
        }
    }
}

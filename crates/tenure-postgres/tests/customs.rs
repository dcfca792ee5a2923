//! What others do to the table: columns, types, triggers, rules, policies. What is used must be there; the rest is theirs; and what the
//! table does not take is never granted.

use tenure_core::{ErrorKind, Finding, Outcome, Released, Renewal, Severity};
use tenure_testkit::{
    conformance::player::Player,
    postgres::{PostgresServer, Recipe, make_table},
    proxy::Proxy,
};

use crate::stage::{self, chain, player, postgres, soon};

/// What an operator may have done to the table without a thought for us.
const CHANGES: &[&str] = &[
    "ALTER TABLE tenure_lock ADD COLUMN note text",
    "ALTER TABLE tenure_lock ADD COLUMN seen timestamptz NOT NULL DEFAULT now()",
    "ALTER TABLE tenure_lock ALTER COLUMN state TYPE varchar",
    "ALTER TABLE tenure_lock ALTER COLUMN name TYPE varchar",
    "ALTER TABLE tenure_lock ALTER COLUMN name TYPE varchar(600)",
    "ALTER TABLE tenure_lock ADD COLUMN size int GENERATED ALWAYS AS (length(state)) STORED",
    "ALTER TABLE tenure_lock ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY",
    "CREATE TABLE other (note text, state varchar, used timestamptz(3), busy boolean, version bigint, name text UNIQUE); \
     INSERT INTO other (state, used, busy, version, name) SELECT state, used, busy, version, name FROM tenure_lock; \
     DROP TABLE tenure_lock; ALTER TABLE other RENAME TO tenure_lock; ALTER TABLE tenure_lock OWNER TO tenure",
];

/// L6: a column was added, or `text` became `varchar`, and the table was taken for a stranger's: every new client ended with an error,
/// and a holder whose connection was cut could not renew its lease any more.
#[tokio::test]
async fn a_table_that_has_what_is_used_is_ours_whatever_else_it_has() {
    for change in CHANGES {
        let server = PostgresServer::start();
        let proxy = Proxy::to(server.port(), 7);
        let url = format!("postgres://tenure@127.0.0.1:{}/tenure", proxy.port());
        let backend = postgres(&url);
        let players = ["one", "two"].map(|name| Player::new(backend.clone(), name));
        let grants = [players[0].enter().await, players[1].enter().await];
        server.psql(change);
        proxy.cut();
        proxy.heal();
        // One alone, then several with one statement.
        assert_eq!(soon(players[0].renew(&grants[0])).await, Renewal::Renewed, "{change}");
        for answer in soon(backend.renew(&grants)).await {
            assert_eq!(answer.unwrap(), Renewal::Renewed, "{change}");
        }
        let stranger = player(&server.url(""), "one");
        stranger.queue_behind(0).await;
        assert_eq!(players[0].leave().await, Released::Released, "{change}");
        assert!(stage::enter_in_time(&stranger).await.token > grants[0].token, "{change}");
        player(&server.url(""), "new").enter().await;
        assert_eq!(backend.list("").await.unwrap().len(), 3, "{change}");
        let findings = backend.diagnose().await.unwrap();
        let is_doubt = |f: &Finding| f.what.contains("not one of tenure") || f.what.contains("was tried");
        assert!(!findings.iter().any(is_doubt), "{change}: {findings:?}");
    }
}

/// L6: the same where new locks cannot be had any more. What is held is held, renewed and released.
#[tokio::test]
async fn a_lease_outlives_a_change_of_the_table_that_lets_nobody_in() {
    for change in [
        "ALTER TABLE tenure_lock DROP CONSTRAINT tenure_lock_pkey",
        "ALTER TABLE tenure_lock ALTER COLUMN name TYPE varchar(100)",
        "ALTER TABLE tenure_lock ADD COLUMN price int; UPDATE tenure_lock SET price = 1; \
         ALTER TABLE tenure_lock ALTER COLUMN price SET NOT NULL",
    ] {
        let server = PostgresServer::start();
        let proxy = Proxy::to(server.port(), 7);
        let a = player(&format!("postgres://tenure@127.0.0.1:{}/tenure", proxy.port()), "one");
        let grant = a.enter().await;
        server.psql(change);
        proxy.cut();
        proxy.heal();
        assert_eq!(soon(a.renew(&grant)).await, Renewal::Renewed, "{change}");
        let newcomer = player(&server.url(""), "new");
        let error = newcomer.backend.claim(&newcomer.claim).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied), "{change}");
        let findings = a.backend.diagnose().await.unwrap();
        assert!(findings.iter().any(|f| f.severity == Severity::Problem), "{change}: {findings:?}");
        assert_eq!(a.leave().await, Released::Released, "{change}");
    }
}

/// A trigger that does this before each write.
fn trigger(server: &PostgresServer, when: &str, what: &str) {
    server.psql(&format!(
        "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what} END $$; \
         CREATE TRIGGER meddler {when} ON tenure_lock FOR EACH ROW EXECUTE FUNCTION meddle()"
    ));
}

fn found<'a>(findings: &'a [Finding], part: &str) -> &'a Finding {
    let finding = findings.iter().find(|finding| finding.what.contains(part));
    finding.unwrap_or_else(|| panic!("{part}: {findings:?}"))
}

/// L1: a trigger put back what a claim had written, the server said that a row was written, and everybody was granted the same lock:
/// nobody looked at what the row had become.
#[tokio::test]
async fn what_a_trigger_puts_back_is_no_grant() {
    for (when, what) in [
        ("BEFORE UPDATE", "NEW.state := OLD.state; RETURN NEW;"),
        ("BEFORE UPDATE", "NEW.version := OLD.version + 7; RETURN NEW;"),
        ("BEFORE INSERT", "NEW.state := '{\"fence\":1,\"holders\":[],\"queue\":[]}'; RETURN NEW;"),
    ] {
        let server = PostgresServer::start();
        let a = player(&server.url(""), "one");
        a.enter().await;
        a.leave().await;
        trigger(&server, when, what);
        let name = if when.ends_with("INSERT") { "new" } else { "one" };
        for _ in 0..2 {
            let b = player(&server.url(""), name);
            let error = soon(b.backend.claim(&b.claim)).await.unwrap_err();
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::Unknown), "{what}");
            assert!(error.to_string().contains("a trigger"), "{}", chain(&error));
            if name == "new" {
                server.psql("DELETE FROM tenure_lock WHERE name = 'new'");
            }
        }
        let findings = a.backend.diagnose().await.unwrap();
        assert_eq!(found(&findings, "triggers: meddler").severity, Severity::Warning);
        assert_eq!(found(&findings, "not what was written").severity, Severity::Problem);
    }
}

/// A trigger deleted each row that was made: a claim made it 64 times, and was told to try again.
#[tokio::test]
async fn a_table_that_deletes_free_rows_is_told_of() {
    let server = PostgresServer::start();
    player(&server.url(""), "one").enter().await;
    trigger(&server, "AFTER INSERT", "DELETE FROM tenure_lock WHERE name = NEW.name; RETURN NULL;");
    let b = player(&server.url(""), "new");
    let error = soon(b.backend.claim(&b.claim)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::Corrupt, Outcome::NotApplied),
        "{}",
        chain(&error)
    );
    assert!(error.to_string().contains("no effect"), "{}", chain(&error));
}

/// L1, L5: several renewals in one statement, all of which a trigger put back, were answered with yes.
#[tokio::test]
async fn what_a_trigger_puts_back_is_no_renewal() {
    let server = PostgresServer::start();
    let backend = postgres(&server.url(""));
    let players = ["one", "two"].map(|name| Player::new(backend.clone(), name));
    let grants = [players[0].enter().await, players[1].enter().await];
    trigger(&server, "BEFORE UPDATE", "NEW.state := OLD.state; RETURN NEW;");
    for some in [&grants[..1], &grants[..]] {
        for answer in soon(backend.renew(some)).await {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}

/// A write that a trigger, a rule or a policy swallowed was taken for a lost race, and tried 64 times; the answer spoke of others who
/// were faster. It never let anybody in.
#[tokio::test]
async fn what_is_swallowed_is_no_grant_and_is_told() {
    let swallow = "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; \
                   CREATE TRIGGER meddler BEFORE UPDATE ON tenure_lock FOR EACH ROW EXECUTE FUNCTION meddle()";
    let rule = "CREATE RULE meddler AS ON UPDATE TO tenure_lock DO INSTEAD NOTHING";
    let policy = "ALTER TABLE tenure_lock ENABLE ROW LEVEL SECURITY; ALTER TABLE tenure_lock FORCE ROW LEVEL SECURITY; \
                  CREATE POLICY see ON tenure_lock FOR SELECT USING (true)";
    for (change, words, doctor) in [
        (swallow, "discards writes", "triggers: meddler"),
        (rule, "refuses the statement", "rules: meddler"),
        (policy, "discards writes", "row level security is on"),
    ] {
        let server = PostgresServer::start();
        // What the template has counts as the system's, which no policy hides.
        server.psql("DROP TABLE tenure_lock");
        make_table(&server.address(), "tenure_lock");
        let a = player(&server.url(""), "one");
        a.enter().await;
        a.leave().await;
        server.psql(change);
        let b = player(&server.url(""), "one");
        let error = soon(b.backend.claim(&b.claim)).await.expect_err(change);
        assert_eq!(error.outcome(), Outcome::NotApplied, "{change}: {error:?}");
        assert!(error.to_string().contains(words), "{change}: {}", chain(&error));
        let findings = b.backend.diagnose().await.unwrap();
        assert_eq!(found(&findings, doctor).severity, Severity::Warning, "{change}");
        assert_eq!(
            found(&findings, "a trial lock was not").severity,
            Severity::Problem,
            "{change}: {findings:?}"
        );
    }
}

/// What changes the row behind the write is seen by nobody but who looks again, as the doctor does.
#[tokio::test]
async fn a_trigger_that_undoes_a_lock_afterwards_is_found() {
    let server = PostgresServer::start();
    let a = player(&server.url(""), "one");
    a.enter().await;
    let undo = "IF pg_trigger_depth() < 2 THEN UPDATE tenure_lock SET state = OLD.state WHERE name = NEW.name; END IF; \
                RETURN NULL;";
    trigger(&server, "AFTER UPDATE", undo);
    let findings = a.backend.diagnose().await.unwrap();
    assert_eq!(found(&findings, "not what was written").severity, Severity::Problem);
}

/// The doctor takes a lock of its own, also with the least rights, and leaves nothing behind; on a table that only others look at it
/// finds nothing wrong.
#[tokio::test]
async fn the_doctor_leaves_nothing_behind() {
    let server = Recipe::new().durable().start();
    let a = player(&server.url(""), "one");
    a.enter().await;
    server.psql("CREATE TABLE audit (name text); GRANT INSERT ON audit TO tenure");
    server.psql(
        "ALTER TABLE tenure_lock OWNER TO postgres; GRANT SELECT, INSERT, UPDATE ON tenure_lock TO tenure",
    );
    let rows = server.psql("SELECT * FROM tenure_lock");
    let findings = a.backend.diagnose().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity == Severity::Note), "{findings:?}");
    trigger(&server, "AFTER INSERT OR UPDATE", "INSERT INTO audit VALUES (NEW.name); RETURN NULL;");
    let findings = a.backend.diagnose().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity < Severity::Problem), "{findings:?}");
    assert_eq!(server.psql("SELECT * FROM tenure_lock"), rows);
    assert_eq!(server.psql("SELECT count(*) FROM audit"), "0");
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'";
    stage::until("its connection is closed", async || server.psql(ours) == "1").await;
}

/// `full_page_writes = off` was not seen: a crash tears pages of the table.
#[tokio::test]
async fn pages_that_may_be_torn_are_found() {
    let server = Recipe::new().durable().config("full_page_writes = off").start();
    let findings = postgres(&server.url("")).diagnose().await.unwrap();
    assert_eq!(found(&findings, "full_page_writes is off").severity, Severity::Problem);
}

/// L2: a trigger that sets the counter of tokens back behind each write.
#[tokio::test]
async fn a_trigger_that_sets_tokens_back_is_found() {
    let server = PostgresServer::start();
    let a = player(&server.url(""), "one");
    a.enter().await;
    a.leave().await;
    let undo = "IF pg_trigger_depth() < 2 THEN UPDATE tenure_lock SET state = \
                regexp_replace(NEW.state, '\"fence\":[0-9]+', '\"fence\":1') WHERE name = NEW.name; END IF; RETURN NULL;";
    trigger(&server, "AFTER UPDATE", undo);
    let findings = a.backend.diagnose().await.unwrap();
    let what = "a lock was tried, and the row is not what was written to it";
    assert_eq!(found(&findings, what).severity, Severity::Problem);
}

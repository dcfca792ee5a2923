//! What other clients leave in a session that a pooler leads us to: each statement says what it relies on, or the server refuses.

use tenure_core::{ErrorKind, Outcome, Released, Renewal, Severity};
use tenure_testkit::{
    conformance::player::Player,
    postgres::{Pgbouncer, PostgresServer},
};
use tokio_postgres::{Client, NoTls};

use crate::stage::{self, player, postgres, soon};

/// What becomes of a lock in such a session.
#[derive(Clone, Copy)]
enum Fate {
    Served,
    /// For handles that know the schema. A new one cannot tell which table is meant.
    ServedIfKnown,
    Refused(ErrorKind, &'static str),
}

use Fate::{Refused, Served, ServedIfKnown};

/// What a client may leave there, and what becomes of locks.
const LEFT: &[(&str, Fate)] = &[
    ("SET search_path = elsewhere", ServedIfKnown),
    ("SET search_path = ''", ServedIfKnown),
    ("SET search_path = nowhere, public, elsewhere", Served),
    ("CREATE TEMP TABLE tenure_lock AS TABLE public.tenure_lock", Served),
    ("SET search_path = pg_temp; CREATE TABLE tenure_lock AS TABLE public.tenure_lock", ServedIfKnown),
    ("SET synchronous_commit = off", Served),
    ("SET client_min_messages = error", Served),
    ("SET lock_timeout = '1ms'", Served),
    ("SET idle_in_transaction_session_timeout = 1", Served),
    ("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE", Served),
    ("SET default_transaction_isolation = 'repeatable read'", Served),
    ("SET timezone = 'Asia/Tokyo'; SET datestyle = 'SQL, DMY'; SET intervalstyle = sql_standard", Served),
    (
        "SET bytea_output = escape; SET extra_float_digits = -15; SET standard_conforming_strings = off",
        Served,
    ),
    ("SET client_encoding = LATIN1", Served),
    ("SET row_security = off; SET jit = on; SET jit_above_cost = 0; SET enable_indexscan = off", Served),
    (
        "SET enable_seqscan = off; SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan",
        Served,
    ),
    ("LISTEN tenure_x; UNLISTEN *", Served),
    (
        "SET default_transaction_read_only = on",
        Refused(ErrorKind::Unavailable, "default_transaction_read_only is on"),
    ),
    ("SET ROLE guest", Refused(ErrorKind::Denied, "lacks a permission")),
];

/// A pooler that leads all over one connection, and another client of it.
async fn pooled(server: &PostgresServer) -> (Pgbouncer, Client) {
    let pooler = Pgbouncer::before(server);
    pooler.show("SET default_pool_size = 1");
    let (client, connection) = tokio_postgres::connect(&pooler.url(""), NoTls).await.unwrap();
    tokio::spawn(connection);
    (pooler, client)
}

/// L1: another client had left `SET search_path` behind: a second table was made there, and two held one lock. What writes rely
/// on is heard by a trigger: with `synchronous_commit = off` a crash forgot what was granted.
#[tokio::test]
async fn what_another_client_leaves_in_a_session_changes_no_lock() {
    let server = PostgresServer::start();
    player(&server.url(""), "warm").enter().await;
    server.psql(
        "CREATE SCHEMA elsewhere; GRANT ALL ON SCHEMA elsewhere TO tenure; CREATE ROLE guest; GRANT guest TO tenure; \
         CREATE UNLOGGED TABLE heard (said text); GRANT ALL ON heard TO PUBLIC; \
         CREATE FUNCTION hear() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.heard VALUES \
         (current_setting('synchronous_commit') || ' ' || current_setting('client_min_messages')); RETURN NULL; END $$; \
         CREATE TRIGGER hears AFTER UPDATE ON tenure_lock FOR EACH ROW EXECUTE FUNCTION hear()",
    );
    let (pooler, other) = pooled(&server).await;
    let url = pooler.url("?listen=off");
    let (known, second) = (postgres(&url), Player::new(postgres(&url), "two"));
    for (number, (left, fate)) in LEFT.iter().enumerate() {
        other.batch_execute("DISCARD ALL").await.unwrap();
        let holder = Player::new(known.clone(), &format!("lock \u{fc} {number}"));
        let grant = stage::enter_in_time(&holder).await;
        stage::enter_in_time(&second).await;
        other.batch_execute(left).await.unwrap();
        // One that connects only now, and finds the session so.
        let stranger = player(&url, holder.claim.name.as_str());
        let stranger = match *fate {
            ServedIfKnown => {
                let error = soon(stranger.backend.claim(&stranger.claim)).await.unwrap_err();
                assert_eq!(
                    (error.kind(), error.outcome()),
                    (ErrorKind::Invalid, Outcome::NotApplied),
                    "{left}: {error:?}"
                );
                assert!(error.to_string().contains("is not the role's"), "{left}: {error}");
                Player::new(known.clone(), holder.claim.name.as_str())
            }
            _ => stranger,
        };
        match *fate {
            Served | ServedIfKnown => {
                assert!(!stranger.try_enter().await, "{left}: it is held");
                assert_eq!(soon(holder.renew(&grant)).await, Renewal::Renewed, "{left}");
                assert_eq!(soon(second.leave()).await, Released::Released, "{left}");
                assert_eq!(soon(holder.leave()).await, Released::Released, "{left}");
                let next = stage::enter_in_time(&stranger).await;
                assert!(next.token > grant.token, "{left}");
                assert_eq!(soon(stranger.leave()).await, Released::Released, "{left}");
            }
            Refused(kind, part) => {
                for player in [&stranger, &Player::new(known.clone(), "new")] {
                    let error = soon(player.backend.claim(&player.claim)).await.unwrap_err();
                    assert_eq!(
                        (error.kind(), error.outcome()),
                        (kind, Outcome::NotApplied),
                        "{left}: {error:?}"
                    );
                    assert!(error.to_string().contains(part), "{left}: {error:?}");
                }
                other.batch_execute("DISCARD ALL").await.unwrap();
                assert_eq!(soon(holder.leave()).await, Released::Released, "{left}");
                assert_eq!(soon(second.leave()).await, Released::Released, "{left}");
            }
        }
    }
    let tables = "SELECT count(*) FROM pg_class WHERE relname = 'tenure_lock' AND relpersistence <> 't'";
    assert_eq!(server.psql(tables), "1");
    assert_eq!(server.psql("SELECT DISTINCT said FROM heard"), "on notice");
}

/// L1: the `search_path` that a pooler had set was treated as a leftover of another client. A second table was created
/// along the path of the role, and two held one lock.
#[tokio::test]
async fn two_paths_that_lead_to_two_tables_are_refused() {
    let server = PostgresServer::start();
    server.psql(
        "CREATE SCHEMA locks; GRANT ALL ON SCHEMA locks TO tenure; ALTER TABLE tenure_lock SET SCHEMA locks; \
         CREATE SCHEMA early; GRANT ALL ON SCHEMA early TO tenure",
    );
    let direct = player(&server.url("?table=locks.tenure_lock"), "one");
    direct.enter().await;
    let (pooler, other) = pooled(&server).await;
    let url = pooler.url("?listen=off");
    let tables = "SELECT relnamespace::regnamespace FROM pg_class WHERE relname = 'tenure_lock' ORDER BY 1";
    let refused = async |path: &str, role: &str| {
        let stranger = player(&url, "one");
        let (name, owner) = (&stranger.claim.name, stranger.claim.owner);
        let claimed = soon(stranger.backend.claim(&stranger.claim)).await.map(drop);
        let released = soon(stranger.backend.release(name, owner)).await.map(drop);
        let listed = soon(stranger.backend.list("")).await.map(drop);
        let words = format!(
            "this session's search_path ({path}) is not the role's ({role}), and they lead to different tables: name \
             the schema with table=SCHEMA.tenure_lock"
        );
        for answer in [claimed, released, listed] {
            let error = answer.unwrap_err();
            assert_eq!(
                (error.kind(), error.outcome()),
                (ErrorKind::Invalid, Outcome::NotApplied),
                "{error:?}"
            );
            assert!(error.to_string().contains(&words), "{error}");
        }
        let findings = soon(stranger.backend.diagnose()).await.unwrap();
        let told = findings.iter().any(|it| it.severity == Severity::Problem && it.what == words);
        assert!(told, "{findings:?}");
    };
    let default = "\"$user\", public";
    // Only one path leads to a table.
    other.batch_execute("SET search_path = locks").await.unwrap();
    refused("locks", default).await;
    assert_eq!(server.psql(tables), "locks", "no table was made");
    // The other way round.
    other.batch_execute("SET search_path = early").await.unwrap();
    server.psql("ALTER TABLE locks.tenure_lock SET SCHEMA public");
    refused("early", default).await;
    // Each finds another one.
    server.psql("CREATE TABLE early.tenure_lock (LIKE public.tenure_lock INCLUDING ALL)");
    refused("early", default).await;
    // Each path would create another table.
    server.psql("DROP TABLE early.tenure_lock; ALTER TABLE public.tenure_lock RENAME TO away");
    refused("early", default).await;
    assert_eq!(server.psql(tables), "");
    server.psql(
        "ALTER TABLE public.away RENAME TO tenure_lock; ALTER TABLE public.tenure_lock SET SCHEMA locks",
    );
    // Both paths lead to one table, or it is named.
    other.batch_execute("SET search_path = locks").await.unwrap();
    assert!(!player(&pooler.url("?listen=off&table=locks.tenure_lock"), "one").try_enter().await);
    server.psql("ALTER TABLE locks.tenure_lock SET SCHEMA public");
    other.batch_execute("SET search_path = locks, public").await.unwrap();
    assert!(!player(&url, "one").try_enter().await);
}

/// The first claim creates the table where the login of the role would, and with that owner, even if another client has
/// left `SET ROLE`. Otherwise the login had no right to it.
#[tokio::test]
async fn a_table_is_made_where_the_login_of_the_role_says() {
    let server = PostgresServer::start();
    server.psql("DROP TABLE tenure_lock");
    server.psql("CREATE SCHEMA elsewhere; GRANT ALL ON SCHEMA elsewhere TO tenure; CREATE SCHEMA home; GRANT ALL ON SCHEMA home TO tenure");
    server.psql("ALTER ROLE tenure SET search_path = nowhere, home, public");
    let (pooler, other) = pooled(&server).await;
    // It may make tables there.
    server.psql("CREATE ROLE guest; GRANT guest TO tenure; GRANT ALL ON SCHEMA home TO guest");
    other.batch_execute("SET ROLE guest; SET default_tablespace = ''").await.unwrap();
    let maker = player(&pooler.url("?listen=off"), "one");
    let error = soon(maker.backend.claim(&maker.claim)).await.unwrap_err();
    assert!(error.to_string().contains("lacks a permission"), "{error}");
    other.batch_execute("RESET ROLE").await.unwrap();
    let error = soon(maker.backend.claim(&maker.claim)).await.unwrap_err();
    assert!(error.to_string().contains("has made the table"), "{error}");
    let made = "SELECT relnamespace::regnamespace, relowner::regrole, reltablespace FROM pg_class WHERE relname = 'tenure_lock'";
    assert_eq!(server.psql(made), "home|tenure|0");
}

//! What is refused: clearly, with the right kind, touching nothing, and without a secret.

use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::{BackendError, BreakScope, ErrorKind, LockName, Outcome, Released, Renewal, Severity};
use tenure_testkit::{
    clock::Clock,
    conformance::player::Player,
    patience::slowness,
    ports,
    postgres::{PostgresServer, Recipe},
    proxy::Proxy,
    redis::Certificates,
    tables,
};

use crate::stage::{self, chain, enter_in_time, player, postgres, soon};

/// Every verb that writes, and those that read, fail alike.
async fn refused(url: &str) -> BackendError {
    let a = player(url, "one");
    let error = soon(a.backend.claim(&a.claim)).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotApplied, "{error:?}");
    assert!(!chain(&error).contains("secret"), "{}", chain(&error));
    let text = error.to_string();
    assert!(!text.contains('\n') && text.chars().next().unwrap().is_lowercase(), "{text}");
    error
}

async fn refused_as(url: &str, kind: ErrorKind, part: &str) {
    let mut error = refused(url).await;
    // A busy machine may not answer in time. Then once more.
    for _ in 0..10 {
        if kind == ErrorKind::Unavailable || error.kind() != ErrorKind::Unavailable {
            break;
        }
        error = refused(url).await;
    }
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(part), "{error:?}");
}

#[tokio::test]
async fn who_may_not_come_in_is_told_so() {
    let server = Recipe::new().passwords().start();
    server.psql("ALTER ROLE tenure PASSWORD 'right'");
    let at = server.address();
    let denied = ErrorKind::Denied;
    let url = |login: &str, database: &str| format!("postgres://{login}@{at}/{database}");
    refused_as(&url("tenure:secret", "tenure"), denied, "refuses this user or password").await;
    refused_as(&url("nobody:secret", "tenure"), denied, "refuses this user or password").await;
    refused_as(&url("tenure", "tenure"), denied, "wants a password").await;
    refused_as(&url("tenure:right", "nowhere"), ErrorKind::Invalid, "no database of this name").await;
    let lines = "REVOKE CONNECT ON DATABASE tenure FROM PUBLIC; CREATE ROLE guest LOGIN PASSWORD 'secret'";
    server.psql(lines);
    refused_as(&url("guest:secret", "tenure"), denied, "lacks a permission").await;
    player(&url("tenure:right", "tenure"), "one").enter().await;
}

#[tokio::test]
async fn without_a_server_nothing_is_reached() {
    let port = ports::free(false);
    let url = format!("postgres://tenure:secret@127.0.0.1:{port}/tenure?connect_timeout=1");
    refused_as(&url, ErrorKind::Unavailable, "cannot reach").await;
    let server = PostgresServer::start();
    server.stop();
    refused_as(&server.url("?connect_timeout=200ms"), ErrorKind::Unavailable, "does not answer").await;
    server.resume();
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_told_from_one_that_does() {
    let server = PostgresServer::start();
    server.psql("DROP TABLE tenure_lock; ALTER ROLE tenure SET default_transaction_read_only = on");
    refused_as(&server.url(""), ErrorKind::Unavailable, "default_transaction_read_only is on").await;
    assert_eq!(server.psql("SELECT to_regclass('tenure_lock') IS NULL"), "t", "no table was made");
    let findings = postgres(&server.url("")).diagnose().await.unwrap();
    assert!(findings.iter().any(|f| f.severity == Severity::Problem && f.what.contains("read only")));
    // Of several servers the first that takes writes is taken.
    let good = PostgresServer::start();
    let url = format!("postgres://tenure@{},{}/tenure", server.address(), good.address());
    player(&url, "one").enter().await;
    assert_eq!(good.psql("SELECT count(*) FROM tenure_lock"), "1");
}

/// A standby is refused until it is promoted, also over a connection that was open before; tokens go on there.
#[tokio::test]
async fn a_standby_takes_over() {
    let primary = PostgresServer::start();
    let mut a = player(&primary.url(""), "one");
    // Nobody renews it while the standby is made.
    a.claim.ttl = Duration::from_secs(300);
    let before = a.enter().await;
    let standby = Recipe::new().standby_of(&primary).start();
    refused_as(&standby.url(""), ErrorKind::Unavailable, "is a standby and takes no writes").await;
    let b = player(&standby.url("?target_session_attrs=any"), "one");
    assert_eq!(b.backend.claim(&b.claim).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let findings = b.backend.diagnose().await.unwrap();
    assert!(
        findings.iter().any(|f| f.severity == Severity::Problem && f.what.contains("a standby")),
        "{findings:?}"
    );
    // It is known of a standby only once that asks for what it has not copied.
    stage::until("the primary says that it does not wait for it", async || {
        let findings = a.backend.diagnose().await.unwrap();
        findings.iter().any(|f| f.what.contains("do not wait for a standby"))
    })
    .await;
    // Among several, the one that takes writes is taken, whichever that is.
    let both = format!("postgres://tenure@{},{}/tenure", standby.address(), primary.address());
    let (c, d) = (player(&both, "one"), player(&both, "two"));
    assert!(!c.try_enter().await, "it is held");
    stage::until("the standby has the place", async || {
        standby.psql("SELECT state FROM tenure_lock").contains(&c.claim.owner.to_string())
    })
    .await;
    primary.kill();
    assert_eq!(standby.psql("SELECT pg_promote()"), "t");
    assert!(!b.try_enter().await, "the lease was copied");
    stage::until("the new primary is found", async || d.backend.claim(&d.claim).await.is_ok()).await;
    assert_eq!(b.backend.break_lock(&b.claim.name, BreakScope::Leases).await.unwrap().len(), 1);
    let after = enter_in_time(&c).await;
    assert!(after.token > before.token);
}

/// L6: a primary that accepted connections and did not answer kept the client from the promoted standby for 10 s and
/// more, because both shared a slot. A replicated lease was lost.
#[tokio::test]
async fn a_server_that_hangs_keeps_no_client_from_its_successor() {
    let primary = PostgresServer::start();
    let standby = Recipe::new().standby_of(&primary).start();
    let (old, new) = (primary.address(), standby.address());
    let url = format!("postgres://tenure@{old},{new}/tenure?connect_timeout=500ms&listen=off");
    let a = player(&url, "one").lasting(Duration::from_secs(600));
    let grant = enter_in_time(&a).await;
    stage::until("the standby has the lease", async || {
        standby.psql("SELECT state FROM tenure_lock WHERE name = 'one'").contains(&a.claim.owner.to_string())
    })
    .await;
    primary.stop();
    let renew = async || a.backend.renew(std::slice::from_ref(&grant)).await.remove(0);
    let patience = 3 * Duration::from_secs(slowness().into());
    stage::until("only the server that hangs has a connection to end", async || {
        let Ok(answer) = tokio::time::timeout(patience, renew()).await else { return false };
        let said = chain(&answer.expect_err("no server takes writes"));
        assert!(!said.contains("has not ended an earlier connection") || !said.contains(&new), "{said}");
        said.contains("has not ended an earlier connection") && said.contains(&old)
    })
    .await;
    assert_eq!(standby.psql("SELECT pg_promote()"), "t");
    let promoted = std::time::Instant::now();
    stage::until("it is renewed", async || matches!(renew().await, Ok(Renewal::Renewed))).await;
    assert!(promoted.elapsed() < 2 * patience, "after {:?}", promoted.elapsed());
}

/// A server under whose open connections writes are forbidden and allowed again is noticed both times.
#[tokio::test]
async fn a_server_that_stops_taking_writes_is_noticed() {
    let server = PostgresServer::start();
    let a = player(&server.url(""), "one");
    a.enter().await;
    let set = |value| {
        server.psql(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
        server.psql("SELECT pg_reload_conf()");
    };
    set("on");
    let b = Player::new(a.backend.clone(), "two");
    stage::until("writes are refused", async || b.backend.claim(&b.claim).await.is_err()).await;
    let error = b.backend.claim(&b.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    server.psql("ALTER SYSTEM RESET default_transaction_read_only");
    server.psql("SELECT pg_reload_conf()");
    stage::until("writes are taken", async || b.backend.claim(&b.claim).await.is_ok()).await;
}

/// The name of the host led to the next primary, and the old one stayed, read only: a session that was open was kept, and the
/// name was never resolved again (0 of 17 acquisitions).
#[tokio::test]
async fn a_server_that_stops_taking_writes_is_left_for_its_successor() {
    let (old, new) = (PostgresServer::start(), PostgresServer::start());
    let name = Proxy::to(old.port(), 7);
    // What was copied to it.
    player(&new.url(""), "warm").enter().await;
    let backend = postgres(&format!("postgres://tenure@127.0.0.1:{}/tenure", name.port()));
    Player::new(backend.clone(), "one").enter().await;
    old.psql("ALTER SYSTEM SET default_transaction_read_only = on");
    old.psql("SELECT pg_reload_conf()");
    let two = Player::new(backend.clone(), "two");
    stage::until("the old one takes no writes", async || backend.claim(&two.claim).await.is_err()).await;
    // Connections that are open stay where they are.
    name.lead_to(new.port());
    let b = Player::new(backend.clone(), "three");
    enter_in_time(&b).await;
    assert_eq!(new.psql("SELECT count(*) FROM tenure_lock"), "2");
}

/// Each process used the one that it reached first.
#[tokio::test]
async fn two_primaries_in_one_url_are_found() {
    let (one, other) = (PostgresServer::start(), PostgresServer::start());
    let url = format!("postgres://tenure@{},{}/tenure", one.address(), other.address());
    let findings = postgres(&url).diagnose().await.unwrap();
    let problem =
        findings.iter().find(|f| f.severity == Severity::Problem && f.what.contains("both take writes"));
    assert!(problem.is_some(), "{findings:?}");
    let twice = format!("postgres://tenure@{0},{0}/tenure", one.address());
    let findings = postgres(&twice).diagnose().await.unwrap();
    assert!(!findings.iter().any(|f| f.what.contains("both take writes")), "{findings:?}");
}

#[tokio::test]
async fn a_table_of_somebody_elses_is_left_alone() {
    let server = PostgresServer::start();
    for (n, columns) in [
        "name text PRIMARY KEY, price int",
        // Right columns, but two rows of one name would be two locks.
        "name text, version bigint, busy boolean, used timestamptz, state text",
        "name text PRIMARY KEY, version int, busy boolean, used timestamptz, state text",
        // Values that are not what was written to them.
        "name text PRIMARY KEY, version bigint, busy boolean GENERATED ALWAYS AS (false) STORED, used timestamptz, state text",
        "name text PRIMARY KEY, version bigint GENERATED ALWAYS AS IDENTITY, busy boolean, used timestamptz, state text",
        "name char(600) PRIMARY KEY, version bigint, busy boolean, used timestamptz, state text",
        "name varchar(200) PRIMARY KEY, version bigint, busy boolean, used timestamptz, state text",
    ]
    .into_iter()
    .enumerate()
    {
        server.psql(&format!("CREATE TABLE theirs{n} ({columns}); ALTER TABLE theirs{n} OWNER TO tenure"));
        server.psql(&format!("INSERT INTO theirs{n} (name) VALUES ('one')"));
        let rows = server.psql(&format!("SELECT * FROM theirs{n}"));
        let url = server.url(&format!("?table=theirs{n}"));
        refused_as(&url, ErrorKind::Corrupt, "not one of tenure").await;
        let backend = postgres(&url);
        let name = LockName::new("one").unwrap();
        assert_eq!(backend.inspect(&name).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(backend.list("").await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(backend.break_lock(&name, BreakScope::Leases).await.unwrap_err().kind(), ErrorKind::Corrupt);
        let findings = backend.diagnose().await.unwrap();
        assert!(
            findings.iter().any(|f| f.severity == Severity::Problem && f.what.contains("not one of tenure"))
        );
        assert_eq!(server.psql(&format!("SELECT * FROM theirs{n}")), rows);
    }
}

/// What has the table's name and is no table was not seen: each claim then tried to make the table some hundred times.
#[tokio::test]
async fn what_has_the_tables_name_and_is_no_table_is_left_alone() {
    let server = stage::talkative();
    let columns =
        "SELECT ''::text AS name, 1::bigint AS version, false AS busy, now() AS used, ''::text AS state";
    for (n, what) in ["VIEW", "MATERIALIZED VIEW"].into_iter().enumerate() {
        server.psql(&format!("CREATE {what} theirs{n} AS {columns}; GRANT ALL ON theirs{n} TO tenure"));
    }
    server.psql("CREATE UNIQUE INDEX ON theirs1 (name); CREATE SEQUENCE theirs2");
    for n in 0..3 {
        let url = server.url(&format!("?table=theirs{n}"));
        refused_as(&url, ErrorKind::Corrupt, "not one of tenure").await;
        assert_eq!(postgres(&url).list("").await.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let said = stage::statements(&server);
    let ours = said.iter().filter(|said| said.contains("inet_client_port") || said.contains("CREATE TABLE"));
    assert!(ours.count() <= 12, "{said:#?}");
}

#[tokio::test]
async fn a_row_that_holds_no_ledger_is_left_alone() {
    let server = PostgresServer::start();
    let a = player(&server.url(""), "one");
    a.enter().await;
    server.psql("UPDATE tenure_lock SET state = 'Hello', version = version + 1");
    refused_as(&server.url(""), ErrorKind::Corrupt, "is damaged, or another program wrote it").await;
    let error = a.backend.release(&a.claim.name, a.claim.owner).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied));
    assert_eq!(server.psql("SELECT state FROM tenure_lock"), "Hello");
}

/// What reads and what ends makes no table.
#[tokio::test]
async fn only_a_claim_makes_the_table() {
    let server = PostgresServer::start();
    server.psql("DROP TABLE tenure_lock");
    let a = player(&server.url(""), "one");
    assert_eq!(a.leave().await, Released::WasGone);
    assert!(a.backend.inspect(&a.claim.name).await.unwrap().holders.is_empty());
    assert_eq!(a.backend.list("").await.unwrap(), []);
    a.backend.diagnose().await.unwrap();
    assert_eq!(server.psql("SELECT to_regclass('tenure_lock') IS NULL"), "t");
    a.backend.claim(&a.claim).await.unwrap_err();
    assert_eq!(server.psql("SELECT to_regclass('tenure_lock') IS NULL"), "f");
}

/// L1: a command that had not seen the table made it while it was renamed away, and was granted what was held in the other one
/// (`stores/pg-rights-overtake`, last part). No client makes a lock in a table that one of them has made a moment ago.
#[tokio::test]
async fn no_lock_is_granted_in_a_table_that_a_client_made_a_moment_ago() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    tables::grants_nothing_yet(|name| player(&server.url(""), name), |words| server.psql(words), &clock)
        .await;
}

/// L1, L5: a missing table was taken for an unused one, and a waiter made it and held beside the one whose lease was in it
/// (`stores/pg-rights-overtake`). It is away; once it is back, nothing was lost.
#[tokio::test]
async fn a_table_that_was_seen_and_is_away_is_not_made_again() {
    let server = PostgresServer::start();
    tables::is_not_made_again(|name| player(&server.url(""), name), |words| server.psql(words)).await;
}

#[tokio::test]
async fn many_that_come_first_make_one_table() {
    let server = PostgresServer::start();
    server.psql("DROP TABLE tenure_lock");
    for round in 0..5 {
        let players: Vec<Player> =
            (0..10).map(|n| player(&server.url(""), &format!("{round}/{n}"))).collect();
        for player in &players {
            // Connected already, so that all come at once.
            player.backend.inspect(&player.claim.name).await.unwrap();
        }
        let answers = join_all(players.iter().map(|player| player.backend.claim(&player.claim))).await;
        for answer in answers {
            let error = answer.unwrap_err();
            assert!(error.to_string().contains("a client has made the table"), "{}", chain(&error));
        }
        assert_eq!(server.psql("SELECT count(*) FROM tenure_lock"), "1");
        server.psql("DROP TABLE tenure_lock");
    }
}

/// The lines of the README are what a role needs.
#[tokio::test]
async fn the_readmes_lines_give_the_least_rights() {
    let server = PostgresServer::start();
    server.psql("CREATE ROLE app LOGIN; DROP TABLE tenure_lock");
    let url = server.url("").replace("tenure@", "app@");
    refused_as(&url, ErrorKind::Denied, "which names the GRANT").await;
    let readme = include_str!("../README.md");
    let (_, rest) = readme.split_once("```sql\n").unwrap();
    server.psql(rest.split_once("```").unwrap().0);
    let (a, b) = (player(&url, "one"), player(&url, "one"));
    let grant = a.enter().await;
    b.queue_behind(0).await;
    a.renew(&grant).await;
    let renewed = a.backend.renew(&[grant.clone(), grant]).await;
    assert!(renewed.into_iter().all(|answer| answer.unwrap() == Renewal::Renewed));
    assert_eq!(a.leave().await, Released::Released);
    b.enter().await;
    assert_eq!(b.backend.break_lock(&b.claim.name, BreakScope::Leases).await.unwrap().len(), 1);
    assert_eq!(a.backend.list("").await.unwrap(), []);
    let findings = a.backend.diagnose().await.unwrap();
    assert!(!findings.iter().any(|finding| finding.what.contains("may not read and write")), "{findings:?}");
    // It is the table that a claim would have made.
    let shape = "SELECT string_agg(a.attname || format_type(atttypid, NULL) || attnotnull || coalesce(collname, ''), ',' \
                 ORDER BY attnum), c.reloptions FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
                 LEFT JOIN pg_collation l ON l.oid = a.attcollation WHERE c.oid = 'tenure_lock'::regclass AND attnum > 0 \
                 GROUP BY c.reloptions";
    let documented = server.psql(shape);
    server.psql("DROP TABLE tenure_lock");
    let maker = player(&server.url(""), "one");
    maker.backend.claim(&maker.claim).await.unwrap_err();
    assert_eq!(server.psql(shape), documented);
}

#[tokio::test]
async fn a_server_that_forgets_is_found() {
    let server = PostgresServer::start();
    player(&server.url(""), "one").enter().await;
    server.psql("ALTER TABLE tenure_lock SET UNLOGGED");
    let findings = postgres(&server.url("")).diagnose().await.unwrap();
    for part in ["fsync is off", "unlogged"] {
        let found = findings.iter().find(|finding| finding.what.contains(part));
        assert_eq!(found.map(|finding| finding.severity), Some(Severity::Problem), "{part}: {findings:?}");
    }
    let server = Recipe::new().durable().start();
    player(&server.url(""), "one").enter().await;
    let findings = postgres(&server.url("")).diagnose().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity == Severity::Note), "{findings:?}");
}

#[tokio::test]
async fn tls_believes_whom_it_is_told_to_believe() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let server = Recipe::new().tls(&ours).start();
    let hba = "hostssl all all 127.0.0.1/32 trust\nlocal all all trust\n";
    std::fs::write(server.data().join("pg_hba.conf"), hba).unwrap();
    server.psql("SELECT pg_reload_conf()");
    let (ca, other) = (ours.ca_file().display().to_string(), theirs.ca_file().display().to_string());
    for (n, query) in [
        String::new(),
        "?sslmode=require".into(),
        format!("?sslmode=verify-full&sslrootcert={ca}"),
        format!("?sslmode=verify-ca&sslrootcert={ca}"),
    ]
    .into_iter()
    .enumerate()
    {
        let a = player(&server.url(&query), &format!("{n}"));
        enter_in_time(&a).await;
        let is_tls = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity USING (pid) \
                      WHERE application_name = 'tenure'";
        assert_eq!(server.psql(is_tls), "t", "{query}");
    }
    let denied = ErrorKind::Denied;
    for mode in ["require", "verify-ca", "verify-full"] {
        let query = format!("?sslmode={mode}&sslrootcert={other}");
        refused_as(&server.url(&query), denied, "not trusted").await;
    }
    // The system trusts other authorities, if any.
    for query in ["?sslmode=verify-full", "?sslrootcert=system"] {
        let error = refused(&server.url(query)).await;
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Invalid), "{error:?}");
    }
    // A CA that is named is asked, and is read where nobody asks it.
    refused_as(&server.url(&format!("?sslrootcert={other}")), denied, "not trusted").await;
    player(&server.url(&format!("?sslrootcert={ca}")), "checked").enter().await;
    let folder = server.folder().display().to_string().replace('/', "%2F");
    for host in [server.address(), folder] {
        let url =
            format!("postgres://tenure@{host}/tenure?port={}&sslrootcert=/nowhere/ca.pem", server.port());
        refused_as(&url, ErrorKind::Invalid, "cannot read").await;
    }
    refused_as(&server.url("?sslmode=disable"), denied, "refuses this user or password").await;
    let name =
        server.url(&format!("?sslmode=verify-full&sslrootcert={ca}")).replace("127.0.0.1", "localhost");
    player(&name, "by name").enter().await;
    let plain = PostgresServer::start();
    refused_as(&plain.url("?sslmode=require"), ErrorKind::Invalid, "does not speak TLS").await;
}

/// Whoever spoke TLS to PostgreSQL chose the ciphers of the whole process: a program that chose its own later found them taken.
#[tokio::test]
async fn nothing_of_the_process_is_set_by_speaking_tls() {
    let certificates = Certificates::new();
    let server = Recipe::new().tls(&certificates).start();
    let ca = certificates.ca_file().display().to_string();
    enter_in_time(&player(&server.url(&format!("?sslmode=verify-full&sslrootcert={ca}")), "one")).await;
    refused(&server.url("?sslmode=verify-full")).await;
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}

/// The signature is asked for, the name is not: a certificate for another name is believed by `verify-ca` only.
#[tokio::test]
async fn verify_full_wants_the_name_as_well() {
    let certificates = Certificates::new();
    let server = Recipe::new().tls(&certificates).start();
    let ca = certificates.ca_file().display().to_string();
    // It is made for 127.0.0.1 and localhost; the same machine has other addresses.
    server.psql("ALTER SYSTEM SET listen_addresses = '127.0.0.1,127.0.0.2'");
    std::fs::write(
        server.data().join("pg_hba.conf"),
        "local all all trust\nhost all all 127.0.0.0/8 trust\n",
    )
    .unwrap();
    server.kill();
    server.start_again();
    let url = |mode: &str| {
        server.url(&format!("?sslmode={mode}&sslrootcert={ca}")).replace("127.0.0.1", "127.0.0.2")
    };
    player(&url("verify-ca"), "one").enter().await;
    refused_as(&url("verify-full"), ErrorKind::Denied, "is for another name").await;
}

/// A socket of the same machine.
#[tokio::test]
async fn a_server_is_reached_over_its_socket() {
    let server = PostgresServer::start();
    let folder = server.folder().display().to_string().replace('/', "%2F");
    let url = format!("postgres://tenure@{folder}/tenure?port={}&sslmode=require", server.port());
    let (a, b) = (player(&url, "one"), player(&url, "one"));
    a.enter().await;
    b.queue_behind(0).await;
    let findings = a.backend.diagnose().await.unwrap();
    assert!(!findings.iter().any(|finding| finding.what.contains("no hints")), "{findings:?}");
}

/// `clientcert=verify-full`: the certificate is one that the server's CA signed, and names the user.
#[tokio::test]
async fn a_server_that_wants_a_certificate_is_shown_one() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let server = Recipe::new().tls(&ours).start();
    let ca = ours.ca_file().display().to_string();
    server.psql("CREATE ROLE \"tenure-test-client\" LOGIN SUPERUSER");
    server.psql("CREATE ROLE another LOGIN SUPERUSER");
    let authority = std::fs::read(ours.ca_file()).unwrap();
    std::fs::write(server.data().join("root.crt"), authority).unwrap();
    server.psql("ALTER SYSTEM SET ssl_ca_file = 'root.crt'");
    let hba = "local all all trust\nhostssl all another 127.0.0.1/32 cert\n\
               hostssl all all 127.0.0.1/32 trust clientcert=verify-full\n";
    std::fs::write(server.data().join("pg_hba.conf"), hba).unwrap();
    server.psql("SELECT pg_reload_conf()");
    let url = |user: &str, query: &str| {
        let (address, mode) = (server.address(), "sslmode=verify-full");
        format!("postgres://{user}@{address}/tenure?{mode}&sslrootcert={ca}{query}")
    };
    let shows = |certificates: &Certificates, names: [&str; 2]| {
        let (cert, key) = certificates.client();
        format!("&{}={}&{}={}", names[0], cert.display(), names[1], key.display())
    };
    let right = shows(&ours, ["sslcert", "sslkey"]);
    let holder = player(&url("tenure-test-client", &right), "job");
    let grant = enter_in_time(&holder).await;
    holder.renew(&grant).await;
    let waiter = player(&url("tenure-test-client", &shows(&ours, ["cert", "key"])), "job");
    waiter.queue_behind(0).await;
    holder.leave().await;
    let grant = enter_in_time(&waiter).await;
    waiter.backend.break_lock(&waiter.claim.name, BreakScope::Leases).await.unwrap();
    assert_eq!(waiter.renew(&grant).await, Renewal::Gone);
    let denied = async |url: String, part: &str| {
        for error in player(&url, "job").refusals().await {
            assert_eq!(
                (error.kind(), error.outcome()),
                (ErrorKind::Denied, Outcome::NotApplied),
                "{error:?}"
            );
            assert!(error.to_string().contains(part), "{error:?}");
        }
    };
    denied(url("tenure-test-client", ""), "wants a client certificate; name it with sslcert=").await;
    let wrong = shows(&theirs, ["sslcert", "sslkey"]);
    denied(url("tenure-test-client", &wrong), "does not accept the client certificate").await;
    denied(url("another", &right), "is for another user").await;
}

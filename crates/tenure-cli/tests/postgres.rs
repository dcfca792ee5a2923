//! What the command does with a PostgreSQL database: through a pooler, over a crash, and where it is not let in.

use std::{
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tenure_testkit::{
    patience::eventually,
    ports,
    postgres::{Pgbouncer, PostgresServer, Recipe},
};

use crate::stage::{self, Process, Stage, files::BEAT};

const GUIDE: &str = include_str!("../../../docs/guides/protect-the-data.md");

/// Reads a number, sleeps over it, and writes it back larger by one. Says at the end what time it is.
const COUNT: &str = "n=$(cat counter); sleep 0.01; echo $((n + 1)) >counter; date +%s%N";

/// L1, hazard 54: through a pooler in transaction mode each statement of a process may run on another connection.
#[test]
fn fifty_processes_behind_a_pooler_lose_no_increment() {
    let server = Recipe::new().config("log_statement = all").start();
    let pooler = Pgbouncer::before(&server);
    let stage = Stage::at(pooler.url(""));
    std::fs::write(stage.path("counter"), "0\n").unwrap();
    let processes: Vec<_> = (0..50).map(|_| stage.start(&["run", "job", "--", "sh", "-c", COUNT])).collect();
    let longest = thread::scope(|scope| {
        let releases: Vec<_> =
            processes.into_iter().map(|process| scope.spawn(|| released(process))).collect();
        releases.into_iter().map(|release| release.join().unwrap()).max()
    });
    println!("the longest release of a holder took {:?}", longest.unwrap());
    assert_eq!(stage.number::<u32>("counter"), 50);
    assert_eq!(server.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "0");
    assert_eq!(server.psql("SELECT count(*), bool_or(busy) FROM tenure_lock"), "1|f");
    let log = std::fs::read_to_string(server.folder().join("log-1")).unwrap();
    assert!(log.contains("execute <unnamed>"), "the server says what it was asked");
    for left in ["LISTEN ", "execute s", "statement: BEGIN", "statement: SET SESSION", "advisory_lock"] {
        assert!(!log.contains(left), "{left} is left in a connection of the pool");
    }
}

/// From the end of its command to the end of the process, which has released by then.
fn released(process: Process) -> Duration {
    let ended = process.ended_within(Duration::from_secs(120));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    ended.silent(0);
    now.saturating_sub(Duration::from_nanos(ended.out.trim().parse().unwrap()))
}

/// Restart::Survives: neither the crash of the database nor its return ends a lease, as long as it is short.
#[test]
fn a_command_goes_on_while_its_database_is_restarted() {
    let server = Recipe::new().durable().start();
    let stage = Stage::at(server.url(""));
    let holder = stage.start(&["run", "--ttl", "20s", "job", "--", "sh", "-c", BEAT, "first"]);
    stage.beats("first");
    let token = stage.show("job")["holders"][0]["token"].clone();
    server.kill();
    stage.run(&["run", "-n", "job", "--", "true"]).complained(69, "cannot reach");
    server.start_again();
    eventually("the command talks to the new server", stage::PATIENCE, || {
        let view = stage.show("job");
        (view["holders"][0]["token"] == token).then_some(())
    });
    assert_eq!(stage.run(&["run", "-n", "job", "--", "true"]).code, 1, "it is still held");
    // It was renewed by the server that came back: more is left than the crash had left.
    let left = || {
        server.psql("SELECT state::json->'holders'->0->>'ends_us' FROM tenure_lock").parse::<u64>().unwrap()
    };
    let before = left();
    eventually("the lease is renewed", Duration::from_secs(20), || (left() > before).then_some(()));
    stage.run(&["break", "job"]);
    let ended = holder.ended();
    assert_eq!(ended.code, 79, "{ended:?}");
}

/// One line, a code for what it is, and no secret.
#[test]
fn what_is_wrong_is_said_in_one_line() {
    let server = Recipe::new().passwords().start();
    server.psql("ALTER ROLE tenure PASSWORD 'right'");
    let at = |login: &str, rest: &str| format!("postgres://{login}@{}/{rest}", server.address());
    let nowhere = format!("postgres://tenure:hidden@127.0.0.1:{}/tenure", ports::free(false));
    for (url, part) in [
        (at("tenure:hidden", "tenure"), "refuses this user or password"),
        (at("tenure", "tenure"), "wants a password"),
        (at("tenure:right", "nothing"), "no database of this name"),
        (at("tenure:right", "tenure?sslmode=require"), "does not speak TLS"),
        (at("tenure:right", "tenure?table=nowhere.locks"), "no schema of this name"),
        (nowhere, "cannot reach"),
    ] {
        let ended = Stage::at(url).run(&["run", "-n", "job", "--", "true"]);
        assert!(!format!("{ended:?}").contains("hidden"), "{ended:?}");
        ended.complained(69, part);
    }
    let good = Stage::at(at("tenure:right", "tenure"));
    good.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// A URL that cannot be meant is refused before anything is asked.
#[test]
fn a_url_with_a_mistake_is_a_mistake_of_usage() {
    let server = PostgresServer::start();
    for (query, part) in [("?tabel=x", "does not know parameter 1"), ("?sslmode=yes", "sslmode=")] {
        let ended = Stage::at(server.url(query)).run(&["run", "-n", "job", "--", "true"]);
        assert!(ended.code != 0 && ended.code != 69, "{ended:?}");
        assert!(format!("{ended:?}").contains(part), "{ended:?}");
    }
}

/// L4: the recipe of the guide, as it is printed. A late write changes nothing, and the command of the shell fails.
#[test]
fn the_recipe_of_the_guide_refuses_a_late_write_and_its_psql_fails() {
    let (_, guide) = GUIDE.split_once("\n## With a token\n").unwrap();
    let [alter, update, marks, many, trigger] = stage::blocks(guide, "sql")[..] else {
        panic!("the guide has five blocks")
    };
    let [line, pause] = stage::blocks(guide, "sh")[..] else { panic!("the guide has two blocks of shell") };
    let server = PostgresServer::start();
    let stage = Stage::at(server.url(""));
    server.psql_as("tenure", "CREATE TABLE invoices (id bigint PRIMARY KEY, amount bigint NOT NULL)");
    server.psql_as("tenure", "INSERT INTO invoices VALUES (7, 1), (6, 0)");
    server.psql_as("tenure", alter);
    server.psql_as("tenure", marks);
    std::fs::write(stage.path("update.sql"), update).unwrap();
    std::fs::write(stage.path("many.sql"), many).unwrap();
    let run = |line: &str| stage.shell(line, &server.url(""));
    let amounts = || server.psql("SELECT string_agg(id || '=' || amount, ' ' ORDER BY id) FROM invoices");
    run(line).silent(0);
    assert_eq!(amounts(), "6=0 7=120");
    let late = |line: &str| {
        let late = run(&line.replace("\"$TENURE_TOKEN\"", "1").replace("amount=120", "amount=999"));
        assert_eq!(late.code, 3, "{}", late.err);
    };
    late(line);
    assert_eq!(amounts(), "6=0 7=120");
    let many = line.replace("update.sql", "many.sql");
    run(&many).silent(0);
    assert_eq!(amounts(), "7=120 8=120");
    late(&many);
    assert_eq!(amounts(), "7=120 8=120");
    let paused = run(&format!("{pause}wait $!"));
    assert!(paused.err.contains("no rows returned for \\gset"), "{}", paused.err);
    assert_eq!((paused.code, amounts().as_str()), (79, "7=2 8=120"), "{}", paused.err);
    server.psql_as("tenure", trigger);
    let with = |token: &str| {
        run(&format!(
            "psql \"$DATABASE\" -v ON_ERROR_STOP=1 -c '{token} UPDATE invoices SET amount = 3 WHERE id = 7'"
        ))
    };
    for (token, refusal) in [("", "tenure.token"), ("SET tenure.token = 1;", "stale token 1")] {
        let refused = with(token);
        assert!(refused.code != 0 && refused.err.contains(refusal), "{token}: {}", refused.err);
    }
    assert_eq!(amounts(), "7=2 8=120");
    assert_eq!(with("SET tenure.token = 9007199254740991;").code, 0);
    assert_eq!(amounts(), "7=3 8=120");
}

/// L3: the recipe of the guide, as it is printed: a run that has lost its lock commits nothing, and its `psql` fails.
#[test]
fn the_recipe_of_the_guide_commits_as_the_owner_only() {
    let (own, _) = GUIDE.split_once("\n## With a token\n").unwrap();
    let ([_, work], [line, _]) = (&stage::blocks(own, "sql")[..], &stage::blocks(own, "sh")[..]) else {
        panic!("the guide has two blocks of each")
    };
    let server = PostgresServer::start();
    let stage = Stage::at(server.url(""));
    server.psql_as("tenure", "CREATE TABLE stock (item bigint PRIMARY KEY, amount bigint NOT NULL)");
    server.psql_as("tenure", "INSERT INTO stock VALUES (4711, 10)");
    std::fs::write(stage.path("work.sql"), work).unwrap();
    let run = |line: &str| stage.shell(line, &server.url(""));
    let amount = || server.psql("SELECT amount FROM stock");
    run(line).silent(0);
    assert_eq!(amount(), "9");
    // The lock is broken before the statement is asked for: the run ends, and nothing is written.
    let late = line.replace("owns=$(tenure", "tenure -q break stock >&2; owns=$(tenure");
    let ended = run(&late);
    assert_eq!((ended.code != 0, amount().as_str()), (true, "9"), "{ended:?}");
    // Another process has the lock: a former statement is refused by the server, whatever the client does then.
    run(&line.replace("|| exit", "|| exit; echo \"$owns\" >kept.sql")).silent(0);
    assert_eq!(amount(), "8");
    for flags in ["-v ON_ERROR_STOP=1", ""] {
        let again = run(&format!(
            "{{ echo 'BEGIN;'; cat kept.sql work.sql; echo 'COMMIT;'; }} | psql \"$DATABASE\" -q {flags}"
        ));
        assert!(again.err.contains("not the owner of the lock: 0"), "{again:?}");
        assert_eq!(amount(), "8", "{flags}");
    }
    // Outside of a run there is no lock.
    let outside = run("tenure ownership");
    assert_eq!((outside.code, outside.out.as_str()), (64, ""), "{outside:?}");
    let json = run("tenure run stock -- tenure ownership --json");
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert!(json["statement"].as_str().unwrap().contains("$1") && json["row"].is_string(), "{json}");
}

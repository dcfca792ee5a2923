//! What the command does with a MariaDB: over a crash, on a replica, with few rights, and where it is not let in.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};
use tenure_testkit::{
    mysql::{MysqlServer, Recipe},
    patience::eventually,
    ports,
};

use crate::stage::{
    self, Stage,
    files::{BEAT, HOLD},
};

/// Reads a number, sleeps over it, and writes it back larger by one.
const COUNT: &str = "n=$(cat counter); sleep 0.01; echo $((n + 1)) >counter";

/// Waits until `watch` shows this number of holders and waiters of this lock.
fn shows(watch: &stage::Process, crowd: (usize, usize)) {
    eventually(&format!("{crowd:?} is shown"), stage::PATIENCE, || {
        let text = watch.printed();
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let size = |list: &Value| list.as_array().map_or(0, Vec::len);
        let last = lines.next_back()?;
        ((size(&last["holders"]), size(&last["queue"])) == crowd).then_some(())
    });
}

/// L1: no increment is lost among processes of which each has a connection of its own. A row in which four had
/// waited said for ever that places stand beside it, where MySQL has none: it stayed busy, and took no place without a
/// comparison.
#[test]
fn fifty_processes_on_mysql_lose_no_increment() {
    let server = MysqlServer::start();
    let stage = Stage::at(server.url(""));
    fs::write(stage.path("counter"), "0\n").unwrap();
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let processes: Vec<_> =
        (0..50).map(|_| stage.start(&["run", "-q", "job", "--", "sh", "-c", COUNT])).collect();
    eventually("all wait", 3 * stage::PATIENCE, || (stage.queue("job").len() == 50).then_some(()));
    stage.touch("go");
    holder.ended().silent(0);
    for process in processes {
        process.ended_within(Duration::from_secs(120)).silent(0);
    }
    assert_eq!(stage.number::<u32>("counter"), 50);
    assert_eq!(server.sql("SELECT name, state FROM tenure_lock WHERE busy = 1"), "");
}

/// The whole life of a lock as `ls`, `show` and `watch` tell it, by either scheme.
#[test]
fn ls_show_and_watch_tell_who_holds_and_who_waits() {
    let server = MysqlServer::start();
    let stage = Stage::at(server.url("").replace("mysql://", "mariadb://"));
    assert_eq!(stage.json(&["ls"]), json!([]), "where there is no table yet");
    let watch = stage.start(&["watch", "-q", "job"]);
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    shows(&watch, (1, 0));
    let waiter = stage.start_waiter("job", &["run", "job", "--", "true"]);
    shows(&watch, (1, 1));
    stage.run(&["lock", "other", "--ttl", "1h"]).silent(0);
    let listed = stage.json(&["ls"]);
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|view| view["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["job", "other"]);
    assert_eq!(stage.json(&["ls", "oth"])[0]["name"], "other");
    let shown = stage.show("job");
    assert_eq!(shown["holders"][0]["label"]["pid"], holder.pid());
    assert_eq!(shown["queue"][0]["label"]["pid"], waiter.pid());
    let for_people = stage.run(&["ls"]);
    for_people.silent(0);
    assert!(["job", "other"].iter().all(|name| for_people.out.contains(name)), "{for_people:?}");
    stage.touch("go");
    holder.ended().silent(0);
    waiter.ended().silent(0);
    shows(&watch, (0, 0));
    stage.run(&["break", "other"]);
    assert_eq!(stage.json(&["ls"]), json!([]));
}

/// Restart::Survives: neither the crash of the server nor its return ends a lease, as long as it is short.
#[test]
fn a_command_goes_on_while_its_mysql_server_is_restarted() {
    let server = Recipe::new().durable().start();
    let stage = Stage::at(server.url(""));
    let holder = stage.start(&["run", "--ttl", "20s", "job", "--", "sh", "-c", BEAT, "first"]);
    stage.beats("first");
    let token = stage.show("job")["holders"][0]["token"].clone();
    server.kill();
    stage.run(&["run", "-n", "job", "--", "true"]).complained(69, "cannot reach");
    server.start_again();
    let left = || stage.show("job")["holders"][0]["expires_in_ms"].as_u64();
    eventually("the command talks to the new server", stage::PATIENCE, || {
        let view = stage.show("job");
        (view["holders"][0]["token"] == token).then_some(())
    });
    assert_eq!(stage.run(&["run", "-n", "job", "--", "true"]).code, 1, "it is still held");
    // It was renewed by the server that came back: more is left than a moment ago.
    let mut before = left();
    eventually("the lease is renewed", stage::PATIENCE, || {
        let now = left();
        let is_renewed = now > before;
        before = now;
        is_renewed.then_some(())
    });
    stage.run(&["break", "job"]);
    let ended = holder.ended();
    assert_eq!(ended.code, 79, "{ended:?}");
}

/// One line, a code for what it is, and no secret: of each verb.
#[test]
fn what_is_wrong_with_mysql_is_said_in_one_line() {
    let server = MysqlServer::start();
    server.sql("ALTER USER tenure@'127.0.0.1' IDENTIFIED BY 'right'");
    let at = |login: &str, rest: &str| format!("mysql://{login}@{}/{rest}", server.address());
    let nowhere = format!("mysql://tenure:hidden@127.0.0.1:{}/tenure", ports::free(false));
    let no_ca = "tenure?ssl-mode=VERIFY_CA&ssl-ca=/no/such/file";
    for (url, part) in [
        (at("tenure:hidden", "tenure"), "refuses this user or password"),
        (at("tenure", "tenure"), "refuses this user or password"),
        (at("joe:hidden", "tenure"), "refuses this user or password"),
        (at("tenure:right", "nothing"), "lacks a permission"),
        (at("tenure:right", "tenure?ssl-mode=REQUIRED"), "does not speak TLS"),
        (at("tenure:hidden", no_ca), "cannot read"),
        (at("tenure:right", "tenure?table=nowhere.locks"), "lacks a permission"),
        (nowhere, "cannot reach"),
    ] {
        let ended = Stage::at(url).run(&["run", "-n", "job", "--", "true"]);
        assert!(!format!("{ended:?}").contains("hidden"), "{ended:?}");
        ended.complained(69, part);
    }
    // A user with all rights gets the name of what is missing.
    server.sql("GRANT ALL ON *.* TO tenure@'127.0.0.1'");
    for rest in ["nothing", "tenure?table=nowhere.locks"] {
        let ended = Stage::at(at("tenure:right", rest)).run(&["run", "-n", "job", "--", "true"]);
        ended.complained(69, "no database of this name");
    }
    let wrong = Stage::at(at("tenure:hidden", "tenure"));
    for verb in [
        &["ls"][..],
        &["show", "job"],
        &["doctor"],
        &["lock", "job", "--ttl", "1h"],
        &["run", "-v", "-n", "job", "--", "true"],
    ] {
        let ended = wrong.run(verb);
        assert_eq!((ended.code, ended.out.as_str()), (69, ""), "{ended:?}");
        assert!(ended.err.contains("refuses this user or password"), "{ended:?}");
        assert!(!ended.err.contains("hidden"), "{ended:?}");
    }
    let good = Stage::at(at("tenure:right", "tenure"));
    good.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// As the command `mysql` does, it takes the password of the environment where the URL has none.
#[test]
fn the_password_may_stand_in_the_environment() {
    let server = MysqlServer::start();
    server.sql("ALTER USER tenure@'127.0.0.1' IDENTIFIED BY 'right'");
    let stage = Stage::at(server.url(""));
    for (password, code) in [("right", 0), ("hidden", 69)] {
        let mut command = stage.command(&["run", "-n", "job", "--", "true"]);
        command.env("MYSQL_PWD", password);
        let ended = stage.run_command(command);
        assert_eq!(ended.code, code, "{ended:?}");
        assert!(!ended.err.contains(password), "{ended:?}");
    }
}

/// A URL that cannot be meant is refused before anything is asked.
#[test]
fn a_mysql_url_with_a_mistake_is_a_mistake_of_usage() {
    let server = MysqlServer::start();
    server.sql("DROP TABLE tenure_lock");
    for (query, part) in [
        ("?tabel=x", "does not know parameter 1"),
        ("?ssl-mode=yes", "ssl-mode="),
        ("?table=a.b.c", "table= is name or database.name"),
        ("?ssl-cert=/c.pem", "ssl-cert= and ssl-key= are needed together"),
    ] {
        let ended = Stage::at(server.url(query)).run(&["run", "-n", "job", "--", "true"]);
        ended.complained(64, part);
    }
    let no_database = format!("mysql://tenure@{}", server.address());
    Stage::at(no_database).run(&["ls"]).complained(64, "a database is missing");
    assert_eq!(server.sql("SHOW TABLES"), "");
}

/// A server that takes no writes grants nothing and shows all; `doctor` says why. What is held there ends in time.
#[test]
fn a_server_that_is_read_only_grants_nothing_and_shows_all() {
    let server = Recipe::new().durable().start();
    let stage = Stage::at(server.url(""));
    stage.run(&["lock", "job", "--ttl", "1h"]).silent(0);
    server.sql("SET GLOBAL read_only = 1");
    stage.run(&["run", "-n", "other", "--", "touch", "ran"]).complained(69, "takes no writes");
    stage.run(&["lock", "other", "--ttl", "1h"]).complained(69, "takes no writes");
    assert_eq!(stage.json(&["ls"])[0]["name"], "job");
    assert_eq!(stage.show("job")["holders"].as_array().unwrap().len(), 1);
    let ended = stage.run(&["doctor", "-q"]);
    ended.silent(1);
    assert!(ended.out.starts_with("problem: read_only is on: nothing can be locked"), "{ended:?}");
    server.sql("SET GLOBAL read_only = 0");
    stage.run(&["run", "-n", "other", "--", "touch", "ran"]).silent(0);
    assert!(stage.path("ran").exists());
}

/// Exit 0 for a server that keeps what it grants, with the version and what to know; 1 for one that may forget it.
#[test]
fn doctor_says_whether_the_server_keeps_what_it_grants() {
    let healthy = Recipe::new().durable().start();
    healthy.sql("DROP TABLE tenure_lock");
    let stage = Stage::at(healthy.url(""));
    let findings = |stage: &Stage| stage.json(&["doctor"]).as_array().unwrap().clone();
    let no_table = findings(&stage);
    assert!(no_table.iter().any(|found| found["what"] == "there is no table yet"), "{no_table:?}");
    assert_eq!(healthy.sql("SHOW TABLES"), "", "looking makes no table");
    // It is told to, and waits in place of the first run.
    let ended = stage.run(&["doctor", "--adopt"]);
    assert!(
        ended.out.contains("made the table of the locks: nothing is granted in it for 10 s"),
        "{ended:?}"
    );
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let ended = stage.run(&["doctor"]);
    ended.silent(0);
    let what = format!("at {}/tenure", healthy.address());
    assert!(ended.out.starts_with("note: MariaDB ") && ended.out.contains(&what), "{ended:?}");
    assert!(ended.out.contains("MySQL pushes nothing: waiters poll"), "{ended:?}");
    assert!(findings(&stage).iter().all(|found| found["severity"] == "note"));
    let again = stage.run(&["doctor", "--adopt"]);
    assert!(again.out.contains("the table of the locks is there"), "{again:?}");

    healthy.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2");
    let ended = stage.run(&["doctor", "-q"]);
    ended.silent(1);
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(lines[0].starts_with("problem: innodb_flush_log_at_trx_commit is 2"), "{ended:?}");
    assert!(lines[1].starts_with("  to do: "), "{ended:?}");
    healthy.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1");

    healthy.sql("CREATE TRIGGER meddler BEFORE UPDATE ON tenure_lock FOR EACH ROW SET NEW.state = OLD.state");
    let found = stage.run(&["doctor", "-q"]);
    found.silent(1);
    let parts = ["problem: a lock was tried", "warning: the table has triggers: meddler"];
    assert!(parts.iter().all(|part| found.out.contains(part)), "{found:?}");
    healthy.sql("DROP TRIGGER meddler; ALTER TABLE tenure_lock ENGINE = MyISAM");
    let found = stage.run(&["doctor", "-q"]);
    found.silent(1);
    assert!(found.out.starts_with("problem: the engine of the table is myisam"), "{found:?}");
}

/// A table of another program is not written to.
#[test]
fn a_table_of_another_program_is_left_alone() {
    let server = MysqlServer::start();
    server.sql("CREATE OR REPLACE TABLE tenure_lock (name TEXT, price INT); INSERT INTO tenure_lock VALUES ('bolt', 7)");
    let stage = Stage::at(server.url(""));
    stage
        .run(&["run", "-n", "job", "--", "true"])
        .complained(69, "not one of tenure; name another with table=");
    stage.run(&["ls"]).complained(69, "not one of tenure");
    let ended = stage.run(&["doctor", "-q"]);
    ended.silent(1);
    assert!(ended.out.contains("it has name text, price int"), "{ended:?}");
    assert_eq!(server.sql("SELECT * FROM tenure_lock"), "bolt\t7");
    tenure_testkit::mysql::make_table(&server.address(), "locks_of_jobs");
    let other = Stage::at(server.url("?table=locks_of_jobs"));
    other.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// What docs/guides/operate.md says of rights: its statements make a table and a user that suffice; without one of the rights
/// the command says that it lacks one, but for DELETE, without which rows stay.
#[test]
fn the_recipe_for_mysql_gives_the_rights_that_are_needed() {
    let recipes =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/operate.md"))
            .unwrap();
    let (_, rest) = recipes.split_once("```sql\n").unwrap();
    let (statements, _) = rest.split_once("```").unwrap();
    let server = MysqlServer::start();
    server.sql("DROP TABLE tenure_lock");
    server.sql(statements);
    let stage = Stage::at(format!("mysql://locks:PASSWORD@{}/tenure", server.address()));
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "true"]);
    stage.touch("go");
    holder.ended().silent(0);
    waiter.ended().silent(0);
    let found = stage.run(&["doctor", "-q"]);
    assert!(!found.out.contains("a lock was tried"), "{found:?}");
    for (right, is_needed) in [("DELETE", false), ("INSERT", true), ("UPDATE", true)] {
        server.sql(&format!("REVOKE {right} ON tenure_lock FROM locks@'%'"));
        let ended = stage.run(&["run", "-n", &format!("without {right}"), "--", "true"]);
        if is_needed {
            ended.complained(69, "this MySQL user lacks a permission");
        } else {
            ended.silent(0);
        }
    }
    let look = stage.run(&["ls"]);
    look.silent(0);
    server.sql("REVOKE SELECT ON tenure_lock FROM locks@'%'");
    let ended = stage.run(&["ls"]);
    assert_eq!(ended.code, 69, "{ended:?}");
}

/// L3: the recipe of the guide, as it is printed: a run commits as the owner, and a statement of a former run stops `mysql`.
#[test]
fn the_recipe_of_the_guide_for_mysql_commits_as_the_owner_only() {
    let guide = include_str!("../../../docs/guides/protect-the-data.md");
    let (work, line) = (stage::blocks(guide, "sql")[1], stage::blocks(guide, "sh")[1]);
    let server = MysqlServer::start();
    let stage = Stage::at(server.url(""));
    server.sql("CREATE TABLE stock (item bigint PRIMARY KEY, amount bigint NOT NULL); INSERT INTO stock VALUES (4711, 10)");
    fs::write(stage.path("work.sql"), work).unwrap();
    let client = format!("-h 127.0.0.1 -P {} -u tenure tenure", server.port());
    let run = |line: &str| stage.shell(line, &client);
    let amount = || server.sql("SELECT amount FROM stock").trim().to_owned();
    let kept = run(&line.replace("|| exit", "|| exit; echo \"$owns\" >kept.sql"));
    assert_eq!((kept.code, amount().as_str()), (0, "9"), "{kept:?}");
    let again = run("{ echo 'BEGIN;'; cat kept.sql work.sql; echo 'COMMIT;'; } | mysql $DATABASE");
    assert!(again.code != 0 && again.err.contains("1242"), "{again:?}");
    assert_eq!(amount(), "9");
}

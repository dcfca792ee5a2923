//! A user of a database who may only read sees the locks and changes none.

use tenure_testkit::{patience::eventually, postgres::PostgresServer, redis::RedisServer};

use crate::stage::{PATIENCE, Stage, files::HOLD};

/// The user of `url` has all rights. `give` makes the user of `reader`, once the store has a lock.
fn looks_and_changes_nothing(url: String, reader: String, give: impl FnOnce()) {
    let stage = Stage::at(url);
    let holder = stage.start(&["run", "-q", "--ttl", "5s", "job", "--", "sh", "-c", HOLD, "held"]);
    stage.beats("held");
    give();
    let looking = Stage::at(reader);
    let list = looking.json(&["ls"]);
    assert_eq!((list.as_array().unwrap().len(), &list[0]["name"]), (1, &"job".into()), "{list}");
    let shown = looking.run(&["show", "job"]);
    assert!(shown.code == 0 && shown.out.contains("held (exclusive) by "), "{shown:?}");
    let owner = stage.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    for verb in [
        &["break", "job"][..],
        &["unlock", "job", &owner],
        &["renew", "job", &owner, "--ttl", "5s"],
        &["run", "-n", "other", "--", "true"],
        &["lock", "another", "--ttl", "5s"],
    ] {
        let ended = looking.run(verb);
        assert_eq!((ended.code, ended.out.as_str()), (69, ""), "{verb:?}: {ended:?}");
        assert!(ended.err.contains("permission"), "{verb:?}: {ended:?}");
    }
    let left = || stage.show("job")["holders"][0]["expires_in_ms"].as_u64().unwrap_or(0);
    let mut before = left();
    eventually("the lease is renewed", PATIENCE, || {
        (std::mem::replace(&mut before, left()) < before).then_some(())
    });
    assert_eq!(stage.json(&["ls"]).as_array().unwrap().len(), 1);
    stage.touch("go");
    holder.ended().silent(0);
}

/// The rights in a page, between these two texts.
fn rights<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
    page.split_once(from).unwrap().1.split(to).next().unwrap()
}

/// No page described a user that may only read, so each user that could list locks could also break them.
#[test]
fn a_reader_of_redis_changes_nothing() {
    let line = rights(include_str!("../../tenure-redis/README.md"), "ACL SETUSER reader on >PASSWORD ", "\n");
    let server = RedisServer::start();
    let at = |login: &str| format!("redis://{login}127.0.0.1:{}/?max_ttl=5s", server.port());
    looks_and_changes_nothing(at(""), at("reader:x@"), || {
        let words: Vec<&str> = line.split_whitespace().collect();
        server.command(&[&["ACL", "SETUSER", "reader", "on", ">x"], &words[..]].concat());
    });
}

#[test]
fn a_reader_of_postgres_changes_nothing() {
    let grant = rights(include_str!("../../tenure-postgres/README.md"), "may only look: `", "`");
    let server = PostgresServer::start();
    let at = |role: &str| format!("postgres://{role}@{}/tenure", server.address());
    looks_and_changes_nothing(at("tenure"), at("reader"), || {
        server.psql(&format!("CREATE ROLE reader LOGIN; {grant}"));
    });
}

#[cfg(feature = "mysql")]
#[test]
fn a_reader_of_mysql_changes_nothing() {
    let grant = rights(include_str!("../../tenure-mysql/README.md"), "may only look: `", "`");
    let server = tenure_testkit::mysql::MysqlServer::start();
    let at = |user: &str| format!("mysql://{user}@{}/tenure", server.address());
    looks_and_changes_nothing(at("tenure"), at("reader"), || {
        server.sql("CREATE USER reader@'127.0.0.1'");
        server.sql(&grant.replace("app.", "tenure.").replace("'reader'@'%'", "reader@'127.0.0.1'"));
    });
}

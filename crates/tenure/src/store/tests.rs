//! Each store by a URL and by a builder: both give the same value for every setting.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{ffi::OsStr, fmt::Debug, os::unix::ffi::OsStrExt, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::{
    ConfigError,
    connect::{self, StoreSettings, mysql, postgres, redis, sqlite},
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What a builder sets, and the URL that a person would write.
type Pair<C> = (Result<C, ConfigError>, &'static str);

/// Compares both, and checks that no setting of the store is missing.
fn compare<C: StoreSettings + PartialEq + Debug>(pairs: impl IntoIterator<Item = Pair<C>>, unknown: &str) {
    let pairs: Vec<(C, &str)> = pairs.into_iter().map(|(built, url)| (built.unwrap(), url)).collect();
    let read = |url: &str| C::read(url).unwrap();
    for (built, url) in &pairs {
        assert_eq!(*built, read(url), "{url}");
        let written = built.url().unwrap();
        assert_eq!(read(&written), *built, "{written}");
    }
    // Two different stores are not equal, or the comparison proves nothing.
    for (at, (one, url)) in pairs.iter().enumerate() {
        let twin = pairs[..at].iter().find(|(other, _)| other == one);
        assert_eq!(twin, None, "says the same as {url}");
    }
    let refused = C::read(unknown).map(|_| ()).unwrap_err().to_string();
    let known = refused.split_once("; it has ").unwrap().1.to_owned();
    for parameter in known.split(", ") {
        let is_written = |(built, _): &(C, &str)| {
            let written = built.url().unwrap();
            let query = written.rsplit_once('?').map_or("", |(_, query)| query);
            query.split('&').any(|pair| pair.split_once('=').is_some_and(|(key, _)| key == parameter))
        };
        // The parts of an address have their place before the `?`.
        let is_address = ["host", "user", "password", "dbname"].contains(&parameter);
        assert!(is_address || pairs.iter().any(is_written), "{parameter}= has no builder");
    }
}

#[test]
fn a_redis_store_says_what_its_url_says() {
    let at = || RedisStore::at("db.example");
    let all = at()
        .port(7)
        .user("app")
        .password("p@ss:/?#&%")
        .database(3)
        .key("lock:%s")
        .max_ttl(ms(30_000))
        .claim_ttl(ms(700))
        .connect_timeout(ms(2_000))
        .response_timeout(ms(1_500))
        .retry_max(ms(900))
        .resp2();
    let sentinel = || RedisStore::sentinel(["a", "b:5"], "mymaster");
    let pairs = [
        (at().0.config, "redis://db.example"),
        (at().port(7).0.config, "redis://db.example:7"),
        (at().password("x").0.config, "redis://:x@db.example"),
        (at().user("x").0.config, "redis://x@db.example"),
        (RedisStore::at("::1").port(7).0.config, "redis://[::1]:7"),
        (at().tls().0.config, "rediss://db.example"),
        (at().ca("/etc/ca.pem").0.config, "rediss://db.example?ca=/etc/ca.pem"),
        (at().without_guard().0.config, "redis://db.example?guard=off"),
        (at().retry_max(Duration::from_micros(20_500)).0.config, "redis://db.example?retry_max=20ms%20500us"),
        (
            all.0.config,
            "redis://app:p%40ss:%2F%3F%23%26%25@db.example:7/3?key=lock:%25s&max_ttl=30s&claim_ttl=700ms\
             &connect_timeout=2s&response_timeout=1500ms&retry_max=900ms&protocol=2",
        ),
        (RedisStore::socket("/run/a b/redis.sock").0.config, "redis+unix:///run/a%20b/redis.sock"),
        (sentinel().0.config, "redis-sentinel://a,b:5?master=mymaster"),
        (RedisStore::sentinel(["a", "b"], "m").port(9).tls().0.config, "rediss-sentinel://a:9,b:9?master=m"),
        (
            sentinel().sentinel_user("u").sentinel_password("p&").0.config,
            "redis-sentinel://a,b:5?master=mymaster&sentinel_user=u&sentinel_password=p%26",
        ),
        (
            at().password_file("/pw").identity("/c", "/k").tls_name("n").0.config,
            "rediss://db.example?password_file=/pw&ssl_certfile=/c&ssl_keyfile=/k&tls_name=n",
        ),
        (
            sentinel().sentinel_password_file("/s").map("10.0.0.5:7", "[::1]:8").map("d:9", "e:10").0.config,
            "redis-sentinel://a,b:5?master=mymaster&sentinel_password_file=/s&map=10.0.0.5:7,%5B::1%5D:8,d:9,e:10",
        ),
        (RedisStore::cluster(["a", "b"]).0.config, "redis-cluster://a,b"),
        (RedisStore::cluster(["a", "b"]).tls().0.config, "rediss-cluster://a,b"),
    ];
    compare(pairs, "redis://h?sesame=1");
}

#[test]
fn a_quorum_says_what_its_url_says() {
    let node = |host: &str| RedisStore::at(host).max_ttl(ms(5_000));
    let of = |nodes: [RedisStore; 3]| RedlockStore::of(nodes);
    let pairs = [
        (of(["a", "b", "c"].map(RedisStore::at)), "redlock:redis://a,redis://b,redis://c"),
        (
            of([node("a").password("x,y"), node("b"), node("c").tls()]),
            "redlock:redis://:x%2Cy@a,redis://b,rediss://c?max_ttl=5000ms",
        ),
        (
            of([3, 4, 5].map(|at| RedisStore::socket(format!("/{at}?")).database(2).key("a?%s"))),
            "redlock:redis+unix:///3%3F,redis+unix:///4%3F,redis+unix:///5%3F?db=2&key=a?%25s",
        ),
    ];
    for (built, url) in &pairs {
        let read = |url: &str| {
            let nodes = tenure_redlock::Config::from_url(url).unwrap().nodes;
            nodes.iter().map(|node| redis::Config::from_url(node).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(built.nodes().unwrap(), read(url), "{url}");
        assert_eq!(built.nodes().unwrap(), read(&built.url().unwrap()), "{url}");
    }
    let uneven = of([node("a"), node("b"), RedisStore::at("c")]).url().unwrap_err();
    assert_eq!(uneven.to_string(), "the nodes of a quorum have the same settings");
    assert!(RedlockStore::of([]).url().is_err());
}

#[test]
fn a_postgres_store_says_what_its_url_says() {
    let at = || PostgresStore::at("db.example");
    let all = at()
        .port(7)
        .user("app")
        .password("p@ss:/?#&%")
        .database("or/ders")
        .table("app.locks")
        .listen(&at().port(8).password("a&b"))
        .claim_ttl(ms(700))
        .connect_timeout(ms(3_000))
        .tls(PostgresTls::VerifyFull)
        .ca("/etc/ca.pem")
        .application_name("night shift")
        .may_only_read()
        .options("-c search_path=a");
    let pairs = [
        (at().0.config, "postgres://db.example"),
        (at().database("x").0.config, "postgres://db.example/x"),
        (at().without_listening().0.config, "postgres://db.example?listen=off"),
        (at().tls(PostgresTls::Disable).0.config, "postgres://db.example?sslmode=disable"),
        (
            at().tls(PostgresTls::Prefer).0.config,
            "postgres://db.example?target_session_attrs=read-write&sslmode=prefer",
        ),
        (at().tls(PostgresTls::Require).0.config, "postgres://db.example?sslmode=require"),
        (
            at().ca("/ca").tls(PostgresTls::VerifyCa).0.config,
            "postgres://db.example?sslmode=verify-ca&sslrootcert=/ca",
        ),
        (at().ca("system").0.config, "postgres://db.example?sslrootcert=system"),
        (
            at().channel_binding(PostgresBinding::Require).passfile("/pgpass").0.config,
            "postgres://db.example?channel_binding=require&passfile=/pgpass&keepalives=1&pgbouncer=true",
        ),
        (
            at().user("u").password_file("/pw").identity("/c", "/k").0.config,
            "postgres://u@db.example?password_file=/pw&cert=/c&key=/k",
        ),
        (PostgresStore::any_of(["a", "b:5"]).0.config, "postgres://a,b:5"),
        (PostgresStore::socket("/run/postgresql").port(7).0.config, "postgres://%2Frun%2Fpostgresql?port=7"),
        (
            all.0.config,
            "postgres://app:p%40ss:%2F%3F%23%26%25@db.example/or%2Fders?port=7&table=app.locks\
             &listen=postgres%3A%2F%2F%3Aa%2526b%40db.example%3Fport%3D8&claim_ttl=700ms&connect_timeout=3s\
             &sslmode=verify-full&sslrootcert=/etc/ca.pem&application_name=night%20shift\
             &target_session_attrs=any&options=-c%20search_path%3Da",
        ),
    ];
    compare(pairs, "postgres://h?sesame=1");
}

#[test]
fn a_mysql_store_says_what_its_url_says() {
    let at = || MysqlStore::at("db.example").database("x");
    let all = MysqlStore::at("db.example")
        .port(7)
        .user("app")
        .password("p@ss:/?#&%")
        .database("or/ders")
        .table("app.locks")
        .claim_ttl(ms(700))
        .connect_timeout(ms(3_000))
        .tls(MysqlTls::VerifyIdentity)
        .ca("/etc/ca.pem")
        .identity("/c.pem", "/k.pem")
        .one_writer();
    let pairs = [
        (at().0.config, "mysql://db.example/x"),
        (at().port(7).0.config, "mariadb://db.example:7/x"),
        (at().user("u").password_file("/pw").0.config, "mysql://u@db.example/x?password_file=/pw"),
        (at().user("u").password("p/").0.config, "mysql://u:p%2F@db.example/x"),
        (MysqlStore::at("::1").table("x.locks").0.config, "mysql://[::1]?table=x.locks"),
        (MysqlStore::any_of(["a", "b:5"]).database("x").0.config, "mysql://a,b:5/x"),
        (at().tls(MysqlTls::Disabled).0.config, "mysql://db.example/x?ssl-mode=disabled"),
        (at().tls(MysqlTls::Preferred).0.config, "mysql://db.example/x?ssl-mode=PREFERRED"),
        (at().tls(MysqlTls::Required).0.config, "mysql://db.example/x?ssl-mode=REQUIRED"),
        (at().ca("/ca").0.config, "mysql://db.example/x?ssl-ca=/ca"),
        (
            at().tls(MysqlTls::VerifyCa).ca("/ca").0.config,
            "mysql://db.example/x?ssl-mode=VERIFY_CA&ssl-ca=/ca",
        ),
        (
            MysqlStore::socket("/run/a b.sock").user("root").database("x").0.config,
            "mysql://root@/x?socket=/run/a%20b.sock",
        ),
        (
            all.0.config,
            "mysql://app:p%40ss:%2F%3F%23%26%25@db.example:7/or%2Fders?table=app.locks&claim_ttl=700ms\
             &connect_timeout=3s&ssl-mode=VERIFY_IDENTITY&ssl-ca=/etc/ca.pem&ssl-cert=/c.pem&ssl-key=/k.pem\
             &one_writer=yes",
        ),
    ];
    compare(pairs, "mysql://h/x?sesame=1");
}

#[test]
fn a_zookeeper_store_says_what_its_url_says() {
    let at = || ZooKeeperStore::at(["a", "b:5"]);
    let pairs = [
        (at().0.config, "zookeeper://a,b:5"),
        (ZooKeeperStore::at(["a", "b"]).port(7).0.config, "zookeeper://a:7,b:7"),
        (at().path("/locks/of an/app").0.config, "zookeeper://a,b:5/locks/of%20an/app"),
        (at().like_kazoo().0.config, "zookeeper://a,b:5?layout=kazoo"),
        (at().user("u").password_file("/pw").0.config, "zookeeper://u@a,b:5?password_file=/pw"),
        (at().user("u").password("p/").0.config, "zookeeper://u:p%2F@a,b:5"),
        (at().user("u").password("p").open_to_all().0.config, "zookeeper://u:p@a,b:5?acl=open"),
        (at().user("u").password("p").sasl_digest_md5().0.config, "zookeeper://u:p@a,b:5?sasl=digest-md5"),
        (at().tls("/ca").0.config, "zookeepers://a,b:5?ca=/ca"),
        (at().tls("/ca").identity("/c", "/k").0.config, "zookeepers://a,b:5?ca=/ca&cert=/c&key=/k"),
        (
            at().tick(ms(500)).connect_timeout(ms(250)).0.config,
            "zookeeper://a,b:5?tick=500ms&connect_timeout=250ms",
        ),
    ];
    compare(pairs, "zookeeper://h?sesame=1");
}

#[cfg(feature = "etcd")]
#[test]
fn an_etcd_store_says_what_its_url_says() {
    let at = || EtcdStore::at(["a", "b:5"]);
    let pairs = [
        (at().0.config, "etcd://a,b:5"),
        (EtcdStore::at(["a", "b"]).port(7).0.config, "etcd://a:7,b:7"),
        (at().user("u").password_file("/pw").0.config, "etcd://u@a,b:5?password_file=/pw"),
        (at().user("u").password("p/").0.config, "etcd://u:p%2F@a,b:5"),
        (at().prefix("app/").0.config, "etcd://a,b:5?prefix=app%2F"),
        (at().tls("/ca").0.config, "etcds://a,b:5?ca=/ca"),
        (at().tls("/ca").identity("/c", "/k").0.config, "etcds://a,b:5?ca=/ca&cert=/c&key=/k"),
        (
            at().connect_timeout(ms(60)).response_timeout(ms(70)).0.config,
            "etcd://a,b:5?connect_timeout=60ms&response_timeout=70ms",
        ),
    ];
    compare(pairs, "etcd://h?sesame=1");
}

#[test]
fn a_sqlite_store_says_what_its_url_says() {
    let pairs = [
        (Ok(SqliteStore::at("/a/locks.db").config), "sqlite:/a/locks.db"),
        (Ok(SqliteStore::at("a b?c").config), "sqlite:a b?c?"),
        (Ok(SqliteStore::at("/a?b").claim_ttl(ms(60)).config), "sqlite:/a?b?claim_ttl=60ms"),
    ];
    compare(pairs, "sqlite:/a?sesame=1");
}

/// A program may have a path that is not UTF-8, which no URL can express.
#[test]
fn a_path_that_is_no_text_is_for_builders_only() {
    let odd = std::path::Path::new(OsStr::from_bytes(b"/\xff"));
    assert_eq!(SqliteStore::at(odd).config.path, odd);
    assert_eq!(RedisStore::socket(odd).0.config.unwrap().topology, redis::Topology::Socket(odd.into()));
    assert_eq!(PostgresStore::at("h").ca(odd).0.config.unwrap().ca.as_deref(), Some(odd));
    assert_eq!(MysqlStore::socket(odd).0.config.unwrap().socket.as_deref(), Some(odd));
    for url in [
        SqliteStore::at(odd).url(),
        RedisStore::socket(odd).url(),
        RedisStore::at("h").ca(odd).url(),
        PostgresStore::at("h").ca(odd).url(),
        MysqlStore::at("h").database("x").ca(odd).url(),
        MysqlStore::socket(odd).database("x").url(),
    ] {
        assert_eq!(url.unwrap_err().to_string(), "the path of a file is not UTF-8");
    }
}

/// A value that is not a host could become another part of the URL: a login, a path, a setting.
#[test]
fn what_no_url_can_say_is_refused_before_anything_is_read() {
    let refused = [
        RedisStore::at("h/1").url(),
        RedisStore::at("h?guard=off").url(),
        RedisStore::at("u:p@h").url(),
        RedisStore::at("").url(),
        RedisStore::cluster::<&str>([]).url(),
        RedisStore::at("h:7").port(8).url(),
        RedisStore::socket("redis.sock").url(),
        RedisStore::socket("/redis.sock").tls().url(),
        PostgresStore::at("h,g/x").url(),
        PostgresStore::socket("run").url(),
        MysqlStore::at("h/1").database("x").url(),
        MysqlStore::at("h:7").port(8).database("x").url(),
        MysqlStore::any_of::<&str>([]).database("x").url(),
        PostgresStore::at("h").listen(&PostgresStore::at("")).url(),
        ZooKeeperStore::at(["a", "b#"]).url(),
    ];
    for (at, answer) in refused.iter().enumerate() {
        assert!(matches!(answer, Err(ConfigError::Url(_))), "{at}: {answer:?}");
    }
}

/// A store has the same rules as its URL.
#[tokio::test]
async fn a_setting_out_of_range_is_refused_as_in_a_url() {
    let said = |answer: Result<crate::Locker, ConfigError>| answer.map(drop).unwrap_err().to_string();
    let built = said(RedisStore::at("h").max_ttl(ms(1)).connect().await);
    assert_eq!(built, said(connect::connect("redis://h?max_ttl=1ms").await));
    assert!(built.starts_with("max_ttl= lies outside"), "{built}");
    let built = said(ZooKeeperStore::at(["h"]).user("u").connect().await);
    assert_eq!(built, said(connect::connect("zookeeper://u@h").await));
    let longest = said(RedisStore::at("h").max_ttl(Duration::MAX).connect().await);
    assert!(longest.starts_with("max_ttl= "), "{longest}");
}

fn plain(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

proptest! {
    /// A login is any text, and is in no `Debug`.
    #[test]
    fn any_login_arrives_and_is_not_shown(password in "sesame.*", user in "[^:]+", path in "/[^\0]*") {
        let login = format!("{}:{}@h", plain(&user), plain(&password));
        let redis = RedisStore::at("h").user(&user).password(&password);
        let expected = redis::Config::from_url(&format!("redis://{login}")).unwrap();
        prop_assert!(redis::Config::from_url(&redis.url().unwrap()).unwrap() == expected);
        let postgres = PostgresStore::at("h").user(&user).password(&password).database(&user);
        let expected = postgres::Config::from_url(&format!("postgres://{login}/{}", plain(&user))).unwrap();
        prop_assert!(postgres::Config::from_url(&postgres.url().unwrap()).unwrap() == expected);
        let mysql = MysqlStore::at("h").user(&user).password(&password).database(&user);
        let expected = mysql::Config::from_url(&format!("mysql://{login}/{}", plain(&user))).unwrap();
        prop_assert!(mysql::Config::from_url(&mysql.url().unwrap()).unwrap() == expected);

        let redis = redis.sentinel_password("sesame");
        let quorum = RedlockStore::of([redis.clone()]);
        let listening = PostgresStore::at("h").listen(&postgres);
        let zookeeper = ZooKeeperStore::at(["h"]).user("u").password(&password);
        let shown = [format!("{redis:?}"), format!("{quorum:?}"), format!("{postgres:?}"), format!("{listening:?}")];
        for shown in shown.into_iter().chain([format!("{zookeeper:?}"), format!("{mysql:?}")]) {
            prop_assert!(!shown.contains("sesame") && shown.contains("\"h\""), "{}", shown);
        }
        let file = SqliteStore::at(&path).url().unwrap();
        let read = sqlite::Config::from_url(&file);
        prop_assert!(read.is_ok_and(|read| read == sqlite::Config::new(&path)), "{}", file);
    }
}

/// A URL in the place of a host was refused, but shown with its password.
#[test]
fn what_is_no_host_is_not_shown() {
    for slip in ["redis://:secret@db", "app:secret@db", "db/secret"] {
        let (redis, postgres, mysql) = (RedisStore::at(slip), PostgresStore::at(slip), MysqlStore::at(slip));
        assert!(!format!("{redis:?} {postgres:?} {mysql:?}").contains("secret"), "{slip}");
        assert!(!redis.url().unwrap_err().to_string().contains("secret"), "{slip}");
    }
}

/// The nodes of a quorum have the same settings, in whatever order they were set.
#[test]
fn the_order_of_settings_says_nothing() {
    let node = |host: &str| RedisStore::at(host).without_guard().max_ttl(ms(5000));
    let other = RedisStore::at("c").max_ttl(ms(5000)).without_guard();
    assert!(RedlockStore::of([node("a"), node("b"), other]).url().is_ok());
    let differs = RedisStore::at("c").max_ttl(ms(6000)).without_guard();
    assert!(RedlockStore::of([node("a"), node("b"), differs]).url().is_err());
}

/// A URL in a settings file is the store that the builder makes, and a wrong one names the error.
#[test]
fn a_store_is_read_from_its_url() {
    let read: RedisStore = "rediss://app:x@db.example/3?max_ttl=30s".parse().unwrap();
    let built = RedisStore::at("db.example").tls().user("app").password("x").database(3).max_ttl(ms(30_000));
    assert_eq!(read.url().unwrap(), built.url().unwrap());
    let quorum: RedlockStore = "redlock:redis://a,redis://b,redis://c?max_ttl=5s".parse().unwrap();
    let built = RedlockStore::of(["a", "b", "c"].map(|host| RedisStore::at(host).max_ttl(ms(5000))));
    assert_eq!(quorum.url().unwrap(), built.url().unwrap());
    assert_eq!("sqlite:/var/locks.db".parse::<SqliteStore>().unwrap().url().unwrap(), "sqlite:/var/locks.db");
    let postgres: PostgresStore = "postgres://app@db.example/app".parse().unwrap();
    assert_eq!(postgres.url().unwrap(), "postgres://app@db.example/app");
    let mysql: MysqlStore = "mariadb://app@db.example/app".parse().unwrap();
    assert_eq!(mysql.url().unwrap(), "mysql://app@db.example:3306/app");
    assert!("redis://a?max_tll=5s".parse::<RedisStore>().unwrap_err().to_string().contains("max_ttl"));
    assert!("redis://a".parse::<PostgresStore>().is_err());
}

#[cfg(feature = "serde")]
#[test]
fn a_store_stands_in_a_file_of_settings_as_its_url() {
    #[derive(serde::Deserialize)]
    struct Settings {
        locks: RedisStore,
    }

    let settings: Settings = serde_json::from_str(r#"{ "locks": "redis://db.example:7" }"#).unwrap();
    assert_eq!(settings.locks.url().unwrap(), "redis://db.example:7");
    let wrong = serde_json::from_str::<Settings>(r#"{ "locks": "redis://db.example?ttl=1" }"#).err().unwrap();
    assert!(wrong.to_string().contains("ttl"), "{wrong}");
}

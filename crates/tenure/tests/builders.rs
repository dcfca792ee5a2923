//! Each store by a URL and by a builder: what is read is the same, for every setting that there is.

use std::{fmt::Debug, time::Duration};

use proptest::prelude::*;
#[cfg(feature = "etcd")]
use tenure::EtcdStore;
use tenure::{
    ConfigError, PostgresStore, PostgresTls, RedisStore, RedlockStore, SqliteStore, ZooKeeperStore,
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What a builder wrote, and the URL that somebody would write.
type Pair = (Result<String, ConfigError>, &'static str);

/// Reads both, and sees that no setting of the store is left out.
fn compare<C: PartialEq, E: Debug + ToString>(
    read: impl Fn(&str) -> Result<C, E>,
    pairs: &[Pair],
    unknown: &str,
) {
    for (written, url) in pairs {
        let written = written.as_ref().unwrap();
        let (built, expected) = (read(written).unwrap(), read(url).unwrap());
        assert!(built == expected, "{written} is not {url}");
    }
    // Two that differ are told apart, or the above says nothing.
    let texts: Vec<&str> = pairs.iter().map(|(_, url)| *url).collect();
    for (at, one) in texts.iter().enumerate() {
        let twin = texts[..at].iter().find(|other| read(other).unwrap() == read(one).unwrap());
        assert_eq!(twin, None, "says the same as {one}");
    }
    let refused = read(unknown).map(|_| ()).unwrap_err().to_string();
    let known = refused.split_once("; it has ").unwrap().1.to_owned();
    for parameter in known.split(", ") {
        let is_written = |(written, _): &&Pair| {
            let written = written.as_ref().unwrap();
            let query = written.rsplit_once('?').map_or("", |(_, query)| query);
            query.split('&').any(|pair| pair.split_once('=').is_some_and(|(key, _)| key == parameter))
        };
        // The parts of an address have their place before the `?`.
        let is_address = ["host", "user", "password", "dbname"].contains(&parameter);
        assert!(is_address || pairs.iter().any(|pair| is_written(&pair)), "{parameter}= has no builder");
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
        .guard(true)
        .max_ttl(ms(30_000))
        .claim_ttl(ms(700))
        .connect_timeout(ms(2_000))
        .response_timeout(ms(1_500))
        .retry_max(ms(900))
        .resp3(false);
    let sentinel = || RedisStore::sentinel(["a", "b:5"], "mymaster");
    let pairs = [
        (at().url(), "redis://db.example"),
        (at().port(7).url(), "redis://db.example:7"),
        (at().password("x").url(), "redis://:x@db.example"),
        (at().user("x").url(), "redis://x@db.example"),
        (RedisStore::at("::1").port(7).url(), "redis://[::1]:7"),
        (at().tls().url(), "rediss://db.example"),
        (at().ca("/etc/ca.pem").url(), "rediss://db.example?ca=/etc/ca.pem"),
        (at().guard(true).guard(false).url(), "redis://db.example?guard=off"),
        (at().retry_max(Duration::from_micros(20_500)).url(), "redis://db.example?retry_max=20ms%20500us"),
        (
            all.url(),
            "redis://app:p%40ss:%2F%3F%23%26%25@db.example:7/3?key=lock:%25s&max_ttl=30s&claim_ttl=700ms\
             &connect_timeout=2s&response_timeout=1500ms&retry_max=900ms&protocol=2",
        ),
        (RedisStore::socket("/run/a b/redis.sock").url(), "redis+unix:///run/a%20b/redis.sock"),
        (sentinel().url(), "redis-sentinel://a,b:5?master=mymaster"),
        (RedisStore::sentinel(["a", "b"], "m").port(9).tls().url(), "rediss-sentinel://a:9,b:9?master=m"),
        (
            sentinel().sentinel_user("u").sentinel_password("p&").url(),
            "redis-sentinel://a,b:5?master=mymaster&sentinel_user=u&sentinel_password=p%26",
        ),
        (RedisStore::cluster(["a", "b"]).url(), "redis-cluster://a,b"),
        (RedisStore::cluster(["a", "b"]).tls().url(), "rediss-cluster://a,b"),
    ];
    compare(tenure_redis::Config::from_url, &pairs, "redis://h?sesame=1");
}

#[test]
fn a_quorum_says_what_its_url_says() {
    let node = |host: &str| RedisStore::at(host).max_ttl(ms(5_000));
    let of = |nodes: [RedisStore; 3]| RedlockStore::of(nodes).url();
    let pairs = [
        (of(["a", "b", "c"].map(RedisStore::at)), "redlock:redis://a,redis://b,redis://c"),
        (
            of([node("a").password("x,y"), node("b"), node("c").tls()]),
            "redlock:redis://:x%2Cy@a,redis://b,rediss://c?max_ttl=5000ms",
        ),
    ];
    for (written, url) in &pairs {
        let read = |url: &str| tenure_redlock::Config::from_url(url).unwrap();
        assert!(read(written.as_ref().unwrap()) == read(url), "{written:?} is not {url}");
    }
    let uneven = of([node("a"), node("b"), RedisStore::at("c")]).unwrap_err();
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
        .must_write(true)
        .options("-c search_path=a");
    let pairs = [
        (at().url(), "postgres://db.example"),
        (at().database("x").url(), "postgres://db.example/x"),
        (at().without_listening().url(), "postgres://db.example?listen=off"),
        (at().tls(PostgresTls::Disable).url(), "postgres://db.example?sslmode=disable"),
        (at().tls(PostgresTls::Require).url(), "postgres://db.example?sslmode=require"),
        (
            at().ca("/ca").tls(PostgresTls::VerifyCa).url(),
            "postgres://db.example?sslmode=verify-ca&sslrootcert=/ca",
        ),
        (at().ca("system").url(), "postgres://db.example?sslrootcert=system"),
        (PostgresStore::any_of(["a", "b:5"]).must_write(true).url(), "postgres://a,b:5"),
        (PostgresStore::socket("/run/postgresql").port(7).url(), "postgres://%2Frun%2Fpostgresql?port=7"),
        (
            all.url(),
            "postgres://app:p%40ss:%2F%3F%23%26%25@db.example:7/or%2Fders?table=app.locks\
             &listen=postgres%3A%2F%2F%3Aa%2526b%40db.example%3A8&claim_ttl=700ms&connect_timeout=3s\
             &sslmode=verify-full&sslrootcert=/etc/ca.pem&application_name=night%20shift\
             &target_session_attrs=read-write&options=-c%20search_path%3Da",
        ),
    ];
    compare(tenure_postgres::Config::from_url, &pairs, "postgres://h?sesame=1");
    let explicit = (at().tls(PostgresTls::Prefer).must_write(false).url(), "postgres://db.example");
    compare(tenure_postgres::Config::from_url, &[&pairs[1..], &[explicit]].concat(), "postgres://h?sesame=1");
}

#[test]
fn a_zookeeper_store_says_what_its_url_says() {
    let at = || ZooKeeperStore::at(["a", "b:5"]);
    let pairs = [
        (at().url(), "zookeeper://a,b:5"),
        (ZooKeeperStore::at(["a", "b"]).port(7).url(), "zookeeper://a:7,b:7"),
        (at().path("/locks/of an/app").url(), "zookeeper://a,b:5/locks/of%20an/app"),
        (at().like_kazoo().url(), "zookeeper://a,b:5?layout=kazoo"),
        (at().user("u").password("p/").url(), "zookeeper://u:p%2F@a,b:5"),
        (at().user("u").password("p").open_to_all().url(), "zookeeper://u:p@a,b:5?acl=open"),
        (
            at().tick(ms(500)).connect_timeout(ms(250)).url(),
            "zookeeper://a,b:5?tick=500ms&connect_timeout=250ms",
        ),
    ];
    compare(tenure_zookeeper::Config::from_url, &pairs, "zookeeper://h?sesame=1");
}

#[cfg(feature = "etcd")]
#[test]
fn an_etcd_store_says_what_its_url_says() {
    let at = || EtcdStore::at(["a", "b:5"]);
    let pairs = [
        (at().url(), "etcd://a,b:5"),
        (EtcdStore::at(["a", "b"]).port(7).url(), "etcd://a:7,b:7"),
        (at().user("u").password("p/").url(), "etcd://u:p%2F@a,b:5"),
        (at().prefix("app/").url(), "etcd://a,b:5?prefix=app%2F"),
        (at().tls("/ca").url(), "etcds://a,b:5?ca=/ca"),
        (at().tls("/ca").identity("/c", "/k").url(), "etcds://a,b:5?ca=/ca&cert=/c&key=/k"),
        (
            at().connect_timeout(ms(60)).response_timeout(ms(70)).url(),
            "etcd://a,b:5?connect_timeout=60ms&response_timeout=70ms",
        ),
    ];
    compare(tenure_etcd::Config::from_url, &pairs, "etcd://h?sesame=1");
}

#[test]
fn a_sqlite_store_says_what_its_url_says() {
    let pairs = [
        (SqliteStore::at("/a/locks.db").url(), "sqlite:/a/locks.db"),
        (SqliteStore::at("a b?c").url(), "sqlite:a b?c?"),
        (SqliteStore::at("/a?b").claim_ttl(ms(60)).url(), "sqlite:/a?b?claim_ttl=60ms"),
    ];
    compare(tenure_sqlite::Config::from_url, &pairs, "sqlite:/a?sesame=1");
}

/// What is no host could become another part of the URL: a login, a path, a setting.
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
        PostgresStore::at("h").listen(&PostgresStore::at("")).url(),
        ZooKeeperStore::at(["a", "b#"]).url(),
    ];
    for (at, answer) in refused.iter().enumerate() {
        assert!(matches!(answer, Err(ConfigError::Url(_))), "{at}: {answer:?}");
    }
}

/// A store's own rules are those of its URL, and say the same.
#[tokio::test]
async fn a_setting_out_of_range_is_refused_as_in_a_url() {
    let said = |answer: Result<tenure::Locker, ConfigError>| answer.map(drop).unwrap_err().to_string();
    let built = said(RedisStore::at("h").max_ttl(ms(1)).connect().await);
    assert_eq!(built, said(tenure::connect("redis://h?max_ttl=1ms").await));
    assert!(built.starts_with("max_ttl= lies outside"), "{built}");
    let built = said(ZooKeeperStore::at(["h"]).user("u").connect().await);
    assert_eq!(built, said(tenure::connect("zookeeper://u@h").await));
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
        let expected = tenure_redis::Config::from_url(&format!("redis://{login}")).unwrap();
        prop_assert!(tenure_redis::Config::from_url(&redis.url().unwrap()).unwrap() == expected);
        let postgres = PostgresStore::at("h").user(&user).password(&password).database(&user);
        let expected = tenure_postgres::Config::from_url(&format!("postgres://{login}/{}", plain(&user))).unwrap();
        prop_assert!(tenure_postgres::Config::from_url(&postgres.url().unwrap()).unwrap() == expected);

        let redis = redis.sentinel_password("sesame");
        let quorum = RedlockStore::of([redis.clone()]);
        let listening = PostgresStore::at("h").listen(&postgres);
        let zookeeper = ZooKeeperStore::at(["h"]).user("u").password(&password);
        let shown = [format!("{redis:?}"), format!("{quorum:?}"), format!("{postgres:?}"), format!("{listening:?}")];
        for shown in shown.into_iter().chain([format!("{zookeeper:?}")]) {
            prop_assert!(!shown.contains("sesame") && shown.contains("\"h\""), "{}", shown);
        }
        let file = SqliteStore::at(&path).url().unwrap();
        let read = tenure_sqlite::Config::from_url(&file);
        prop_assert!(read.is_ok_and(|read| read == tenure_sqlite::Config::new(&path)), "{}", file);
    }
}

/// A URL where a host belongs was refused and shown all the same, with its password.
#[test]
fn what_is_no_host_is_not_shown() {
    for slip in ["redis://:secret@db", "app:secret@db", "db/secret"] {
        let (redis, postgres) = (RedisStore::at(slip), PostgresStore::at(slip));
        assert!(!format!("{redis:?} {postgres:?}").contains("secret"), "{slip}");
        assert!(!redis.url().unwrap_err().to_string().contains("secret"), "{slip}");
    }
}

/// The nodes of a quorum have the same settings, in whatever order they were said.
#[test]
fn the_order_of_settings_says_nothing() {
    let node = |host: &str| RedisStore::at(host).guard(false).max_ttl(ms(5000));
    let other = RedisStore::at("c").max_ttl(ms(5000)).guard(false);
    assert!(RedlockStore::of([node("a"), node("b"), other]).url().is_ok());
    let differs = RedisStore::at("c").max_ttl(ms(6000)).guard(false);
    assert!(RedlockStore::of([node("a"), node("b"), differs]).url().is_err());
}

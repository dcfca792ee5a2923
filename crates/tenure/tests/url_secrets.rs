//! Passwords that are not percent-encoded: in no error of any store, however they cut the URL.

use std::{error::Error, fmt::Debug};

use proptest::{collection::vec, prelude::*, sample::select};

/// Stands in no word of ours.
const MARK: &str = "sesame";

/// What ends a password where somebody reads another part of the URL, and what may stand between.
const PIECES: [&str; 24] = [
    "?",
    "/",
    "#",
    "@",
    "&",
    ",",
    " ",
    "[",
    "]",
    ":",
    "%",
    "%FF",
    "=",
    "12",
    "x",
    MARK,
    MARK,
    "?key=",
    "&guard=",
    "&tick=",
    "&claim_ttl=",
    "://",
    "//",
    ";",
];

/// URLs with a place for a password.
const URLS: [&str; 23] = [
    "redis://app:PASS@db/0",
    "redis://:PASS@db:6379?guard=off",
    "rediss://app:PASS@[::1]:7?x=1",
    "redis-sentinel://h?master=m&sentinel_password=PASS",
    "redis-sentinel://u:PASS@a,b?master=m",
    "redis-cluster://u:PASS@a,b:7000",
    "redlock:redis://app:PASS@a,redis://b,redis://c",
    "redlock:redis://a,redis://b,redis://u:PASS@c?max_ttl=10s",
    "postgres://app:PASS@db/x",
    "postgresql://app:PASS@a,b:5/x?table=t",
    "postgres://db/x?user=u&password=PASS",
    "postgres://db/x?listen=postgres://u:PASS@h/d",
    "mysql://app:PASS@db/x",
    "mariadb://app:PASS@a,b:5/x?table=t",
    "mysql://app:PASS@/x?socket=/s&ssl-mode=yes",
    "zookeeper://app:PASS@db",
    "zookeeper://app:PASS@a,b/locks?tick=1s",
    "etcd://app:PASS@db",
    "etcds://app:PASS@a,b?ca=/x",
    "reddis://app:PASS@db",
    "app:PASS@db",
    "PASS@db",
    "PASS",
];

fn password() -> impl Strategy<Value = String> {
    vec(select(PIECES.to_vec()), 0..6).prop_map(|pieces| pieces.concat() + MARK)
}

fn assert_silent(url: &str, said: &impl Debug, shown: &str) {
    assert!(!format!("{said:?} {shown}").contains(MARK), "{url}: {said:?} {shown}");
}

/// What reading a URL says, whether it is refused or not.
fn assert_read_silently<C: Debug, E: Error>(url: &str, read: &Result<C, E>) {
    match read {
        Ok(config) => assert_silent(url, config, ""),
        Err(error) => assert_silent(url, error, &error.to_string()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// Behind a `?` or a `/` the rest of a password was read as a parameter, a path or a port, and errors named it.
    #[test]
    fn no_error_has_a_part_of_a_password(url in select(URLS.to_vec()), password in password()) {
        let url = url.replace("PASS", &password);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        if let Err(error) = runtime.block_on(tenure::connect(&url)) {
            assert_silent(&url, &error, &error.to_string());
        }
        let redis = tenure_redis::Config::from_url(&url);
        assert_read_silently(&url, &redis);
        if let Ok(config) = redis {
            assert_silent(&url, &config.place_name(), "");
            assert_read_silently(&url, &config.in_quorum(3));
        }
        let postgres = tenure_postgres::Config::from_url(&url);
        assert_read_silently(&url, &postgres);
        assert_read_silently(&url, &postgres.map(|config| config.place_name()));
        #[cfg(feature = "mysql")]
        {
            let mysql = tenure_mysql::Config::from_url(&url);
            assert_read_silently(&url, &mysql);
            assert_read_silently(&url, &mysql.map(|config| config.place_name()));
        }
        let zookeeper = tenure_zookeeper::Config::from_url(&url);
        assert_read_silently(&url, &zookeeper);
        assert_read_silently(&url, &zookeeper.map(|config| config.place_name()));
        #[cfg(feature = "etcd")]
        {
            let etcd = tenure_etcd::Config::from_url(&url);
            assert_read_silently(&url, &etcd);
            assert_read_silently(&url, &etcd.map(|config| config.place_name()));
        }
        assert_read_silently(&url, &tenure_redlock::Config::from_url(&url).map(|_| ()));
    }
}

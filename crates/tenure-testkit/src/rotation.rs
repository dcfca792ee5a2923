//! `Rotating`: a server with a user whose password changes while connections are open.

use std::{
    fs,
    io::Write,
    process::{Child, Stdio},
};

use crate::{etcd, mysql::MysqlServer, postgres::PostgresServer, redis::RedisServer};

/// A server whose user `locks` has the password `old` at first.
pub struct Rotating {
    url: String,
    change: Box<dyn Fn(&str) + Send + Sync>,
}

impl Rotating {
    /// The URL of the user, without a password. More settings may follow, each with a `&` before it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Gives the user this password, and ends the connections or sessions that the user had before.
    pub fn change(&self, word: &str) {
        (self.change)(word);
    }

    /// Redis: a change ends the user's connections.
    pub fn redis() -> Self {
        let server = RedisServer::start();
        server.command(&["ACL", "SETUSER", "locks", "on", ">old", "~*", "&*", "+@all"]);
        let url = format!("redis://locks@{}/?guard=off", server.address());
        let change = move |word: &str| {
            server.command(&["ACL", "SETUSER", "locks", "resetpass", &format!(">{word}")]);
            server.command(&["CLIENT", "KILL", "USER", "locks"]);
        };
        Self { url, change: Box::new(change) }
    }

    /// PostgreSQL: a change ends the user's connections.
    ///
    /// # Panics
    /// If its files cannot be written.
    pub fn postgres() -> Self {
        let server = PostgresServer::start();
        server.psql("CREATE ROLE locks LOGIN SUPERUSER PASSWORD 'old'");
        let hba = "local all all trust\nhost all locks 127.0.0.1/32 scram-sha-256\n";
        fs::write(server.data().join("pg_hba.conf"), hba).expect("a file of the server");
        server.psql("SELECT pg_reload_conf()");
        let url = format!("postgres://locks@{}/tenure?sslmode=disable", server.address());
        let change = move |word: &str| {
            server.psql(&format!("ALTER ROLE locks PASSWORD '{word}'"));
            server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'locks'");
        };
        Self { url, change: Box::new(change) }
    }

    /// MariaDB: a change ends the user's connections.
    pub fn mysql() -> Self {
        let server = MysqlServer::start();
        server.sql(
            "CREATE USER locks@'127.0.0.1' IDENTIFIED BY 'old'; GRANT ALL ON tenure.* TO locks@'127.0.0.1'",
        );
        let url = format!("mysql://locks@{}/tenure?ssl-mode=DISABLED", server.address());
        let change = move |word: &str| {
            let user = "locks@'127.0.0.1'";
            server.sql(&format!("ALTER USER {user} IDENTIFIED BY '{word}'; KILL USER {user}"));
        };
        Self { url, change: Box::new(change) }
    }

    /// etcd: it ends the sessions of a user whose password changes, but not the connections.
    pub fn etcd() -> Self {
        let server = etcd::Recipe::new().login("secret").start();
        for arguments in [
            &["user", "add", "locks:old"][..],
            &["role", "add", "locks"],
            &["role", "grant-permission", "locks", "--prefix=true", "readwrite", ""],
            &["user", "grant-role", "locks", "locks"],
        ] {
            server.ask(arguments);
        }
        let url = format!("etcd://locks@{}?response_timeout=500ms", server.address());
        let change = move |word: &str| {
            let mut changes = server.etcdctl(&["user", "passwd", "locks", "--interactive=false"]);
            let child = changes.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
            let is_changed = child.and_then(|mut child: Child| {
                child.stdin.take().expect("it is piped").write_all(format!("{word}\n").as_bytes())?;
                child.wait()
            });
            assert!(is_changed.is_ok_and(|status| status.success()), "etcdctl changes no password");
        };
        Self { url, change: Box::new(change) }
    }
}

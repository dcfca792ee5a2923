//! `Recipe`: how a Redis server is started.

use std::{fmt::Write, path::Path};

use crate::{clock::Clock, redis::certificates::Certificates};

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    pub(crate) kind: Kind,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) login: Option<(String, String)>,
    pub(crate) certificates: Option<Certificates>,
    pub(crate) needs_bus: bool,
    config: String,
    /// Keeps the clock's files for as long as this recipe may start a server.
    clock: Option<Clock>,
}

/// When a server that keeps its data writes to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Before it is answered.
    Always,
    /// Once a second: the last second may be lost with the machine, not with the process.
    EverySecond,
}

/// The kind of process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Server,
    Sentinel,
}

impl Recipe {
    /// Without persistence, and with defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// A sentinel with these settings.
    pub(crate) fn sentinel() -> Self {
        Self { kind: Kind::Sentinel, ..Self::default() }
    }

    /// With these arguments on the command line. They override the file of settings.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// With these environment variables.
    #[must_use]
    pub fn env(mut self, env: Vec<(String, String)>) -> Self {
        self.env.extend(env);
        self
    }

    /// With these lines in its file of settings. A server may rewrite that file, for example when a sentinel promotes
    /// it. The next start uses what it wrote.
    #[must_use]
    pub fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self.config.push('\n');
        self
    }

    /// The server uses this wall clock.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = Some(clock.clone());
        self.env(clock.env())
    }

    /// It keeps its data when it is started again.
    #[must_use]
    pub fn persistent(self, sync: Sync) -> Self {
        let sync = match sync {
            Sync::Always => "always",
            Sync::EverySecond => "everysec",
        };
        self.config(&format!("appendonly yes\nappendfsync {sync}"))
    }

    /// It has `bytes` bytes for its data, and this `maxmemory-policy` for when they are full.
    #[must_use]
    pub fn memory(self, bytes: u64, policy: &str) -> Self {
        self.config(&format!("maxmemory {bytes}\nmaxmemory-policy {policy}"))
    }

    /// A replica of the server on this port, which may be a proxy's.
    #[must_use]
    pub fn replica_of(self, port: u16) -> Self {
        self.config(&format!("replicaof 127.0.0.1 {port}"))
    }

    /// It speaks TLS only. The server's own [`command`](super::RedisServer::command) goes through a socket in the
    /// file system then.
    #[must_use]
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some(certificates.clone());
        self
    }

    /// The same, and it demands a certificate of each client. It shows one to its own master.
    #[must_use]
    pub fn mutual_tls(self, certificates: &Certificates) -> Self {
        self.tls(certificates).config(&certificates.settings_of_peers())
    }

    /// The server's own [`raw`](super::RedisServer::raw) and [`command`](super::RedisServer::command) log in as this
    /// user. [`config`](Self::config) defines the users: `user lock on >password ~* &* +@all`.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// A cluster of this node alone, once it has all slots.
    #[must_use]
    pub fn alone_in_a_cluster(self) -> Self {
        self.node(1_000)
    }

    /// A node of a cluster, once it has met the others. Masters ping every second: only then does a cluster
    /// count a replica of an empty master (`isReplicaAvailable`).
    #[must_use]
    pub(crate) fn node(mut self, timeout_ms: u128) -> Self {
        self.needs_bus = true;
        self.config(&format!(
            "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-node-timeout {timeout_ms}\n\
             repl-ping-replica-period 1"
        ))
    }

    /// The file of settings. The lines of the test come last, so they override the others.
    pub(crate) fn settings(&self, folder: &Path, port: u16) -> String {
        let mut text = format!("bind 127.0.0.1\ndir {}\n", folder.display());
        match &self.certificates {
            None => writeln!(text, "port {port}"),
            Some(certificates) => writeln!(text, "port 0\n{}", certificates.settings(port)),
        }
        .expect("a text takes what is written");
        text.push_str("unixsocket redis.sock\n");
        if self.kind == Kind::Server {
            // A master would wait 5 s for more replicas before it answers the first.
            text.push_str("save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n");
        }
        text + &self.config
    }
}

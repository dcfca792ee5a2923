//! `EtcdServer`: one process that a test starts, asks, stops, kills and starts again.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use crate::{daemon::Daemon, etcd::recipe::Recipe, folder, ports};

/// A server, alone or a member of a cluster, that dies with the test.
#[derive(Debug)]
pub struct EtcdServer {
    pub(crate) recipe: Recipe,
    name: String,
    ports: Ports,
    /// `--initial-cluster`: every member, this one too.
    pub(crate) members: String,
    pub(crate) daemon: Daemon,
    // Last: the process must end before its folder is deleted.
    folder: TempDir,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    client: u16,
    peer: u16,
    /// For health and metrics, without TLS and login.
    metrics: u16,
}

impl EtcdServer {
    pub(crate) fn prepare(recipe: Recipe, number: usize) -> Self {
        // A durable server needs a disk: in memory, nothing reaches one.
        let place = if recipe.is_durable { folder::temporary } else { folder::of_server };
        let folder = place("tenure-etcd-");
        let free = || ports::free(false);
        let ports = Ports { client: free(), peer: free(), metrics: free() };
        let name = format!("m{number}");
        Self { recipe, name, ports, members: String::new(), daemon: Daemon::default(), folder }
    }

    /// `NAME=URL`, as a member is called in `--initial-cluster`.
    pub(crate) fn as_member(&self) -> String {
        format!("{}=http://127.0.0.1:{}", self.name, self.ports.peer)
    }

    /// Starts the process and waits until `serves`. If it ends before that, the error is the end of its log.
    pub(crate) fn launch(&self, serves: impl Fn(&Self) -> bool) -> Result<(), String> {
        self.daemon.launch(self.folder.path(), |_| self.command_line(), |_| serves(self))
    }

    fn command_line(&self) -> Command {
        let client = format!("{}://{}", self.recipe.scheme(), self.address());
        let peer = format!("http://127.0.0.1:{}", self.ports.peer);
        let mut command = Command::new("etcd");
        command
            .env_clear()
            .args(["--name", &self.name, "--data-dir"])
            .arg(self.folder.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--listen-metrics-urls", &format!("http://127.0.0.1:{}", self.ports.metrics)])
            .args(["--initial-cluster", &self.members, "--initial-cluster-state", "new"])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args((!self.recipe.is_durable).then_some("--unsafe-no-fsync=true"))
            .args(self.recipe.server_args())
            .current_dir(self.folder.path());
        command
    }

    /// The port of its clients, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.ports.client
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// `etcd://127.0.0.1:PORT` with this query; `etcds:` if it speaks TLS.
    pub fn url(&self, query: &str) -> String {
        url(&self.recipe, &self.address(), query)
    }

    /// The id of its process.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Whether there is a process: it was not killed, and has not ended by itself.
    pub fn is_running(&self) -> bool {
        self.daemon.is_running()
    }

    /// The end of its log.
    pub(crate) fn last_words(&self) -> String {
        self.daemon.last_words(self.folder.path())
    }

    /// Kills it as a crash does, and waits until it has ended. It may be stopped, or have ended already.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Starts it again after a [`kill`](Self::kill): the same ports, folder and data. Waits until it serves.
    ///
    /// # Panics
    /// If it runs, or does not serve in time.
    pub fn start_again(&self) {
        self.daemon.insist(|| self.launch(Self::is_healthy));
    }

    /// Suspends it: the process does nothing, and its connections stay open. Returns when it has stopped.
    ///
    /// # Panics
    /// If it was killed.
    pub fn stop(&self) {
        self.daemon.stop();
    }

    /// Continues it after a [`stop`](Self::stop).
    ///
    /// # Panics
    /// If it was killed.
    pub fn resume(&self) {
        self.daemon.resume();
    }

    /// A command that runs `etcdctl`, etcd's own client, with these arguments for this member, as `root` where there
    /// is one.
    pub fn etcdctl(&self, arguments: &[&str]) -> Command {
        self.etcdctl_as(&self.recipe, arguments)
    }

    pub(crate) fn etcdctl_as(&self, recipe: &Recipe, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command
            .env_clear()
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &format!("{}://{}", self.recipe.scheme(), self.address())])
            .args(recipe.client_args())
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// What [`etcdctl`](Self::etcdctl) prints.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn ask(&self, arguments: &[&str]) -> String {
        let output = self.etcdctl(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("cannot start etcdctl: {error}"));
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {arguments:?}: {words}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The sum of its metrics whose lines begin with this, such as `grpc_server_handled_total{`.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn metric(&self, beginning: &str) -> f64 {
        let text = self.get("/metrics").expect("a server that serves has numbers");
        let lines = text.lines().filter(|line| line.starts_with(beginning));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    }

    /// Whether it is the leader of its cluster, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.get("/metrics").is_some_and(|text| text.lines().any(|line| line == "etcd_server_is_leader 1"))
    }

    /// Whether it serves: it has a leader and reaches a quorum.
    pub fn is_healthy(&self) -> bool {
        self.get("/health").is_some_and(|text| text.contains("true"))
    }

    /// Whether the process is up at all.
    pub(crate) fn is_listening(&self) -> bool {
        self.get("/metrics").is_some()
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports.metrics)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// The folder of its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

pub(crate) fn url(recipe: &Recipe, addresses: &str, query: &str) -> String {
    let scheme = if recipe.certificates.is_some() { "etcds" } else { "etcd" };
    format!("{scheme}://{addresses}{query}")
}

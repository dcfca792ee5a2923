//! A Redis server of our own on a core of its own, and what it says of itself. Ends with its owner.

#![allow(clippy::disallowed_methods, reason = "a benchmark waits in real time")]

use std::{
    cell::RefCell,
    collections::HashMap,
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use redis::{Client, Connection};
use tempfile::TempDir;

/// The longest lease on this server: enough for the leases of 10 s, and a new server is believed after as long.
pub(crate) const MAX_TTL: &str = "10s";

/// How long an answer may take, for all programs that can be told.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A server on loopback, pinned to a core; killed when dropped.
pub(crate) struct Server {
    child: Child,
    port: u16,
    /// For our own questions. Tenure reads a reset of the statistics as a loss, so that we only ever look.
    asking: RefCell<Connection>,
    _folder: TempDir,
}

/// How often each command was called, also by scripts.
pub(crate) struct Calls(HashMap<String, u64>);

impl Server {
    /// Starts it and waits until it answers.
    pub(crate) fn start(core: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let mut child = Command::new("taskset")
            .args([
                "-c",
                &core.to_string(),
                "redis-server",
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .args(["--port", &port.to_string(), "--dir"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("taskset and redis-server: apt-get install util-linux redis-server");
        let client = Client::open(format!("redis://127.0.0.1:{port}/")).expect("a URL");
        for _ in 0..500 {
            if let Ok(connection) = client.get_connection() {
                return Self { child, port, asking: RefCell::new(connection), _folder: folder };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("redis-server does not answer");
    }

    /// For the driver and for rslock.
    pub(crate) fn url(&self) -> String {
        url(self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Stops it, say, as a machine that hangs.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    }

    /// For Tenure, with the guard.
    pub(crate) fn tenure_url(&self) -> String {
        tenure_url(self.port)
    }

    fn info(&self, section: &str) -> String {
        let answer = redis::cmd("INFO").arg(section).query(&mut *self.asking.borrow_mut());
        answer.expect("the server answers")
    }

    /// The version it says it is.
    pub(crate) fn version(&self) -> String {
        field(&self.info("server"), "redis_version:").expect("a version").to_owned()
    }

    /// The processor time it has used.
    pub(crate) fn cpu(&self) -> Duration {
        let text = self.info("cpu");
        let seconds = |name| field(&text, name).and_then(|text| text.parse::<f64>().ok()).expect("a time");
        Duration::from_secs_f64(seconds("used_cpu_sys:") + seconds("used_cpu_user:"))
    }

    /// How many keys have expired: among waiters who hold for no time, locks that were handed on and not entered.
    pub(crate) fn expired(&self) -> u64 {
        field(&self.info("stats"), "expired_keys:").and_then(|text| text.parse().ok()).expect("a number")
    }

    /// What it was asked so far.
    pub(crate) fn calls(&self) -> Calls {
        let text = self.info("commandstats");
        let line = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        Calls(text.lines().filter_map(line).collect())
    }

    /// A script that it will know by its hash.
    pub(crate) fn load(&self, text: &str) -> String {
        let answer = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut *self.asking.borrow_mut());
        answer.expect("a script that compiles")
    }

    /// Opens the gate of the queue that is written by hand.
    pub(crate) fn open_gate(&self, key: &str, gate: &str, floor: u64) {
        let answer = redis::cmd("HSET").arg(key).arg(gate).arg(floor).query(&mut *self.asking.borrow_mut());
        answer.expect("the server answers")
    }
}

/// For the driver: the server at this port, or what stands before it.
pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// For Tenure, with the guard: the server at this port, or what stands before it.
pub(crate) fn tenure_url(port: u16) -> String {
    format!("{}?max_ttl={MAX_TTL}&response_timeout={}s", url(port), PATIENCE.as_secs())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Calls {
    /// All calls since an earlier look but for the looks themselves.
    pub(crate) fn since(&self, earlier: &Self) -> u64 {
        let names = self.0.keys().filter(|name| *name != "info");
        names.map(|name| self.of(name) - earlier.of(name)).sum()
    }

    /// Calls of one command.
    pub(crate) fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Every command with its calls per `per` since an earlier look, the most frequent first.
    pub(crate) fn list(&self, earlier: &Self, per: u64) -> String {
        let mut rows: Vec<(f64, &str)> = self
            .0
            .keys()
            .map(|name| ((self.of(name) - earlier.of(name)) as f64 / per as f64, name.as_str()))
            .filter(|(calls, name)| *calls >= 0.005 && *name != "info")
            .collect();
        rows.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        rows.iter().map(|(calls, name)| format!("{name} {calls:.2}")).collect::<Vec<_>>().join(", ")
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

//! A real `redis-server` for one test: on a free port, in a folder of its own, gone with the test.

mod raw;

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

pub use raw::{Raw, Reply};

use crate::patience::eventually;

const PATIENCE: Duration = Duration::from_secs(10);

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    args: Vec<String>,
    env: Vec<(String, String)>,
    config: String,
    is_encrypted: bool,
}

/// A server that dies with the test.
pub struct RedisServer {
    folder: TempDir,
    recipe: Recipe,
    port: u16,
    child: Child,
}

impl Recipe {
    /// Without persistence and with defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// With these arguments on the command line.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// With these environment variables, as a [`Clock`](crate::clock::Clock) wants them.
    #[must_use]
    pub fn env(mut self, env: Vec<(String, String)>) -> Self {
        self.env.extend(env);
        self
    }

    /// With these lines in its file of settings.
    #[must_use]
    pub fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self.config.push('\n');
        self
    }

    /// A copy of the data of the server on this port.
    #[must_use]
    pub fn replica_of(self, port: u16) -> Self {
        self.args(&["--replicaof", &format!("127.0.0.1 {port}")])
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// If there is no `redis-server`, or it does not answer in time.
    pub fn start(self) -> RedisServer {
        for _ in 0..5 {
            let folder = tempfile::tempdir().expect("a temporary folder");
            fs::write(folder.path().join("settings.conf"), &self.config)
                .expect("a file in the temporary folder");
            let port = free_port();
            let child = spawn(&self, folder.path(), port);
            let mut server = RedisServer { folder, recipe: self.clone(), port, child };
            // If it does not come up, somebody else took the port in between.
            if server.comes_up() {
                return server;
            }
        }
        panic!("redis-server does not start; run `cargo xtask test`, which installs it")
    }
}

fn spawn(recipe: &Recipe, folder: &Path, port: u16) -> Child {
    let port = port.to_string();
    let (plain, tls) = if recipe.is_encrypted { ("0", &*port) } else { (&*port, "0") };
    Command::new("redis-server")
        .arg(folder.join("settings.conf"))
        .args(["--port", plain, "--tls-port", tls, "--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(folder)
        .args(&recipe.args)
        .envs(recipe.env.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is missing; run `cargo xtask test`, which installs it")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port of this machine");
    listener.local_addr().expect("a listener has an address").port()
}

impl RedisServer {
    /// With defaults.
    pub fn start() -> Self {
        Recipe::new().start()
    }

    /// Waits until it answers; false if it has ended.
    fn comes_up(&mut self) -> bool {
        eventually("a Redis server answers", PATIENCE, || {
            if self.child.try_wait().expect("a child can be asked").is_some() {
                return Some(false);
            }
            if self.recipe.is_encrypted {
                return std::net::TcpStream::connect(("127.0.0.1", self.port)).ok().map(|_| true);
            }
            let answer = Raw::try_connect(self.port).and_then(|mut raw| raw.try_command(&["PING"])).ok()?;
            let is_up =
                matches!(&answer, Reply::Text(_)) || answer.error().is_some_and(|e| e.starts_with("NO"));
            is_up.then_some(true)
        })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `redis://127.0.0.1:PORT/` with this query.
    pub fn url(&self, query: &str) -> String {
        format!("redis://127.0.0.1:{}/{query}", self.port)
    }

    /// A connection of a client that knows nothing of us.
    pub fn raw(&self) -> Raw {
        Raw::connect(self.port)
    }

    /// One request over a connection of its own.
    pub fn command(&self, words: &[&str]) -> Reply {
        self.raw().command(words)
    }

    /// A field of INFO.
    ///
    /// # Panics
    /// If there is none.
    pub fn info(&self, section: &str, field: &str) -> String {
        let text = self.command(&["INFO", section]).text();
        let prefix = format!("{field}:");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("INFO {section} has no {field}")).to_owned()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid is an i32"));
        kill(pid, signal).expect("our own child can be signalled");
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again after [`kill`](Self::kill): the same port, and what is in its folder.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.recipe, self.folder.path(), self.port);
        assert!(self.comes_up(), "the Redis server does not start again");
    }

    /// It does nothing any more, and its connections stay open.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// It goes on.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

//! `RedisServer`: one process that a test starts, asks, stops, kills and starts again.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{
    daemon::{Daemon, started},
    folder, ports,
    redis::{
        raw::Raw,
        recipe::{Kind, Recipe},
        reply::Reply,
    },
};

/// A server that dies with the test.
#[derive(Debug)]
pub struct RedisServer {
    recipe: Recipe,
    port: u16,
    daemon: Daemon,
    // Last: the process must end before its folder is deleted.
    folder: TempDir,
}

impl Recipe {
    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// If the program is missing, or it does not answer in time.
    pub fn start(self) -> RedisServer {
        RedisServer::from_recipe(self)
    }
}

impl RedisServer {
    /// Starts a server with defaults.
    pub fn start() -> Self {
        Recipe::new().start()
    }

    fn from_recipe(recipe: Recipe) -> Self {
        started(recipe.program(), TRIES, || {
            let server = Self::prepare(recipe.clone());
            server.launch().map(|()| server)
        })
    }

    fn prepare(recipe: Recipe) -> Self {
        let folder = folder::of_server("tenure-redis-");
        let port = ports::free(recipe.needs_bus);
        fs::write(folder.path().join(SETTINGS), recipe.settings(folder.path(), port))
            .expect("a file in the temporary folder");
        Self { recipe, port, daemon: Daemon::default(), folder }
    }

    /// Starts the process and waits until it answers. If it ends before that, the error is the end of its log.
    fn launch(&self) -> Result<(), String> {
        self.daemon.launch(self.folder.path(), |log| self.command_line(log), |log| self.answers(log))
    }

    fn command_line(&self, log: &Path) -> Command {
        let mut command = Command::new(self.recipe.program());
        command
            .arg(self.path(SETTINGS))
            .arg("--logfile")
            .arg(log)
            .args(&self.recipe.args)
            .envs(self.recipe.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.folder.path());
        command
    }

    /// Whether it serves. Its log is read first: on its port, another process may answer that was faster.
    fn answers(&self, log: &Path) -> bool {
        let is_ours = fs::read_to_string(log).is_ok_and(|log| log.contains(self.recipe.ready()));
        let ping = || self.connect()?.try_command(&["PING"]);
        // A server that demands a login serves; one that loads its data does not yet.
        is_ours && ping().is_ok_and(|reply| reply.error().is_none_or(|error| error.starts_with("NO")))
    }

    fn connect(&self) -> io::Result<Raw> {
        if self.recipe.certificates.is_some() {
            Raw::try_connect_file(&self.path("redis.sock"))
        } else {
            Raw::try_connect(self.port)
        }
    }

    /// The port on which it listens, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `redis://127.0.0.1:PORT/` with this query; `rediss:` if it speaks TLS.
    pub fn url(&self, query: &str) -> String {
        let scheme = if self.recipe.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}/{query}", self.address())
    }

    /// The folder of its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
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

    /// A bare connection to it, logged in if the recipe says so.
    ///
    /// # Panics
    /// If the server does not accept it.
    pub fn raw(&self) -> Raw {
        let mut raw = self.connect().unwrap_or_else(|error| panic!("port {}: {error}", self.port));
        if let Some((user, password)) = &self.recipe.login {
            raw.log_in(user, password);
        }
        raw
    }

    /// Sends one request over a new connection.
    ///
    /// # Panics
    /// If the server does not answer.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Reply {
        self.raw().command(words)
    }

    /// A field of `INFO`. Asks again if a change of role has ended the connection.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn info(&self, section: &str, field: &str) -> String {
        let ask = || self.raw().try_command(&["INFO", section]).ok();
        let text = ask().or_else(ask).unwrap_or_else(|| self.command(&["INFO", section])).text();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("INFO {section} has no {field}")).to_owned()
    }

    /// Kills it as a crash does, and waits until it has ended. It may be stopped, or have ended already.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Starts it again after a [`kill`](Self::kill): the same port, folder and recipe. Without persistence its data
    /// are lost.
    ///
    /// # Panics
    /// If it runs, or does not answer in time.
    pub fn start_again(&self) {
        self.daemon.insist(|| self.launch());
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

    /// Writes the record of a server that has waited already for leases that it may have forgotten, under this key
    /// and with these settings. Use it only where no client was granted anything at this address, as at the first
    /// start.
    ///
    /// # Panics
    /// If it has such a record, or does not answer.
    #[track_caller]
    pub fn has_waited(&self, record: &str, settings: &str) {
        let (run, replid) = (self.info("server", "run_id"), self.info("replication", "master_replid"));
        let time: Vec<String> = self.command(&["TIME"]).list().into_iter().map(Reply::text).collect();
        let now = format!("{}{:0>6}", time[0], time[1]);
        let gate = format!("{}.{}.{settings}", &run[..16], &replid[..16]);
        let ready = &now[..now.len() - 3];
        let fields = ["run", &run, "replid", &replid, "ready", ready, "settings", settings, "next", ""];
        let words = [&["HSET", record, &gate, &now], &fields[..]].concat();
        assert_eq!(self.command(&words).int(), 6, "{record} was there");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Recipe {
    fn program(&self) -> &'static str {
        match self.kind {
            Kind::Server => "redis-server",
            Kind::Sentinel => "redis-sentinel",
        }
    }

    /// What is in the log once the server has its port.
    fn ready(&self) -> &'static str {
        match self.kind {
            Kind::Server => "eady to accept connections",
            Kind::Sentinel => "Sentinel ID is",
        }
    }
}

const SETTINGS: &str = "settings.conf";
/// How often to try: another process may take the port between the check and the server's start.
const TRIES: usize = 10;

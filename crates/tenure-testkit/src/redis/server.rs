//! `RedisServer`: one process that a test starts, asks, stops, kills and starts again.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{
    patience::{eventually, slowness},
    ports,
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
    run: Mutex<Run>,
    // Last, as the process must be gone before its folder goes.
    folder: TempDir,
}

/// The process, and how often there was one.
#[derive(Debug)]
struct Run {
    child: Option<Child>,
    starts: u32,
}

impl RedisServer {
    /// With defaults.
    pub fn start() -> Self {
        Recipe::new().start()
    }

    pub(crate) fn from_recipe(recipe: Recipe) -> Self {
        let mut log = String::new();
        for _ in 0..TRIES {
            let server = Self::prepare(recipe.clone());
            match server.launch() {
                Ok(()) => return server,
                Err(words) => log = words,
            }
        }
        panic!("{} does not start. The end of its log:\n{log}", recipe.program())
    }

    fn prepare(recipe: Recipe) -> Self {
        let folder = tempfile::Builder::new().prefix("tenure-redis-").tempdir().expect("a temporary folder");
        let port = ports::free(recipe.needs_bus);
        fs::write(folder.path().join(SETTINGS), recipe.settings(folder.path(), port))
            .expect("a file in the temporary folder");
        Self { recipe, port, run: Mutex::new(Run { child: None, starts: 0 }), folder }
    }

    /// Starts the process and waits until it answers; if it ends before that, its last words.
    fn launch(&self) -> Result<(), String> {
        let mut run = self.locked();
        assert!(run.child.is_none(), "{} runs already", self.recipe.program());
        run.starts += 1;
        let log = self.path(&format!("log-{}", run.starts));
        // Kept at once, so that it is killed if we wait in vain.
        let child = run.child.insert(self.spawn(&log));
        let what = format!("{} on port {} answers", self.recipe.program(), self.port);
        let is_up = eventually(&what, PATIENCE, || {
            let has_ended = child.try_wait().expect("a child can be asked").is_some();
            if has_ended { Some(false) } else { self.answers(&log).then_some(true) }
        });
        if is_up {
            return Ok(());
        }
        run.child = None;
        Err(last_lines(&log))
    }

    fn spawn(&self, log: &Path) -> Child {
        let program = self.recipe.program();
        Command::new(program)
            .arg(self.path(SETTINGS))
            .arg("--logfile")
            .arg(log)
            .args(&self.recipe.args)
            .envs(self.recipe.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {program}: {error}; `cargo xtask test` installs it"))
    }

    /// Whether it serves. Its log is asked first: on our port, somebody else may answer who was faster.
    fn answers(&self, log: &Path) -> bool {
        let is_ours = fs::read_to_string(log).is_ok_and(|log| log.contains(self.recipe.ready()));
        let ping = || self.connect()?.try_command(&["PING"]);
        // A server that wants to know who we are first serves; one that loads its data does not yet.
        is_ours && ping().is_ok_and(|reply| reply.error().is_none_or(|error| error.starts_with("NO")))
    }

    fn connect(&self) -> io::Result<Raw> {
        if self.recipe.certificates.is_some() {
            Raw::try_connect_file(&self.path("redis.sock"))
        } else {
            Raw::try_connect(self.port)
        }
    }

    /// Where it listens, at 127.0.0.1.
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

    /// Its process.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.locked().child.as_ref().expect("a server that runs").id()
    }

    /// Whether there is a process: it was not killed, and has not ended by itself.
    pub fn is_running(&self) -> bool {
        self.locked().child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// A connection of a client that knows nothing of us, logged in if the recipe says so.
    ///
    /// # Panics
    /// If the server does not take it.
    pub fn raw(&self) -> Raw {
        let mut raw = self.connect().unwrap_or_else(|error| panic!("port {}: {error}", self.port));
        if let Some((user, password)) = &self.recipe.login {
            raw.log_in(user, password);
        }
        raw
    }

    /// One request over a connection of its own.
    ///
    /// # Panics
    /// If the server does not answer.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Reply {
        self.raw().command(words)
    }

    /// A field of `INFO`. Asked again where a change of role has ended the connection meanwhile.
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

    /// Ends it as a crash does, and waits until it is gone. It may be stopped, or dead already.
    pub fn kill(&self) {
        if let Some(mut child) = self.locked().child.take() {
            // OK to ignore because a child that has ended cannot be killed, and is buried by the wait.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again after a [`kill`](Self::kill): the same port, folder and recipe. Without persistence
    /// its data are gone.
    ///
    /// # Panics
    /// If it runs, or does not answer in time.
    pub fn start_again(&self) {
        let deadline = Instant::now() + PATIENCE * slowness();
        // Somebody who looks for a free port may hold ours for a moment.
        while let Err(words) = self.launch() {
            assert!(Instant::now() < deadline, "port {}: no new start. Its log:\n{words}", self.port);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// It does nothing any more, and its connections stay open. Returns when it does nothing.
    ///
    /// # Panics
    /// If it was killed.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let facts = format!("/proc/{}/stat", self.pid());
        eventually("a stopped process does nothing", PATIENCE, || {
            // The state stands behind the name, which ends with the last bracket. No file: no Linux.
            let Ok(text) = fs::read_to_string(&facts) else { return Some(()) };
            text.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T')).then_some(())
        });
    }

    /// It goes on after a [`stop`](Self::stop).
    ///
    /// # Panics
    /// If it was killed.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a process id is an i32");
        // OK because the child is not buried while we have it, so the number is still its own.
        kill(Pid::from_raw(pid), signal).expect("our own child can be signalled");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn locked(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Recipe {
    fn program(&self) -> &'static str {
        match self.kind {
            Kind::Server => "redis-server",
            Kind::Sentinel => "redis-sentinel",
        }
    }

    /// What the log says when the port is ours.
    fn ready(&self) -> &'static str {
        match self.kind {
            Kind::Server => "eady to accept connections",
            Kind::Sentinel => "Sentinel ID is",
        }
    }
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_else(|error| format!("no log: {error}"));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

const SETTINGS: &str = "settings.conf";
const PATIENCE: Duration = Duration::from_secs(20);
/// Ports that may be taken in a row between our look and the server's start.
const TRIES: usize = 10;

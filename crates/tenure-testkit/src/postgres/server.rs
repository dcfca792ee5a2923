//! `PostgresServer`: a server that a test starts, asks, stops, kills and starts again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, checked, started},
    folder, ports,
    postgres::{
        recipe::Recipe,
        template::{self, as_server},
    },
};

/// A server that dies with the test, with a role and a database that are both called `tenure`.
#[derive(Debug)]
pub struct PostgresServer {
    recipe: Recipe,
    port: u16,
    daemon: Daemon,
    // Last: the process must end before its folder is deleted.
    folder: TempDir,
}

impl PostgresServer {
    /// Starts a server with defaults, and `fsync` off.
    pub fn start() -> Self {
        Recipe::new().start()
    }

    pub(super) fn from_recipe(recipe: Recipe) -> Self {
        started("PostgreSQL", TRIES, || {
            let server = Self::prepare(recipe.clone());
            server.launch().map(|()| server)
        })
    }

    fn prepare(recipe: Recipe) -> Self {
        // A durable server needs a disk: in memory, nothing reaches one.
        let place = if recipe.is_durable { folder::temporary } else { folder::of_server };
        let folder = place("tenure-pg-");
        match recipe.primary {
            None => template::copy_into(folder.path()),
            Some(primary) => template::back_up_into(folder.path(), primary),
        }
        let (port, data) = (ports::free(false), folder.path().join("data"));
        let settings = fs::read_to_string(data.join(SETTINGS)).expect("a cluster has settings");
        let settings = settings + "\n" + &recipe.settings(folder.path(), port);
        fs::write(data.join(SETTINGS), settings).expect("a file in the temporary folder");
        fs::write(data.join("pg_hba.conf"), recipe.doors()).expect("a file in the temporary folder");
        recipe.prepare(&data);
        Self { recipe, port, daemon: Daemon::default(), folder }
    }

    /// Starts the process and waits until it serves. If it ends before that, the error is the end of its log.
    fn launch(&self) -> Result<(), String> {
        let serves = |log: &Path| fs::read_to_string(log).is_ok_and(|log| log.contains("ready to accept "));
        self.daemon.launch(self.folder.path(), |_| self.command_line(), serves)
    }

    fn command_line(&self) -> Command {
        let mut command = as_server(&template::program("postgres"));
        let mut loaded = template::same_session();
        command.arg("-D").arg(self.data()).current_dir(self.folder.path());
        for (name, value) in &self.recipe.env {
            if name == PRELOAD {
                loaded = format!("{loaded}:{value}");
            }
            command.env(name, value);
        }
        command.env(PRELOAD, loaded);
        command
    }

    /// The port on which it listens, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `postgres://tenure@127.0.0.1:PORT/tenure` with this query, as in `?table=x`.
    pub fn url(&self, query: &str) -> String {
        format!("postgres://tenure@{}/tenure{query}", self.address())
    }

    /// The folder of its sockets.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of its data.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The id of its process.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Runs the statements as the superuser `postgres` in the database `tenure`. Returns a line per row, with `|`
    /// between the columns.
    ///
    /// # Panics
    /// If there is an error.
    #[track_caller]
    pub fn psql(&self, sql: &str) -> String {
        self.psql_as("postgres", sql)
    }

    /// The same as another user.
    ///
    /// # Panics
    /// If there is an error.
    #[track_caller]
    pub fn psql_as(&self, user: &str, sql: &str) -> String {
        let mut psql = Command::new(template::program("psql"));
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-U", user, "-d", "tenure"])
            .arg("-h")
            .arg(self.folder.path())
            .args(["-p", &self.port.to_string(), "-c", sql]);
        checked(&mut psql)
    }

    /// Kills it and its child processes, as a crash does, and waits until it has ended. It may be stopped, or have
    /// ended already.
    pub fn kill(&self) {
        let family = self.family();
        self.daemon.kill();
        self.tell(&family, Signal::SIGKILL);
    }

    /// Starts it again after a [`kill`](Self::kill): the same port, folder and recipe. It recovers from its log
    /// first.
    ///
    /// # Panics
    /// If it runs, or does not answer in time.
    pub fn start_again(&self) {
        self.daemon.insist(|| self.launch());
    }

    /// Suspends it: its processes do nothing, and its connections stay open. Returns when the server's main process
    /// has stopped.
    ///
    /// # Panics
    /// If it was killed.
    pub fn stop(&self) {
        // The child processes after the server: it starts no new ones then.
        self.daemon.stop();
        self.tell(&self.family(), Signal::SIGSTOP);
    }

    /// Continues it after a [`stop`](Self::stop).
    ///
    /// # Panics
    /// If it was killed.
    pub fn resume(&self) {
        self.tell(&self.family(), Signal::SIGCONT);
        self.daemon.resume();
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.daemon.is_running()
    }

    /// Its child processes, which serve its connections and maintain its data.
    fn family(&self) -> Vec<i32> {
        if !self.daemon.is_running() {
            return Vec::new();
        }
        let father = self.daemon.pid().to_string();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        numbers
            .filter(|pid| {
                let facts = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                // After the name, which ends with the last bracket: the state, then the parent.
                facts.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)) == Some(father.as_str())
            })
            .collect()
    }

    fn tell(&self, family: &[i32], signal: Signal) {
        for pid in family {
            // OK to ignore because a process that has ended by now needs no signal.
            let _ = kill(Pid::from_raw(*pid), signal);
        }
    }
}

impl PostgresServer {
    /// The id of its segment of System V shared memory, which keeps a second server off its data. The segment
    /// outlives a server that is killed, and a system has some thousands of them.
    pub fn shared_memory(&self) -> Option<String> {
        let facts = fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        Some(facts.lines().nth(6)?.split_whitespace().nth(1)?.to_owned())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let memory = self.shared_memory();
        self.kill();
        if let Some(id) = memory {
            // OK to ignore because a server that ended by itself has removed it.
            let _ = Command::new("ipcrm").args(["-m", &id]).stderr(Stdio::null()).status();
        }
    }
}

/// The libraries that the loader takes before those of the server itself.
const PRELOAD: &str = "LD_PRELOAD";
const SETTINGS: &str = "postgresql.conf";
/// How often to try: another process may take the port between the check and the server's start.
const TRIES: usize = 10;

//! Real MariaDB servers, each on free ports and in its own folder. They end with the test, or with the run that
//! shares them.

mod pooler;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{
    clock::Clock,
    daemon::{Daemon, checked, started},
    folder, ports,
    redis::Certificates,
    shared::Shared,
};

pub use pooler::Pooler;

/// The server of this run, for tests that do not harm it.
///
/// # Panics
/// If it does not start.
pub fn shared() -> Shared {
    Shared::server("mysql", MysqlServer::start, MysqlServer::address)
}

/// Makes a table of locks on the server at this address, as the README shows it. A table that a client makes is not
/// used for 10 s.
///
/// # Panics
/// If there is an error.
pub fn make_table(address: &str, table: &str) {
    let (host, port) = address.split_once(':').expect("an address has a port");
    let mut client = Command::new("mariadb");
    client.args(["--no-defaults", "-h", host, "-P", port, "-u", "tenure", "-D", "tenure", "-e"]);
    checked(client.arg(format!("CREATE TABLE `{table}` ({COLUMNS}) ENGINE = InnoDB")));
}

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    arguments: Vec<String>,
    env: Vec<(String, String)>,
    certificates: Option<Certificates>,
    data: Option<PathBuf>,
    is_durable: bool,
    /// Keeps the clock's files for as long as this recipe may start a server.
    clock: Option<Clock>,
}

impl Recipe {
    /// With defaults, 700 connections, no password, no binary log, and without waiting for the disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this setting, as in `sql-mode=ANSI_QUOTES`.
    #[must_use]
    pub fn set(mut self, setting: &str) -> Self {
        self.arguments.push(format!("--{setting}"));
        self
    }

    /// A commit is on the disk before the server answers it, as it is by default outside of tests.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.is_durable = true;
        self
    }

    /// The server uses this wall clock.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = Some(clock.clone());
        self.env.extend(clock.env());
        self
    }

    /// It speaks TLS with every client that asks for it.
    #[must_use]
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some(certificates.clone());
        self
    }

    /// The server keeps its data in this folder, which is empty.
    #[must_use]
    pub fn data(mut self, folder: &Path) -> Self {
        self.data = Some(folder.to_owned());
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// If MariaDB is missing, or it does not answer in time.
    pub fn start(self) -> MysqlServer {
        started("MariaDB", TRIES, || {
            let server = MysqlServer::prepare(self.clone());
            server.launch().map(|()| server)
        })
    }
}

/// A server that dies with the test, with a user and a database that are both called `tenure`.
#[derive(Debug)]
pub struct MysqlServer {
    recipe: Recipe,
    port: u16,
    daemon: Daemon,
    // Last: the process must end before its folder is deleted.
    folder: TempDir,
}

impl MysqlServer {
    /// Starts a server with defaults.
    pub fn start() -> Self {
        Recipe::new().start()
    }

    fn prepare(recipe: Recipe) -> Self {
        // A durable server needs a disk: in memory, nothing reaches one.
        let place = if recipe.is_durable { folder::temporary } else { folder::of_server };
        let folder = place("tenure-mysql-");
        let server = Self { recipe, port: ports::free(false), daemon: Daemon::default(), folder };
        fs::create_dir_all(server.data()).expect("a folder in the temporary folder");
        checked(Command::new("cp").arg("-a").arg(original().join(".")).arg(server.data()));
        fs::write(server.folder.path().join("init.sql"), FIRST_WORDS)
            .expect("a file in the temporary folder");
        server
    }

    /// Starts the process and waits until it serves. If it ends before that, the error is the end of its log.
    fn launch(&self) -> Result<(), String> {
        let serves =
            |log: &Path| fs::read_to_string(log).is_ok_and(|log| log.contains("ready for connections"));
        self.daemon.launch(self.folder.path(), |_| self.command_line(), serves)
    }

    fn command_line(&self) -> Command {
        let folder = self.folder.path().display();
        let mut command = server(&self.data(), self.folder.path());
        command
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=700"])
            .arg("--skip-log-bin")
            .arg(format!("--port={}", self.port))
            .arg(format!("--socket={}", self.socket().display()))
            .arg(format!("--pid-file={folder}/pid"))
            .arg(format!("--init-file={folder}/init.sql"))
            .envs(self.recipe.env.iter().cloned());
        if !self.recipe.is_durable {
            // A new table is synced six times, and clients that connect at that time may wait for it.
            command.args([
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-flush-method=nosync",
                "--debug-no-sync",
            ]);
        }
        if let Some(certificates) = &self.recipe.certificates {
            let ca = certificates.ca_file();
            for (setting, file) in [("ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")] {
                command.arg(format!("--ssl-{setting}={}", ca.with_file_name(file).display()));
            }
        }
        // The settings of the test come last, so they override the others.
        command.args(&self.recipe.arguments);
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

    /// `mysql://tenure@127.0.0.1:PORT/tenure` with this query, as in `?table=x`.
    pub fn url(&self, query: &str) -> String {
        format!("mysql://tenure@{}/tenure{query}", self.address())
    }

    /// The path of its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn data(&self) -> PathBuf {
        self.recipe.data.clone().unwrap_or_else(|| self.folder.path().join("data"))
    }

    /// The id of its process.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Runs the statements as the user `root` in the database `tenure`. Returns a line per row, with tabs between the
    /// columns.
    ///
    /// # Panics
    /// If there is an error.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> String {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "-N", "-B", "-u", "root", "-D", "tenure", "-e", statements]);
        checked(client.arg("-S").arg(self.socket()))
    }

    /// Kills it as a crash does, and waits until it has ended. It may be stopped, or have ended already.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Starts it again after a [`kill`](Self::kill): the same port, folder and recipe. It recovers from its log
    /// first.
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
}

impl Drop for MysqlServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server on these data that keeps its small files in `folder`.
fn server(data: &Path, folder: &Path) -> Command {
    let mut command = Command::new("mariadbd");
    command.arg("--no-defaults").args(SMALL).current_dir(folder);
    command.arg(format!("--datadir={}", data.display())).arg(format!("--tmpdir={}", folder.display()));
    if nix::unistd::geteuid().is_root() {
        // The server refuses to run as root without this option.
        command.arg("--user=root");
    }
    command
}

/// Data that were set up once for this machine: the setup takes a second, a copy a tenth of that. They stay in the
/// machine's folder for temporary files.
fn original() -> PathBuf {
    let place = std::env::temp_dir().join(format!("tenure-mysql-original-{FORM}"));
    if !place.exists() {
        let folder = folder::temporary("tenure-mysql-install-");
        let data = folder.path().join("data");
        let mut install = Command::new("mariadb-install-db");
        install
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .args(SMALL);
        install
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--tmpdir={}", folder.path().display()));
        if nix::unistd::geteuid().is_root() {
            install.arg("--user=root");
        }
        checked(install.current_dir(folder.path()));
        // OK to ignore because only the first process can rename its data; the others find that the folder exists.
        let _ = fs::rename(&data, &place);
    }
    assert!(place.join("ibdata1").exists(), "{} has no data; remove it", place.display());
    place
}

/// So that hundreds of servers need little room.
const SMALL: [&str; 5] = [
    "--innodb-log-file-size=4M",
    "--innodb-log-buffer-size=2M",
    "--innodb-buffer-pool-size=16M",
    "--aria-pagecache-buffer-size=1M",
    "--aria-log-file-size=8M",
];
const FIRST_WORDS: &str = "CREATE DATABASE IF NOT EXISTS tenure;\n\
    CREATE USER IF NOT EXISTS tenure@'127.0.0.1';\n\
    GRANT ALL ON tenure.* TO tenure@'127.0.0.1';\n\
    CREATE TABLE IF NOT EXISTS tenure.tenure_lock (name varbinary(600) NOT NULL PRIMARY KEY, version bigint NOT NULL, \
    busy tinyint NOT NULL, used bigint NOT NULL, state mediumblob NOT NULL) ENGINE = InnoDB;\n";
const COLUMNS: &str = "name varbinary(600) NOT NULL PRIMARY KEY, version bigint NOT NULL, busy tinyint NOT NULL, \
     used bigint NOT NULL, state mediumblob NOT NULL";
/// Change it when the setup changes, so that no test uses an older original.
const FORM: &str = "1";
/// How often to try: another process may take the port between the check and the server's start.
const TRIES: usize = 10;

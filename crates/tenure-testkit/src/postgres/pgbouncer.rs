//! `Pgbouncer`: a pooler that gives each transaction a connection to the server.

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{
    daemon::{Daemon, checked, started},
    folder, ports,
    postgres::{
        PostgresServer,
        template::{as_server, give, program},
    },
};

/// A pooler in transaction mode in front of a server. Dies with the test.
#[derive(Debug)]
pub struct Pgbouncer {
    port: u16,
    daemon: Daemon,
    // Last: the process must end before its folder is deleted.
    folder: TempDir,
}

impl Pgbouncer {
    /// Starts a pooler with 20 connections to this server and up to a thousand clients.
    ///
    /// # Panics
    /// If the program is missing, or it does not serve in time.
    pub fn before(server: &PostgresServer) -> Self {
        started("pgbouncer", TRIES, || {
            let pooler = Self::prepare(server);
            pooler.launch().map(|()| pooler)
        })
    }

    fn prepare(server: &PostgresServer) -> Self {
        let folder = folder::of_server("tenure-pool-");
        let port = ports::free(false);
        give(folder.path());
        let users = folder.path().join("users");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir = {}\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = 20\nmax_client_conn = 1000\nadmin_users = tenure\n",
            server.port(),
            folder.path().display(),
            users.display(),
        );
        for (file, text) in [
            (users.clone(), "\"tenure\" \"\"\n\"postgres\" \"\"\n"),
            (folder.path().join(SETTINGS), &settings),
        ] {
            fs::write(&file, text).expect("a file in the temporary folder");
            give(&file);
        }
        Self { port, daemon: Daemon::default(), folder }
    }

    fn launch(&self) -> Result<(), String> {
        let serves = |log: &Path| {
            let is_ours = fs::read_to_string(log).is_ok_and(|log| log.contains("process up"));
            is_ours && TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        };
        self.daemon.launch(self.folder.path(), |_| self.command_line(), serves)
    }

    fn command_line(&self) -> Command {
        let mut command = as_server(&PathBuf::from("/usr/sbin/pgbouncer"));
        command.arg(self.folder.path().join(SETTINGS)).current_dir(self.folder.path());
        command
    }

    /// The port on which it listens, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `postgres://tenure@127.0.0.1:PORT/tenure` with this query.
    pub fn url(&self, query: &str) -> String {
        format!("postgres://tenure@127.0.0.1:{}/tenure{query}", self.port)
    }

    /// Runs a command of its console, such as `SHOW POOLS`. Returns a line per row, with `|` between the columns.
    ///
    /// # Panics
    /// If there is an error.
    #[track_caller]
    pub fn show(&self, what: &str) -> String {
        let mut psql = Command::new(program("psql"));
        psql.args(["-X", "-A", "-t", "-q", "-U", "tenure", "-d", "pgbouncer", "-h", "127.0.0.1"]).args([
            "-p",
            &self.port.to_string(),
            "-c",
            what,
        ]);
        checked(&mut psql)
    }

    /// Kills it as a crash does, and with it every connection.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Starts it again on the same port.
    ///
    /// # Panics
    /// If it runs, or does not serve in time.
    pub fn start_again(&self) {
        self.daemon.insist(|| self.launch());
    }
}

const SETTINGS: &str = "pgbouncer.ini";
/// How often to try: another process may take the port between the check and the pooler's start.
const TRIES: usize = 10;

//! `Recipe`: how a PostgreSQL server is started.

use std::path::Path;

use crate::{
    clock::Clock,
    postgres::{PostgresServer, template},
    redis::Certificates,
};

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    pub(super) env: Vec<(String, String)>,
    pub(super) certificates: Option<Certificates>,
    pub(super) wants_passwords: bool,
    pub(super) primary: Option<u16>,
    config: String,
    pub(super) is_durable: bool,
    /// Keeps the clock's files for as long as this recipe may start a server.
    clock: Option<Clock>,
}

impl Recipe {
    /// With defaults, 500 connections, no password, and without waiting for the disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// With these lines in its file of settings.
    #[must_use]
    pub fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self.config.push('\n');
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

    /// A client needs a password over TCP. The server's own [`psql`](PostgresServer::psql) does not.
    #[must_use]
    pub fn passwords(mut self) -> Self {
        self.wants_passwords = true;
        self
    }

    /// It starts with a copy of that server's data, and continues to copy what that server commits.
    #[must_use]
    pub fn standby_of(mut self, primary: &PostgresServer) -> Self {
        self.primary = Some(primary.port());
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// If PostgreSQL is missing, or it does not answer in time.
    pub fn start(self) -> PostgresServer {
        PostgresServer::from_recipe(self)
    }

    /// What is appended to the file of settings. The lines of the test come last, so they override the others. The
    /// shared memory is in the server's folder, because a server that is killed would leave it behind elsewhere.
    pub(super) fn settings(&self, folder: &Path, port: u16) -> String {
        let switch = |is_on: bool| if is_on { "on" } else { "off" };
        let folder = folder.display();
        format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{folder}'\n\
             max_connections = 500\nshared_buffers = 16MB\nmax_wal_size = 32MB\nmin_wal_size = 5MB\n\
             dynamic_shared_memory_type = mmap\nlog_timezone = 'UTC'\nfsync = {}\nssl = {}\n{}",
            switch(self.is_durable),
            switch(self.certificates.is_some()),
            self.config
        )
    }

    /// The rules by which clients may log in.
    pub(super) fn doors(&self) -> String {
        let way = if self.wants_passwords { "scram-sha-256" } else { "trust" };
        format!(
            "local all all trust\nhost all all 127.0.0.1/32 {way}\nhost replication all 127.0.0.1/32 {way}\n"
        )
    }

    /// Puts the certificate where the server's user can read it, and lets that user read the clock's files.
    pub(super) fn prepare(&self, data: &Path) {
        if let Some(certificates) = &self.certificates {
            let made = certificates.ca_file();
            for (from, to) in [("server.pem", "server.crt"), ("server.key", "server.key")] {
                std::fs::copy(made.with_file_name(from), data.join(to)).expect("a file that was just made");
                template::give(&data.join(to));
            }
        }
        for (_, file) in &self.env {
            template::show(Path::new(file));
        }
    }
}

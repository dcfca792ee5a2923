//! A Redis server of the test's own, behind a socket in a folder of its own: no port to be lost to another test.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tenure_testkit::patience::eventually;

use crate::stage::PATIENCE;

/// A server without persistence. It ends with the test.
pub(crate) struct Server {
    child: Child,
    folder: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket", "redis.sock", "--dir"])
            .arg(folder.path())
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start redis-server: {error}; run `cargo xtask test`"));
        let server = Self { child, folder };
        eventually("the server answers", PATIENCE, || server.connect());
        server
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// A connection that only looks.
    pub(crate) fn connect(&self) -> Option<redis::Connection> {
        let mut connection = redis::Client::open(self.url()).unwrap().get_connection().ok()?;
        redis::cmd("PING").query::<String>(&mut connection).ok()?;
        Some(connection)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

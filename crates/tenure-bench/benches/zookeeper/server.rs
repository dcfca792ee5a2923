//! A ZooKeeper server of our own, and what it says of itself. Ends with its owner.

#![allow(clippy::disallowed_methods, reason = "a benchmark waits in real time")]

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;
use zookeeper_client::Client;

/// A server on loopback; killed when dropped.
pub(crate) struct Server {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Server {
    /// Starts it and waits until it answers.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let data = folder.path().join("data");
        let settings = format!(
            "tickTime=2000\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n",
            data.display()
        );
        let file = folder.path().join("zoo.cfg");
        fs::write(&file, settings).expect("a file");
        let child = Command::new("java")
            .args(["-Xmx512m", "-cp", "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar"])
            .arg("org.apache.zookeeper.server.ZooKeeperServerMain")
            .arg(&file)
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Java and ZooKeeper: apt-get install zookeeper");
        let server = Self { child, port, _folder: folder };
        for _ in 0..2000 {
            if server.word("srvr").is_some_and(|answer| answer.contains("Mode: ")) {
                return server;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("ZooKeeper does not answer");
    }

    /// For the driver.
    pub(crate) async fn client(&self) -> Client {
        let connector = Client::connector().with_session_timeout(Duration::from_secs(13));
        connector.connect(&format!("127.0.0.1:{}", self.port)).await.expect("the server answers")
    }

    /// For Tenure.
    pub(crate) fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}/tenure", self.port)
    }

    /// The version it says it is.
    pub(crate) fn version(&self) -> String {
        let answer = self.word("srvr").expect("the server answers");
        let line = answer.lines().next().unwrap_or_default();
        line.split(',').next().unwrap_or_default().split('-').next().unwrap_or_default().to_owned()
    }

    /// How many requests it has received so far.
    pub(crate) fn received(&self) -> u64 {
        let answer = self.word("mntr").expect("the server answers");
        let line = answer.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
        line.and_then(|number| number.trim().parse().ok()).expect("a number")
    }

    fn word(&self, word: &str) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        // A server that has opened its port a moment ago may never answer the first word.
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

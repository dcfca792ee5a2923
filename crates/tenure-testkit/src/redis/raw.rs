//! `Raw`: a bare connection to a Redis server, for a test that acts as a client.

use std::{
    io::{self, BufReader, Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    time::Duration,
};

use crate::{patience::slowness, redis::reply::Reply};

/// A connection that a test controls: it may withhold reads, send half a request, or send nonsense.
#[derive(Debug)]
pub struct Raw {
    stream: BufReader<TcpStream>,
}

impl Raw {
    /// Connects to a port of 127.0.0.1: that of a server, or of a proxy in front of it.
    ///
    /// # Panics
    /// If no process listens there.
    #[track_caller]
    pub fn connect(port: u16) -> Self {
        Self::try_connect(port).unwrap_or_else(|error| panic!("no connection to port {port}: {error}"))
    }

    /// Connects to a port of 127.0.0.1, if a process listens there.
    ///
    /// # Errors
    /// If no process listens there.
    pub fn try_connect(port: u16) -> io::Result<Self> {
        Self::over(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)
    }

    /// Connects to a server's socket in the file system, if a process listens there.
    ///
    /// # Errors
    /// If no process listens there.
    pub(crate) fn try_connect_file(path: &Path) -> io::Result<Self> {
        // OK because reading, writing, shutting down and timeouts are the same calls for both kinds.
        Self::over(TcpStream::from(OwnedFd::from(UnixStream::connect(path)?)))
    }

    fn over(stream: TcpStream) -> io::Result<Self> {
        // OK to ignore because a socket in the file system has no such setting, and needs none.
        let _ = stream.set_nodelay(true);
        let raw = Self { stream: BufReader::new(stream) };
        raw.set_patience(PATIENCE * slowness())?;
        Ok(raw)
    }

    /// How long one read or write may take; at first 10 s times the [`slowness`].
    ///
    /// # Errors
    /// If it is zero.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(patience))?;
        self.stream.get_ref().set_write_timeout(Some(patience))
    }

    /// Sends one request and reads nothing.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn send(&mut self, words: &[&str]) -> io::Result<()> {
        self.send_bytes(&request(words))
    }

    /// Sends these bytes, whatever they are.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads the next answer, or message of a subscription.
    ///
    /// # Errors
    /// `WouldBlock` if none comes in time; otherwise the connection is broken.
    pub fn read(&mut self) -> io::Result<Reply> {
        Reply::read(&mut self.stream)
    }

    /// Reads what comes until the other side ends the connection.
    ///
    /// # Errors
    /// `WouldBlock` if it does not end in time, `ConnectionReset` if it was not ended in order.
    pub fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends a request and reads the answer.
    ///
    /// # Errors
    /// If the connection is broken, or the answer does not come in time.
    pub fn try_command(&mut self, words: &[&str]) -> io::Result<Reply> {
        self.send(words)?;
        self.read()
    }

    /// Sends a request and reads the answer.
    ///
    /// # Panics
    /// If the connection is broken, or the answer does not come in time.
    #[track_caller]
    pub fn command(&mut self, words: &[&str]) -> Reply {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?} got no answer: {error}"))
    }

    /// Logs in as this user.
    ///
    /// # Panics
    /// If the server refuses the login.
    #[track_caller]
    pub fn log_in(&mut self, user: &str, password: &str) {
        let reply = self.command(&["AUTH", user, password]);
        assert_eq!(reply.error(), None, "could not log in as {user}");
    }
}

/// The bytes of a request.
pub fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

const PATIENCE: Duration = Duration::from_secs(10);

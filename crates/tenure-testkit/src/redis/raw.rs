//! `Raw`: a bare connection to a Redis server, for a test that plays a client of its own.

use std::{
    io::{self, BufReader, Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    time::Duration,
};

use crate::{patience::slowness, redis::reply::Reply};

/// A connection that does what it is told: it may withhold reads, send half a request, or say nonsense.
#[derive(Debug)]
pub struct Raw {
    stream: BufReader<TcpStream>,
}

impl Raw {
    /// To a port of 127.0.0.1: a server's, or that of a proxy before it.
    ///
    /// # Panics
    /// If nobody listens there.
    #[track_caller]
    pub fn connect(port: u16) -> Self {
        Self::try_connect(port).unwrap_or_else(|error| panic!("no connection to port {port}: {error}"))
    }

    /// To a port of 127.0.0.1, if somebody listens there.
    ///
    /// # Errors
    /// If nobody does.
    pub fn try_connect(port: u16) -> io::Result<Self> {
        Self::over(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)
    }

    /// To a server's socket in the file system, if somebody listens there.
    ///
    /// # Errors
    /// If nobody does.
    pub(crate) fn try_connect_file(path: &Path) -> io::Result<Self> {
        // OK because reading, writing, shutting down and time limits are the same calls for both kinds.
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

    /// Says who we are.
    ///
    /// # Panics
    /// If the server does not let us in.
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

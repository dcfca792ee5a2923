//! The four-letter words by which a ZooKeeper server reports its state.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpStream},
    time::Duration,
};

/// What the server on this port of 127.0.0.1 answers to a word, as `srvr` or `mntr`.
pub(crate) fn ask(port: u16, word: &str, patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The role of the server: `standalone`, `leader` or `follower`. `None` while it does not serve.
pub(crate) fn mode(port: u16) -> Option<String> {
    let answer = ask(port, "srvr", HUNG).ok()?;
    let line = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
    line.map(|mode| mode.trim().to_owned())
}

/// How long to wait for an answer: a server that is stopped never answers.
pub(crate) const HUNG: Duration = Duration::from_millis(500);

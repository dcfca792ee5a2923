//! `Connection`: a client, a server, and the two lanes between them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use nix::{
    libc::linger,
    poll::PollFlags,
    sys::socket::{setsockopt, sockopt::Linger},
};

use crate::proxy::{
    dice::Dice,
    lane::{Flow, Lane, Way},
};

/// One accepted connection.
#[derive(Debug)]
pub(super) struct Connection {
    client: TcpStream,
    server: TcpStream,
    pub(super) requests: Lane,
    pub(super) replies: Lane,
    /// One side was reset, or a planned cut has come: the other is to be reset too.
    is_broken: bool,
}

impl Connection {
    /// Connects the client with the server on this port; resets it if no server listens there.
    pub(super) fn new(client: TcpStream, port: u16, flows: [Flow; 2], dice: &Dice) -> Option<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let Some(server) = TcpStream::connect_timeout(&address, CONNECT).ok().and_then(prepared) else {
            close_hard(&client);
            return None;
        };
        let [requests, replies] = flows;
        Some(Self {
            client: prepared(client)?,
            server,
            requests: Lane::new(requests, dice.branch(0)),
            replies: Lane::new(replies, dice.branch(1)),
            is_broken: false,
        })
    }

    pub(super) fn lane(&mut self, way: Way) -> &mut Lane {
        match way {
            Way::Requests => &mut self.requests,
            Way::Replies => &mut self.replies,
        }
    }

    pub(super) fn lanes(&mut self) -> [&mut Lane; 2] {
        [&mut self.requests, &mut self.replies]
    }

    /// The sockets to wait for. A side from which nothing is wanted is left out: its end would wake the thread
    /// indefinitely.
    pub(super) fn waits(&self, now: Instant) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let wish = |from: &Lane, to: &Lane| {
            let reads = if from.reads() { PollFlags::POLLIN } else { PollFlags::empty() };
            let is_due = to.due().is_some_and(|due| due <= now);
            reads | if is_due { PollFlags::POLLOUT } else { PollFlags::empty() }
        };
        let client = (self.client.as_fd(), wish(&self.requests, &self.replies));
        let server = (self.server.as_fd(), wish(&self.replies, &self.requests));
        [client, server].into_iter().filter(|(_, flags)| !flags.is_empty())
    }

    /// Moves bytes as the switches demand. `limit` is how many bytes clients may still get before the planned cut.
    pub(super) fn pump(&mut self, delay: &RangeInclusive<Duration>, limit: &mut Option<u64>) {
        let now = Instant::now();
        // OK to ignore because what a client has sent is delivered even after the client has left.
        let _ = self.requests.read(&self.client, now, delay);
        let _ = self.requests.write(&self.server, now, u64::MAX);
        if self.replies.read(&self.server, now, delay).is_err() {
            self.is_broken = true;
        }
        let _ = self.answer(now, limit);
    }

    fn answer(&mut self, now: Instant, limit: &mut Option<u64>) -> io::Result<()> {
        if *limit == Some(0) && self.replies.due().is_some_and(|due| due <= now) {
            (self.is_broken, *limit) = (true, None);
            return Ok(());
        }
        let written = self.replies.write(&self.client, now, limit.unwrap_or(u64::MAX))?;
        *limit = limit.map(|left| left - written);
        if written > 0 && *limit == Some(0) {
            (self.is_broken, *limit) = (true, None);
        }
        Ok(())
    }

    /// Whether nothing more can happen to it.
    pub(super) fn is_done(&self) -> bool {
        self.is_broken || (self.requests.is_over() && self.replies.is_over())
    }

    /// Whether both sides must be reset.
    pub(super) fn is_to_reset(&self) -> bool {
        self.is_broken || self.requests.is_torn() || self.replies.is_torn()
    }

    /// Resets both sides, as a network that fails does.
    pub(super) fn reset(self) {
        close_hard(&self.client);
        close_hard(&self.server);
    }
}

fn prepared(stream: TcpStream) -> Option<TcpStream> {
    stream.set_nonblocking(true).ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

/// The close that follows sends a reset instead of an end.
fn close_hard(stream: &TcpStream) {
    // OK to ignore because a socket that is closed already needs no reset.
    let _ = setsockopt(stream, Linger, &linger { l_onoff: 1, l_linger: 0 });
}

/// A server that is stopped still accepts; a connect waits only if its backlog is full.
const CONNECT: Duration = Duration::from_secs(1);

//! `Door`: the proxy's own port, which no other socket can take while it is closed.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, shutdown,
    socket, sockopt::ReuseAddr,
};

use crate::ports;

/// A port of 127.0.0.1 that accepts or refuses.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    port: u16,
    is_open: bool,
}

impl Door {
    /// Makes a door that is open.
    ///
    /// The socket has `SO_REUSEADDR` only while it is open. So no other socket can take the port with this option
    /// while it is closed. While it is open, its connections inherit the option. Without it, a connection that has
    /// ended would keep the port from being opened again for a minute.
    pub(super) fn new() -> Self {
        for _ in 0..TRIES {
            let port = ports::free(false);
            let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
            let socket = socket.expect("a socket");
            let address = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
            if bind(socket.as_raw_fd(), &address).is_err() {
                continue;
            }
            let mut door = Self { listener: socket.into(), port, is_open: false };
            door.listener.set_nonblocking(true).expect("a socket takes this setting");
            door.open();
            return door;
        }
        panic!("no port for a proxy in {TRIES} tries")
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn open(&mut self) {
        if !self.is_open {
            self.share_port(true);
            listen(&self.listener, Backlog::MAXCONN).expect("the port is ours");
            self.is_open = true;
        }
    }

    /// Refuses new connections. Shutting down a socket that listens closes it for clients, and the socket keeps its
    /// port (Linux: `inet_shutdown`).
    pub(super) fn close(&mut self) {
        if self.is_open {
            shutdown(self.listener.as_raw_fd(), Shutdown::Read).expect("our own socket");
            self.share_port(false);
            self.is_open = false;
        }
    }

    fn share_port(&self, is_shared: bool) {
        setsockopt(&self.listener, ReuseAddr, &is_shared).expect("a socket takes this setting");
    }

    /// The socket to wait for, if it is open.
    pub(super) fn waits(&self) -> Option<BorrowedFd<'_>> {
        self.is_open.then(|| self.listener.as_fd())
    }

    /// The next connection, if there is one.
    pub(super) fn accept(&self) -> Option<TcpStream> {
        if !self.is_open {
            return None;
        }
        match self.listener.accept() {
            Ok((stream, _)) => Some(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            // The client has left already. If there is another one behind it, the next poll reports that.
            Err(_) => None,
        }
    }
}

const TRIES: usize = 20;

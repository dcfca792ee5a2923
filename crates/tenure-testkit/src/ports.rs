//! Ports of this machine on which nobody listens yet.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU32, Ordering},
};

/// A port of 127.0.0.1 that could be listened on just now; if a bus is needed, so could its [`BUS`] port.
///
/// No two calls of one process give the same. Another process may be faster, so whoever starts a server
/// on it must be ready to try the next one.
///
/// The ports lie below those that the kernel gives to outgoing connections. Otherwise a client that
/// knocks at a dead server could get the server's own port for its end, and find itself connected to
/// itself.
///
/// # Panics
/// If a few hundred ports in a row are taken.
pub fn free(needs_bus: bool) -> u16 {
    (0..TRIES)
        .map(|_| next())
        .find(|port| is_free(*port) && (!needs_bus || is_free(port + BUS)))
        .expect("no free port in 300 tries: are servers of earlier tests still running?")
}

/// What a node of a Redis cluster adds to its port, for talking to other nodes.
pub const BUS: u16 = 10_000;

/// Processes begin far apart, and go on in steps of one.
fn next() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // OK because only uniqueness matters, and nothing else is published with it.
    let mine = TAKEN.fetch_add(1, Ordering::Relaxed);
    let index = std::process::id().wrapping_mul(7919).wrapping_add(mine) % COUNT;
    FIRST + u16::try_from(index).expect("BUG: COUNT fits in 16 bits")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

const TRIES: usize = 300;
const FIRST: u16 = 10_000;
const COUNT: u32 = 10_000;

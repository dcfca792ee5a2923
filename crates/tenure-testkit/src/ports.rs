//! Ports of this machine on which no process listens yet.

use std::{
    env,
    fs::{self, File, TryLockError},
    net::{Ipv4Addr, TcpListener},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use tenure_core::locked;

/// A port of 127.0.0.1 that was free to listen on just now; if a bus is needed, so was its [`BUS`] port.
///
/// This process keeps the port until it ends: while a server there is killed or restarted, no server of another test
/// takes it. Only other programs may be faster, so the caller must be ready to try the next port.
///
/// The ports are below those that the kernel gives to outgoing connections. Otherwise a client that connects to a
/// dead server could get the server's own port for its end, and be connected to itself.
///
/// # Panics
/// If a few hundred ports in a row are taken.
pub fn free(needs_bus: bool) -> u16 {
    (0..TRIES)
        .map(|_| next())
        .find(|port| is_free(*port) && (!needs_bus || is_free(port + BUS)) && is_kept(*port))
        .expect("no free port in 300 tries: are servers of earlier tests still running?")
}

/// What a node of a Redis cluster adds to its port to get the port for other nodes.
pub const BUS: u16 = 10_000;

/// Processes start at ports far apart, and continue in steps of one.
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

/// Keeps the port from other test processes, with a file lock that ends with this process. Where files cannot be
/// locked, every port counts as kept.
fn is_kept(port: u16) -> bool {
    static KEPT: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let folder = env::temp_dir().join("tenure-test-ports");
    let file = fs::create_dir_all(&folder)
        .and_then(|()| File::options().create(true).append(true).open(folder.join(port.to_string())));
    let Ok(file) = file else { return true };
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return false;
    }
    locked(&KEPT).push(file);
    true
}

const TRIES: usize = 300;
const FIRST: u16 = 10_000;
const COUNT: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A scene killed a server, and the server of another test took its port: a quorum then counted a stranger.
    #[test]
    fn a_port_is_kept_though_nobody_listens() {
        let port = free(false);
        assert!(is_free(port), "nobody listens");
        let file = File::open(env::temp_dir().join("tenure-test-ports").join(port.to_string())).unwrap();
        assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)), "as another process finds it");
        assert!(!is_kept(port));
    }
}

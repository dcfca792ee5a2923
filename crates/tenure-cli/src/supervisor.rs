//! What `lead` reports to a supervisor that asked for it by `NOTIFY_SOCKET`, as systemd does for `Type=notify`.

use std::{
    env, io,
    os::unix::net::{SocketAddr, UnixDatagram},
};

use tenure::command::shown;

use crate::worker::{self, Message};

/// The supervisor of this service.
pub(crate) struct Supervisor;

impl Supervisor {
    /// READY: this host waits for the lead or has it, and the service is up in both cases.
    pub(crate) fn is_ready(&self, status: &str) {
        self.say("READY=1\n", status);
    }

    pub(crate) fn status(&self, status: &str) {
        self.say("", status);
    }

    /// Through the front, because a supervisor listens to the process that it has started.
    fn say(&self, state: &str, status: &str) {
        let message = format!("{state}STATUS={}", shown(status).within(LONGEST));
        if !worker::tell(&Message::Supervisor(message.clone())) {
            say(&message);
        }
    }
}

/// Sends a message of this process, if a supervisor asked for it.
pub(crate) fn say(message: &str) {
    let asked = env::var("NOTIFY_SOCKET").ok().filter(|name| !name.is_empty());
    if let Some((socket, supervisor)) = asked.and_then(|name| socket(&name).ok()) {
        // OK to ignore because a supervisor that does not listen misses nothing that it needs.
        let _ = socket.send_to_addr(message.as_bytes(), &supervisor);
    }
}

/// A supervisor that hangs is not waited for.
fn socket(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address(name)?))
}

/// A path, or behind `@` a name that is in no file system.
#[cfg(target_os = "linux")]
fn address(name: &str) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

#[cfg(not(target_os = "linux"))]
fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_pathname(name)
}

/// A name has up to 512 bytes.
const LONGEST: usize = 1024;

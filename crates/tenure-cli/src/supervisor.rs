//! What `lead` reports to a supervisor that asked for it by `NOTIFY_SOCKET`, as systemd does for `Type=notify`.

use std::{
    env, io,
    os::unix::net::{SocketAddr, UnixDatagram},
};

use tenure::command::shown;

/// Whom to report to, if anyone asked.
pub(crate) struct Supervisor(Option<(UnixDatagram, SocketAddr)>);

impl Supervisor {
    pub(crate) fn of_this_process() -> Self {
        let asked = env::var("NOTIFY_SOCKET").ok().filter(|name| !name.is_empty());
        Self(asked.and_then(|name| socket(&name).ok()))
    }

    /// READY: this host waits for the lead or has it, and the service is up in both cases.
    pub(crate) fn is_ready(&self, status: &str) {
        self.say("READY=1\n", status);
    }

    pub(crate) fn status(&self, status: &str) {
        self.say("", status);
    }

    /// A supervisor that does not listen has no word of it.
    fn say(&self, state: &str, status: &str) {
        if let Self(Some((socket, supervisor))) = self {
            let message = format!("{state}STATUS={}", shown(status).within(LONGEST));
            let _ = socket.send_to_addr(message.as_bytes(), supervisor);
        }
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

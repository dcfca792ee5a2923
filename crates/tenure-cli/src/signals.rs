//! The signals we listen to.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Stop;

/// INT, TERM and HUP, which end a wait and are passed on to a child; CHLD, which says that a child changed.
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    child: tokio::signal::unix::Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Stop> {
        let listen = |kind| signal(kind).map_err(|error| Stop::internal(format!("signals: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            child: listen(SignalKind::child())?,
        })
    }

    /// The next signal that asks us to end.
    pub(crate) async fn asked_to_end(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.terminate.recv() => Signal::SIGTERM,
            _ = self.hangup.recv() => Signal::SIGHUP,
        }
    }

    /// The next signal of either kind; `None` if a child changed.
    pub(crate) async fn next(&mut self) -> Option<Signal> {
        tokio::select! {
            biased;
            _ = self.child.recv() => None,
            _ = self.interrupt.recv() => Some(Signal::SIGINT),
            _ = self.terminate.recv() => Some(Signal::SIGTERM),
            _ = self.hangup.recv() => Some(Signal::SIGHUP),
        }
    }
}

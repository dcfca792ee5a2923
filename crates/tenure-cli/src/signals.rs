//! The signals we listen to.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Stop;

type Stream = tokio::signal::unix::Signal;

/// INT, TERM and HUP, which end a wait and are passed on to a child; CHLD, which says that a child changed.
///
/// A signal that was ignored when we started stays so, for us and for the child: as under `nohup`, or in the background
/// of a script.
pub(crate) struct Signals {
    interrupt: Option<Stream>,
    terminate: Option<Stream>,
    hangup: Option<Stream>,
    child: Option<Stream>,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Stop> {
        let ignored = ignored_mask();
        let listen = |number: Signal| {
            // An ignored CHLD would have the system reap our child: that one we always listen to.
            if number != Signal::SIGCHLD && ignored >> (number as i32 - 1) & 1 == 1 {
                return Ok(None);
            }
            let stream = signal(SignalKind::from_raw(number as i32));
            stream.map(Some).map_err(|error| Stop::internal(format!("signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(Signal::SIGINT)?,
            terminate: listen(Signal::SIGTERM)?,
            hangup: listen(Signal::SIGHUP)?,
            child: listen(Signal::SIGCHLD)?,
        })
    }

    /// The next signal that asks us to end.
    pub(crate) async fn asked_to_end(&mut self) -> Signal {
        tokio::select! {
            _ = next(&mut self.interrupt) => Signal::SIGINT,
            _ = next(&mut self.terminate) => Signal::SIGTERM,
            _ = next(&mut self.hangup) => Signal::SIGHUP,
        }
    }

    /// The next signal of either kind; `None` if a child changed.
    pub(crate) async fn next(&mut self) -> Option<Signal> {
        tokio::select! {
            biased;
            _ = next(&mut self.child) => None,
            _ = next(&mut self.interrupt) => Some(Signal::SIGINT),
            _ = next(&mut self.terminate) => Some(Signal::SIGTERM),
            _ = next(&mut self.hangup) => Some(Signal::SIGHUP),
        }
    }
}

async fn next(stream: &mut Option<Stream>) {
    match stream {
        Some(stream) => drop(stream.recv().await),
        None => std::future::pending().await,
    }
}

/// Bit n − 1 is set if signal n is ignored. Where there is no `/proc`, nothing is known to be.
fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

//! The signals we listen to.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Stop;

type Stream = tokio::signal::unix::Signal;

/// INT, TERM and HUP, which end a wait and are passed on to a child; CHLD, which says that a child changed.
///
/// A HUP that was ignored when we started stays so, for us and for the child: we run under `nohup`.
pub(crate) struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hangup: Option<Stream>,
    /// TSTP, from when there is a command that must not run on while we are stopped.
    stop: Option<Stream>,
    child: Stream,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Stop> {
        let listen = |kind| signal(kind).map_err(|error| Stop::internal(format!("signals: {error}")));
        let hangup = if is_ignored(Signal::SIGHUP) { None } else { Some(listen(SignalKind::hangup())?) };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup,
            stop: None,
            child: listen(SignalKind::child())?,
        })
    }

    /// Listens to TSTP as well. Until then it stops us as any other program.
    pub(crate) fn listen_to_stop(&mut self) {
        if !is_ignored(Signal::SIGTSTP) {
            self.stop = signal(SignalKind::from_raw(Signal::SIGTSTP as i32)).ok();
        }
    }

    /// The next signal that asks us to end.
    pub(crate) async fn asked_to_end(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.terminate.recv() => Signal::SIGTERM,
            _ = next(&mut self.hangup) => Signal::SIGHUP,
        }
    }

    /// The next signal of either kind; `None` if a child changed.
    pub(crate) async fn next(&mut self) -> Option<Signal> {
        tokio::select! {
            biased;
            _ = self.child.recv() => None,
            _ = self.interrupt.recv() => Some(Signal::SIGINT),
            _ = self.terminate.recv() => Some(Signal::SIGTERM),
            _ = next(&mut self.hangup) => Some(Signal::SIGHUP),
            _ = next(&mut self.stop) => Some(Signal::SIGTSTP),
        }
    }
}

async fn next(stream: &mut Option<Stream>) {
    match stream {
        Some(stream) => drop(stream.recv().await),
        None => std::future::pending().await,
    }
}

/// Where there is no `/proc`, nothing is known to be.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as i32 - 1) & 1 == 1
}

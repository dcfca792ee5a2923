//! The signals that `tenure` handles.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::{exit::Stop, inherited::is_ignored};

type Stream = tokio::signal::unix::Signal;

/// INT, TERM and HUP end a wait and are passed on to the command. CHLD says that a child has changed.
///
/// A signal that was ignored when we started stays ignored, for us and for the command: HUP under `nohup`, INT after
/// `&` in a script.
pub(crate) struct Signals {
    interrupt: Option<Stream>,
    terminate: Option<Stream>,
    hangup: Option<Stream>,
    /// TSTP, once there is a command that must not run while we are suspended.
    stop: Option<Stream>,
    child: Stream,
    /// Somebody has asked us to end.
    is_asked: bool,
    /// And once more, while we waited.
    is_insisted: bool,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Stop> {
        Ok(Self {
            interrupt: listen_unless_ignored(Signal::SIGINT)?,
            terminate: listen_unless_ignored(Signal::SIGTERM)?,
            hangup: listen_unless_ignored(Signal::SIGHUP)?,
            stop: None,
            child: listen(Signal::SIGCHLD)?,
            is_asked: false,
            is_insisted: false,
        })
    }

    /// Handles TSTP as well. Until then it suspends us like any other program.
    pub(crate) fn listen_to_stop(&mut self) {
        self.stop = listen_unless_ignored(Signal::SIGTSTP).unwrap_or(None);
    }

    /// Waits for the next signal that asks us to end.
    pub(crate) async fn asked_to_end(&mut self) -> Signal {
        let signal = tokio::select! {
            _ = next(&mut self.interrupt) => Signal::SIGINT,
            _ = next(&mut self.terminate) => Signal::SIGTERM,
            _ = next(&mut self.hangup) => Signal::SIGHUP,
        };
        self.is_asked = true;
        signal
    }

    /// We were asked to end: by INT or TERM while the command ran, or by any of the three before and after.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// A wait was ended by a second signal.
    pub(crate) fn is_insisted(&self) -> bool {
        self.is_insisted
    }

    /// Waits until we are asked to end once more: INT or TERM may have come before, while the command ran.
    pub(crate) async fn insisted(&mut self) -> Signal {
        loop {
            let is_again = self.is_asked;
            let signal = self.asked_to_end().await;
            if is_again {
                self.is_insisted = true;
                return signal;
            }
        }
    }

    /// Waits for the next signal; `None` if a child has changed.
    pub(crate) async fn next(&mut self) -> Option<Signal> {
        let signal = tokio::select! {
            biased;
            _ = self.child.recv() => None,
            _ = next(&mut self.interrupt) => Some(Signal::SIGINT),
            _ = next(&mut self.terminate) => Some(Signal::SIGTERM),
            _ = next(&mut self.hangup) => Some(Signal::SIGHUP),
            _ = next(&mut self.stop) => Some(Signal::SIGTSTP),
        };
        self.is_asked |= matches!(signal, Some(Signal::SIGINT | Signal::SIGTERM));
        signal
    }
}

/// For a verb that handles no signal: the first one ends the process, which holds nothing that it would have to give back.
pub(crate) async fn unhandled() -> Signal {
    std::future::pending().await
}

fn listen(to: Signal) -> Result<Stream, Stop> {
    signal(SignalKind::from_raw(to as i32))
        .map_err(|error| Stop::internal(format!("signal handlers cannot be installed: {error}")))
}

fn listen_unless_ignored(to: Signal) -> Result<Option<Stream>, Stop> {
    if is_ignored(to) { Ok(None) } else { listen(to).map(Some) }
}

async fn next(stream: &mut Option<Stream>) {
    match stream {
        Some(stream) => drop(stream.recv().await),
        None => std::future::pending().await,
    }
}

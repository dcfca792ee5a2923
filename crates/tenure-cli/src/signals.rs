//! The signals that `tenure` handles, and those that were ignored or blocked when it started, so that the command
//! gets these back.

use std::{
    ffi::{CString, OsString},
    fs, io,
    os::unix::{ffi::OsStringExt, process::CommandExt},
    process::Command,
    sync::OnceLock,
};

use nix::{
    sys::signal::{
        SigSet, SigmaskHow,
        Signal::{self, SIGPIPE, SIGTTOU, SIGXFSZ},
    },
    unistd::execvp,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Stop;

type SignalStream = tokio::signal::unix::Signal;

/// INT, TERM and HUP end a wait and are passed on to the command. CHLD reports that a child has changed.
///
/// A signal that was ignored at the start stays ignored, for `tenure` and for the command: HUP under `nohup`, INT
/// after `&` in a script.
pub(crate) struct Signals {
    interrupt: Option<SignalStream>,
    terminate: Option<SignalStream>,
    hangup: Option<SignalStream>,
    /// TSTP, once there is a command that must not run while `tenure` is suspended.
    stop: Option<SignalStream>,
    child: SignalStream,
    /// A signal has asked `tenure` to end.
    is_asked: bool,
    /// A second signal arrived during a wait.
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

    /// Handles TSTP as well. Until then it suspends `tenure` like any other program.
    pub(crate) fn listen_to_stop(&mut self) {
        self.stop = listen_unless_ignored(Signal::SIGTSTP).unwrap_or(None);
    }

    /// Waits for the next signal that asks `tenure` to end.
    pub(crate) async fn asked_to_end(&mut self) -> Signal {
        let signal = tokio::select! {
            _ = next(&mut self.interrupt) => Signal::SIGINT,
            _ = next(&mut self.terminate) => Signal::SIGTERM,
            _ = next(&mut self.hangup) => Signal::SIGHUP,
        };
        self.is_asked = true;
        signal
    }

    /// A signal asked `tenure` to end: INT or TERM while the command ran, or any of the three before and after.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// A wait was ended by a second signal.
    pub(crate) fn is_insisted(&self) -> bool {
        self.is_insisted
    }

    /// Waits for one more signal to end: INT or TERM may have come before, while the command ran.
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

/// For a verb that handles no signal: the first one ends the process, which holds nothing that it would have to
/// release.
pub(crate) async fn unhandled() -> Signal {
    std::future::pending().await
}

fn listen(to: Signal) -> Result<SignalStream, Stop> {
    signal(SignalKind::from_raw(to as i32))
        .map_err(|error| Stop::internal(format!("signal handlers cannot be installed: {error}")))
}

fn listen_unless_ignored(to: Signal) -> Result<Option<SignalStream>, Stop> {
    if is_ignored(to) { Ok(None) } else { listen(to).map(Some) }
}

async fn next(stream: &mut Option<SignalStream>) {
    match stream {
        Some(stream) => drop(stream.recv().await),
        None => std::future::pending().await,
    }
}

/// Blocked in all processes of `tenure`, so that a write neither stops nor kills one: TTOU is for a write to a
/// terminal in the background (`stty tostop`), XFSZ for a write to a file at its limit, which is then an error.
const BLOCKED: [Signal; 2] = [SIGTTOU, SIGXFSZ];

/// The signals that were ignored, one bit for each.
static IGNORED: OnceLock<u64> = OnceLock::new();

/// The mask of signals at the start.
static MASK: OnceLock<SigSet> = OnceLock::new();

/// Before `main`, because the runtime of Rust ignores PIPE before it calls that. Without `/proc` this is unknown,
/// and no signal counts as ignored.
#[ctor::ctor]
fn look() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let _ = IGNORED.set(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0));
}

/// True if the signal was ignored at the start.
fn is_ignored(signal: Signal) -> bool {
    IGNORED.get().copied().unwrap_or(0) >> (signal as i32 - 1) & 1 == 1
}

/// Blocks the signals that must not stop or kill `tenure`. Call it before there are threads, which inherit the
/// mask.
pub(crate) fn block() {
    if let Ok(mask) = SigSet::from_iter(BLOCKED).thread_swap_mask(SigmaskHow::SIG_BLOCK) {
        let _ = MASK.set(mask);
    }
}

/// What a process between `tenure` and the command has to undo: see [`execute`].
pub(crate) fn to_undo() -> String {
    let was_blocked = |signal| MASK.get().is_some_and(|mask| mask.contains(signal));
    let blocked = BLOCKED.into_iter().filter(|signal| !was_blocked(*signal));
    let undone = blocked.chain(is_ignored(SIGPIPE).then_some(SIGPIPE));
    undone.map(Signal::as_str).collect::<Vec<_>>().join(",")
}

/// Becomes the program, with the signals as they were before the changes in `to_undo`. Returns why it cannot.
pub(crate) fn execute(argv: Vec<OsString>, to_undo: &str) -> io::Error {
    let undone: SigSet = to_undo.split(',').filter_map(|name| name.parse::<Signal>().ok()).collect();
    let blocked = SigSet::from_iter(BLOCKED.into_iter().filter(|signal| undone.contains(*signal)));
    let _ = blocked.thread_unblock();
    // The runtime ignores PIPE in this process, and `Command` ends that for the program.
    let error = if undone.contains(SIGPIPE) {
        let argv: Vec<CString> = argv.into_iter().map(text).collect();
        let Err(error) = execvp(&argv[0], &argv);
        error.into()
    } else {
        Command::new(&argv[0]).args(&argv[1..]).exec()
    };
    let _ = blocked.thread_block();
    error
}

fn text(argument: OsString) -> CString {
    CString::new(argument.into_vec()).expect("BUG: an argument of a process ends at its first NUL")
}

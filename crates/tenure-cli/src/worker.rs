//! The worker of a [`front`](crate::front): what it knows of it, and what it tells it.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    os::fd::OwnedFd,
    sync::{Mutex, OnceLock},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::{Signal, kill},
    unistd::{Pid, close, getpgrp, getpid, getppid},
};
use serde::{Deserialize, Serialize};
use tenure::Lease;

/// What a worker tells its front: one line of JSON each.
#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Signals are handled from now on.
    Listens,
    /// These leases are held from now on, instead of those before; or none.
    Holds(Option<Held>),
    /// For the supervisor of the service, which listens to the process that it has started.
    Supervisor(String),
    /// The worker ends by itself; the front dies by this signal, if there is one (`true`: and its group).
    Ends(Option<(i32, bool)>),
}

/// The leases of a command.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Names and owners.
    pub(crate) leases: Vec<(String, String)>,
    pub(crate) ttl: Duration,
    /// The locks are kept for this long instead of freed.
    pub(crate) linger: Option<Duration>,
    /// At a death they are freed, or kept for `linger`.
    pub(crate) frees: bool,
}

impl Held {
    pub(crate) fn new<'l>(
        leases: impl Iterator<Item = &'l Lease>,
        ttl: Duration,
        linger: Option<Duration>,
        frees: bool,
    ) -> Self {
        let named = |lease: &Lease| (lease.name().to_string(), lease.owner().to_string());
        Self { leases: leases.map(named).collect(), ttl, linger, frees }
    }
}

/// What a worker knows of its front.
struct Front {
    pid: Pid,
    group: Pid,
    /// By which it passes signals on, and which ends with it. Taken once, by the signals.
    line: Mutex<Option<OwnedFd>>,
    told: Mutex<File>,
}

static FRONT: OnceLock<Front> = OnceLock::new();

/// `__work LINE TOLD GROUP SIGNALS`, before the arguments of the front. Returns SIGNALS: what the front found at its start.
///
/// # Errors
/// If this process was not started by a front.
pub(crate) fn become_one(arguments: &mut impl Iterator<Item = OsString>) -> io::Result<String> {
    let mut next = || arguments.next().and_then(|text| text.into_string().ok()).unwrap_or_default();
    let (line, told, group, signals) = (next(), next(), next(), next());
    // Opened again, because an inherited number is no handle that closes itself in the command.
    let line_again = File::open(format!("/proc/self/fd/{line}"))?;
    let told_again = File::options().write(true).open(format!("/proc/self/fd/{told}"))?;
    // A front that is stopped reads nothing, and is not waited for.
    fcntl(&told_again, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    for number in [line, told] {
        close(number.parse::<i32>().map_err(io::Error::other)?)?;
    }
    name_us();
    let group = Pid::from_raw(group.parse().map_err(io::Error::other)?);
    let front = Front {
        pid: getppid(),
        group,
        line: Mutex::new(Some(line_again.into())),
        told: Mutex::new(told_again),
    };
    FRONT.set(front).map_err(|_| io::Error::other("a worker is one already"))?;
    Ok(signals)
}

/// Names this process as people look for it: it was started as `/proc/self/exe`.
pub(crate) fn name_us() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(c"tenure");
}

/// Whether this process has a front.
pub(crate) fn has_front() -> bool {
    FRONT.get().is_some()
}

/// The process that the user sees: this one, if it has no front.
pub(crate) fn pid() -> Pid {
    FRONT.get().map_or_else(getpid, |front| front.pid)
}

/// The process group that the shell knows, and gives the terminal to.
pub(crate) fn group() -> Pid {
    FRONT.get().map_or_else(getpgrp, |front| front.group)
}

/// Wakes a front that has stopped with this process, if a signal for this one alone has continued it.
pub(crate) fn wake_front() {
    let Some(front) = FRONT.get() else { return };
    let stat = fs::read_to_string(format!("/proc/{}/stat", front.pid)).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    if state == Some('T') && getppid() == front.pid {
        // OK to ignore because it passes this signal on, and so has seen it.
        let _ = kill(front.pid, Signal::SIGCONT);
    }
}

/// The line of the front, the first time; `None` without a front.
pub(crate) fn line() -> Option<OwnedFd> {
    FRONT.get()?.line.lock().ok()?.take()
}

/// Tells the front. False without one.
pub(crate) fn tell(message: &Message) -> bool {
    let Some(front) = FRONT.get() else { return false };
    let mut line = serde_json::to_vec(message).expect("BUG: a message is JSON");
    line.push(b'\n');
    // OK to ignore because a front that is dead or stopped needs no message, and this one has its own end.
    let _ = front.told.lock().map(|mut told| told.write_all(&line));
    true
}

/// Not a verb for users.
pub(crate) const VERB: &str = "__work";

//! The processes of our session, from `/proc`: parent, group, alive or dead; and whether it shows them at all.

use std::{
    fs,
    io::{self, ErrorKind},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::OnceLock,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::{Pid, getpgid, getpid, getsid},
};

/// One process, when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) group: Pid,
    /// `None` if the system hides it, or if it is of another PID namespace.
    pub(crate) parent: Option<Pid>,
    /// Its start time, which differs if another process gets the same pid.
    pub(crate) born: u64,
    /// A zombie: none of its threads runs, and its parent has not waited for it.
    pub(crate) is_dead: bool,
}

/// A pid and the start time of the process.
pub(crate) type Known = (i32, u64);

/// What `/proc` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Our processes.
    Ours,
    /// It is missing, or shows less of them than is needed.
    Little,
    /// The processes of another PID namespace, of which some have the pids of ours.
    Others,
}

/// What `/proc` showed to this process when it was asked first: no later failure makes it less.
pub(crate) fn sight() -> Sight {
    static SIGHT: OnceLock<Sight> = OnceLock::new();
    *SIGHT.get_or_init(look_around)
}

fn look_around() -> Sight {
    let us = getpid();
    let link = fs::read_link("/proc/self").ok();
    let is_there = link.is_some() || fs::symlink_metadata("/proc/self").is_ok();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // From the namespace of `/proc` down to that of the process, a pid in each.
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let is_outer = pids.is_some_and(|pids| pids.split_whitespace().count() > 1);
    if is_outer || (is_there && link != Some(us.to_string().into())) {
        return Sight::Others;
    }
    let is_listed = || getsid(None).ok().is_some_and(|session| lists(session, us));
    match children(us).is_ok() && is_listed() {
        true => Sight::Ours,
        false => Sight::Little,
    }
}

fn lists(session: Pid, pid: Pid) -> bool {
    of_session(session).is_ok_and(|all| all.iter().any(|one| one.pid == pid && one.born != 0))
}

/// All processes of a session. A process cannot join a group of another session, so each group is complete.
pub(crate) fn of_session(session: Pid) -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let pid = Pid::from_raw(pid);
        // A system call and no file, because it is cheap, and because nobody can be hidden from it.
        if getsid(Some(pid)) == Ok(session) {
            found.extend(Process::look(pid));
        }
    }
    Ok(found)
}

/// The path of this program, even if its file was replaced meanwhile.
#[cfg(target_os = "linux")]
pub(crate) fn ourselves() -> io::Result<PathBuf> {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return Ok(running.into());
    }
    // Without `/proc` the kernel still tells which path was started.
    Ok(Path::new(".").join(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes())))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn ourselves() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// The children of a process whose main thread starts and adopts all of them, also those that `/proc` hides otherwise.
/// One may be missing while another one ends.
pub(crate) fn children(parent: Pid) -> io::Result<Vec<Pid>> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    Ok(list.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect())
}

/// True if our process group is orphaned: no process in it has a parent in another group of the session. Then the
/// system does not suspend a process that uses the terminal, but gives it an error. False if `/proc` does not show it.
pub(crate) fn are_orphaned() -> bool {
    if sight() != Sight::Ours {
        return false;
    }
    let (Ok(group), Ok(session)) = (getpgid(None), getsid(None)) else { return false };
    let cares = |parent: Pid| getsid(Some(parent)) == Ok(session) && getpgid(Some(parent)) != Ok(group);
    let Ok(all) = of_session(session) else { return false };
    !all.iter().any(|process| process.group == group && process.parent.is_some_and(cares))
}

impl Process {
    /// `None` if there is no such process. After any other error it counts as alive.
    pub(crate) fn look(pid: Pid) -> Option<Self> {
        let group = getpgid(Some(pid)).ok()?;
        let stat = match fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => Stat::parse(&stat),
            // Gone meanwhile, or hidden: only a system call can tell.
            Err(error) if is_gone(&error) => {
                getpgid(Some(pid)).ok()?;
                None
            }
            Err(_) => None,
        };
        let ended = has_exited(pid);
        Some(match stat {
            // The first thread of a process may end before the others: that is no zombie, though it looks so.
            Some(Stat { state, parent, born }) => {
                let is_dead = matches!(state, b'Z' | b'X') && ended != Some(false);
                Self { pid, group, parent: (parent > 0).then(|| Pid::from_raw(parent)), born, is_dead }
            }
            None => Self { pid, group, parent: None, born: 0, is_dead: ended == Some(true) },
        })
    }

    /// What tells it from a later one with the same pid.
    pub(crate) fn known(&self) -> Known {
        (self.pid.as_raw(), self.born)
    }

    /// Sends a signal to this process, and never to another one with the same pid. False if we may not.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let handle = open(self.pid);
        if Self::look(self.pid).is_none_or(|now| now.born != self.born) {
            return true;
        }
        match handle {
            Ok(Some(handle)) => send(&handle, signal),
            Ok(None) => true,
            Err(()) => kill(self.pid, signal) != Err(Errno::EPERM),
        }
    }

    /// The environment with which it was started; `None` if it cannot be read, or is empty, as it is for a moment when a
    /// process becomes another program.
    pub(crate) fn environment(&self) -> Option<Vec<u8>> {
        fs::read(format!("/proc/{}/environ", self.pid)).ok().filter(|environment| !environment.is_empty())
    }
}

pub(crate) fn raw(pid: Pid) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(pid.as_raw())
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

/// Whether all of its threads have ended; `None` if the system does not say.
fn has_exited(pid: Pid) -> Option<bool> {
    let Some(handle) = open(pid).ok()? else { return Some(true) };
    let mut ready = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    Some(poll(&mut ready, PollTimeout::ZERO).ok()? == 1)
}

/// A handle that never means another process; `Ok(None)` if there is no such process, an error where there are no
/// handles.
#[cfg(target_os = "linux")]
fn open(pid: Pid) -> Result<Option<OwnedFd>, ()> {
    use rustix::process::{PidfdFlags, pidfd_open};
    match pidfd_open(raw(pid).ok_or(())?, PidfdFlags::empty()) {
        Ok(handle) => Ok(Some(handle)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(_) => Err(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn open(_pid: Pid) -> Result<Option<OwnedFd>, ()> {
    Err(())
}

#[cfg(target_os = "linux")]
fn send(handle: &OwnedFd, signal: Signal) -> bool {
    let Some(signal) = rustix::process::Signal::from_named_raw(signal as i32) else { return true };
    rustix::process::pidfd_send_signal(handle, signal) != Err(rustix::io::Errno::PERM)
}

#[cfg(not(target_os = "linux"))]
fn send(_handle: &OwnedFd, _signal: Signal) -> bool {
    true
}

/// The fields that we use of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    parent: i32,
    born: u64,
}

impl Stat {
    /// `pid (name) state parent ...`, where the name is any bytes, cut at the fifteenth.
    fn parse(stat: &[u8]) -> Option<Self> {
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = str::from_utf8(&stat[end + 1..]).ok()?;
        let mut fields = rest.split_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let parent = fields.next()?.parse().ok()?;
        // Field 22 of all; the two that we have read are 3 and 4.
        let born = fields.nth(17)?.parse().ok()?;
        Some(Self { state, parent, born })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "S 7 8 9 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 12345 99";

    /// L1: a name is cut at fifteen bytes, also inside a character; and it may look like the fields behind it.
    #[test]
    fn a_process_of_any_name_is_read() {
        for name in [&b"sleep"[..], b"nachtsicherung\xc3", b"\xff\xfe", b") Z 1 2 (", b"a b\n", b""] {
            let stat = [b"42 (", name, b") ", REST.as_bytes()].concat();
            let expected = Stat { state: b'S', parent: 7, born: 12345 };
            assert_eq!(Stat::parse(&stat), Some(expected), "{}", name.escape_ascii());
        }
        assert_eq!(Stat::parse(b"42 (cut"), None);
        assert_eq!(Stat::parse(b"42 (cut) Z 1"), None);
    }

    /// We are no zombie, and nobody has the largest pid there is.
    #[test]
    fn we_are_seen_alive_and_nobody_is_not_seen() {
        let us = Process::look(getpid()).unwrap();
        assert_eq!((us.pid, us.is_dead), (getpid(), false));
        assert_eq!(us.parent, Some(nix::unistd::getppid()));
        assert_eq!(Process::look(Pid::from_raw(i32::MAX)), None);
        assert!(of_session(getsid(None).unwrap()).unwrap().contains(&us));
    }
}

//! `Mark`: the process without which a lease ends, and whether it has ended.
//!
//! A lease whose guard lives in a process of the library ends with that process: the row of the lock has the mark of the
//! process, and each client of the same host can see its end.
//!
//! **Why a lease is ended only when its holder runs no instruction (L1, A11).** All of this must hold:
//! 1. The mark and the client are of the same boot, and in the same namespaces of process ids and of time. So the id and the
//!    time of the start mean the same to both. A namespace may get the number of an earlier one, but only when no process of
//!    that one is left.
//! 2. `pidfd_open` finds no process of that id (`ESRCH`), or its descriptor reports that all threads have ended, or a process
//!    that started at another time has the id now. A zombie whose main thread has ended while others run is none of these.
//! 3. No process has the lock of that id on the database ([`crate::link`]). A child of a fork keeps it.
//!
//! Whatever cannot be looked at proves nothing: no `/proc`, one of another namespace, `hidepid`, a refused system call, a
//! state in `/proc`. Then the lease lasts for its ttl.

use std::{fmt, fs, str::FromStr};

use crate::link::FileConnection;

/// A process, by all that tells it from every other one of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    surroundings: Surroundings,
    pid: u32,
    /// When it started, as `/proc/PID/stat` shows it.
    start: u64,
}

/// Where a process id and a time of a start mean the same.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Surroundings {
    boot: String,
    pids: u64,
    time: u64,
}

impl Mark {
    /// Of this process; `None` where its end could not be seen.
    pub(crate) fn own(boot: &str) -> Option<Self> {
        let pid = std::process::id();
        // The `/proc` of another namespace shows this process under another id, or not at all.
        if !platform::CAN_SEE_DEATH
            || fs::read_link("/proc/self").ok()?.as_os_str() != pid.to_string().as_str()
        {
            return None;
        }
        let namespace = |name| numbered(&fs::read_link(format!("/proc/self/ns/{name}")).ok()?);
        let (pids, time) = (namespace("pid")?, namespace("time")?);
        let surroundings = Surroundings { boot: boot.to_owned(), pids, time };
        Some(Self { surroundings, pid, start: started(pid)? })
    }

    /// Whether the process of this other mark has ended, for certain.
    pub(crate) fn sees_end_of(&self, mark: &str, conn: &FileConnection) -> bool {
        let Ok(other) = mark.parse::<Self>() else { return false };
        // A lease of this process ends with its guard. A mark of an earlier process with the same id is left to its ttl.
        let is_another = other.surroundings == self.surroundings && other.pid != self.pid;
        // First what is cheap: a process that lives nearly always has that lock.
        is_another && !conn.is_open_in(other.pid) && other.has_ended()
    }

    /// Whether this is the process itself, and not a fork of it.
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    fn has_ended(&self) -> bool {
        match platform::end_of(self.pid) {
            // The descriptor is of the process that has the id now. If that is another one, the marked one has ended before.
            Seen::Alive => started(self.pid).is_some_and(|start| start != self.start),
            Seen::Ended => true,
            Seen::Unknown => false,
        }
    }
}

/// What a descriptor of a process shows.
enum Seen {
    Alive,
    Ended,
    Unknown,
}

/// When a process started; `None` if that cannot be read.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name may have spaces and brackets in it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The number in `pid:[4026531836]`.
fn numbered(link: &std::path::Path) -> Option<u64> {
    link.to_str()?.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { surroundings: Surroundings { boot, pids, time }, pid, start } = self;
        write!(f, "{boot} {pids} {time} {pid} {start}")
    }
}

/// Of another version, or damaged: it proves nothing.
#[derive(Debug)]
pub(crate) struct UnknownMark;

impl FromStr for Mark {
    type Err = UnknownMark;

    fn from_str(text: &str) -> Result<Self, UnknownMark> {
        let parts: Vec<&str> = text.split(' ').collect();
        let [boot, pids, time, pid, start] = parts[..] else { return Err(UnknownMark) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| UnknownMark);
        let surroundings = Surroundings { boot: boot.to_owned(), pids: number(pids)?, time: number(time)? };
        let pid = pid.parse().map_err(|_| UnknownMark)?;
        Ok(Self { surroundings, pid, start: number(start)? })
    }
}

#[cfg(target_os = "linux")]
mod platform {
    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        io::Errno,
        process::{Pid, PidfdFlags, pidfd_open},
    };

    use super::Seen;

    pub(super) const CAN_SEE_DEATH: bool = true;

    pub(super) fn end_of(pid: u32) -> Seen {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Seen::Unknown };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Seen::Ended,
            Err(_) => return Seen::Unknown,
        };
        let mut events = [PollFd::new(&process, PollFlags::IN)];
        match poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) => Seen::Alive,
            Ok(_) if events[0].revents().contains(PollFlags::IN) => Seen::Ended,
            _ => Seen::Unknown,
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use super::Seen;

    pub(super) const CAN_SEE_DEATH: bool = false;

    pub(super) fn end_of(_pid: u32) -> Seen {
        Seen::Unknown
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        process::{Child, Command, Stdio},
    };

    use tenure_core::Notifier;
    use tenure_testkit::host::PausedHost;

    use super::*;
    use crate::{config::Config, store::FileStore};

    /// A process that says something and waits, and what this one knows of it.
    struct Stage {
        own: Mark,
        other: Child,
        mark: Mark,
        store: FileStore,
        _folder: tempfile::TempDir,
    }

    impl Stage {
        fn new(program: &str, script: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let config = Config::new(folder.path().join("locks.db"));
            let mut store = FileStore::new(config, PausedHost::new(1), Notifier::default());
            store.reach(true).unwrap();
            let mut other =
                Command::new(program).args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let own = Mark::own(store.clock.id()).unwrap();
            let mark = Mark { pid: other.id(), start: started(other.id()).unwrap(), ..own.clone() };
            Self { own, other, mark, store, _folder: folder }
        }

        fn sees_end_of(&self, mark: &Mark) -> bool {
            self.store.is_dead(&mark.to_string())
        }
    }

    impl Drop for Stage {
        fn drop(&mut self) {
            let _ = self.other.kill();
            let _ = self.other.wait();
        }
    }

    fn sleeper() -> Stage {
        Stage::new("sh", "echo; exec sleep 1000")
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let Stage { ref own, ref mark, .. } = sleeper();
        for mark in [own, mark] {
            assert_eq!(mark.to_string().parse::<Mark>().unwrap(), *mark);
        }
        let whole = own.to_string();
        for text in ["", "a b c d e", &whole[..whole.len() / 2], &format!("{whole} 1"), "b 1 2 99999999999 4"]
        {
            assert!(text.parse::<Mark>().is_err(), "{text}");
        }
    }

    /// L1, A11: neither its own process, nor a living one, nor one that is stopped or has a strange name has ended.
    #[test]
    fn a_process_that_lives_is_not_dead() {
        let script =
            "import time\nopen('/proc/self/comm', 'w').write(') 1 (')\nprint(flush=True)\ntime.sleep(1000)";
        let stage = Stage::new("python3", script);
        assert!(!stage.sees_end_of(&stage.own) && !stage.sees_end_of(&stage.mark));
        let pid = nix::unistd::Pid::from_raw(stage.other.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
        assert!(!stage.sees_end_of(&stage.mark));
    }

    /// A11: `/proc` shows it as a zombie, but its other threads run.
    #[test]
    fn a_process_whose_main_thread_has_ended_is_not_dead() {
        let script = "import ctypes, threading, time, sys\n\
            threading.Thread(target=lambda: time.sleep(1000)).start()\n\
            print(flush=True)\n\
            ctypes.CDLL(None).pthread_exit(None)";
        let stage = Stage::new("python3", script);
        let stat = || fs::read_to_string(format!("/proc/{}/stat", stage.other.id())).unwrap();
        tenure_testkit::patience::eventually(
            "its main thread has ended",
            std::time::Duration::from_secs(20),
            || stat().contains(") Z ").then_some(()),
        );
        assert!(!stage.sees_end_of(&stage.mark));
    }

    #[test]
    fn a_process_that_was_killed_is_dead_before_and_after_it_was_waited_for() {
        let mut stage = sleeper();
        stage.other.kill().unwrap();
        tenure_testkit::patience::eventually("its end is seen", std::time::Duration::from_secs(20), || {
            stage.sees_end_of(&stage.mark).then_some(())
        });
        stage.other.wait().unwrap();
        assert!(stage.sees_end_of(&stage.mark));
    }

    #[test]
    fn another_process_of_the_same_id_is_not_the_one_that_was_marked() {
        let stage = sleeper();
        let earlier = Mark { start: stage.mark.start - 1, ..stage.mark.clone() };
        assert!(stage.sees_end_of(&earlier));
    }

    /// A11: in other surroundings the same numbers are of another process.
    #[test]
    fn what_was_marked_in_other_surroundings_is_not_looked_for() {
        let mut stage = sleeper();
        stage.other.kill().unwrap();
        stage.other.wait().unwrap();
        let Surroundings { boot, pids, time } = stage.mark.surroundings.clone();
        let others = [
            Surroundings { boot: "another".to_owned(), pids, time },
            Surroundings { boot: boot.clone(), pids: pids + 1, time },
            Surroundings { boot, pids, time: time + 1 },
        ];
        for surroundings in others {
            assert!(!stage.sees_end_of(&Mark { surroundings, ..stage.mark.clone() }));
        }
        assert!(stage.sees_end_of(&stage.mark));
    }

    /// A child of a fork has the lock of its parent's id.
    #[test]
    fn a_dead_process_whose_lock_is_held_is_not_dead() {
        let mut stage = sleeper();
        stage.other.kill().unwrap();
        stage.other.wait().unwrap();
        let path = stage.store.config.path.clone();
        let script = format!(
            "import fcntl, struct, time\n\
             f = open({path:?}, 'rb')\n\
             fcntl.fcntl(f, 37, struct.pack('hhqqi4x', 0, 0, (1 << 60) + {}, 1, 0))\n\
             print(flush=True)\n\
             time.sleep(1000)",
            stage.mark.pid
        );
        let child = Stage::new("python3", &script);
        assert!(!stage.sees_end_of(&stage.mark));
        drop(child);
        assert!(stage.sees_end_of(&stage.mark));
    }
}

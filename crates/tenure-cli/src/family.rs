//! The processes that work under the lock: the command's process group, and what the command started in other groups.

use std::{collections::HashSet, io};

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpid, getsid},
};
use rustix::process::{WaitId, WaitIdOptions, WaitOptions, wait, waitid};

use crate::{
    exit::{self, Stop},
    nested,
    processes::{self, Known, Process, Sight},
};

/// The command, its process group, and its descendants in our session. A process with a session of its own is a daemon,
/// and does not belong to it.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    /// The command. It is the leader of its group at the start.
    pub(crate) command: Pid,
    /// `tenure`, the parent of the command.
    pub(crate) tenure: Pid,
    /// The watcher: a child of `tenure` that does not belong to the family.
    pub(crate) watcher: Option<Pid>,
    pub(crate) scope: Scope,
    /// The owner of the lock, which is in the environment of all that the command starts.
    pub(crate) owner: String,
}

/// How the descendants of the command are found that left its group. By default they are not.
#[derive(Clone, Default, Debug)]
pub(crate) struct Scope {
    /// `tenure` adopts orphans, and `/proc` shows them.
    pub(crate) adopts: bool,
    /// The children that `tenure` had before the command, as those of the shell that became `tenure`: not of the family.
    pub(crate) before: Vec<Known>,
}

impl Family {
    /// Passes a signal that we received on to the command's group, and to the command if it has left that group.
    pub(crate) fn forward(&self, signal: Signal) {
        let _ = killpg(self.command, signal);
        if let Some(command) = self.command().filter(|process| process.group != self.command) {
            command.signal(signal);
        }
    }

    /// Sends a signal to all processes. False if we may not signal one of them, as after a change of user.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let mut in_reach = killpg(self.command, signal) != Err(Errno::EPERM);
        let all = self.all().unwrap_or_else(|_| self.command().into_iter().collect());
        for process in all.iter().filter(|process| !process.is_dead && process.group != self.command) {
            in_reach &= process.signal(signal);
        }
        in_reach
    }

    /// True once no process is left that can run. A dead process stays in its group until its parent waits for it,
    /// perhaps for ever: it does not count.
    pub(crate) fn is_gone(&self) -> bool {
        let is_empty = kill(Pid::from_raw(-self.command.as_raw()), None) == Err(Errno::ESRCH);
        // Where we adopt it could be read, and will be again: until then it says nothing of who left the group.
        let Ok(all) = self.all() else { return is_empty && !self.scope.adopts };
        if all.iter().any(|process| !process.is_dead) {
            return false;
        }
        // The system may hide somebody, as a program of another user: then an ancestor of his is a child of ours, which
        // it does not hide. Where we adopt nobody, a group that shows nobody counts as alive.
        self.scope.adopts || is_empty || all.iter().any(|process| process.group == self.command)
    }

    /// Daemons: orphans that we adopted and that have a session of their own.
    pub(crate) fn daemons(&self) -> Vec<Pid> {
        let children = processes::children(self.tenure).unwrap_or_default();
        let is_daemon = |child: &Process| {
            child.pid != self.command
                && !child.is_dead
                && getsid(Some(child.pid)).is_ok_and(|session| Ok(session) != getsid(None))
        };
        let found = children.into_iter().filter_map(Process::look);
        found.filter(|child| is_daemon(child) && self.adopted(child)).map(|child| child.pid).collect()
    }

    /// The command, until we have waited for it.
    fn command(&self) -> Option<Process> {
        let is_our_child = || {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            processes::raw(self.command).is_some_and(|pid| waitid(WaitId::Pid(pid), look).is_ok())
        };
        let is_it = |parent: Option<Pid>| parent.map_or_else(is_our_child, |parent| parent == self.tenure);
        Process::look(self.command).filter(|process| is_it(process.parent))
    }

    /// All processes, also dead ones.
    fn all(&self) -> io::Result<Vec<Process>> {
        let session = getsid(None)?;
        let mut all = processes::of_session(session)?;
        all.retain(|process| process.pid != self.command);
        all.extend(self.command());
        for pid in self.children()? {
            if getsid(Some(pid)) == Ok(session) {
                self.count_child(pid, &mut all);
            }
        }
        let tree = self.tree(&all);
        all.retain(|process| process.group == self.command || tree.contains(&process.pid));
        all.retain(|process| Some(process.pid) != self.watcher);
        Ok(all)
    }

    /// The children of `tenure`. If we adopt orphans, each living process of the family is one of them or has one of
    /// them as an ancestor. So if they cannot be read, nothing is known.
    fn children(&self) -> io::Result<Vec<Pid>> {
        let tenure_lives = || kill(self.tenure, None) != Err(Errno::ESRCH);
        match processes::children(self.tenure) {
            Err(error) if self.scope.adopts && tenure_lives() => Err(error),
            found => Ok(found.unwrap_or_default()),
        }
    }

    /// A child of ours, even if it was not listed or its parent could not be read.
    fn count_child(&self, pid: Pid, all: &mut Vec<Process>) {
        match all.iter_mut().find(|process| process.pid == pid) {
            Some(listed) => listed.parent = Some(self.tenure),
            None => {
                all.extend(Process::look(pid).map(|child| Process { parent: Some(self.tenure), ..child }));
            }
        }
    }

    /// Whether a child of `tenure` other than the command is an orphan of the command. One that was there before may
    /// leave orphans as well; those of the command have its environment. What does not show it may be one.
    fn adopted(&self, child: &Process) -> bool {
        let Scope { adopts, before } = &self.scope;
        let is_marked = || child.environment().is_none_or(|all| nested::is_under(&all, &self.owner));
        *adopts
            && Some(child.pid) != self.watcher
            && !before.contains(&child.known())
            && (before.is_empty() || is_marked())
    }

    fn tree(&self, all: &[Process]) -> HashSet<Pid> {
        let is_root = |process: &Process| {
            process.pid == self.command || (process.parent == Some(self.tenure) && self.adopted(process))
        };
        let mut tree: HashSet<Pid> = all.iter().filter(|p| is_root(p)).map(|p| p.pid).collect();
        loop {
            let of_tree = |process: &&Process| process.parent.is_some_and(|parent| tree.contains(&parent));
            let more: Vec<Pid> = all.iter().filter(of_tree).map(|p| p.pid).collect();
            let before = tree.len();
            tree.extend(more);
            if tree.len() == before {
                return tree;
            }
        }
    }
}

impl Scope {
    /// Makes us, instead of process 1, the parent of orphans among our descendants. Call it before the command is started.
    pub(crate) fn new() -> io::Result<Self> {
        // The children of one that has ended are ours by now, and are listed themselves.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        #[cfg(target_os = "linux")]
        if processes::sight() == Sight::Ours {
            nix::sys::prctl::set_child_subreaper(true)?;
            let before = processes::children(getpid())?.into_iter().filter_map(Process::look);
            return Ok(Self { adopts: true, before: before.map(|child| child.known()).collect() });
        }
        Ok(Self::default())
    }

    /// Refuses a `/proc` that would show other processes as those of the command, and says so if there is none.
    pub(crate) fn check(quiet: bool) -> Result<(), Stop> {
        if !cfg!(target_os = "linux") {
            return Ok(());
        }
        match processes::sight() {
            Sight::Others => {
                return Err(Stop::internal(
                    "/proc shows the processes of another PID namespace, and tenure could not watch over the command: \
                     mount the one of this namespace, as `unshare --mount-proc` and `bwrap --proc /proc` do",
                ));
            }
            Sight::Little if !quiet => exit::warn(
                "/proc is missing, or hides our processes: tenure waits for the command's process group and stops it, \
                 but does not see what leaves that group",
            ),
            Sight::Little | Sight::Ours => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L1: a program of another user that left the group, on a system that lists processes and hides what they are
    /// (`hidepid=1`). It was known already, and so not known as a child of ours: the lock was released beside it.
    #[test]
    fn a_child_whose_parent_cannot_be_read_is_one_of_the_family() {
        let (tenure, child) = (Pid::from_raw(5), Pid::from_raw(7));
        let family = Family {
            command: Pid::from_raw(6),
            tenure,
            watcher: Some(Pid::from_raw(8)),
            scope: Scope { adopts: true, before: Vec::new() },
            owner: String::new(),
        };
        let mut all = vec![Process { pid: child, group: child, parent: None, born: 0, is_dead: false }];
        assert!(family.tree(&all).is_empty(), "nothing tells whose child it is");
        family.count_child(child, &mut all);
        assert_eq!(family.tree(&all), HashSet::from([child]));
    }
}

//! The processes that work under the lock: the command's process group, and what the command started in other groups.

use std::{collections::HashSet, io};

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getsid},
};

use crate::processes::{self, Process};

/// The command, its process group, and its descendants in our session. A process with a session of its own is a daemon,
/// and does not belong to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// The command. It is the leader of its group at the start.
    pub(crate) command: Pid,
    /// `tenure`, the parent of the command.
    pub(crate) tenure: Pid,
    /// The watcher: a child of `tenure` that does not belong to the family.
    pub(crate) watcher: Pid,
    /// All other children of `tenure` belong to the family: `tenure` adopts orphans, and had no children before.
    pub(crate) adopts: bool,
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
        let Ok(all) = self.all() else { return is_empty && !self.adopts };
        if all.iter().any(|process| !process.is_dead) {
            return false;
        }
        // The system may hide somebody, as a program of another user: then an ancestor of his is a child of ours, which
        // it does not hide. Where we adopt nobody, a group that shows nobody counts as alive.
        self.adopts || is_empty || all.iter().any(|process| process.group == self.command)
    }

    /// Waits for orphans that have ended, so that no zombies stay.
    pub(crate) fn bury_orphans(&self) {
        for pid in processes::children(self.tenure).unwrap_or_default() {
            let raw = rustix::process::Pid::from_raw(pid.as_raw());
            if raw.is_some() && pid != self.command && pid != self.watcher {
                let _ = rustix::process::waitpid(raw, rustix::process::WaitOptions::NOHANG);
            }
        }
    }

    /// Daemons: orphans that we adopted and that have a session of their own.
    pub(crate) fn daemons(&self) -> Vec<Pid> {
        let mut children = processes::children(self.tenure).unwrap_or_default();
        children.retain(|pid| {
            *pid != self.command
                && getsid(Some(*pid)).is_ok_and(|session| Ok(session) != getsid(None))
                && Process::look(*pid).is_some_and(|process| !process.is_dead)
        });
        if self.adopts { children } else { Vec::new() }
    }

    /// The command, until we have waited for it.
    fn command(&self) -> Option<Process> {
        Process::look(self.command).filter(|process| process.parent == Some(self.tenure))
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
        all.retain(|process| process.pid != self.watcher);
        Ok(all)
    }

    /// The children of `tenure`. If we adopt orphans, each living process of the family is one of them or has one of
    /// them as an ancestor. So if they cannot be read, nothing is known.
    fn children(&self) -> io::Result<Vec<Pid>> {
        let tenure_lives = || kill(self.tenure, None) != Err(Errno::ESRCH);
        match processes::children(self.tenure) {
            Err(error) if self.adopts && tenure_lives() => Err(error),
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

    fn tree(&self, all: &[Process]) -> HashSet<Pid> {
        let is_root = |process: &Process| {
            process.parent == Some(self.tenure)
                && process.pid != self.watcher
                && (self.adopts || process.pid == self.command)
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

/// Makes us, instead of process 1, the parent of orphans among our descendants. False if they cannot be told from
/// others: the shell that became `tenure` may have had children before.
pub(crate) fn adopt(tenure: Pid) -> bool {
    #[cfg(target_os = "linux")]
    let adopts = nix::sys::prctl::set_child_subreaper(true).is_ok();
    #[cfg(not(target_os = "linux"))]
    let adopts = false;
    adopts && processes::children(tenure).is_ok_and(|children| children.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L1: a program of another user that left the group, on a system that lists processes and hides what they are
    /// (`hidepid=1`). It was known already, and so not known as a child of ours: the lock was released beside it.
    #[test]
    fn a_child_whose_parent_cannot_be_read_is_one_of_the_family() {
        let (tenure, child) = (Pid::from_raw(5), Pid::from_raw(7));
        let family = Family { command: Pid::from_raw(6), tenure, watcher: Pid::from_raw(8), adopts: true };
        let mut all = vec![Process { pid: child, group: child, parent: None, born: 0, is_dead: false }];
        assert!(family.tree(&all).is_empty(), "nothing tells whose child it is");
        family.count_child(child, &mut all);
        assert_eq!(family.tree(&all), HashSet::from([child]));
    }
}

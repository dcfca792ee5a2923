//! The processes that work under the lock: the command's process group, and its descendants in other groups and sessions.
//! `/proc` shows them: parent, group, alive or dead.

use std::{
    collections::HashSet,
    fs,
    io::{self, ErrorKind},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::OnceLock,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpgid, getpid, getsid},
};
use rustix::process::{WaitId, WaitIdOptions, WaitOptions, kill_process, kill_process_group, wait, waitid};
use tenure::Label;

use crate::{
    exit::{self, Stop},
    nested, worker,
};

/// The command, its process group, and its descendants, even those in a separate session (`su -c`). A process in a
/// separate session whose ancestors have ended by themselves is a daemon, and not part of it.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    /// The command. It is the leader of its group at the start. If `tenure` adopts orphans, it reaps the command only
    /// after all of them have ended: until then no other process or group can get this id.
    pub(crate) command: Pid,
    /// `tenure`, the parent of the command.
    pub(crate) tenure: Pid,
    /// The watcher: a child of `tenure` that does not belong to the family.
    pub(crate) watcher: Option<Pid>,
    /// The health check: the same.
    pub(crate) check: Option<Pid>,
    pub(crate) scope: Scope,
    /// The owner of the lock, which is in the environment of all descendants of the command.
    pub(crate) owner: String,
    /// The family when the command was asked to end, or was stopped. If the parents of these processes end first, they
    /// are not daemons.
    pub(crate) known: HashSet<ProcessKey>,
}

/// How to find the descendants of the command that left its group. By default they are not found.
#[derive(Clone, Default, Debug)]
pub(crate) struct Scope {
    /// `tenure` adopts orphans, and `/proc` shows them.
    pub(crate) adopts: bool,
    /// The children that `tenure` had before the command, such as those of the shell that became `tenure`: not of
    /// the family.
    pub(crate) before: Vec<ProcessKey>,
}

impl Family {
    /// Passes a signal that we received on to the command's group, and to the command if it has left that group.
    pub(crate) fn forward(&self, signal: i32) {
        if let (Some(group), Some(signal)) = (raw(self.command), numbered(signal)) {
            let _ = kill_process_group(group, signal);
        }
        if let Some(command) = self.command().filter(|process| process.group != self.command) {
            command.signal(signal);
        }
    }

    /// Records the family before a signal that asks the command to end is passed on. Otherwise a process in a separate
    /// session would count as a daemon if the command ended first.
    pub(crate) fn remember(&mut self, signal: i32) {
        let ends = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];
        if ends.into_iter().any(|end| end as i32 == signal) {
            self.known.extend(self.descendants().iter().map(Process::known));
        }
    }

    /// Sends a signal to all processes. False without the permission for one of them, as after a change of user.
    pub(crate) fn signal(&mut self, signal: Signal) -> bool {
        // First, because a process whose parent has ended can no longer be found through it.
        let all = self.all().unwrap_or_else(|_| self.command().into_iter().collect());
        if matches!(signal, Signal::SIGTERM | Signal::SIGKILL) {
            self.known.extend(all.iter().map(Process::known));
        }
        let mut in_reach = killpg(self.command, signal) != Err(Errno::EPERM);
        let is_alone = |process: &&Process| !process.is_dead && process.group != self.command;
        for process in all.iter().filter(is_alone) {
            in_reach &= process.signal(signal as i32);
        }
        in_reach
    }

    /// True once no process is left that can run. A dead process stays in its group until its parent waits for it,
    /// perhaps forever: it does not count.
    pub(crate) fn is_gone(&self) -> bool {
        // Fast path: usually a living process is found without listing all processes of the machine.
        if self.scope.adopts && self.descendants().iter().any(|process| !process.is_dead) {
            return false;
        }
        let is_empty = kill(Pid::from_raw(-self.command.as_raw()), None) == Err(Errno::ESRCH);
        // Where `tenure` adopts orphans, this could be read before, and will be again: until then, processes that
        // left the group are unknown.
        let Ok(all) = self.all() else { return is_empty && !self.scope.adopts };
        if all.iter().any(|process| !process.is_dead) {
            return false;
        }
        // The system may hide a process, such as a program of another user: then an ancestor of it is a child of
        // `tenure`, which the system does not hide. Where `tenure` adopts no orphans, a group without a visible
        // process counts as alive.
        self.scope.adopts || is_empty || all.iter().any(|process| process.group == self.command)
    }

    /// What works under the lock, as far as it is seen: the name and the pid of each.
    pub(crate) fn living(&self) -> Vec<String> {
        let all = self.all().unwrap_or_default();
        let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let shown =
            |Process { pid, .. }: &Process| format!("{} pid {pid}", name(*pid).trim()).trim().to_owned();
        all.iter().filter(|process| !process.is_dead).map(shown).collect()
    }

    /// Whether one of them is in this group.
    pub(crate) fn has_group(&self, group: Pid) -> bool {
        group == self.command || self.all().unwrap_or_default().iter().any(|process| process.group == group)
    }

    /// Daemons: adopted orphans with their own session.
    pub(crate) fn daemons(&self) -> Vec<Pid> {
        let children = children(self.tenure).unwrap_or_default();
        let is_daemon = |child: &Process| {
            child.pid != self.command
                && !child.is_dead
                && getsid(Some(child.pid)).is_ok_and(|session| Ok(session) != getsid(None))
        };
        let found = children.into_iter().filter_map(Process::read);
        found.filter(|child| is_daemon(child) && self.adopted(child)).map(|child| child.pid).collect()
    }

    /// The command, until `tenure` has waited for it.
    fn command(&self) -> Option<Process> {
        let is_our_child = || {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            raw(self.command).is_some_and(|pid| waitid(WaitId::Pid(pid), look).is_ok())
        };
        let is_it = |parent: Option<Pid>| parent.map_or_else(is_our_child, |parent| parent == self.tenure);
        Process::read(self.command).filter(|process| is_it(process.parent))
    }

    /// All processes, including dead ones.
    fn all(&self) -> io::Result<Vec<Process>> {
        let session = getsid(None)?;
        let mut all = of_session(session)?;
        all.retain(|process| process.pid != self.command);
        all.extend(self.command());
        for pid in self.children()? {
            if getsid(Some(pid)) == Ok(session) {
                self.count_child(pid, &mut all);
            }
        }
        for known in self.known.iter().filter_map(|key| still(*key)) {
            if !lists(&all, known.pid) {
                all.push(known);
            }
        }
        let tree = self.tree(&all);
        all.retain(|process| process.group == self.command || tree.contains(&process.pid));
        with_descendants(&mut all);
        all.retain(|process| !self.is_helper(process.pid));
        Ok(all)
    }

    /// The family found from parent to child. The cost does not depend on the number of processes of the machine, but
    /// `/proc` may omit a child while another one ends.
    pub(crate) fn descendants(&self) -> Vec<Process> {
        let is_here = |pid: &Pid| getsid(Some(*pid)) == getsid(None);
        let children = self.children().unwrap_or_default().into_iter().filter(is_here);
        let roots = children.filter_map(Process::read).filter(|root| self.adopted(root));
        let mut all: Vec<Process> = self.command().into_iter().collect();
        all.extend(roots.filter(|root| root.pid != self.command));
        with_descendants(&mut all);
        all
    }

    fn is_helper(&self, pid: Pid) -> bool {
        [self.watcher, self.check].contains(&Some(pid))
    }

    /// Kills a running health check.
    pub(crate) fn end_check(&self) {
        if let Some(check) = self.check {
            // OK because `tenure` has not reaped it, so no other process has this id.
            let _ = killpg(check, Signal::SIGKILL);
        }
    }

    /// The children of `tenure` other than the command, as far as they are known.
    pub(crate) fn others(&self) -> Vec<Pid> {
        let found = if self.scope.adopts { self.children().unwrap_or_default() } else { Vec::new() };
        let others = found.into_iter().filter(|pid| *pid != self.command && !self.is_helper(*pid));
        others.chain(self.watcher).chain(self.check).collect()
    }

    /// The children of `tenure`. If it adopts orphans, each living process of the family is one of them or has one
    /// of them as an ancestor. So if they cannot be read, nothing is known.
    fn children(&self) -> io::Result<Vec<Pid>> {
        let tenure_lives = || kill(self.tenure, None) != Err(Errno::ESRCH);
        match children(self.tenure) {
            Err(error) if self.scope.adopts && tenure_lives() => Err(error),
            found => Ok(found.unwrap_or_default()),
        }
    }

    /// Adds a child of `tenure`, even if it was not listed or its parent could not be read.
    fn count_child(&self, pid: Pid, all: &mut Vec<Process>) {
        match all.iter_mut().find(|process| process.pid == pid) {
            Some(listed) => listed.parent = Some(self.tenure),
            None => {
                all.extend(Process::read(pid).map(|child| Process { parent: Some(self.tenure), ..child }));
            }
        }
    }

    /// Whether a child of `tenure` other than the command is an orphan of the command. An earlier child may leave
    /// orphans as well; those of the command have its environment. A process with a hidden environment may be one.
    fn adopted(&self, child: &Process) -> bool {
        let Scope { adopts, before } = &self.scope;
        let is_ours = |all: Vec<u8>| {
            !is_of_check(&all, &self.owner) && (before.is_empty() || nested::is_under(&all, &self.owner))
        };
        *adopts
            && !self.is_helper(child.pid)
            && !before.contains(&child.known())
            && child.environment().is_none_or(is_ours)
    }

    fn tree(&self, all: &[Process]) -> HashSet<Pid> {
        let is_root = |process: &Process| {
            process.pid == self.command
                || self.known.contains(&process.known())
                || (process.parent == Some(self.tenure) && self.adopted(process))
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

/// Whether a health check of this lease started a process with this environment. It does not count as work under the lock.
fn is_of_check(environment: &[u8], owner: &str) -> bool {
    let mark = format!("{CHECK}={owner}");
    environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
}

/// Whether the command under a lease of this owner, or its health check, started a process with this environment.
pub(crate) fn is_for(environment: &[u8], owner: &str) -> bool {
    nested::is_under(environment, owner) || is_of_check(environment, owner)
}

/// The variable in the environment of a health check: the owner of the lease.
pub(crate) const CHECK: &str = "TENURE_CHECK_OF";

fn lists(all: &[Process], pid: Pid) -> bool {
    all.iter().any(|process| process.pid == pid)
}

/// The process with this key, if it still exists.
fn still(key: ProcessKey) -> Option<Process> {
    Process::read(Pid::from_raw(key.0)).filter(|process| process.known() == key)
}

/// Adds the descendants of all of them, in any session.
fn with_descendants(all: &mut Vec<Process>) {
    let mut next = 0;
    while let Some(parent) = all.get(next).map(|process| process.pid) {
        next += 1;
        for pid in children_of_all_threads(parent) {
            if !lists(all, pid) {
                all.extend(Process::read(pid).map(|child| Process { parent: Some(parent), ..child }));
            }
        }
    }
}

/// The label of a lease for another process, such as the script that asked for it.
pub(crate) fn label_of(pid: u32) -> Label {
    let ours = tenure::command::this_process();
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_else(|_| ours.command.clone());
    Label::new(&ours.host, pid, &ours.user, name.trim())
}

/// Whether the process with this key runs.
pub(crate) fn lives(key: ProcessKey) -> bool {
    still(key).is_some_and(|process| !process.is_dead)
}

/// A shell and its descendants, as far as they run.
pub(crate) fn of_script(shell: ProcessKey) -> Vec<Process> {
    let mut all: Vec<Process> = still(shell).into_iter().collect();
    with_descendants(&mut all);
    all.retain(|process| !process.is_dead);
    all
}

/// What is left of a command after `tenure` has died: processes in `seen`, its group, and processes of the session with
/// the owner in their environment; and the descendants of all of these.
pub(crate) fn orphans(command: ProcessKey, seen: &HashSet<ProcessKey>, owner: &str) -> Vec<Process> {
    let group = Pid::from_raw(command.0);
    // Process 1 may have reaped the command, and another process may have its id.
    let is_its = Process::read(group).is_none_or(|leader| leader.known() == command);
    let is_marked =
        |process: &Process| process.environment().is_some_and(|all| nested::is_under(&all, owner));
    let mut all: Vec<Process> = seen.iter().filter_map(|key| still(*key)).collect();
    let session = getsid(None).map_err(Into::into).and_then(of_session).unwrap_or_default();
    for process in session {
        if !lists(&all, process.pid) && (is_its && process.group == group || is_marked(&process)) {
            all.push(process);
        }
    }
    with_descendants(&mut all);
    all
}

impl Scope {
    /// Makes `tenure`, instead of process 1, the parent of orphans among its descendants. Call it before the
    /// command is started.
    pub(crate) fn new() -> io::Result<Self> {
        // If a child has ended, its children are now children of this process, and are listed themselves.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        #[cfg(target_os = "linux")]
        if sight() == ProcFacts::Ours {
            nix::sys::prctl::set_child_subreaper(true)?;
            let before = children(getpid())?.into_iter().filter_map(Process::read);
            return Ok(Self { adopts: true, before: before.map(|child| child.known()).collect() });
        }
        Ok(Self::default())
    }

    /// Refuses a `/proc` that would show other processes as those of the command, and warns if there is none.
    pub(crate) fn check(quiet: bool) -> Result<(), Stop> {
        if !cfg!(target_os = "linux") {
            return Ok(());
        }
        if let Some(loader) = loader() {
            let line = format!(
                "tenure was started through {loader}, and could not start itself again beside the command: start it by its \
                 own path"
            );
            return Err(Stop::usage(line));
        }
        match sight() {
            ProcFacts::Others => {
                return Err(Stop::internal(
                    "/proc shows the processes of another PID namespace, and tenure could not watch over the command: \
                     mount the one of this namespace, as `unshare --mount-proc` and `bwrap --proc /proc` do",
                ));
            }
            ProcFacts::Little if !quiet => exit::warn(
                "/proc is missing, or hides our processes: tenure waits for the command's process group and stops it, \
                 but does not see what leaves that group",
            ),
            ProcFacts::Little | ProcFacts::Ours => {}
        }
        Ok(())
    }
}

/// One process, when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pid: Pid,
    group: Pid,
    /// `None` if the system hides it, or if it is of another PID namespace.
    parent: Option<Pid>,
    /// Its start time, which differs if another process gets the same pid.
    born: u64,
    /// A zombie: none of its threads runs, and its parent has not waited for it.
    pub(crate) is_dead: bool,
}

impl Process {
    /// `None` if there is no such process. After any other error it counts as alive.
    pub(crate) fn read(pid: Pid) -> Option<Self> {
        let group = getpgid(Some(pid)).ok()?;
        let stat = match fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => Stat::parse(&stat),
            // It has ended since, or is hidden: only a system call can decide.
            Err(error) if is_gone(&error) => {
                getpgid(Some(pid)).ok()?;
                None
            }
            Err(_) => None,
        };
        let ended = has_exited(pid);
        Some(match stat {
            Some(stat) => {
                let parent = (stat.parent > 0).then(|| Pid::from_raw(stat.parent));
                Self { pid, group, parent, born: stat.born, is_dead: stat.is_dead(ended) }
            }
            None => Self { pid, group, parent: None, born: 0, is_dead: ended == Some(true) },
        })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it is an inner verb of this program.
    pub(crate) fn runs(&self, verb: &str) -> bool {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(verb.as_bytes())
    }

    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    pub(crate) fn is_of_our_session(&self) -> bool {
        getsid(Some(self.pid)).is_ok_and(|session| Ok(session) == getsid(None))
    }

    /// Identifies it, different from a later process with the same pid.
    pub(crate) fn known(&self) -> ProcessKey {
        (self.pid.as_raw(), self.born)
    }

    /// Sends a signal to this process, and never to another one with the same pid. False if we may not.
    pub(crate) fn signal(&self, signal: i32) -> bool {
        let (handle, Some(pid), Some(signal)) = (open(self.pid), raw(self.pid), numbered(signal)) else {
            return true;
        };
        if Self::read(self.pid).is_none_or(|now| now.born != self.born) {
            return true;
        }
        match handle {
            Ok(Some(handle)) => send(&handle, signal),
            Ok(None) => true,
            Err(()) => kill_process(pid, signal) != Err(rustix::io::Errno::PERM),
        }
    }

    /// The environment with which it was started; `None` if it cannot be read, or is empty, as it is for a moment when a
    /// process becomes another program.
    pub(crate) fn environment(&self) -> Option<Vec<u8>> {
        fs::read(format!("/proc/{}/environ", self.pid)).ok().filter(|environment| !environment.is_empty())
    }
}

/// A pid and the start time of the process.
pub(crate) type ProcessKey = (i32, u64);

/// The key of a process that was just started.
pub(crate) fn key(pid: Pid) -> ProcessKey {
    Process::read(pid).map_or((pid.as_raw(), 0), |process| process.known())
}

/// What `/proc` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcFacts {
    /// The processes of this namespace.
    Ours,
    /// It is missing, or shows fewer of them than needed.
    Little,
    /// The processes of another PID namespace, some of which have the same pids.
    Others,
}

/// The result of the first check: no later failure changes it.
fn sight() -> ProcFacts {
    static SIGHT: OnceLock<ProcFacts> = OnceLock::new();
    *SIGHT.get_or_init(look_around)
}

fn look_around() -> ProcFacts {
    let us = getpid();
    let link = fs::read_link("/proc/self").ok();
    let is_there = link.is_some() || fs::symlink_metadata("/proc/self").is_ok();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // From the namespace of `/proc` down to that of the process, a pid in each.
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let is_outer = pids.is_some_and(|pids| pids.split_whitespace().count() > 1);
    if is_outer || (is_there && link != Some(us.to_string().into())) {
        return ProcFacts::Others;
    }
    let is_listed = || getsid(None).ok().is_some_and(|session| shows(session, us));
    match children(us).is_ok() && is_listed() {
        true => ProcFacts::Ours,
        false => ProcFacts::Little,
    }
}

fn shows(session: Pid, pid: Pid) -> bool {
    of_session(session).is_ok_and(|all| all.iter().any(|one| one.pid == pid && one.born != 0))
}

/// All processes of a session. A process cannot join a group of another session, so each group is complete.
pub(crate) fn of_session(session: Pid) -> io::Result<Vec<Process>> {
    // A system call instead of a file, because it is cheap, and because no process can be hidden from it.
    let of_it = pids()?.into_iter().filter(|pid| getsid(Some(*pid)) == Ok(session));
    Ok(of_it.filter_map(Process::read).collect())
}

/// All processes that `/proc` shows.
pub(crate) fn pids() -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        found.extend(pid.map(Pid::from_raw));
    }
    Ok(found)
}

/// The children of a process whose main thread starts and adopts all of them, including those that `/proc`
/// otherwise hides. One may be missing while another one ends.
fn children(parent: Pid) -> io::Result<Vec<Pid>> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    Ok(list.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect())
}

/// The children of a process, whichever of its threads has started them.
fn children_of_all_threads(parent: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let list = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    let all: String = threads.map(list).collect::<Vec<_>>().join(" ");
    all.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
}

/// True if this process group is orphaned: no process in it has a parent in another group of the session. Then the
/// system does not suspend a process that uses the terminal, but returns an error. False if `/proc` does not show
/// it.
pub(crate) fn are_orphaned() -> bool {
    if sight() != ProcFacts::Ours {
        return false;
    }
    let (group, Ok(session)) = (worker::group(), getsid(None)) else { return false };
    let cares = |parent: Pid| getsid(Some(parent)) == Ok(session) && getpgid(Some(parent)) != Ok(group);
    let Ok(all) = of_session(session) else { return false };
    !all.iter().any(|process| process.group == group && process.parent.is_some_and(cares))
}

/// True if this process has the command line that the user wrote for us; false if that cannot be read.
pub(crate) fn is_our_twin(pid: u32) -> bool {
    let line = |whose: &str| fs::read(format!("/proc/{whose}/cmdline")).ok().filter(|line| !line.is_empty());
    line(&worker::pid().to_string()).is_some_and(|ours| line(&pid.to_string()) == Some(ours))
}

/// Whether the system shows all that is left of a command.
pub(crate) fn sees_all() -> bool {
    sight() == ProcFacts::Ours
}

/// The children of this process, also those that it has adopted.
///
/// # Errors
/// If the system does not show them all.
pub(crate) fn children_of_us() -> io::Result<Vec<Process>> {
    Ok(children(getpid())?.into_iter().filter_map(Process::read).collect())
}

/// Whether all that this process had started or adopted have ended. Waits for each child that has.
pub(crate) fn all_are_reaped() -> bool {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    !has_children()
}

/// Whether this process has any child that it has not waited for. The system itself knows, whatever `/proc` shows.
pub(crate) fn has_children() -> bool {
    let about = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, about), Err(rustix::io::Errno::CHILD))
}

/// Sends a signal to a child that was not waited for.
pub(crate) fn send_to(child: Pid, signal: i32) {
    if let (Some(child), Some(signal)) = (raw(child), numbered(signal)) {
        // OK to ignore because it may have ended.
        let _ = kill_process(child, signal);
    }
}

/// The dynamic loader, if that is the program of this process (`ld.so ./tenure`).
fn loader() -> Option<String> {
    let running = fs::read_link("/proc/self/exe").ok()?;
    let name = running.file_name()?.to_str()?;
    (name.starts_with("ld-") || name.starts_with("ld.so")).then(|| running.display().to_string())
}

/// The path of this program, even if its file has been replaced since.
#[cfg(target_os = "linux")]
pub(crate) fn ourselves() -> io::Result<PathBuf> {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return Ok(running.into());
    }
    // Without `/proc`, the kernel still provides the path that was started.
    Ok(Path::new(".").join(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes())))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn ourselves() -> io::Result<PathBuf> {
    std::env::current_exe()
}

pub(crate) fn raw(pid: Pid) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(pid.as_raw())
}

/// A signal that may have no name.
#[cfg(target_os = "linux")]
fn numbered(signal: i32) -> Option<rustix::process::Signal> {
    use rustix_libc_wrappers::process::SignalExt as _;
    rustix::process::Signal::from_raw(signal)
}

#[cfg(not(target_os = "linux"))]
fn numbered(signal: i32) -> Option<rustix::process::Signal> {
    rustix::process::Signal::from_named_raw(signal)
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

/// Whether all of its threads have ended; `None` if the system does not report it.
fn has_exited(pid: Pid) -> Option<bool> {
    let Some(handle) = open(pid).ok()? else { return Some(true) };
    let mut ready = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    Some(poll(&mut ready, PollTimeout::ZERO).ok()? == 1)
}

/// A handle that never refers to another process; `Ok(None)` if there is no such process, an error where there are
/// no handles.
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
fn send(handle: &OwnedFd, signal: rustix::process::Signal) -> bool {
    rustix::process::pidfd_send_signal(handle, signal) != Err(rustix::io::Errno::PERM)
}

#[cfg(not(target_os = "linux"))]
fn send(_handle: &OwnedFd, _signal: rustix::process::Signal) -> bool {
    true
}

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    parent: i32,
    threads: u32,
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
        // Fields 20 and 22 of all; the two that we have read are 3 and 4.
        let threads = fields.nth(15)?.parse().ok()?;
        let born = fields.nth(1)?.parse().ok()?;
        Some(Self { state, parent, threads, born })
    }

    /// The first thread may end before the others: that is no zombie, though it looks like one. `ended` is the answer of the
    /// system, if it has one.
    fn is_dead(&self, ended: Option<bool>) -> bool {
        matches!(self.state, b'Z' | b'X') && ended.unwrap_or(self.threads <= 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "S 7 8 9 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 12345 99";

    /// L1: a name is cut at fifteen bytes, even inside a character; and it may look like the fields behind it.
    #[test]
    fn a_process_of_any_name_is_read() {
        for name in [&b"sleep"[..], b"nachtsicherung\xc3", b"\xff\xfe", b") Z 1 2 (", b"a b\n", b""] {
            let stat = [b"42 (", name, b") ", REST.as_bytes()].concat();
            let expected = Stat { state: b'S', parent: 7, threads: 1, born: 12345 };
            assert_eq!(Stat::parse(&stat), Some(expected), "{}", name.escape_ascii());
        }
        assert_eq!(Stat::parse(b"42 (cut"), None);
        assert_eq!(Stat::parse(b"42 (cut) Z 1"), None);
    }

    /// L1: where the system has no handles of processes, a process whose first thread had ended counted as dead while its other
    /// threads worked.
    #[test]
    fn a_process_whose_first_thread_has_ended_is_alive() {
        let stat = |state, threads| Stat { state, parent: 7, threads, born: 1 };
        assert!(!stat(b'Z', 2).is_dead(None) && stat(b'Z', 1).is_dead(None) && stat(b'X', 0).is_dead(None));
        assert!(!stat(b'Z', 1).is_dead(Some(false)) && stat(b'Z', 2).is_dead(Some(true)));
        assert!(!stat(b'S', 1).is_dead(None));
    }

    /// This process is not a zombie, and no process has the largest possible pid.
    #[test]
    fn we_are_seen_alive_and_nobody_is_not_seen() {
        let us = Process::read(getpid()).unwrap();
        assert_eq!((us.pid, us.is_dead), (getpid(), false));
        assert_eq!(us.parent, Some(nix::unistd::getppid()));
        assert_eq!(Process::read(Pid::from_raw(i32::MAX)), None);
        assert!(of_session(getsid(None).unwrap()).unwrap().contains(&us));
    }

    /// L1: a program of another user that left the group, on a system that lists processes and hides their details
    /// (`hidepid=1`). It was already known, but not as a child of `tenure`: the lock was released while it ran.
    #[test]
    fn a_child_whose_parent_cannot_be_read_is_one_of_the_family() {
        let (tenure, child) = (Pid::from_raw(5), Pid::from_raw(7));
        let family = Family {
            command: Pid::from_raw(6),
            tenure,
            watcher: Some(Pid::from_raw(8)),
            check: None,
            scope: Scope { adopts: true, before: Vec::new() },
            owner: String::new(),
            known: HashSet::new(),
        };
        let mut all = vec![Process { pid: child, group: child, parent: None, born: 0, is_dead: false }];
        assert!(family.tree(&all).is_empty(), "nothing tells whose child it is");
        family.count_child(child, &mut all);
        assert_eq!(family.tree(&all), HashSet::from([child]));
    }
}

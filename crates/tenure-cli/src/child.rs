//! The command under the lock: started in its own process group, watched, and stopped with all its descendants.
//! Also the step between fork and the command: it requests the parent-death signal, takes the foreground, then
//! executes the command.

use std::{
    collections::{BTreeMap, HashSet},
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, parent_id},
        },
    },
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::{
        signal::{SigSet, Signal, killpg},
        socket::{MsgFlags, recv},
    },
    unistd::{Pid, close, getpid},
};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, waitid, waitpid};
use tenure::{
    Lease, Leases,
    backend::{Host, Moment, TokioHost},
};

use crate::{
    death,
    exit::{self, Stop},
    nested,
    processes::{self, Family, Scope, raw},
    signals::{self, STOP},
    terminal::{Terminal, is_on_terminal},
    waiting::pause,
    watcher::{Deadline, Watched, Watcher},
    worker,
};

/// The environment of a command.
pub(crate) struct Under<'a> {
    pub(crate) leases: &'a [Lease],
    /// The lock that was named first.
    pub(crate) first: &'a Lease,
}

/// A running command.
pub(crate) struct Child {
    family: Family,
    /// The terminal, while the command has its foreground.
    terminal: Option<Terminal>,
    /// `tenure` received TSTP, and has passed it on to the command.
    stopping: bool,
    /// `tenure` was suspended with it, and has sent it CONT.
    was_suspended: bool,
    /// It was sent HUP, because it waits for a terminal that it can never get.
    hung_up: bool,
    watcher: Watcher,
    /// The exit code, once it has ended.
    code: Option<u8>,
    /// The exit code of the last health check that ended.
    checked: Option<i32>,
    /// One of its processes may not be killed, and that was printed.
    is_out_of_reach: bool,
}

/// A change of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildChange {
    Ended(u8),
    /// Suspended by job control, with this signal.
    Suspended(i32),
    None,
}

impl Child {
    /// Starts `argv`. Call on the main thread: the death signal comes when the starting *thread* ends.
    ///
    /// The watcher process starts first. The command waits at a pipe until the watcher knows its pid, so that the
    /// command can never outlive both `tenure` and the watcher.
    pub(crate) fn start(argv: &[OsString], under: &Under<'_>, deadline: Deadline) -> io::Result<Self> {
        // In a pipeline another process may need the keyboard, as a pager does: then the command gets it when it
        // reads.
        let terminal = Terminal::in_foreground().filter(|_| is_on_terminal());
        let scope = Scope::new()?;
        let mut watcher = Watcher::start(scope.before.clone())?;
        // Not a pipe: without `unsafe`, only a socket can be read by its inherited number.
        let (gate, mut open) = UnixStream::pair()?;
        fcntl(&gate, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let command = spawn(argv, under, &gate, keyboard(terminal.is_some()))?;
        let (tenure, owner) = (getpid(), under.first.owner().to_string());
        let watched = Watched {
            command: processes::key(command),
            tenure: tenure.as_raw(),
            adopts: scope.adopts,
            owner: owner.clone(),
        };
        if let Err(error) = watcher.watch(watched, deadline) {
            drop(open);
            // It finds the gate closed and ends.
            let _ = waitpid(raw(command), WaitOptions::empty());
            return Err(error);
        }
        // If it was killed at the gate, the next check finds it dead.
        let _ = open.write_all(b".");
        signals::arm_stop();
        let known = HashSet::new();
        let family = Family { command, tenure, watcher: watcher.pid(), check: None, scope, owner, known };
        let (stopping, was_suspended, hung_up) = (false, false, false);
        let (code, checked, is_out_of_reach) = (None, None, false);
        Ok(Self {
            family,
            terminal,
            stopping,
            was_suspended,
            hung_up,
            watcher,
            code,
            checked,
            is_out_of_reach,
        })
    }

    /// What has changed since the last check.
    pub(crate) fn poll(&mut self) -> ChildChange {
        let change = if self.code.is_none() { self.look_at_command() } else { ChildChange::None };
        // Orphans of the command, so that no zombies remain, the watcher, and the health check.
        for pid in self.family.others() {
            if let Ok(Some((_, status))) = waitpid(raw(pid), WaitOptions::NOHANG) {
                if self.family.check == Some(pid) {
                    let signalled =
                        status.terminating_signal().map(|signal| i32::from(exit::SIGNAL) + signal);
                    (self.family.check, self.checked) = (None, status.exit_status().or(signalled));
                }
                self.watcher.reaped(pid);
                self.family.watcher = self.watcher.pid();
            }
        }
        self.code.map_or(change, ChildChange::Ended)
    }

    /// If `tenure` adopts orphans, the command stays a zombie until all of them have ended. Until then no other process
    /// can get its pid, which is the id of its group, and be signalled by mistake.
    fn look_at_command(&mut self) -> ChildChange {
        self.terminal.iter_mut().for_each(Terminal::poll);
        let stopped = self.state(WaitIdOptions::STOPPED).ok().flatten();
        let stopped = stopped.and_then(|status| status.stopping_signal());
        self.note_its_end();
        stopped.filter(|why| self.is_job_control(*why)).map_or(ChildChange::None, ChildChange::Suspended)
    }

    fn note_its_end(&mut self) {
        let keeps = if self.family.scope.adopts { WaitIdOptions::NOWAIT } else { WaitIdOptions::empty() };
        match self.state(WaitIdOptions::EXITED | keeps) {
            Ok(Some(status)) => self.code = self.ended(&status),
            Ok(None) => {}
            // Another process has reaped it, so it has ended.
            Err(_) => self.code = Some(exit::INTERNAL),
        }
    }

    fn state(&self, about: WaitIdOptions) -> rustix::io::Result<Option<WaitIdStatus>> {
        let command = raw(self.family.command).expect("BUG: a pid is positive");
        waitid(WaitId::Pid(command), about | WaitIdOptions::NOHANG)
    }

    /// Starts a health check, a line for `sh`. It is not part of the family.
    pub(crate) fn start_check(&mut self, line: &OsStr) -> io::Result<()> {
        let mut check = Command::new("sh");
        let check = check
            .args([OsStr::new("-c"), OsStr::new("--"), line])
            .env(processes::CHECK, &self.family.owner)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let process = check.process_group(0).spawn()?;
        self.family.check =
            Some(Pid::from_raw(i32::try_from(process.id()).expect("BUG: a pid is positive and fits")));
        self.checked = None;
        Ok(())
    }

    /// Its exit code, once it has ended.
    pub(crate) fn check_ended(&self) -> Option<i32> {
        self.checked
    }

    /// The exit code of the command, or 128 plus the number of the signal that ended it, which may have no name.
    fn ended(&self, status: &WaitIdStatus) -> Option<u8> {
        let signal = status.terminating_signal();
        let code = status.exit_status().or_else(|| Some(i32::from(exit::SIGNAL) + signal?))?;
        // A program that handles Ctrl-C may end with the code of a death by it; but a program that reads each key itself,
        // such as a menu, uses that code for its own reasons.
        let is_key = signal.is_some() || self.terminal.as_ref().is_some_and(Terminal::has_keys);
        let key = Signal::try_from(code - i32::from(exit::SIGNAL)).ok().filter(|_| is_key);
        key.inspect(|key| death::ended_by(*key, self.terminal.is_some()));
        Some(u8::try_from(code & 0xff).expect("BUG: masked to a byte"))
    }

    /// Or another process suspended the command and will continue it: then we continue as well.
    fn is_job_control(&self, why: i32) -> bool {
        self.terminal.is_some() || self.stopping || is_for_a_terminal(why)
    }

    /// Sends the next deadline to the watcher process. True once it has begun to end the command.
    pub(crate) fn mind(&mut self, deadline: Deadline) -> bool {
        let was_ended = self.watcher.until(deadline);
        self.family.watcher = self.watcher.pid();
        was_ended
    }

    /// Passes a signal on.
    pub(crate) fn signal(&mut self, signal: i32) {
        // A command that has ended by now passes nothing on to what it left, which may be in other groups.
        if self.code.is_none() {
            self.note_its_end();
        }
        self.stopping |= signal == Signal::SIGTSTP as i32;
        if signal == Signal::SIGCONT as i32 {
            self.stopping = false;
            signals::arm_stop();
            // The command has received the CONT that ended the suspension of `tenure`.
            if std::mem::take(&mut self.was_suspended) {
                return;
            }
        }
        match (self.code, Signal::try_from(signal)) {
            // Only processes that the command left remain, in its group and elsewhere.
            (Some(_), Ok(signal)) => drop(self.family.signal(signal)),
            _ => {
                self.family.remember(signal);
                self.family.forward(signal);
            }
        }
    }

    /// The command is suspended: suspends `tenure` as well, so that the shell gets its terminal. No renewal happens
    /// during that time. When `tenure` continues, so does the command, unless the lease is lost.
    pub(crate) fn suspend_with(&mut self, why: i32, leases: &Leases) {
        // All of it: a process that did not stop would run on without renewals (L1).
        self.family.signal(Signal::SIGSTOP);
        let was_asked = std::mem::take(&mut self.stopping);
        // In a pipeline another process may need the terminal.
        let takes = self.terminal.is_some() || is_for_a_terminal(why) || is_on_terminal();
        if processes::are_orphaned() {
            if !was_asked && is_for_a_terminal(why) && Terminal::in_foreground().is_none() {
                self.hang_up();
            }
        } else {
            self.suspend_us(was_asked, why);
        }
        if leases.check().is_err() {
            // Immediately, without handling a signal first: another holder may run by now.
            self.family.signal(Signal::SIGKILL);
            return;
        }
        self.terminal = Terminal::in_foreground().filter(|_| takes);
        if self.terminal.is_some() {
            Terminal::give_to(self.family.command);
        }
        self.family.signal(Signal::SIGCONT);
    }

    fn suspend_us(&mut self, was_asked: bool, why: i32) {
        let stop_group = || {
            let _ = killpg(worker::group(), STOP);
            signals::stop_unless_continued();
        };
        self.was_suspended = true;
        let terminal = self.terminal.take().filter(|_| !is_for_a_terminal(why));
        if was_asked {
            tenure::command::suspend(signals::stop_unless_continued);
        } else if let Some(terminal) = terminal {
            terminal.take_back(false, |group| self.family.has_group(group));
            // Ctrl-Z went to the command's group; it was meant for the whole job.
            tenure::command::suspend(stop_group);
        } else if Terminal::in_foreground().is_none() {
            // As the system would have done to this process group, had the command been in it.
            tenure::command::suspend(stop_group);
        } else {
            self.was_suspended = false;
        }
    }

    /// The command waits for a terminal, and no shell is left that could give it to `tenure`. The system sends HUP
    /// to suspended processes in this case, and so does this: another attempt would suspend it again, forever.
    fn hang_up(&mut self) {
        let signal = if self.hung_up { Signal::SIGKILL } else { Signal::SIGHUP };
        exit::warn(&format!(
            "the command reads from a terminal while tenure runs in the background without a shell: it was sent \
             {signal}"
        ));
        self.hung_up = true;
        self.family.signal(signal);
    }

    /// Ends all processes: TERM, and KILL at `kill_at`; returns when none is left. If `tenure` is suspended during
    /// this, the watcher process does the rest at `deadline`.
    pub(crate) async fn stop(&mut self, kill_at: Moment, deadline: Deadline) {
        self.mind(deadline);
        self.family.end_check();
        self.family.signal(Signal::SIGTERM);
        // A stopped process receives it only after it continues.
        self.family.signal(Signal::SIGCONT);
        while !self.is_gone() && !kill_at.is_over(TokioHost.now()) {
            pause(POLL).await;
        }
        while !self.is_gone() {
            self.kill();
            pause(POLL).await;
        }
    }

    /// Sends KILL to all processes.
    pub(crate) fn kill(&mut self) {
        if !self.family.signal(Signal::SIGKILL) && !std::mem::replace(&mut self.is_out_of_reach, true) {
            exit::warn(
                "the command runs as another user and tenure may not kill it: it may still run when the next \
                 holder starts",
            );
        }
    }

    /// Whether the command and all other processes that worked under the lock have ended.
    pub(crate) fn is_gone(&mut self) -> bool {
        matches!(self.poll(), ChildChange::Ended(_)) && self.family.is_gone()
    }

    /// The processes that the command left when it ended, for people. They are in the background now, so that Ctrl-C reaches
    /// `tenure`.
    pub(crate) fn left(&self) -> String {
        let is_ours = |group| self.family.has_group(group);
        self.terminal.iter().for_each(|terminal| terminal.take_back(false, is_ours));
        let left = self.family.living();
        let more = left.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        match left.is_empty() {
            true => format!("processes of its group {}", self.family.command),
            false => left[..left.len().min(SHOWN)].join(", ") + &more,
        }
    }

    /// The daemons: processes that the command started and that have left its session. They are not stopped.
    pub(crate) fn daemons(&self) -> Vec<Pid> {
        self.family.daemons()
    }

    /// Its exit code, once it has ended.
    pub(crate) fn code(&self) -> Option<u8> {
        self.code
    }

    /// Nothing that the command started can be unseen.
    pub(crate) fn sees_all(&self) -> bool {
        self.family.scope.adopts
    }

    /// Cleans up after the command has ended.
    pub(crate) fn bury(self, was_killed: bool) {
        self.family.end_check();
        let _ = waitpid(raw(self.family.command), WaitOptions::NOHANG);
        if let Some(terminal) = &self.terminal {
            terminal.take_back(was_killed, |group| self.family.has_group(group));
        }
    }
}

fn spawn(argv: &[OsString], under: &Under<'_>, gate: &UnixStream, keyboard: &str) -> io::Result<Pid> {
    let mut command = Command::new(processes::ourselves()?);
    // What a supervisor meant for the front is for the command: the next process expects the pid of this one there.
    for name in ["LISTEN_PID", "WATCHDOG_PID"] {
        if std::env::var(name).is_ok_and(|pid| pid == worker::pid().to_string()) {
            command.env(name, std::process::id().to_string());
        }
    }
    let process = command
        .arg0("tenure")
        .args([VERB, &std::process::id().to_string(), &gate.as_raw_fd().to_string(), keyboard])
        .arg(signals::to_undo())
        .args(argv)
        .env("TENURE_LOCK", under.first.name().as_str())
        .env("TENURE_TOKEN", under.first.token().to_string())
        .env("TENURE_TOKENS", tokens(under.leases))
        .env("TENURE_OWNER", under.first.owner().to_string())
        .env(nested::VARIABLE, nested::with(under.leases.iter().map(Lease::owner)))
        .process_group(0)
        .spawn()?;
    Ok(Pid::from_raw(i32::try_from(process.id()).expect("BUG: a pid is positive and fits")))
}

/// The tokens by the names of their locks, as JSON.
fn tokens(held: &[Lease]) -> String {
    let tokens: BTreeMap<&str, u64> =
        held.iter().map(|lease| (lease.name().as_str(), lease.token().get())).collect();
    serde_json::to_string(&tokens).expect("BUG: names and numbers are JSON")
}

fn is_for_a_terminal(why: i32) -> bool {
    [Signal::SIGTTIN, Signal::SIGTTOU].into_iter().any(|signal| signal as i32 == why)
}

/// `__exec PARENT GATE KEYBOARD SIGNALS COMMAND ARG...`
pub(crate) fn exec(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut flag = || arguments.next().and_then(|text| text.into_string().ok()).unwrap_or_default();
    let (parent, gate, keyboard, signals) = (flag(), flag(), flag(), flag());
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    if parent_id() == 0 {
        return exit::say(&Stop::internal(
            "the command would run in another PID namespace, where tenure cannot watch over it",
        ));
    }
    // The parent may have died before the death signal was set.
    if parent_id().to_string() != parent {
        return ExitCode::from(exit::LOST);
    }
    match opens(&gate) {
        Ok(true) => {}
        Ok(false) => return ExitCode::from(exit::LOST),
        Err(error) => {
            return exit::say(&Stop::internal(format!("cannot start the command: {error}")));
        }
    }
    signals::disarm_stop(&signals);
    match keyboard.as_str() {
        GIVEN => Terminal::give_to(getpid()),
        REFUSED => {
            // A process that blocks this signal gets an error when it reads in the background, and is not
            // suspended.
            let _ = SigSet::from(Signal::SIGTTIN).thread_block();
        }
        _ => {}
    }
    let argv: Vec<OsString> = arguments.collect();
    let Some(program) = argv.first().cloned() else { return ExitCode::from(exit::USAGE) };
    let error = signals::execute(argv, &signals);
    let (code, why) = match error.kind() {
        io::ErrorKind::NotFound => {
            (exit::NOT_FOUND, "not found; check its path, or use -c for shell syntax".to_owned())
        }
        _ => (exit::NOT_EXECUTABLE, error.to_string()),
    };
    exit::say(&Stop::new(code, format!("{}: {why}", program.to_string_lossy())))
}

/// Waits until the watcher process knows the pid of this one, and so can kill it if its parent cannot. False if
/// that never happens.
fn opens(gate: &str) -> io::Result<bool> {
    let gate: RawFd = gate.parse().map_err(io::Error::other)?;
    let said = recv(gate, &mut [0], MsgFlags::empty());
    let _ = close(gate);
    Ok(said? == 1)
}

/// How the command gets the input of the terminal: immediately, never (a read is an error, as it would be for
/// `tenure`), or when it asks.
fn keyboard(is_given: bool) -> &'static str {
    match is_given {
        true => GIVEN,
        false if Terminal::is_of_others() && processes::are_orphaned() => REFUSED,
        false => ASKED_FOR,
    }
}

/// Not a verb for users.
pub(crate) const VERB: &str = "__exec";

/// The input of the terminal: given to the command, refused to it, or given when it asks.
const GIVEN: &str = "given";
const REFUSED: &str = "refused";
const ASKED_FOR: &str = "asked-for";

/// How often ending processes are checked.
const POLL: Duration = Duration::from_millis(5);

/// How many processes are named in a line.
const SHOWN: usize = 10;

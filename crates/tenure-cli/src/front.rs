//! The front: the process of `run`, `lead` and `attach` that a user starts, sees and signals. It is the parent of the one that
//! does the work, and little else. If one of the two is killed, the other one ends the command and all that it started, and
//! frees the lock.
//!
//! ```text
//! shell ── front ── worker ─┬─ command ── …
//!                           └─ watcher
//! ```
//!
//! The worker is in its own process group, so each signal reaches it once: through the front. It learns of the front's death by
//! the end of a pipe. What holds the terminal for the shell is the group of the front ([`worker::group`]).
//!
//! **Why the front knows that all have ended (L1, A11).** It is a child subreaper. When the worker dies, each process that
//! the worker had started or adopted becomes a child of the front, whatever its group, session, user and environment. So a
//! front that has no child left knows that all have ended: the system says so (`ECHILD`), whatever `/proc` shows. Only then does it free
//! the lock, by its owner, which no later lease has; in all other cases the ttl ends the lease.

use std::{
    io::{self, Read, Write, pipe},
    os::{
        fd::{AsFd, AsRawFd},
        unix::process::CommandExt,
    },
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use futures_util::future::try_join_all;
use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    sys::signal::Signal,
    unistd::{Pid, getpgrp},
};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, waitid, waitpid};
use tenure::{
    LockName, Locker, OwnerId,
    backend::{Host, Moment, Outcome, Released, Renewal, TokioHost},
};
use tokio::net::unix::pipe::Receiver;

use crate::{
    args::{Global, Verb},
    death,
    exit::{self, Stop},
    lines,
    processes::{self, Process, ProcessKey, raw},
    signals::{self, Signals},
    store, supervisor,
    terminal::Terminal,
    text,
    waiting::pause,
    watcher,
    worker::{self, Held, Message},
};

/// Whether this verb has a front: one that runs a command, where the system shows all that is left of one.
pub(crate) fn stands_before(verb: &Verb) -> bool {
    let runs = match verb {
        Verb::Run(_) | Verb::Lead(_) | Verb::Attach(_) => true,
        Verb::Hold(args) => args.script.is_some(),
        _ => false,
    };
    cfg!(target_os = "linux") && runs && !worker::has_front() && processes::sees_all()
}

/// Starts the worker, and stands before it until it has ended.
pub(crate) fn stand(global: &Global) -> ExitCode {
    // Refused before anything else runs: the worker would be started by a path that is not this program's.
    if let Err(stop) = processes::Scope::check(true) {
        return exit::say(&stop);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let stood = runtime.map_err(no_worker).and_then(|runtime| {
        runtime.block_on(async {
            let mut signals = Signals::listen_for_command()?;
            signals.listen_to_stop();
            let mut standing = Standing::start().map_err(no_worker)?;
            Ok(standing.until_the_end(&mut signals, global.quiet).await)
        })
    });
    match stood {
        Ok(end) => {
            if let Ok(ourselves) = processes::ourselves() {
                end.dies_by.inspect(|signal| death::die_by(*signal, &ourselves));
                death::die_if(end.code, &ourselves);
            }
            ExitCode::from(end.code)
        }
        Err(stop) => exit::say(&stop),
    }
}

fn no_worker(error: io::Error) -> Stop {
    Stop::internal(format!("cannot start the process that does the work: {error}"))
}

/// How the front ends.
struct FrontEnd {
    code: u8,
    /// As the worker did.
    dies_by: Option<Signal>,
}

struct Standing {
    worker: Pid,
    /// The children of this process before the worker, such as those of the shell that became `tenure`.
    before: Vec<ProcessKey>,
    /// By which signals are passed on. The worker waits for its end.
    line: io::PipeWriter,
    /// The worker handles signals.
    listens: bool,
    /// The terminal, if this process had its foreground at the start.
    terminal: Option<Terminal>,
    told: Receiver,
    heard: Vec<u8>,
    held: Option<Held>,
    /// The worker's own end: the signal by which to die.
    ends: Option<Option<(i32, bool)>>,
}

impl Standing {
    fn start() -> io::Result<Self> {
        let before = processes::Scope::new()?.before;
        let (end, line) = pipe()?;
        // A worker that is stopped reads nothing, and is not waited for.
        fcntl(&line, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let (told, tells) = pipe()?;
        for inherited in [end.as_fd(), tells.as_fd()] {
            fcntl(inherited, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        let worker = Command::new(processes::ourselves()?)
            .arg0("tenure")
            .arg(worker::VERB)
            .args([end.as_raw_fd().to_string(), tells.as_raw_fd().to_string(), getpgrp().to_string()])
            .arg(signals::at_start())
            .args(std::env::args_os().skip(1))
            .process_group(0)
            .spawn()?;
        let worker = Pid::from_raw(i32::try_from(worker.id()).expect("BUG: a pid is positive and fits"));
        let told = Receiver::from_owned_fd(told.into())?;
        Ok(Self {
            worker,
            before,
            line,
            listens: false,
            terminal: Terminal::in_foreground(),
            told,
            heard: Vec::new(),
            held: None,
            ends: None,
        })
    }

    /// Passes signals on, stops and goes on with the worker, and ends as it ends. Returns the exit code.
    async fn until_the_end(&mut self, signals: &mut Signals, quiet: bool) -> FrontEnd {
        signals::arm_stop();
        let status = loop {
            if let Some(status) = self.worker_ended() {
                break status;
            }
            tokio::select! {
                biased;
                signal = signals.any() => {
                    if signal == Some(Signal::SIGCONT as i32) {
                        signals::arm_stop();
                    }
                    signal.inspect(|signal| self.pass_on(*signal));
                }
                said = self.told.readable() => match said {
                    Ok(()) if self.hear() => {}
                    // The worker has ended.
                    _ => pause(POLL).await,
                },
            }
        };
        self.hear_the_rest();
        let signal = status.and_then(|status| status.terminating_signal());
        match (self.ends, status.and_then(|status| status.exit_status())) {
            (Some(dies), Some(code)) => {
                if let Some((signal, of_all)) = dies
                    && let Ok(signal) = Signal::try_from(signal)
                {
                    death::ended_by(signal, of_all);
                }
                let code = u8::try_from(code & 0xff).expect("BUG: masked to a byte");
                FrontEnd { code, dies_by: None }
            }
            _ => self.after_death(signal, quiet).await,
        }
    }

    /// A stop and its end are the kernel's; any other signal goes by the line, so that the worker can tell it from one that
    /// was sent to itself.
    fn pass_on(&mut self, signal: i32) {
        let is_stop = signal == Signal::SIGTSTP as i32;
        // Without a shell no process could continue a worker that waits for the lock.
        if is_stop && self.held.is_none() && processes::are_orphaned() {
            return;
        }
        // A signal for the command, such as USR1, would kill a worker that does not handle it yet.
        if !self.listens && !signals::is_for_tenure(signal) {
            return;
        }
        let is_told = self.listens
            && !is_stop
            && signal != Signal::SIGCONT as i32
            && u8::try_from(signal).is_ok_and(|number| self.line.write_all(&[number]).is_ok());
        if !is_told {
            // OK because the worker was not waited for, so no other process has its pid.
            processes::send_to(self.worker, signal);
        }
    }

    /// The status of the worker once it has ended; `Some(None)` if it is unknown.
    fn worker_ended(&self) -> Option<Option<WaitIdStatus>> {
        self.reap();
        let about = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        loop {
            match waitid(WaitId::Pid(raw(self.worker)?), about) {
                Ok(Some(status)) if status.stopping_signal().is_some() => self.stop_with(&status),
                Ok(Some(status)) => return Some(Some(status)),
                Ok(None) => return None,
                Err(_) => return Some(None),
            }
        }
    }

    /// The worker has stopped.
    fn stop_with(&self, status: &WaitIdStatus) {
        let by_keys = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].map(|signal| signal as i32);
        let is_key = status.stopping_signal().is_some_and(|signal| by_keys.contains(&signal));
        if is_key && processes::are_orphaned() {
            // The system would not have stopped it in this group.
            processes::send_to(self.worker, Signal::SIGCONT as i32);
        } else {
            signals::stop_unless_continued();
        }
    }

    /// The living children other than those from before.
    fn left(&self) -> io::Result<Vec<Process>> {
        let mut left = processes::children_of_us()?;
        left.retain(|child| !child.is_dead && !self.before.contains(&child.known()));
        Ok(left)
    }

    /// Waits for other children that have ended.
    fn reap(&self) {
        for child in processes::children_of_us().unwrap_or_default() {
            if child.pid() != self.worker {
                let _ = waitpid(raw(child.pid()), WaitOptions::NOHANG);
            }
        }
    }

    /// Reads what the worker has told. False if there is nothing more.
    fn hear(&mut self) -> bool {
        let mut some = [0; 1024];
        let count = self.told.try_read(&mut some).unwrap_or(0);
        self.take(&some[..count]);
        count > 0
    }

    /// The same once the worker has ended: from the pipe itself, because the runtime may not have seen yet that it is
    /// readable.
    fn hear_the_rest(&mut self) {
        let mut some = [0; 1024];
        while let Ok(count @ 1..) = nix::unistd::read(&self.told, &mut some) {
            self.take(&some[..count]);
        }
    }

    fn take(&mut self, some: &[u8]) {
        self.heard.extend(some);
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(Message::Listens) => self.listens = true,
                Ok(Message::Holds(held)) => self.held = held,
                Ok(Message::Supervisor(text)) => supervisor::say(&text),
                Ok(Message::Ends(dies)) => self.ends = Some(dies),
                Err(error) => tracing::debug!(%error, "a message of the worker cannot be read"),
            }
        }
    }

    /// The worker was killed: waits until all that it has left have ended, and frees the lock.
    async fn after_death(&self, signal: Option<i32>, quiet: bool) -> FrontEnd {
        let dies_by = signal.and_then(|signal| Signal::try_from(signal).ok());
        let code =
            signal.map_or(exit::INTERNAL, |signal| exit::SIGNAL.saturating_add(signal.unsigned_abs() as u8));
        let is_over = match &self.held {
            Some(held) => self.all_have_ended(held).await,
            None => true,
        };
        if let Some(terminal) = &self.terminal {
            let left = self.left().unwrap_or_default();
            terminal.take_back(true, |group| left.iter().any(|process| process.group() == group));
        }
        let end = FrontEnd { code, dies_by };
        let asked = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
        let how =
            signal.map_or_else(|| "has failed".to_owned(), |signal| format!("was killed by signal {signal}"));
        let Some(held) = &self.held else {
            // Asked to end before it could handle that: the same as a death of this process.
            if !dies_by.is_some_and(|signal| asked.contains(&signal)) {
                exit::warn(&exit::ending(&format!("the process that does the work {how}"), code));
            }
            return end;
        };
        // One more renewal does no harm, whatever still runs.
        let freed = match held.linger.is_some() || is_over && held.frees {
            true => free_all(held).await,
            false => None,
        };
        let fate = match (freed, held.linger) {
            (Some(exit::LOST), _) => "its lease had ended".to_owned(),
            (Some(0), Some(linger)) => {
                format!("the lock stays taken for {} (--linger)", text::seconds(linger))
            }
            (Some(0), None) => "the lock is free".to_owned(),
            _ => format!("the lock is free after its ttl of {} at the latest", text::seconds(held.ttl)),
        };
        let names: Vec<&str> = held.leases.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(", ");
        if !quiet {
            let left = match is_over {
                true => "the command was stopped",
                false => "something that the command started may still run",
            };
            let line = format!("{names}: the process that does the work {how}; {left}, {fate}");
            exit::warn(&exit::ending(&line, code));
        }
        lines::flush(exit::LAST_LINES);
        end
    }

    /// Whether nothing that the worker left runs any more. The watcher kills what belongs to the lock; what it does not
    /// know, and what is in this session, is killed here.
    async fn all_have_ended(&self, held: &Held) -> bool {
        let (began, longest) = (TokioHost.now(), held.ttl.min(DYING));
        // With children from before, their orphans cannot be told from those of the command, but by what marks these.
        let is_marked = |child: &Process| {
            let environment = child.environment().unwrap_or_default();
            child.runs(watcher::VERB)
                || held.leases.iter().any(|(_, owner)| processes::is_for(&environment, owner))
        };
        let is_ours =
            |child: &&Process| child.is_of_our_session() && (self.before.is_empty() || is_marked(child));
        let (mut empty, mut foreign) = (0, 0);
        let mut unwatched = None;
        loop {
            self.reap();
            if !processes::has_children() {
                return true;
            }
            let Ok(left) = self.left() else { return false };
            // The list may omit a child while another one ends.
            empty = if left.is_empty() { empty + 1 } else { 0 };
            if is_certain(empty, &self.before) {
                return true;
            }
            let now = TokioHost.now();
            // The watcher knows some that have left the session. It kills first, unless it is stopped.
            let is_stuck = began.elapsed(now) >= longest / 2;
            match left.iter().any(|child| child.runs(watcher::VERB)) {
                true => unwatched = None,
                false => unwatched = unwatched.or(Some(now)),
            }
            let is_unwatched = unwatched.is_some_and(|since: Moment| since.elapsed(now) >= FIRST);
            if (is_unwatched || is_stuck) && !left.is_empty() {
                let ours: Vec<&Process> = left.iter().filter(is_ours).collect();
                for child in &ours {
                    child.signal(Signal::SIGKILL as i32);
                }
                // The environment of one that becomes another program is empty for a moment.
                foreign = if ours.is_empty() { foreign + 1 } else { 0 };
                if foreign == SURE {
                    return false;
                }
            }
            if began.elapsed(now) >= longest {
                return false;
            }
            pause(POLL).await;
        }
    }
}

/// Whether this many lists without a child prove that none is left. They prove it only beside children that the front had before.
/// Otherwise the system itself answers: a list omits a child that has ended while another process traces it.
fn is_certain(empty: u32, before: &[ProcessKey]) -> bool {
    empty >= SURE && !before.is_empty()
}

/// Frees the locks, in a process that reads settings and secrets as the worker did. Its exit code; `None` if it has none in time.
async fn free_all(held: &Held) -> Option<u8> {
    let started = || {
        let mut process = Command::new(processes::ourselves()?)
            .arg0("tenure")
            .arg(FREE)
            .args(std::env::args_os().skip(1))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        serde_json::to_writer(process.stdin.take().expect("BUG: it was asked for"), held)?;
        io::Result::Ok(process)
    };
    let mut process = started().ok()?;
    let began = TokioHost.now();
    while began.elapsed(TokioHost.now()) < PATIENCE * 2 {
        if let Some(status) = process.try_wait().ok()? {
            return u8::try_from(status.code()?).ok();
        }
        pause(POLL).await;
    }
    // Not waited for: it may be in an uninterruptible wait of the kernel.
    let _ = process.kill();
    None
}

/// `__free`, before the arguments of the front: reads the leases from the standard input. A code other than 0 if a lease was not
/// there: perhaps the settings lead to another store by now.
pub(crate) async fn free(global: &Global) -> Result<u8, Stop> {
    let mut read = String::new();
    io::stdin().read_to_string(&mut read).map_err(|error| Stop::internal(error.to_string()))?;
    let held: Held = serde_json::from_str(&read).map_err(|error| Stop::internal(error.to_string()))?;
    let freed = async {
        let locks = store::connect(global).await?;
        let each = held.leases.iter().map(|(name, owner)| free_one(&locks, name, owner, held.linger));
        let freed = try_join_all(each).await?;
        locks.flush(PATIENCE).await;
        Ok(if freed.into_iter().all(|was_there| was_there) { 0 } else { exit::LOST })
    };
    tokio::select! {
        biased;
        freed = freed => freed,
        () = pause(PATIENCE) => Ok(exit::UNAVAILABLE),
    }
}

/// False if there is no such lease.
async fn free_one(locks: &Locker, name: &str, owner: &str, linger: Option<Duration>) -> Result<bool, Stop> {
    let wrong = |error: String| Stop::internal(error);
    let name = LockName::new(name).map_err(|error| wrong(error.to_string()))?;
    let owner: OwnerId = owner.parse().map_err(|_| wrong("not an owner".to_owned()))?;
    let lease = locks.detached(&name, owner).map_err(|error| wrong(error.to_string()))?;
    let mut is_unclear = false;
    loop {
        let answer = match linger {
            Some(linger) => lease.renew(linger).await.map(|renewal| renewal == Renewal::Renewed),
            None => lease.release().await.map(|released| released == Released::Released),
        };
        match answer {
            // By the first request, which had no answer, or before.
            Ok(false) if is_unclear && linger.is_none() => return Err(Stop::new(exit::UNAVAILABLE, "")),
            Ok(was_there) => return Ok(was_there),
            Err(error) if !error.kind().is_transient() => return Err(Stop::store(&error)),
            Err(error) => is_unclear |= error.outcome() == Outcome::Unknown,
        }
        pause(AGAIN).await;
    }
}

/// Not a verb for users.
pub(crate) const FREE: &str = "__free";

/// How often ending processes are checked.
const POLL: Duration = Duration::from_millis(5);
/// How long the watcher has before the front kills too.
const FIRST: Duration = Duration::from_millis(100);
/// How often a list without a child, or without one to kill, is read until it counts.
const SURE: u32 = 10;
/// How long ending processes are waited for.
const DYING: Duration = Duration::from_secs(10);
/// How long a store has to free a lock of a dead holder; and between two requests.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    /// L1: lists without a living child freed the lock even where only the answer of the system proves it.
    #[test]
    fn lists_without_a_child_count_beside_children_of_before_only() {
        assert!(!is_certain(SURE, &[]));
        assert!(is_certain(SURE, &[(7, 9)]) && !is_certain(SURE - 1, &[(7, 9)]));
    }
}

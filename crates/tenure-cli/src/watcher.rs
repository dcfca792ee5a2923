//! The watcher process. It ends the command and its descendants if `tenure` was killed or is suspended: the
//! parent-death signal reaches only the command, and a suspended `tenure` can stop nothing.
//!
//! `tenure` starts it before the command, sends it every new deadline, replaces it, and kills it in the end:
//! [`Watcher`]. The messages to it contain which processes to watch, and until when: [`Message`]. The process
//! itself: [`watch`].

use std::{
    collections::HashSet,
    ffi::OsString,
    io::{self, ErrorKind, PipeReader, PipeWriter, Read, Stdin, Write, stdin, stdout},
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Command, ExitCode},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{SigSet, Signal, kill, killpg},
    unistd::{self, Pid, getpid},
};
use rustix::process::{WaitOptions, waitpid};
use serde::{Deserialize, Serialize};
use tenure::backend::{Host, Moment, TokioHost};

use crate::{
    exit, nested,
    processes::{self, Family, Process, ProcessKey, Scope, raw},
    worker,
};

/// A process that ends the command if `tenure` cannot, and its successors. Dropping this ends it.
pub(crate) struct Watcher {
    before: Vec<ProcessKey>,
    /// The processes to watch, once they are known.
    watched: Option<Watched>,
    /// `None` while there is none: the last one was killed.
    process: Option<WatcherProcess>,
    started: Moment,
    /// The pause between the start of the last one and of the next.
    pause: Duration,
    /// When a message reported that one was killed.
    said: Option<Moment>,
    /// A message reported that none can be started.
    is_missed: bool,
    has_acted: bool,
}

impl Watcher {
    /// Starts it; `before` are the existing children.
    pub(crate) fn start(before: Vec<ProcessKey>) -> io::Result<Self> {
        let process = Some(WatcherProcess::start(&before, None)?);
        let (watched, started, pause) = (None, TokioHost.now(), FIRST);
        Ok(Self { before, watched, process, started, pause, said: None, is_missed: false, has_acted: false })
    }

    pub(crate) fn pid(&self) -> Option<Pid> {
        self.process.as_ref().map(|process| process.pid)
    }

    /// Sends it the processes to watch, and when to act. An error if that cannot be sent.
    pub(crate) fn watch(&mut self, watched: Watched, deadline: Deadline) -> io::Result<()> {
        let message = Message::Watch(watched.clone());
        self.watched = Some(watched);
        let Some(process) = &mut self.process else { return Ok(()) };
        say(&mut process.line, &message)?;
        process.until(deadline)
    }

    /// Sends it when to act, if that has changed. True once it has begun to end the command.
    pub(crate) fn until(&mut self, deadline: Deadline) -> bool {
        self.hear();
        if self.process.is_none() && !self.has_acted {
            self.replace();
        }
        // If the message cannot be sent, it was killed just now.
        let _ = self.process.as_mut().map(|process| process.until(deadline));
        self.has_acted
    }

    /// A child of `tenure` has ended, and was waited for.
    pub(crate) fn reaped(&mut self, pid: Pid) {
        if self.pid() == Some(pid) {
            // The messages that it sent before it ended can still be read.
            self.hear();
            self.process = None;
        }
    }

    /// It sends a message before it acts.
    fn hear(&mut self) {
        let said = self.process.as_mut().map(|process| process.answer.read(&mut [0]));
        self.has_acted |= matches!(said, Some(Ok(1)));
    }

    /// Starts another one, unless the last start was a moment ago.
    fn replace(&mut self) {
        let now = TokioHost.now();
        let lived = self.started.elapsed(now);
        if lived < self.pause {
            return;
        }
        self.pause = if lived < MINUTE { LONGEST.min(2 * self.pause) } else { FIRST };
        self.started = now;
        let what = "the watcher process, which stops the command if tenure is killed, was killed";
        match WatcherProcess::start(&self.before, self.watched.as_ref()) {
            Ok(process) => {
                self.process = Some(process);
                if self.is_missed || self.said.is_none_or(|said| said.elapsed(now) >= MINUTE) {
                    self.said = Some(now);
                    exit::warn(&format!("{what}: another one was started"));
                }
                self.is_missed = false;
            }
            Err(error) if !self.is_missed => {
                self.is_missed = true;
                exit::warn(&format!("{what}, and another one cannot be started yet: {error}; trying again"));
            }
            Err(_) => {}
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Not by a message: it may be stopped, and would not receive it.
        if let Some(pid) = self.pid() {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(raw(pid), WaitOptions::empty());
        }
    }
}

/// One watcher process that has not been waited for.
struct WatcherProcess {
    pid: Pid,
    line: PipeWriter,
    answer: PipeReader,
    told: Option<Deadline>,
}

impl WatcherProcess {
    /// In its own process group, so that signals to the group of `tenure` do not reach it. If the command already
    /// runs, its pid waits in the pipe, even if `tenure` dies.
    fn start(before: &[ProcessKey], watched: Option<&Watched>) -> io::Result<Self> {
        let (inbox, mut line) = io::pipe()?;
        let (answer, mouth) = io::pipe()?;
        let (_, unread) = io::pipe()?;
        // It may be stopped, and then it neither reads nor answers: we never wait for it.
        fcntl(&line, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fcntl(&answer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        if let Some(watched) = watched {
            say(&mut line, &Message::Watch(watched.clone()))?;
        }
        let process = Command::new(processes::ourselves()?)
            .arg0("tenure")
            .arg(VERB)
            .args(before.iter().map(written))
            // It does not work under the lock of an outer `tenure`, which must not count it as such a process.
            .env_remove(nested::VARIABLE)
            .process_group(0)
            .stdin(inbox)
            .stdout(mouth)
            // Nobody reads it; `/dev/null` may be missing.
            .stderr(unread)
            .spawn()?;
        let pid = Pid::from_raw(i32::try_from(process.id()).expect("BUG: a pid is positive and fits"));
        Ok(Self { pid, line, answer, told: None })
    }

    fn until(&mut self, deadline: Deadline) -> io::Result<()> {
        if self.told.is_some_and(|told| told.is_about(deadline)) {
            return Ok(());
        }
        say(&mut self.line, &Message::Until(deadline))?;
        self.told = Some(deadline);
        Ok(())
    }
}

fn say(line: &mut PipeWriter, message: &Message) -> io::Result<()> {
    let mut words = serde_json::to_vec(message)?;
    words.push(b'\n');
    match line.write_all(&words) {
        // It is stopped, and has not read hundreds of deadlines: it will act too early, but not too late.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        said => said,
    }
}

/// A process in an argument of `__watch`.
fn written((pid, born): &ProcessKey) -> String {
    format!("{pid}:{born}")
}

/// A message from `tenure` to its watcher process: one line of JSON.
#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
enum Message {
    Watch(Watched),
    /// When to act, unless another message comes before.
    Until(Deadline),
}

/// The processes to watch.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) command: ProcessKey,
    pub(crate) tenure: i32,
    pub(crate) adopts: bool,
    /// The owner, which is in the environment of all descendants of the command.
    pub(crate) owner: String,
}

/// When the watcher process ends the command: a little later than `tenure` itself does.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// TERM; `None` if that has been sent.
    term: Option<SharedMoment>,
    kill: SharedMoment,
}

impl Deadline {
    pub(crate) fn new(term: Option<Moment>, kill: Moment) -> Self {
        Self { term: term.map(|term| (term.boot, term.wall)), kill: (kill.boot, kill.wall) }
    }

    /// Whether TERM has to be sent.
    fn wants_term(self) -> bool {
        self.term.is_some()
    }

    fn first(self) -> Moment {
        moment(self.term.unwrap_or(self.kill))
    }

    fn kill(self) -> Moment {
        moment(self.kill)
    }

    /// True if the difference is no more than that of two measurements.
    fn is_about(self, other: Self) -> bool {
        let near = |a: Duration, b: Duration| a.abs_diff(b) < Duration::from_millis(1);
        self.wants_term() == other.wants_term()
            && near(self.kill.0, other.kill.0)
            && near(self.kill.1, other.kill.1)
    }
}

/// A moment in a message to another process of this machine.
type SharedMoment = (Duration, Duration);

fn moment((boot, wall): SharedMoment) -> Moment {
    Moment { boot, wall }
}

/// The receiving end of the messages: the standard input of the watcher process.
struct Inbox {
    line: Stdin,
    heard: Vec<u8>,
}

impl Inbox {
    fn new() -> Self {
        Self { line: stdin(), heard: Vec::new() }
    }

    /// Waits for the next message; `None` if none comes within `patience`. An error if the pipe was closed.
    fn receive(&mut self, patience: Duration) -> io::Result<Option<Message>> {
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return Ok(serde_json::from_slice(&line).ok());
            }
            let mut ready = [PollFd::new(self.line.as_fd(), PollFlags::POLLIN)];
            let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
            match poll(&mut ready, patience) {
                Ok(0) | Err(Errno::EINTR) => return Ok(None),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let mut some = [0; 512];
            match unistd::read(&self.line, &mut some) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.heard.extend(&some[..count]),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// `__watch PID:BORN...`, the processes that existed before the command: reads from the standard input which to
/// watch and until when. The end of the input means that `tenure` is dead.
pub(crate) fn watch(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // A signal to all processes of a service is not for this one, which ends with `tenure`.
    let _ = SigSet::all().thread_block();
    worker::name_us();
    let before: Vec<ProcessKey> = arguments.filter_map(|argument| read(argument.to_str()?)).collect();
    let (mut inbox, mut watched, mut deadline) = (Inbox::new(), None::<Watched>, None::<Deadline>);
    // The family when it was last complete. The death of `tenure` kills the command, and its children can then no longer
    // be found through it.
    let mut seen = HashSet::new();
    loop {
        let left = deadline.map_or(CLOCKS, |deadline| deadline.first().remaining(TokioHost.now()));
        // In this order: after a stop it finds a deadline that has passed, and a message with a later one behind
        // it.
        let is_over = deadline.is_some_and(|deadline| deadline.first().is_over(TokioHost.now()));
        if let Some(watched) = &watched {
            let now = family(watched, Scope { adopts: watched.adopts, before: before.clone() }).descendants();
            // `tenure` may have died before its last message is read. Then the command is not found, and the last
            // complete family counts.
            if now.iter().any(|process| process.known() == watched.command) {
                seen = now.iter().map(Process::known).collect();
            }
        }
        match inbox.receive(left.min(CLOCKS)) {
            Ok(Some(Message::Watch(whom))) => watched = Some(whom),
            Ok(Some(Message::Until(when))) => deadline = Some(when),
            Ok(None) => {
                if let (Some(watched), Some(deadline), true) = (&watched, deadline, is_over) {
                    end(&mut family(watched, Scope { adopts: watched.adopts, before }), deadline);
                    return ExitCode::from(exit::LOST);
                }
            }
            Err(_) => {
                watched.as_ref().inspect(|watched| kill_all(watched, &seen));
                return ExitCode::SUCCESS;
            }
        }
    }
}

fn read(argument: &str) -> Option<ProcessKey> {
    let (pid, born) = argument.split_once(':')?;
    Some((pid.parse().ok()?, born.parse().ok()?))
}

fn family(watched: &Watched, scope: Scope) -> Family {
    let pid = Pid::from_raw;
    Family {
        command: pid(watched.command.0),
        tenure: pid(watched.tenure),
        watcher: Some(getpid()),
        check: None,
        scope,
        owner: watched.owner.clone(),
        known: HashSet::new(),
    }
}

/// `tenure` lives but is suspended: does its work, and sends it a message first, for when it continues.
fn end(family: &mut Family, deadline: Deadline) {
    let _ = stdout().write_all(b"!").and_then(|()| stdout().flush());
    if deadline.wants_term() {
        family.signal(Signal::SIGTERM);
        // A stopped process receives it only after it continues.
        family.signal(Signal::SIGCONT);
        wait(family, deadline.kill());
    }
    kill_until_gone(family);
}

fn kill_until_gone(family: &mut Family) {
    let began = TokioHost.now();
    while !family.is_gone() && began.elapsed(TokioHost.now()) < DYING {
        family.signal(Signal::SIGKILL);
        rest();
    }
}

fn wait(family: &Family, until: Moment) {
    while !family.is_gone() && !until.is_over(TokioHost.now()) {
        rest();
    }
}

/// `tenure` is dead, and perhaps the command. Kills what is left of the family, each time after all of it is known.
fn kill_all(watched: &Watched, seen: &HashSet<ProcessKey>) {
    let mut seen = seen.clone();
    let began = TokioHost.now();
    loop {
        let left = processes::orphans(watched.command, &seen, &watched.owner);
        let left: Vec<&Process> = left.iter().filter(|process| !process.is_dead).collect();
        seen.extend(left.iter().map(|process| process.known()));
        for process in &left {
            process.signal(Signal::SIGKILL as i32);
        }
        // Without `/proc` only the group is known.
        let group = Pid::from_raw(watched.command.0);
        let is_empty = watched.adopts || killpg(group, Signal::SIGKILL) == Err(Errno::ESRCH);
        if left.is_empty() && is_empty || began.elapsed(TokioHost.now()) >= DYING {
            return;
        }
        rest();
    }
}

/// This process has no async runtime.
fn rest() {
    let _ = poll(&mut [], PollTimeout::try_from(POLL).unwrap_or(PollTimeout::ZERO));
}

/// Not a verb for users.
pub(crate) const VERB: &str = "__watch";

/// From one start to the next, if each watcher is killed immediately: the first time, and the longest.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

/// From one line about killed watchers to the next, and how long one must live before the pauses are short again.
const MINUTE: Duration = Duration::from_secs(60);

/// How often the clocks are read: `poll` does not count the time of a suspend.
const CLOCKS: Duration = Duration::from_secs(1);

/// How often ending processes are checked, and for how long after KILL. A process in an uninterruptible wait of the
/// kernel ends when that wait ends.
const POLL: Duration = Duration::from_millis(5);
const DYING: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_short_line_and_read_as_it_was_written() {
        let at = |seconds| Moment { boot: Duration::from_secs(seconds), wall: Duration::new(seconds, 1) };
        let watched = Watched { command: (7, 9), tenure: 1, adopts: true, owner: "0".repeat(48) };
        for message in [Message::Watch(watched), Message::Until(Deadline::new(Some(at(u64::MAX)), at(9)))] {
            let line = serde_json::to_string(&message).unwrap();
            assert!(
                line.len() < 512 && !line.contains('\n'),
                "shorter than what a pipe takes at once: {line}"
            );
            assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), message);
        }
    }

    #[test]
    fn a_deadline_is_the_same_if_it_was_only_measured_again() {
        let at = |micros| Moment { boot: Duration::from_micros(micros), wall: Duration::from_micros(micros) };
        let deadline = |micros| Deadline::new(Some(at(micros)), at(micros));
        assert!(deadline(5000).is_about(deadline(5900)));
        assert!(!deadline(5000).is_about(deadline(6000)));
        assert!(!deadline(5000).is_about(Deadline::new(None, at(5000))), "TERM has been sent meanwhile");
        assert_eq!(Deadline::new(None, at(7)).first(), at(7));
    }
}

//! The watcher process as `tenure` uses it: started before the command, told every new deadline, replaced, killed in the end.

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::process::{WaitOptions, waitpid};
use tenure::{Host, Moment, TokioHost};

use crate::{
    exit,
    messages::{Deadline, Message, Watched},
    nested,
    processes::{self, Known, raw},
    watch::{self, VERB},
};

/// From one start to the next, if each watcher is killed at once: the first time, and the longest.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

/// From one line about watchers that are killed to the next, and how long one must live for the pauses to be short again.
const MINUTE: Duration = Duration::from_secs(60);

/// A process that ends the command if we cannot, and its successors. Dropping this ends it.
pub(crate) struct Watcher {
    before: Vec<Known>,
    /// Which processes to watch, once that is known.
    watched: Option<Watched>,
    /// `None` while there is none: the last one was killed.
    process: Option<Process>,
    started: Moment,
    /// The next one is started so long after the last one.
    pause: Duration,
    /// When it was said that one was killed.
    said: Option<Moment>,
    /// It was said that none can be started.
    is_missed: bool,
    has_acted: bool,
}

impl Watcher {
    /// Starts it; `before` are the children that we have already.
    pub(crate) fn start(before: Vec<Known>) -> io::Result<Self> {
        let process = Some(Process::start(&before, None)?);
        let (watched, started, pause) = (None, TokioHost.now(), FIRST);
        Ok(Self { before, watched, process, started, pause, said: None, is_missed: false, has_acted: false })
    }

    pub(crate) fn pid(&self) -> Option<Pid> {
        self.process.as_ref().map(|process| process.pid)
    }

    /// Tells it which processes to watch, and when to act. An error if that cannot be told.
    pub(crate) fn watch(&mut self, watched: Watched, deadline: Deadline) -> io::Result<()> {
        let message = Message::Watch(watched.clone());
        self.watched = Some(watched);
        let Some(process) = &mut self.process else { return Ok(()) };
        say(&mut process.line, &message)?;
        process.until(deadline)
    }

    /// Tells it when to act, if that has changed. True once it has begun to end the command.
    pub(crate) fn until(&mut self, deadline: Deadline) -> bool {
        self.hear();
        if self.process.is_none() && !self.has_acted {
            self.replace();
        }
        // One that cannot be told was killed just now.
        let _ = self.process.as_mut().map(|process| process.until(deadline));
        self.has_acted
    }

    /// A child of ours has ended, and was waited for.
    pub(crate) fn reaped(&mut self, pid: Pid) {
        if self.pid() == Some(pid) {
            // What it said before it ended is still there.
            self.hear();
            self.process = None;
        }
    }

    /// It says that it acts before it does.
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
        match Process::start(&self.before, self.watched.as_ref()) {
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
                exit::warn(&format!("{what} and cannot be started again: {error}; it is tried until it can"));
            }
            Err(_) => {}
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Not asked: it may be stopped, and would not hear it.
        if let Some(pid) = self.pid() {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(raw(pid), WaitOptions::empty());
        }
    }
}

/// One watcher process that has not been waited for.
struct Process {
    pid: Pid,
    line: PipeWriter,
    answer: PipeReader,
    told: Option<Deadline>,
}

impl Process {
    /// In a process group of its own, so that signals to our group do not reach it. If the command runs already, its pid
    /// waits in the pipe, whatever happens to us meanwhile.
    fn start(before: &[Known], watched: Option<&Watched>) -> io::Result<Self> {
        let (inbox, mut line) = io::pipe()?;
        let (answer, mouth) = io::pipe()?;
        // It may be stopped, and then it neither reads nor answers: we never wait for it.
        fcntl(&line, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fcntl(&answer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        if let Some(watched) = watched {
            say(&mut line, &Message::Watch(watched.clone()))?;
        }
        let process = Command::new(processes::ourselves()?)
            .arg0("tenure")
            .arg(VERB)
            .args(before.iter().map(watch::written))
            // It does not work under the lock of a `tenure` around us: that one must not take it for a process that does.
            .env_remove(nested::VARIABLE)
            .process_group(0)
            .stdin(inbox)
            .stdout(mouth)
            .stderr(Stdio::null())
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
        // It is stopped, and has not read for hundreds of deadlines: it will act too early, but not too late.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        said => said,
    }
}

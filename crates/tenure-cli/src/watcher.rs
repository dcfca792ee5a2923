//! The watcher process as `tenure` uses it: started before the command, told every new deadline, killed in the end.

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    unistd::Pid,
};

use crate::{
    exec,
    messages::{Deadline, Message, Watched},
    watch::VERB,
};

/// A process that ends the command if we cannot. Dropping this ends it.
pub(crate) struct Watcher {
    process: Child,
    line: PipeWriter,
    answer: PipeReader,
    told: Option<Deadline>,
}

impl Watcher {
    /// Starts it, in a process group of its own, so that signals to our group do not reach it. If the command runs
    /// already, its pid waits in the pipe, whatever happens to us meanwhile.
    pub(crate) fn start(watched: Option<&Watched>) -> io::Result<Self> {
        let (inbox, mut line) = io::pipe()?;
        let (answer, mouth) = io::pipe()?;
        // It may be stopped, and then it neither reads nor answers: we never wait for it.
        fcntl(&line, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fcntl(&answer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        if let Some(watched) = watched {
            say(&mut line, &Message::Watch(watched.clone()))?;
        }
        let process = Command::new(exec::ourselves()?)
            .arg0("tenure")
            .arg(VERB)
            // It does not work under the lock of a `tenure` around us: that one must not take it for somebody who does.
            .env_remove("TENURE_OWNER")
            .process_group(0)
            .stdin(inbox)
            .stdout(mouth)
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { process, line, answer, told: None })
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).expect("BUG: a pid is positive and fits"))
    }

    /// Tells it which processes to watch.
    pub(crate) fn watch(&mut self, watched: &Watched) -> io::Result<()> {
        say(&mut self.line, &Message::Watch(watched.clone()))
    }

    /// Tells it when to act, if that has changed.
    pub(crate) fn until(&mut self, deadline: Deadline) -> io::Result<()> {
        if self.told.is_some_and(|told| told.is_about(deadline)) {
            return Ok(());
        }
        say(&mut self.line, &Message::Until(deadline))?;
        self.told = Some(deadline);
        Ok(())
    }

    /// Whether it has begun to end the command; it says so before it acts.
    pub(crate) fn has_acted(&mut self) -> bool {
        matches!(self.answer.read(&mut [0]), Ok(1))
    }

    pub(crate) fn is_dead(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Not asked: it may be stopped, and would not hear it.
        let _ = self.process.kill();
        let _ = self.process.wait();
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

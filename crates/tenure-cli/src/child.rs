//! The command under the lock: started in a group of its own, watched, stopped as a whole.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    os::unix::process::CommandExt,
    process::Command,
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, killpg, raise},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpgrp},
};
use tenure::{
    Guard, TokioHost,
    core::{Host, Moment},
};

use crate::{exec, exit, group::Group, line::pause, terminal::Terminal, watch::Watcher};

/// How often a stopping group is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// A running command.
pub(crate) struct Child {
    group: Group,
    /// The terminal, while the command has its foreground.
    terminal: Option<Terminal>,
    /// We were asked to stop, and have asked the command.
    stopping: bool,
    watcher: Option<Watcher>,
    /// The exit code, once it has ended.
    code: Option<u8>,
}

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Ended(u8),
    /// Stopped by job control.
    Suspended,
    None,
}

impl Child {
    /// Starts `argv`. Call on the main thread: the death signal comes when the starting *thread* ends.
    pub(crate) fn start(argv: &[OsString], guard: &Guard) -> io::Result<Self> {
        // In a pipeline somebody else may want the keyboard, as a pager does: then the command gets it when it reads.
        let terminal = Terminal::in_foreground().filter(|_| io::stdout().is_terminal());
        let foreground = if terminal.is_some() { "1" } else { "0" };
        let process = Command::new(exec::ourselves()?)
            .arg0("tenure")
            .args([exec::VERB, &std::process::id().to_string(), foreground])
            .args(argv)
            .env("TENURE_LOCK", guard.name().as_str())
            .env("TENURE_TOKEN", guard.token().to_string())
            .env("TENURE_OWNER", guard.owner().to_string())
            .process_group(0)
            .spawn()?;
        let group =
            Group(Pid::from_raw(i32::try_from(process.id()).expect("BUG: a pid is positive and fits")));
        let watcher = Watcher::start(group);
        if let Err(error) = &watcher {
            exit::warn(&format!("no watcher: if tenure is killed, only the command dies with it: {error}"));
        }
        Ok(Self { group, terminal, stopping: false, watcher: watcher.ok(), code: None })
    }

    /// What has changed since the last look.
    pub(crate) fn look(&mut self) -> Change {
        if let Some(code) = self.code {
            return Change::Ended(code);
        }
        let code = match waitpid(self.group.0, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Exited(_, code)) => u8::try_from(code & 0xff).expect("BUG: masked to a byte"),
            Ok(WaitStatus::Signaled(_, signal, _)) => exit::SIGNAL + u8::try_from(signal as i32).unwrap_or(0),
            Ok(WaitStatus::Stopped(_, why)) if self.is_job_control(why) => return Change::Suspended,
            Ok(_) => return Change::None,
            // Nobody else reaps it; were it so, it has ended all the same.
            Err(_) => exit::INTERNAL,
        };
        self.code = Some(code);
        Change::Ended(code)
    }

    /// Or somebody else stopped it, who will let it go on without us: then we go on as well.
    fn is_job_control(&self, why: Signal) -> bool {
        self.terminal.is_some() || self.stopping || matches!(why, Signal::SIGTTIN | Signal::SIGTTOU)
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.stopping |= signal == Signal::SIGTSTP;
        self.group.signal(signal);
    }

    /// The command is suspended: suspend ourselves as well, so that the shell gets its terminal. No renewal happens
    /// meanwhile, and when we are continued the command is, unless the lease is lost.
    pub(crate) fn suspend_with(&mut self, guard: &Guard) {
        // All of it: whoever in the group did not stop would run on, unrenewed (L1).
        self.group.signal(Signal::SIGSTOP);
        // Stops as TSTP does, which we listen to: not where no shell could ever continue us.
        let stop = Signal::SIGTTIN;
        if std::mem::take(&mut self.stopping) {
            let _ = raise(stop);
        } else if let Some(terminal) = self.terminal.take() {
            terminal.take_back(false);
            // Ctrl-Z came to the command's group; it was meant for all of the job.
            let _ = killpg(getpgrp(), stop);
        } else if Terminal::in_foreground().is_none() {
            let _ = killpg(getpgrp(), stop);
        }
        if guard.check().is_err() {
            // Not a moment more, not even to handle a signal: another may run by now.
            self.group.signal(Signal::SIGKILL);
            return;
        }
        self.terminal = Terminal::in_foreground();
        if self.terminal.is_some() {
            Terminal::give_to(self.group.0);
        }
        self.group.signal(Signal::SIGCONT);
    }

    /// Stops the whole group: TERM, and KILL at `kill_at`. Ends when nobody is left.
    pub(crate) async fn stop(&mut self, kill_at: Moment) {
        self.group.signal(Signal::SIGTERM);
        // A stopped process hears of it only when it goes on.
        self.group.signal(Signal::SIGCONT);
        while !self.is_gone() && !kill_at.is_over(TokioHost.now()) {
            pause(LOOK).await;
        }
        let mut in_reach = true;
        while !self.is_gone() {
            if in_reach && !self.group.kill() {
                in_reach = false;
                exit::warn(
                    "the command runs as another user and cannot be killed: it may run beside the next holder",
                );
            }
            pause(LOOK).await;
        }
    }

    /// Whether the command has ended and everything it started in its group.
    pub(crate) fn is_gone(&mut self) -> bool {
        matches!(self.look(), Change::Ended(_)) && self.group.is_gone()
    }

    /// Tidies up after the command has ended.
    pub(crate) fn bury(mut self, was_killed: bool) {
        if let Some(watcher) = self.watcher.take() {
            watcher.dismiss();
        }
        if let Some(terminal) = &self.terminal {
            terminal.take_back(was_killed);
        }
    }
}

//! The command under the lock: started in a group of its own, watched, stopped as a whole.

use std::{ffi::OsString, io, os::unix::process::CommandExt, process::Command, time::Duration};

use nix::{
    sys::{
        signal::{Signal, raise},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tenure::{
    Guard, TokioHost,
    core::{Host, Moment},
};

use crate::{exec, exit, group::Group, terminal::Terminal, waiting::pause, watch::Watcher};

/// How often a stopping group is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// A running command.
pub(crate) struct Child {
    group: Group,
    terminal: Option<Terminal>,
    watcher: Option<Watcher>,
    /// The exit code, once it has ended.
    code: Option<u8>,
}

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Ended(u8),
    /// Stopped by job control; the terminal is ours again.
    Suspended,
    None,
}

impl Child {
    /// Starts `argv`. Call on the main thread: the death signal comes when the starting *thread* ends.
    pub(crate) fn start(argv: &[OsString], guard: &Guard) -> io::Result<Self> {
        let terminal = Terminal::in_foreground();
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
        Ok(Self { group, terminal, watcher: watcher.ok(), code: None })
    }

    /// What has changed since the last look.
    pub(crate) fn look(&mut self) -> Change {
        if let Some(code) = self.code {
            return Change::Ended(code);
        }
        let code = match waitpid(self.group.0, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Exited(_, code)) => u8::try_from(code & 0xff).expect("BUG: masked to a byte"),
            Ok(WaitStatus::Signaled(_, signal, _)) => exit::SIGNAL + u8::try_from(signal as i32).unwrap_or(0),
            Ok(WaitStatus::Stopped(..)) if self.terminal.is_some() => return Change::Suspended,
            Ok(_) => return Change::None,
            // Nobody else reaps it; were it so, it has ended all the same.
            Err(_) => exit::INTERNAL,
        };
        self.code = Some(code);
        Change::Ended(code)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.group.signal(signal);
    }

    /// The user suspended the command: suspend ourselves as well, so that the shell gets its terminal. No renewal
    /// happens meanwhile, and when we are continued the command is, unless the lease is lost.
    pub(crate) fn suspend_with(&self, guard: &Guard) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back(false);
        }
        let _ = raise(Signal::SIGSTOP);
        if guard.check().is_err() {
            // Not a moment more, not even to handle a signal: another may run by now.
            self.group.signal(Signal::SIGKILL);
            return;
        }
        if Terminal::in_foreground().is_some() {
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
        while !self.is_gone() {
            self.group.signal(Signal::SIGKILL);
            pause(LOOK).await;
        }
    }

    fn is_gone(&mut self) -> bool {
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

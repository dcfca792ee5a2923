//! The watcher process. It ends the command, and what the command started, if `tenure` was killed or is suspended.
//!
//! The parent-death signal reaches only the command, and a suspended `tenure` can stop nothing.

use std::{
    ffi::OsString,
    io::{Write, stdout},
    process::ExitCode,
    time::Duration,
};

use nix::{
    poll::{PollTimeout, poll},
    sys::signal::{SigSet, Signal},
    unistd::{Pid, getpid, getsid},
};
use tenure::{Host, Moment, TokioHost};

use crate::{
    exit,
    family::{Family, Scope},
    messages::{Deadline, Inbox, Message, Watched},
    nested,
    processes::{self, Known, Process},
};

/// Not a verb for people.
pub(crate) const VERB: &str = "__watch";

/// How often the clocks are read: `poll` does not count the time in which the machine was suspended.
const CLOCKS: Duration = Duration::from_secs(1);

/// How often ending processes are looked at, and for how long after KILL. A process in an uninterruptible wait of the
/// kernel ends when that wait ends.
const LOOK: Duration = Duration::from_millis(5);
const DYING: Duration = Duration::from_secs(10);

/// `__watch PID:BORN...`, the processes that were there before the command: reads from the standard input which to watch
/// and until when. The end of the input says that `tenure` is dead.
pub(crate) fn watch(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // Whoever asks all processes of a service to end does not mean us: we end with `tenure`.
    let _ = SigSet::all().thread_block();
    let before: Vec<Known> = arguments.filter_map(|argument| read(argument.to_str()?)).collect();
    let (mut inbox, mut watched, mut deadline) = (Inbox::new(), None, None::<Deadline>);
    loop {
        let left = deadline.map_or(CLOCKS, |deadline| deadline.first().remaining(TokioHost.now()));
        // In this order: whoever was stopped finds a deadline that is over, and news of a later one behind it.
        let is_over = deadline.is_some_and(|deadline| deadline.first().is_over(TokioHost.now()));
        match inbox.receive(left.min(CLOCKS)) {
            Ok(Some(Message::Watch(whom))) => watched = Some(whom),
            Ok(Some(Message::Until(when))) => deadline = Some(when),
            Ok(None) => {
                if let (Some(watched), Some(deadline), true) = (&watched, deadline, is_over) {
                    end(&family(watched, Scope { adopts: watched.adopts, before }), deadline);
                    return ExitCode::from(exit::LOST);
                }
            }
            Err(_) => {
                watched.as_ref().inspect(|watched| kill_all(watched));
                return ExitCode::SUCCESS;
            }
        }
    }
}

/// A process in an argument of `__watch`.
pub(crate) fn written((pid, born): &Known) -> String {
    format!("{pid}:{born}")
}

fn read(argument: &str) -> Option<Known> {
    let (pid, born) = argument.split_once(':')?;
    Some((pid.parse().ok()?, born.parse().ok()?))
}

fn family(watched: &Watched, scope: Scope) -> Family {
    let pid = Pid::from_raw;
    Family {
        command: pid(watched.command),
        tenure: pid(watched.tenure),
        watcher: Some(getpid()),
        scope,
        owner: watched.owner.clone(),
    }
}

/// `tenure` lives but is suspended: does what it would have done, and tells it first, for when it continues.
fn end(family: &Family, deadline: Deadline) {
    let _ = stdout().write_all(b"!").and_then(|()| stdout().flush());
    if deadline.wants_term() {
        family.signal(Signal::SIGTERM);
        // A stopped process hears of it only when it goes on.
        family.signal(Signal::SIGCONT);
        wait(family, deadline.kill());
    }
    kill_until_gone(family);
}

fn kill_until_gone(family: &Family) {
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

/// `tenure` is dead and has no children any more: processes outside the command's group are found by their environment.
fn kill_all(watched: &Watched) {
    let orphans = family(watched, Scope::default());
    let carries_mark =
        |process: &Process| process.environment().is_some_and(|all| nested::is_under(&all, &watched.owner));
    let began = TokioHost.now();
    loop {
        orphans.signal(Signal::SIGKILL);
        let session = getsid(None).map_err(Into::into).and_then(processes::of_session).unwrap_or_default();
        let is_of_it = |process: &&Process| !process.is_dead && carries_mark(process);
        let left: Vec<&Process> = session.iter().filter(is_of_it).collect();
        for process in &left {
            process.signal(Signal::SIGKILL);
        }
        if (left.is_empty() && orphans.is_gone()) || began.elapsed(TokioHost.now()) >= DYING {
            return;
        }
        rest();
    }
}

/// This process has no async runtime.
fn rest() {
    let _ = poll(&mut [], PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO));
}

//! What `run` is to hold: one lock, several at once, or one of several.

use std::{ffi::OsString, fmt, num::NonZeroU32};

use tenure::{Guards, Lock, LockName, Locker, Mode};

use crate::{
    args::{Global, Run, name},
    exit::Stop,
    nested::{self, Nesting},
    signals::Signals,
    waiting::{Budget, Waiting},
};

/// The names of the locks, as they were written.
pub(crate) struct Wanted {
    names: Vec<LockName>,
    how: How,
    /// Of one lock; several are mutexes.
    mode: Mode,
}

/// Where and how it is asked for.
pub(crate) struct Asking<'a> {
    pub(crate) locks: &'a Locker,
    pub(crate) waiting: &'a Waiting<'a>,
    pub(crate) budget: Budget,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    One,
    All,
    Any,
}

impl Wanted {
    /// What stands in the arguments. With `--any` there is no NAME, and what was taken for it begins the command; `written` is
    /// the whole command line.
    pub(crate) fn of(args: &mut Run, written: impl Iterator<Item = OsString>) -> Result<Self, Stop> {
        let mode = mode(args);
        let wanted = if args.any.is_empty() {
            let first = args.name.to_str().ok_or_else(|| Stop::usage("NAME: a lock name must be UTF-8"))?;
            let first = name(first).map_err(|why| Stop::usage(format!("NAME: {why}")))?;
            let how = if args.also.is_empty() { How::One } else { How::All };
            Self { names: [first].into_iter().chain(args.also.clone()).collect(), how, mode }
        } else {
            let behind = written.skip_while(|word| word != "--").skip(1).count();
            if behind != args.argv.len() + 1 {
                return Err(Stop::usage(
                    "--any stands instead of NAME, and `--` before the command: tenure run --any a,b -- COMMAND",
                ));
            }
            args.argv.insert(0, std::mem::take(&mut args.name));
            Self { names: args.any.clone(), how: How::Any, mode }
        };
        let twice = wanted.names.iter().enumerate().find(|(at, name)| wanted.names[..*at].contains(name));
        match twice {
            Some((_, name)) => Err(Stop::usage(format!("{name} is named twice; name each lock once"))),
            None => Ok(wanted),
        }
    }

    /// The lock that was named first.
    pub(crate) fn name(&self) -> &LockName {
        &self.names[0]
    }

    /// This mutex alone.
    pub(crate) fn only(name: LockName) -> Self {
        Self { names: vec![name], how: How::One, mode: Mode::Exclusive }
    }

    /// The lock that `TENURE_LOCK` names, of those that are held.
    pub(crate) fn first(&self, held: &Guards) -> tenure::Lease {
        let first = match self.how {
            How::All => held.get(&self.names[0]),
            // Where a semaphore is so many mutexes, that of the slot has a name of its own.
            How::One | How::Any => held.iter().next(),
        };
        first.expect("BUG: something is held").clone()
    }

    /// Waits for all of them, which are all that there are, rather than for one.
    pub(crate) fn is_all(&self) -> bool {
        self.how == How::All
    }

    /// Refuses what the runs around this one hold, and keep for as long as it waits.
    pub(crate) async fn refuse_nested(
        &self,
        global: &Global,
        locks: &Locker,
        signals: &mut Signals,
    ) -> Result<(), Stop> {
        let mut refused = Ok(());
        for name in &self.names {
            let asked = nested::nesting(global, locks, (name, self.mode), signals.asked_to_end()).await?;
            match (self.how, asked) {
                // One that can be had is enough.
                (How::Any, Nesting::Fits) | (_, Nesting::Unanswered) => return Ok(()),
                (How::Any, Nesting::Never(stop)) => refused = Err(stop),
                (How::All | How::One, Nesting::Never(stop)) => return Err(stop),
                (How::All | How::One, Nesting::Fits) => {}
            }
        }
        refused
    }

    /// What is held, for people.
    pub(crate) fn held(&self, held: &Guards) -> String {
        match self.how {
            How::One | How::All => self.to_string(),
            How::Any => self.first(held).name().to_string(),
        }
    }

    /// Waits until it is held. `set` has the settings of each lock.
    pub(crate) async fn acquire(
        &self,
        asking: Asking<'_>,
        set: impl Fn(Lock) -> Lock,
        signals: &mut Signals,
    ) -> Result<Guards, Stop> {
        let Asking { locks, waiting, budget } = asking;
        let prepared = |lock| waiting.prepared(set(lock), budget);
        match self.how {
            How::One => {
                let lock = set(one(locks, &self.names[0], self.mode));
                waiting.acquire(lock, budget, signals).await.map(Guards::from)
            }
            How::All => {
                let all = locks.all(&self.names).with(prepared);
                let acquire = budget.of(all.acquire(), |budget| all.acquire_within(budget));
                waiting.awaited(budget, signals, acquire).await
            }
            How::Any => {
                let any = locks.any(&self.names).with(prepared);
                let acquire = budget.of(any.acquire(), |budget| any.acquire_within(budget));
                waiting.awaited(budget, signals, acquire).await.map(Guards::from)
            }
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names.iter().map(LockName::as_str).collect();
        f.write_str(&names.join(if self.how == How::Any { " or " } else { ", " }))
    }
}

/// The lock that was named, in the mode in which it is wanted.
fn one(locks: &Locker, name: &LockName, mode: Mode) -> Lock {
    match mode {
        Mode::Exclusive => locks.mutex(name),
        Mode::Shared { limit: None } => locks.rwlock(name).read(),
        Mode::Shared { limit: Some(slots) } => locks.semaphore(name, slots.get()),
    }
}

fn mode(args: &Run) -> Mode {
    match (args.shared, args.slots) {
        (true, _) => Mode::READ,
        (false, Some(slots)) => Mode::Shared { limit: NonZeroU32::new(slots) },
        (false, None) => Mode::Exclusive,
    }
}

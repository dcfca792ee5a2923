//! `run --every`: a command that runs once per interval, on one of many hosts.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};
use nix::sys::signal::Signal;
use tenure::{
    AcquireError, HoldError, Label, Lease, Lock, LockName, Locker, Loss, Lost, MemoError,
    backend::{Host, Moment, TokioHost},
    once::{LastRun, RunOnce, Turn},
};

use crate::{
    args::{Global, Run},
    calendar::{Period, zone_of_host},
    exit::{self, Stop},
    processes,
    signals::Signals,
    text,
    waiting::{Question, pause},
};

/// The interval of a run, or its calendar.
pub(crate) struct Every<'a> {
    global: &'a Global,
    once: RunOnce,
    calendar: Option<(Period, TimeZone)>,
    name: LockName,
    interval: Duration,
    /// How often it runs, for people.
    often: String,
    even_if_failed: bool,
    skip_exit_code: u8,
}

impl<'a> Every<'a> {
    /// `None` if the command has no interval. Takes the name of its lock, and the function that applies the
    /// settings of that lock.
    ///
    /// # Errors
    /// The time zone of this host cannot be read.
    pub(crate) fn of(
        global: &'a Global,
        locks: &Locker,
        args: &Run,
        (name, set): (&LockName, impl Fn(Lock) -> Lock),
    ) -> Result<Option<Self>, Stop> {
        let calendar = match args.once_per {
            Some(per) => Some((per, args.tz.clone().map_or_else(zone_of_host, Ok)?)),
            None => None,
        };
        let Some(every) = calendar.as_ref().map(|(per, _)| per.longest()).or(args.every) else {
            return Ok(None);
        };
        let often = match &calendar {
            Some((per, zone)) => format!("per {per} of {}", zone.iana_name().unwrap_or("this host's clock")),
            None => format!("in {}", text::seconds(every)),
        };
        let name = name.clone();
        let once = locks.once(&name).interval(every).with(set);
        Ok(Some(Self {
            global,
            once,
            calendar,
            name,
            interval: every,
            often,
            even_if_failed: args.even_if_failed,
            skip_exit_code: args.skip_exit_code,
        }))
    }

    /// The exit code if the job is not due, before any wait. If the store fails now, a later step waits for it.
    pub(crate) async fn skip_early(&self, signals: &mut Signals) -> Result<Option<u8>, Stop> {
        match self.turn(signals, false).await? {
            Err(HoldError::Acquire(AcquireError::Store(error))) if error.kind().is_transient() => Ok(None),
            Err(error) => Err(stop(&error).of(&self.name)),
            Ok(turn) => Ok(turn.err().map(|last| self.skip(&last))),
        }
    }

    /// Completes when a wait without a limit must end: another process of this host with the same command line is ahead in
    /// the queue, or the interval has passed. Otherwise a scheduler starts more and more processes behind a job that hangs.
    pub(crate) async fn waited_enough(&self, locks: &Locker, ours: &Label, conflict: u8) -> Stop {
        let is_here = |label: &&Label| (&label.host, &label.command) == (&ours.host, &ours.command);
        let is_same =
            |label: &&Label| is_here(label) && (label.pid == ours.pid || processes::is_our_twin(label.pid));
        let (began, limit) = (TokioHost.now(), self.interval.max(SHORTEST_WAIT));
        let mut rest = FIRST_POLL;
        loop {
            let left = limit.saturating_sub(began.elapsed(TokioHost.now()));
            pause(rest.min(left)).await;
            rest = LAST_POLL.min(rest * 2);
            if began.elapsed(TokioHost.now()) >= limit {
                return self.over(locks, limit, conflict).await;
            }
            let Ok(view) = locks.inspect(&self.name).await else { continue };
            match view.queue.iter().filter_map(|waiter| waiter.label.as_ref()).find(is_same) {
                Some(first) if first.pid == ours.pid => rest = limit,
                Some(_) if self.global.quiet => return Stop::new(self.skip_exit_code, ""),
                Some(Label { pid, .. }) => {
                    let line = format!("{}: skipped: pid {pid} of this host waits for it already", self.name);
                    return Stop::new(self.skip_exit_code, line);
                }
                None => {}
            }
        }
    }

    async fn over(&self, locks: &Locker, limit: Duration, conflict: u8) -> Stop {
        if self.global.quiet {
            return Stop::new(conflict, "");
        }
        let view = locks.inspect(&self.name).await.ok();
        let holder = view.as_ref().and_then(|view| view.holders.first());
        let holder = holder.map_or_else(String::new, |holder| format!(": held by {}", text::holder(holder)));
        let waited = text::seconds(limit);
        Stop::new(conflict, format!("{}: not acquired within its interval, {waited}{holder}", self.name))
    }

    /// The same under the lock, because another host may have run it during the wait. Returns the turn, which `count` needs.
    pub(crate) async fn skip_now(&self, signals: &mut Signals) -> Result<Result<Turn, u8>, Stop> {
        let turn = self.turn(signals, true).await?.map_err(|error| stop(&error).of(&self.name))?;
        if let Some(ahead) = turn.as_ref().ok().and_then(Turn::ahead).filter(|_| !self.global.quiet) {
            exit::warn(&format!(
                "{}: the last run does not count: its slot begins in {} by the clocks of the store and of this host, so that of \
                 its host was wrong",
                self.name,
                text::seconds(ahead)
            ));
        }
        Ok(turn.map_err(|last| self.skip(&last)))
    }

    async fn turn(
        &self,
        signals: &mut Signals,
        is_held: bool,
    ) -> Result<Result<Result<Turn, LastRun>, HoldError>, Stop> {
        let once = match &self.calendar {
            Some((per, zone)) => {
                let (began, before) = per.slots(zone, Timestamp::now());
                self.once.clone().slot(began, before)
            }
            None => self.once.clone(),
        };
        let question = self.question("looking for the last run");
        let turn = async { if is_held { once.turn_held().await } else { once.turn().await } };
        question.awaited(signals.asked_to_end(), turn).await.map_err(Stop::signalled)
    }

    fn question(&self, what: &str) -> Question<'a> {
        Question::new(self.global, what).about(&self.name)
    }

    fn skip(&self, LastRun { by, ago, .. }: &LastRun) -> u8 {
        if !self.global.quiet {
            let line = format!(
                "{}: skipped: {by} ran it {}; it runs once {}",
                self.name,
                text::ago(*ago),
                self.often
            );
            exit::warn(&exit::ending(&line, self.skip_exit_code));
        }
        self.skip_exit_code
    }

    /// Before the command starts: with `--even-if-failed` the run counts from now on.
    ///
    /// # Errors
    /// The run could not be counted, so the command must not start.
    pub(crate) async fn starts(&self, lease: &Lease, turn: Turn, signals: &mut Signals) -> Result<(), Stop> {
        if !self.even_if_failed {
            return Ok(());
        }
        let counted = self.count(lease, (turn, Duration::ZERO), signals.asked_to_end()).await;
        counted.map_err(Stop::signalled)?.map_err(|error| stop(&error).of(&self.name))
    }

    /// The command has ended with this code: a success counts, from its start.
    ///
    /// # Errors
    /// The store reports that the lease is gone: the run does not count.
    pub(crate) async fn ended(
        &self,
        lease: &Lease,
        (code, turn, started): (u8, Turn, Moment),
        signals: &mut Signals,
    ) -> Result<(), Lost> {
        if code != 0 || self.even_if_failed {
            return Ok(());
        }
        let why = match self.count(lease, (turn, started.elapsed(TokioHost.now())), signals.insisted()).await
        {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(HoldError::NotCounted(MemoError::Lost(lost)))) if lost.cause() == Loss::Taken => {
                return Err(lost);
            }
            Ok(Err(error)) => exit::chain(&error),
            Err(_) => "a signal ended the wait for the store to count the run: it may run again within its \
                       interval"
                .to_owned(),
        };
        exit::warn(&format!("{}: {why}", self.name));
        Ok(())
    }

    async fn count(
        &self,
        lease: &Lease,
        (turn, began): (Turn, Duration),
        signal: impl Future<Output = Signal>,
    ) -> Result<Result<(), HoldError>, Signal> {
        self.question("counting the run").awaited(signal, self.once.count(lease, turn, began)).await
    }
}

/// The shortest wait without `--wait`: as long as the store may fail in a row. A restart of the store must not cost a run.
const SHORTEST_WAIT: Duration = Duration::from_secs(30);

/// The pause before the first check of the queue for another waiter of this host, which a run that is granted immediately
/// never makes; and the longest pause.
const FIRST_POLL: Duration = Duration::from_millis(100);
const LAST_POLL: Duration = Duration::from_secs(30);

fn stop(error: &HoldError) -> Stop {
    match error {
        HoldError::Acquire(error) => Stop::not_acquired(error, exit::CONFLICT, String::new),
        other => Stop::new(exit::UNAVAILABLE, exit::chain(other)),
    }
}

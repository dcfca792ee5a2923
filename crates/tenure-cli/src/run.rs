//! A command under a lock, for `run`, `lead` and `attach`: the locks, the wait for them, and the command from its
//! start to its end. The command ends early enough to be gone before its lease.

use std::{cell::Cell, ffi::OsString, fmt, future::pending, thread, time::Duration};

use nix::sys::signal::Signal;
use tenure::{
    Guards, Label, Lease, Lock, LockName, Locker, Loss, Lost, Priority,
    backend::{EndOfGrant, Host, Moment, Promises, Timing, TokioHost},
    election::Term,
    once::Turn,
    view::{Mode, WaiterView},
};

use crate::{
    args::{Attach, DeathArgs, FreeAtDeath, Global, Hold, HoldArgs, Lead, Run, name},
    child::{Child, ChildChange, Under},
    every::Every,
    exit::{self, Stop},
    health::Health,
    hold, lines,
    nested::{self, Nesting},
    processes::{self, Scope},
    release::{Release, left_to_ttl},
    signals::Signals,
    store,
    supervisor::Supervisor,
    text,
    waiting::{BRIEF_PATIENCE, Budget, LEAVE_PATIENCE, LONG, LockWait, Question, drained, pause},
    watcher::Deadline,
    worker::{self, Held, Message},
};

pub(crate) async fn run(global: &Global, mut args: Run) -> Result<u8, Stop> {
    Task::from(&args).check()?;
    let wanted = LockNames::of(&mut args, std::env::args_os())?;
    let task = Task::from(&args);
    let mut started = Started::new(global, &task, wanted).await?.every(&args)?;
    started.refuse_nested().await?;
    if let Some(code) = started.skip_early().await? {
        return Ok(code);
    }
    let budget = Budget::new(if args.nonblock { Some(Duration::ZERO) } else { args.wait });
    let guards = started.acquire(budget, args.conflict_exit_code).await?;
    match started.run(guards, async |_| Ok(())).await? {
        CommandEnd::Ended(code) => Ok(code),
        CommandEnd::Lost(line) => Err(task.lost(line)),
    }
}

/// The run of a [`hold`](crate::hold): its command stands for the script.
pub(crate) async fn hold(global: &Global, args: &Hold) -> Result<u8, Stop> {
    let task = Task::from(args);
    task.check()?;
    let wanted = LockNames { names: vec![args.name.clone()], how: How::One, mode: args.mode.mode()? };
    let mut started = Started::new(global, &task, wanted).await?;
    started.refuse_nested().await?;
    let budget = Budget::new(if args.nonblock { Some(Duration::ZERO) } else { args.wait });
    let acquired = tokio::select! {
        biased;
        guards = started.acquire(budget, args.conflict_exit_code) => Some(guards?),
        () = hold::guard_has_ended() => None,
    };
    let Some(guards) = acquired else {
        drained(&started.locks, LEAVE_PATIENCE, pending()).await;
        return Err(Stop::new(exit::INTERNAL, ""));
    };
    match started.run(guards, async |_| Ok(())).await? {
        CommandEnd::Ended(code) => Ok(code),
        CommandEnd::Lost(line) => Err(task.lost(line)),
    }
}

/// Campaigns, runs the command while it leads, and campaigns again after a loss. Ends when the command ends by
/// itself, and when a signal asks it to end.
pub(crate) async fn lead(global: &Global, args: Lead) -> Result<u8, Stop> {
    let task = Task::from(&args);
    task.check()?;
    let mut started = Started::new(global, &task, LockNames::only(args.name)).await?;
    started.refuse_nested().await?;
    let election = started.locks.election(started.wanted.name());
    let (name, supervisor) = (started.wanted.name().to_string(), Supervisor);
    supervisor.is_ready(&format!("campaigning for {name}"));
    loop {
        let guards = started.acquire(Budget::PATIENT, exit::CONFLICT).await?;
        let term = election.term(started.wanted.first(&guards));
        supervisor.status(&format!("leading {name}, token {}", started.wanted.first(&guards).token()));
        term.announce().await;
        let proclaimed = async |signals: &mut Signals| match &args.proclaim {
            Some(text) => proclaim(global, &term, text, signals).await,
            None => Ok(()),
        };
        match started.run(guards, proclaimed).await? {
            CommandEnd::Ended(code) => return Ok(code),
            CommandEnd::Lost(line) if started.signals.is_asked() => return Err(task.lost(line)),
            CommandEnd::Lost(line) => {
                supervisor.status(&format!("campaigning again; {line}"));
                if !global.quiet {
                    exit::warn(&format!("{line}. Campaigning again"));
                }
            }
        }
    }
}

/// A leader that cannot publish its text leads anyway.
async fn proclaim(global: &Global, term: &Term, text: &str, signals: &mut Signals) -> Result<(), Stop> {
    let question = Question::new(global, "proclaiming").about(term.name());
    let proclaimed = question.awaited(signals.asked_to_end(), term.proclaim(text)).await;
    if let Err(error) = proclaimed.map_err(Stop::signalled)? {
        exit::warn(&format!("{}: {}", term.name(), exit::chain(&error)));
    }
    Ok(())
}

/// Locks and a command, checked and ready to wait for the locks and to run the command.
pub(crate) struct Started<'a> {
    global: &'a Global,
    task: &'a Task,
    locks: Locker,
    wanted: LockNames,
    every: Option<Every<'a>>,
    /// Those of the ttl that was asked for.
    stopping: Stopping,
    /// How long it took to acquire the locks.
    waited: Duration,
    signals: Signals,
}

impl<'a> Started<'a> {
    pub(crate) async fn new(global: &'a Global, task: &'a Task, wanted: LockNames) -> Result<Self, Stop> {
        Scope::check(global.quiet)?;
        let locks = store::connect(global).await?;
        let stopping = task.accepted_by(&locks.promises())?;
        let (every, waited, signals) = (None, Duration::ZERO, Signals::listen_for_command()?);
        Ok(Self { global, task, locks, wanted, every, stopping, waited, signals })
    }

    /// Refuses locks that the runs around this one hold.
    async fn refuse_nested(&mut self) -> Result<(), Stop> {
        self.wanted.refuse_nested(self.global, &self.locks, &mut self.signals).await
    }

    /// A lock with the settings of the task.
    pub(crate) fn set(&self, lock: Lock) -> Lock {
        self.task.set(lock, self.stopping)
    }

    /// The same with an interval, if one was named.
    fn every(self, args: &Run) -> Result<Self, Stop> {
        let every = Every::of(self.global, &self.locks, args, (self.wanted.name(), |lock| self.set(lock)))?;
        Ok(Self { every, ..self })
    }

    pub(crate) fn locks(&self) -> &Locker {
        &self.locks
    }

    pub(crate) fn signals(&mut self) -> &mut Signals {
        &mut self.signals
    }

    /// The exit code if a command with an interval is not due.
    async fn skip_early(&mut self) -> Result<Option<u8>, Stop> {
        match &self.every {
            Some(every) => every.skip_early(&mut self.signals).await,
            None => Ok(None),
        }
    }

    /// Waits for the locks.
    async fn acquire(&mut self, budget: Budget, conflict: u8) -> Result<Guards, Stop> {
        let began = TokioHost.now();
        let Self { global, task, locks, wanted, stopping, signals, .. } = self;
        let waiting = LockWait::new(global, locks, &*wanted, conflict).of_all(wanted.is_all());
        let waiting = waiting.skipping_with(task.skip_exit_code);
        // `--wait` and `-n` have their own end.
        let every = self.every.as_ref().filter(|_| budget.limit.is_none());
        let waited_enough = async {
            match every {
                Some(every) => every.waited_enough(locks, &task.label(), conflict).await,
                None => pending().await,
            }
        };
        let set = |lock| task.set(lock, *stopping);
        let guards = tokio::select! {
            biased;
            guards = wanted.acquire(locks, (&waiting, budget), set, signals) => guards?,
            stop = waited_enough => {
                drained(locks, LEAVE_PATIENCE, pending()).await;
                return Err(stop);
            }
        };
        self.waited = began.elapsed(TokioHost.now());
        if let Err(stop) = self.may_linger() {
            drop(guards);
            drained(&self.locks, LEAVE_PATIENCE, pending()).await;
            return Err(stop);
        }
        Ok(guards)
    }

    /// Refuses a `--linger` that the store does not grant, before the command starts.
    pub(crate) fn may_linger(&self) -> Result<(), Stop> {
        let (promises, linger) = (self.locks.promises(), self.task.hold.linger);
        match linger.filter(|linger| linger.ttl() > promises.served_ttl) {
            Some(_) => Err(Stop::usage(format!(
                "--linger: this {} grants {} at most as yet",
                promises.backend,
                text::seconds(promises.served_ttl)
            ))
            .of(&self.wanted)),
            None => Ok(()),
        }
    }

    /// Runs the command after `before`, unless it is not due, and releases the locks.
    ///
    /// # Errors
    /// Why it was not started, or that a lease was lost although the command had ended.
    pub(crate) async fn run(
        &mut self,
        guard: Guards,
        before: impl AsyncFnOnce(&mut Signals) -> Result<(), Stop>,
    ) -> Result<CommandEnd, Stop> {
        let since = TokioHost.now();
        let (first, name) = (self.wanted.first(&guard), self.wanted.held(&guard));
        let leases = self.wanted.leases(&guard);
        let ttl = leases.iter().map(Lease::ttl).min().unwrap_or_default();
        let (name, place, quiet) = (name.as_str(), store::place(self.global), self.global.quiet);
        let is_verbose = self.global.verbose > 0 && !quiet;
        let release = Release { locks: &self.locks, name, place, quiet, is_verbose, ttl };
        let (task, waited, every) = (self.task, self.waited, self.every.as_ref());
        let linger = task.hold.linger.map(Timing::ttl);
        worker::tell(&Message::Holds(Some(Held::new(
            guard.iter(),
            ttl,
            linger,
            task.hold.death.frees() && task.is_owner_drawn,
        ))));
        let stopping = Stopping::within(task.hold.grace, ttl);
        let turn = None;
        let mut held = LockedCommand {
            task,
            name,
            stopping,
            guard,
            leases,
            first,
            waited,
            is_verbose,
            release,
            every,
            turn,
            was_asked: Cell::new(false),
        };
        let signals = &mut self.signals;
        let skipped = match before(signals).await {
            Ok(()) => held.may_start(signals).await,
            Err(stop) => Err(stop),
        };
        let ended = match skipped {
            Ok(None) => held.run(signals, since).await,
            Ok(Some(code)) => {
                held.leave(signals).await;
                Ok(CommandEnd::Ended(code))
            }
            Err(stop) => {
                held.leave(signals).await;
                Err(stop)
            }
        };
        worker::tell(&Message::Holds(None));
        ended
    }
}

/// The names of the locks, as they were written.
pub(crate) struct LockNames {
    names: Vec<LockName>,
    how: How,
    /// The mode of one lock; several are mutexes.
    mode: Mode,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    One,
    All,
    Any,
}

impl LockNames {
    /// The names in the arguments. With `--any` there is no NAME, and the argument in its place begins the command;
    /// `written` is the whole command line.
    fn of(args: &mut Run, written: impl Iterator<Item = OsString>) -> Result<Self, Stop> {
        let mode = args.mode.mode()?;
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
    fn name(&self) -> &LockName {
        &self.names[0]
    }

    /// This mutex alone.
    pub(crate) fn only(name: LockName) -> Self {
        Self { names: vec![name], how: How::One, mode: Mode::Exclusive }
    }

    /// The lock that `TENURE_LOCK` names, of those that are held.
    fn first(&self, held: &Guards) -> Lease {
        let first = match self.how {
            How::All => held.get(&self.names[0]),
            // Where a semaphore is built from mutexes, the mutex of the slot has its own name.
            How::One | How::Any => held.iter().next(),
        };
        first.expect("BUG: something is held").clone()
    }

    /// The held locks that the user named. `attach` holds one more.
    fn leases(&self, held: &Guards) -> Vec<Lease> {
        match self.how {
            How::All => held.iter().cloned().collect(),
            How::One | How::Any => vec![self.first(held)],
        }
    }

    /// True if it waits for all of them instead of one.
    fn is_all(&self) -> bool {
        self.how == How::All
    }

    /// Refuses locks that the runs around this one hold, and keep while it waits.
    async fn refuse_nested(
        &self,
        global: &Global,
        locks: &Locker,
        signals: &mut Signals,
    ) -> Result<(), Stop> {
        let mut refused = Ok(());
        for name in &self.names {
            let asked = nested::nesting(global, locks, (name, self.mode), signals.asked_to_end()).await?;
            match (self.how, asked) {
                // One possible lock is enough.
                (How::Any, Nesting::Fits) | (_, Nesting::Unanswered) => return Ok(()),
                (How::Any, Nesting::Never(stop)) => refused = Err(stop),
                (How::All | How::One, Nesting::Never(stop)) => return Err(stop),
                (How::All | How::One, Nesting::Fits) => {}
            }
        }
        refused
    }

    /// The held locks, for messages.
    fn held(&self, held: &Guards) -> String {
        match self.how {
            How::One | How::All => self.to_string(),
            How::Any => self.first(held).name().to_string(),
        }
    }

    /// Waits until the lock or locks are held. `set` applies the settings of each lock.
    async fn acquire(
        &self,
        locks: &Locker,
        (waiting, budget): (&LockWait<'_>, Budget),
        set: impl Fn(Lock) -> Lock,
        signals: &mut Signals,
    ) -> Result<Guards, Stop> {
        let prepared = |lock| waiting.prepared(set(lock), budget);
        match self.how {
            How::One => {
                let lock = set(one(locks, &self.names[0], self.mode));
                waiting.acquire(lock, budget, signals).await.map(Guards::from)
            }
            How::All => {
                let all = locks.all(&self.names).with(prepared);
                let acquire = budget.of(all.acquire(), |budget| all.within(budget).acquire());
                waiting.awaited(budget, signals, acquire).await
            }
            How::Any => {
                let any = locks.any(&self.names).with(prepared);
                let acquire = budget.of(any.acquire(), |budget| any.within(budget).acquire());
                waiting.awaited(budget, signals, acquire).await.map(Guards::from)
            }
        }
    }
}

impl fmt::Display for LockNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names.iter().map(LockName::as_str).collect();
        f.write_str(&names.join(if self.how == How::Any { " or " } else { ", " }))
    }
}

/// The named lock, in the wanted mode.
pub(crate) fn one(locks: &Locker, name: &LockName, mode: Mode) -> Lock {
    match mode {
        Mode::Exclusive => locks.mutex(name),
        Mode::Shared { limit: None, .. } => locks.rwlock(name).read(),
        Mode::Shared { limit: Some(slots), permits } => {
            locks.semaphore(name, slots.get()).take(permits.get())
        }
    }
}

/// A command that runs, or is about to, under its locks.
struct LockedCommand<'a> {
    task: &'a Task,
    /// The name of the lock or locks, for messages.
    name: &'a str,
    stopping: Stopping,
    guard: Guards,
    /// The locks that the user named.
    leases: Vec<Lease>,
    /// The lock that was named first.
    first: Lease,
    /// How long it took to acquire them.
    waited: Duration,
    is_verbose: bool,
    release: Release<'a>,
    every: Option<&'a Every<'a>>,
    /// What counting its run needs to know, if it has an interval.
    turn: Option<Turn>,
    /// A newer run has asked it to stop.
    was_asked: Cell<bool>,
}

impl LockedCommand<'_> {
    /// The exit code if the command is not to run after all.
    async fn may_start(&mut self, signals: &mut Signals) -> Result<Option<u8>, Stop> {
        let Some(every) = self.every else { return Ok(None) };
        match every.skip_now(signals).await? {
            Ok(turn) => {
                every.starts(&self.first, turn, signals).await?;
                self.turn = Some(turn);
                Ok(None)
            }
            Err(code) => Ok(Some(code)),
        }
    }

    /// Releases the locks. Returns the loss if the store reports that a lease was gone.
    async fn leave(self, signals: &mut Signals) -> Option<String> {
        let is_capped = self.guard.check().is_err_and(|lost| lost.cause() == Loss::MaxHold);
        let left = if is_capped { self.release.ttl } else { self.guard.remaining() };
        self.release.awaited(self.guard, left, signals).await
    }

    async fn run(self, signals: &mut Signals, since: Moment) -> Result<CommandEnd, Stop> {
        signals.listen_to_stop();
        // The process may have been stopped since the grant: nothing is started that would have to be killed
        // immediately.
        if let Err(lost) = self.guard.check() {
            let line = format!("{}: {lost}. Started nothing", self.lost_name());
            self.release.in_passing(self.guard).await;
            return Ok(CommandEnd::Lost(line));
        }
        let argv = self.task.argv(self.stopping);
        let under = Under { leases: &self.leases, first: &self.first };
        let mut child = match Child::start(&argv, &under, self.stopping.deadline(&self.guard)) {
            Ok(child) => child,
            Err(error) => {
                let name = self.name;
                self.leave(signals).await;
                return Err(Stop::internal(format!("{name}: cannot start the command: {error}")));
            }
        };
        let started = TokioHost.now();
        self.say_acquired();
        let no_unwinding = NoUnwinding;
        let ended = self.attend(&mut child, signals, since).await;
        let daemons = if ended.is_err() { child.daemons() } else { Vec::new() };
        let sees_all = child.sees_all();
        // A stand-in that was killed or has failed tells nothing of its script (L1).
        let is_unproven = self.task.script.is_some() && child.code() != Some(0);
        child.bury(ended.is_err());
        drop(no_unwinding);
        let hold = &self.task.hold;
        if signals.is_orphaned() && !self.release.quiet {
            exit::warn(&format!(
                "{}: the outer process of tenure was killed; stopped the command",
                self.name
            ));
        }
        match ended {
            // What it left in other sessions may still work.
            Ok(code)
                if is_unproven
                    || signals.is_orphaned()
                        && hold.linger.is_none()
                        && !(hold.death.frees() && sees_all && all_have_ended().await) =>
            {
                left_to_ttl(self.guard).await;
                Ok(CommandEnd::Ended(code))
            }
            Ok(code) => self.finish((code, started), since, signals).await,
            Err(Over { why, advice, is_planned }) => {
                let name = self.lost_name();
                let line = match is_planned {
                    true => format!("{name}: stopped the command: {why}{}", still_running(&daemons)),
                    false => format!("{name}: {why}. Stopped the command{}{advice}", still_running(&daemons)),
                };
                self.say_how_it_went(since);
                if let Some(linger) = self.task.hold.linger {
                    self.release.lingering(self.guard, linger.ttl(), signals).await;
                } else if is_unproven || !daemons.is_empty() {
                    // They still run, or may, so only the ttl ends the lease.
                    left_to_ttl(self.guard).await;
                } else if is_planned {
                    // Validity ends with it; the lease on the store lasts longer.
                    let left = self.release.ttl;
                    self.release.awaited(self.guard, left, signals).await;
                } else {
                    self.release.in_passing(self.guard).await;
                }
                Ok(CommandEnd::Lost(line))
            }
        }
    }

    /// The command has ended with this code, and the lock was valid until then: the remaining work under it, and
    /// the release.
    ///
    /// # Errors
    /// The store reports that the lease is gone anyway. That may have happened while the command ran.
    async fn finish(
        self,
        (code, started): (u8, Moment),
        since: Moment,
        signals: &mut Signals,
    ) -> Result<CommandEnd, Stop> {
        // What a second signal has killed is not waited for, but the store is for a moment.
        let patience = if signals.is_insisted() { LEAVE_PATIENCE } else { BRIEF_PATIENCE };
        let counted = match self.every.zip(self.turn) {
            Some((every, turn)) => every.ended(&self.first, (code, turn, started), signals).await,
            None => Ok(()),
        };
        // A store for which the user ended a wait is not waited for again.
        let is_silent = signals.is_insisted();
        let stayed = match counted {
            Ok(()) if is_silent => self.kept(false),
            Ok(()) => self.stay(since, signals).await,
            Err(lost) => Err(lost),
        };
        self.say_how_it_went(since);
        let task = self.task;
        // By a signal, after one that asked it to end, or what it had left was killed with the front.
        let is_bad = signals.is_orphaned()
            || code >= exit::SIGNAL
            || code != 0 && (signals.is_asked() || signals.was_passed_on() || self.was_asked.get());
        let lost = match (stayed, task.hold.linger.filter(|_| is_bad)) {
            (Ok(()), Some(linger)) => {
                self.release.lingering(self.guard, linger.ttl(), signals).await;
                None
            }
            (Ok(()), None) if is_silent => self.release.awaited(self.guard, patience, signals).await,
            (Ok(()), None) => self.leave(signals).await,
            (Err(lost), _) => {
                let line = format!("{}: {lost}", self.lost_name());
                self.release.in_passing(self.guard).await;
                Some(line)
            }
        };
        match lost {
            Some(line) => {
                Err(task.lost(format!("{line}. The command had ended by itself, with code {code}")))
            }
            None => Ok(CommandEnd::Ended(code)),
        }
    }

    /// What is held, for `-v`.
    fn say_acquired(&self) {
        if self.is_verbose {
            let (token, ttl) = (self.first.token(), text::seconds(self.release.ttl));
            let waited = text::seconds(self.waited);
            exit::warn(&format!("{}: acquired after {waited}: token {token}, ttl {ttl}", self.name));
        }
    }

    /// A newer run asks this one to stop.
    fn say_asked(&self, newer: &WaiterView) {
        if !self.release.quiet {
            exit::warn(&format!("{}: {} asks it to stop: sent TERM", self.name, newer.who()));
        }
    }

    /// What to choose a ttl by, for `-v`.
    fn say_how_it_went(&self, since: Moment) {
        if !self.is_verbose {
            return;
        }
        let all = self.guard.iter().map(Lease::renewals);
        let (mut succeeded, mut failed, mut slowest) = (0, 0, Duration::ZERO);
        for one in all {
            (succeeded, failed) = (succeeded + one.succeeded, failed + one.failed);
            slowest = slowest.max(one.slowest);
        }
        let (waited, held) = (text::seconds(self.waited), text::seconds(since.elapsed(TokioHost.now())));
        let slowest =
            if succeeded > 0 { format!(", the slowest {}", text::brief(slowest)) } else { String::new() };
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        let ttl = text::seconds(self.release.ttl);
        let renewed = format!("{succeeded} renewals{slowest}{failed}");
        exit::warn(&format!("{}: waited {waited}, held {held}, {renewed}; the ttl is {ttl}", self.name));
    }

    /// The name of the lost lock, if it is one of several.
    fn lost_name(&self) -> String {
        let lost = self.guard.iter().find(|lease| lease.check().is_err());
        let lost = lost.or_else(|| self.guard.iter().find(|lease| lease.is_renewal_failing()));
        lost.filter(|lease| lease.name().as_str() != self.name)
            .map_or_else(|| self.name.to_owned(), |lease| format!("{} (of {})", lease.name(), self.name))
    }

    /// Waits until the command has ended by itself, or because the lease has ended.
    async fn attend(&self, child: &mut Child, signals: &mut Signals, since: Moment) -> Result<u8, Over> {
        // When the command ended, until a line names the processes that it left.
        let mut over = None;
        let mut is_said = self.release.quiet;
        let mut health = self.task.health.as_ref().map(|(line, every)| Health::new(line, *every));
        let asked = async {
            match self.task.newest {
                Some(Newest::Replaces) => self.first.asked_to_stop().await,
                _ => pending().await,
            }
        };
        tokio::pin!(asked);
        let mut is_asked = false;
        loop {
            let change = child.poll();
            if child.mind(self.stopping.deadline(&self.guard)) {
                let slept =
                    || "tenure was suspended, and its watcher process ended the command in time".to_owned();
                let why = self.guard.check().map_or_else(|lost| lost.to_string(), |()| slept());
                self.kill_at(TokioHost.now(), child).await;
                return Err(Over::lost(why));
            }
            match change {
                ChildChange::Ended(code) => {
                    if let Err(lost) = self.guard.check() {
                        self.kill_at(TokioHost.now(), child).await;
                        return Err(Over::lost(lost));
                    }
                    // Processes that it left in its group still work under the lock.
                    if child.is_gone() {
                        return Ok(code);
                    }
                    let now = TokioHost.now();
                    let since = *over.get_or_insert(now);
                    if !is_said && since.elapsed(now) >= LONG {
                        is_said = true;
                        let (name, left) = (self.name, child.left());
                        exit::warn(&format!(
                            "{name}: the command has ended with code {code}; the lock is held until what it left has ended: \
                             {left}"
                        ));
                    }
                }
                ChildChange::Suspended(why) => child.suspend_with(why, &self.guard),
                ChildChange::None => {
                    if let Some(why) = health.as_mut().and_then(|health| health.failed(child)) {
                        self.kill_at(steady(TokioHost.now() + self.stopping.grace), child).await;
                        return Err(Over { why, advice: "", is_planned: true });
                    }
                    // The limit of the lease has the margin of the ttl that was asked for; a shorter one may have been granted.
                    let limit = self.task.hold.max_hold;
                    if limit.is_some_and(|limit| since.elapsed(TokioHost.now()) >= limit) {
                        self.kill_at(steady(TokioHost.now() + self.stopping.grace), child).await;
                        return Err(self.max_hold_reached());
                    }
                }
            }
            // A TERM to each process of a service is for the script, and the lock lasts until that has ended.
            let is_deaf = self.task.script.is_some() && !signals.is_orphaned();
            // At each check, because a process may have started another one. The lock stays held until all have ended.
            if signals.is_insisted() && !is_deaf {
                child.kill();
            }
            tokio::select! {
                biased;
                ending = self.guard.expires_within(self.stopping.margin()) => {
                    return Err(self.stop(child, ending).await);
                }
                signal = signals.next(over.is_some()) => if let Some(signal) = signal.filter(|_| !signals.is_insisted() && !is_deaf) {
                    child.signal(signal);
                },
                newer = &mut asked, if !is_asked => {
                    is_asked = true;
                    if let Ok(newer) = newer {
                        child.signal(Signal::SIGTERM as i32);
                        self.was_asked.set(true);
                        self.say_asked(&newer);
                    }
                }
                // Nobody tells us of a renewal, nor when the last of a group has gone.
                () = pause(self.stopping.poll) => {}
            }
        }
    }

    /// Stops the command early enough that it is gone before another client can be granted the lock. Returns the
    /// reason.
    async fn stop(&self, child: &mut Child, ending: Result<(), Lost>) -> Over {
        let now = TokioHost.now();
        let (kill_at, over) = match ending {
            // Broken, or forgotten by the store: the grace only lets the command clean up.
            Err(lost) if lost.cause() == Loss::Taken => (steady(now + self.stopping.grace), Over::lost(lost)),
            // Too late already, as after a suspend of the machine.
            Err(lost) if lost.cause() == Loss::Expired => (now, self.why_expired()),
            Err(lost) => (now, Over::lost(lost)),
            Ok(()) => {
                let left = self.guard.remaining().saturating_sub(self.stopping.slack);
                let (kill_at, over) = (now + left.min(self.stopping.grace), self.why_now());
                (if over.is_planned { steady(kill_at) } else { kill_at }, over)
            }
        };
        self.kill_at(kill_at, child).await;
        over
    }

    /// No renewal succeeded: for how long, and the last error.
    fn why_expired(&self) -> Over {
        let silent = self.release.ttl.saturating_sub(self.guard.remaining());
        let failure = self.guard.iter().find_map(Lease::renewal_error);
        let failure = failure.map_or_else(String::new, |error| format!(": {}", exit::chain(&error)));
        let for_how_long = text::seconds(silent);
        let why = format!("the lease was lost: no renewal succeeded for {for_how_long}{failure}");
        Over { why, advice: ". Check the store: tenure doctor", is_planned: false }
    }

    async fn kill_at(&self, kill_at: Moment, child: &mut Child) {
        child.stop(kill_at, Deadline::new(None, kill_at + self.stopping.slack / 2)).await;
    }

    fn why_now(&self) -> Over {
        if self.guard.is_renewal_failing() || self.task.hold.max_hold.is_none() {
            self.why_expired()
        } else {
            self.max_hold_reached()
        }
    }

    fn max_hold_reached(&self) -> Over {
        let max_hold = humantime::format_duration(self.task.hold.max_hold.unwrap_or_default());
        Over { why: format!("--max-hold {max_hold} reached"), advice: "", is_planned: true }
    }

    /// `--min-hold`, unless a second signal ends it.
    ///
    /// # Errors
    /// The lease was lost during that time, or the loss was detected only now.
    async fn stay(&self, since: Moment, signals: &mut Signals) -> Result<(), Lost> {
        // By the clock that does not step: this is a promise to others, not validity.
        let left =
            || self.task.hold.min_hold.unwrap_or_default().saturating_sub(since.elapsed(TokioHost.now()));
        let is_staying = !left().is_zero();
        let ended = async {
            // A first signal that was passed on to the command does not count here: it was meant for the command.
            if !signals.is_asked() {
                signals.asked_to_end().await;
            }
            if left() >= LONG && !self.release.quiet {
                let left = text::seconds(left());
                exit::warn(&format!(
                    "{}: held for another {left} by --min-hold; a second signal ends the hold",
                    self.name
                ));
            }
            signals.insisted().await
        };
        tokio::select! {
            biased;
            () = pause(left()) => {}
            _ = self.guard.lost() => {}
            _ = ended => {}
        }
        self.kept(is_staying)
    }

    /// Whether a lease was lost: as the store reports, or before the end of `--min-hold`.
    fn kept(&self, is_staying: bool) -> Result<(), Lost> {
        match self.guard.check().map_err(|lost| (lost.cause(), lost)) {
            Err((Loss::Taken, lost)) => Err(lost),
            Err((Loss::Expired, lost)) if is_staying => Err(lost),
            _ => Ok(()),
        }
    }
}

/// How a command under a lock came to its end.
pub(crate) enum CommandEnd {
    /// By itself, with this code.
    Ended(u8),
    /// It was stopped, or not started, because the lease has ended: the reason, for messages.
    Lost(String),
}

/// The command was stopped because the lease has ended, or is about to.
struct Over {
    why: String,
    /// What to do.
    advice: &'static str,
    /// By `--max-hold` or `--health`, and nothing is wrong with the lease or the store.
    is_planned: bool,
}

impl Over {
    fn lost(why: impl ToString) -> Self {
        Self { why: why.to_string(), advice: "", is_planned: false }
    }
}

/// Ends this process at a panic, because an unwinding would release the locks beside the command. The front or the ttl frees
/// them after the command.
struct NoUnwinding;

impl Drop for NoUnwinding {
    fn drop(&mut self) {
        if thread::panicking() {
            lines::flush(LEAVING);
            std::process::exit(exit::INTERNAL.into());
        }
    }
}

/// Whether nothing that the command left runs any more, in whatever session, after it was killed: the system itself knows.
async fn all_have_ended() -> bool {
    let began = TokioHost.now();
    while !processes::all_are_reaped() {
        // OK to give up, because the ttl decides then.
        if began.elapsed(TokioHost.now()) >= LEAVING {
            return false;
        }
        pause(POLL).await;
    }
    true
}

/// The same moment for a wait that a step of the wall clock must not shorten: not for validity.
fn steady(moment: Moment) -> Moment {
    Moment { wall: Duration::MAX, ..moment }
}

/// The end of the message if there are daemons, which are not stopped.
fn still_running(daemons: &[nix::unistd::Pid]) -> String {
    if daemons.is_empty() {
        return String::new();
    }
    let pids: Vec<String> = daemons.iter().map(ToString::to_string).collect();
    let pids = pids.join(", ");
    format!(
        ". Still running: pid {pids} (started its own session, setsid). It may overlap with the next holder; a lease that \
         is left is not released"
    )
}

/// A command to run under a lease, and its options.
pub(crate) struct Task {
    ttl: Option<Timing>,
    hold: HoldArgs,
    lost_exit_code: u8,
    /// No other lease has had the owner, nor will have it.
    is_owner_drawn: bool,
    /// The process for which it is held.
    script: Option<u32>,
    /// The command is a line for a shell.
    is_line: bool,
    argv: Vec<OsString>,
    /// The line of the health check, and its interval.
    health: Option<(OsString, Duration)>,
    newest: Option<Newest>,
    priority: Priority,
    skip_exit_code: u8,
}

/// A run that gives way to a newer one while it waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Newest {
    Latest,
    /// It also asks the holder to stop, and its command is asked by a newer one.
    Replaces,
}

impl Task {
    /// Checked before the store is opened, which may create a file. A default is never longer than this one.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        if let (Some(min), Some(max)) = (self.hold.min_hold, self.hold.max_hold)
            && min > max
        {
            return Err(Stop::usage(
                "--min-hold is longer than --max-hold: the lock cannot be held for both",
            ));
        }
        Stopping::new(self.hold.grace, self.ttl.unwrap_or_default().ttl()).map(drop)
    }

    /// The durations of a stop with the named ttl or the default one, if the store accepts it.
    fn accepted_by(&self, promises: &Promises) -> Result<Stopping, Stop> {
        let ttl = self.ttl.map_or_else(|| promises.default_ttl(), Timing::ttl);
        let linger = self.hold.linger.map_or(Duration::ZERO, Timing::ttl);
        if !linger.is_zero() && promises.end == EndOfGrant::Session {
            let line =
                format!("--linger: a lease of {} ends with the process that took it", promises.backend);
            return Err(Stop::usage(line));
        }
        if ttl.max(linger) <= promises.max_ttl {
            // While a larger `max_ttl` is rolled out, the default is shorter, and the grace that was named must not be in the way.
            return match self.ttl.is_none() && promises.served_ttl < promises.max_ttl {
                true => Ok(Stopping::within(self.hold.grace, ttl)),
                false => Stopping::new(self.hold.grace, ttl),
            };
        }
        let raise = promises
            .max_ttl_parameter
            .map_or_else(String::new, |p| format!("; raise it with ?{p}= in the URL"));
        let max = text::seconds(promises.max_ttl);
        let flag = if ttl > promises.max_ttl { "--ttl" } else { "--linger" };
        Err(Stop::usage(format!("{flag}: {} accepts {max} at most{raise}", promises.backend)))
    }

    /// The lock under which it runs, with its settings.
    fn set(&self, lock: Lock, stopping: Stopping) -> Lock {
        // The command may go on when this process has ended. The front frees the lock when both have.
        let lock = lock.label(self.label()).free_at_death(false);
        let lock = if let Some(ttl) = self.ttl { lock.ttl(ttl.ttl()) } else { lock };
        let lock = lock.priority(self.priority);
        let lock = match self.newest {
            Some(Newest::Latest) => lock.latest(),
            Some(Newest::Replaces) => lock.replace(),
            None => lock,
        };
        match self.hold.max_hold {
            // The limit of the command; the time to stop it comes on top.
            Some(max_hold) => lock.max_hold(max_hold.saturating_add(stopping.margin())),
            None => lock,
        }
    }

    /// This process and its command, for people.
    fn label(&self) -> Label {
        if let Some(script) = self.script {
            return processes::label_of(script).running(true);
        }
        let ours = tenure::command::this_process();
        let command = self.argv.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        let command = if self.is_line { first_word(&command) } else { &command };
        Label::new(&ours.host, worker::pid().as_raw().unsigned_abs(), &ours.user, command).running(true)
    }

    /// The program and its arguments.
    fn argv(&self, stopping: Stopping) -> Vec<OsString> {
        if self.script.is_some() {
            return hold::stand_in_for(stopping.grace);
        }
        if !self.is_line {
            return self.argv.clone();
        }
        // After `--`, an argument that begins with `-` or `+` is not a flag of the shell.
        let shell = ["sh", "-c", "--"].map(OsString::from);
        shell.into_iter().chain(self.argv.iter().cloned()).collect()
    }

    /// The lease was lost, or `--max-hold` has passed.
    pub(crate) fn lost(&self, line: String) -> Stop {
        Stop::new(self.lost_exit_code, line)
    }
}

impl From<&Run> for Task {
    fn from(args: &Run) -> Self {
        let Run { ttl, hold, lost_exit_code, command, latest, replace, skip_exit_code, .. } = *args;
        let newest = if replace { Some(Newest::Replaces) } else { latest.then_some(Newest::Latest) };
        Self {
            newest,
            priority: args.class.priority,
            skip_exit_code,
            ttl,
            hold,
            lost_exit_code,
            is_owner_drawn: true,
            script: None,
            is_line: command,
            argv: args.argv.clone(),
            health: None,
        }
    }
}

impl From<&Hold> for Task {
    fn from(args: &Hold) -> Self {
        let Hold { ttl, grace, max_hold, script, .. } = *args;
        // The front does not see whether the script has ended.
        let death = DeathArgs { free_at_death: FreeAtDeath::No };
        Self {
            ttl,
            hold: HoldArgs { grace, max_hold, death, ..HoldArgs::default() },
            lost_exit_code: exit::LOST,
            is_owner_drawn: true,
            script,
            is_line: false,
            argv: Vec::new(),
            health: None,
            newest: None,
            priority: args.class.priority,
            skip_exit_code: 0,
        }
    }
}

impl From<&Attach> for Task {
    fn from(args: &Attach) -> Self {
        let Attach { ttl, hold, lost_exit_code, command, .. } = *args;
        Self {
            ttl,
            hold,
            lost_exit_code,
            is_owner_drawn: false,
            script: None,
            is_line: command,
            argv: args.argv.clone(),
            health: None,
            newest: None,
            priority: Priority::Normal,
            skip_exit_code: 0,
        }
    }
}

impl From<&Lead> for Task {
    fn from(args: &Lead) -> Self {
        let Lead { ttl, grace, max_hold, death, command, health_every, .. } = *args;
        let hold = HoldArgs { grace, max_hold, death, ..HoldArgs::default() };
        let health = args.health.clone().map(|line| (line, health_every));
        Self {
            ttl,
            hold,
            lost_exit_code: exit::LOST,
            is_owner_drawn: true,
            script: None,
            is_line: command,
            argv: args.argv.clone(),
            health,
            newest: None,
            priority: Priority::Normal,
            skip_exit_code: 0,
        }
    }
}

/// The program of a shell's command line, if its first word is clearly one: any other text may hold a password.
fn first_word(line: &str) -> &str {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
    line.split_whitespace().next().filter(|word| word.chars().all(is_plain)).unwrap_or("sh")
}

/// The durations of a stop.
#[derive(Clone, Copy)]
struct Stopping {
    /// From TERM to KILL.
    grace: Duration,
    /// From KILL until the group is surely gone.
    slack: Duration,
    /// Between two checks of the command.
    poll: Duration,
}

impl Stopping {
    /// With the grace that the user set, if any.
    ///
    /// # Errors
    /// If the grace is longer than a third of the ttl.
    fn new(grace: Option<Duration>, ttl: Duration) -> Result<Self, Stop> {
        if let Some(grace) = grace.filter(|grace| *grace > ttl / 3) {
            let (grace, most) = (text::seconds(grace), text::seconds(ttl / 3));
            return Err(Stop::usage(format!(
                "--grace {grace} is more than a third of the ttl ({most}); raise --ttl"
            )));
        }
        Ok(Self::within(grace, ttl))
    }

    /// The same with a third of the ttl for a grace that is longer: a lease that was granted may be shorter than the default.
    fn within(grace: Option<Duration>, ttl: Duration) -> Self {
        let grace = grace.unwrap_or_else(|| (ttl / 4).min(Duration::from_secs(5))).min(ttl / 3);
        let slack = (ttl / 20).clamp(Duration::from_millis(20), Duration::from_millis(250));
        Self { grace, slack, poll: POLL.min(ttl / 20) }
    }

    /// Until when the watcher leaves everything to `tenure`: half of the slack longer than `tenure` itself needs.
    fn deadline(self, guard: &Guards) -> Deadline {
        let end = TokioHost.now() + guard.remaining();
        Deadline::new(Some(end.minus(self.grace + self.slack / 2)), end.minus(self.slack / 2))
    }

    /// The validity that must be left when TERM is sent.
    fn margin(self) -> Duration {
        self.grace + self.slack
    }
}

/// The longest time between two checks of the command and between two messages to the watcher process; a twentieth
/// of a short ttl.
const POLL: Duration = Duration::from_millis(50);

/// How long a watcher and a health check may take to end after KILL, and the last lines to be written after a panic.
const LEAVING: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use super::*;

    /// L1: an unwinding dropped the guard, which released the lock while the command ran.
    #[test]
    fn a_panic_beside_a_command_drops_no_guard() {
        const INSIDE: &str = "TENURE_TEST_INSIDE";
        struct Released;
        impl Drop for Released {
            fn drop(&mut self) {
                std::process::exit(0);
            }
        }
        if env::var_os(INSIDE).is_some() {
            let _guard = Released;
            let _no_unwinding = NoUnwinding;
            panic!("as a bug does");
        }
        let test = "run::tests::a_panic_beside_a_command_drops_no_guard";
        let mut inside = Command::new(env::current_exe().unwrap());
        let ended = inside.args(["--exact", test]).env(INSIDE, "").output().unwrap();
        assert_eq!(ended.status.code(), Some(exit::INTERNAL.into()), "{ended:?}");
    }
}

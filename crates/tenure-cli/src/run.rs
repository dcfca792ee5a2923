//! `run`: a command under a lock.

use std::{ffi::OsString, time::Duration};

use tenure::{
    Guards, Host, Label, Lease, Lock, LockName, Locker, Loss, Lost, Moment, Promises, Timing, TokioHost,
};

use crate::{
    args::{Global, Run},
    child::{Change, Child, Under},
    every::Every,
    exit::{Stop, warn},
    messages::Deadline,
    people,
    release::Release,
    signals::Signals,
    spinner::pause,
    store,
    waiting::{Budget, Waiting},
    wanted::{Asking, Wanted},
};

/// The longest time between two looks at the command and two messages to the watcher process; a twentieth of a short
/// ttl.
const LOOK: Duration = Duration::from_millis(50);

/// The durations of a stop.
#[derive(Clone, Copy)]
pub(crate) struct Stopping {
    /// From TERM to KILL.
    grace: Duration,
    /// From KILL until the group is surely gone.
    slack: Duration,
    /// Between two looks at the command.
    look: Duration,
}

impl Stopping {
    pub(crate) fn new(args: &Run, ttl: Duration) -> Result<Self, Stop> {
        let grace = args.grace.unwrap_or_else(|| (ttl / 4).min(Duration::from_secs(5)));
        if grace > ttl / 3 {
            let (grace, most) = (people::seconds(grace), people::seconds(ttl / 3));
            return Err(Stop::usage(format!(
                "--grace {grace} is more than a third of the ttl ({most}); raise --ttl"
            )));
        }
        let slack = (ttl / 20).clamp(Duration::from_millis(20), Duration::from_millis(250));
        Ok(Self { grace, slack, look: LOOK.min(ttl / 20) })
    }

    /// Until when the watcher leaves everything to us: for half of the slack longer than we need ourselves.
    fn deadline(self, guard: &Guards) -> Deadline {
        let end = TokioHost.now() + guard.remaining();
        Deadline::new(Some(end.minus(self.grace + self.slack / 2)), end.minus(self.slack / 2))
    }

    /// The validity that must be left when TERM is sent.
    fn margin(self) -> Duration {
        self.grace + self.slack
    }
}

pub(crate) async fn run(global: &Global, mut args: Run) -> Result<u8, Stop> {
    // Before there is a store, which may be a file that is made. A default is never longer than this one.
    Stopping::new(&args, args.ttl.unwrap_or_default().ttl())?;
    let wanted = Wanted::of(&mut args, std::env::args_os())?;
    let mut started = Started::new(global, &args, wanted).await?;
    if let Some(code) = started.skip_early().await? {
        return Ok(code);
    }
    let guards = started.enter().await?;
    match started.run(guards).await? {
        End::Ended(code) => Ok(code),
        End::Lost(line) => Err(lost(&args, line)),
    }
}

/// The lease was lost, or `--max-hold` is over.
pub(crate) fn lost(args: &Run, line: String) -> Stop {
    Stop::new(args.lost_exit_code, line)
}

/// How a command under a lock came to its end.
pub(crate) enum End {
    /// By itself, with this code.
    Ended(u8),
    /// It was stopped, or not started, because the lease is over: why, for people.
    Lost(String),
}

/// Locks and a command, checked and ready to wait for the ones and to run the other.
pub(crate) struct Started<'a> {
    global: &'a Global,
    args: &'a Run,
    locks: Locker,
    wanted: Wanted,
    every: Option<Every>,
    stopping: Stopping,
    ttl: Duration,
    /// How long it took to get the locks.
    waited: Duration,
    signals: Signals,
}

impl<'a> Started<'a> {
    pub(crate) async fn new(global: &'a Global, args: &'a Run, wanted: Wanted) -> Result<Self, Stop> {
        let locks = store::connect(global).await?;
        let ttl = ttl(&locks.promises(), args)?;
        let stopping = Stopping::new(args, ttl)?;
        wanted.refuse_nested(global, &locks, args).await?;
        let set = |lock| with_settings(lock, args, ttl, stopping);
        let every = Every::of(global, &locks, args, (wanted.name(), set));
        let (waited, signals) = (Duration::ZERO, Signals::listen()?);
        Ok(Self { global, args, locks, wanted, every, stopping, ttl, waited, signals })
    }

    pub(crate) fn locks(&self) -> &Locker {
        &self.locks
    }

    /// The lock that was named first.
    pub(crate) fn name(&self) -> &LockName {
        self.wanted.name()
    }

    /// The lease of that lock.
    pub(crate) fn first(&self, guards: &Guards) -> Lease {
        self.wanted.first(guards)
    }

    pub(crate) fn is_asked_to_end(&self) -> bool {
        self.signals.is_asked()
    }

    /// The exit code if it is not time yet for a command with an interval.
    pub(crate) async fn skip_early(&self) -> Result<Option<u8>, Stop> {
        match &self.every {
            Some(every) => every.skip_early().await,
            None => Ok(None),
        }
    }

    /// Waits for the locks.
    pub(crate) async fn enter(&mut self) -> Result<Guards, Stop> {
        let budget = Budget(if self.args.nonblock { Some(Duration::ZERO) } else { self.args.wait });
        self.acquire(budget, false).await
    }

    /// The same, however long the store fails.
    pub(crate) async fn enter_for_ever(&mut self) -> Result<Guards, Stop> {
        self.acquire(Budget(None), true).await
    }

    async fn acquire(&mut self, budget: Budget, is_patient: bool) -> Result<Guards, Stop> {
        let Self { global, args, locks, wanted, ttl, stopping, .. } = self;
        let began = TokioHost.now();
        let waiting = Waiting::new(global, locks, &*wanted, args.conflict_exit_code).of_all(wanted.is_all());
        let waiting = if is_patient { waiting.for_ever() } else { waiting };
        let asking = Asking { locks, args, waiting: &waiting, budget };
        let set = |lock| with_settings(lock, args, *ttl, *stopping);
        let guards = wanted.acquire(asking, set, &mut self.signals).await?;
        self.waited = began.elapsed(TokioHost.now());
        Ok(guards)
    }

    /// Runs the command, unless it is not time for it, and gives the locks back.
    pub(crate) async fn run(&mut self, guard: Guards) -> Result<End, Stop> {
        let since = TokioHost.now();
        let (first, name) = (self.wanted.first(&guard), self.wanted.held(&guard));
        let (name, place, quiet) = (name.as_str(), store::place(self.global), self.global.quiet);
        let release = Release { locks: &self.locks, name, place, quiet, ttl: self.ttl };
        let (args, stopping, waited, every) = (self.args, self.stopping, self.waited, self.every.as_ref());
        let is_verbose = self.global.verbose > 0 && !quiet;
        let held = Held { args, name, stopping, guard, first, waited, is_verbose, release, every };
        match held.may_start().await {
            Ok(None) => held.run(&mut self.signals, since).await,
            Ok(Some(code)) => {
                held.leave(&mut self.signals).await;
                Ok(End::Ended(code))
            }
            Err(stop) => {
                held.leave(&mut self.signals).await;
                Err(stop)
            }
        }
    }
}

/// What was named, if the store accepts it; otherwise the default.
pub(crate) fn ttl(promises: &Promises, args: &Run) -> Result<Duration, Stop> {
    let ttl = args.ttl.map_or_else(|| promises.default_ttl(), Timing::ttl);
    if ttl <= promises.max_ttl {
        return Ok(ttl);
    }
    let raise =
        promises.max_ttl_parameter.map_or_else(String::new, |p| format!("; raise it with ?{p}= in the URL"));
    let max = people::seconds(promises.max_ttl);
    Err(Stop::usage(format!("--ttl: {} accepts {max} at most{raise}", promises.backend)))
}

pub(crate) fn with_settings(lock: Lock, args: &Run, ttl: Duration, stopping: Stopping) -> Lock {
    let ours = tenure::this_process();
    let command = args.argv.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    let command = if args.command { first_word(&command) } else { &command };
    let label = Label::new(&ours.host, ours.pid, &ours.user, command);
    let lock = lock.ttl(ttl).label(label);
    match args.max_hold {
        // The command may run for so long: the time to stop it comes on top.
        Some(max_hold) => lock.max_hold(max_hold.saturating_add(stopping.margin())),
        None => lock,
    }
}

/// The program of a shell's command line, if its first word is plainly one: anything else may hold a password.
fn first_word(line: &str) -> &str {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
    line.split_whitespace().next().filter(|word| word.chars().all(is_plain)).unwrap_or("sh")
}

/// A command that runs, or is about to, under its locks.
pub(crate) struct Held<'a> {
    pub(crate) args: &'a Run,
    /// Of the lock or locks, for people.
    pub(crate) name: &'a str,
    pub(crate) stopping: Stopping,
    pub(crate) guard: Guards,
    /// The lock that was named first.
    pub(crate) first: Lease,
    /// How long it took to get them.
    pub(crate) waited: Duration,
    pub(crate) is_verbose: bool,
    pub(crate) release: Release<'a>,
    pub(crate) every: Option<&'a Every>,
}

/// The command was stopped because the lease is over, or is about to be.
struct Over {
    why: String,
    /// `--max-hold` is over, and nothing is wrong with the lease or the store.
    is_planned: bool,
}

impl Over {
    fn lost(why: impl ToString) -> Self {
        Self { why: why.to_string(), is_planned: false }
    }
}

impl Held<'_> {
    /// The exit code if the command is not to run after all.
    async fn may_start(&self) -> Result<Option<u8>, Stop> {
        let Some(every) = self.every else { return Ok(None) };
        let skipped = every.skip_now().await?;
        if skipped.is_none() {
            every.starts(&self.first).await?;
        }
        Ok(skipped)
    }

    async fn leave(self, signals: &mut Signals) {
        let left = self.guard.remaining();
        self.release.awaited(self.guard, left, signals).await;
    }

    pub(crate) async fn run(self, signals: &mut Signals, since: Moment) -> Result<End, Stop> {
        signals.listen_to_stop();
        // We may have been stopped since the grant: nothing is started that would have to be killed at once.
        if let Err(lost) = self.guard.check() {
            let line = format!("{}: {lost}; nothing was started", self.lost_name());
            self.release.in_passing(self.guard).await;
            return Ok(End::Lost(line));
        }
        let argv = argv(self.args);
        let under = Under { guards: &self.guard, first: &self.first };
        let mut child = match Child::start(&argv, &under, self.stopping.deadline(&self.guard)) {
            Ok(child) => child,
            Err(error) => {
                self.leave(signals).await;
                return Err(Stop::internal(format!("the command cannot be started: {error}")));
            }
        };
        let started = TokioHost.now();
        let ended = self.attend(&mut child, signals).await;
        let daemons = if ended.is_err() { child.daemons() } else { Vec::new() };
        child.bury(ended.is_err());
        match ended {
            Ok(code) => {
                if let Some(every) = self.every {
                    every.ended(&self.first, code, started).await;
                }
                self.stay(since, signals).await;
                self.say_how_it_went(since);
                self.leave(signals).await;
                Ok(End::Ended(code))
            }
            Err(Over { why, is_planned }) => {
                let name = self.lost_name();
                let line = format!("{name}: {why}; the command was stopped{}", except(&daemons));
                self.say_how_it_went(since);
                if is_planned {
                    // Our belief ends with it; the lease on the store lasts longer.
                    let left = self.release.ttl;
                    self.release.awaited(self.guard, left, signals).await;
                } else {
                    self.release.in_passing(self.guard).await;
                }
                Ok(End::Lost(line))
            }
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
        let (waited, held) = (people::seconds(self.waited), people::seconds(since.elapsed(TokioHost.now())));
        let slowest =
            if succeeded > 0 { format!(", the slowest {}", people::brief(slowest)) } else { String::new() };
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        let ttl = people::seconds(self.release.ttl);
        let renewed = format!("{succeeded} renewals{slowest}{failed}");
        warn(&format!("{}: waited {waited}, held {held}, {renewed}; the ttl is {ttl}", self.name));
    }

    /// Which lock was lost, if it is one of several.
    fn lost_name(&self) -> String {
        let lost = self.guard.iter().find(|lease| lease.check().is_err());
        let lost = lost.or_else(|| self.guard.iter().find(|lease| lease.is_at_risk()));
        lost.filter(|_| self.guard.iter().len() > 1)
            .map_or_else(|| self.name.to_owned(), |lease| format!("{} (of {})", lease.name(), self.name))
    }

    /// Until the command has ended by itself, or because the lease is over.
    async fn attend(&self, child: &mut Child, signals: &mut Signals) -> Result<u8, Over> {
        loop {
            let change = child.look();
            if child.mind(self.stopping.deadline(&self.guard)) {
                let slept =
                    || "tenure was suspended, and its watcher process ended the command in time".to_owned();
                let why = self.guard.check().map_or_else(|lost| lost.to_string(), |()| slept());
                self.kill_after(Duration::ZERO, child).await;
                return Err(Over::lost(why));
            }
            match change {
                Change::Ended(code) => {
                    if let Err(lost) = self.guard.check() {
                        self.kill_after(Duration::ZERO, child).await;
                        return Err(Over::lost(lost));
                    }
                    // What it left in its group still works under the lock.
                    if child.is_gone() {
                        return Ok(code);
                    }
                }
                Change::Suspended(why) => child.suspend_with(why, &self.guard),
                Change::None => {}
            }
            tokio::select! {
                biased;
                ending = self.guard.nearly_lost(self.stopping.margin()) => {
                    return Err(self.stop(child, ending).await);
                }
                signal = signals.next() => if let Some(signal) = signal { child.signal(signal) },
                // Nobody tells us of a renewal, nor when the last of a group has gone.
                () = pause(self.stopping.look) => {}
            }
        }
    }

    /// Stops the command early enough that it is gone before anybody else can be granted the lock. Answers why.
    async fn stop(&self, child: &mut Child, ending: Result<(), Lost>) -> Over {
        let (grace, over) = match ending {
            // Broken, or forgotten by the store: nothing can be saved but the command's own tidying up.
            Err(lost) if lost.cause() == Loss::Taken => (self.stopping.grace, Over::lost(lost)),
            // Too late already, as after a suspend of the machine.
            Err(lost) => (Duration::ZERO, Over::lost(lost)),
            Ok(()) => {
                let left = self.guard.remaining().saturating_sub(self.stopping.slack);
                (left.min(self.stopping.grace), self.why_now())
            }
        };
        self.kill_after(grace, child).await;
        over
    }

    async fn kill_after(&self, grace: Duration, child: &mut Child) {
        let kill_at = TokioHost.now() + grace;
        child.stop(kill_at, Deadline::new(None, kill_at + self.stopping.slack / 2)).await;
    }

    fn why_now(&self) -> Over {
        if self.guard.is_at_risk() || self.args.max_hold.is_none() {
            Over::lost("the lease could not be renewed in time")
        } else {
            Over { why: "--max-hold is over".to_owned(), is_planned: true }
        }
    }

    /// `--min-hold`, unless a signal or a loss ends it.
    async fn stay(&self, since: Moment, signals: &mut Signals) {
        // An INT or TERM that came while the command ran ends it too: it may have found nobody there to pass it on to.
        let Some(min_hold) = self.args.min_hold.filter(|_| !signals.is_asked()) else { return };
        let left = (since + min_hold).remaining(TokioHost.now());
        tokio::select! {
            () = pause(left) => {}
            _ = signals.asked_to_end() => {}
            _ = self.guard.lost() => {}
        }
    }
}

/// The end of the message if there are daemons, which are not stopped.
fn except(daemons: &[nix::unistd::Pid]) -> String {
    if daemons.is_empty() {
        return String::new();
    }
    let pids: Vec<String> = daemons.iter().map(ToString::to_string).collect();
    format!(", except daemons, which have a session of their own: pid {}", pids.join(", "))
}

fn argv(args: &Run) -> Vec<OsString> {
    if !args.command {
        return args.argv.clone();
    }
    let shell = ["sh", "-c"].map(OsString::from);
    shell.into_iter().chain(args.argv.iter().cloned()).collect()
}

//! `run`: a command under a lock.

use std::{ffi::OsString, num::NonZeroU32, time::Duration};

use tenure::{Guard, Host, Label, Lock, Locker, Loss, Lost, Mode, Moment, Promises, Timing, TokioHost};

use crate::{
    args::{Global, Run},
    child::{Change, Child},
    every::Every,
    exit::Stop,
    messages::Deadline,
    nested, people,
    release::Release,
    signals::Signals,
    spinner::pause,
    store,
    waiting::Waiting,
};

/// The longest time between two looks at the command and two messages to the watcher process; a twentieth of a short
/// ttl.
const LOOK: Duration = Duration::from_millis(50);

/// The durations of a stop.
#[derive(Clone, Copy)]
struct Stopping {
    /// From TERM to KILL.
    grace: Duration,
    /// From KILL until the group is surely gone.
    slack: Duration,
    /// Between two looks at the command.
    look: Duration,
}

impl Stopping {
    fn new(args: &Run, ttl: Duration) -> Result<Self, Stop> {
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
    fn deadline(self, guard: &Guard) -> Deadline {
        let end = TokioHost.now() + guard.remaining();
        Deadline::new(Some(end.minus(self.grace + self.slack / 2)), end.minus(self.slack / 2))
    }

    /// The validity that must be left when TERM is sent.
    fn margin(self) -> Duration {
        self.grace + self.slack
    }
}

pub(crate) async fn run(global: &Global, args: Run) -> Result<u8, Stop> {
    let mut started = Started::new(global, &args).await?;
    if let Some(code) = started.skip_early().await? {
        return Ok(code);
    }
    let guard = started.enter().await?;
    match started.run(guard).await? {
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

/// A lock and a command, checked and ready to wait for the one and to run the other.
pub(crate) struct Started<'a> {
    global: &'a Global,
    args: &'a Run,
    locks: Locker,
    lock: Lock,
    every: Option<Every<'a>>,
    stopping: Stopping,
    ttl: Duration,
    signals: Signals,
}

impl<'a> Started<'a> {
    pub(crate) async fn new(global: &'a Global, args: &'a Run) -> Result<Self, Stop> {
        // Before there is a store, which may be a file that is made. A default is never longer than this one.
        Stopping::new(args, args.ttl.unwrap_or_default().ttl())?;
        let locks = store::connect(global).await?;
        let ttl = ttl(&locks.promises(), args)?;
        let stopping = Stopping::new(args, ttl)?;
        let (lock, mode) = named(&locks, args);
        nested::refuse(global, &locks, &args.name, mode).await?;
        let lock = with_settings(lock, args, ttl, stopping);
        let every = Every::of(global, &locks, args, &lock);
        Ok(Self { global, args, locks, lock, every, stopping, ttl, signals: Signals::listen()? })
    }

    pub(crate) fn locks(&self) -> &Locker {
        &self.locks
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

    /// Waits for the lock.
    pub(crate) async fn enter(&mut self) -> Result<Guard, Stop> {
        let budget = if self.args.nonblock { Some(Duration::ZERO) } else { self.args.wait };
        let waiting = Waiting::new(self.global, &self.locks, &self.args.name, self.args.conflict_exit_code);
        waiting.acquire(self.lock.clone(), budget, &mut self.signals).await
    }

    /// The same, however long the store fails.
    pub(crate) async fn enter_for_ever(&mut self) -> Result<Guard, Stop> {
        let waiting = Waiting::new(self.global, &self.locks, &self.args.name, self.args.conflict_exit_code);
        waiting.for_ever().acquire(self.lock.clone(), None, &mut self.signals).await
    }

    /// Runs the command, unless it is not time for it, and gives the lock back.
    pub(crate) async fn run(&mut self, guard: Guard) -> Result<End, Stop> {
        let since = TokioHost.now();
        let (name, place) = (self.args.name.as_str(), store::place(self.global));
        let release = Release { locks: &self.locks, name, place, quiet: self.global.quiet, ttl: self.ttl };
        let held =
            Held { args: self.args, stopping: self.stopping, guard, release, every: self.every.as_ref() };
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
fn ttl(promises: &Promises, args: &Run) -> Result<Duration, Stop> {
    let ttl = args.ttl.map_or_else(|| promises.default_ttl(), Timing::ttl);
    if ttl <= promises.max_ttl {
        return Ok(ttl);
    }
    let raise =
        promises.max_ttl_parameter.map_or_else(String::new, |p| format!("; raise it with ?{p}= in the URL"));
    let max = people::seconds(promises.max_ttl);
    Err(Stop::usage(format!("--ttl: {} accepts {max} at most{raise}", promises.backend)))
}

/// The lock that was named, and the mode in which it is wanted.
fn named(locks: &Locker, args: &Run) -> (Lock, Mode) {
    let name = args.name.as_str();
    match (args.shared, args.slots) {
        (true, _) => (locks.rwlock(name).read(), Mode::READ),
        (false, Some(slots)) => {
            (locks.semaphore(name, slots), Mode::Shared { limit: NonZeroU32::new(slots) })
        }
        (false, None) => (locks.mutex(name), Mode::Exclusive),
    }
}

fn with_settings(lock: Lock, args: &Run, ttl: Duration, stopping: Stopping) -> Lock {
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

/// A command that runs, or is about to, under a guard.
struct Held<'a> {
    args: &'a Run,
    stopping: Stopping,
    guard: Guard,
    release: Release<'a>,
    every: Option<&'a Every<'a>>,
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
            every.starts(&self.guard).await?;
        }
        Ok(skipped)
    }

    async fn leave(self, signals: &mut Signals) {
        let left = self.guard.remaining();
        self.release.awaited(self.guard, left, signals).await;
    }

    async fn run(self, signals: &mut Signals, since: Moment) -> Result<End, Stop> {
        signals.listen_to_stop();
        // We may have been stopped since the grant: nothing is started that would have to be killed at once.
        if let Err(lost) = self.guard.check() {
            let line = format!("{}: {lost}; nothing was started", self.args.name);
            self.release.in_passing(self.guard).await;
            return Ok(End::Lost(line));
        }
        let argv = argv(self.args);
        let mut child = match Child::start(&argv, &self.guard, self.stopping.deadline(&self.guard)) {
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
                    every.ended(&self.guard, code, started).await;
                }
                self.stay(since, signals).await;
                self.leave(signals).await;
                Ok(End::Ended(code))
            }
            Err(Over { why, is_planned }) => {
                let line = format!("{}: {why}; the command was stopped{}", self.args.name, except(&daemons));
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

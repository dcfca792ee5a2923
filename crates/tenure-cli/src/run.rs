//! `run`: a command under a lock.

use std::time::Duration;

use tenure::{Guards, Host, Label, Lease, Lock, LockName, Locker, Promises, Timing, TokioHost};

use crate::{
    args::{Global, Run},
    every::Every,
    exit::Stop,
    held::{End, Held, Stopping},
    people,
    release::Release,
    signals::Signals,
    store,
    waiting::{Budget, Waiting},
    wanted::{Asking, Wanted},
};

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

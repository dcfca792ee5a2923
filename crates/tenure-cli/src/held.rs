//! `Held`: a command under its locks, until it has ended or the lease is over.

use std::time::Duration;

use tenure::{Guards, Host, Lease, Loss, Lost, Moment, TokioHost};

use crate::{
    child::{Change, Child, Under},
    every::Every,
    exit::{Stop, warn},
    release::Release,
    signals::Signals,
    stopping::Stopping,
    task::Task,
    text,
    waiting::{BRIEF_PATIENCE, LONG, pause},
    watcher::Deadline,
};

/// How a command under a lock came to its end.
pub(crate) enum End {
    /// By itself, with this code.
    Ended(u8),
    /// It was stopped, or not started, because the lease is over: why, for people.
    Lost(String),
}

/// A command that runs, or is about to, under its locks.
pub(crate) struct Held<'a> {
    pub(crate) task: &'a Task,
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
    pub(crate) every: Option<&'a Every<'a>>,
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
    pub(crate) async fn may_start(&self, signals: &mut Signals) -> Result<Option<u8>, Stop> {
        let Some(every) = self.every else { return Ok(None) };
        let skipped = every.skip_now(signals).await?;
        if skipped.is_none() {
            every.starts(&self.first, signals).await?;
        }
        Ok(skipped)
    }

    /// Gives the locks back: how a lease was lost, if the store says that it was gone.
    pub(crate) async fn leave(self, signals: &mut Signals) -> Option<String> {
        let is_capped = self.guard.check().is_err_and(|lost| lost.cause() == Loss::MaxHold);
        let left = if is_capped { self.release.ttl } else { self.guard.remaining() };
        self.release.awaited(self.guard, left, signals).await
    }

    pub(crate) async fn run(self, signals: &mut Signals, since: Moment) -> Result<End, Stop> {
        signals.listen_to_stop();
        // We may have been stopped since the grant: nothing is started that would have to be killed at once.
        if let Err(lost) = self.guard.check() {
            let line = format!("{}: {lost}; nothing was started", self.lost_name());
            self.release.in_passing(self.guard).await;
            return Ok(End::Lost(line));
        }
        let argv = self.task.argv();
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
            Ok(code) => self.finish((code, started), since, signals).await,
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

    /// The command has ended with this code, and the lock was believed in until then: what is left to do under it, and the release.
    ///
    /// # Errors
    /// The lease is gone all the same: the store says so. That may have been while the command ran.
    async fn finish(
        self,
        (code, started): (u8, Moment),
        since: Moment,
        signals: &mut Signals,
    ) -> Result<End, Stop> {
        let counted = match self.every {
            Some(every) => every.ended(&self.first, (code, started), signals).await,
            None => Ok(()),
        };
        // A store that was not waited for any longer is not waited for again.
        let is_silent = signals.is_insisted();
        let stayed = match counted {
            Ok(()) if is_silent => self.kept(false),
            Ok(()) => self.stay(since, signals).await,
            Err(lost) => Err(lost),
        };
        self.say_how_it_went(since);
        let task = self.task;
        let lost = match stayed {
            Ok(()) if is_silent => self.release.awaited(self.guard, BRIEF_PATIENCE, signals).await,
            Ok(()) => self.leave(signals).await,
            Err(lost) => {
                let line = format!("{}: {lost}", self.lost_name());
                self.release.in_passing(self.guard).await;
                Some(line)
            }
        };
        match lost {
            Some(line) => {
                Err(task.lost(format!("{line}; the command had ended by itself, with code {code}")))
            }
            None => Ok(End::Ended(code)),
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
                self.kill_at(TokioHost.now(), child).await;
                return Err(Over::lost(why));
            }
            match change {
                Change::Ended(code) => {
                    if let Err(lost) = self.guard.check() {
                        self.kill_at(TokioHost.now(), child).await;
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
        let now = TokioHost.now();
        let (kill_at, over) = match ending {
            // Broken, or forgotten by the store: nothing can be saved but the command's own tidying up.
            Err(lost) if lost.cause() == Loss::Taken => (steady(now + self.stopping.grace), Over::lost(lost)),
            // Too late already, as after a suspend of the machine.
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

    async fn kill_at(&self, kill_at: Moment, child: &mut Child) {
        child.stop(kill_at, Deadline::new(None, kill_at + self.stopping.slack / 2)).await;
    }

    fn why_now(&self) -> Over {
        if self.guard.is_at_risk() || self.task.max_hold.is_none() {
            Over::lost("the lease was lost: it could not be renewed in time")
        } else {
            Over { why: "--max-hold is over".to_owned(), is_planned: true }
        }
    }

    /// `--min-hold`, unless a second signal ends it.
    ///
    /// # Errors
    /// The lease was lost meanwhile, or its loss was heard of only now.
    async fn stay(&self, since: Moment, signals: &mut Signals) -> Result<(), Lost> {
        // By the clock that does not step: this is a promise to others, and no belief.
        let left = || self.task.min_hold.unwrap_or_default().saturating_sub(since.elapsed(TokioHost.now()));
        let is_staying = !left().is_zero();
        let ended = async {
            // One that was passed on to the command is the first: it was for the command.
            if !signals.is_asked() {
                signals.asked_to_end().await;
            }
            if left() >= LONG && !self.release.quiet {
                let left = text::seconds(left());
                warn(&format!(
                    "{}: held for another {left} by --min-hold; a second signal ends that",
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

    /// Whether a lease was lost: as the store says, or before `--min-hold` was over.
    fn kept(&self, is_staying: bool) -> Result<(), Lost> {
        match self.guard.check().map_err(|lost| (lost.cause(), lost)) {
            Err((Loss::Taken, lost)) => Err(lost),
            Err((Loss::Expired, lost)) if is_staying => Err(lost),
            _ => Ok(()),
        }
    }
}

/// The same moment for a wait that a step of the wall clock must not cut short: not for belief.
fn steady(moment: Moment) -> Moment {
    Moment { wall: Duration::MAX, ..moment }
}

/// The end of the message if there are daemons, which are not stopped.
fn except(daemons: &[nix::unistd::Pid]) -> String {
    if daemons.is_empty() {
        return String::new();
    }
    let pids: Vec<String> = daemons.iter().map(ToString::to_string).collect();
    format!(", except daemons, which have a session of their own: pid {}", pids.join(", "))
}

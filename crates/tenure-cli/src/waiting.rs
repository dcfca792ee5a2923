//! Waiting: for a lock, and for whatever else is asked of the store. What is shown meanwhile on a terminal, what is said of a long
//! wait that the user did not ask for (why, for how long, and what to do; in a pipe too), and how a signal ends it.

use std::{
    convert::Infallible,
    future::pending,
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::Signal;
use tenure::{
    AcquireError, BackendError, ErrorKind, Guard, Lock, Locker, Progress,
    backend::{Host, Moment, TokioHost},
    command::shown,
};

use crate::{
    args::Global,
    exit::{self, Stop},
    signals::Signals,
    store, text,
};

/// How long to wait: zero asks once, `None` waits for as long as it takes.
#[derive(Clone, Copy)]
pub(crate) struct Budget(pub(crate) Option<Duration>);

impl Budget {
    /// Acquires within the time, or for as long as it takes.
    pub(crate) async fn of<G, W>(
        self,
        for_ever: impl Future<Output = Result<G, AcquireError>>,
        within: impl FnOnce(Duration) -> W,
    ) -> Result<G, AcquireError>
    where
        W: Future<Output = Result<G, AcquireError>>,
    {
        match self.0 {
            Some(budget) => within(budget).await,
            None => for_ever.await,
        }
    }
}

/// Waits for a lock, for several, or for one of several.
pub(crate) struct LockWait<'a> {
    locks: &'a Locker,
    /// What is waited for, for people.
    what: String,
    /// It is several immediately, of which one is waited for at a time.
    is_all: bool,
    quiet: bool,
    conflict: u8,
    /// How long the store may fail in a row if the wait for the lock has no end; `None`: as long as it likes.
    patience: Option<Duration>,
    progress: Progress,
    started: Moment,
    /// Where the store is, for people.
    place: String,
}

impl<'a> LockWait<'a> {
    pub(crate) fn new(global: &Global, locks: &'a Locker, what: impl ToString, conflict: u8) -> Self {
        let (progress, started, place) = (Progress::new(), TokioHost.now(), store::place(global));
        let what = what.to_string();
        let (is_all, quiet, patience) = (false, global.quiet, Some(STORE_PATIENCE));
        Self { locks, what, is_all, quiet, conflict, patience, progress, started, place }
    }

    /// The same, for as long as the store may fail.
    pub(crate) fn for_ever(self) -> Self {
        Self { patience: None, ..self }
    }

    /// What is waited for is several locks, one after the other.
    pub(crate) fn of_all(self, is_all: bool) -> Self {
        Self { is_all, ..self }
    }

    /// The lock as it is to be asked for, so that the waiting can be seen.
    pub(crate) fn prepared(&self, lock: Lock, budget: Budget) -> Lock {
        let lock = lock.progress(&self.progress);
        if budget.0.is_none() { lock.patience(self.patience.unwrap_or(FOR_EVER)) } else { lock }
    }

    /// Acquires within `budget`, or for as long as it takes. A signal ends the wait and leaves no waiter behind.
    pub(crate) async fn acquire(
        &self,
        lock: Lock,
        budget: Budget,
        signals: &mut Signals,
    ) -> Result<Guard, Stop> {
        let lock = self.prepared(lock, budget);
        self.awaited(budget, signals, budget.of(lock.acquire(), |budget| lock.within(budget).acquire())).await
    }

    /// Waits for what was prepared, with what is shown meanwhile.
    pub(crate) async fn awaited<G>(
        &self,
        budget: Budget,
        signals: &mut Signals,
        acquire: impl Future<Output = Result<G, AcquireError>>,
    ) -> Result<G, Stop> {
        let budget = budget.0;
        let shown = spin(self.quiet, || self.message(budget));
        let troubles = announce(self.quiet, || self.trouble(budget), |trouble| self.notice(trouble));
        let said = async {
            tokio::select! {
                never = troubles => never,
                never = self.announce_queue() => never,
            }
        };
        match attended(acquire, signals.asked_to_end(), shown, said).await {
            Ok(Ok(guard)) => Ok(guard),
            Ok(Err(error)) => {
                self.leave(signals).await;
                Err(self.stop(&error))
            }
            Err(signal) => {
                self.leave(signals).await;
                Err(Stop::signalled(signal))
            }
        }
    }

    /// Waits until nothing of ours is left in the queue, but not long for a store that does not answer. A signal ends it.
    async fn leave(&self, signals: &mut Signals) {
        let patience = match StoreTrouble::of(&self.progress, self.locks, &self.place) {
            Some(_) => BRIEF_PATIENCE,
            None => LEAVE_PATIENCE,
        };
        drained(self.locks, patience, signals.asked_to_end()).await;
    }

    fn stop(&self, error: &AcquireError) -> Stop {
        Stop::not_acquired(error, self.conflict, || match error {
            _ if self.quiet => String::new(),
            AcquireError::TimedOut { holder: Some(holder), .. } => {
                format!("{}: held by {}", self.name(), text::holder(holder))
            }
            _ => format!("{}: not acquired in time", self.name()),
        })
    }

    /// Says who holds the lock where no progress line is drawn: after ten seconds, when that changes, and from time to time.
    async fn announce_queue(&self) -> Infallible {
        if self.quiet || stderr().is_terminal() {
            pending::<()>().await;
        }
        let mut said: Option<(Moment, Option<String>)> = None;
        loop {
            pause(LOOK).await;
            let now = TokioHost.now();
            let holder = self.progress.latest().and_then(|waiting| waiting.holder).map(|holder| holder.owner);
            let is_due = match &said {
                None => self.started.elapsed(now) >= QUEUED,
                // A queue that moves on quickly is no line for each holder.
                Some((at, of)) if *of != holder && holder.is_some() => at.elapsed(now) >= QUEUED,
                Some((at, _)) => at.elapsed(now) >= QUEUED_LONG,
            };
            // A store that does not answer has a line of its own.
            if is_due && self.trouble(None).is_none() {
                exit::warn(&self.queue());
                said = Some((now, holder));
            }
        }
    }

    /// The progress line.
    fn message(&self, budget: Option<Duration>) -> String {
        let mut line = self.queue();
        if let Some(trouble) = self.trouble(budget) {
            line += &format!(": {}", trouble.why);
        }
        line
    }

    /// For how long it has waited, and for whom.
    fn queue(&self) -> String {
        let mut line = self.waited();
        if let Some(waiting) = self.progress.latest() {
            if let Some(holder) = &waiting.holder {
                line += &format!(", held by {}", holder.who());
                line +=
                    &holder.since.map_or_else(String::new, |since| format!(" since {}", text::clock(since)));
            }
            if let Some(ahead) = waiting.ahead.filter(|ahead| *ahead > 0) {
                line += &format!(", {ahead} ahead");
            }
        }
        line
    }

    /// The line where there is no progress line.
    fn notice(&self, trouble: &StoreTrouble) -> String {
        format!("{}: {}", self.waited(), trouble.why)
    }

    fn waited(&self) -> String {
        format!("{}: waiting for {}", self.name(), text::seconds(self.started.elapsed(TokioHost.now())))
    }

    /// What is waited for at present.
    fn name(&self) -> String {
        let one = self.progress.name().filter(|_| self.is_all);
        one.map_or_else(|| self.what.clone(), |one| format!("{one} (of {})", self.what))
    }

    /// Why the store lets us wait, and when we give up.
    fn trouble(&self, budget: Option<Duration>) -> Option<StoreTrouble> {
        let end = match budget {
            Some(Duration::ZERO) => String::new(),
            Some(_) => "; given up when --wait is over".to_owned(),
            None => self.patience.map_or_else(String::new, |patience| {
                format!("; given up if that lasts {}", text::seconds(patience))
            }),
        };
        StoreTrouble::of(&self.progress, self.locks, &self.place).map(|trouble| trouble.until(&end))
    }
}

/// A question to the store, which answers immediately or is in trouble.
pub(crate) struct Question<'a> {
    global: &'a Global,
    what: String,
    /// How long the store has to work for the answer.
    work: Duration,
    most: Duration,
}

impl<'a> Question<'a> {
    /// `what` is done by it, for people.
    pub(crate) fn new(global: &'a Global, what: impl Into<String>) -> Self {
        Self { global, what: what.into(), work: Duration::ZERO, most: QUESTION }
    }

    /// One to which the answer may take so long.
    pub(crate) fn lasting(self, most: Duration) -> Self {
        Self { most, ..self }
    }

    /// One of many that take so long if each is answered immediately.
    pub(crate) fn repeated_for(self, work: Duration) -> Self {
        Self { work, ..self }
    }

    /// Waits for the answer of the store, unless the signal comes first.
    pub(crate) async fn answered<A>(
        self,
        signal: impl Future<Output = Signal>,
        answer: impl Future<Output = Result<A, BackendError>>,
    ) -> Result<A, Stop> {
        let answer = self.awaited(signal, answer).await.map_err(Stop::signalled)?;
        answer.map_err(|error| Stop::store(&error))
    }

    /// The same for an answer of any kind.
    ///
    /// # Errors
    /// The signal that ended the wait.
    pub(crate) async fn awaited<A>(
        self,
        signal: impl Future<Output = Signal>,
        answer: impl Future<Output = A>,
    ) -> Result<A, Signal> {
        let (began, place, quiet) = (TokioHost.now(), store::place(self.global), self.global.quiet);
        let line = || {
            let waited = began.elapsed(TokioHost.now()).saturating_sub(self.work);
            let most = text::seconds(self.most);
            match waited < LONG {
                true => self.what.clone(),
                false => format!("{}: {}; given up after {most}", self.what, silence(&place, waited)),
            }
        };
        let said = announce_after(quiet, self.work + LONG, line);
        attended(answer, signal, spin(quiet, line), said).await
    }
}

/// Waits for the store, whatever is asked of it: the one way in which the command does. The answer, or the signal that ended the
/// wait; what is shown and said meanwhile never ends.
pub(crate) async fn attended<A>(
    answer: impl Future<Output = A>,
    signal: impl Future<Output = Signal>,
    shown: impl Future<Output = Infallible>,
    said: impl Future<Output = Infallible>,
) -> Result<A, Signal> {
    tokio::select! {
        biased;
        answer = answer => Ok(answer),
        signal = signal => Err(signal),
        never = shown => match never {},
        never = said => match never {},
    }
}

/// Waits until what is released in the background is, but for no longer than this, which is too short for a word. A signal ends
/// it.
pub(crate) async fn drained(
    locks: &Locker,
    patience: Duration,
    signal: impl Future<Output = Signal>,
) -> bool {
    attended(locks.flush(patience), signal, pending(), pending()).await.unwrap_or(false)
}

/// Why a store lets us wait.
pub(crate) struct StoreTrouble {
    /// What people read.
    pub(crate) why: String,
    reason: Reason,
    is_long: bool,
}

/// What makes one trouble another one, of which another line is said.
#[derive(Clone, Copy, Debug)]
enum Reason {
    /// The store said why it does not serve yet, and that it will then.
    Closed(Moment),
    /// It gives no answer since then. That a connection cannot be made is soon said in other words, and is the same.
    Silent(Moment),
}

impl Reason {
    /// Whether who was told of `self` knows of the other one.
    fn tells(self, other: Self) -> bool {
        match (self, other) {
            (Self::Closed(said), Self::Closed(until)) => said.elapsed(until) < LONGER,
            (Self::Silent(said), Self::Silent(since)) => said == since,
            _ => false,
        }
    }
}

impl StoreTrouble {
    /// What keeps a claim from being answered; `None` while the store answers.
    pub(crate) fn of(progress: &Progress, locks: &Locker, place: &str) -> Option<Self> {
        let since = progress.unanswered_since()?;
        let waited = since.elapsed(TokioHost.now());
        let error = progress.latest().and_then(|waiting| waiting.failing);
        if let Some((error, left)) = error.as_ref().and_then(|error| Some((error, served_in(error)?))) {
            let why = format!("{error}{}", way_out(locks));
            let reason = Reason::Closed(TokioHost.now() + left);
            return Some(Self { why, reason, is_long: left >= KNOWN_LONG || waited >= LONG });
        }
        // That a request timed out says no more than that there was no answer.
        let said = error.as_ref().filter(|error| error.kind() != ErrorKind::TimedOut);
        let why = said.map_or_else(|| silence(place, waited), |error| exit::chain(error));
        // A first answer that is late is no failure: a busy server takes some seconds, and a request times out after five.
        let is_long = error.is_some() && waited >= LONG;
        (waited >= BRIEF).then_some(Self { why, reason: Reason::Silent(since), is_long })
    }

    /// With a word about the end of the wait, which only a store knows that said why it does not serve.
    pub(crate) fn until(mut self, end: &str) -> Self {
        if matches!(self.reason, Reason::Silent(_)) {
            self.why += end;
        }
        self
    }
}

/// When the store will serve, if it says so: not one that is busy for a moment.
fn served_in(error: &BackendError) -> Option<Duration> {
    error.retry_hint().filter(|_| error.kind() != ErrorKind::Throttled)
}

pub(crate) fn silence(place: &str, waited: Duration) -> String {
    format!("{place} has not answered for {}", text::seconds(waited))
}

/// What spares the wait for a server whose guard makes it wait.
fn way_out(locks: &Locker) -> String {
    locks.promises().max_ttl_parameter.map_or_else(String::new, |parameter| {
        format!("; in tests, ?guard=off or a smaller ?{parameter}= in the URL spares this wait")
    })
}

/// Says the line of a long trouble, once for each reason, where no progress line is drawn.
pub(crate) async fn announce(
    quiet: bool,
    look: impl Fn() -> Option<StoreTrouble>,
    line: impl Fn(&StoreTrouble) -> String,
) -> Infallible {
    if quiet || stderr().is_terminal() {
        pending::<()>().await;
    }
    let (mut said, mut seen) = (Vec::new(), 0_u32);
    loop {
        pause(LOOK).await;
        let found = look();
        seen = if found.is_some() { seen.saturating_add(1) } else { 0 };
        let is_due = |trouble: &StoreTrouble| {
            let is_sure = seen >= LOOKS || matches!(trouble.reason, Reason::Closed(_));
            trouble.is_long && is_sure && !said.iter().any(|said: &Reason| said.tells(trouble.reason))
        };
        if let Some(trouble) = found.filter(is_due) {
            exit::warn(&line(&trouble));
            said.push(trouble.reason);
        }
    }
}

/// Says the line once if the step takes longer than `patience`, where no progress line is drawn.
pub(crate) async fn announce_after(quiet: bool, patience: Duration, line: impl Fn() -> String) -> Infallible {
    let began = TokioHost.now();
    let look = || {
        let is_long = began.elapsed(TokioHost.now()) >= patience;
        Some(StoreTrouble { why: String::new(), reason: Reason::Silent(began), is_long })
    };
    announce(quiet, look, |_| line()).await
}

/// Draws the text of `message` until dropped, and then clears the line. Draws nothing if `quiet`.
pub(crate) async fn spin(quiet: bool, message: impl Fn() -> String) -> Infallible {
    let bar = ProgressBar::new_spinner();
    draw(quiet, SHORT_STEP, &bar, SPINNER, || bar.set_message(shown(&message()).to_string())).await
}

/// Draws a bar from 0 to 1 and a text, both from `look`, from the start until dropped; otherwise as [`spin`].
pub(crate) async fn fill(quiet: bool, look: impl Fn() -> (f64, String)) -> Infallible {
    let bar = ProgressBar::new(STEPS);
    let show = || {
        let (share, message) = look();
        bar.set_message(shown(&message).to_string());
        // OK because it is clamped to what a bar has.
        bar.set_position((share.clamp(0.0, 1.0) * STEPS as f64) as u64);
    };
    draw(quiet, Duration::ZERO, &bar, BAR, show).await
}

async fn draw(
    quiet: bool,
    patience: Duration,
    bar: &ProgressBar,
    template: &str,
    show: impl Fn(),
) -> Infallible {
    if quiet || !stderr().is_terminal() {
        pending::<()>().await;
    }
    pause(patience).await;
    // OK because the templates are constants that a test draws.
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    let _wipe = Wipe(bar);
    loop {
        show();
        bar.tick();
        pause(FRAME).await;
    }
}

struct Wipe<'a>(&'a ProgressBar);

impl Drop for Wipe<'_> {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Waits on the clock that counts suspend.
pub(crate) async fn pause(d: Duration) {
    TokioHost.sleep_until(TokioHost.now() + d).await;
}

/// The longest time to wait until what was not wanted in the end is given back: a place in a queue, or a lease that nobody
/// heard of.
pub(crate) const LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// The same, and for a lease that is lost, where the store gives no answer: it most likely gives none now.
pub(crate) const BRIEF_PATIENCE: Duration = Duration::from_millis(200);
/// How long a store may fail in a row if the wait for the lock has no end.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// Longer than any machine runs: 100 years.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// A wait is announced when it is longer than two seconds. The rest is for connections that are given up after just that time:
/// their one line says that.
pub(crate) const LONG: Duration = Duration::from_millis(2_250);
/// If the store says how long it will be, such a wait is announced immediately.
const KNOWN_LONG: Duration = Duration::from_secs(1);
/// If that is so much later than it said before, it is worth another line: the old answer may be some seconds old.
const LONGER: Duration = Duration::from_secs(5);
/// A store that fails for a shorter time is not worth a word on the progress line.
const BRIEF: Duration = Duration::from_millis(500);
/// To queue behind a holder is what was asked for, and is worth a word after this time, of another holder so long after the
/// last one, and of the same one after the longer time.
const QUEUED: Duration = Duration::from_secs(10);
const QUEUED_LONG: Duration = Duration::from_secs(300);
/// How often we check for such a wait.
const LOOK: Duration = Duration::from_millis(100);
/// In so many looks a trouble is seen before the store is blamed for it: a process that had no processor meanwhile has not
/// seen it for long.
const LOOKS: u32 = 15;

/// How long a question to the store may stay unanswered: a `Locker` gives up then.
const QUESTION: Duration = Duration::from_secs(5);
/// How long a walk over all locks may take: a `Locker` gives up then.
pub(crate) const WALK: Duration = Duration::from_secs(60);

/// How often the line is redrawn.
const FRAME: Duration = Duration::from_millis(100);
/// A step that is shorter than this shows no line.
const SHORT_STEP: Duration = Duration::from_millis(300);
/// The number of steps of a progress bar.
const STEPS: u64 = 1000;

const SPINNER: &str = "{spinner} {wide_msg}";
const BAR: &str = "{bar:24} {wide_msg}";

#[cfg(test)]
mod tests {
    use super::*;

    /// The two words with which a gate closes and then opens were two lines.
    #[test]
    fn a_gate_is_said_again_only_if_it_stays_closed_for_longer() {
        let at = |seconds| Moment { boot: Duration::from_secs(seconds), wall: Duration::from_secs(seconds) };
        let (closed, silent) = (Reason::Closed(at(20)), Reason::Silent(at(20)));
        for (until, is_told) in [(10, true), (20, true), (24, true), (25, false)] {
            assert_eq!(closed.tells(Reason::Closed(at(until))), is_told, "{until}");
        }
        assert!(silent.tells(silent) && !silent.tells(Reason::Silent(at(21))));
        assert!(!silent.tells(closed) && !closed.tells(silent));
    }

    #[test]
    fn the_templates_of_the_line_are_some() {
        for template in [SPINNER, BAR] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}

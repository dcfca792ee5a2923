//! Waiting: for a lock, and for any other answer of the store. What a terminal shows during the wait; the line
//! about a long wait that the user did not ask for (why, for how long, and what to do; in a pipe too); and how a
//! signal ends the wait.

use std::{
    convert::Infallible,
    future::pending,
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::sys::signal::Signal;
use tenure::{
    AcquireError, BackendError, ErrorKind, Guard, Lock, LockName, Locker, Progress,
    backend::{Host, Moment, TokioHost},
    command::shown,
};

use crate::{
    args::Global,
    exit::{self, Stop},
    lines,
    signals::Signals,
    store, text,
};

/// How long to wait.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    /// Zero asks once, `None` waits without a limit.
    pub(crate) limit: Option<Duration>,
    /// How long the store may fail in a row where there is no limit.
    patience: Duration,
}

impl Budget {
    /// Without a limit, however long the store fails.
    pub(crate) const PATIENT: Self = Self { limit: None, patience: FOR_EVER };

    /// Without a limit, it ends when the store has failed for a while.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, patience: STORE_PATIENCE }
    }

    /// Acquires within the time, or without a limit.
    pub(crate) async fn of<G, W>(
        self,
        unlimited: impl Future<Output = Result<G, AcquireError>>,
        within: impl FnOnce(Duration) -> W,
    ) -> Result<G, AcquireError>
    where
        W: Future<Output = Result<G, AcquireError>>,
    {
        match self.limit {
            Some(limit) => within(limit).await,
            None => unlimited.await,
        }
    }
}

/// Waits for a lock, for several, or for one of several.
pub(crate) struct LockWait<'a> {
    locks: &'a Locker,
    /// The lock or locks, for messages.
    what: String,
    /// It waits for all of several locks, one at a time.
    is_all: bool,
    quiet: bool,
    conflict: u8,
    /// The exit code after it gave way to a newer client.
    skip: u8,
    progress: Progress,
    started: Moment,
    /// Where the store is, for messages.
    place: String,
}

impl<'a> LockWait<'a> {
    pub(crate) fn new(global: &Global, locks: &'a Locker, what: impl ToString, conflict: u8) -> Self {
        Self {
            locks,
            what: what.to_string(),
            is_all: false,
            quiet: global.quiet,
            conflict,
            skip: 0,
            progress: Progress::new(),
            started: TokioHost.now(),
            place: store::place(global),
        }
    }

    /// It waits for several locks, one after the other.
    pub(crate) fn of_all(self, is_all: bool) -> Self {
        Self { is_all, ..self }
    }

    /// It ends with this code if it gives way to a newer client.
    pub(crate) fn skipping_with(self, skip: u8) -> Self {
        Self { skip, ..self }
    }

    /// The lock to request, with its progress connected.
    pub(crate) fn prepared(&self, lock: Lock, budget: Budget) -> Lock {
        let lock = lock.progress(&self.progress);
        if budget.limit.is_none() { lock.patience(budget.patience) } else { lock }
    }

    /// Acquires within `budget`, or without a limit. A signal ends the wait and leaves no waiter behind.
    pub(crate) async fn acquire(
        &self,
        lock: Lock,
        budget: Budget,
        signals: &mut Signals,
    ) -> Result<Guard, Stop> {
        let lock = self.prepared(lock, budget);
        self.awaited(budget, signals, budget.of(lock.acquire(), |budget| lock.within(budget).acquire())).await
    }

    /// Waits for the prepared request, and shows the wait.
    pub(crate) async fn awaited<G>(
        &self,
        budget: Budget,
        signals: &mut Signals,
        acquire: impl Future<Output = Result<G, AcquireError>>,
    ) -> Result<G, Stop> {
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
                Err(self.stop(&error, budget))
            }
            Err(signal) => {
                self.leave(signals).await;
                Err(Stop::signalled(signal))
            }
        }
    }

    /// Waits until no place of this process is left in the queue, but not long for a store that does not answer. A
    /// signal ends it.
    async fn leave(&self, signals: &mut Signals) {
        let patience = match StoreTrouble::of(&self.progress, self.locks, &self.place) {
            Some(_) => BRIEF_PATIENCE,
            None => LEAVE_PATIENCE,
        };
        drained(self.locks, patience, signals.asked_to_end()).await;
    }

    fn stop(&self, error: &AcquireError, budget: Budget) -> Stop {
        let code = if let AcquireError::GaveWay { .. } = error { self.skip } else { self.conflict };
        if let (AcquireError::TimedOut { .. } | AcquireError::GaveWay { .. }, true) = (error, self.quiet) {
            return Stop::new(code, "");
        }
        Stop::not_acquired(error, code, || self.held(error, budget)).of(self.name())
    }

    /// Another owner holds the lock: the length of the wait, the holder, and what to do.
    fn held(&self, error: &AcquireError, budget: Budget) -> String {
        let (waited, ahead, holder) = match error {
            AcquireError::TimedOut { waited, ahead, holder } => (waited, ahead, holder),
            AcquireError::GaveWay { by } => return format!("skipped: {} came later", by.who()),
            _ => return String::new(),
        };
        let holder = holder.as_ref().map(|holder| format!("held by {}", text::holder(holder)));
        let see = match self.progress.name() {
            Some(name) => format!("tenure show {}", text::word(name.as_str())),
            None => "tenure ls".to_owned(),
        };
        if budget.limit.is_some_and(|limit| limit.is_zero()) {
            let holder = holder.unwrap_or_else(|| "another owner has it, or waits for it".to_owned());
            return format!("not acquired: {holder}. Wait for it with -w 5m, or see {see}");
        }
        let holder = holder.map_or_else(String::new, |holder| format!("; {holder}"));
        let ahead = ahead.filter(|ahead| *ahead > 0);
        let ahead = ahead.map_or_else(String::new, |ahead| format!(", {ahead} waiting ahead"));
        format!("gave up after {} (--wait){ahead}{holder}. See {see}", text::seconds(*waited))
    }

    /// Names the holder where no progress line is drawn: after ten seconds, when the holder changes, and every five minutes.
    async fn announce_queue(&self) -> Infallible {
        if self.quiet || stderr().is_terminal() {
            pending::<()>().await;
        }
        let mut said: Option<(Moment, Option<String>)> = None;
        loop {
            pause(POLL).await;
            let now = TokioHost.now();
            let holder = self.progress.latest().and_then(|waiting| waiting.holder).map(|holder| holder.owner);
            let is_due = match &said {
                None => self.started.elapsed(now) >= QUEUED,
                // A queue that moves on quickly is no line for each holder.
                Some((at, of)) if *of != holder && holder.is_some() => at.elapsed(now) >= QUEUED,
                Some((at, _)) => at.elapsed(now) >= QUEUED_LONG,
            };
            // A store that does not answer has a line of its own.
            if is_due && StoreTrouble::of(&self.progress, self.locks, &self.place).is_none() {
                exit::warn(&self.queue());
                said = Some((now, holder));
            }
        }
    }

    /// The progress line.
    fn message(&self, budget: Budget) -> String {
        let mut line = self.queue();
        if let Some(trouble) = self.trouble(budget) {
            line += &format!(": {}", trouble.why);
        }
        line
    }

    /// The length of the wait, and the holder.
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
        format!("{}: waiting: {}", self.name(), trouble.why)
    }

    fn waited(&self) -> String {
        format!("{}: waiting for {}", self.name(), text::seconds(self.started.elapsed(TokioHost.now())))
    }

    /// The name of the lock that it waits for at present.
    fn name(&self) -> String {
        let one = self.progress.name().filter(|_| self.is_all);
        one.map_or_else(|| self.what.clone(), |one| format!("{one} (of {})", self.what))
    }

    /// Why the store makes this client wait, and when the wait ends.
    fn trouble(&self, budget: Budget) -> Option<StoreTrouble> {
        let end = match budget.limit {
            Some(Duration::ZERO) => String::new(),
            Some(_) => "; giving up when --wait ends".to_owned(),
            None if budget.patience == FOR_EVER => String::new(),
            None => format!("; giving up after {}", text::seconds(budget.patience)),
        };
        StoreTrouble::of(&self.progress, self.locks, &self.place).map(|trouble| trouble.until(&end))
    }
}

/// A query to the store, which answers immediately or is in trouble.
pub(crate) struct Question<'a> {
    global: &'a Global,
    what: String,
    /// The lock that is asked about, if it is one.
    lock: Option<LockName>,
    /// How long the store has to work for the answer.
    work: Duration,
    most: Duration,
}

impl<'a> Question<'a> {
    /// `what` describes it, for messages.
    pub(crate) fn new(global: &'a Global, what: impl Into<String>) -> Self {
        Self { global, what: what.into(), lock: None, work: Duration::ZERO, most: QUESTION }
    }

    /// One about this lock.
    pub(crate) fn about(self, lock: &LockName) -> Self {
        Self { lock: Some(lock.clone()), ..self }
    }

    /// Allows the answer to take this long.
    pub(crate) fn lasting(self, most: Duration) -> Self {
        Self { most, ..self }
    }

    /// For many queries that take this long if each is answered immediately.
    pub(crate) fn repeated_for(self, work: Duration) -> Self {
        Self { work, ..self }
    }

    /// Waits for the answer of the store, unless the signal comes first.
    pub(crate) async fn answered<A>(
        self,
        signal: impl Future<Output = Signal>,
        answer: impl Future<Output = Result<A, BackendError>>,
    ) -> Result<A, Stop> {
        let lock = self.lock.clone();
        let answer = self.awaited(signal, answer).await.map_err(Stop::signalled)?;
        answer.map_err(|error| match lock {
            Some(lock) => Stop::store(&error).of(lock),
            None => Stop::store(&error),
        })
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
        let what =
            self.lock.as_ref().map_or_else(|| self.what.clone(), |lock| format!("{lock}: {}", self.what));
        let line = || {
            let waited = began.elapsed(TokioHost.now()).saturating_sub(self.work);
            let most = text::seconds(self.most);
            match waited < LONG {
                true => what.clone(),
                false => format!("{what}: {}; giving up after {most}", silence(&place, waited)),
            }
        };
        let said = announce_after(quiet, self.work + LONG, line);
        attended(answer, signal, spin(quiet, line), said).await
    }
}

/// Waits for the store, whatever the request: the only way in which the command does. Returns the answer, or the
/// signal that ended the wait; the display during the wait never ends by itself.
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

/// Waits until background releases are done, but for no longer than this, which is too short for a message. A
/// signal ends it.
pub(crate) async fn drained(
    locks: &Locker,
    patience: Duration,
    signal: impl Future<Output = Signal>,
) -> bool {
    attended(locks.flush(patience), signal, pending(), pending()).await.unwrap_or(false)
}

/// Why a store makes this client wait.
pub(crate) struct StoreTrouble {
    /// What people read.
    pub(crate) why: String,
    reason: Reason,
    is_long: bool,
}

/// The reason: another reason gets another line.
#[derive(Clone, Copy, Debug)]
enum Reason {
    /// The store has returned why it does not serve yet, and when it will.
    Closed(Moment),
    /// It has not answered since then. A failed connection soon returns another text, and is the same reason.
    Silent(Moment),
}

impl Reason {
    /// Whether a line about `self` covers the other one.
    fn tells(self, other: Self) -> bool {
        match (self, other) {
            (Self::Closed(said), Self::Closed(until)) => said.elapsed(until) < LONGER,
            (Self::Silent(said), Self::Silent(since)) => said == since,
            _ => false,
        }
    }
}

impl StoreTrouble {
    /// Why a claim has no answer; `None` while the store answers.
    pub(crate) fn of(progress: &Progress, locks: &Locker, place: &str) -> Option<Self> {
        let since = progress.unanswered_since()?;
        let waited = since.elapsed(TokioHost.now());
        let error = progress.latest().and_then(|waiting| waiting.failing);
        if let Some((error, left)) = error.as_ref().and_then(|error| Some((error, served_in(error)?))) {
            let why = format!("{error}{}", way_out(locks));
            let reason = Reason::Closed(TokioHost.now() + left);
            return Some(Self { why, reason, is_long: left >= KNOWN_LONG || waited >= LONG });
        }
        // A timeout only means that there was no answer.
        let said = error.as_ref().filter(|error| error.kind() != ErrorKind::TimedOut);
        let why = said.map_or_else(|| silence(place, waited), |error| exit::chain(error));
        // A late first answer is not a failure: a busy server takes some seconds, and a request times out after 5
        // s.
        let is_long = error.is_some() && waited >= LONG;
        (waited >= BRIEF).then_some(Self { why, reason: Reason::Silent(since), is_long })
    }

    /// Adds the end of the wait, which is known only if the store has returned why it does not serve.
    pub(crate) fn until(mut self, end: &str) -> Self {
        if matches!(self.reason, Reason::Silent(_)) {
            self.why += end;
        }
        self
    }
}

/// When the store will serve, if it has announced that: not for a transient overload.
fn served_in(error: &BackendError) -> Option<Duration> {
    error.retry_hint().filter(|_| error.kind() != ErrorKind::Throttled)
}

pub(crate) fn silence(place: &str, waited: Duration) -> String {
    format!("no answer from {place} for {}", text::seconds(waited))
}

/// How to avoid the wait for a server with a restart guard.
fn way_out(locks: &Locker) -> String {
    locks.promises().max_ttl_parameter.map_or_else(String::new, |parameter| {
        format!("; a test server needs no such wait: add ?guard=off or a smaller ?{parameter}= to the URL")
    })
}

/// Prints the line of a long trouble, once for each reason, where no progress line is drawn.
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
        pause(POLL).await;
        let found = look();
        seen = if found.is_some() { seen.saturating_add(1) } else { 0 };
        let is_due = |trouble: &StoreTrouble| {
            let is_sure = seen >= POLLS || matches!(trouble.reason, Reason::Closed(_));
            trouble.is_long && is_sure && !said.iter().any(|said: &Reason| said.tells(trouble.reason))
        };
        if let Some(trouble) = found.filter(is_due) {
            exit::warn(&line(&trouble));
            said.push(trouble.reason);
        }
    }
}

/// Prints the line once if the step takes longer than `patience`, where no progress line is drawn.
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
    let bar = drawn(ProgressBar::new_spinner());
    draw(quiet, SHORT_STEP, &bar, SPINNER, || bar.set_message(shown(&message()).to_string())).await
}

/// Draws a bar from 0 to 1 and a text, both from `look`, from the start until dropped; otherwise as [`spin`].
pub(crate) async fn fill(quiet: bool, look: impl Fn() -> (f64, String)) -> Infallible {
    let bar = drawn(ProgressBar::new(STEPS));
    let show = || {
        let (share, message) = look();
        bar.set_message(shown(&message).to_string());
        // OK because it is clamped to what a bar has.
        bar.set_position((share.clamp(0.0, 1.0) * STEPS as f64) as u64);
    };
    draw(quiet, Duration::ZERO, &bar, BAR, show).await
}

/// Through the thread that writes lines: a terminal that does not accept output, as after Ctrl-S, delays no renewal.
fn drawn(bar: ProgressBar) -> ProgressBar {
    bar.set_draw_target(ProgressDrawTarget::term_like(Box::<lines::Terminal>::default()));
    bar
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

/// The longest wait for the release of a place in a queue, or of a lease that is no longer needed.
pub(crate) const LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// The same for a store without an answer, and for a lease that is lost: the store most likely does not answer now.
pub(crate) const BRIEF_PATIENCE: Duration = Duration::from_millis(200);
/// How long a store may fail in a row if the wait for the lock has no end.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// Longer than any machine runs: 100 years.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// A wait is announced when it is longer than 2 s. The extra time is for connections that fail after exactly 2 s,
/// whose error line reports that.
pub(crate) const LONG: Duration = Duration::from_millis(2_250);
/// If the store has returned how long it will be, such a wait is announced immediately.
const KNOWN_LONG: Duration = Duration::from_secs(1);
/// If the announced time is this much later than before, it gets another line: the old answer may be some seconds
/// old.
const LONGER: Duration = Duration::from_secs(5);
/// A store that fails for a shorter time gets no text on the progress line.
const BRIEF: Duration = Duration::from_millis(500);
/// A wait behind a holder is printed after this time. Another holder is printed at least this long after the last line, the
/// same holder after [`QUEUED_LONG`].
const QUEUED: Duration = Duration::from_secs(10);
const QUEUED_LONG: Duration = Duration::from_secs(300);
/// How often such a wait is checked: rarely, because many processes may wait on one machine.
const POLL: Duration = Duration::from_millis(500);
/// In how many checks a trouble must be seen before the store is blamed for it: a process without a processor has
/// not seen it for long.
const POLLS: u32 = 3;

/// How long a query to the store may stay unanswered: then a `Locker` returns an error.
const QUESTION: Duration = Duration::from_secs(5);
/// How long a scan of all locks may take: then a `Locker` returns an error.
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

    /// The two messages of a gate that closed and then opened were two lines.
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

//! A long wait that the user did not ask for: one line says why, for how long, and what to do. In a pipe too.

use std::{
    convert::Infallible,
    future::pending,
    io::{IsTerminal, stderr},
    time::Duration,
};

use nix::sys::signal::Signal;
use tenure::{BackendError, ErrorKind, Host, Locker, Moment, Progress, TokioHost};

use crate::{
    args::Global,
    exit::{self, Stop},
    spinner, store, text,
};

/// A wait is announced when it is longer than two seconds. The rest is for connections that are given up after just that time:
/// their one line says that.
pub(crate) const LONG: Duration = Duration::from_millis(2_250);
/// If the store says how long it will be, such a wait is announced at once.
const KNOWN_LONG: Duration = Duration::from_secs(1);
/// If that is so much later than it said before, it is worth another line: the old answer may be some seconds old.
const LONGER: Duration = Duration::from_secs(5);
/// A store that fails for a shorter time is not worth a word on the progress line.
const BRIEF: Duration = Duration::from_millis(500);
/// How often we check for such a wait.
const LOOK: Duration = Duration::from_millis(100);
/// In so many looks a trouble is seen before the store is blamed for it: a process that had no processor meanwhile has not
/// seen it for long.
const LOOKS: u32 = 15;

/// How long a question to the store may stay unanswered: a `Locker` gives up then.
const QUESTION: Duration = Duration::from_secs(5);
/// How long a walk over all locks may take: a `Locker` gives up then.
pub(crate) const WALK: Duration = Duration::from_secs(60);

/// Why a store lets us wait.
pub(crate) struct Trouble {
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

impl Trouble {
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
    look: impl Fn() -> Option<Trouble>,
    line: impl Fn(&Trouble) -> String,
) -> Infallible {
    if quiet || stderr().is_terminal() {
        pending::<()>().await;
    }
    let (mut said, mut seen) = (Vec::new(), 0_u32);
    loop {
        spinner::pause(LOOK).await;
        let found = look();
        seen = if found.is_some() { seen.saturating_add(1) } else { 0 };
        let is_due = |trouble: &Trouble| {
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
        Some(Trouble { why: String::new(), reason: Reason::Silent(began), is_long })
    };
    announce(quiet, look, |_| line()).await
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
    attended(locks.drain(patience), signal, pending(), pending()).await.unwrap_or(false)
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
        attended(answer, signal, spinner::spin(quiet, line), said).await
    }
}

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
}

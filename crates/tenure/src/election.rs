//! `Election`: one leader of many, which publishes where it can be found, and `Observer`, which follows it.

use std::{
    fmt,
    future::{pending, poll_fn},
    ops::Deref,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::Stream;
use tenure_core::{
    BackendError, BoxFuture, FencingToken, HolderView, Host, Label, LockView, Memo, Moment, locked,
};
use tokio::sync::{Mutex as AsyncMutex, Notify};

use crate::{
    engine::{news::News, request::forked},
    error::{AcquireError, ConfigError, DetachError, MemoError, ReleaseError},
    guard::{Guard, held_until_its_release},
    lease::Lease,
    lock::Lock,
    manual::Detached,
    pace::PollPace,
    verbs::Held,
};

/// An election: the candidates wait in a queue, and one of them leads at a time. Made by
/// [`Locker::election`](crate::Locker::election).
///
/// It is a mutex of the same name. Its holder is the leader, and the fencing token is the term: terms grow from
/// leader to leader. The documentation of [`Guard`] and [`Lease`] applies to it.
///
/// # What is not promised
/// A former leader may not have stopped all it started: give the [term](Lease::token) to the resources that it
/// writes to. An [observer](Self::observe) may miss a leader whose term is shorter than its poll interval, and may
/// be notified late.
///
/// # Example: a leader with an address
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let election = locks.election("scheduler");
/// let leadership = election.campaign().await?;
/// leadership.proclaim("10.0.0.7:8080").await?;
///
/// // Elsewhere:
/// let leader = election.leader().await?.expect("there is a leader");
/// assert_eq!(leader.proclaimed.as_deref(), Some("10.0.0.7:8080"));
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    lock: Lock,
    pause: Duration,
}

impl Election {
    /// How long an observer waits between two polls without a hint: 1 s.
    const PAUSE: Duration = Duration::from_secs(1);

    pub(crate) fn new(lock: Lock) -> Self {
        // A term belongs to one leader: no lease is passed on within a process.
        Self { lock: lock.fifo(), pause: Self::PAUSE }
    }

    /// Sets options of the lock: `election.with(|lock| lock.ttl(…).label(…))`. Defaults are those of
    /// [`Locker::mutex`](crate::Locker::mutex).
    #[must_use]
    pub fn with(self, set: impl FnOnce(Lock) -> Lock) -> Self {
        Self { lock: set(self.lock).fifo(), ..self }
    }

    /// How often [`observe`](Self::observe) polls without a hint. Default: once a second, because each poll is a
    /// request. At least 10 ms.
    #[must_use]
    pub fn poll_interval(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// Waits until this process leads.
    ///
    /// # Timing
    /// As [`Lock::acquire`], up to the limit that [`within`](Lock::within) sets on its lock.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; [`ConfigError::OwnerInUse`] if an owner was [chosen](Lock::owner), because each term
    /// has its own.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws from the election, as with [`Lock::acquire`].
    pub fn campaign(&self) -> impl Future<Output = Result<Leadership, AcquireError>> + Send + use<> {
        let election = self.clone();
        async move {
            if let Some(owner) = election.lock.chosen_owner() {
                return Err(ConfigError::OwnerInUse { owner }.into());
            }
            let guard = election.lock.acquire().await?;
            let term = election.term(guard.lease());
            term.announce().await;
            Ok(Leadership { guard, term })
        }
    }

    /// The term of a lease of the lock of this name, for a program that acquired the lock itself; see
    /// [`Term::announce`].
    #[doc(hidden)]
    pub fn term(&self, lease: Lease) -> Term {
        Term { lease, host: self.lock.host(), proclaimed: Arc::default() }
    }

    /// Leads until `work` is done, and campaigns **again** each time that the lead is lost.
    ///
    /// `work` begins anew with each term. Its future is dropped when the lead is lost, before another client can
    /// lead, as in [`Lock::hold`]. Tasks that it spawned and blocking calls are not stopped. When `work` is done,
    /// the client resigns and returns its result. A result that came too late is dropped, and `work` begins again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let term = locks
    ///     .election("scheduler")
    ///     .lead(async |term| {
    ///         term.proclaim("10.0.0.7:8080").await.ok();
    ///         term.token() // in a real program: schedule until told to stop
    ///     })
    ///     .await?;
    /// println!("led in term {term}");
    /// # Ok(()) }
    /// ```
    ///
    /// To spawn it, write `async move |term|`, and let `work` return the values that are needed afterwards:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let mut terms = 0;
    /// let leading = locks.election("scheduler").lead(async move |_term| {
    ///     terms += 1;
    ///     terms
    /// });
    /// assert_eq!(tokio::spawn(leading).await??, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Timing
    /// Waits to lead without a limit, unless the lock has one. A store that fails in a row for longer than the
    /// [`patience`](Lock::patience) of the lock, 30 s by default, is an error.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; this client does not lead then.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and then resigns in the background.
    pub fn lead<T, F: AsyncFnMut(Term) -> T>(
        &self,
        mut work: F,
    ) -> impl Future<Output = Result<T, AcquireError>> + use<T, F> {
        let election = self.clone();
        async move {
            loop {
                let leadership = election.campaign().await?;
                let done = leadership.guard.work_under(work(leadership.term())).await;
                let done = match done.and_then(|out| leadership.check().map(|()| out)) {
                    Ok(out) => held_until_its_release(leadership.resign().await).map(|()| out),
                    lost => lost,
                };
                match done {
                    Ok(out) => return Ok(out),
                    Err(lost) => {
                        let election = election.lock.named();
                        tracing::warn!(election, %lost, "the lead was lost: campaigning again");
                    }
                }
            }
        }
    }

    /// The present leader, as the store reports it; `None` if no process leads.
    ///
    /// # Timing
    /// One request, up to 5 s. The answer may be out of date when it arrives.
    ///
    /// # Errors
    /// As [`Locker::inspect`](crate::Locker::inspect).
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn leader(&self) -> Result<Option<Leader>, BackendError> {
        Ok(Leader::of(self.lock.inspect().await?))
    }

    /// Follows the leader and the text that it proclaims: see [`Observer::next`].
    pub fn observe(&self) -> Observer {
        Observer::new(self.lock.clone(), self.pause)
    }
}

/// The lead, and the duty to resign: a [`Term`], to which it derefs.
///
/// # Dropping
/// Resigns in the background, as [`Guard`] releases.
#[must_use = "dropping a leadership gives it up"]
pub struct Leadership {
    guard: Guard,
    term: Term,
}

impl Leadership {
    /// As [`Guard::set_unused`].
    #[doc(hidden)]
    pub fn set_unused(&mut self) {
        self.guard.set_unused();
    }

    /// The proof of the lead, to be passed on.
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Ends the lead: the next candidate leads. Observers are notified, which may take 1 s more.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<(), ReleaseError> {
        let telling = self.guard.engine().telling(self.guard.name());
        self.guard.release().await?;
        telling.await;
        Ok(())
    }

    /// Stops the renewals and leaves the lead to its ttl, as [`Guard::detach`].
    ///
    /// # Errors
    /// As [`Guard::detach`].
    ///
    /// # Cancel safety
    /// As [`Guard::detach`].
    pub async fn detach(self) -> Result<Detached, DetachError<Self>> {
        let Self { guard, term } = self;
        guard.detach().await.map_err(|error| error.map(|guard| Self { guard, term }))
    }
}

impl Deref for Leadership {
    type Target = Term;

    fn deref(&self) -> &Term {
        &self.term
    }
}

impl AsRef<Lease> for Leadership {
    fn as_ref(&self) -> &Lease {
        &self.term.lease
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// The proof that this process leads: a [`Lease`], to which it derefs. With it the leader can proclaim a text.
#[derive(Clone)]
pub struct Term {
    lease: Lease,
    host: Arc<dyn Host>,
    proclaimed: Arc<Proclaimed>,
}

/// The text that a leader proclaimed, and when it repeats it.
#[derive(Default)]
struct Proclaimed {
    last: Mutex<Option<Said>>,
    /// The repetition is due sooner than planned.
    changed: Notify,
    /// A task repeats the text.
    is_repeated: AtomicBool,
}

/// The last text.
#[derive(Clone)]
struct Said {
    number: u64,
    memo: Memo,
    /// When to repeat it; never, if it would be refused each time.
    due: Option<Moment>,
}

/// The task that repeats the text. Another one may start when it ends, for example by a panic.
struct Repeating(Term);

impl Drop for Repeating {
    fn drop(&mut self) {
        self.0.proclaimed.is_repeated.store(false, Ordering::Release);
    }
}

impl Term {
    /// Notifies observers in the background that this term has begun. [`Election::campaign`] does this; only a
    /// program that acquired the lock itself calls it.
    ///
    /// # Cancel safety
    /// Observers may or may not be notified.
    #[doc(hidden)]
    pub async fn announce(&self) {
        self.lease.tell_observers();
    }

    /// Publishes a text, such as its address, to all clients that ask for the leader: up to 1 KiB, in place of the
    /// earlier text. They see it until this term ends.
    ///
    /// # Timing
    /// One or more requests, up to 5 s. The store keeps the text for 1 h, and the leader repeats it every 20
    /// minutes.
    ///
    /// # Errors
    /// As [`Lease::set_memo`]. If the store failed, the text is sent again in the background until this term ends.
    ///
    /// # Cancel safety
    /// The text may or may not be published.
    pub async fn proclaim(&self, text: impl AsRef<str>) -> Result<(), MemoError> {
        let memo = Memo::new(text.as_ref(), KEPT)?;
        let said = {
            let mut last = locked(&self.proclaimed.last);
            let number = last.as_ref().map_or(0, |last| last.number + 1);
            // Before the request: the text is repeated even if this future is dropped.
            last.insert(Said { number, memo, due: Some(self.host.now() + AGAIN) }).clone()
        };
        self.proclaimed.changed.notify_one();
        if !self.proclaimed.is_repeated.swap(true, Ordering::AcqRel) {
            self.lease.in_background(Repeating(self.clone()).run());
        }
        self.say(said).await
    }

    /// Sends the text to the store and notifies observers.
    ///
    /// No lock is held during the request, because a caller may stop polling its future. So an earlier text may
    /// arrive after a later one; the last request to finish sends the newest text again.
    async fn say(&self, said: Said) -> Result<(), MemoError> {
        let answer = self.lease.leave(&said.memo).await;
        let pause = match &answer {
            Ok(()) => Some(REPEATED),
            Err(MemoError::Store(_)) => Some(AGAIN),
            Err(_) => None,
        };
        if let Some(last) = locked(&self.proclaimed.last).as_mut() {
            let is_newest = last.number == said.number;
            let pause = if is_newest { pause } else { Some(Duration::ZERO) };
            last.due = pause.map(|pause| self.host.now() + pause);
        }
        self.proclaimed.changed.notify_one();
        self.lease.tell_observers();
        answer
    }
}

impl Repeating {
    /// Repeats the last text whenever that is due, until the lead has ended.
    async fn run(self) {
        let Term { lease, host, proclaimed } = &self.0;
        loop {
            let now = host.now();
            let due = locked(&proclaimed.last).as_ref().and_then(|last| last.due);
            if due.is_some_and(|due| due.is_over(now)) {
                let said = locked(&proclaimed.last).clone().expect("BUG: what is due was proclaimed");
                if let Err(error) = self.0.say(said).await {
                    tracing::debug!(error = &error as &dyn std::error::Error, "not proclaimed yet");
                }
                continue;
            }
            let until = due.unwrap_or(now + REPEATED);
            tokio::select! {
                biased;
                _ = lease.lost() => return,
                () = proclaimed.changed.notified() => {}
                () = host.sleep_until(until) => {}
            }
        }
    }
}

impl Deref for Term {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl AsRef<Lease> for Term {
    fn as_ref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.fmt(f)
    }
}

/// The state of an election, as an [`Observer`] sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// This leader leads.
    Led(Leader),
    /// No process leads now; the election goes on.
    Vacant,
}

impl Observed {
    /// The leader; `None` if no process leads.
    pub fn leader(self) -> Option<Leader> {
        match self {
            Self::Led(leader) => Some(leader),
            Self::Vacant => None,
        }
    }
}

/// Follows an election.
///
/// On stores that send hints it has a separate connection.
///
/// # Dropping
/// Ends the observation and closes the connection. Nothing is left in the store: an observer has no place there.
pub struct Observer {
    lock: Lock,
    listening: Arc<AsyncMutex<Listening>>,
    /// The query that is under way.
    looking: Option<BoxFuture<'static, Result<Observed, BackendError>>>,
    /// The last answer, if there was one.
    told: Option<Observed>,
}

/// The state that outlives a query.
struct Listening {
    pace: PollPace,
    /// Open since the first pause.
    news: Option<News>,
}

impl Observer {
    fn new(lock: Lock, pause: Duration) -> Self {
        let listening = Listening { pace: PollPace::new(pause), news: None };
        Self { lock, listening: Arc::new(AsyncMutex::new(listening)), looking: None, told: None }
    }

    /// Returns the present leader on the first call. Later calls return when another client leads, none leads, or
    /// the leader has proclaimed another text.
    ///
    /// # Timing
    /// On stores that mint a token on [entry](crate::backend::Minting::Entry), leaders notify observers when they
    /// begin, [proclaim](crate::election::Term::proclaim) and [resign](crate::election::Leadership::resign). A
    /// change is then reported a few requests later, on SQLite up to 100 ms later.
    ///
    /// Losing or dropping the lead sends no hint, and hints may be lost, as are those sent before the observer
    /// listens. Therefore the observer also polls once [a second](crate::election::Election::poll_interval).
    /// Changes are reported in their order. A leader that begins and ends between two polls is missed.
    ///
    /// # Errors
    /// The store's. The next call polls again, 1 s after this one.
    ///
    /// # Cancel safety
    /// Nothing is lost: the next call returns what has changed since.
    pub async fn next(&mut self) -> Result<Observed, BackendError> {
        // The query of a dropped call may have an old answer.
        self.looking = None;
        poll_fn(|context| self.poll_change(context)).await
    }

    fn poll_change(&mut self, context: &mut Context<'_>) -> Poll<Result<Observed, BackendError>> {
        loop {
            let Self { lock, listening, looking, told } = self;
            let looking = looking.get_or_insert_with(|| Box::pin(look(lock.clone(), listening.clone())));
            let now = ready!(looking.as_mut().poll(context));
            self.looking = None;
            let now = now?;
            if told.as_ref() != Some(&now) {
                *told = Some(now.clone());
                return Poll::Ready(Ok(now));
            }
        }
    }
}

/// Polls when that is due.
async fn look(lock: Lock, listening: Arc<AsyncMutex<Listening>>) -> Result<Observed, BackendError> {
    let mut listening = listening.lock().await;
    let Listening { pace, news } = &mut *listening;
    let hint = async {
        if news.is_none() {
            *news = lock.news().await;
        }
        match news {
            Some(news) => news.next().await,
            None => pending().await,
        }
    };
    let host = lock.host();
    let asking = pace.ask(&*host, hint, lock.inspect());
    let view = lock.engine().unless_forked(|| Err(forked()), asking).await?;
    Ok(Leader::of(view).map_or(Observed::Vacant, Observed::Led))
}

/// The same as [`next`](Observer::next); it never ends.
impl Stream for Observer {
    type Item = Result<Observed, BackendError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_change(context).map(Some)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("election", &self.lock.named()).finish_non_exhaustive()
    }
}

/// The present leader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The owner of its lease: new for every term.
    pub owner: String,
    /// Its term: its fencing token.
    pub term: FencingToken,
    /// Host, process and command, for people.
    pub label: Option<Label>,
    /// The text that it has proclaimed in this term.
    pub proclaimed: Option<String>,
    /// True if it leads through this [`Locker`](crate::Locker) or a clone of it.
    pub is_this_process: bool,
}

impl Leader {
    /// A memo of an earlier leader is not shown for this one.
    fn of(view: LockView) -> Option<Self> {
        let LockView { holders, memo, .. } = view;
        let HolderView { owner, token, label, is_this_process, .. } =
            holders.into_iter().find(|holder| holder.token.is_some())?;
        let proclaimed = memo.filter(|memo| memo.owner == owner).map(|memo| memo.text);
        Some(Self { term: token?, owner, label, proclaimed, is_this_process })
    }
}

/// How long the store keeps a proclaimed text: 1 h. After that, nothing is left of an election that is no longer
/// used.
const KEPT: Duration = Duration::from_secs(3600);
/// How often the leader repeats the text: every 20 minutes.
const REPEATED: Duration = Duration::from_secs(1200);
/// When the leader repeats a text that could not be stored: after 5 s.
const AGAIN: Duration = Duration::from_secs(5);

//! `Watch`: locks as they change.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::{pending, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{Stream, future::try_join_all};
use tenure_core::{
    BackendError, BoxFuture, FencingToken, HolderView, LockName, LockView, Mode, Moment, WaiterView,
};

use tokio::sync::Mutex as AsyncMutex;

use crate::{engine::request::forked, locker::Locker, pace::PollPace};

/// How often the store is polled: once a second, which costs the store little and is often enough for a person.
const PERIOD: Duration = Duration::from_secs(1);

/// Locks as they change: made by [`Locker::watch`] and [`Locker::watch_all`].
///
/// The store is polled once per [period](Self::poll_interval). A lock is reported if its holders, their tokens or its
/// queue have changed since. A renewal is not a change, nor is a larger [fence](LockView::fence): some stores count the
/// tokens of all locks together. For people and for monitoring: a view may be out of date when it arrives, and does not
/// prove that a process holds a lock.
///
/// # What is not promised
/// A new memo is not a change: follow an election with its [`Observer`](crate::election::Observer). A lock that is
/// free again is reported without the memo that it may still have.
///
/// Changes shorter than the period may be missed, such as a lock that was acquired and released in between. On every
/// store a change is reported up to one period late: nothing is pushed.
///
/// # Example: print the holder of a lock
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = tenure::connect("memory:").await?;
/// let mut watch = locks.watch("nightly");
/// assert!(watch.next().await?.holders.is_empty());
/// let guard = locks.mutex("nightly").acquire().await?;
/// let view = watch.next().await?;
/// println!("{} is held by {}", view.name, view.holders[0].who());
/// assert_eq!(view.holders[0].token, Some(guard.token()));
/// # guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Watch {
    locks: Locker,
    of: Of,
    pace: Arc<AsyncMutex<Pacing>>,
    /// The query that is under way.
    asking: Option<BoxFuture<'static, Result<Vec<LockView>, BackendError>>>,
    known: BTreeMap<LockName, LockView>,
    /// Reported by the next calls of `next`.
    changed: VecDeque<LockView>,
}

/// When the store is asked, and when it was asked last for all locks and how long that took: a store with many keys of others
/// is walked for a tenth of the time at most.
struct Pacing {
    pace: PollPace,
    listed: Option<(Moment, Duration)>,
}

/// The locks to watch.
#[derive(Clone, Debug)]
enum Of {
    /// The name is checked when it is used.
    One(String),
    All {
        prefix: String,
    },
}

impl Locker {
    /// The changes of one lock, from now on; see [`Watch`].
    pub fn watch(&self, name: impl AsRef<str>) -> Watch {
        Watch::new(self.clone(), Of::One(name.as_ref().to_owned()))
    }

    /// The changes of all locks whose names start with `prefix`, from now on, with one query for all of them; see
    /// [`Watch`].
    pub fn watch_all(&self, prefix: impl AsRef<str>) -> Watch {
        Watch::new(self.clone(), Of::All { prefix: prefix.as_ref().to_owned() })
    }
}

impl Watch {
    fn new(locks: Locker, of: Of) -> Self {
        Self {
            locks,
            of,
            pace: paced(PERIOD),
            asking: None,
            known: BTreeMap::new(),
            changed: VecDeque::new(),
        }
    }

    /// Polls the store once in this period. Default: 1 s. At least 10 ms.
    #[must_use]
    pub fn poll_interval(self, period: Duration) -> Self {
        Self { pace: paced(period), ..self }
    }

    /// Waits for the next change. The first calls report the present state: of the one lock, or of all that are
    /// held or waited for. A lock that is free again is reported without holders and queue.
    ///
    /// # Errors
    /// The store's. The next call polls again, one period later: the watch goes on.
    ///
    /// # Cancel safety
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Result<LockView, BackendError> {
        self.asking = None;
        poll_fn(|context| self.poll_change(context)).await
    }

    fn poll_change(&mut self, context: &mut Context<'_>) -> Poll<Result<LockView, BackendError>> {
        loop {
            if let Some(view) = self.changed.pop_front() {
                return Poll::Ready(Ok(view));
            }
            let changed = ready!(self.poll_look(context))?;
            self.changed.extend(changed);
        }
    }

    /// Waits until the period has passed, polls the store once, and returns the changes since the last poll, which
    /// may be none.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    ///
    /// # Cancel safety
    /// As [`next`](Self::next).
    pub async fn look(&mut self) -> Result<Vec<LockView>, BackendError> {
        // The query of a dropped call may have an old answer.
        self.asking = None;
        poll_fn(|context| self.poll_look(context)).await
    }

    fn poll_look(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<LockView>, BackendError>> {
        let Self { locks, of, pace, asking, known, .. } = self;
        let known = || known.keys().cloned().collect();
        let asking =
            asking.get_or_insert_with(|| Box::pin(ask(locks.clone(), of.clone(), known(), pace.clone())));
        let views = ready!(asking.as_mut().poll(context));
        self.asking = None;
        Poll::Ready(views.map(|views| self.take(views)))
    }

    /// How long a new lock may stay unseen by [`Locker::watch_all`], if that is longer than the period: ten times as long as the
    /// last list of all locks took.
    pub fn list_interval(&self) -> Option<Duration> {
        let pacing = self.pace.try_lock().ok()?;
        let (_, took) = pacing.listed?;
        (took * 10 > pacing.pace.period()).then_some(took * 10)
    }

    /// The state at the last poll, by name. The remaining times of leases are as old as that poll.
    pub fn latest(&self) -> impl Iterator<Item = &LockView> {
        self.known.values()
    }

    fn take(&mut self, views: Vec<LockView>) -> Vec<LockView> {
        let mut before = mem::take(&mut self.known);
        let mut changed = Vec::new();
        for view in views {
            let was = before.remove(&view.name);
            if was.is_none_or(|was| shape(&was) != shape(&view)) {
                changed.push(view.clone());
            }
            self.known.insert(view.name.clone(), view);
        }
        let free = |(name, was): (_, LockView)| LockView::new(name, Vec::new(), Vec::new(), was.fence);
        changed.extend(before.into_iter().map(free));
        changed
    }
}

/// Polls when the period has passed.
async fn ask(
    locks: Locker,
    of: Of,
    known: Vec<LockName>,
    pacing: Arc<AsyncMutex<Pacing>>,
) -> Result<Vec<LockView>, BackendError> {
    let mut pacing = pacing.lock().await;
    let Pacing { pace, listed } = &mut *pacing;
    let question = async {
        let now = locks.host().now();
        match &of {
            Of::One(name) => locks.inspect(name).await.map(|view| vec![view]),
            Of::All { .. } if listed.is_some_and(|(at, took)| at.elapsed(now) < took * 10) => {
                let mut views = try_join_all(known.iter().map(|name| locks.inspect(name))).await?;
                views.retain(|view| !(view.holders.is_empty() && view.queue.is_empty()));
                Ok(views)
            }
            Of::All { prefix } => {
                let views = locks.list(prefix).await?;
                *listed = Some((now, now.elapsed(locks.host().now())));
                Ok(views)
            }
        }
    };
    let asking = pace.ask(&**locks.host(), pending(), question);
    locks.engine().unless_forked(|| Err(forked()), asking).await
}

fn paced(period: Duration) -> Arc<AsyncMutex<Pacing>> {
    Arc::new(AsyncMutex::new(Pacing { pace: PollPace::new(period), listed: None }))
}

/// The same as [`next`](Watch::next); it never ends.
///
/// ```
/// use futures_util::StreamExt;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = tenure::connect("memory:").await?;
/// let mut first = locks.watch("nightly").take(1);
/// let view = first.next().await.expect("it never ends")?;
/// assert_eq!(view.name.as_str(), "nightly");
/// # Ok(()) }
/// ```
impl Stream for Watch {
    type Item = Result<LockView, BackendError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_change(context).map(Some)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("of", &self.of).finish_non_exhaustive()
    }
}

/// The parts of a view that change neither as time passes nor with other locks.
fn shape(view: &LockView) -> (Vec<Holds<'_>>, Vec<&str>) {
    let holds = |held: &HolderView| (held.token, held.mode);
    let holders = view.holders.iter().map(|held| (held.owner.as_str(), holds(held))).collect();
    let queue = view.queue.iter().map(|waits: &WaiterView| waits.owner.as_str()).collect();
    (holders, queue)
}

type Holds<'a> = (&'a str, (Option<FencingToken>, Mode));

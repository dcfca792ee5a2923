//! `Watch`: locks as they change.

use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    mem,
    time::Duration,
};

use futures_util::{Stream, stream::unfold};
use tenure_core::{BackendError, FencingToken, HolderView, LockName, LockView, Mode, WaiterView};

use crate::{engine::request::forked, locker::Locker, pace::Pace};

/// How often the store is asked: once a second, which costs the store nothing worth naming and shows a person what goes on.
const PERIOD: Duration = Duration::from_secs(1);

/// Locks as they change: made by [`Locker::watch`] and [`Locker::watch_all`].
///
/// The store is asked once in a [period](Self::every), and what has changed since is reported: holders, their tokens, the
/// queue, the fence. That a lease was renewed is no change. For people and programs that look on: a view may be old when it
/// arrives, and is no reason to believe that one holds.
///
/// # What is not promised
/// A memo that a holder leaves is no change: follow an election with its [`Observer`](crate::Observer). And a lock that is free
/// again is reported without the memo that it may still have.
///
/// What lasts less than the period may be missed: a lock that was taken and given back in between shows as a larger
/// [fence](LockView::fence), and with [`Locker::watch_all`] not at all. A change is seen up to one period late, on every
/// store: nothing is pushed here.
///
/// # Example: to say who holds a lock
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
    pace: Pace,
    known: BTreeMap<LockName, LockView>,
    /// Reported by the next calls of `next`.
    changed: VecDeque<LockView>,
}

/// Which locks.
enum Of {
    /// Whether it is a name is found when it is asked for.
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

    /// The changes of all locks whose names start with `prefix`, from now on, by one question to the store for all; see
    /// [`Watch`].
    pub fn watch_all(&self, prefix: impl AsRef<str>) -> Watch {
        Watch::new(self.clone(), Of::All { prefix: prefix.as_ref().to_owned() })
    }
}

impl Watch {
    fn new(locks: Locker, of: Of) -> Self {
        let (known, changed) = (BTreeMap::new(), VecDeque::new());
        Self { locks, of, pace: Pace::new(PERIOD), known, changed }
    }

    /// Asks the store so often. Default: once a second. At least 10 ms.
    #[must_use]
    pub fn every(self, period: Duration) -> Self {
        Self { pace: Pace::new(period), ..self }
    }

    /// Waits for the next change. The first calls report what is there: the one lock, or those that are held or waited for. A
    /// lock that is free again is reported without holders and queue.
    ///
    /// # Errors
    /// The store's. The next call asks again, a period later: the watch goes on.
    ///
    /// # Cancel safety
    /// No change is lost by dropping the future.
    pub async fn next(&mut self) -> Result<LockView, BackendError> {
        loop {
            if let Some(view) = self.changed.pop_front() {
                return Ok(view);
            }
            let changed = self.look().await?;
            self.changed.extend(changed);
        }
    }

    /// Waits until the period is over, asks the store once, and answers what has changed since it was asked last; that may be
    /// nothing.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    ///
    /// # Cancel safety
    /// As [`next`](Self::next).
    pub async fn look(&mut self) -> Result<Vec<LockView>, BackendError> {
        let host = self.locks.host().clone();
        let question = async {
            match &self.of {
                Of::One(name) => self.locks.inspect(name).await.map(|view| vec![view]),
                Of::All { prefix } => self.locks.list(prefix).await,
            }
        };
        let asking = self.pace.ask(&*host, pending(), question);
        let views = self.locks.engine().unless_forked(|| Err(forked()), asking).await?;
        Ok(self.take(views))
    }

    /// What was there when the store was asked last, by name: how long the leases still last is as old as that.
    pub fn latest(&self) -> impl Iterator<Item = &LockView> {
        self.known.values()
    }

    /// As a stream of what [`next`](Self::next) answers, which never ends.
    ///
    /// ```
    /// use futures_util::StreamExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let mut views = std::pin::pin!(locks.watch("nightly").into_stream());
    /// let view = views.next().await.expect("it never ends")?;
    /// assert_eq!(view.name.as_str(), "nightly");
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = Result<LockView, BackendError>> + Send {
        unfold(self, |mut watch| async move {
            let view = watch.next().await;
            Some((view, watch))
        })
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

/// What of a view is no matter of time passing.
fn shape(view: &LockView) -> (Vec<Holds<'_>>, Vec<&str>, FencingToken) {
    let holds = |held: &HolderView| (held.token, held.mode);
    let holders = view.holders.iter().map(|held| (held.owner.as_str(), holds(held))).collect();
    let queue = view.queue.iter().map(|waits: &WaiterView| waits.owner.as_str()).collect();
    (holders, queue, view.fence)
}

type Holds<'a> = (&'a str, (Option<FencingToken>, Mode));

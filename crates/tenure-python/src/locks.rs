//! What can be asked of a store.

use std::{process, sync::Arc};

use pyo3::{exceptions::PyValueError, prelude::*};
use tenure::{
    AcquireError, AllOf, AnyOf, BackendError, HoldError, Label, Locker, OwnerId,
    command::this_process,
    election::{Leader, Observed},
    once::{LastRun, Turn as Due},
    view::{BreakScope, Finding, HolderView, LockView},
};

use crate::{
    call::Call,
    errors::Raise,
    leases::{Granted, Guard, Held},
    own::Own,
    runtime::{FLUSH, leave, runtime},
    settings::{Seconds, Settings},
    views::json,
};

/// A connected store.
#[pyclass(module = "tenure._native", frozen, weakref)]
pub(crate) struct Store {
    locker: Own<Locker>,
}

/// What was dropped is released first.
impl Drop for Store {
    fn drop(&mut self) {
        if let Some(locker) = self.locker.take() {
            leave(async move {
                locker.flush(FLUSH).await;
            });
        }
    }
}

/// A look at the store, whose answer is JSON.
fn look<V: crate::views::Json + Send + 'static>(
    work: impl Future<Output = Result<V, BackendError>> + Send + 'static,
) -> Call {
    Call::new(work, |_, view| json(&view))
}

#[pymethods]
impl Store {
    /// The store of a URL, for a program of this name.
    #[new]
    fn new(py: Python<'_>, url: String, command: &str) -> PyResult<Self> {
        let runtime = runtime()?;
        // Most stores send nothing yet; one that opens a file does so here.
        let connected = py.detach(|| runtime.block_on(tenure::connect(&url)));
        let locker = connected.map_err(|error| error.raise(py))?;
        // The pid of the parent is known where it forked.
        let parent = this_process();
        let label = Label::new(&parent.host, process::id(), &parent.user, command);
        Ok(Self { locker: Own::new(locker.with_label(label)) })
    }

    /// What the store is, and how far its locks reach.
    fn about(&self) -> PyResult<(String, String)> {
        let promises = self.locker.get()?.promises();
        Ok((promises.backend.to_owned(), promises.reach.to_string()))
    }

    fn mutex(&self, name: &str, settings: Settings) -> PyResult<Lock> {
        Lock::one(self.locker.get()?.mutex(name), &settings)
    }

    fn read(&self, name: &str, settings: Settings) -> PyResult<Lock> {
        Lock::one(self.locker.get()?.rwlock(name).read(), &settings)
    }

    fn write(&self, name: &str, settings: Settings) -> PyResult<Lock> {
        Lock::one(self.locker.get()?.rwlock(name).write(), &settings)
    }

    fn semaphore(&self, name: &str, slots: u32, settings: Settings) -> PyResult<Lock> {
        Lock::one(self.locker.get()?.semaphore(name, slots), &settings)
    }

    fn all(&self, names: Vec<String>, settings: Settings) -> PyResult<Lock> {
        let all = self.locker.get()?.all(names).with(|lock| settings.apply(lock));
        let all = match settings.wait() {
            Some(limit) => all.within(limit),
            None => all,
        };
        Ok(Lock::new(Claim::All(all)))
    }

    fn any(&self, names: Vec<String>, settings: Settings) -> PyResult<Lock> {
        let any = self.locker.get()?.any(names).with(|lock| settings.apply(lock));
        let any = match settings.wait() {
            Some(limit) => any.within(limit),
            None => any,
        };
        Ok(Lock::new(Claim::Any(any)))
    }

    fn once(
        &self,
        name: &str,
        interval: Seconds,
        jitter: Option<Seconds>,
        even_if_failed: bool,
        settings: Settings,
    ) -> PyResult<Once> {
        let mut once = self.locker.get()?.once(name).interval(interval.0).with(|lock| settings.apply(lock));
        if let Some(jitter) = jitter {
            once = once.jitter(jitter.0);
        }
        if even_if_failed {
            once = once.even_if_failed();
        }
        Ok(Once { once: Own::new(Arc::new(once)) })
    }

    fn election(&self, name: &str, settings: Settings) -> PyResult<Election> {
        let election = self.locker.get()?.election(name).with(|lock| settings.apply(lock));
        Ok(Election { election: Own::new(election) })
    }

    fn watch(&self, name: &str) -> PyResult<Watch> {
        Ok(Watch::new(self.locker.get()?.watch(name)))
    }

    fn watch_all(&self, prefix: &str) -> PyResult<Watch> {
        Ok(Watch::new(self.locker.get()?.watch_all(prefix)))
    }

    fn inspect(&self, name: String) -> PyResult<Call> {
        let locker = self.locker.get()?.clone();
        Ok(look::<LockView>(async move { locker.inspect(name).await }))
    }

    fn list(&self, prefix: String) -> PyResult<Call> {
        let locker = self.locker.get()?.clone();
        Ok(look::<Vec<LockView>>(async move { locker.list(prefix).await }))
    }

    fn diagnose(&self) -> PyResult<Call> {
        let locker = self.locker.get()?.clone();
        Ok(look::<Vec<Finding>>(async move { locker.diagnose().await }))
    }

    fn force_release(&self, name: String, owner: Option<String>) -> PyResult<Call> {
        let locker = self.locker.get()?.clone();
        let owner = owner.map(|owner| owner.parse::<OwnerId>()).transpose();
        let owner = owner.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(look::<Vec<HolderView>>(async move {
            match owner {
                Some(owner) => locker.force_release_from(name, BreakScope::Owner(owner)).await,
                None => locker.force_release(name).await,
            }
        }))
    }

    fn new_owner(&self) -> PyResult<String> {
        Ok(self.locker.get()?.new_owner().to_string())
    }

    /// Waits until what was dropped is released, for at most a second.
    fn flush(&self) -> PyResult<Call> {
        let locker = self.locker.get()?.clone();
        Ok(Call::new(async move { Ok::<_, BackendError>(locker.flush(FLUSH).await) }, |_, done| Ok(done)))
    }
}

/// A lock, all of several, or any of several.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Lock {
    claim: Own<Claim>,
}

#[derive(Clone)]
enum Claim {
    One(Box<tenure::Lock>),
    All(AllOf),
    Any(AnyOf),
}

impl Lock {
    fn new(claim: Claim) -> Self {
        Self { claim: Own::new(claim) }
    }

    fn one(lock: tenure::Lock, settings: &Settings) -> PyResult<Self> {
        Ok(Self::new(Claim::One(Box::new(settings.apply(lock)))))
    }
}

/// A claim, whose grant goes back if its caller does not wait for it any more.
fn grant<E: Raise + Send + 'static>(claim: impl Future<Output = Result<Held, E>> + Send + 'static) -> Call {
    Call::new(async move { claim.await.map(Granted::new) }, |_, granted| Ok(granted.deliver()))
}

#[pymethods]
impl Lock {
    /// Waits for at most this long; without it, as long as the lock's own limit says.
    fn acquire(&self, wait: Option<Seconds>) -> PyResult<Call> {
        let mut claim = self.claim.get()?.clone();
        if let Some(Seconds(limit)) = wait {
            claim = match claim {
                Claim::One(lock) => Claim::One(Box::new(lock.within(limit))),
                Claim::All(all) => Claim::All(all.within(limit)),
                Claim::Any(any) => Claim::Any(any.within(limit)),
            };
        }
        let acquired = async move {
            Ok::<_, AcquireError>(match claim {
                Claim::One(lock) => Held::One(lock.acquire().await?),
                Claim::All(all) => Held::Several(all.acquire().await?),
                Claim::Any(any) => Held::One(any.acquire().await?),
            })
        };
        Ok(grant(acquired))
    }

    /// Continues a lease that another process has left.
    fn attach(&self, owner: &str) -> PyResult<Call> {
        let owner = owner.parse::<OwnerId>().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let Claim::One(lock) = self.claim.get()?.clone() else {
            return Err(PyValueError::new_err("a lease of one lock is attached to, not of several"));
        };
        Ok(grant(async move { lock.attach(owner).await.map(Held::One) }))
    }
}

/// A job that runs once per interval.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Once {
    once: Own<Arc<tenure::once::RunOnce>>,
}

#[pymethods]
impl Once {
    /// A guard and its turn; or the last run, as JSON, which still counts.
    fn begin(&self) -> PyResult<Call> {
        type Begun = Result<(Granted, Due), LastRun>;
        let once = self.once.get()?.clone();
        let begin = async move {
            let begun = once.begin().await?;
            Ok::<_, HoldError>(begun.map(|(guard, turn)| (Granted::new(Held::One(guard)), turn)))
        };
        let make = |_: Python<'_>, begun: Begun| -> PyResult<(Option<Guard>, Option<Turn>, Option<String>)> {
            Ok(match begun {
                Ok((granted, turn)) => (Some(granted.deliver()), Some(Turn(turn)), None),
                Err(last) => (None, None, Some(json(&last)?)),
            })
        };
        Ok(Call::new(begin, make))
    }

    /// Counts a run under this lease, which took this long.
    fn count(&self, lease: &crate::leases::Lease, turn: &Turn, took: Seconds) -> PyResult<Call> {
        let (once, lease, turn) = (self.once.get()?.clone(), lease.lease()?, turn.0);
        Ok(Call::new(async move { once.count(&lease, turn, took.0).await }, |_, ()| Ok(())))
    }

    /// The last run that counts, as JSON, or `None`.
    fn last(&self) -> PyResult<Call> {
        let once = self.once.get()?.clone();
        Ok(Call::new(async move { once.last().await }, |_, last| last.as_ref().map(json).transpose()))
    }
}

/// That a run is due.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Turn(Due);

/// An election.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Election {
    election: Own<tenure::election::Election>,
}

#[pymethods]
impl Election {
    /// Waits until this process leads, for at most this long; without it, as long as the election's own limit says.
    fn acquire(&self, wait: Option<Seconds>) -> PyResult<Call> {
        let mut election = self.election.get()?.clone();
        if let Some(Seconds(limit)) = wait {
            election = election.with(|lock| lock.within(limit));
        }
        Ok(grant(async move { election.campaign().await.map(Held::Lead) }))
    }

    #[expect(clippy::unused_self, reason = "what a lock has")]
    fn attach(&self, _owner: &str) -> PyResult<Call> {
        Err(PyValueError::new_err("a lease of one lock is attached to, not a lead"))
    }

    /// The leader as JSON, or `None`.
    fn leader(&self) -> PyResult<Call> {
        let election = self.election.get()?.clone();
        let make = |_: Python<'_>, leader: Option<Leader>| leader.as_ref().map(json).transpose();
        Ok(Call::new(async move { election.leader().await }, make))
    }

    fn observe(&self) -> PyResult<Observer> {
        Ok(Observer { observer: Own::new(Arc::new(tokio::sync::Mutex::new(self.election.get()?.observe()))) })
    }
}

/// Follows an election.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Observer {
    observer: Own<Arc<tokio::sync::Mutex<tenure::election::Observer>>>,
}

#[pymethods]
impl Observer {
    /// The next leader as JSON, or `None` for a vacancy.
    fn next(&self) -> PyResult<Call> {
        let observer = self.observer.get()?.clone();
        let make = |_: Python<'_>, seen: Observed| seen.leader().as_ref().map(json).transpose();
        Ok(Call::new(async move { observer.lock().await.next().await }, make))
    }
}

/// Locks as they change.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Watch {
    watch: Own<Arc<tokio::sync::Mutex<tenure::view::Watch>>>,
}

impl Watch {
    fn new(watch: tenure::view::Watch) -> Self {
        Self { watch: Own::new(Arc::new(tokio::sync::Mutex::new(watch))) }
    }
}

#[pymethods]
impl Watch {
    /// The next change, as JSON.
    fn next(&self) -> PyResult<Call> {
        let watch = self.watch.get()?.clone();
        Ok(look::<LockView>(async move { watch.lock().await.next().await }))
    }
}

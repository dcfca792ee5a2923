//! The same locks for programs without a runtime.
//!
//! Thin: every call runs the asynchronous one, with its connections on a thread of their own. Do not call from within an
//! asynchronous runtime: it would block its thread, and tokio panics at that.
//!
//! ```
//! let locks = tenure::blocking::connect("memory:")?;
//! let guard = locks.mutex("nightly").acquire()?;
//! println!("token {}", guard.token());
//! guard.release()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    io,
    ops::Deref,
    sync::{Arc, mpsc},
    time::Duration,
};

use tenure_core::Host;
use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    error::{AcquireError, ConfigError, Lost, ReleaseError},
    host::TokioHost,
};

/// A connected store of locks, for threads.
#[derive(Clone)]
pub struct Locker {
    inner: crate::Locker,
    runtime: Arc<Apart>,
}

/// A lock in one mode, for threads.
#[derive(Clone)]
pub struct Lock {
    inner: crate::Lock,
    runtime: Arc<Apart>,
}

/// The proof that this process holds a lock. Dropping releases it in the background; everything that does not wait is
/// called through [`Deref`].
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    inner: crate::Guard,
    runtime: Arc<Apart>,
}

/// Connects to the store that a URL names.
///
/// # Errors
/// As [`connect`](crate::connect); also if no thread can be started.
pub fn connect(url: &str) -> Result<Locker, ConfigError> {
    let failed = |error: io::Error| ConfigError::Url(format!("no thread can be started: {error}"));
    let runtime = Apart::start().map_err(failed)?;
    let inner = runtime.block_on(crate::connect(url))?;
    Ok(Locker { inner, runtime: Arc::new(runtime) })
}

/// A runtime on a thread of its own, which ends with this. Connections live there, also while nobody calls.
struct Apart {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Apart {
    /// Not tokio's own workers: where no thread can be started, those panic.
    fn start() -> io::Result<Self> {
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let start = move || -> tenure_core::BoxFuture<'static, ()> {
            let _ = tell.send(Handle::current());
            Box::pin(async move {
                let _ = stopped.await;
            })
        };
        TokioHost.spawn_apart("tenure-blocking", Box::new(start))?;
        let handle = told.recv().map_err(io::Error::other)?;
        Ok(Self { handle, _stop: stop })
    }

    fn block_on<A>(&self, work: impl Future<Output = A>) -> A {
        self.handle.block_on(work)
    }
}

impl Locker {
    fn lock(&self, inner: crate::Lock) -> Lock {
        Lock { inner, runtime: self.runtime.clone() }
    }

    /// As [`Locker::mutex`](crate::Locker::mutex).
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock {
        self.lock(self.inner.mutex(name))
    }

    /// As [`RwLock::read`](crate::RwLock::read).
    pub fn read(&self, name: impl AsRef<str>) -> Lock {
        self.lock(self.inner.rwlock(name).read())
    }

    /// As [`RwLock::write`](crate::RwLock::write).
    pub fn write(&self, name: impl AsRef<str>) -> Lock {
        self.lock(self.inner.rwlock(name).write())
    }

    /// As [`Locker::semaphore`](crate::Locker::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, slots: u32) -> Lock {
        self.lock(self.inner.semaphore(name, slots))
    }
}

impl Lock {
    /// With settings of the asynchronous lock.
    #[must_use]
    pub fn with(self, set: impl FnOnce(crate::Lock) -> crate::Lock) -> Self {
        Self { inner: set(self.inner), ..self }
    }

    /// Waits until this process holds the lock.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub fn acquire(&self) -> Result<Guard, AcquireError> {
        let inner = self.runtime.block_on(self.inner.acquire())?;
        Ok(Guard { inner, runtime: self.runtime.clone() })
    }

    /// Asks once.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`](crate::Lock::try_acquire).
    pub fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        let inner = self.runtime.block_on(self.inner.try_acquire())?;
        Ok(inner.map(|inner| Guard { inner, runtime: self.runtime.clone() }))
    }

    /// Waits for at most `patience`.
    ///
    /// # Errors
    /// As [`Lock::acquire_within`](crate::Lock::acquire_within).
    pub fn acquire_within(&self, patience: Duration) -> Result<Guard, AcquireError> {
        let inner = self.runtime.block_on(self.inner.acquire_within(patience))?;
        Ok(Guard { inner, runtime: self.runtime.clone() })
    }
}

impl Guard {
    /// Gives the lock back.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<(), ReleaseError> {
        self.runtime.block_on(self.inner.release())
    }

    /// Waits until the lease is lost.
    pub fn lost(&self) -> Lost {
        self.runtime.block_on(self.inner.lost())
    }
}

impl Deref for Guard {
    type Target = crate::Guard;

    fn deref(&self) -> &crate::Guard {
        &self.inner
    }
}

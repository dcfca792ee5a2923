//! The common steps of every request to the store: a timeout, the keeper's own handle, and the check for a fork.
//!
//! A forked child has the memory of its parent and one of its threads. It would wait for a thread that it does not
//! have, read the answers of its parent from their common connection, or hold under a lease of its parent. So each
//! verb checks the process id at every poll, before it locks anything.

use std::{
    fmt::Display,
    mem,
    pin::Pin,
    process,
    task::{Context, Poll, ready},
    time::Duration,
};

use tenure_core::{BackendError, BackendHandle, ErrorKind, Host, Moment, Outcome};
use tokio::sync::OnceCell;

use crate::engine::{calm::Calm, telemetry::Telemetry};

/// Asks once, and repeats only while the store reports a transient overload.
///
/// # Errors
/// The store's own, or `TimedOut` with an unknown outcome when no answer came in time.
pub(crate) async fn request<A, F>(
    host: &dyn Host,
    sent_at: Moment,
    timeout: Duration,
    mut ask: impl FnMut() -> F,
) -> Result<A, BackendError>
where
    F: Future<Output = Result<A, BackendError>>,
{
    let mut over = host.sleep_until(sent_at + timeout);
    loop {
        let answer = tokio::select! {
            biased;
            answer = ask() => answer,
            () = &mut over => return Err(unanswered(timeout)),
        };
        let error = match answer {
            Err(error) if error.kind() == ErrorKind::Throttled => error,
            answer => return answer,
        };
        let again = host.now() + error.retry_hint().unwrap_or(Duration::from_millis(1));
        if sent_at.elapsed(again) >= timeout {
            return Err(error);
        }
        host.sleep_until(again).await;
    }
}

pub(crate) fn unanswered(timeout: Duration) -> BackendError {
    let message = format!("the store did not answer within {timeout:.1?}");
    BackendError::new(ErrorKind::TimedOut, Outcome::Unknown, message)
}

/// The keeper's own handle to the store, made on its thread when first needed.
pub(crate) struct KeeperStore {
    main: BackendHandle,
    own: OnceCell<BackendHandle>,
    pub(crate) telemetry: Telemetry,
    pub(crate) calm: Calm,
}

impl KeeperStore {
    pub(crate) fn new(main: BackendHandle, telemetry: Telemetry) -> Self {
        Self { main, own: OnceCell::new(), telemetry, calm: Calm::default() }
    }

    pub(crate) async fn backend(&self) -> Result<BackendHandle, BackendError> {
        self.own.get_or_try_init(|| self.main.handle()).await.cloned()
    }
}

/// Work, and its result in a forked child.
///
/// # Dropping
/// In a child nothing is dropped, because a thread of the parent may have locked a mutex in it.
pub(crate) struct Unforked<W: Future, F> {
    pid: u32,
    work: Option<Pin<Box<W>>>,
    forked: F,
}

impl<W: Future, F> Unforked<W, F> {
    /// For the process with this id.
    pub(crate) fn new(pid: u32, forked: F, work: W) -> Self {
        Self { pid, work: Some(Box::pin(work)), forked }
    }
}

impl<W: Future, F: Fn() -> W::Output + Unpin> Future for Unforked<W, F> {
    type Output = W::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<W::Output> {
        if self.pid != process::id() {
            return Poll::Ready((self.forked)());
        }
        let work = self.work.as_mut().expect("BUG: polled after its end");
        let output = ready!(work.as_mut().poll(context));
        // Here the process was looked at: a look costs a system call.
        self.work = None;
        Poll::Ready(output)
    }
}

impl<W: Future, F> Drop for Unforked<W, F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| self.pid != process::id()) {
            mem::forget(work);
        }
    }
}

/// The error of each verb in a forked child.
pub(crate) fn forked() -> BackendError {
    let message = "this process was forked from the one that connected; connect anew in it";
    BackendError::new(ErrorKind::Forked, Outcome::NotApplied, message)
}

/// Refused before anything was sent.
pub(crate) fn invalid(why: impl Display) -> BackendError {
    BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, why.to_string())
}

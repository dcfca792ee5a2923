//! What every request to the store goes through: a time-out, the keeper's own handle, and the question which
//! process this is.
//!
//! A forked child has the memory of its parent and one of its threads: it would wait for a thread that it
//! does not have, take the answers of its parent off their common connection, or enter under a lease that is
//! not its own. So each verb asks first which process this is, at every poll, before it locks anything.

use std::{
    fmt::Display,
    mem,
    pin::Pin,
    process,
    task::{Context, Poll},
    time::Duration,
};

use tenure_core::{BackendError, BackendHandle, ErrorKind, Host, Moment, Outcome};
use tokio::sync::OnceCell;

use crate::engine::telemetry::Telemetry;

/// Asks once, and again only while the store says that it is busy with others for a moment.
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

fn unanswered(timeout: Duration) -> BackendError {
    let message = format!("the store did not answer within {timeout:.1?}");
    BackendError::new(ErrorKind::TimedOut, Outcome::Unknown, message)
}

/// The keeper's own handle to the store, made on its thread when first needed.
pub(crate) struct KeeperStore {
    main: BackendHandle,
    own: OnceCell<BackendHandle>,
    pub(crate) telemetry: Telemetry,
}

impl KeeperStore {
    pub(crate) fn new(main: BackendHandle, telemetry: Telemetry) -> Self {
        Self { main, own: OnceCell::new(), telemetry }
    }

    pub(crate) async fn backend(&self) -> Result<BackendHandle, BackendError> {
        self.own.get_or_try_init(|| self.main.handle()).await.cloned()
    }
}

/// Work, and what it comes to in a forked child.
///
/// # Dropping
/// In a child nothing is dropped: a thread of the parent may have had a mutex of it locked.
pub(crate) struct Unforked<W: Future, F> {
    pid: u32,
    work: Option<Pin<Box<W>>>,
    forked: F,
}

impl<W: Future, F> Unforked<W, F> {
    /// Of the process with this id.
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
        self.work.as_mut().expect("BUG: it is there until it is dropped").as_mut().poll(context)
    }
}

impl<W: Future, F> Drop for Unforked<W, F> {
    fn drop(&mut self) {
        if self.pid != process::id() {
            mem::forget(self.work.take());
        }
    }
}

/// What each verb answers in a forked child.
pub(crate) fn forked() -> BackendError {
    let message = "this process was forked from the one that connected; connect anew in it";
    BackendError::new(ErrorKind::Forked, Outcome::NotApplied, message)
}

/// Refused before anything was sent.
pub(crate) fn invalid(why: impl Display) -> BackendError {
    BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, why.to_string())
}

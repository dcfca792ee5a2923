//! `Unforked`: work that only the process does which began it.
//!
//! A forked child has the memory of its parent and one of its threads: it would wait for a thread that it does not have, take the answers of
//! its parent off their common connection, or enter under a lease that is not its own. So each verb asks first which process this is, at
//! every poll, before it locks anything.

use std::{
    future::Future,
    mem,
    pin::Pin,
    process,
    task::{Context, Poll},
};

use tenure_core::{BackendError, ErrorKind, Outcome};

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

/// What each verb says in a forked child.
pub(crate) fn forked() -> BackendError {
    let message = "this process was forked from the one that connected; connect anew in it";
    BackendError::new(ErrorKind::Forked, Outcome::NotApplied, message)
}

//! `Host`: the only source of time, tasks and random numbers.

use std::{future::Future, io, pin::Pin};

use crate::moment::Moment;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes the task of a new thread, on that thread.
pub type Start = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// The machine that runs Tenure. In production it is tokio; a simulation has its own.
///
/// The engine and the backends read clocks, wait, start tasks and draw random numbers only through it.
pub trait Host: Send + Sync + 'static {
    /// Reads both clocks.
    fn now(&self) -> Moment;

    /// Waits until the clock that counts suspend has reached `until`, or a little longer.
    ///
    /// It may be late by the length of a suspend. A caller that waits for a deadline reads the clock again
    /// afterwards.
    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()>;

    /// Starts a task that runs concurrently with the caller.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// The same, if the caller is in a runtime; otherwise the task is returned.
    ///
    /// # Errors
    /// The task, which was not started.
    fn try_spawn(&self, task: BoxFuture<'static, ()>) -> Result<(), BoxFuture<'static, ()>> {
        self.spawn(task);
        Ok(())
    }

    /// Starts a task on a separate thread, where no code of the user can starve it.
    ///
    /// `start` runs on that thread, so that its connections belong to that thread. May be called from anywhere,
    /// even outside a runtime.
    ///
    /// # Errors
    /// If the system starts no thread, or lacks a resource that a runtime needs. Then `start` is dropped and not
    /// called.
    fn spawn_apart(&self, name: &'static str, start: Start) -> io::Result<()>;

    /// Fills `bytes` with unpredictable bits.
    fn random(&self, bytes: &mut [u8]);
}

//! `Host`: the only door to time, tasks and chance.

use std::{future::Future, io, pin::Pin};

use crate::moment::Moment;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What makes the task of a thread of its own, on that thread.
pub type Start = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// The machine we run on. Production hosts stand on tokio; a simulation brings its own.
///
/// The engine and the backends use nothing else to read a clock, to wait, to start a task or to draw a number.
pub trait Host: Send + Sync + 'static {
    /// Both clocks, read now.
    fn now(&self) -> Moment;

    /// Ends when the clock that counts suspend has reached `until`, or a little later.
    ///
    /// May be late by as long as the machine was suspended: whoever waits for a deadline looks at the clock
    /// again afterwards.
    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()>;

    /// Starts a task beside the caller.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Starts a task where no code of the user can starve it: a thread of its own (H2.5, hazard 24).
    ///
    /// `start` is called there, so that connections it makes belong to that thread. May be called from
    /// anywhere, also outside a runtime.
    ///
    /// # Errors
    /// If the system gives no thread, or nothing that a runtime needs. `start` is not called then, and dropped.
    fn spawn_apart(&self, name: &'static str, start: Start) -> io::Result<()>;

    /// Fills `bytes` with unpredictable bits.
    fn random(&self, bytes: &mut [u8]);
}

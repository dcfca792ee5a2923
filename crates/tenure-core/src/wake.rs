//! Hints that another attempt may succeed.

use async_trait::async_trait;

use crate::owner::OwnerId;

/// To whom a hint is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Audience {
    /// Waiters.
    Waiters,
    /// Holders, whose lock may have been broken.
    Holders,
}

/// A hint. It saves time, and nothing else depends on it: it may be lost, late, doubled or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// This owner should repeat its request.
    Owner(OwnerId),
    /// Every owner should repeat its request: hints may have been lost.
    All,
}

/// The stream of hints for one process and audience.
#[async_trait]
pub trait Wakes: Send + 'static {
    /// Waits for the next hint; never ends.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint.
    async fn next(&mut self) -> Wake;
}

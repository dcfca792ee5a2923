//! Hints that asking again may help.

use async_trait::async_trait;

use crate::owner::OwnerId;

/// To whom a hint is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Audience {
    /// Owners that wait for a turn.
    Waiters,
    /// Owners that hold, and may have been robbed.
    Holders,
}

/// A hint. It makes us faster, never right: it may be lost, late, doubled or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// This owner should ask again.
    Owner(OwnerId),
    /// Everybody should ask again: hints may have been missed.
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

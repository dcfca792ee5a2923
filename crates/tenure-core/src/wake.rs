//! Hints that another attempt may succeed.

use std::sync::Arc;

use async_trait::async_trait;

use crate::owner::OwnerId;

/// To whom a hint is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Audience {
    /// Waiters.
    Waiters,
    /// Holders, whose lock may have been broken, or is wanted by somebody.
    Holders,
    /// Those who look on: see [`OwnerId::of_observers`].
    Observers,
}

/// A hint. It saves time, and nothing else depends on it: it may be lost, late, doubled or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// This owner should repeat its request.
    Owner(OwnerId),
    /// Every owner should repeat its request: hints may have been lost.
    All,
}

/// Word to an owner that asking again may help, as a store brings it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// As what it is told.
    pub audience: Audience,
    /// Who.
    pub owner: OwnerId,
    /// It stands behind the one that was let in, in case that one is dead: it need not ask before that one's turn is over, and
    /// would only race it.
    pub is_behind: bool,
}

/// Takes hints as they come, from any task.
pub type Forward = Arc<dyn Fn(Wake) + Send + Sync>;

/// The stream of hints for one process and audience.
#[async_trait]
pub trait Wakes: Send + 'static {
    /// Waits for the next hint; never ends.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint.
    async fn next(&mut self) -> Wake;

    /// From here on the task that receives a hint brings it to `to`, where the store can do that. [`next`](Self::next) is to be
    /// polled all the same: it has the other hints, and does what brings them.
    fn forward(&mut self, _to: Forward) {}
}

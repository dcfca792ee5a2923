//! `Lock::idle`: which leases are kept while nobody uses them.

use std::time::Duration;

use tenure_core::{Minting, Promises};

use crate::{error::ConfigError, lock::Lock, options::Together};

impl Lock {
    /// Keeps the lease for so long after a release that finds no waiter, before it is given back: whoever acquires the lock in
    /// this process meanwhile needs no request. Default: not at all.
    ///
    /// Each holder has a token of its own, as with [local turns](Self::strict_order). The first waiter elsewhere tells this
    /// process, which then gives the lease back at once, or when its holder is done: within a round trip and a hint, on
    /// `sqlite` within 100 ms, and if the hint is lost when the waiter asks again, 2 s later at most.
    ///
    /// A process that does not hear such hints yet, because it holds its first lease of all, keeps nothing.
    ///
    /// # What it costs
    /// * A process that dies meanwhile blocks the lock for what is left of the ttl, though nobody was inside.
    /// * `tenure show` names this process as the holder, and a [`try_acquire`](Self::try_acquire) elsewhere finds the lock
    ///   held; it tells the holder too, so the next one may find it free.
    /// * A waiter elsewhere may be passed by waiters of this process until the hint is there (L7).
    ///
    /// [`Locker::drain`](crate::Locker::drain) gives such leases back, and so does dropping the last [`Locker`](crate::Locker)
    /// and lock.
    ///
    /// Only for mutexes without [`strict_order`](Self::strict_order) and [`max_hold`](Self::max_hold), on stores that mint a
    /// token on [entry](crate::Minting::Entry); anything else is refused when the lock is acquired.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = tenure::connect("memory:").await?;
    /// let counter = locks.mutex("counter").idle(Duration::from_secs(1));
    /// for _ in 0..1000 {
    ///     counter.acquire().await?.release().await?; // some 8 requests in all, not 2000
    /// }
    /// # locks.drain(Duration::from_secs(1)).await;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn idle(mut self, idle: Duration) -> Self {
        self.options.idle = (!idle.is_zero()).then_some(idle);
        self.options.mark_label();
        self
    }

    pub(super) fn must_be_able_to_idle(&self, promises: &Promises) -> Result<(), ConfigError> {
        let why = if promises.minting != Minting::Entry {
            "this store mints a token for each place in its queue"
        } else if self.options.together != Together::Turns {
            "only a mutex without a strict order passes its lease on"
        } else if self.options.max_hold.is_some() {
            "a hold that is bounded ends its lease"
        } else {
            return Ok(());
        };
        Err(ConfigError::NotIdle { backend: promises.backend, why })
    }
}

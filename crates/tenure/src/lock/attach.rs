//! `Lock::attach`: goes on with a lease that another process took.

use tenure_core::{EndOfGrant, OwnerId};

use crate::{
    engine::attach,
    error::{AttachError, ConfigError},
    guard::Guard,
    lock::Lock,
};

impl Lock {
    /// Goes on with a lease that another process took and [left behind](crate::Guard::detach): it is renewed from here on, and the
    /// guard gives it back. The token is the one that the lease has, and passes where the other process has been.
    ///
    /// The other process must not work under the lease any more: nothing keeps the two apart.
    ///
    /// # Timing
    /// Two requests, a renewal and a look. The lease lasts for the [ttl](Self::ttl) from the renewal, or for what it had left
    /// if that is longer. A `break` is noticed at the next renewal, ttl/3 later at most: its hint goes to the process that
    /// took the lease.
    ///
    /// # Errors
    /// [`AttachError::Gone`] if the owner does not hold the lock; [`AttachError::HeldHere`] if a guard of this process does
    /// under this owner, also one of those that take [turns](Self::strict_order);
    /// [`ConfigError::EndsWithProcess`] where no lease outlives its process (ZooKeeper).
    ///
    /// # Cancel safety
    /// The lease may have been renewed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let (owner, token) = locks.mutex("nightly").acquire().await?.detach();
    /// // In another process:
    /// let guard = locks.mutex("nightly").attach(owner).await?;
    /// assert_eq!((guard.owner(), guard.token()), (owner, token));
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn attach(&self, owner: OwnerId) -> Result<Guard, AttachError> {
        self.engine.must_be_ours()?;
        let request = self.request(None)?;
        let promises = self.engine.backend.promises();
        if promises.end == EndOfGrant::Session {
            return Err(ConfigError::EndsWithProcess { backend: promises.backend }.into());
        }
        let lease = attach::attach(&self.engine, request, owner).await?;
        Ok(Guard::new(self.engine.clone(), lease))
    }
}

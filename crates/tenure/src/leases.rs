//! `Leases`: what the holder of several locks passes on to those who work for it.

use std::{future::pending, slice, sync::Arc, time::Duration};

use futures_util::future::select_all;

use crate::{error::Lost, lease::Lease};

/// The proof that this process holds several locks at once, to be passed on: cloneable, `Send` and `Sync`.
///
/// A [`Guards`](crate::Guards) is dereferenced to it, and [`AllOf::hold`](crate::AllOf::hold) hands one to the work. It is
/// worth as much as the weakest of its leases: it is lost as soon as one of them is. Every lock has a
/// [token](Lease::token) of its own, for what that lock protects.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let guards = locks.all(["account/1", "account/2"]).acquire().await?;
/// for lease in guards.iter() {
///     println!("{} with token {}", lease.name(), lease.token());
/// }
/// let to = guards.get("account/2").expect("it was named");
/// assert_eq!(to.name().as_str(), "account/2");
/// # guards.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Leases(Arc<[Lease]>);

impl Leases {
    pub(crate) fn new(leases: impl IntoIterator<Item = Lease>) -> Self {
        Self(leases.into_iter().collect())
    }

    /// The leases, by the names of their locks.
    pub fn iter(&self) -> slice::Iter<'_, Lease> {
        self.0.iter()
    }

    /// The lease of one lock; `None` if that was not named.
    pub fn get(&self, name: impl AsRef<str>) -> Option<&Lease> {
        self.iter().find(|lease| lease.name().as_str() == name.as_ref())
    }

    /// Whether all of them may be believed now. Reads the clock itself, and sends nothing, as [`Lease::check`].
    ///
    /// # Errors
    /// The loss of one of them, and from then on always.
    pub fn check(&self) -> Result<(), Lost> {
        self.iter().try_for_each(Lease::check)
    }

    /// How long all of them may be believed if no renewal succeeds any more; zero once one is lost or released.
    ///
    /// # Timing
    /// As [`Lease::remaining`], of the one that ends first.
    pub fn remaining(&self) -> Duration {
        self.iter().map(Lease::remaining).min().unwrap_or_default()
    }

    /// True if the last renewal of one of them failed.
    pub fn is_at_risk(&self) -> bool {
        self.iter().any(Lease::is_at_risk)
    }

    /// Ends when a renewal of one of them has failed, or one is lost or released; see [`Lease::at_risk`].
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn at_risk(&self) {
        first(self.iter().map(Lease::at_risk)).await;
    }

    /// Ends when one of them is lost or released; never while all are held.
    ///
    /// # Timing
    /// As [`Lease::lost`], of the one that is lost first.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn lost(&self) -> Lost {
        first(self.iter().map(Lease::lost)).await
    }

    /// Ends when no more than `margin` of validity is left of one of them; see [`Lease::nearly_lost`].
    ///
    /// # Errors
    /// [`Lost`] if nothing is left at all of one of them.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn nearly_lost(&self, margin: Duration) -> Result<(), Lost> {
        first(self.iter().map(|lease| lease.nearly_lost(margin))).await
    }
}

impl<'a> IntoIterator for &'a Leases {
    type Item = &'a Lease;
    type IntoIter = slice::Iter<'a, Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// What the first of them says; never, if there is none.
pub(crate) async fn first<F: Future>(futures: impl Iterator<Item = F>) -> F::Output {
    let futures: Vec<_> = futures.map(Box::pin).collect();
    if futures.is_empty() {
        return pending().await;
    }
    select_all(futures).await.0
}

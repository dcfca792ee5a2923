//! `Guards`: several leases, and the duty to give them back.

use std::{fmt, ops::Deref};

use futures_util::future::join_all;

use crate::{
    error::{HoldError, ReleaseError},
    guard::{Guard, held_until_its_release},
    leases::Leases,
};

/// Several locks that are held at once: [`Leases`], to which it is dereferenced, and the duty to give them back.
///
/// Made by [`AllOf::acquire`](crate::AllOf::acquire), or from one [`Guard`]. When one of the leases is lost, the others are
/// still renewed and keep others out until this is released or dropped.
///
/// # Dropping
/// Has every lock released in the background, as the drop of each [`Guard`] does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let guards = locks.all(["account/1", "account/2"]).acquire().await?;
/// guards.check()?;
/// guards.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "dropping guards releases the locks"]
pub struct Guards {
    guards: Vec<Guard>,
    leases: Leases,
}

impl Guards {
    pub(crate) fn new(guards: Vec<Guard>) -> Self {
        let leases = Leases::new(guards.iter().map(Guard::lease));
        Self { guards, leases }
    }

    /// The leases, to be passed on to code that works under the locks. They do not keep the locks.
    pub fn leases(&self) -> Leases {
        self.leases.clone()
    }

    /// Gives all locks back, at the same time, and says truthfully what happened.
    ///
    /// # Timing
    /// As [`Guard::release`] of the slowest.
    ///
    /// # Errors
    /// [`ReleaseError::AlreadyLost`] if one of the leases had ended before; otherwise [`ReleaseError::Unknown`] if the store
    /// did not answer for one of them. Those that can be given back are.
    ///
    /// # Cancel safety
    /// If the future is dropped, the releases go on in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let answers = join_all(self.guards.into_iter().map(Guard::release)).await;
        let mut failed = Ok(());
        for error in answers.into_iter().filter_map(Result::err) {
            match (&failed, &error) {
                (Err(ReleaseError::AlreadyLost(_)), _) | (Err(_), ReleaseError::Unknown(_)) => {}
                _ => failed = Err(error),
            }
        }
        failed
    }

    /// Stops the renewals and leaves the leases to their ttl, as [`Guard::detach`] does: each can be renewed and released by its
    /// name and its [owner](crate::Lease::owner) through the [`Locker`](crate::Locker).
    pub fn detach(self) -> Leases {
        for guard in self.guards {
            guard.detach();
        }
        self.leases
    }

    /// The work is done: its result counts if all leases were held until now.
    pub(crate) async fn settle(self) -> Result<(), HoldError> {
        self.check().map_err(HoldError::Lost)?;
        held_until_its_release(self.release().await).map_err(HoldError::Lost)
    }
}

impl From<Guard> for Guards {
    fn from(guard: Guard) -> Self {
        Self::new(vec![guard])
    }
}

impl Deref for Guards {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        &self.leases
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guards").field(&self.guards).finish()
    }
}

//! The election, for threads.

use std::{ops::Deref, sync::Arc};

use tenure_core::{BackendError, FencingToken, OwnerId};

use crate::{
    blocking::apart::Apart,
    election::Leader,
    error::{AcquireError, NoteError, ReleaseError},
};

/// An election, for threads: see [`Election`](crate::Election).
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let election = locks.election("scheduler");
/// let leadership = election.campaign()?;
/// leadership.proclaim("10.0.0.7:8080")?;
/// assert_eq!(election.leader()?.and_then(|leader| leader.proclaimed).as_deref(), Some("10.0.0.7:8080"));
/// leadership.resign()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Election {
    pub(super) inner: crate::Election,
    pub(super) runtime: Arc<Apart>,
}

impl Election {
    /// With settings of the asynchronous election.
    #[must_use]
    pub fn with(self, set: impl FnOnce(crate::Election) -> crate::Election) -> Self {
        Self { inner: set(self.inner), ..self }
    }

    /// Waits until this process leads.
    ///
    /// # Errors
    /// As [`Election::campaign`](crate::Election::campaign).
    pub fn campaign(&self) -> Result<Leadership, AcquireError> {
        let inner = self.runtime.block_on(self.inner.campaign())?;
        Ok(Leadership { inner, runtime: self.runtime.clone() })
    }

    /// Leads until `work` is done, and campaigns again if the lead was lost meanwhile. A thread cannot be stopped from outside:
    /// `work` asks [`check`](crate::Lease::check) between its steps, and returns when that fails; then it is called again in the
    /// next term.
    ///
    /// # Errors
    /// As [`Election::lead`](crate::Election::lead).
    pub fn lead<T>(&self, mut work: impl FnMut(&Leadership) -> T) -> Result<T, AcquireError> {
        loop {
            let leadership = self.campaign()?;
            let out = work(&leadership);
            if leadership.check().is_ok() {
                if let Err(error) = leadership.resign() {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the work is done, the lead could not be given up at once");
                }
                return Ok(out);
            }
        }
    }

    /// Who leads, as the store sees it now.
    ///
    /// # Errors
    /// As [`Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<Leader>, BackendError> {
        self.runtime.block_on(self.inner.leader())
    }

    /// Follows who leads.
    pub fn observe(&self) -> Observer {
        Observer { inner: self.inner.observe(), runtime: self.runtime.clone() }
    }
}

/// Follows an election, for threads: see [`Observer`](crate::Observer).
///
/// # Dropping
/// Ends it.
pub struct Observer {
    inner: crate::Observer,
    runtime: Arc<Apart>,
}

impl Observer {
    /// Who leads now, and from then on each change.
    ///
    /// # Errors
    /// As [`Observer::next`](crate::Observer::next).
    #[expect(clippy::should_implement_trait, reason = "an iterator has no errors that one goes on after")]
    pub fn next(&mut self) -> Result<Option<Leader>, BackendError> {
        self.runtime.block_on(self.inner.next())
    }
}

/// A lead, and the duty to give it up: a [`Term`](crate::Term), to which it is dereferenced.
///
/// # Dropping
/// Gives the lead up in the background.
#[must_use = "dropping a leadership gives it up"]
pub struct Leadership {
    inner: crate::Leadership,
    runtime: Arc<Apart>,
}

impl Leadership {
    /// Says something to all who ask for the leader, as its address.
    ///
    /// # Errors
    /// As [`Term::proclaim`](crate::Term::proclaim).
    pub fn proclaim(&self, text: impl AsRef<str>) -> Result<(), NoteError> {
        self.runtime.block_on(self.inner.proclaim(text))
    }

    /// Gives the lead up.
    ///
    /// # Errors
    /// As [`Leadership::resign`](crate::Leadership::resign).
    pub fn resign(self) -> Result<(), ReleaseError> {
        self.runtime.block_on(self.inner.resign())
    }

    /// Stops the renewals and leaves the lead to its ttl.
    pub fn detach(self) -> (OwnerId, FencingToken) {
        self.inner.detach()
    }
}

impl Deref for Leadership {
    type Target = crate::Term;

    fn deref(&self) -> &crate::Term {
        &self.inner
    }
}

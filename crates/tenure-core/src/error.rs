//! `BackendError`: a failed request, and whether it may have taken effect anyway.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use crate::name::LockName;
use crate::shown::shown;

/// The kind of a failure, which decides whether another attempt can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store cannot be reached, or cannot serve at present. Try again.
    Unavailable,
    /// No answer in time. Try again; the request may have taken effect.
    TimedOut,
    /// The store is busy with other requests for a moment. Nothing happened; try again after `retry_after`.
    Throttled,
    /// The user is unknown, or lacks a right.
    Denied,
    /// A name, ttl or setting that is not valid on this backend.
    Invalid,
    /// This backend does not have the requested feature.
    Unsupported,
    /// The stored data is damaged, or another program wrote it.
    Corrupt,
    /// This process was forked from the one that connected to the store: it inherits no connection, and must
    /// connect anew.
    Forked,
}

impl ErrorKind {
    /// True if the same request may succeed later although no setting has changed.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Unavailable | Self::TimedOut | Self::Throttled)
    }
}

/// Whether a failed request may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It has certainly not taken effect.
    NotApplied,
    /// It may have taken effect: repeat the request with the same owner to find out.
    Unknown,
}

/// The longest message that is shown, in characters.
const MOST: usize = 2048;

/// A failed request to a store: its kind, its outcome, where and why.
///
/// `Display` is one lower-case line without the source; [`Error::source`] is the error of the driver.
#[derive(Clone)]
pub struct BackendError(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    outcome: Outcome,
    message: String,
    context: Vec<(&'static str, String)>,
    retry_after: Option<Duration>,
    was_denied: bool,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// Why a break is refused that was not asked to take the lock from other clients.
pub const FOREIGN_HOLDER: &str = "a client that is not Tenure holds this lock, or its key holds other data; to delete that anyway, \
                                  use `tenure break --foreign` or `BreakScope::All`";

impl BackendError {
    /// For a backend: a break was not asked to take the lock from other clients.
    pub fn foreign_holder(name: &LockName) -> Self {
        Self::new(ErrorKind::Invalid, Outcome::NotApplied, FOREIGN_HOLDER).with("lock", name)
    }

    /// Whether a break was refused because it was not asked to take the lock from other clients.
    pub fn is_foreign_holder(&self) -> bool {
        self.0.message.contains(FOREIGN_HOLDER)
    }

    /// A failure with a message for people: the cause and the remedy.
    pub fn new(kind: ErrorKind, outcome: Outcome, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(Inner {
            kind,
            outcome,
            message,
            context: Vec::new(),
            retry_after: None,
            was_denied: false,
            source: None,
        }))
    }

    /// Adds where it happened: backend, file, node, lock. Never pass a secret.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((key, value.to_string()));
        self
    }

    /// Adds the error of the driver.
    #[must_use]
    pub fn caused_by(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Adds how long to wait before another attempt.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    /// The same failure with the outcome [`Outcome::Unknown`].
    #[must_use]
    pub fn of_unknown_outcome(mut self) -> Self {
        self.0.outcome = Outcome::Unknown;
        self
    }

    /// A refusal by a store that accepted this process before, as while a password is being replaced: asked again, as one that
    /// is unavailable.
    #[must_use]
    pub fn after_success(mut self) -> Self {
        if self.0.kind == ErrorKind::Denied {
            (self.0.kind, self.0.was_denied) = (ErrorKind::Unavailable, true);
            self.0.message += "; it accepted this process before, so it is asked again";
        }
        self
    }

    /// True if the store refused the login or a right, also where it is asked again.
    pub fn is_refusal(&self) -> bool {
        self.0.was_denied || self.0.kind == ErrorKind::Denied
    }

    /// The kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the request may have taken effect.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// How long the backend asks to wait before another attempt, if it has set a time.
    pub fn retry_hint(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A message may contain text from a store.
        write!(f, "{}", shown(&self.0.message).within(MOST))?;
        for (i, (key, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{key} {}", if i == 0 { " (" } else { ", " }, shown(value))?;
        }
        if self.0.context.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}: {self}", self.0.kind, self.0.outcome)?;
        self.0
            .source
            .as_ref()
            .map_or(Ok(()), |source| write!(f, ": {}", shown(&source.to_string()).within(MOST)))
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

//! `BackendError`: what went wrong below, and whether it may have happened all the same.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use crate::shown::shown;

/// What kind of failure it is; decides whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Could not be reached, or cannot serve at present. Try again.
    Unavailable,
    /// No answer in time. Try again; it may have happened.
    TimedOut,
    /// Busy with others' requests for a moment: nothing happened, ask again after `retry_after`.
    Throttled,
    /// Authentication or permission.
    Denied,
    /// A name, ttl or setting that this backend cannot honour.
    Invalid,
    /// It cannot do this at all.
    Unsupported,
    /// The stored data is not what we write.
    Corrupt,
}

impl ErrorKind {
    /// True if the same request may succeed later without anybody changing anything.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Unavailable | Self::TimedOut | Self::Throttled)
    }
}

/// Whether a failed request may have taken effect (L9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Certainly not.
    NotApplied,
    /// Perhaps: settle it by asking again with the same owner.
    Unknown,
}

/// How much of what is wrong is shown, in characters.
const MOST: usize = 2048;

/// A failure of a backend: kind × outcome, where, and why.
///
/// `Display` is one lower-case line without the source; walk [`Error::source`] for the driver's own words.
#[derive(Clone)]
pub struct BackendError(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    outcome: Outcome,
    message: String,
    context: Vec<(&'static str, String)>,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl BackendError {
    /// A failure with a message for people: what is wrong and what to do.
    pub fn new(kind: ErrorKind, outcome: Outcome, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(Inner { kind, outcome, message, context: Vec::new(), retry_after: None, source: None }))
    }

    /// Adds where it happened: backend, file, node, lock. Never a secret.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((key, value.to_string()));
        self
    }

    /// Adds the driver's own error.
    #[must_use]
    pub fn caused_by(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Adds when asking again makes sense, from now.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    /// The same failure, but it may have happened all the same.
    #[must_use]
    pub fn of_unknown_outcome(mut self) -> Self {
        self.0.outcome = Outcome::Unknown;
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the request may have taken effect.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// When the backend says that asking again makes sense.
    pub fn retry_hint(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A message may have what a store says in it.
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

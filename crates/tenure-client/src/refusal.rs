//! `UrlError`: why a URL is refused.

use tenure_core::{BackendError, ErrorKind, Outcome};

/// What is wrong with a URL, for messages. Contains no part of the URL itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UrlError(String);

/// Of settings that were not checked before.
impl From<UrlError> for BackendError {
    fn from(error: UrlError) -> Self {
        Self::new(ErrorKind::Invalid, Outcome::NotApplied, error.0)
    }
}

/// Refuses a URL, for this reason. The caller includes no part of the URL.
pub fn bad(what: impl Into<String>) -> UrlError {
    UrlError(what.into())
}

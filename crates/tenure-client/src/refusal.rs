//! `UrlError`: why a URL is refused.

/// What is wrong with a URL, for messages. Contains no part of the URL itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UrlError(String);

/// Refuses a URL, for this reason. The caller includes no part of the URL.
pub fn bad(what: impl Into<String>) -> UrlError {
    UrlError(what.into())
}

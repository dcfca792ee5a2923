//! `UrlError`: why a URL is refused.

/// What is wrong with a URL, for people. Holds no word of the URL itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UrlError(String);

/// A URL is refused, for this reason. The caller puts in no word of the URL.
pub fn bad(what: impl Into<String>) -> UrlError {
    UrlError(what.into())
}

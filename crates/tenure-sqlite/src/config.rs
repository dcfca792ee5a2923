//! `Config`: where the file is, from a URL.

use std::path::{Path, PathBuf};

use tenure_client::{
    durations::CLAIM_TTL,
    url::{bad, settings},
};
use tenure_ledger::Rules;

use crate::front::FAR;

/// Why a URL is refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where the file is and how its queues behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) path: PathBuf,
    pub(crate) rules: Rules,
}

impl Config {
    /// The file at `path`, with defaults.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        // Absolute, because a program may change its directory later.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Self { path, rules: Rules { far: Some(FAR), ..Rules::default() } }
    }

    /// Reads `sqlite:PATH`, with `?claim_ttl=DURATION` after it.
    ///
    /// # Errors
    /// [`ConfigError`] names the part that is wrong.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let rest = url.strip_prefix("sqlite:").ok_or_else(|| bad("not a sqlite: URL"))?;
        let (path, query) = rest.rsplit_once('?').unwrap_or((rest, ""));
        if path.is_empty() || path == ":memory:" {
            return Err(bad("sqlite: needs the path of a file, as in sqlite:/var/lib/app/locks.db"));
        }
        let mut config = Self::new(path);
        for (_, value) in settings(query, "sqlite", &[CLAIM_TTL.key])? {
            config.rules.claim_ttl = CLAIM_TTL.read(&value)?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_url_is_a_path_and_known_parameters() {
        let config = Config::from_url("sqlite:/a/b.db?claim_ttl=200ms").unwrap();
        assert_eq!(
            (config.path.as_path(), config.rules.claim_ttl),
            (Path::new("/a/b.db"), Duration::from_millis(200))
        );
        assert!(Config::from_url("sqlite:b.db").unwrap().path.is_absolute());
    }

    #[test]
    fn bad_urls_name_what_is_wrong() {
        let cases = [
            ("sqlite:", "needs the path"),
            ("sqlite::memory:", "needs the path"),
            ("sqlite:/a?nope=1", "does not know parameter 1"),
            ("sqlite:/a?claim_ttl=soon", "claim_ttl= is no duration"),
            ("sqlite:/a?claim_ttl=1ms", "outside"),
        ];
        for (url, part) in cases {
            let error = Config::from_url(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}

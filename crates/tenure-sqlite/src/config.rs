//! `Config`: where the file is, and how its queues behave.

use std::path::{Path, PathBuf};

use tenure_client::{
    durations::CLAIM_TTL,
    url::{Foreign, Form, Setting, bad, path_text},
};
use tenure_ledger::Rules;

use crate::front::FAR;

/// Why settings are refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where the file is and how its queues behave. A URL fills it, or a program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file. A relative path is resolved against the current directory when a program makes a backend.
    pub path: PathBuf,
    /// The rules of its queues.
    pub rules: Rules,
}

impl Config {
    /// The file at `path`, with defaults.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            rules: Rules { far: Some(FAR), rare_turns: 2, ..Rules::default() },
        }
    }

    /// Reads `sqlite:PATH`, with `?claim_ttl=DURATION` after it.
    ///
    /// # Errors
    /// [`ConfigError`] names the part that is wrong.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let rest = url.strip_prefix("sqlite:").ok_or_else(|| bad("not a sqlite: URL"))?;
        let (path, query) = rest.rsplit_once('?').unwrap_or((rest, ""));
        // For some tools the name after `sqlite://` is a host, for others the first part of a relative path.
        if path.strip_prefix("//").is_some_and(|rest| !rest.starts_with('/')) {
            return Err(bad(
                "sqlite:// is read differently by every tool; write sqlite:/var/lib/app/locks.db",
            ));
        }
        let mut config = Self::new(path);
        FORM.given(query)?.fill(&mut config)?;
        config.validate()?;
        Ok(config)
    }

    /// # Errors
    /// [`ConfigError`] names the setting that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.path.as_os_str().is_empty() || self.path == Path::new(":memory:") {
            return Err(bad("sqlite: needs the path of a file, as in sqlite:/var/lib/app/locks.db"));
        }
        FORM.check(self)
    }

    /// The URL of this configuration.
    ///
    /// # Errors
    /// If the path is not UTF-8.
    pub fn to_url(&self) -> Result<String, ConfigError> {
        let path = path_text(&self.path)?;
        // `//x` is the path `/x`, and as a URL it would be refused.
        let stripped = path.trim_start_matches('/');
        let path = if path.starts_with("//") { format!("/{stripped}") } else { path.to_owned() };
        // The path is not encoded, and ends at the last question mark.
        let query = FORM.query(self, &Self::new(path.as_str()))?;
        let end = if path.contains('?') || !query.is_empty() { "?" } else { "" };
        Ok(format!("sqlite:{path}{end}{query}"))
    }

    /// The same with an absolute path, because a program may change its directory later.
    pub(crate) fn absolute(self) -> Self {
        Self { path: std::path::absolute(&self.path).unwrap_or(self.path), ..self }
    }
}

/// A setting of [`Config`].
type Row = Setting<Config>;

const FORM: Form<Config> = Form {
    store: "sqlite",
    schemes: &["sqlite"],
    example: "sqlite:/var/lib/app/locks.db",
    settings: &[Row::duration(CLAIM_TTL, |c| &mut c.rules.claim_ttl)
        .means("how long a waiter may take to acquire at its turn")],
    foreign: FOREIGN,
};

const FOREIGN: &[Foreign] = &[
    Foreign("mode", &["rwc"], "the file is opened for writing, and made if it is not there; leave it out"),
    Foreign("cache", &["private"], "Tenure has its own connections; leave it out"),
    Foreign("connection_limit", &["*"], ""),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_readme_has_the_settings() {
        let table = FORM.table(&Config::new("")).unwrap();
        tenure_testkit::readme::assert_has_settings(env!("CARGO_MANIFEST_DIR"), &table);
    }

    #[test]
    fn a_url_is_a_path_and_known_parameters() {
        let config = Config::from_url("sqlite:/a/b.db?claim_ttl=200ms").unwrap();
        assert_eq!(
            (config.path.as_path(), config.rules.claim_ttl),
            (Path::new("/a/b.db"), Duration::from_millis(200))
        );
        assert!(Config::from_url("sqlite:b.db").unwrap().absolute().path.is_absolute());
        let doubled = Config::new("//a.db");
        assert_eq!(Config::from_url(&doubled.to_url().unwrap()).unwrap(), doubled);
        for url in ["sqlite:b.db", "sqlite:/a?b?claim_ttl=60ms", "sqlite:a b?c?"] {
            assert_eq!(Config::from_url(url).unwrap().to_url().unwrap(), url);
        }
    }

    #[test]
    fn bad_urls_name_what_is_wrong() {
        let cases = [
            ("sqlite:", "needs the path"),
            ("sqlite::memory:", "needs the path"),
            ("sqlite://locks.db", "write sqlite:/var"),
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

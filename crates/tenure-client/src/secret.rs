//! `Secret` and `Login`: credentials that only the server receives.

use std::fmt;

use crate::refusal::{UrlError, bad};

/// A password. It is never shown: neither by `Debug` nor by `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The password itself, for the server.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl<S: Into<String>> From<S> for Secret {
    fn from(word: S) -> Self {
        Self(word.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// User and password, as far as they are given.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// Never empty.
    pub user: Option<String>,
    /// May be empty, if there is a colon.
    pub password: Option<Secret>,
}

/// Shows only whether they are given, because some users put a token in place of the user.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |is_said: bool| if is_said { "***" } else { "none" };
        let (user, password) = (has(self.user.is_some()), has(self.password.is_some()));
        write!(f, "Login {{ user: {user}, password: {password} }}")
    }
}

impl Login {
    /// Both, for a store that needs both or neither.
    ///
    /// # Errors
    /// If one is missing.
    pub fn whole(&self) -> Result<(&str, &Secret), UrlError> {
        match (&self.user, &self.password) {
            (Some(user), Some(password)) => Ok((user, password)),
            (Some(_), None) => Err(bad("a user needs a password, as in user:password@host")),
            (None, _) => Err(bad("a password needs a user, as in user:password@host")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No secret is ever printed.
    #[test]
    fn a_secret_shows_itself_to_the_server_alone() {
        let login = Login { user: Some("app".into()), password: Some(Secret::from("sesame")) };
        let secret = login.password.clone().unwrap();
        assert!(!format!("{login:?} {login:#?} {secret} {secret:?}").contains("sesame"));
        let (user, password) = login.whole().unwrap();
        assert_eq!((user, password.expose()), ("app", "sesame"));
        let half = Login { user: Some("app".into()), password: None };
        assert!(half.whole().unwrap_err().to_string().contains("needs a password"));
        assert!(Login::default().whole().unwrap_err().to_string().contains("needs a user"));
    }
}

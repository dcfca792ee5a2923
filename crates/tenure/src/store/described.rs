//! `Described`: the settings that the calls of a builder have made so far.

use std::fmt;

use tenure_client::url::{HostPort, NamedHost, UrlError, named_hosts};

use crate::{connect::StoreSettings, error::ConfigError};

/// The settings of a store on servers, as far as calls have set them.
#[derive(Clone)]
pub(super) struct Described<C> {
    /// Or the error of the first wrong call, which connecting returns.
    pub(super) config: Result<C, ConfigError>,
    /// A host was named with its port.
    names_port: bool,
}

impl<C> Described<C> {
    pub(super) fn new(config: Result<C, UrlError>) -> Self {
        Self { config: config.map_err(ConfigError::of_url), names_port: false }
    }

    /// The settings of a URL.
    pub(super) fn read(url: &str) -> Result<Self, ConfigError>
    where
        C: StoreSettings,
    {
        C::read(url).map(Self::of_url)
    }

    pub(super) fn of_url(config: C) -> Self {
        Self { config: Ok(config), names_port: true }
    }

    /// On these servers, each `host` or `host:port`.
    pub(super) fn at<H: AsRef<str>>(
        hosts: impl IntoIterator<Item = H>,
        port: u16,
        config: impl FnOnce(Vec<HostPort>) -> C,
    ) -> Self {
        let hosts = named_hosts(hosts);
        let names_port = hosts.as_ref().is_ok_and(|hosts| hosts.iter().any(|(_, own)| own.is_some()));
        let whole = |(host, own): NamedHost| (host, own.unwrap_or(port));
        let config = hosts.map(|hosts| config(hosts.into_iter().map(whole).collect()));
        Self { names_port, ..Self::new(config) }
    }

    pub(super) fn set(&mut self, set: impl FnOnce(&mut C)) {
        if let Ok(config) = &mut self.config {
            set(config);
        }
    }

    /// The port of all servers.
    pub(super) fn set_port(&mut self, set: impl FnOnce(&mut C)) {
        self.set(set);
        if self.names_port && self.config.is_ok() {
            let why = "a port is said twice: with its host, and for all servers";
            self.config = Err(ConfigError::Url(why.into()));
        }
    }
}

impl<C: fmt::Debug> fmt::Debug for Described<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.config {
            Ok(config) => config.fmt(f),
            Err(wrong) => wrong.fmt(f),
        }
    }
}

/// The common part of every builder over [`Described`]; its module has a `login` of its settings.
macro_rules! is_described {
    ($store:ident) => {
        impl $store {
            /// The URL with the same settings, as [`connect`](crate::connect) reads it. **It holds the password.**
            ///
            /// # Errors
            /// [`ConfigError`](crate::ConfigError) if a URL cannot express a setting, such as a path that is not
            /// UTF-8.
            pub fn url(&self) -> Result<String, crate::ConfigError> {
                crate::connect::StoreSettings::url(&self.0.config.clone()?)
            }

            /// The user. Default: none.
            #[must_use]
            pub fn user(mut self, user: impl AsRef<str>) -> Self {
                self.0.set(|config| login(config).user = tenure_client::url::some(user.as_ref()));
                self
            }

            /// The password, without escapes. Default: none.
            #[must_use]
            pub fn password(mut self, password: impl AsRef<str>) -> Self {
                self.0.set(|config| login(config).password = Some(password.as_ref().into()));
                self
            }

            /// The password is in this file, which is read each time that a connection is made: a password that is replaced
            /// there is the next one that is used.
            #[must_use]
            pub fn password_file(mut self, path: impl AsRef<std::path::Path>) -> Self {
                // OK to keep one that cannot be made absolute: it is refused when it is read.
                let path = std::path::absolute(path.as_ref()).unwrap_or_else(|_| path.as_ref().to_owned());
                self.0.set(|config| login(config).password = Some(tenure_client::Secret::in_file(path)));
                self
            }

            /// The password is what `ask` answers, each time that a connection is made: for a program that keeps it in a vault.
            /// `ask` blocks the connection that is being made, so it should answer from memory. No URL has such a password.
            #[must_use]
            pub fn password_from(
                mut self,
                ask: impl Fn() -> std::io::Result<String> + Send + Sync + 'static,
            ) -> Self {
                self.0.set(|config| login(config).password = Some(tenure_client::Secret::asked(ask)));
                self
            }

            fn backend(
                &self,
                host: &std::sync::Arc<dyn tenure_core::Host>,
            ) -> Result<tenure_core::BackendHandle, crate::ConfigError> {
                crate::connect::StoreSettings::backend(self.0.config.clone()?, host)
            }
        }

        /// Shows no secret.
        impl std::fmt::Debug for $store {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

pub(super) use is_described;

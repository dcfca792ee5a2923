//! `Credentials`: the login and certificates of a session, and the authority by which it trusts the servers.

use tenure_core::BackendError;
#[cfg(feature = "sasl")]
use zookeeper_client::SaslOptions;
#[cfg(feature = "tls")]
use zookeeper_client::TlsOptions;
use zookeeper_client::{Client, Connector, Error};

use crate::config::Config;

/// User, password and certificates as they are now.
pub(crate) struct Credentials {
    digest: Option<Vec<u8>>,
    #[cfg(feature = "sasl")]
    sasl: Option<SaslOptions>,
    #[cfg(feature = "tls")]
    tls: Option<TlsOptions>,
}

impl Credentials {
    pub(crate) fn read(config: &Config) -> Result<Self, BackendError> {
        let login = match config.login.as_ref().and_then(|login| login.whole().ok()) {
            Some((user, password)) => Some((user.to_owned(), password.now()?.into_owned())),
            None => None,
        };
        let digest = login.as_ref().filter(|_| config.sasl.is_none());
        Ok(Self {
            digest: digest.map(|(user, password)| format!("{user}:{password}").into_bytes()),
            #[cfg(feature = "sasl")]
            sasl: login
                .filter(|_| config.sasl.is_some())
                .map(|(user, password)| SaslOptions::digest_md5(user, password).into()),
            #[cfg(feature = "tls")]
            tls: config.tls.then(|| tls_options(config)).transpose()?,
        })
    }

    /// One round through these servers.
    pub(crate) async fn connect(&self, mut connector: Connector, servers: &str) -> Result<Client, Error> {
        if let Some(digest) = &self.digest {
            connector = connector.with_auth("digest", digest);
        }
        #[cfg(feature = "sasl")]
        if let Some(sasl) = &self.sasl {
            connector = connector.with_sasl(sasl.clone());
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return connector.with_tls(tls.clone()).secure_connect(servers).await;
        }
        connector.connect(servers).await
    }
}

/// The driver's settings for TLS. The driver uses the ciphers of the process.
#[cfg(feature = "tls")]
fn tls_options(config: &Config) -> Result<TlsOptions, BackendError> {
    use std::{fs, path::Path};

    use tenure_client::tls;

    use crate::error;

    tls::provide();
    // For its errors only: they report a wrong file in the words of all stores.
    let identity = config.identity()?;
    tls::believing(config.ca.as_deref(), "ca", identity)?;
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| error::unreadable(path, error));
    let unusable = |error| error::looked(&config.place_name(), error);
    let mut options = TlsOptions::new();
    if let Some(ca) = &config.ca {
        options = options.with_pem_ca(&read(ca)?).map_err(unusable)?;
    }
    match identity {
        Some((cert, key)) => options.with_pem_identity(&read(cert)?, &read(key)?).map_err(unusable),
        None => Ok(options),
    }
}

//! Which servers are trusted over TLS, the client certificate, and the meaning of a refusal. The process-wide provider of ciphers is
//! set only for drivers that take no other: see [`provide`].

use std::{error::Error, path::Path, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier,
    client::WantsClientCert,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tenure_core::{BackendError, ErrorKind, Outcome};

use crate::refusal::{UrlError, bad};

/// The ciphers of all our connections.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Makes them the ciphers of the process as well, for drivers that take those and panic where two libraries of ciphers are built in
/// and none was chosen. What the program has chosen stays.
pub fn provide() {
    if CryptoProvider::get_default().is_none() {
        // OK to ignore because another thread was faster, and has chosen one.
        let _ = ring::default_provider().install_default();
    }
}

/// The start of every configuration.
///
/// # Errors
/// If the ciphers have no version of TLS in common.
pub fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, BackendError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    builder.map_err(|error| broken("TLS cannot be set up").caused_by(error))
}

/// Trusts a server whose certificate is for its host, signed by an authority of this file, or of the system.
///
/// # Errors
/// `Invalid`, if there are none; `parameter` is the one that names the file.
pub fn believing(
    ca: Option<&Path>,
    parameter: &'static str,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, BackendError> {
    let roots = match ca {
        Some(path) => authorities(path, parameter)?,
        None => of_the_system(parameter)?,
    };
    identified(builder()?.with_root_certificates(roots), identity)
}

/// Shows the certificate of the first file with the key of the second, both in PEM, to a server that asks.
///
/// # Errors
/// `Invalid`, if one cannot be read, or they do not belong together.
pub fn identified(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, BackendError> {
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    let unreadable = |what: &str, path: &Path| {
        broken(format!("the file of {what} cannot be read")).with("file", path.display())
    };
    let no_chain = || unreadable("the client certificate", certificate);
    let chain = CertificateDer::pem_file_iter(certificate).map_err(|error| no_chain().caused_by(error))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| no_chain().caused_by(error))?;
    if chain.is_empty() {
        return Err(no_chain());
    }
    let no_key = |error| unreadable("the key of the client certificate", key).caused_by(error);
    let key = PrivateKeyDer::from_pem_file(key).map_err(no_key)?;
    let message = "the client certificate and its key do not fit together";
    builder.with_client_auth_cert(chain, key).map_err(|error| broken(message).caused_by(error))
}

/// Two files that are needed together.
///
/// # Errors
/// If only one is there.
pub fn pair<'p>(
    (cert_key, cert): (&str, Option<&'p Path>),
    (key_key, key): (&str, Option<&'p Path>),
) -> Result<Option<(&'p Path, &'p Path)>, UrlError> {
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        _ => Err(bad(format!("{cert_key}= and {key_key}= are needed together"))),
    }
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFault {
    /// No trusted authority has signed the server's certificate.
    UnknownAuthority,
    /// The server's certificate is that of other names.
    WrongName,
    /// It is out of date, or not yet valid.
    Expired,
    /// The server wants a client certificate.
    NoIdentity,
    /// The server does not accept the client certificate.
    IdentityRefused,
}

impl TlsFault {
    /// From the words of an error: drivers hand on no more.
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let words = words(error);
        let has = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
        if has(&["alert: CertificateRequired", "alert: HandshakeFailure"]) {
            Some(Self::NoIdentity)
        } else if has(&[
            "alert: UnknownCA",
            "alert: BadCertificate",
            "alert: CertificateUnknown",
            "alert: CertificateExpired",
            "alert: AccessDenied",
            "alert: DecryptError",
            "alert: UnsupportedCertificate",
        ]) {
            Some(Self::IdentityRefused)
        } else if has(&["not valid for name", "NotValidForName"]) {
            Some(Self::WrongName)
        } else if has(&["certificate expired", "not valid yet", "Expired", "NotValidYet"]) {
            Some(Self::Expired)
        } else if has(&["invalid peer certificate", "UnknownIssuer"]) {
            Some(Self::UnknownAuthority)
        } else {
            None
        }
    }

    /// The same, where a server says no more than that the client certificate is bad and none was shown, as those in Go do.
    #[must_use]
    pub fn without_identity(self) -> Self {
        if self == Self::IdentityRefused { Self::NoIdentity } else { self }
    }

    /// What is wrong and what to do, for people: with the names of the settings.
    pub fn message(self, server: &str, ca: &str, name: &str, (cert, key): (&str, &str)) -> String {
        match self {
            Self::UnknownAuthority => {
                format!(
                    "the certificate of the {server} server is not trusted; name the file of its CA with {ca}="
                )
            }
            Self::WrongName => format!("the certificate of the {server} server is for another name; {name}"),
            Self::Expired => {
                format!("the certificate of the {server} server is out of date, or a clock is wrong")
            }
            Self::NoIdentity => {
                format!("the {server} server wants a client certificate; name it with {cert}= and {key}=")
            }
            Self::IdentityRefused => format!(
                "the {server} server does not accept the client certificate that {cert}= names: another CA signed it, or \
                 it is out of date"
            ),
        }
    }
}

/// The words of an error and of its sources.
pub fn words(error: &(dyn Error + 'static)) -> String {
    let all = std::iter::successors(Some(error), |error| (*error).source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The authorities of a file in PEM.
///
/// # Errors
/// `Invalid`, if it cannot be read or has none.
pub fn authorities(path: &Path, parameter: &'static str) -> Result<RootCertStore, BackendError> {
    let unreadable = || broken("cannot read the file of the CA").with(parameter, path.display());
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unreadable().caused_by(error))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unreadable().caused_by(error))?;
        roots.add(certificate).map_err(|error| unreadable().caused_by(error))?;
    }
    if roots.is_empty() { Err(unreadable()) } else { Ok(roots) }
}

fn of_the_system(parameter: &str) -> Result<RootCertStore, BackendError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system_certificates(parameter)?);
    Ok(roots)
}

/// The authorities that this machine trusts; `parameter` is the one that names a file instead of them.
///
/// # Errors
/// `Invalid`, if there are none.
pub fn system_certificates(parameter: &str) -> Result<Vec<CertificateDer<'static>>, BackendError> {
    let certificates = rustls_native_certs::load_native_certs().certs;
    if certificates.is_empty() {
        let message = format!("the system has no certificates of authorities; name a file with {parameter}=");
        return Err(broken(message));
    }
    Ok(certificates)
}

fn broken(message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ciphers_that_a_program_has_chosen_stay() {
        let mut own = ring::default_provider();
        own.cipher_suites.truncate(1);
        own.install_default().unwrap();
        provide();
        assert_eq!(CryptoProvider::get_default().unwrap().cipher_suites.len(), 1);
    }
}

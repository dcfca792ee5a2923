//! Which servers are trusted over TLS. Nothing of the process is set: the provider of ciphers is named here.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, pem::PemObject},
};
use tenure_core::{BackendError, ErrorKind, Outcome};

/// The ciphers of all connections.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
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
pub fn believing(ca: Option<&Path>, parameter: &'static str) -> Result<ClientConfig, BackendError> {
    let roots = match ca {
        Some(path) => authorities(path, parameter)?,
        None => of_the_system(parameter)?,
    };
    Ok(builder()?.with_root_certificates(roots).with_no_client_auth())
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

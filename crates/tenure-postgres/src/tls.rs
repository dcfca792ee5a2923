//! What a server must show to be believed, as libpq's `sslmode` says.

use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use tenure_core::{BackendError, ErrorKind, Outcome};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::{Config, TlsMode};

/// How to speak TLS with the servers of this configuration.
pub(crate) fn connector(config: &Config) -> Result<MakeRustlsConnect, BackendError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| broken("TLS cannot be set up").caused_by(error))?;
    let lenient = |roots: Option<RootCertStore>| {
        let verifier = Arc::new(Lenient { roots, provider: provider.clone() });
        builder.clone().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
    };
    let tls = match config.tls {
        TlsMode::VerifyFull if config.root_cert.is_none() => return system(),
        TlsMode::VerifyFull => builder.with_root_certificates(roots(config)?).with_no_client_auth(),
        TlsMode::VerifyCa => lenient(Some(roots(config)?)),
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => lenient(None),
    };
    Ok(MakeRustlsConnect::new(tls))
}

/// # Errors
/// If the file of the CA cannot be read: also where no TLS will be spoken, as over a socket of this machine.
pub(crate) fn check(config: &Config) -> Result<(), BackendError> {
    if config.root_cert.is_some() { roots(config).map(drop) } else { Ok(()) }
}

/// With the authorities that the system trusts.
fn system() -> Result<MakeRustlsConnect, BackendError> {
    // OK because an error says that the program has chosen a provider already.
    let _ = ring::default_provider().install_default();
    match MakeRustlsConnect::with_native_certs() {
        Ok((tls, _)) => Ok(tls),
        Err(_) => Err(broken("the system has no certificates of authorities; name a file with sslrootcert=")),
    }
}

fn roots(config: &Config) -> Result<RootCertStore, BackendError> {
    let path = config.root_cert.as_ref().expect("BUG: a mode that needs a CA has one");
    let unreadable = || broken("the file of the CA cannot be read").with("sslrootcert", path.display());
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unreadable().caused_by(error))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unreadable().caused_by(error))?;
        roots.add(certificate).map_err(|error| unreadable().caused_by(error))?;
    }
    if roots.is_empty() { Err(unreadable()) } else { Ok(roots) }
}

fn broken(message: &str) -> BackendError {
    BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message)
}

/// Believes a certificate that one of these authorities has signed, whoever it is for; without authorities, any.
#[derive(Debug)]
struct Lenient {
    roots: Option<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(certificate)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

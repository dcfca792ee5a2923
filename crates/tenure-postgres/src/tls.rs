//! What a server must show to be believed, as libpq's `sslmode` says.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};
use tenure_client::tls;
use tenure_core::BackendError;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::{Config, TlsMode};

/// How to speak TLS with the servers of this configuration.
pub(crate) fn connector(config: &Config) -> Result<MakeRustlsConnect, BackendError> {
    let lenient = |roots: Option<RootCertStore>| {
        let verifier = Arc::new(Lenient { roots, provider: tls::provider() });
        let builder = tls::builder()?.dangerous().with_custom_certificate_verifier(verifier);
        Ok::<_, BackendError>(builder.with_no_client_auth())
    };
    let settings = match config.tls {
        TlsMode::VerifyFull => tls::believing(config.root_cert.as_deref(), "sslrootcert")?,
        TlsMode::VerifyCa => lenient(Some(roots(config)?))?,
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => lenient(None)?,
    };
    Ok(MakeRustlsConnect::new(settings))
}

/// # Errors
/// If the file of the CA cannot be read: also where no TLS will be spoken, as over a socket of this machine.
pub(crate) fn check(config: &Config) -> Result<(), BackendError> {
    if config.root_cert.is_some() { roots(config).map(drop) } else { Ok(()) }
}

fn roots(config: &Config) -> Result<RootCertStore, BackendError> {
    let path = config.root_cert.as_ref().expect("BUG: a mode that needs a CA has one");
    tls::authorities(path, "sslrootcert")
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

//! How a client of the driver is made.

use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult, TlsCertificates, io::tcp::TcpSettings};
use tenure_core::{BackendError, ErrorKind, Outcome};

use crate::config::Config;

pub(crate) fn open_client(info: ConnectionInfo, tls: &Option<TlsCertificates>) -> RedisResult<Client> {
    match tls {
        Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        None => Client::open(info),
    }
}

pub(crate) fn address(tls: bool, host: &str, port: u16) -> ConnectionAddr {
    let host = host.to_owned();
    if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

pub(crate) fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// The own CA, if there is one. Without it the system's are taken.
pub(crate) fn certificates(config: &Config) -> Result<Option<TlsCertificates>, BackendError> {
    if !config.tls {
        return Ok(None);
    }
    // OK because an error says that the program has chosen a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(path) = &config.ca else { return Ok(None) };
    let pem = std::fs::read(path).map_err(|error| {
        BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, "the file of the CA cannot be read")
            .with("ca", path.display())
            .caused_by(error)
    })?;
    Ok(Some(TlsCertificates { client_tls: None, root_cert: Some(pem) }))
}

//! A connection next to the driver's: for four-letter words, and to learn why servers refuse a handshake.

use std::io;

use tenure_client::url::HostPort;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::config::Config;
#[cfg(feature = "tls")]
pub(crate) use over_tls::refusal;

pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

/// Connects to one server, over TLS if the settings say so.
#[cfg_attr(not(feature = "tls"), allow(unused_variables, reason = "without TLS there is nothing to set"))]
pub(crate) async fn open(config: &Config, (name, port): &HostPort) -> io::Result<Box<dyn Wire>> {
    let stream = TcpStream::connect((name.as_str(), *port)).await?;
    #[cfg(feature = "tls")]
    if config.tls {
        return Ok(Box::new(over_tls::handshake(config, name, stream).await?));
    }
    Ok(Box::new(stream))
}

#[cfg(feature = "tls")]
mod over_tls {
    use std::{io, sync::Arc, time::Duration};

    use futures_util::future::join_all;
    use rustls::pki_types::ServerName;
    use tenure_client::{
        tls::{self, TlsFault},
        url::{HostPort, shown},
    };
    use tenure_core::{BackendError, ErrorKind, Host};
    use tokio::{io::AsyncReadExt, net::TcpStream};
    use tokio_rustls::{TlsConnector, client::TlsStream};

    use crate::{config::Config, error, wire};

    pub(super) async fn handshake(
        config: &Config,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let identity = config.identity().map_err(io::Error::other)?;
        let settings = tls::believing(config.ca.as_deref(), "ca", identity).map_err(io::Error::other)?;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(settings)).connect(name, stream).await
    }

    /// Why the servers refuse a handshake, if that is why no session opens: the driver does not report it.
    ///
    /// If other servers just cannot be reached, they may be reachable soon: then the error is transient.
    pub(crate) async fn refusal(config: &Config, host: &dyn Host) -> Option<BackendError> {
        if !config.tls {
            return None;
        }
        let faults = join_all(config.hosts.iter().map(|server| fault(config, server, host))).await;
        let kind =
            if faults.iter().all(Option::is_some) { ErrorKind::Denied } else { ErrorKind::Unavailable };
        let mut found = config.hosts.iter().zip(faults);
        found.find_map(|(server, fault)| Some(error::untrusted(&shown(server), kind, fault?)))
    }

    async fn fault(config: &Config, server: &HostPort, host: &dyn Host) -> Option<TlsFault> {
        // From TLS 1.3 on, a server judges the client after the handshake. It sends nothing to a client that it
        // accepts.
        let asked = async { wire::open(config, server).await?.read_u8().await };
        let error = tokio::select! {
            answer = asked => answer.err()?,
            () = host.sleep_until(host.now() + SILENCE) => return None,
        };
        let fault = TlsFault::of(&error)?;
        // Java sends the same alert for a bad certificate and for none.
        Some(if config.cert.is_none() { fault.without_identity() } else { fault })
    }

    /// How long to wait for a server that may have nothing to send.
    const SILENCE: Duration = Duration::from_secs(1);
}

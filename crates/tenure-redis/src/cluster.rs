//! How a connection to a Redis Cluster is made: its driver makes its own to each node.

use std::{fs, sync::Arc};

use redis::{
    ConnectionAddr, ProtocolVersion, PushInfo, TlsCertificates, TlsMode, cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection, io::tcp::TcpSettings,
};
use tenure_client::{End, HintRouter, tls};
use tenure_core::BackendError;

use crate::{config::Config, error, hint};

/// Connects to the nodes that answer; what they push goes to the router, and that one was lost to `end`.
pub(crate) async fn connect(
    config: &Config,
    nodes: &[(String, u16)],
    (router, end): (&Arc<HintRouter>, &Arc<End>),
) -> Result<ClusterConnection, BackendError> {
    let (router, end) = (router.clone(), end.clone());
    let mut builder = ClusterClientBuilder::new(nodes.iter().map(|node| address(config.tls, node)))
        .connection_timeout(config.connect_timeout)
        .response_timeout(config.response_timeout)
        .overall_response_timeout(Some(config.response_timeout * 2))
        .use_protocol(ProtocolVersion::RESP3)
        .tcp_settings(TcpSettings::default().set_nodelay(true))
        .push_sender(move |push: PushInfo| {
            hint::on_push(push, &router, &end);
            Ok::<(), ()>(())
        });
    if let Some(user) = &config.login.user {
        builder = builder.username(user);
    }
    if let Some(password) = &config.login.password {
        builder = builder.password(password.expose());
    }
    if config.tls {
        builder = builder.tls(TlsMode::Secure);
    }
    if let Some(certificates) = certificates(config)? {
        builder = builder.certs(certificates);
    }
    let client = builder.build().map_err(|error| error::connecting(&config.place_name(), error))?;
    let connected = client.get_async_connection().await;
    connected.map_err(|error| error::connecting(&config.place_name(), error))
}

fn address(tls: bool, (host, port): &(String, u16)) -> ConnectionAddr {
    let (host, port) = (host.clone(), *port);
    if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

/// The own CA, if there is one. Without it the system's are taken.
fn certificates(config: &Config) -> Result<Option<TlsCertificates>, BackendError> {
    if !config.tls {
        return Ok(None);
    }
    // The driver of a Cluster takes the ciphers of the process, and has no place to name others. An error says that the program
    // has chosen some already.
    let _ = rustls::crypto::CryptoProvider::install_default(tls::provider().as_ref().clone());
    let Some(path) = &config.ca else { return Ok(None) };
    tls::authorities(path, "ca")?;
    let pem = fs::read(path).map_err(|error| error::no_ca(path, error))?;
    Ok(Some(TlsCertificates { client_tls: None, root_cert: Some(pem) }))
}

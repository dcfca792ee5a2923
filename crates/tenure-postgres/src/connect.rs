//! One connection: socket, TLS, login, and the way to stop what it does.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use tenure_client::{Socket, StallDetector};
use tenure_core::BackendError;
use tokio_postgres::{
    AsyncMessage, CancelToken, Client, Connection, Error, NoTls,
    config::SslMode,
    tls::{MakeTlsConnect, TlsConnect, TlsStream},
};

use crate::{
    config::{Config, Place, TlsMode},
    error, tls,
};

/// Moves bytes and tells what the server says unasked; ends with the connection.
pub(crate) type Driver = Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> + Send>;

/// A connection that is logged in. Nothing moves until its driver is polled.
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) driver: Driver,
    /// Our end, by which we know whether the server sees it.
    pub(crate) own_end: Option<SocketAddr>,
}

/// Connects and logs in. What is sent and heard is told to the detector.
pub(crate) async fn open(
    config: &Config,
    place: &Place,
    stall: Arc<StallDetector>,
) -> Result<Opened, BackendError> {
    tls::check(config)?;
    let unreachable = |error| error::unreachable(&place.to_string(), error);
    let socket = socket(place, stall).await.map_err(unreachable)?;
    let own_end = socket.own_end();
    let failed = |error| error::connecting(&place.to_string(), error);
    let settings = settings(config, place);
    let (client, driver) = if settings.get_ssl_mode() == SslMode::Disable {
        let (client, connection) = settings.connect_raw(socket, NoTls).await.map_err(failed)?;
        (client, driver(connection))
    } else {
        let (client, connection) =
            settings.connect_raw(socket, handshake(config, place)?).await.map_err(failed)?;
        (client, driver(connection))
    };
    Ok(Opened { client, driver, own_end })
}

/// Asks the server to stop what a connection does.
pub(crate) async fn cancel(
    config: &Config,
    place: &Place,
    token: CancelToken,
    stall: Arc<StallDetector>,
) -> Result<(), BackendError> {
    let unreachable = |error| error::unreachable(&place.to_string(), error);
    let socket = socket(place, stall).await.map_err(unreachable)?;
    let sent = if settings(config, place).get_ssl_mode() == SslMode::Disable {
        token.cancel_query_raw(socket, NoTls).await
    } else {
        token.cancel_query_raw(socket, handshake(config, place)?).await
    };
    sent.map_err(|error| error::connecting(&place.to_string(), error))
}

fn handshake(
    config: &Config,
    place: &Place,
) -> Result<impl TlsConnect<Socket, Stream: Send + 'static, Future: Send> + Send + use<>, BackendError> {
    let host = match place {
        Place::Host(host, _) => host.as_str(),
        Place::Socket(..) => "",
    };
    let mut connector = tls::connector(config)?;
    let Ok(handshake) = MakeTlsConnect::<Socket>::make_tls_connect(&mut connector, host);
    Ok(handshake)
}

fn driver<T>(mut connection: Connection<Socket, T>) -> Driver
where
    T: TlsStream + Unpin + Send + 'static,
{
    Box::new(move |cx| connection.poll_message(cx))
}

fn settings(config: &Config, place: &Place) -> tokio_postgres::Config {
    let mut settings = tokio_postgres::Config::new();
    settings.application_name(&config.application);
    // As libpq: a socket of the same machine needs no TLS.
    settings.ssl_mode(match (config.tls, place) {
        (TlsMode::Disable, _) | (_, Place::Socket(..)) => SslMode::Disable,
        (TlsMode::Prefer, _) => SslMode::Prefer,
        (TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull, _) => SslMode::Require,
    });
    if let Some(user) = &config.user {
        settings.user(user);
    }
    if let Some(password) = &config.password {
        settings.password(password.expose());
    }
    if let Some(database) = &config.database {
        settings.dbname(database);
    }
    if let Some(options) = &config.options {
        settings.options(options);
    }
    settings
}

async fn socket(place: &Place, stall: Arc<StallDetector>) -> io::Result<Socket> {
    match place {
        Place::Host(host, port) => Socket::tcp(host, *port, stall).await,
        Place::Socket(folder, port) => Socket::unix(folder.join(format!(".s.PGSQL.{port}")), stall).await,
    }
}

/// What the server says unasked, next; nothing once the connection has ended.
pub(crate) async fn heard(driver: &mut Driver) -> Option<AsyncMessage> {
    poll_fn(|cx| driver(cx)).await?.ok()
}

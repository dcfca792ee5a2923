//! How a connection of the driver is made: over a socket of ours, so that what it hears is known, and with
//! TLS of our own, so that nothing of the process is set.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, RedisConnectionInfo, RedisError, RedisResult,
    aio::{AsyncStream, MultiplexedConnection, PubSub},
};
use rustls::pki_types::ServerName;
use tenure_client::{Login, Socket, StallDetector, tls};
use tenure_core::{BackendError, Host};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::config::Config;

/// Where one server is.
#[derive(Clone)]
pub(crate) enum ServerAddress {
    Host(String, u16),
    Socket(PathBuf),
}

/// The way to one server: where it is, how it is spoken to, and as whom.
pub(crate) struct ServerRoute {
    pub(crate) address: ServerAddress,
    pub(crate) tls: Option<ServerTls>,
    pub(crate) login: RedisConnectionInfo,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
}

/// How the servers of this configuration are trusted, and under which name if it is not the host's.
#[derive(Clone)]
pub(crate) struct ServerTls(TlsConnector, Option<String>);

/// How the servers of this configuration are believed, if TLS is spoken.
pub(crate) fn connector(config: &Config) -> Result<Option<ServerTls>, BackendError> {
    if !config.tls {
        return Ok(None);
    }
    let settings = tls::believing(config.ca.as_deref(), "ca", config.identity()?)?;
    Ok(Some(ServerTls(TlsConnector::from(Arc::new(settings)), config.tls_name.clone())))
}

impl ServerRoute {
    /// With the detector that hears what comes over it.
    pub(crate) async fn connect(
        &self,
        settings: AsyncConnectionConfig,
    ) -> RedisResult<(MultiplexedConnection, Arc<StallDetector>)> {
        let stall = StallDetector::new(self.host.clone(), self.response_timeout);
        let settings = settings.set_response_timeout(Some(self.response_timeout));
        let connect = async {
            let stream = self.stream(stall.clone()).await?;
            MultiplexedConnection::new_with_config(&self.login, stream, settings).await
        };
        let (connection, driver) = self.in_time(connect).await?;
        // It ends with the last of those who have the connection.
        self.host.spawn(Box::pin(driver));
        Ok((connection, stall))
    }

    /// Whether a proxy that spreads keys over servers is there: it answers GET, and cuts the connection at INFO.
    pub(crate) async fn leads_to_proxy(&self) -> bool {
        let asked = async {
            let mut stream =
                self.stream(StallDetector::new(self.host.clone(), self.response_timeout)).await?;
            let mut answer = [0; 64];
            stream.write_all(b"*2\r\n$3\r\nGET\r\n$12\r\ntenure:probe\r\n").await?;
            let is_answered = stream.read(&mut answer).await? > 0 && matches!(answer[0], b'$' | b'_');
            if !is_answered {
                return Ok(false);
            }
            stream.write_all(b"*1\r\n$4\r\nINFO\r\n").await?;
            Ok(stream.read(&mut answer).await.is_ok_and(|read| read == 0))
        };
        self.in_time(asked).await.unwrap_or(false)
    }

    /// One for messages alone.
    pub(crate) async fn listen(&self) -> RedisResult<PubSub> {
        let stall = StallDetector::new(self.host.clone(), self.response_timeout);
        self.in_time(async { PubSub::new(&self.login, self.stream(stall).await?).await }).await
    }

    async fn in_time<T>(&self, connect: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let over = self.host.sleep_until(self.host.now() + self.connect_timeout);
        tokio::select! {
            biased;
            connected = connect => connected,
            () = over => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }

    async fn stream(
        &self,
        stall: Arc<StallDetector>,
    ) -> RedisResult<Box<dyn AsyncStream + Send + Sync + Unpin>> {
        let (host, port) = match &self.address {
            ServerAddress::Host(host, port) => (host, *port),
            ServerAddress::Socket(path) => return Ok(Box::new(Socket::unix(path, stall).await?)),
        };
        let socket = Socket::tcp(host, port, stall).await?;
        let Some(ServerTls(tls, name)) = &self.tls else { return Ok(Box::new(socket)) };
        let name = ServerName::try_from(name.as_ref().unwrap_or(host).clone()).map_err(|_| nameless())?;
        Ok(Box::new(tls.connect(name, socket).await?))
    }
}

/// The same, with this user and password.
pub(crate) fn logged_in(
    mut info: RedisConnectionInfo,
    login: &Login,
) -> Result<RedisConnectionInfo, BackendError> {
    if let Some(user) = &login.user {
        info = info.set_username(user);
    }
    if let Some(password) = &login.password {
        info = info.set_password(&*password.now()?);
    }
    Ok(info)
}

fn nameless() -> RedisError {
    RedisError::from((redis::ErrorKind::InvalidClientConfig, "no certificate can be that of this host"))
}

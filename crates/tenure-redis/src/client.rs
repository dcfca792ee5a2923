//! How a connection of the driver is made: over Tenure's own socket, which shows what it receives, and with its own TLS
//! settings, so that nothing is set for the whole process.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult,
    aio::{AsyncStream, MultiplexedConnection, PubSub, PubSubStream},
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

/// The way to one server: its address, how to connect to it, and as which user.
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

/// How the servers of this configuration are trusted, if TLS is used.
pub(crate) fn connector(config: &Config) -> Result<Option<ServerTls>, BackendError> {
    if !config.tls {
        return Ok(None);
    }
    let settings = tls::believing(config.ca.as_deref(), "ca", config.identity()?)?;
    Ok(Some(ServerTls(TlsConnector::from(Arc::new(settings)), config.tls_name.clone())))
}

/// Calls the function when the driver has ended or is dropped.
struct Ending<F: Fn()>(F);

impl<F: Fn()> Drop for Ending<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl ServerRoute {
    /// The way to one server, with the current password.
    pub(crate) fn new(
        config: &Config,
        host: &Arc<dyn Host>,
        address: ServerAddress,
        resp3: bool,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            address,
            tls: connector(config)?,
            login: login(config, resp3)?,
            host: host.clone(),
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
        })
    }

    /// A connection, with the detector that sees what comes over it. `on_end` is called when nothing reads the connection
    /// any more, even if that is because the runtime of its caller has ended.
    pub(crate) async fn connect(
        &self,
        settings: AsyncConnectionConfig,
        on_end: impl Fn() + Send + 'static,
    ) -> RedisResult<(MultiplexedConnection, Arc<StallDetector>)> {
        let stall = StallDetector::new(self.host.clone(), self.response_timeout);
        let settings = settings.set_response_timeout(Some(self.response_timeout));
        let connect = async {
            let stream = self.stream(stall.clone()).await?;
            MultiplexedConnection::new_with_config(&self.login, stream, settings).await
        };
        let (connection, driver) = self.in_time(connect).await?;
        let ending = Ending(on_end);
        // The driver ends when the last clone of the connection is dropped.
        self.host.spawn(Box::pin(async move {
            driver.await;
            drop(ending);
        }));
        Ok((connection, stall))
    }

    /// Whether the address is that of a proxy that spreads keys over servers: it answers GET, and closes the connection at
    /// INFO.
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

    /// A connection only for messages of these channels.
    pub(crate) async fn listen(&self, channels: &[String]) -> RedisResult<PubSubStream> {
        let stall = StallDetector::new(self.host.clone(), self.response_timeout);
        let listen = async {
            let mut connection = PubSub::new(&self.login, self.stream(stall).await?).await?;
            for channel in channels {
                connection.subscribe(channel).await?;
            }
            Ok(connection.into_on_message())
        };
        self.in_time(listen).await
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

fn login(config: &Config, resp3: bool) -> Result<RedisConnectionInfo, BackendError> {
    let protocol = if resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
    let info = RedisConnectionInfo::default()
        .set_db(config.db)
        .set_protocol(protocol)
        .set_lib_name("tenure", env!("CARGO_PKG_VERSION"));
    logged_in(info, &config.login)
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

//! One connection: socket, TLS, login, cancel requests, and the check of the server's certificate as in libpq's
//! `sslmode`.

use std::{
    fs,
    future::poll_fn,
    io,
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
    task::{Context, Poll},
};

use rustls::{
    DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};
use tenure_client::{Secret, Slot, Socket, StallDetector, tls};
use tenure_core::{BackendError, ErrorKind};
use tokio_postgres::{
    AsyncMessage, CancelToken, Client, Connection, Error, NoTls,
    config::{self, SslMode},
    tls::{MakeTlsConnect, TlsConnect, TlsStream},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    config::{ChannelBinding, Config, Server, TlsMode},
    error::{self, WORDS},
    schema::not_one_writer,
};

/// Moves bytes and returns the messages that the server sends without a request. Ends with the connection.
pub(crate) type Driver = Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> + Send>;

/// A connection that is logged in. No byte moves until its driver is polled.
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) driver: Driver,
    /// The client's end of the socket. If the server sees the same end, no pooler is between them.
    pub(crate) own_end: Option<SocketAddr>,
}

/// Connects and logs in. The detector is notified of sent and received bytes.
pub(crate) async fn open(
    config: &Arc<Config>,
    place: &Server,
    stall: Arc<StallDetector>,
    slot: &Arc<Slot>,
) -> Result<Opened, BackendError> {
    check_authorities(config)?;
    let unreachable = |error| WORDS.unreachable(&place.to_string(), error);
    let socket = socket(place, stall).await.map_err(unreachable)?;
    let own_end = socket.own_end();
    let login = {
        let (config, place) = (config.clone(), place.clone());
        async move { log_in(&config, &place, socket).await }
    };
    let ended = || Err(WORDS.login_ended(&place.to_string()));
    let (client, is_cockroach, driver) = slot.log_in(login).await.unwrap_or_else(ended)?;
    if is_cockroach {
        return Err(WORDS.refused(&place.to_string(), ErrorKind::Invalid, not_one_writer("CockroachDB")));
    }
    Ok(Opened { client, driver, own_end })
}

async fn log_in(
    config: &Config,
    place: &Server,
    socket: Socket,
) -> Result<(Client, bool, Driver), BackendError> {
    let failed = |error| error::connecting(&place.to_string(), error);
    let settings = settings(config, place)?;
    if settings.get_ssl_mode() == SslMode::Disable {
        let (client, connection) = settings.connect_raw(socket, NoTls).await.map_err(failed)?;
        return Ok((client, is_cockroach(&connection), driver(connection)));
    }
    let (client, connection) =
        settings.connect_raw(socket, handshake(config, place)?).await.map_err(failed)?;
    Ok((client, is_cockroach(&connection), driver(connection)))
}

/// Asks the server to stop the statement that a connection runs.
pub(crate) async fn cancel(
    config: &Config,
    place: &Server,
    token: CancelToken,
    stall: Arc<StallDetector>,
) -> Result<(), BackendError> {
    let unreachable = |error| WORDS.unreachable(&place.to_string(), error);
    let socket = socket(place, stall).await.map_err(unreachable)?;
    let sent = if settings(config, place)?.get_ssl_mode() == SslMode::Disable {
        token.cancel_query_raw(socket, NoTls).await
    } else {
        token.cancel_query_raw(socket, handshake(config, place)?).await
    };
    sent.map_err(|error| error::connecting(&place.to_string(), error))
}

fn handshake(
    config: &Config,
    place: &Server,
) -> Result<impl TlsConnect<Socket, Stream: Send + 'static, Future: Send> + Send + use<>, BackendError> {
    let host = match place {
        Server::Host(host, _) => host.as_str(),
        Server::Socket(..) => "",
    };
    let mut connector = connector(config)?;
    let Ok(handshake) = MakeTlsConnect::<Socket>::make_tls_connect(&mut connector, host);
    Ok(handshake)
}

/// CockroachDB reports itself by this parameter. It does not accept all statements that come next.
fn is_cockroach<T: TlsStream + Unpin>(connection: &Connection<Socket, T>) -> bool {
    connection.parameter("crdb_version").is_some()
}

fn driver<T>(mut connection: Connection<Socket, T>) -> Driver
where
    T: TlsStream + Unpin + Send + 'static,
{
    Box::new(move |cx| connection.poll_message(cx))
}

fn settings(config: &Config, place: &Server) -> Result<tokio_postgres::Config, BackendError> {
    let mut settings = tokio_postgres::Config::new();
    settings.application_name(&config.application);
    // As in libpq: a socket of the same machine needs no TLS.
    settings.ssl_mode(match (config.tls_mode(), place) {
        (TlsMode::Disable, _) | (_, Server::Socket(..)) => SslMode::Disable,
        (TlsMode::Prefer, _) => SslMode::Prefer,
        (TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull, _) => SslMode::Require,
    });
    if let Some(user) = &config.login.user {
        settings.user(user);
    }
    settings.channel_binding(match config.channel_binding {
        ChannelBinding::Disable => config::ChannelBinding::Disable,
        ChannelBinding::Prefer => config::ChannelBinding::Prefer,
        ChannelBinding::Require => config::ChannelBinding::Require,
    });
    if let Some(password) = &config.login.password {
        settings.password(&*password.now()?);
    } else if let Some(password) = config.passfile.as_deref().and_then(|file| passfile(file, config, place)) {
        settings.password(password);
    }
    if let Some(database) = &config.database {
        settings.dbname(database);
    }
    if let Some(options) = config.options.as_ref().and_then(Secret::word) {
        settings.options(options);
    }
    Ok(settings)
}

/// The password in the first matching line of a file of passwords. As in libpq, a file that does not exist, or that
/// others may read, is skipped.
fn passfile(file: &Path, config: &Config, place: &Server) -> Option<String> {
    let metadata = fs::metadata(file).ok()?;
    if metadata.mode() & 0o077 != 0 {
        tracing::warn!(file = %file.display(), "a file of passwords that others may read is passed over; give it mode 0600");
        return None;
    }
    let (host, port) = match place {
        Server::Host(host, port) => (host.as_str(), *port),
        Server::Socket(_, port) => ("localhost", *port),
    };
    let user = config.login.user.as_deref().unwrap_or_default();
    let database = config.database.as_deref().unwrap_or(user);
    let wanted = [host, &port.to_string(), database, user];
    fs::read_to_string(file).ok()?.lines().find_map(|line| password_for(line, &wanted))
}

/// The fifth field of a line whose first four are these or `*`. A backslash escapes a colon or a backslash.
fn password_for(line: &str, wanted: &[&str; 4]) -> Option<String> {
    let (mut fields, mut letters) = (vec![String::new()], line.chars());
    while let Some(letter) = letters.next() {
        match letter {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut()?.extend(letters.next()),
            letter => fields.last_mut()?.push(letter),
        }
    }
    let fits = fields.len() == 5
        && !line.starts_with('#')
        && fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
    fits.then(|| fields.pop()).flatten()
}

async fn socket(place: &Server, stall: Arc<StallDetector>) -> io::Result<Socket> {
    match place {
        Server::Host(host, port) => Socket::tcp(host, *port, stall).await,
        Server::Socket(folder, port) => Socket::unix(folder.join(format!(".s.PGSQL.{port}")), stall).await,
    }
}

/// The next message that the server sends without a request; `None` once the connection has ended.
pub(crate) async fn heard(driver: &mut Driver) -> Option<AsyncMessage> {
    poll_fn(|cx| driver(cx)).await?.ok()
}

/// How to speak TLS with the servers of this configuration.
fn connector(config: &Config) -> Result<MakeRustlsConnect, BackendError> {
    let identity = config.identity()?;
    let lenient = |roots: Option<RootCertStore>| {
        let verifier = Arc::new(Lenient { roots, provider: tls::provider() });
        let builder = tls::builder()?.dangerous().with_custom_certificate_verifier(verifier);
        tls::identified(builder, identity)
    };
    let settings = match config.tls_mode() {
        TlsMode::VerifyFull => tls::believing(config.root_cert(), "sslrootcert", identity)?,
        TlsMode::VerifyCa => lenient(Some(roots(config)?))?,
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => lenient(None)?,
    };
    Ok(MakeRustlsConnect::new(settings))
}

/// # Errors
/// If the file of the CA cannot be read, even where TLS is not used, as over a socket of this machine.
fn check_authorities(config: &Config) -> Result<(), BackendError> {
    if config.root_cert().is_some() { roots(config).map(drop) } else { Ok(()) }
}

fn roots(config: &Config) -> Result<RootCertStore, BackendError> {
    let path = config.root_cert().expect("BUG: a mode that needs a CA has one");
    tls::authorities(path, "sslrootcert")
}

/// Accepts a certificate for any host if one of these authorities has signed it. Without authorities, accepts any
/// certificate.
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
    ) -> Result<ServerCertVerified, rustls::Error> {
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
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_file_of_passwords_has_four_fields_that_fit() {
        let wanted = ["db", "5432", "a:b", "app"];
        for (line, password) in [
            ("db:5432:a\\:b:app:pw", Some("pw")),
            ("*:*:*:*:p\\\\w:x\\:y", Some("p\\w:x:y")),
            ("other:*:*:*:pw", None),
            ("#*:*:*:*:pw", None),
            ("*:*:*:app", None),
        ] {
            assert_eq!(password_for(line, &wanted).as_deref(), password, "{line}");
        }
    }
}

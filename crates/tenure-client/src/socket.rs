//! `Socket`: a connection to a server, of any kind, that reports to its [`StallDetector`] when it sends and
//! receives.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_core::Host;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream, lookup_host},
};

use crate::stall::StallDetector;

trait ByteStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> ByteStream for S {}

/// A connection to a server. Bytes only: the driver interprets them.
pub struct Socket {
    stream: Box<dyn ByteStream>,
    stall: Arc<StallDetector>,
    own_end: Option<SocketAddr>,
}

impl Socket {
    /// Over TCP, to the first address of this host that can be reached, in the order of the system. Two servers
    /// behind one name must not share the clients by chance. The next address is tried when one has failed, or has
    /// not answered for 250 ms (RFC 8305).
    ///
    /// # Errors
    /// The system's, of the last address.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn tcp(host: &str, port: u16, stall: Arc<StallDetector>) -> io::Result<Self> {
        let addresses = lookup_host((host, port)).await?.collect();
        let stream = first(addresses, TcpStream::connect, stall.host()).await?;
        stream.set_nodelay(true)?;
        watch(&stream)?;
        let own_end = Some(stream.local_addr()?);
        Ok(Self { stream: Box::new(stream), stall, own_end })
    }

    /// Over a socket in the file system.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn unix(path: impl AsRef<Path>, stall: Arc<StallDetector>) -> io::Result<Self> {
        let stream = Box::new(UnixStream::connect(path).await?);
        Ok(Self { stream, stall, own_end: None })
    }

    /// The local address over TCP: a server that reports another one is not reached directly.
    pub fn own_end(&self) -> Option<SocketAddr> {
        self.own_end
    }
}

/// The first connection that succeeds, in this order. While one takes long, the next one is tried at the same time.
async fn first<T, F>(
    addresses: Vec<SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
    host: &dyn Host,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut addresses = addresses.into_iter();
    let mut tries = FuturesUnordered::new();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    loop {
        tries.extend(addresses.next().map(&connect));
        if tries.is_empty() {
            return Err(failed);
        }
        let over = host.sleep_until(host.now() + HEAD_START);
        tokio::select! {
            biased;
            Some(tried) = tries.next() => match tried {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            },
            () = over => {}
        }
    }
}

/// The pause before the next address is tried while one has not answered.
const HEAD_START: Duration = Duration::from_millis(250);

/// The kernel detects a server that vanished within some 10 s, even without a request.
#[cfg(target_os = "linux")]
fn watch(stream: &TcpStream) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &5)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &2)?;
    setsockopt(stream, sockopt::TcpKeepCount, &3)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &10_000)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn watch(stream: &TcpStream) -> io::Result<()> {
    nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::KeepAlive, &true)?;
    Ok(())
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.stall.on_heard();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        // Before that, because the answer may arrive before this thread continues; and even if there is no room for
        // it.
        self.stall.on_sent();
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tenure_testkit::host::{PausedHost, pass};

    use super::*;

    /// Two servers behind one name shared the clients by chance: the first to answer was used, by each handle anew
    /// (L1).
    #[tokio::test(start_paused = true)]
    async fn the_first_address_is_taken_unless_it_fails_or_hangs() {
        let host = PausedHost::new(1);
        let addresses = || (1..=3).map(|n| SocketAddr::from(([127, 0, 0, n], 1))).collect();
        // The behaviour of each: it takes this many ms, or fails after them.
        let taken = async |does: [(u64, bool); 3]| {
            let connect = |address: SocketAddr| async move {
                let IpAddr::V4(ip) = address.ip() else { return Err(io::ErrorKind::Other.into()) };
                let last = ip.octets()[3];
                let (ms, works) = does[usize::from(last) - 1];
                pass(Duration::from_millis(ms)).await;
                if works { Ok(last) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
            };
            first(addresses(), connect, &*host).await.map_err(|error| error.kind())
        };
        assert_eq!(taken([(200, true), (0, true), (0, true)]).await, Ok(1), "it is slower, and the first");
        assert_eq!(taken([(0, false), (100, true), (0, true)]).await, Ok(2));
        assert_eq!(taken([(60_000, true), (60_000, true), (0, true)]).await, Ok(3));
        assert_eq!(taken([(0, false); 3]).await, Err(io::ErrorKind::ConnectionRefused));
        let nobody = first(Vec::new(), async |_| Ok(()), &*host).await;
        assert_eq!(nobody.map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    }
}

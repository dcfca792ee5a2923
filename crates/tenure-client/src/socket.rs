//! `Socket`: a connection to a server, of whichever kind, that tells its [`StallDetector`] what it sends and hears.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::future::select_ok;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream, lookup_host},
};

use crate::stall::StallDetector;

trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for S {}

/// A connection to a server. Bytes only: what they mean is the driver's.
pub struct Socket {
    stream: Box<dyn Stream>,
    stall: Arc<StallDetector>,
    own_end: Option<SocketAddr>,
}

impl Socket {
    /// Over TCP, to the first address of this host that can be reached.
    ///
    /// # Errors
    /// The system's, of the last address.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn tcp(host: &str, port: u16, stall: Arc<StallDetector>) -> io::Result<Self> {
        let addresses = lookup_host((host, port)).await?;
        let tries: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
        if tries.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
        }
        let (stream, _) = select_ok(tries).await?;
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

    /// Our end over TCP: a server that sees another one is not reached directly.
    pub fn own_end(&self) -> Option<SocketAddr> {
        self.own_end
    }
}

/// The kernel finds a server that is gone without a word within some 10 s, also where nothing is asked.
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
        // Before that, because the answer may be heard before this thread goes on; and also if there is no room for it.
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

//! `RequestCounter`: a proxy before a server that counts the requests of one client while it waits.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// Requests that passed while the client waited.
#[derive(Debug, Default)]
pub(crate) struct RequestCounter {
    is_waiting: AtomicBool,
    requests: AtomicU64,
}

impl RequestCounter {
    /// One before the server on this port of 127.0.0.1, and its own port.
    pub(crate) async fn before(server: u16) -> io::Result<(u16, Arc<Self>)> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (port, counter) = (listener.local_addr()?.port(), Arc::<Self>::default());
        tokio::spawn(counter.clone().serve(listener, server));
        Ok((port, counter))
    }

    pub(crate) fn set_waiting(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::SeqCst);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    async fn serve(self: Arc<Self>, listener: TcpListener, server: u16) -> io::Result<()> {
        loop {
            let (client, _) = listener.accept().await?;
            let server = TcpStream::connect(("127.0.0.1", server)).await?;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            let (requests, mut replies_to) = client.into_split();
            let (mut replies, requests_to) = server.into_split();
            tokio::spawn(self.clone().count(requests, requests_to));
            tokio::spawn(async move { copy(&mut replies, &mut replies_to).await });
        }
    }

    async fn count(self: Arc<Self>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
        let (mut buffer, mut reader) = (vec![0; 1 << 16], RequestReader::default());
        loop {
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            let begun = reader.begun(&buffer[..read]);
            if self.is_waiting.load(Ordering::SeqCst) {
                self.requests.fetch_add(begun, Ordering::SeqCst);
            }
            to.write_all(&buffer[..read]).await?;
        }
    }
}

/// Reads requests in the format of Redis: `*` and the number of words, then for each word `$`, its length and the word.
#[derive(Debug, Default)]
struct RequestReader {
    line: Vec<u8>,
    /// Bytes of a word that are still to come.
    word: usize,
}

impl RequestReader {
    /// How many requests begin in these bytes, which may end anywhere.
    fn begun(&mut self, bytes: &[u8]) -> u64 {
        let mut begun = 0;
        for &byte in bytes {
            if self.word > 0 {
                self.word -= 1;
            } else if byte != b'\n' {
                self.line.push(byte);
            } else {
                let line = String::from_utf8(std::mem::take(&mut self.line)).unwrap_or_default();
                match line.trim_end().split_at_checked(1) {
                    Some(("*", _)) => begun += 1,
                    Some(("$", length)) => self.word = length.parse::<usize>().unwrap_or_default() + 2,
                    _ => {}
                }
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_however_they_are_cut() {
        let requests = b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$8\r\n*1\r\n$4\r\n\r\n*1\r\n$4\r\nPING\r\n";
        for size in 1..requests.len() {
            let mut reader = RequestReader::default();
            let begun: u64 = requests.chunks(size).map(|part| reader.begun(part)).sum();
            assert_eq!(begun, 3, "in parts of {size} bytes");
        }
    }
}

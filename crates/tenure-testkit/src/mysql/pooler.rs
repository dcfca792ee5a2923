//! `Pooler`: sends each statement of a client over another connection to a MariaDB server, as ProxySQL may.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use tenure_core::locked;

/// A pooler in front of a server. It logs in as `tenure`, and accepts every client as that user.
///
/// Consecutive statements of a client go over different connections to the server, where more than one is idle. A
/// transaction is different: while the server reports that one is open, the client keeps the connection. If the
/// client leaves then, the connection is closed. Other state of a connection, such as that of a `SET`, stays for the
/// statements of other clients.
///
/// # Dropping
/// The pooler accepts no new clients.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    pool: Arc<Pool>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Pool {
    server: u16,
    /// The connection that was idle for the longest time is taken.
    idle: Mutex<VecDeque<TcpStream>>,
    statements: AtomicU64,
}

impl Pooler {
    /// Connections that are open before a client comes. The pooler opens more if all are in use.
    pub const OPEN: usize = 4;

    /// Starts a pooler in front of the server on this port of 127.0.0.1, with [`OPEN`](Self::OPEN) connections.
    ///
    /// # Panics
    /// If the server refuses the login.
    pub fn to(server: u16) -> Self {
        let pool = Pool { server, idle: Mutex::default(), statements: AtomicU64::new(0) };
        let idle = (0..Self::OPEN).map(|_| pool.log_in().expect("the server lets it in")).collect();
        *locked(&pool.idle) = idle;
        let door = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = door.local_addr().expect("it is bound").port();
        let (pool, is_over) = (Arc::new(pool), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (pool, is_over) = (pool.clone(), is_over.clone());
            move || {
                while let Ok((client, _)) = door.accept() {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    let pool = pool.clone();
                    // It ends with its client, or with the server.
                    thread::spawn(move || drop(pool.serve(client)));
                }
            }
        });
        Self { port, pool, is_over, thread: Some(thread) }
    }

    /// The port to which clients connect, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `mysql://tenure@127.0.0.1:PORT/tenure` with this query, as in `?table=x`.
    pub fn url(&self, query: &str) -> String {
        format!("mysql://tenure@127.0.0.1:{}/tenure{query}", self.port)
    }

    /// How many statements it has sent to the server.
    pub fn statements(&self) -> u64 {
        self.pool.statements.load(Ordering::SeqCst)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread, so that it reads `is_over`.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Pool {
    /// Opens a new connection to the server.
    fn log_in(&self) -> io::Result<TcpStream> {
        let mut server = TcpStream::connect(("127.0.0.1", self.server))?;
        server.set_nodelay(true)?;
        // The server's greeting, of which nothing is needed.
        read_packet(&mut server)?;
        let mut login = (CAPABILITIES | CONNECT_WITH_DB).to_le_bytes().to_vec();
        login.extend(MOST.to_le_bytes());
        login.push(UTF8MB4);
        login.extend([0; 23]);
        login.extend(b"tenure\0\0tenure\0mysql_native_password\0");
        write_packet(&mut server, 1, &login)?;
        must_be_ok(&read_packet(&mut server)?.1)?;
        Ok(server)
    }

    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut hello = b"\x0a5.5.5-10.11.0-MariaDB-pooler\0\x01\0\0\0saltsalt\0".to_vec();
        hello.extend(&CAPABILITIES.to_le_bytes()[..2]);
        hello.push(UTF8MB4);
        hello.extend(AUTOCOMMIT.to_le_bytes());
        hello.extend(&CAPABILITIES.to_le_bytes()[2..]);
        hello.push(21);
        hello.extend([0; 10]);
        hello.extend(b"saltsaltsalt\0mysql_native_password\0");
        write_packet(&mut client, 0, &hello)?;
        let (number, _) = read_packet(&mut client)?;
        write_packet(&mut client, number + 1, &[0, 0, 0, 2, 0, 0, 0])?;
        let mut kept = None;
        loop {
            let (_, request) = read_packet(&mut client)?;
            if request.first() != Some(&COM_QUERY) {
                return Ok(());
            }
            self.statements.fetch_add(1, Ordering::SeqCst);
            let idle = || locked(&self.idle).pop_front();
            let mut server = match kept.take().or_else(idle) {
                Some(server) => server,
                None => self.log_in()?,
            };
            write_packet(&mut server, 0, &request)?;
            let status = copy_answer(&mut server, &mut client)?;
            if status & IN_TRANSACTION == 0 {
                locked(&self.idle).push_back(server);
            } else {
                kept = Some(server);
            }
        }
    }
}

/// Copies one answer to the client. Returns the status that the server reports at its end.
fn copy_answer(server: &mut TcpStream, client: &mut TcpStream) -> io::Result<u16> {
    let mut whole = Vec::new();
    let mut next = || -> io::Result<Vec<u8>> {
        let (number, packet) = read_packet(server)?;
        write_packet(&mut whole, number, &packet)?;
        Ok(packet)
    };
    let first = next()?;
    let status = match first.first() {
        Some(&OK) => {
            let (_, affected) = number(&first[1..]);
            let (_, id) = number(&first[1 + affected..]);
            status_at(&first, 1 + affected + id)
        }
        Some(&ERROR) => 0,
        // Columns, then rows; the status follows both.
        _ => {
            while !is_end(&next()?) {}
            loop {
                let packet = next()?;
                if is_end(&packet) {
                    break status_at(&packet, 3);
                }
                if packet.first() == Some(&ERROR) {
                    break 0;
                }
            }
        }
    };
    client.write_all(&whole)?;
    Ok(status)
}

fn is_end(packet: &[u8]) -> bool {
    packet.first() == Some(&END) && packet.len() < 9
}

fn status_at(packet: &[u8], at: usize) -> u16 {
    packet.get(at..at + 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// A number of variable length, and its length in bytes.
fn number(bytes: &[u8]) -> (u64, usize) {
    let length = match bytes.first() {
        Some(0xfc) => 2,
        Some(0xfd) => 3,
        Some(0xfe) => 8,
        first => return (first.copied().map_or(0, u64::from), 1),
    };
    let mut number = [0; 8];
    number[..length].copy_from_slice(&bytes[1..=length]);
    (u64::from_le_bytes(number), 1 + length)
}

fn must_be_ok(packet: &[u8]) -> io::Result<()> {
    if packet.first() == Some(&OK) {
        return Ok(());
    }
    Err(io::Error::other(format!("the server says {}", String::from_utf8_lossy(packet))))
}

/// A packet with its number; it is shorter than 16 MiB.
fn read_packet(from: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 4];
    from.read_exact(&mut head)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
    let mut packet = vec![0; usize::try_from(length).expect("OK because it has 24 bits")];
    from.read_exact(&mut packet)?;
    Ok((head[3], packet))
}

fn write_packet(to: &mut impl Write, number: u8, packet: &[u8]) -> io::Result<()> {
    let length = u32::try_from(packet.len()).expect("OK because a packet is shorter than 16 MiB");
    let mut bytes = length.to_le_bytes().to_vec();
    bytes[3] = number;
    bytes.extend(packet);
    to.write_all(&bytes)
}

/// A long password, protocol 4.1, transactions, a salt of 20 bytes, the name of the login. Not a status in place of
/// an end packet, and nothing that only MariaDB speaks.
const CAPABILITIES: u32 = 1 | 1 << 9 | 1 << 13 | 1 << 15 | 1 << 19;
const CONNECT_WITH_DB: u32 = 1 << 3;
const AUTOCOMMIT: u16 = 2;
const IN_TRANSACTION: u16 = 1;
const UTF8MB4: u8 = 45;
/// The longest packet.
const MOST: u32 = 16 << 20;
const COM_QUERY: u8 = 3;
const OK: u8 = 0;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;

//! The servers and files of a scene, ready for both schemes, each watched while the scene is played.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    thread::{self, JoinHandle},
    time::Duration,
};

use redis::{Client, Connection};
use tempfile::TempDir;
use tenure_testkit::{
    patience::eventually,
    postgres::PostgresServer,
    proxy::Proxy,
    redis::{Raw, Recipe, RedisServer},
    zookeeper::ZooKeeperServer,
};

use crate::{
    record::{Kind, What},
    schemes::{Database, ROWS},
    world::{Address, World},
};

/// A server, and where clients find it.
pub(crate) struct OneRedis {
    server: Option<RedisServer>,
    pub(crate) address: Address,
}

impl OneRedis {
    /// The given server, or its own.
    pub(crate) fn open(world: &mut World) -> Self {
        match world.setup.url.clone() {
            None => Self::own(world, Recipe::new()),
            Some(url) => Self::given(world, &url),
        }
    }

    /// A server of this recipe.
    pub(crate) fn own(world: &mut World, recipe: Recipe) -> Self {
        let server = Self::silent(world, recipe);
        look(world, LANE, &server.address.naive);
        server
    }

    /// Its own server, which no thread watches: its requests are counted.
    pub(crate) fn unwatched(world: &mut World) -> Self {
        world.referee.note(LANE, What::Opens(Kind::Store));
        Self::silent(world, Recipe::new())
    }

    fn silent(world: &World, recipe: Recipe) -> Self {
        let server = recipe.start();
        // The server is new: otherwise its first grant would wait, once in its life.
        server.has_waited("tenure:one", &settings(world));
        Self { address: address(world, server.port()), server: Some(server) }
    }

    /// The server, if it is the scene's own.
    ///
    /// # Panics
    /// If it was given.
    pub(crate) fn server(&self) -> &RedisServer {
        self.server.as_ref().expect("BUG: a scene that does this to a server needs its own")
    }

    fn given(world: &mut World, url: &str) -> Self {
        // OK to ignore because the clients report a server that cannot be reached.
        let _ = free(url, &world.lock);
        look(world, LANE, url);
        Self { server: None, address: Address { naive: url.to_owned(), tenure: url.to_owned() } }
    }
}

/// Two servers. Clients come through the name, the replica through the link.
pub(crate) struct MasterAndReplica {
    master: RedisServer,
    replica: RedisServer,
    name: Proxy,
    /// Between master and replica.
    pub(crate) link: Proxy,
    pub(crate) address: Address,
}

impl MasterAndReplica {
    /// Starts both and waits until the replica has a copy.
    pub(crate) fn open(world: &mut World) -> Self {
        let master = Recipe::new().start();
        master.has_waited("tenure:one", &settings(world));
        let (link, name) = (Proxy::to(master.port(), 1), Proxy::to(master.port(), 2));
        let replica = Recipe::new().replica_of(link.port()).start();
        let is_up = || (replica.info("replication", "master_link_status") == "up").then_some(());
        eventually("the replica is a copy", COPIED, is_up);
        let has_record = || (replica.command(&["EXISTS", "tenure:one"]).int() == 1).then_some(());
        eventually("the replica has all", COPIED, has_record);
        for (lane, server) in [(MASTER, &master), (REPLICA, &replica)] {
            look(world, lane, &address(world, server.port()).naive);
        }
        let address = address(world, name.port());
        Self { master, replica, name, link, address }
    }

    /// Waits until the replica has the lock.
    pub(crate) fn is_copied(&self, lock: &str) {
        let is_there = || (self.replica.command(&["EXISTS", lock]).int() == 1).then_some(());
        eventually("the replica has the lock", COPIED, is_there);
    }

    /// The master crashes, the replica takes its place, and the name leads there.
    pub(crate) fn fails_over(&self, world: &World) {
        self.master.kill();
        world.fault(MASTER, "crashes");
        self.replica.command(&["REPLICAOF", "NO", "ONE"]);
        self.name.lead_to(self.replica.port());
        world.fault(REPLICA, "is promoted");
    }
}

/// Independent servers.
pub(crate) struct Quorum {
    pub(crate) servers: Vec<RedisServer>,
}

impl Quorum {
    /// Starts `count` servers.
    pub(crate) fn open(world: &mut World, count: usize) -> Self {
        let servers: Vec<_> = (0..count).map(|_| Recipe::new().start()).collect();
        let settings = format!("quorum={count} guard=on max_ttl={}", world.seconds());
        for (nth, server) in servers.iter().enumerate() {
            server.has_waited("tenure:quorum", &settings);
            look(world, &lane(nth), &server.url(""));
        }
        Self { servers }
    }

    /// The servers on these ports, in this order.
    pub(crate) fn address(&self, world: &World, ports: &[u16]) -> Address {
        let urls: Vec<String> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}/")).collect();
        let naive = urls.join(",");
        Address { tenure: format!("redlock:{naive}?max_ttl={}", world.seconds()), naive }
    }

    /// Their ports.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(RedisServer::port).collect()
    }
}

/// One server. Its locks end when a session does.
pub(crate) struct ZooKeeper {
    _server: ZooKeeperServer,
    pub(crate) address: Address,
}

impl ZooKeeper {
    /// Starts it.
    pub(crate) fn open(world: &mut World) -> Self {
        let server = ZooKeeperServer::start();
        let port = server.port();
        world.watches("ZooKeeper", move || holder(port));
        let address = Address { naive: server.address(), tenure: server.url("") };
        Self { _server: server, address }
    }
}

/// A folder with both files.
pub(crate) struct Rows {
    folder: TempDir,
    pub(crate) address: Address,
}

impl Rows {
    /// The number is zero.
    pub(crate) fn open(world: &World) -> Self {
        world.referee.note(ROW, What::Opens(Kind::Resource));
        let folder = tempfile::Builder::new().prefix("tenure-rows-").tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let address = Address { naive: path(ROWS), tenure: format!("sqlite:{}", path("locks.db")) };
        let rows = rusqlite::Connection::open(&address.naive).expect("a file in the temporary folder");
        rows.execute_batch(
            "CREATE TABLE stock (amount INTEGER, mark INTEGER); INSERT INTO stock VALUES (0, 0)",
        )
        .expect("a new table");
        Self { folder, address }
    }

    /// What the number is now.
    pub(crate) fn sum(&self, world: &World) {
        let rows = rusqlite::Connection::open(self.folder.path().join(ROWS)).expect("the file is there");
        let sum: rusqlite::Result<u32> = rows.query_row("SELECT amount FROM stock", (), |row| row.get(0));
        world.referee.note(ROW, What::Sum(sum.expect("the row is there").into()));
    }
}

/// A database with a row for a lock, the table of Tenure, and the number.
pub(crate) struct Postgres {
    server: PostgresServer,
    pub(crate) address: Address,
}

impl Postgres {
    /// Starts it. The number is zero.
    pub(crate) fn open(world: &mut World) -> Self {
        world.referee.note(ROW, What::Opens(Kind::Resource));
        let server = PostgresServer::start();
        server.psql_as(
            "tenure",
            "CREATE TABLE job (owner text, expires timestamptz); INSERT INTO job VALUES ('', '-infinity'); \
             CREATE TABLE stock (amount integer); INSERT INTO stock VALUES (0)",
        );
        let (url, lock) = (server.url(""), world.lock.clone());
        let database = Database::open(&url).expect("the server is up");
        // Without a row in either table there is no holder.
        world.watches("PostgreSQL", move || database.value(HOLDER, &[&lock]).unwrap_or(None));
        Self { server, address: Address { naive: url.clone(), tenure: url } }
    }

    /// What the number is now.
    pub(crate) fn sum(&self, world: &World) {
        let sum = self.server.psql("SELECT amount FROM stock");
        world.referee.note(ROW, What::Sum(sum.trim().parse().expect("a number")));
    }
}

/// Counts from its beginning. What a script does inside the server is not counted.
pub(crate) struct Count {
    thread: JoinHandle<u64>,
    other: Raw,
}

impl Count {
    /// From now on.
    pub(crate) fn begin(world: &World, server: &RedisServer) -> Self {
        let (mut ear, other) = (server.raw(), server.raw());
        ear.command(&["MONITOR"]);
        world.referee.note(LANE, What::Requests(0));
        let thread = thread::spawn(move || {
            let requests = std::iter::from_fn(|| ear.read().ok()).map(|line| line.text());
            let until_the_end = requests.take_while(|line| !line.contains(END));
            let count = until_the_end.filter(|line| !line.contains(" lua] ")).count();
            u64::try_from(count).expect("BUG: a small number")
        });
        Self { thread, other }
    }

    /// Until now.
    pub(crate) fn end(mut self, world: &World) {
        self.other.command(&["ECHO", END]);
        let count = self.thread.join().expect("BUG: counting does not panic");
        world.referee.note(LANE, What::Requests(count));
    }
}

/// Where clients find a server on this port, or a proxy before it.
pub(crate) fn address(world: &World, port: u16) -> Address {
    let naive = format!("redis://127.0.0.1:{port}/");
    Address { tenure: format!("{naive}?max_ttl={}", world.seconds()), naive }
}

/// The settings of Tenure on a server, as it writes them down there.
fn settings(world: &World) -> String {
    format!("guard=on max_ttl={}", world.seconds())
}

/// Starts a thread that watches a server.
fn look(world: &mut World, lane: &str, url: &str) {
    let (url, lock) = (url.to_owned(), world.lock.clone());
    let mut connection: Option<Connection> = None;
    world.watches(lane, move || {
        if connection.is_none() {
            connection = connect(&url);
        }
        let held = redis::cmd("GET").arg(&lock).query::<Option<String>>(connection.as_mut()?);
        held.unwrap_or_else(|_| {
            connection = None;
            None
        })
    });
}

/// Deletes what a half has left behind, as a scheme without an expiry does.
pub(crate) fn free(url: &str, lock: &str) -> redis::RedisResult<()> {
    redis::cmd("DEL").arg(lock).query(&mut Client::open(url)?.get_connection_with_timeout(PATIENCE)?)
}

fn connect(url: &str) -> Option<Connection> {
    let connection = Client::open(url).ok()?.get_connection_with_timeout(PATIENCE).ok()?;
    connection.set_read_timeout(Some(PATIENCE)).ok()?;
    Some(connection)
}

/// The node with the smallest number, by the list of sessions and their nodes.
fn holder(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"dump").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let nodes = text.lines().filter_map(|line| line.trim().rsplit_once('/')).map(|(_, node)| node);
    let numbered = nodes.filter_map(|node| node.rsplit_once('-').map(|(_, number)| (number, node)));
    numbered.min().map(|(_, node)| node.replace('-', ""))
}

/// The lane of a server.
fn lane(nth: usize) -> String {
    format!("node {}", nth + 1)
}

/// The lane of a Redis server that is alone.
pub(crate) const LANE: &str = "Redis";
const MASTER: &str = "master";
const REPLICA: &str = "replica";
const ROW: &str = "row";
/// The holder in the row of the usual recipe, or else in the record of Tenure.
const HOLDER: &str = r#"SELECT owner FROM job WHERE expires > now() UNION ALL
    SELECT substring(state FROM '"holders":[[][{]"owner":"([0-9a-f]+)') FROM tenure_lock WHERE name = $1"#;
/// What ends a count.
const END: &str = "the count ends";
/// Of a connection that watches a server.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of a wait for a copy.
const COPIED: Duration = Duration::from_secs(10);

//! `Sentinels`: a master, its replicas, and three sentinels that promote one of them.

use std::{io, time::Duration};

use crate::{
    patience::eventually,
    proxy::Proxy,
    redis::{recipe::Recipe, reply::Reply, server::RedisServer},
};

/// How they are started.
#[derive(Clone, Debug)]
pub struct SentinelRecipe {
    server: Recipe,
    replicas: usize,
    down_after: Duration,
    failover_timeout: Duration,
    is_proxied: bool,
}

/// A master, its replicas, and three sentinels that watch them. They die with the test.
///
/// The sentinels poll more often than by default (`SENTINEL DEBUG`), so that no test waits for their rounds.
#[derive(Debug)]
pub struct Sentinels {
    sentinels: Vec<RedisServer>,
    links: Vec<Proxy>,
    servers: Vec<RedisServer>,
}

impl SentinelRecipe {
    /// Two replicas; a server counts as down after 3 s without an answer; a failover may take 60 s.
    pub fn new() -> Self {
        Self {
            server: Recipe::new(),
            replicas: 2,
            down_after: Duration::from_secs(3),
            failover_timeout: Duration::from_secs(60),
            is_proxied: false,
        }
    }

    /// Master and replicas are made by this recipe. The sentinels do not log in. They speak mutual TLS if it does.
    #[must_use]
    pub fn server(mut self, server: Recipe) -> Self {
        self.server = server;
        self
    }

    /// With `count` replicas.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// `down-after-milliseconds`. On a busy machine, less than 3 s causes failovers that no test asked for.
    #[must_use]
    pub fn down_after(mut self, after: Duration) -> Self {
        self.down_after = after;
        self
    }

    /// `failover-timeout`. The sentinels start a failover by themselves at most once in two such times.
    #[must_use]
    pub fn failover_timeout(mut self, timeout: Duration) -> Self {
        self.failover_timeout = timeout;
        self
    }

    /// Each replica follows the master through a [`link`](Sentinels::link), which a test can cut. After a failover
    /// the replicas follow the new master directly, because sentinels do not know the links. Sentinels also point
    /// a replica directly at the master if nothing has happened for one `failover-timeout`.
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.is_proxied = true;
        self
    }

    /// Starts all and waits until every sentinel knows every replica and the other sentinels.
    ///
    /// # Panics
    /// If a program is missing, or they do not come together in time.
    pub fn start(self) -> Sentinels {
        let master = self.server.clone().start();
        let mut links = Vec::new();
        let mut servers = vec![master];
        for index in 0..self.replicas {
            let mut port = servers[0].port();
            if self.is_proxied {
                links.push(Proxy::to(port, index as u64));
                port = links[index].port();
            }
            servers.push(self.server.clone().replica_of(port).start());
        }
        for replica in &servers[1..] {
            let is_up = || replica.info("replication", "master_link_status") == "up";
            eventually("a replica follows its master", PATIENCE, || is_up().then_some(()));
        }
        let watch = self.settings(servers[0].port());
        let sentinel = Recipe::sentinel().config(&watch);
        let sentinel = match &self.server.certificates {
            Some(certificates) => sentinel.mutual_tls(certificates),
            None => sentinel,
        };
        let sentinels: Vec<_> = (0..SENTINELS).map(|_| sentinel.clone().start()).collect();
        let all = Sentinels { sentinels, links, servers };
        for sentinel in &all.sentinels {
            let reply = sentinel.command(&HURRY);
            assert_eq!(reply.error(), None, "a sentinel does not hurry");
            let knows_all = || knows_all(sentinel, self.replicas).then_some(());
            eventually("a sentinel knows all replicas and sentinels", PATIENCE, knows_all);
        }
        all
    }

    fn settings(&self, port: u16) -> String {
        let (down, failover) = (self.down_after.as_millis(), self.failover_timeout.as_millis());
        format!(
            "sentinel monitor {NAME} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {NAME} {down}\n\
             sentinel failover-timeout {NAME} {failover}\n\
             sentinel parallel-syncs {NAME} 1"
        )
    }
}

impl Default for SentinelRecipe {
    fn default() -> Self {
        Self::new()
    }
}

impl Sentinels {
    /// With the defaults of [`SentinelRecipe::new`].
    pub fn start() -> Self {
        SentinelRecipe::new().start()
    }

    /// What the sentinels call the master: `main`.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Where the sentinels listen, at 127.0.0.1.
    pub fn sentinel_ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(RedisServer::port).collect()
    }

    /// Master and replicas; the first was the master at the start.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The server on this port.
    ///
    /// # Panics
    /// If it is not the master or a replica here.
    #[track_caller]
    pub fn server(&self, port: u16) -> &RedisServer {
        let server = self.servers.iter().find(|server| server.port() == port);
        server.unwrap_or_else(|| panic!("no server of ours on port {port}"))
    }

    /// The proxy between the first master and its replica of this number, from 0.
    ///
    /// # Panics
    /// If the recipe is not [`proxied`](SentinelRecipe::proxied).
    pub fn link(&self, replica: usize) -> &Proxy {
        self.links.get(replica).expect("a recipe with links, and so many replicas")
    }

    /// All links.
    pub fn links(&self) -> &[Proxy] {
        &self.links
    }

    /// The master's port. Waits until all sentinels that run agree.
    ///
    /// # Panics
    /// If they do not in time.
    pub fn master_port(&self) -> u16 {
        eventually("the sentinels agree on the master", PATIENCE, || self.agreed())
    }

    /// The master. Waits until all sentinels that run agree.
    ///
    /// # Panics
    /// If they do not in time.
    pub fn master(&self) -> &RedisServer {
        self.server(self.master_port())
    }

    /// Has another server promoted, without asking the master, and waits until all sentinels that run agree on it.
    /// Returns its port. The old master may act as a master for a moment longer.
    ///
    /// # Panics
    /// If there is no replica to promote, or it takes too long.
    pub fn failover(&self) -> u16 {
        let before = self.master_port();
        eventually("a failover begins", PATIENCE, || {
            let running = self.sentinels.iter().find(|sentinel| sentinel.is_running())?;
            running.command(&["SENTINEL", "FAILOVER", NAME]).error().is_none().then_some(())
        });
        self.await_master_after(before)
    }

    /// Waits until all sentinels that run agree on a master other than this one, and that server reports the role.
    /// Returns its port.
    ///
    /// # Panics
    /// If they do not in time.
    pub fn await_master_after(&self, before: u16) -> u16 {
        eventually("the sentinels agree on a new master", PATIENCE, || {
            let port = self.agreed().filter(|port| *port != before)?;
            let role = self.server(port).command(&["ROLE"]).list().swap_remove(0);
            (role == Reply::Text("master".into())).then_some(port)
        })
    }

    /// The port of the master, as all sentinels that run report it; `None` if they differ.
    fn agreed(&self) -> Option<u16> {
        let running = self.sentinels.iter().filter(|sentinel| sentinel.is_running());
        let mut ports = running.map(|sentinel| named_by(sentinel).ok().flatten());
        let first = ports.next().expect("a sentinel that runs")?;
        ports.all(|port| port == Some(first)).then_some(first)
    }
}

fn named_by(sentinel: &RedisServer) -> io::Result<Option<u16>> {
    match sentinel.raw().try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])? {
        Reply::List(address) => Ok(address.last().and_then(|port| port.clone().text().parse().ok())),
        _ => Ok(None),
    }
}

fn knows_all(sentinel: &RedisServer, replicas: usize) -> bool {
    let master = sentinel.command(&["SENTINEL", "MASTER", NAME]);
    let field = |name: &str| master.clone().field(name).text();
    let lists = sentinel.command(&["SENTINEL", "REPLICAS", NAME]).list();
    let is_fine = |replica: &Reply| {
        let field = |name: &str| replica.clone().field(name).text();
        field("flags") == "slave" && field("master-link-status") == "ok"
    };
    field("flags") == "master"
        && field("num-slaves") == replicas.to_string()
        && field("num-other-sentinels") == (SENTINELS - 1).to_string()
        && lists.len() == replicas
        && lists.iter().all(is_fine)
}

const NAME: &str = "main";
const SENTINELS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);
const HURRY: [&str; 8] =
    ["SENTINEL", "DEBUG", "info-period", "500", "publish-period", "300", "ask-period", "300"];

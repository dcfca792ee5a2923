//! `Server`: a store of our own behind a bad network.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tenure_testkit::{
    postgres::{PostgresServer, Recipe},
    proxy::Proxy,
    redis::RedisServer,
};
use tokio::time::sleep;

use crate::Chance;

/// Ends with its owner.
pub(crate) enum Server {
    Redis(RedisServer, Proxy),
    Postgres(PostgresServer, Proxy),
    Sqlite(PathBuf),
}

impl Server {
    pub(crate) fn start(store: &str, folder: &Path) -> Self {
        match store {
            "redis" => {
                let server = RedisServer::start();
                let proxy = Proxy::to(server.port(), 1);
                Self::Redis(server, proxy)
            }
            "postgres" => {
                let server = Recipe::new().durable().start();
                let proxy = Proxy::to(server.port(), 1);
                Self::Postgres(server, proxy)
            }
            _ => Self::Sqlite(folder.join("locks.db")),
        }
    }

    /// Past the proxy.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Redis(_, proxy) => format!("redis://127.0.0.1:{}/?max_ttl=10s", proxy.port()),
            Self::Postgres(server, proxy) => {
                server.url("").replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()))
            }
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
        }
    }

    fn proxy(&self) -> Option<&Proxy> {
        match self {
            Self::Redis(_, proxy) | Self::Postgres(_, proxy) => Some(proxy),
            Self::Sqlite(_) => None,
        }
    }

    pub(crate) fn heal(&self) {
        self.proxy().into_iter().for_each(Proxy::heal);
    }

    /// How many clients are connected now.
    pub(crate) fn connections(&self) -> Option<u64> {
        match self {
            Self::Redis(server, _) => Some(server.command(&["CLIENT", "LIST"]).text().lines().count() as u64),
            Self::Postgres(server, _) => {
                let count = server
                    .psql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'");
                count.trim().parse().ok()
            }
            Self::Sqlite(_) => None,
        }
    }

    /// Does to the connections what a bad network does, now and then.
    pub(crate) async fn faults(self: Arc<Self>, stop: Arc<AtomicBool>, pause: Duration) {
        let mut chance = Chance::new();
        let Some(proxy) = self.proxy() else { return };
        while !stop.load(Ordering::Relaxed) {
            sleep(pause).await;
            let time = chance.millis(1500);
            match chance.below(6) {
                0 => proxy.cut(),
                1 => proxy.stall(),
                2 => proxy.drop_replies(),
                3 => proxy.drop_requests(),
                4 => proxy.cut_after_bytes(chance.below(4096)),
                _ => proxy.hold(),
            }
            sleep(time).await;
            proxy.release();
            proxy.heal();
        }
    }
}

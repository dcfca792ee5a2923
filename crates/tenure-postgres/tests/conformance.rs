//! The PostgreSQL backend keeps the contract, on a real server whose clock is moved: in every isolation, through a pooler in
//! transaction mode, and with hints past it.

use std::time::Duration;

use async_trait::async_trait;
use tenure_core::BackendHandle;
use tenure_testkit::{
    clock::Clock,
    conformance::{Arena, LONG_TURN},
    postgres::{Pgbouncer, PostgresServer, Recipe},
};

use crate::stage::postgres;

struct OneServer {
    url: String,
    here: BackendHandle,
    clock: Clock,
    _pooler: Option<Pgbouncer>,
    _server: PostgresServer,
}

impl OneServer {
    fn new(isolation: &str) -> Self {
        let clock = Clock::new();
        let settings = format!("default_transaction_isolation = '{isolation}'");
        let server = Recipe::new().clock(&clock).config(&settings).start();
        let url = server.url("?claim_ttl=6s");
        Self { here: postgres(&url), url, clock, _pooler: None, _server: server }
    }

    /// `query` may say `{direct}`, for the URL of the server itself.
    fn pooled(query: &str) -> Self {
        let mut arena = Self::new("read committed");
        let pooler = Pgbouncer::before(&arena._server);
        arena.url = pooler.url(&query.replace("{direct}", &arena._server.url("")));
        arena.here = postgres(&arena.url);
        arena._pooler = Some(pooler);
        arena
    }
}

#[async_trait]
impl Arena for OneServer {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        postgres(&self.url)
    }

    async fn pass(&self, d: Duration) {
        self.clock.advance(d);
    }

    fn turn(&self) -> Duration {
        LONG_TURN
    }
}

mod read_committed {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::new("read committed")
    }

    tenure_testkit::conformance!(arena, real_time);
}

/// Hazard 56: a race that is lost is an error of the server here.
mod repeatable_read {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::new("repeatable read")
    }

    tenure_testkit::conformance!(arena, real_time);
}

/// Hazard 56.
mod serializable {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::new("serializable")
    }

    tenure_testkit::conformance!(arena, real_time);
}

/// Hazard 54: each statement may run on another connection. Hints come past the pooler.
mod pooled {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::pooled("?claim_ttl=6s&listen={direct}")
    }

    tenure_testkit::conformance!(arena, real_time);
}

//! The MySQL backend keeps the contract, on a real server whose clock is moved: in every isolation, with settings that change what
//! a statement means, and where each statement may run over another connection.

use std::time::Duration;

use async_trait::async_trait;
use tenure_core::BackendHandle;
use tenure_testkit::{
    clock::Clock,
    conformance::{Arena, LONG_TURN},
    mysql::{MysqlServer, Pooler, Recipe},
};

use crate::stage::mysql;

struct OneServer {
    url: String,
    here: BackendHandle,
    clock: Clock,
    _pooler: Option<Pooler>,
    _server: MysqlServer,
}

impl OneServer {
    fn new(settings: &[&str]) -> Self {
        Self::start(settings, false)
    }

    fn start(settings: &[&str], is_pooled: bool) -> Self {
        let clock = Clock::new();
        let recipe = settings.iter().fold(Recipe::new().clock(&clock), |recipe, setting| recipe.set(setting));
        let server = recipe.start();
        let pooler = is_pooled.then(|| Pooler::to(server.port()));
        let query = "?claim_ttl=6s";
        let url = pooler.as_ref().map_or_else(|| server.url(query), |pooler| pooler.url(query));
        Self { here: mysql(&url), url, clock, _pooler: pooler, _server: server }
    }
}

#[async_trait]
impl Arena for OneServer {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        mysql(&self.url)
    }

    async fn pass(&self, d: Duration) {
        self.clock.advance(d);
    }

    fn turn(&self) -> Duration {
        LONG_TURN
    }
}

mod repeatable_read {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::new(&[])
    }

    tenure_testkit::conformance!(arena, real_time);
}

mod read_committed_with_other_quotes {
    use super::OneServer;

    async fn arena() -> OneServer {
        let modes =
            "sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,HIGH_NOT_PRECEDENCE";
        OneServer::new(&["transaction-isolation=READ-COMMITTED", modes, "character-set-server=latin1"])
    }

    tenure_testkit::conformance!(arena, real_time);
}

/// Hazard 56: a race that is lost is an error of the server here.
mod serializable_as_oracle {
    use super::OneServer;

    async fn arena() -> OneServer {
        let modes = "sql-mode=ORACLE,EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT,NO_UNSIGNED_SUBTRACTION";
        OneServer::new(&[
            "transaction-isolation=SERIALIZABLE",
            modes,
            "character-set-server=utf8mb3",
            "collation-server=utf8mb3_general_ci",
        ])
    }

    tenure_testkit::conformance!(arena, real_time);
}

/// Hazard 54: no two statements run over the same connection.
mod pooled {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::start(&[], true)
    }

    tenure_testkit::conformance!(arena, real_time);
}

//! What the tests of the PostgreSQL backend share: servers with handles to them, and what a server says of itself.

use std::{sync::Arc, time::Duration};

use tenure::backend::TokioHost;
use tenure_core::{BackendHandle, Grant};
use tenure_postgres::{Config, backend};
pub(crate) use tenure_testkit::entry::chain;
use tenure_testkit::{
    conformance::player::Player,
    entry::let_in_within,
    patience::{self, in_time},
    postgres::{PostgresServer, Recipe},
};

/// How long a server may take for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A handle as one process has it.
pub(crate) fn postgres(url: &str) -> BackendHandle {
    Arc::new(backend(Config::from_url(url).unwrap(), Arc::new(TokioHost)))
}

/// A claimant in a process of its own.
pub(crate) fn player(url: &str, name: &str) -> Player {
    Player::new(postgres(url), name)
}

/// Asks until it is let in.
pub(crate) async fn enter_in_time(player: &Player) -> Grant {
    let_in_within(PATIENCE, player).await.grant
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, is_so: impl AsyncFnMut() -> bool) {
    patience::until(what, PATIENCE, is_so).await;
}

/// Ends what hangs, with its place in the test.
pub(crate) async fn soon<A>(what: impl Future<Output = A>) -> A {
    in_time("it answers", PATIENCE, what).await
}

/// A server that writes down every statement.
pub(crate) fn talkative() -> PostgresServer {
    Recipe::new().config("log_statement = all").start()
}

/// What it wrote down of the clients' statements, in its first life.
pub(crate) fn statements(server: &PostgresServer) -> Vec<String> {
    let log = std::fs::read_to_string(server.folder().join("log-1")).unwrap();
    let lines =
        log.lines().filter(|line| line.contains("LOG:  execute ") || line.contains("LOG:  statement: "));
    lines.map(str::to_owned).collect()
}

/// A connection of somebody else, after these statements.
pub(crate) async fn connect(server: &PostgresServer, sql: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.url(""), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(sql).await.unwrap();
    client
}

/// A connection of somebody else, which holds the row's lock until it is told to end.
pub(crate) async fn lock_row(server: &PostgresServer, name: &str) -> tokio_postgres::Client {
    connect(server, &format!("BEGIN; SELECT 1 FROM tenure_lock WHERE name = '{name}' FOR UPDATE")).await
}

pub(crate) fn is_anybody_waiting(server: &PostgresServer) -> bool {
    server.psql("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted") == "t"
}

//! Servers that are slow, and not down.

use std::time::Duration;

use tenure_core::Renewal;
use tenure_testkit::{postgres::Recipe, proxy::Proxy, redis::Certificates};

use crate::stage::{self, player};

/// A connection had 2 s from its socket to its login: TLS and SCRAM take eight answers, and a server of 300 ms was never reached.
#[tokio::test]
async fn a_server_of_300_ms_to_an_answer_is_reached_with_tls_and_scram() {
    let certificates = Certificates::new();
    let server = Recipe::new().tls(&certificates).passwords().start();
    server.psql("SET password_encryption = 'scram-sha-256'; ALTER ROLE tenure PASSWORD 'right'");
    let proxy = Proxy::to(server.port(), 7);
    let late = Duration::from_millis(150);
    proxy.delay(late..=late);
    let url = format!(
        "postgres://tenure:right@127.0.0.1:{}/tenure?sslmode=require&connect_timeout=1",
        proxy.port()
    );
    let a = player(&url, "one");
    let grant = stage::enter_in_time(&a).await;
    assert_eq!(a.renew(&grant).await, Renewal::Renewed);
}

//! Servers that are slow, and not down.

use std::time::Duration;

use tenure_core::Renewal;
use tenure_testkit::{conformance::player::Player, postgres::Recipe, proxy::Proxy, redis::Certificates};

use crate::stage::{self, player, postgres, statements, talkative};

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

/// A renewal took three requests, since a refused write did not say why: of a server that is slow leases were lost.
#[tokio::test]
async fn a_renewal_of_a_cell_that_has_changed_takes_two_requests() {
    let server = talkative();
    let backend = postgres(&server.url("?listen=off"));
    let [one, two] = ["one", "two"].map(|name| Player::new(backend.clone(), name));
    let grants = [one.enter().await, two.enter().await];
    let waits = ["one", "two"].map(|name| player(&server.url("?listen=off"), name));
    let asked = || statements(&server).len();
    for count in [1, 2] {
        // The waiters write the cells anew.
        waits[0].queue_behind(0).await;
        waits[1].queue_behind(0).await;
        let before = asked();
        for answer in backend.renew(&grants[..count]).await {
            assert_eq!(answer.unwrap(), Renewal::Renewed);
        }
        assert_eq!(asked() - before, 2, "{:#?}", &statements(&server)[before..]);
        for wait in &waits {
            wait.leave().await;
        }
    }
}

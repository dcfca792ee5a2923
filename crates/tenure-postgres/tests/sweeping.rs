//! Rows of locks that nobody uses any more do not pile up, and their tokens do not come back.

use std::time::Duration;

use tenure_testkit::{
    clock::Clock,
    conformance::player::Player,
    postgres::{PostgresServer, Recipe},
};

use crate::stage::{player, postgres, until};

/// H6.4: the fence of a row that was swept is below the clock, from which the next row of that name starts.
#[tokio::test]
async fn rows_that_were_free_for_a_day_are_deleted_and_tokens_go_on() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    let backend = postgres(&server.url(""));
    let old = Player::new(backend.clone(), "old/free");
    let before = old.enter().await;
    old.leave().await;
    let mut lasting = Player::new(backend.clone(), "old/held");
    lasting.claim.ttl = Duration::from_secs(24 * 3600);
    lasting.enter().await;
    clock.advance(Duration::from_secs(25 * 3600));
    let young = Player::new(backend.clone(), "young/free");
    young.enter().await;
    young.leave().await;
    let rows =
        |names: &str| server.psql(&format!("SELECT count(*) FROM tenure_lock WHERE name LIKE '{names}'"));
    let mut count = 0;
    until("the old row is swept", async || {
        // One new name in 64 sweeps.
        player_of(&backend, count).await;
        count += 1;
        rows("old/free") == "0"
    })
    .await;
    assert_eq!((rows("young/free"), rows("old/held")), ("1".into(), "1".into()));
    let again = player(&server.url(""), "old/free").enter().await;
    assert!(again.token > before.token);
    // This process still remembers the row as it was; the table says better.
    assert!(!Player::new(backend, "old/free").try_enter().await);
}

async fn player_of(backend: &tenure_core::BackendHandle, count: usize) {
    Player::new(backend.clone(), &format!("new/{count}")).enter().await;
}

/// Roles without `DELETE` empty their rows. Those of a name that is always in use were deleted by no other role.
#[tokio::test]
async fn emptied_places_are_deleted_by_the_next_role_that_may() {
    let server = PostgresServer::start();
    let holder = player(&server.url(""), "one");
    holder.enter().await;
    server.psql(
        "INSERT INTO tenure_lock (name, version, busy, used, state) \
         SELECT 'one' || chr(1) || lpad(n::text, 16, '0'), 1, false, now(), '' FROM generate_series(1, 200) AS n",
    );
    until("they are deleted", async || {
        let waiter = player(&server.url(""), "one");
        waiter.queue_behind(0).await;
        waiter.leave().await;
        server.psql("SELECT count(*) FROM tenure_lock") == "1"
    })
    .await;
}

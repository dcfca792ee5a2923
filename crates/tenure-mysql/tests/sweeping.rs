//! Rows of locks that nobody uses any more do not pile up, and their tokens do not come back.

use std::time::Duration;

use tenure_core::{Memo, Noted};
use tenure_testkit::{
    clock::Clock,
    conformance::player::Player,
    mysql::{MysqlServer, Recipe},
};

use crate::stage::{mysql, player, until};

const HOUR: Duration = Duration::from_secs(3600);

/// H6.4: the fence of a row that was swept is below the clock, from which the next row of that name starts.
#[tokio::test]
async fn rows_that_were_free_for_a_day_are_deleted_and_tokens_go_on() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    let backend = mysql(&server.url(""));
    let free = async |name: &str| {
        let player = Player::new(backend.clone(), name);
        let grant = player.enter().await;
        player.leave().await;
        grant
    };
    let note = async |name: &str, kept: Duration| {
        let player = Player::new(backend.clone(), name);
        let grant = player.enter().await;
        // As a label might look, so that no text is taken for the end of a memo.
        let memo = Memo::new("\"memo\":{\"ends_ms\":1,", kept).unwrap();
        let noted = backend.note(&grant.name, grant.owner, grant.token, &memo).await.unwrap();
        assert_eq!(noted, Noted::Noted);
        player.leave().await;
    };
    let before = free("old/free").await;
    note("old/noted", 48 * HOUR).await;
    note("old/told", HOUR).await;
    let held = Player::new(backend.clone(), "old/held").lasting(24 * HOUR);
    held.enter().await;
    Player::new(backend.clone(), "old/held").queue_behind(0).await;
    clock.advance(25 * HOUR);
    free("young/free").await;
    let rows = || server.sql("SELECT name FROM tenure_lock WHERE name NOT LIKE 'new/%' ORDER BY name");
    let mut count = 0;
    until("the old rows are swept", async || {
        // One new name in 64 sweeps.
        free(&format!("new/{count}")).await;
        count += 1;
        rows() == "old/held\nold/noted\nyoung/free"
    })
    .await;
    let seen = backend.inspect(&"old/noted".parse().unwrap()).await.unwrap();
    assert_eq!(seen.memo.unwrap().text, "\"memo\":{\"ends_ms\":1,");
    let again = player(&server.url(""), "old/free").enter().await;
    assert!(again.token > before.token);
    // This process still remembers the row as it was; the table says better.
    assert!(!Player::new(backend, "old/free").try_enter().await);
}

/// Users without `DELETE` empty their rows. Those of a name that is always in use were deleted by no other user: after 72 000
/// waits each reading took 0.3 s.
#[tokio::test]
async fn emptied_places_are_deleted_by_the_next_user_that_may() {
    let server = MysqlServer::start();
    let holder = player(&server.url(""), "one");
    holder.enter().await;
    server.sql(
        "INSERT INTO tenure_lock (name, version, busy, used, state) \
         SELECT CONCAT('one', CHAR(1), LPAD(seq, 16, '0')), 1, 0, 1, '' FROM seq_1_to_200",
    );
    until("they are deleted", async || {
        let waiter = player(&server.url(""), "one");
        waiter.queue_behind(0).await;
        waiter.leave().await;
        server.sql("SELECT COUNT(*) FROM tenure_lock") == "1"
    })
    .await;
}

//! A row that this handle wrote last is written again without being read: only if it is still that row.

use rusqlite::Connection;
use tenure_core::{BackendError, ErrorKind, Outcome, Released};
use tenure_testkit::{conformance::player::Player, host::pass};

use crate::stage::Stage;

/// One that has entered and left: the file that it opened is known to be the one at the path.
async fn regular(stage: &Stage) -> Player {
    let player = stage.player("one");
    for _ in 0..2 {
        player.enter().await;
        player.leave().await;
    }
    player
}

/// L1: it was free when this handle wrote it, and is held now.
#[tokio::test(start_paused = true)]
async fn who_wrote_a_row_last_sees_that_another_one_came() {
    let stage = Stage::new();
    let (one, other) = (regular(&stage).await, stage.player("one"));
    other.enter().await;
    assert!(!one.try_enter().await);
}

/// L2: whoever comes next, and whether its row is read or not.
#[tokio::test(start_paused = true)]
async fn tokens_grow_over_rows_that_are_not_read() {
    let stage = Stage::new();
    let (one, other) = (regular(&stage).await, stage.player("one"));
    let mut last = one.enter().await.token;
    for player in [&one, &one, &other, &one, &one] {
        one.leave().await;
        other.leave().await;
        let token = player.enter().await.token;
        assert!(token > last);
        last = token;
    }
}

/// L9: nothing was done while another program has the file.
#[tokio::test(start_paused = true)]
async fn a_file_that_another_has_locked_is_busy() {
    let stage = Stage::new();
    let one = regular(&stage).await;
    let raw = Connection::open(stage.file()).unwrap();
    let is_busy = |error: BackendError| {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Throttled, Outcome::NotApplied), "{error}");
    };
    raw.execute_batch("BEGIN EXCLUSIVE").unwrap();
    is_busy(one.backend.claim(&one.claim).await.unwrap_err());
    raw.execute_batch("ROLLBACK").unwrap();
    one.enter().await;
    raw.execute_batch("BEGIN EXCLUSIVE").unwrap();
    is_busy(one.backend.release(&one.claim.name, one.claim.owner).await.unwrap_err());
    raw.execute_batch("ROLLBACK").unwrap();
    assert_eq!(one.leave().await, Released::Released);
}

/// L5, L8: another process has the lock since the lease was over. It is not its lease that is given back.
#[tokio::test(start_paused = true)]
async fn a_late_release_is_not_written_over_the_next_holder() {
    let stage = Stage::new();
    let (one, other, third) = (stage.player("one"), stage.player("one"), stage.player("one"));
    let grant = one.enter().await;
    pass(grant.ttl).await;
    other.enter().await;
    assert_eq!(one.leave().await, Released::WasGone);
    assert!(!third.try_enter().await);
}

/// L7: a place is not in the row of its lock.
#[tokio::test(start_paused = true)]
async fn a_release_over_a_row_that_is_the_same_hands_the_lock_to_who_waits() {
    let stage = Stage::new();
    let (one, waiter, third) = (regular(&stage).await, stage.player("one"), stage.player("one"));
    one.enter().await;
    waiter.queue_behind(0).await;
    one.leave().await;
    assert!(!third.try_enter().await);
    assert!(!one.try_enter().await);
    waiter.enter().await;
}

/// L7: a reader entered through this handle, and a writer waits for it. The next reader must not pass.
#[tokio::test(start_paused = true)]
async fn a_claim_over_a_row_that_is_the_same_does_not_pass_who_waits() {
    let stage = Stage::new();
    let reader = regular(&stage).await.reading();
    let (next, writer) = (Player::new(reader.backend.clone(), "one").reading(), stage.player("one"));
    reader.enter().await;
    writer.queue_behind(0).await;
    next.queue_behind(1).await;
    reader.leave().await;
    writer.enter().await;
}

//! A table of locks that is renamed, in any store that keeps locks in one.

use std::time::Duration;

use tenure_core::{BackendError, ErrorKind, Outcome, Released, Renewal};

use crate::{clock::Clock, conformance::player::Player, entry::let_in_within};

const PATIENCE: Duration = Duration::from_secs(20);

const AWAY: &str = "ALTER TABLE tenure_lock RENAME TO elsewhere";
const BACK: &str = "ALTER TABLE elsewhere RENAME TO tenure_lock";
const COUNT: &str = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'tenure_lock'";

fn is_refused(error: &BackendError, part: &str) {
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains(part), "{error}");
}

/// A process that has seen the table does not make it again while it is away; once it is back, nothing was lost.
///
/// # Panics
/// If that is not so.
pub async fn is_not_made_again(player: impl Fn(&str) -> Player, sql: impl Fn(&str) -> String) {
    let (a, b) = (player("one"), player("one"));
    let first = a.enter().await;
    b.queue_behind(0).await;
    sql(AWAY);
    let is_away = |error: &BackendError| is_refused(error, "is away");
    is_away(&b.backend.claim(&b.claim).await.expect_err("it is refused"));
    is_away(&a.backend.claim(&a.claim).await.expect_err("it is refused"));
    for count in [1, 2] {
        let grants = vec![first.clone(); count];
        a.backend
            .renew(&grants)
            .await
            .into_iter()
            .for_each(|answer| is_away(&answer.expect_err("it is refused")));
    }
    is_away(&b.backend.list("").await.expect_err("it is refused"));
    is_away(&b.backend.inspect(&b.claim.name).await.expect_err("it is refused"));
    is_away(&a.backend.release(&a.claim.name, a.claim.owner).await.expect_err("it is refused"));
    assert_eq!(sql(COUNT), "0");
    sql(BACK);
    assert_eq!(a.renew(&first).await, Renewal::Renewed);
    b.queue_behind(0).await;
    assert_eq!(a.leave().await, Released::Released);
    assert!(let_in_within(PATIENCE, &b).await.grant.token > first.token);
}

/// No client makes a lock in a table that a client has made a moment ago.
///
/// # Panics
/// If that is not so.
pub async fn grants_nothing_yet(
    player: impl Fn(&str) -> Player,
    sql: impl Fn(&str) -> String,
    clock: &Clock,
) {
    let older = player("one");
    older.enter().await;
    sql(AWAY);
    let maker = player("one");
    let is_young = |error: &BackendError| {
        is_refused(error, "a client has made the table");
        assert!(error.retry_hint().is_some_and(|wait| wait <= Duration::from_secs(10)), "{error:?}");
    };
    is_young(&maker.backend.claim(&maker.claim).await.expect_err("it is refused"));
    assert_eq!(maker.backend.list("").await.expect("the store answers"), []);
    clock.advance(Duration::from_secs(5));
    // A client that used the other table gets the same error.
    for one in [&maker, &older, &player("two")] {
        is_young(&one.backend.claim(&one.claim).await.expect_err("it is refused"));
    }
    clock.advance(Duration::from_secs(5));
    let first = let_in_within(PATIENCE, &maker).await.grant;
    older.queue_behind(0).await;
    assert_eq!(maker.leave().await, Released::Released);
    assert!(let_in_within(PATIENCE, &older).await.grant.token > first.token);
}

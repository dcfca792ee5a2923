//! Holders that may keep their lease while they have nothing to do.

use std::sync::Arc;

use tenure_core::{Audience, Label, WaitMode};
use tenure_testkit::{conformance::player::Player, redis::RedisServer};

use crate::stage::{hint, hints, redis};

fn holder(url: &str, idles: bool) -> Player {
    let mut holder = Player::new(redis(url), "job");
    holder.claim.label = Arc::new(Label::new("host", 1, "user", "command").idling(idles));
    holder
}

/// L6: such a holder hears of the first who comes with the request that finds the lock held, before that one queues; once more with
/// the request that queues; and of nobody behind.
#[tokio::test]
async fn who_comes_first_behind_an_idle_holder_tells_it_before_it_queues() {
    let server = RedisServer::start();
    let url = server.url("?guard=off");
    let holder = holder(&url, true);
    let mut stream = holder.backend.wakes(holder.claim.owner.process(), Audience::Holders);
    holder.enter().await;
    assert!(!Player::new(redis(&url), "job").waiting(WaitMode::No).try_enter().await, "held");
    hint(&mut stream, holder.claim.owner).await;
    assert_eq!(hints(&server), 1, "who does not wait tells it as well");
    Player::new(redis(&url), "job").queue_behind(0).await;
    assert_eq!(hints(&server), 3, "by both requests of the first who waits");
    Player::new(redis(&url), "job").queue_behind(1).await;
    assert_eq!(hints(&server), 3);
}

/// L6: also if that process knows that the lock is contended, and does not ask whether it is free. It was told a round trip later then.
#[tokio::test]
async fn who_queues_at_once_behind_an_idle_holder_tells_it_with_that_request() {
    let server = RedisServer::start();
    let url = server.url("?guard=off");
    let (holder, elsewhere) = (holder(&url, true), redis(&url));
    holder.enter().await;
    assert!(!Player::new(elsewhere.clone(), "job").waiting(WaitMode::No).try_enter().await, "held");
    let before = hints(&server);
    Player::new(elsewhere, "job").queue_behind(0).await;
    assert_eq!(hints(&server), before + 1);
}

#[tokio::test]
async fn a_holder_that_works_is_not_told() {
    let server = RedisServer::start();
    let url = server.url("?guard=off");
    let holder = holder(&url, false);
    holder.enter().await;
    Player::new(redis(&url), "job").queue_behind(0).await;
    assert_eq!(hints(&server), 0);
}

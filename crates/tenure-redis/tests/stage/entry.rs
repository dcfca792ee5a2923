//! Claimants of ours on a server, and how they get in.

use std::time::{Duration, Instant};

use tenure_core::{BackendError, LockView, Released, WaitMode};
pub(crate) use tenure_testkit::entry::{Entry, let_in_within, passes};
use tenure_testkit::{conformance::player::Player, patience::slowness};

use super::redis;

/// What a server of ours is called that waits for as short as it may: a second, and three after its start.
pub(crate) const SHORT: &str = "?max_ttl=1s";

/// The longest lease there.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// A promoted server waits for 10 s more than for the longest lease.
const PATIENCE: Duration = Duration::from_secs(30);

/// A claimant as another process has it, which does not wait.
pub(crate) fn claimant(url: &str, name: &str) -> Player {
    let mut player = Player::new(redis(url), name).waiting(WaitMode::No);
    player.claim.ttl = LEASE;
    player
}

/// Claims until it is let in. A refusal must be one that passes.
pub(crate) async fn let_in(player: &Player) -> Entry {
    let_in_within(PATIENCE, player).await
}

/// Leaves until it is answered: the first request may find the connection broken.
pub(crate) async fn leave_at_last(player: &Player) -> Released {
    let began = Instant::now();
    loop {
        match player.backend.release(&player.claim.name, player.claim.owner).await {
            Ok(released) => return released,
            Err(error) => assert!(error.kind().is_transient(), "{error:?}"),
        }
        assert!(began.elapsed() < PATIENCE * slowness(), "no release is answered");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The error of a claim that is refused.
pub(crate) async fn refusal(player: &Player) -> BackendError {
    player.backend.claim(&player.claim).await.expect_err("the claim should have been refused")
}

/// The lock of this claimant, as anybody sees it.
pub(crate) async fn look(player: &Player) -> LockView {
    player.backend.inspect(&player.claim.name).await.unwrap()
}

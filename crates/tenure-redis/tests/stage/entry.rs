//! `Entry`: how a claimant of ours got in, when it had asked for it, and what had refused it before.

use std::time::{Duration, Instant};

use tenure_core::{BackendError, ClaimAnswer, ErrorKind, Grant, LockView, Outcome, Released, Wait};
use tenure_testkit::{conformance::player::Player, patience::slowness};

use super::redis;

/// What a server of ours is called that waits for as short as it may: a second, and three after its start.
pub(crate) const SHORT: &str = "?max_ttl=1s";

/// The longest lease there.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

const PATIENCE: Duration = Duration::from_secs(10);

/// A claimant as another process has it, which does not wait.
pub(crate) fn claimant(url: &str, name: &str) -> Player {
    let mut player = Player::new(redis(url), name).waiting(Wait::No);
    player.claim.ttl = LEASE;
    player
}

/// How a claimant was let in.
pub(crate) struct Entry {
    pub(crate) grant: Grant,
    /// When the request was sent that was granted; its holder believes in it for one ttl from then.
    pub(crate) asked: Instant,
    /// What it was told before, if it was refused. A connection that was found broken tells nothing.
    pub(crate) refusals: Vec<BackendError>,
}

impl Entry {
    pub(crate) fn believed_until(&self) -> Instant {
        self.asked + self.grant.ttl
    }

    /// L1 and L2: it came after the end of the lease before, with a larger token, and was told why it had to wait.
    #[track_caller]
    pub(crate) fn is_after(&self, before: &Self, why: &str) {
        let early = before.believed_until().saturating_duration_since(self.asked);
        let [token, old] = [self, before].map(|entry| entry.grant.token);
        assert!(
            early.is_zero(),
            "let in beside a holder that believes for another {early:?}, token {token} after {old}"
        );
        assert!(token > old, "{token} after {old}");
        passes(self.refusals.first().expect("it should have been refused before"), why);
    }

    /// L2: it came during the lease before, and only its larger token protects.
    #[track_caller]
    pub(crate) fn is_beside(&self, before: &Self) {
        assert!(self.asked < before.believed_until(), "the hazard did not show");
        assert!(self.grant.token > before.grant.token, "{:?} after {:?}", self.grant, before.grant);
    }
}

/// Claims until it is let in. A refusal must be one that passes.
pub(crate) async fn let_in(player: &Player) -> Entry {
    let_in_within(PATIENCE, player).await
}

/// The same, where that takes longer.
pub(crate) async fn let_in_within(patience: Duration, player: &Player) -> Entry {
    let (began, mut refusals) = (Instant::now(), Vec::new());
    loop {
        let asked = Instant::now();
        match player.backend.claim(&player.claim).await {
            Ok(ClaimAnswer::Granted(grant)) => return Entry { grant, asked, refusals },
            Ok(_) => {}
            Err(error) => {
                assert!(error.kind().is_transient(), "{error:?}");
                refusals.extend(Some(error).filter(|error| error.outcome() == Outcome::NotApplied));
            }
        }
        assert!(began.elapsed() < patience * slowness(), "not let in: {refusals:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
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

/// Hazard 62: it cannot serve at present, and nothing was granted.
#[track_caller]
pub(crate) fn passes(error: &BackendError, words: &str) {
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
}

/// The lock of this claimant, as anybody sees it.
pub(crate) async fn look(player: &Player) -> LockView {
    player.backend.inspect(&player.claim.name).await.unwrap()
}

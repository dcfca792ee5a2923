//! `Entry`: a grant, when its claimant asked for it, and the errors before it.

use std::time::{Duration, Instant};

use tenure_core::{BackendError, ClaimAnswer, ErrorKind, Grant, Outcome};

use crate::{conformance::player::Player, patience::slowness};

/// How a claimant was granted a lock.
pub struct Entry {
    /// The grant.
    pub grant: Grant,
    /// When the request that was granted was sent. Its holder treats the lease as held for one ttl from then.
    pub asked: Instant,
    /// The errors that the claimant received before.
    pub errors: Vec<BackendError>,
}

impl Entry {
    /// The errors that refused it before. A broken connection, or a node that did not answer, is no refusal.
    pub fn refusals(&self) -> Vec<&BackendError> {
        self.errors.iter().filter(|error| error.outcome() == Outcome::NotApplied).collect()
    }

    /// Until when its holder treats the lease as held.
    pub fn believed_until(&self) -> Instant {
        self.asked + self.grant.ttl
    }

    /// L1 and L2: the grant was requested after the lease before it had ended, and has a larger token. The first
    /// refusal names the reason for the wait.
    ///
    /// # Panics
    /// If that is not so.
    #[track_caller]
    pub fn is_after(&self, before: &Self, why: &str) {
        let early = before.believed_until().saturating_duration_since(self.asked);
        let [token, old] = [self, before].map(|entry| entry.grant.token);
        assert!(
            early.is_zero(),
            "let in beside a holder that believes for another {early:?}, token {token} after {old}"
        );
        assert!(token > old, "{token} after {old}");
        passes(self.refusals().first().expect("it should have been refused before"), why);
    }

    /// L2: the grant was requested during the lease before it, and only its larger token protects the resource.
    ///
    /// # Panics
    /// If that is not so.
    #[track_caller]
    pub fn is_beside(&self, before: &Self) {
        assert!(self.asked < before.believed_until(), "the hazard did not show");
        assert!(self.grant.token > before.grant.token, "{:?} after {:?}", self.grant, before.grant);
    }
}

/// Claims until the lock is granted. Each error before that must be transient.
///
/// # Panics
/// If it is refused permanently, or not granted within `patience` times the slowness.
pub async fn let_in_within(patience: Duration, player: &Player) -> Entry {
    let (began, mut errors) = (Instant::now(), Vec::new());
    loop {
        let asked = Instant::now();
        match player.backend.claim(&player.claim).await {
            Ok(ClaimAnswer::Granted(grant)) => return Entry { grant, asked, errors },
            Ok(_) => {}
            Err(error) => {
                assert!(error.kind().is_transient(), "{error:?}");
                errors.push(error);
            }
        }
        assert!(began.elapsed() < patience * slowness(), "not let in: {errors:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Hazard 62: the store cannot serve at present, and nothing was granted.
///
/// # Panics
/// If the error is another one.
#[track_caller]
pub fn passes(error: &BackendError, words: &str) {
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
}

/// The text of an error with all its sources, as people and logs may see it: no secret may be in it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(next) = source {
        text.push_str(&format!(": {next} {next:?}"));
        source = next.source();
    }
    text
}

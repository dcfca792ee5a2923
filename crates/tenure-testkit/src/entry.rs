//! `Entry`: how a claimant got in, when it had asked for it, and what had refused it before.

use std::time::{Duration, Instant};

use tenure_core::{BackendError, ClaimAnswer, ErrorKind, Grant, Outcome};

use crate::{conformance::player::Player, patience::slowness};

/// How a claimant was let in.
pub struct Entry {
    /// What it was granted.
    pub grant: Grant,
    /// When the request was sent that was granted; its holder believes in it for one ttl from then.
    pub asked: Instant,
    /// What it was told before.
    pub errors: Vec<BackendError>,
}

impl Entry {
    /// What refused it before. A connection that was found broken, or a node that did not answer, tells nothing.
    pub fn refusals(&self) -> Vec<&BackendError> {
        self.errors.iter().filter(|error| error.outcome() == Outcome::NotApplied).collect()
    }

    /// Until when its holder believes in it.
    pub fn believed_until(&self) -> Instant {
        self.asked + self.grant.ttl
    }

    /// L1 and L2: it came after the end of the lease before, with a larger token, and was told why it had to wait.
    ///
    /// # Panics
    /// If not.
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

    /// L2: it came during the lease before, and only its larger token protects.
    ///
    /// # Panics
    /// If not.
    #[track_caller]
    pub fn is_beside(&self, before: &Self) {
        assert!(self.asked < before.believed_until(), "the hazard did not show");
        assert!(self.grant.token > before.grant.token, "{:?} after {:?}", self.grant, before.grant);
    }
}

/// Claims until it is let in. A refusal must be one that passes.
///
/// # Panics
/// If it is refused for good, or not let in within `patience`.
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

/// Hazard 62: it cannot serve at present, and nothing was granted.
///
/// # Panics
/// If the error says something else.
#[track_caller]
pub fn passes(error: &BackendError, words: &str) {
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
}

/// An error with everything behind it, as people and logs may see it: no secret may be in it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(next) = source {
        text.push_str(&format!(": {next} {next:?}"));
        source = next.source();
    }
    text
}

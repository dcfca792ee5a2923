//! The errors of a quorum.

use std::time::Duration;

use tenure_core::{BackendError, ErrorKind, Outcome};

use crate::ballot::quorum_of;

/// A node did not answer in time.
pub(crate) fn silent(timeout: Duration) -> BackendError {
    let message = format!("the node did not answer within {timeout:.1?}");
    BackendError::new(ErrorKind::TimedOut, Outcome::Unknown, message)
}

/// The tasks that asked the nodes have ended.
pub(crate) fn ended() -> BackendError {
    let message = "the async runtime was shut down while the nodes were asked";
    BackendError::new(ErrorKind::Unavailable, Outcome::Unknown, message)
}

/// Two members are one server (A5, H3.5).
pub(crate) fn duplicate_server(one: &str, other: &str) -> BackendError {
    let message = format!(
        "{one} and {other} are one server under two names; list every server once, or it would vote twice"
    );
    BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message)
}

/// Some nodes keep the old settings, and refuse every client with the new ones.
pub(crate) fn not_adopted(all: usize, errors: &[BackendError]) -> BackendError {
    let what: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let failed = errors.len();
    let message = format!(
        "{failed} of {all} nodes have not adopted the settings, the others may have: {}; try again when they answer",
        what.join("; ")
    );
    // As below: an error that does not mend itself is worth reporting.
    let permanent = errors.iter().find(|error| !error.kind().is_transient()).or_else(|| errors.first());
    let kind = permanent.map_or(ErrorKind::Unavailable, BackendError::kind);
    BackendError::new(kind, Outcome::Unknown, message)
}

/// So many of `all` nodes failed that the others are no quorum. `is_untouched`: the others have changed nothing (L9).
pub(crate) fn too_few(all: usize, is_untouched: bool, errors: &[BackendError]) -> BackendError {
    let (failed, size) = (errors.len(), quorum_of(all));
    let is_untouched = is_untouched && errors.iter().all(|error| error.outcome() == Outcome::NotApplied);
    let outcome = if is_untouched { Outcome::NotApplied } else { Outcome::Unknown };
    // Settings and rights do not mend themselves: one node with such an error is worth reporting.
    let permanent = errors.iter().find(|error| !error.kind().is_transient());
    let kind = permanent.map_or(ErrorKind::Unavailable, BackendError::kind);
    let what: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let message =
        format!("{failed} of {all} nodes cannot serve, and a quorum needs {size}: {}", what.join("; "));
    let error = BackendError::new(kind, outcome, message);
    // This many of them must serve again, and some report when.
    let missing = (size + failed).saturating_sub(all);
    let mut waits: Vec<Duration> = errors.iter().filter_map(BackendError::retry_hint).collect();
    waits.sort_unstable();
    match waits.get(missing.saturating_sub(1)) {
        Some(wait) => error.retry_after(*wait),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(seconds: u64) -> BackendError {
        BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "the gate is closed")
            .retry_after(Duration::from_secs(seconds))
    }

    /// Of five nodes four wait: a quorum is there once the second of them serves.
    #[test]
    fn it_says_when_a_quorum_will_serve() {
        let error = too_few(5, true, &[waiting(9), waiting(3), waiting(7), waiting(5)]);
        assert_eq!(error.retry_hint(), Some(Duration::from_secs(5)));
        assert!(
            error.to_string().starts_with("4 of 5 nodes cannot serve, and a quorum needs 3: "),
            "{error}"
        );
    }

    /// A node that is down does not report when it comes back; without it the others may not suffice.
    #[test]
    fn it_says_nothing_where_that_is_not_known() {
        let down = || silent(Duration::from_secs(1));
        assert_eq!(too_few(3, true, &[down(), down(), waiting(3)]).retry_hint(), None);
        assert_eq!(too_few(3, true, &[down(), waiting(3)]).retry_hint(), Some(Duration::from_secs(3)));
    }

    /// L9.
    #[test]
    fn it_was_not_applied_only_if_nobody_says_otherwise() {
        assert_eq!(too_few(3, true, &[waiting(1), waiting(2)]).outcome(), Outcome::NotApplied);
        assert_eq!(too_few(3, false, &[waiting(1), waiting(2)]).outcome(), Outcome::Unknown);
        assert_eq!(too_few(3, true, &[waiting(1), silent(Duration::ZERO)]).outcome(), Outcome::Unknown);
    }
}

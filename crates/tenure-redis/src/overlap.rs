//! Renewals on a server that has taken the place of another one.
//!
//! The master before it may go on for [`LINGER`](crate::LINGER). What is renewed here is not renewed there: its copy of the lease ends
//! there, and lets the next one in while the holder believes us (L1). So nothing is renewed until it has stopped: for as long as the
//! wait of the gate is longer than the longest lease.
//!
//! Who is still connected to the old master renews there. Once that follows the new one, it grants nothing, and whoever it let
//! in came after the end of a lease that its holder did not believe in any more: then renewals go on at once.

use std::time::Duration;

use crate::guard::{Decision, Facts, LOOK, Predecessor, Record, Terms, Why, longest_lease};

/// For how long renewals are refused, by what was decided from these facts; then the server is looked at again.
pub fn renewals_wait(terms: &Terms, facts: &Facts, record: Option<&Record>, decision: &Decision) -> Duration {
    let (Decision::Wait { why, wait } | Decision::Write { why, wait, .. }) = decision else {
        return Duration::ZERO;
    };
    let left = wait.saturating_sub(longest_lease(terms, record));
    match facts.predecessor {
        Predecessor::Demoted => Duration::ZERO,
        // What this client waits for alone says nothing of a fail-over.
        _ if matches!(why, Why::Moved | Why::Unguarded) => Duration::ZERO,
        Predecessor::Serving => left.max(LOOK),
        Predecessor::Unknown => left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::GuardMode,
        guard::{LINGER, decide},
    };

    const MAX_TTL: Duration = Duration::from_secs(30);

    fn terms() -> Terms {
        Terms { mode: GuardMode::On, max_ttl: MAX_TTL, db: 0, quorum: None }
    }

    fn facts(predecessor: Predecessor, now: u64) -> Facts {
        Facts {
            run_id: "run".into(),
            replid: "history".into(),
            is_master: true,
            is_promoted: true,
            up: Duration::from_secs(3600),
            is_lossy: false,
            backlog_ttl: Some(Duration::from_secs(3600)),
            acked: None,
            predecessor,
            moved: None,
            now: Duration::from_secs(now),
        }
    }

    fn record(run_id: &str, ready: u64) -> Record {
        let (run_id, replid) = (run_id.to_owned(), "history".to_owned());
        let (ready, settings) = (Duration::from_secs(ready), terms().to_string());
        Record { run_id, replid, ready, settings, next: None, acked: None, is_open: false }
    }

    fn waits(predecessor: Predecessor, now: u64, record: Option<&Record>) -> Duration {
        let facts = facts(predecessor, now);
        renewals_wait(&terms(), &facts, record, &decide(&terms(), &facts, record))
    }

    /// L1: a promoted server renews nothing until the master before it has stopped or follows it.
    #[test]
    fn a_promoted_server_renews_nothing_while_the_master_before_it_may_grant() {
        let old = record("old", 0);
        assert_eq!(waits(Predecessor::Unknown, 1000, Some(&old)), LINGER);
        assert_eq!(waits(Predecessor::Serving, 1000, Some(&old)), LINGER);
        assert_eq!(waits(Predecessor::Demoted, 1000, Some(&old)), Duration::ZERO);
        assert_eq!(waits(Predecessor::Unknown, 1000, None), LINGER);
        // The record of the wait, 4 s later, 10 s later, and while the other one is not demoted even then.
        let ours = record("run", 1040);
        assert_eq!(waits(Predecessor::Unknown, 1004, Some(&ours)), Duration::from_secs(6));
        assert_eq!(waits(Predecessor::Demoted, 1004, Some(&ours)), Duration::ZERO);
        assert_eq!(waits(Predecessor::Unknown, 1010, Some(&ours)), Duration::ZERO);
        assert_eq!(waits(Predecessor::Serving, 1011, Some(&ours)), LOOK);
    }

    /// A restart, a new server and an open gate keep nobody from renewing: no other server grants.
    #[test]
    fn where_no_other_server_may_grant_renewals_go_on() {
        let open = Record { is_open: true, ..record("run", 0) };
        for known in [None, Some(record("old", 0)), Some(record("run", 1020)), Some(open)] {
            let (facts, known) =
                (Facts { is_promoted: false, ..facts(Predecessor::Unknown, 1000) }, known.as_ref());
            let decision = decide(&terms(), &facts, known);
            assert_eq!(renewals_wait(&terms(), &facts, known, &decision), Duration::ZERO, "{known:?}");
        }
    }
}

//! The rules of the guard, each alone.

use super::*;

const MAX: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::from_secs(1_000_000);

fn terms(mode: GuardMode) -> Terms {
    Terms { mode, max_ttl: MAX, db: 0, quorum: None }
}

fn facts() -> Facts {
    Facts {
        run_id: "run".into(),
        replid: "history".into(),
        is_master: true,
        is_promoted: false,
        up: Duration::from_secs(3600),
        is_lossy: false,
        is_reset: false,
        backlog_ttl: Some(Duration::from_secs(3600)),
        was_seen: false,
        now: NOW,
    }
}

fn record() -> Record {
    let (run_id, replid, settings) = ("run".into(), "history".into(), terms(GuardMode::On).to_string());
    Record { run_id, replid, ready: Duration::ZERO, settings, next: None, is_open: true }
}

#[track_caller]
fn waits(mode: GuardMode, facts: &Facts, record: Option<&Record>, expected: (Why, Duration)) {
    match decide(&terms(mode), facts, record) {
        Decision::Write { why, wait, .. } => assert_eq!((why, wait), expected),
        other => panic!("{other:?}"),
    }
}

const NONE: Duration = Duration::ZERO;

#[test]
fn an_open_gate_of_this_process_and_history_stays_open() {
    for mode in [GuardMode::On, GuardMode::Strict] {
        assert_eq!(decide(&terms(mode), &facts(), Some(&record())), Decision::Open);
    }
}

/// H4.3, hazard 21.
#[test]
fn a_restarted_server_waits_from_its_start() {
    let other = Record { run_id: "before".into(), ..record() };
    for (up, left) in [(0, 32), (5, 27), (31, 1), (32, 0), (9999, 0)] {
        let facts = Facts { up: Duration::from_secs(up), ..facts() };
        waits(GuardMode::On, &facts, Some(&other), (Why::Restarted, Duration::from_secs(left)));
    }
}

/// Hazard 8, model `guard.uptime_shortcut_for_promoted`: it may have been a replica for days.
#[test]
fn a_promoted_server_waits_in_full_however_long_it_has_been_up() {
    let promoted = Facts { is_promoted: true, ..facts() };
    for record in [
        Record { run_id: "before".into(), ..record() },
        Record { replid: "before".into(), ..record() },
        Record { run_id: "before".into(), replid: "before".into(), ..record() },
    ] {
        waits(GuardMode::On, &promoted, Some(&record), (Why::Promoted, MAX));
    }
    waits(GuardMode::On, &promoted, None, (Why::Missing, MAX));
}

/// Model `guard.backlog_rule_clears_a_wait`, `guard.backlog_ttl_below_max_ttl`.
#[test]
fn a_history_that_was_forgotten_keeps_a_wait_that_had_begun() {
    let old =
        Record { replid: "before".into(), ready: NOW + Duration::from_secs(7), is_open: false, ..record() };
    waits(GuardMode::On, &facts(), Some(&old), (Why::BacklogOver, Duration::from_secs(7)));
    let done = Record { ready: NONE, ..old.clone() };
    waits(GuardMode::On, &facts(), Some(&done), (Why::BacklogOver, NONE));
    for backlog_ttl in [None, Some(Duration::from_secs(31))] {
        let facts = Facts { backlog_ttl, ..facts() };
        waits(GuardMode::On, &facts, Some(&done), (Why::Promoted, MAX));
        let restarted = Record { run_id: "before".into(), ..record() };
        waits(GuardMode::On, &facts, Some(&restarted), (Why::Promoted, MAX));
        waits(GuardMode::On, &facts, None, (Why::Missing, MAX));
    }
    let for_ever = Facts { backlog_ttl: Some(NONE), ..facts() };
    waits(GuardMode::On, &for_ever, Some(&done), (Why::BacklogOver, NONE));
}

/// A server that was started a moment ago may have forgotten what was granted before; it has granted nothing since.
#[test]
fn a_young_server_without_a_record_waits_from_its_start() {
    for (up, left) in [(0, 32), (20, 12), (31, 1)] {
        let facts = Facts { up: Duration::from_secs(up), ..facts() };
        waits(GuardMode::On, &facts, None, (Why::Restarted, Duration::from_secs(left)));
        waits(GuardMode::Strict, &facts, None, (Why::Missing, MAX));
    }
    waits(GuardMode::On, &Facts { up: MAX + SLACK, ..facts() }, None, (Why::Unused, NONE));
}

/// H4.1, H4.2, hazards 35 and 37; models `guard.missing_is_unused`, `guard.config_resetstat_hides_flush`.
#[test]
fn without_a_record_only_evidence_spares_the_wait() {
    waits(GuardMode::On, &facts(), None, (Why::Unused, NONE));
    waits(GuardMode::Strict, &facts(), None, (Why::Missing, MAX));
    for evidence in [
        Facts { is_promoted: true, ..facts() },
        Facts { is_lossy: true, ..facts() },
        Facts { is_reset: true, ..facts() },
        Facts { was_seen: true, ..facts() },
    ] {
        waits(GuardMode::On, &evidence, None, (Why::Missing, MAX));
    }
}

#[test]
fn a_wait_goes_on_where_it_is_and_its_end_does_not_move() {
    let waiting = Record { ready: NOW + Duration::from_secs(9), is_open: false, ..record() };
    assert_eq!(
        decide(&terms(GuardMode::On), &facts(), Some(&waiting)),
        Decision::Wait(Duration::from_secs(9))
    );
    let over = Record { ready: NOW, is_open: false, ..record() };
    waits(GuardMode::On, &facts(), Some(&over), (Why::Waiting, NONE));
}

/// Hazard 19: a step back of the clock costs one wait, not the size of the step.
#[test]
fn a_step_back_of_the_clock_does_not_close_the_gate_for_long() {
    let far = Record { ready: NOW + Duration::from_secs(86_400), is_open: false, ..record() };
    waits(GuardMode::On, &facts(), Some(&far), (Why::Waiting, MAX + SLACK));
}

/// H4.5.
#[test]
fn other_settings_are_refused_and_both_are_named() {
    let theirs = Record { settings: "guard=on max_ttl=1m".into(), ..record() };
    let Decision::Refuse(Refusal::Mismatch { theirs, ours }) =
        decide(&terms(GuardMode::On), &facts(), Some(&theirs))
    else {
        panic!("was not refused")
    };
    assert_eq!((theirs.as_str(), ours.as_str()), ("guard=on max_ttl=1m", "guard=on max_ttl=30s"));
    let unguarded = decide(&terms(GuardMode::Off), &facts(), Some(&record()));
    assert!(matches!(unguarded, Decision::Refuse(Refusal::Mismatch { .. })), "{unguarded:?}");
    let replica = decide(&terms(GuardMode::On), &Facts { is_master: false, ..facts() }, Some(&record()));
    assert_eq!(replica, Decision::Refuse(Refusal::NotMaster));
}

/// H3.5: a client that counts a majority of other nodes is no member of this quorum, and the single server is none.
#[test]
fn a_quorum_of_another_size_is_refused_and_both_are_named() {
    let five = Terms { quorum: Some(5), ..terms(GuardMode::On) };
    assert_eq!(five.to_string(), "quorum=5 guard=on max_ttl=30s");
    assert_eq!(Terms { mode: GuardMode::Off, db: 2, ..five }.to_string(), "quorum=5 guard=off db=2");
    let of_five = Record { settings: five.to_string(), ..record() };
    assert_eq!(decide(&five, &facts(), Some(&of_five)), Decision::Open);
    for quorum in [Some(3), None] {
        let other = Terms { quorum, ..five };
        let (theirs, ours) = (five.to_string(), other.to_string());
        let refused = Decision::Refuse(Refusal::Mismatch { theirs, ours });
        assert_eq!(decide(&other, &facts(), Some(&of_five)), refused);
    }
    let longer = Record { settings: "quorum=5 guard=on max_ttl=1m 30s db=2".into(), ..record() };
    match adopt(&five, &facts(), Some(&longer)) {
        Decision::Write { wait, .. } => {
            assert_eq!(wait, Duration::from_secs(90), "the longest lease of theirs")
        }
        other => panic!("{other:?}"),
    }
}

/// Leases of the old settings are over before any is granted under the new ones.
#[test]
fn adopting_waits_for_the_longest_lease_of_either_settings() {
    let theirs = Record { settings: "guard=on max_ttl=1m".into(), ..record() };
    let ours = terms(GuardMode::On).to_string();
    let minute = Duration::from_secs(60);
    let adopting = adopt(&terms(GuardMode::On), &facts(), Some(&theirs));
    assert_eq!(
        adopting,
        Decision::Write {
            why: Why::Adopting,
            wait: minute,
            settings: theirs.settings.clone(),
            next: Some(ours.clone())
        }
    );
    let under_way = Record {
        ready: NOW + Duration::from_secs(20),
        next: Some(ours.clone()),
        is_open: false,
        ..theirs.clone()
    };
    assert_eq!(
        decide(&terms(GuardMode::On), &facts(), Some(&under_way)),
        Decision::Wait(Duration::from_secs(20))
    );
    let old = Terms { max_ttl: minute, ..terms(GuardMode::On) };
    assert!(
        matches!(decide(&old, &facts(), Some(&under_way)), Decision::Refuse(_)),
        "the others are out already"
    );
    let restarted = Facts { run_id: "new".into(), up: NONE, ..facts() };
    match decide(&terms(GuardMode::On), &restarted, Some(&under_way)) {
        Decision::Write { wait, settings, next, .. } => {
            assert_eq!((wait, settings, next), (minute + SLACK, theirs.settings.clone(), Some(ours.clone())));
        }
        other => panic!("{other:?}"),
    }
    let over = Record { ready: NOW, ..under_way };
    match decide(&terms(GuardMode::On), &facts(), Some(&over)) {
        Decision::Write { wait, settings, next, .. } => {
            assert_eq!((wait, settings, next), (NONE, ours, None))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_guard_nothing_waits() {
    let settings = terms(GuardMode::Off).to_string();
    waits(GuardMode::Off, &facts(), None, (Why::Unguarded, NONE));
    let other = Record { run_id: "before".into(), settings: settings.clone(), ..record() };
    waits(GuardMode::Off, &facts(), Some(&other), (Why::Unguarded, NONE));
    let ours = Record { settings, ..record() };
    assert_eq!(decide(&terms(GuardMode::Off), &facts(), Some(&ours)), Decision::Open);
}

/// L1, H4.5: without a guard leases may be of any length, and adopting one waits for the longest.
#[test]
fn adopting_a_guard_waits_for_the_longest_lease_there_may_be() {
    let unguarded = Record { settings: terms(GuardMode::Off).to_string(), ..record() };
    match adopt(&terms(GuardMode::On), &facts(), Some(&unguarded)) {
        Decision::Write { wait, .. } => assert_eq!(wait, tenure_core::Timing::MAX_TTL),
        other => panic!("{other:?}"),
    }
    match adopt(&terms(GuardMode::Off), &facts(), Some(&record())) {
        Decision::Write { wait, .. } => {
            assert_eq!(wait, NONE, "there is nothing to wait for without a guard")
        }
        other => panic!("{other:?}"),
    }
}

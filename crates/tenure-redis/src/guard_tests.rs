//! The rules of the guard, each alone.

use super::*;

const MAX: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::from_secs(1_000_000);

fn terms(mode: GuardMode) -> Terms {
    Terms { mode, max_ttl: MAX, db: 0, quorum: None }
}

fn facts() -> ServerFacts {
    ServerFacts {
        run_id: "run".into(),
        replid: "history".into(),
        is_master: true,
        is_promoted: false,
        up: Duration::from_secs(3600),
        is_lossy: false,
        backlog_ttl: Some(Duration::from_secs(3600)),
        acked: None,
        predecessor: Predecessor::Unknown,
        moved: None,
        served: None,
        longest: None,
        now: NOW,
    }
}

fn record() -> ServerRecord {
    let (run_id, replid, settings) = ("run".into(), "history".into(), terms(GuardMode::On).into());
    let (ready, wait, renews) = (Duration::ZERO, MAX + LINGER, Duration::ZERO);
    ServerRecord { run_id, replid, ready, wait, renews, settings, next: None, acked: None, is_open: true }
}

#[track_caller]
fn waits(mode: GuardMode, facts: &ServerFacts, record: Option<&ServerRecord>, expected: (Why, Duration)) {
    match decide(&terms(mode), facts, record) {
        Decision::Write { why, wait, .. } => assert_eq!((why, wait), expected),
        other => panic!("{other:?}"),
    }
}

const NONE: Duration = Duration::ZERO;

#[test]
fn an_open_gate_of_this_process_and_history_stays_open() {
    assert_eq!(decide(&terms(GuardMode::On), &facts(), Some(&record())), Decision::Open);
}

/// L1, A3, H4.3, hazard 21. A backup that was restored, or a server that had idled behind the same name, had
/// been up for long when it was asked first, and granted immediately what the server before it had granted a
/// moment ago.
#[test]
fn a_server_with_the_record_of_another_process_waits_from_the_check() {
    let other = ServerRecord { run_id: "before".into(), ..record() };
    for up in [0, 5, 9999] {
        let facts = ServerFacts { up: Duration::from_secs(up), ..facts() };
        waits(GuardMode::On, &facts, Some(&other), (Why::Restarted, MAX));
    }
    let begun = ServerRecord { ready: NOW + MAX + SLACK, is_open: false, ..other };
    waits(GuardMode::On, &facts(), Some(&begun), (Why::Restarted, MAX + SLACK));
}

/// Hazard 8, mutant `uptime_for_promoted`: it may have been a replica for days. And the master before it
/// grants until it knows.
#[test]
fn a_promoted_server_waits_in_full_however_long_it_has_been_up() {
    let promoted = ServerFacts { is_promoted: true, ..facts() };
    for record in [
        ServerRecord { run_id: "before".into(), ..record() },
        ServerRecord { replid: "before".into(), ..record() },
        ServerRecord { run_id: "before".into(), replid: "before".into(), ..record() },
    ] {
        waits(GuardMode::On, &promoted, Some(&record), (Why::Promoted, MAX + LINGER));
    }
    waits(GuardMode::On, &promoted, None, (Why::Missing, MAX + LINGER));
}

/// L1. `SENTINEL FAILOVER` promotes, and demotes the old master some 10 s later; until then it granted leases
/// that outlived the new master's wait.
#[test]
fn the_wait_of_a_promoted_server_counts_from_the_demotion_of_the_one_before() {
    let other = ServerRecord { run_id: "before".into(), ..record() };
    let promoted = |predecessor| ServerFacts { is_promoted: true, predecessor, ..facts() };
    let serving = promoted(Predecessor::Serving);
    waits(GuardMode::On, &promoted(Predecessor::Demoted), Some(&other), (Why::Promoted, MAX));
    waits(GuardMode::On, &serving, Some(&other), (Why::Promoted, MAX + LINGER));
    let over = ServerRecord { ready: NOW, is_open: false, ..record() };
    waits(GuardMode::On, &serving, Some(&over), (Why::Overlapping, MAX));
    waits(GuardMode::On, &promoted(Predecessor::Demoted), Some(&over), (Why::Waiting, NONE));
    waits(GuardMode::On, &promoted(Predecessor::Unknown), Some(&over), (Why::Waiting, NONE));
    let long = ServerRecord { ready: NOW + MAX + Duration::from_secs(3), ..over };
    let goes_on = Decision::Wait { why: Why::Waiting, wait: MAX + Duration::from_secs(3) };
    assert_eq!(decide(&terms(GuardMode::On), &serving, Some(&long)), goes_on);
    assert_eq!(
        decide(&terms(GuardMode::On), &serving, Some(&record())),
        Decision::Open,
        "it is open already"
    );
}

/// L1: the old side of a fail-over or of a partition stops by itself, before the new side begins.
#[test]
fn a_master_that_lost_its_replicas_grants_nothing_once_the_grace_is_over() {
    let ago = |ms| Some(NOW - Duration::from_millis(ms));
    let now = |acked| ServerFacts { acked, ..facts() };
    let before = |acked| ServerRecord { acked, ..record() };
    let judge =
        |facts: &ServerFacts, record: &ServerRecord| decide(&terms(GuardMode::On), facts, Some(record));
    let alone = Decision::Refuse(ClientRefusal::Alone);
    assert_eq!(judge(&now(None), &before(None)), Decision::Open, "it never had one");
    assert_eq!(judge(&now(ago(0)), &before(ago(99_000))), Decision::Open, "one is back");
    assert_eq!(judge(&now(None), &before(ago(7_000))), Decision::Open, "it reboots");
    assert_eq!(judge(&now(None), &before(ago(7_001))), alone);
    assert_eq!(judge(&now(ago(8_000)), &before(None)), alone, "it is connected and silent");
    assert_eq!(judge(&now(None), &before(Some(NOW + SLACK))), alone, "the clock was set back");
    let over = ServerRecord { ready: NOW, is_open: false, ..before(ago(99_000)) };
    assert_eq!(judge(&now(None), &over), alone, "a gate is not opened either");
}

/// Who restarted may be the old side; who was promoted has no replicas before one comes.
#[test]
fn what_is_known_of_the_replicas_is_kept_by_all_but_a_promoted_server() {
    let ago = |seconds| Some(NOW - Duration::from_secs(seconds));
    let known = |facts: &ServerFacts| {
        let record = ServerRecord { run_id: "before".into(), acked: ago(60), ..record() };
        match decide(&terms(GuardMode::On), facts, Some(&record)) {
            Decision::Write { acked, .. } => acked,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(known(&facts()), ago(60));
    assert_eq!(known(&ServerFacts { acked: ago(1), ..facts() }), ago(1));
    assert_eq!(known(&ServerFacts { is_promoted: true, ..facts() }), None);
    assert_eq!(known(&ServerFacts { is_promoted: true, acked: ago(1), ..facts() }), ago(1));
}

/// The way out for a server that is to stand alone: `doctor --adopt`.
#[test]
fn adopting_takes_the_replicas_that_are_there_for_all_there_are() {
    let lonely = ServerRecord { acked: Some(NOW - MAX), ..record() };
    let settings = terms(GuardMode::On).into();
    let adopted =
        Decision::Write { why: Why::Adopting, wait: MAX, quiet: NONE, settings, next: None, acked: None };
    assert_eq!(adopt(&terms(GuardMode::On), &facts(), Some(&lonely), Adopt::Settings), adopted);
    let with_one = ServerFacts { acked: Some(NOW), ..facts() };
    assert_eq!(adopt(&terms(GuardMode::On), &with_one, Some(&lonely), Adopt::Settings), Decision::Open);
}

/// L1, A3: an address that leads to another server, which others have used and which may grant by its own
/// record.
#[test]
fn who_saw_another_process_at_this_address_is_not_let_through_for_as_long_as_a_lease_may_last() {
    let moved = |seconds| ServerFacts { moved: Some(Duration::from_secs(seconds)), ..facts() };
    let judge =
        |facts: &ServerFacts, record: &ServerRecord| decide(&terms(GuardMode::On), facts, Some(record));
    for (ago, left) in [(0, 30), (29, 1)] {
        let wait = Decision::Wait { why: Why::Moved, wait: Duration::from_secs(left) };
        assert_eq!(judge(&moved(ago), &record()), wait);
    }
    assert_eq!(judge(&moved(30), &record()), Decision::Open);
    let other = ServerRecord { run_id: "before".into(), ..record() };
    waits(GuardMode::On, &moved(5), Some(&other), (Why::Restarted, MAX));
}

/// Model `guard.backlog_rule_clears_a_wait`, `guard.backlog_ttl_below_max_ttl`.
#[test]
fn a_history_that_was_forgotten_keeps_a_wait_that_had_begun() {
    let old = ServerRecord {
        replid: "before".into(),
        ready: NOW + Duration::from_secs(7),
        is_open: false,
        ..record()
    };
    waits(GuardMode::On, &facts(), Some(&old), (Why::BacklogOver, Duration::from_secs(7)));
    let done = ServerRecord { ready: NONE, ..old.clone() };
    waits(GuardMode::On, &facts(), Some(&done), (Why::BacklogOver, NONE));
    for backlog_ttl in [None, Some(Duration::from_secs(31))] {
        let facts = ServerFacts { backlog_ttl, ..facts() };
        waits(GuardMode::On, &facts, Some(&done), (Why::Promoted, MAX + LINGER));
        let restarted = ServerRecord { run_id: "before".into(), ..record() };
        waits(GuardMode::On, &facts, Some(&restarted), (Why::Promoted, MAX + LINGER));
    }
    let for_ever = ServerFacts { backlog_ttl: Some(NONE), ..facts() };
    waits(GuardMode::On, &for_ever, Some(&done), (Why::BacklogOver, NONE));
}

/// L1. With a `max_ttl` of 2 s a server forgot 4 s after its promotion that it was promoted, and waited 10 s
/// too short while the master before it still granted. It must remember that for as long as that master may
/// go on.
#[test]
fn a_promotion_is_remembered_for_as_long_as_the_old_master_goes_on() {
    let short = Terms { max_ttl: Duration::from_secs(2), ..terms(GuardMode::On) };
    let other = ServerRecord { run_id: "before".into(), settings: short.into(), ..record() };
    for (backlog_ttl, expected) in
        [(4, short.max_ttl + LINGER), (9, short.max_ttl + LINGER), (10, short.max_ttl)]
    {
        let facts = ServerFacts { backlog_ttl: Some(Duration::from_secs(backlog_ttl)), ..facts() };
        let Decision::Write { wait, .. } = decide(&short, &facts, Some(&other)) else {
            panic!("it must wait")
        };
        assert_eq!(wait, expected, "{backlog_ttl} s");
    }
}

/// L1. A replica that never received the record was promoted and forgot that within seconds, as
/// `repl-backlog-ttl` had it. Taken for a new server, it did not wait for the master before it, which still
/// granted.
#[test]
fn without_a_record_a_server_that_forgets_too_early_may_have_been_promoted() {
    for backlog_ttl in [None, Some(Duration::from_secs(31))] {
        let facts = ServerFacts { backlog_ttl, ..facts() };
        waits(GuardMode::On, &facts, None, (Why::Missing, MAX + LINGER));
        waits(GuardMode::On, &ServerFacts { is_promoted: true, ..facts }, None, (Why::Missing, MAX + LINGER));
    }
    for backlog_ttl in [NONE, MAX + SLACK] {
        let facts = ServerFacts { backlog_ttl: Some(backlog_ttl), ..facts() };
        waits(GuardMode::On, &facts, None, (Why::Missing, MAX));
    }
}

/// L1. A client that had new settings adopted right after a fail-over ended the wait for the master before it: the
/// wait of an adoption was the longest lease alone.
#[test]
fn adopting_on_a_promoted_server_waits_for_the_master_before_it_too() {
    let theirs = ServerRecord { run_id: "before".into(), settings: "guard=on max_ttl=1m".into(), ..record() };
    for (promoted, backlog_ttl, wait) in [
        (false, Some(NONE), Duration::from_secs(60)),
        (true, Some(NONE), Duration::from_secs(60) + LINGER),
        (false, None, Duration::from_secs(60) + LINGER),
    ] {
        let facts = ServerFacts { is_promoted: promoted, backlog_ttl, ..facts() };
        match adopt(&terms(GuardMode::On), &facts, Some(&theirs), Adopt::Settings) {
            Decision::Write { why: Why::Adopting, wait: found, .. } => assert_eq!(found, wait),
            other => panic!("{other:?}"),
        }
    }
}

/// A promoted server that forgot its promotion before anybody asked cannot be told from an old master that
/// restarted without its replicas: it is refused (L1), until a replica comes or a person says that it stands
/// alone.
#[test]
fn a_promotion_that_was_forgotten_looks_like_a_master_that_lost_its_replicas() {
    let of_the_old_one = ServerRecord { run_id: "before".into(), acked: Some(NOW - MAX), ..record() };
    let forgot = ServerFacts { backlog_ttl: Some(Duration::from_secs(4)), ..facts() };
    let on = terms(GuardMode::On);
    waits(GuardMode::On, &forgot, Some(&of_the_old_one), (Why::Promoted, MAX + LINGER));
    let over = ServerRecord { run_id: "run".into(), ready: NOW, is_open: false, ..of_the_old_one };
    assert_eq!(decide(&on, &forgot, Some(&over)), Decision::Refuse(ClientRefusal::Alone));
    let joined = ServerFacts { acked: Some(NOW), ..forgot.clone() };
    waits(GuardMode::On, &joined, Some(&over), (Why::Waiting, NONE));
    match adopt(&on, &forgot, Some(&over), Adopt::Settings) {
        Decision::Write { why, wait, acked, .. } => {
            assert_eq!((why, wait, acked), (Why::Adopting, MAX + LINGER, None));
        }
        other => panic!("{other:?}"),
    }
}

/// L1, A3, H4.1, H4.2, hazards 35 and 37; mutant `missing_is_unused`. A server without a record that had been
/// up for long was taken for an unused one: a warm spare behind a virtual address let a second holder in 65
/// ms after the first.
#[test]
fn without_a_record_every_server_waits_once() {
    for up in [0, 20, 99_999] {
        waits(
            GuardMode::On,
            &ServerFacts { up: Duration::from_secs(up), ..facts() },
            None,
            (Why::Missing, MAX),
        );
    }
    waits(GuardMode::On, &ServerFacts { is_lossy: true, ..facts() }, None, (Why::Missing, MAX));
}

#[test]
fn a_wait_goes_on_where_it_is_and_its_end_does_not_move() {
    let waiting = ServerRecord { ready: NOW + Duration::from_secs(9), is_open: false, ..record() };
    assert_eq!(
        decide(&terms(GuardMode::On), &facts(), Some(&waiting)),
        Decision::Wait { why: Why::Waiting, wait: Duration::from_secs(9) }
    );
    let over = ServerRecord { ready: NOW, is_open: false, ..record() };
    waits(GuardMode::On, &facts(), Some(&over), (Why::Waiting, NONE));
}

/// Hazard 19: a step back of the clock costs one wait, not the size of the step.
#[test]
fn a_step_back_of_the_clock_does_not_close_the_gate_for_long() {
    let far = ServerRecord { ready: NOW + Duration::from_secs(86_400), is_open: false, ..record() };
    waits(GuardMode::On, &facts(), Some(&far), (Why::Waiting, MAX + LINGER));
}

fn larger() -> Terms {
    Terms { max_ttl: 3 * MAX, ..terms(GuardMode::On) }
}

/// L1, A3: while a larger `max_ttl` is rolled out, clients with it are served under the smaller one. They wait for their own.
/// The other way round a wait would be too short.
#[test]
fn a_larger_max_ttl_is_served_under_the_smaller_one_and_a_smaller_one_is_refused() {
    let (larger, small) = (larger(), terms(GuardMode::On));
    assert_eq!(larger.served(&facts(), Some(&record())), Some(small));
    let raised = ServerRecord { settings: larger.into(), ..record() };
    assert_eq!(small.served(&facts(), Some(&raised)), None);
    for other in [
        "guard=off",
        "guard=on max_ttl=30s db=1",
        "quorum=5 guard=on max_ttl=30s",
        "guard=on max_ttl=30 s",
        "nonsense",
    ] {
        let record = ServerRecord { settings: other.into(), ..record() };
        assert_eq!(larger.served(&facts(), Some(&record)), None, "{other}");
    }
    assert_eq!(decide(&larger, &facts(), Some(&record())), Decision::Open);
    let restarted = ServerFacts { run_id: "another".into(), ..facts() };
    match decide(&larger, &restarted, Some(&record())) {
        Decision::Write { wait, settings, .. } => assert_eq!((wait, settings), (3 * MAX, small.into())),
        other => panic!("{other:?}"),
    }
}

/// L1, A3: the record is lost in a rollout. A client writes the terms of before, and waits for the longest lease that it knows of.
#[test]
fn a_record_that_is_lost_in_a_rollout_is_written_as_it_was() {
    let (larger, small) = (larger(), terms(GuardMode::On));
    let was_served = ServerFacts { served: Some(MAX), ..facts() };
    let saw_larger = ServerFacts { longest: Some(3 * MAX), ..facts() };
    for (terms, facts, max_ttl) in
        [(larger, &was_served, MAX), (larger, &facts(), 3 * MAX), (small, &saw_larger, MAX)]
    {
        match decide(&terms, facts, None) {
            Decision::Write { wait, settings, .. } => {
                let recorded = Terms { max_ttl, ..terms };
                assert_eq!((wait, settings), (3 * MAX, recorded.into()));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// L1: the record is raised only on purpose, whatever else differs. Leases that are alive go on.
#[test]
fn a_larger_max_ttl_is_adopted_only_on_purpose() {
    let another = Terms { quorum: Some(5), ..larger() };
    for terms in [larger(), another] {
        let theirs = record().settings;
        let (shown, ours) = (theirs.to_string(), terms.to_string());
        let refused = Decision::Refuse(ClientRefusal::Raise { theirs: shown, ours });
        assert_eq!(adopt(&terms, &facts(), Some(&record()), Adopt::Settings), refused);
        // The record of another process may be older than some leases.
        let before = ServerRecord { run_id: "before".into(), ..record() };
        for (record, longest) in [(record(), MAX), (before, 3 * MAX)] {
            let raised = adopt(&terms, &facts(), Some(&record), Adopt::LargerMaxTtl);
            assert_eq!(renewals_wait(&facts(), Some(&record), &raised), NONE);
            match raised {
                Decision::Write { wait, settings, next, .. } => {
                    assert_eq!((wait, settings, next), (longest, theirs.clone(), Some(terms.into())));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // A master that stands alone is adopted as it is, unless something else differs too.
    let lonely = ServerRecord { acked: Some(NOW - 2 * GRACE), ..record() };
    let refused = adopt(&another, &facts(), Some(&lonely), Adopt::Settings);
    assert!(matches!(refused, Decision::Refuse(ClientRefusal::Raise { .. })), "{refused:?}");
    match adopt(&larger(), &facts(), Some(&lonely), Adopt::Settings) {
        Decision::Write { settings, next, .. } => assert_eq!((settings, next), (lonely.settings, None)),
        other => panic!("{other:?}"),
    }
}

/// L5: a server that was promoted long ago keeps that history. The master before it has stopped, and a raise ends no lease.
#[test]
fn a_raise_long_after_a_fail_over_ends_no_lease() {
    for facts in [ServerFacts { is_promoted: true, ..facts() }, ServerFacts { backlog_ttl: None, ..facts() }]
    {
        let raised = adopt(&larger(), &facts, Some(&record()), Adopt::LargerMaxTtl);
        assert_eq!(renewals_wait(&facts, Some(&record()), &raised), NONE);
        assert!(matches!(raised, Decision::Write { wait, .. } if wait == MAX), "{raised:?}");
    }
}

/// L1: while a smaller `max_ttl` is adopted, leases of the larger one live.
#[test]
fn a_record_whose_settings_are_being_adopted_allows_the_leases_of_both() {
    let lowering = ServerRecord {
        settings: larger().into(),
        next: Some(terms(GuardMode::On).into()),
        is_open: false,
        ..record()
    };
    assert_eq!((lowering.max_ttl(), lowering.longest_lease()), (Some(MAX), Some(3 * MAX)));
    assert_eq!(record().longest_lease(), Some(MAX));
}

/// L2: a client with a smaller `max_ttl` does not shorten a wait that one with a larger one has written: the counter waits on its end.
#[test]
fn a_wait_that_another_client_wrote_is_not_shortened() {
    let wait = 3 * MAX + LINGER;
    let written = ServerRecord { ready: NOW + wait, wait, is_open: false, ..record() };
    let decision = decide(&terms(GuardMode::On), &facts(), Some(&written));
    assert_eq!(decision, Decision::Wait { why: Why::Waiting, wait });
}

/// L1: after a fail-over a client with the smaller `max_ttl` has written the wait. One with the larger one renews nothing until the
/// former master has stopped.
#[test]
fn renewals_wait_for_the_former_master_even_if_another_client_wrote_the_wait() {
    let promoted = ServerFacts { is_promoted: true, ..facts() };
    let (ready, renews) = (NOW + MAX + LINGER, NOW + LINGER);
    let written = ServerRecord { ready, renews, is_open: false, ..record() };
    for terms in [terms(GuardMode::On), larger()] {
        let decision = decide(&terms, &promoted, Some(&written));
        assert_eq!(decision, Decision::Wait { why: Why::Waiting, wait: MAX + LINGER });
        assert_eq!(renewals_wait(&promoted, Some(&written), &decision), LINGER);
    }
}

/// H4.5.
#[test]
fn other_settings_are_refused_and_both_are_named() {
    let theirs = ServerRecord { settings: "guard=on max_ttl=1m".into(), ..record() };
    let Decision::Refuse(ClientRefusal::Mismatch { theirs, ours }) =
        decide(&terms(GuardMode::On), &facts(), Some(&theirs))
    else {
        panic!("was not refused")
    };
    assert_eq!((theirs.as_str(), ours.as_str()), ("guard=on max_ttl=1m", "guard=on max_ttl=30s"));
    let unguarded = decide(&terms(GuardMode::Off), &facts(), Some(&record()));
    assert!(matches!(unguarded, Decision::Refuse(ClientRefusal::Mismatch { .. })), "{unguarded:?}");
    let replica =
        decide(&terms(GuardMode::On), &ServerFacts { is_master: false, ..facts() }, Some(&record()));
    assert_eq!(replica, Decision::Refuse(ClientRefusal::NotMaster));
}

/// H3.5: a client that counts a majority of other nodes is no member of this quorum, and the single server is
/// none.
#[test]
fn a_quorum_of_another_size_is_refused_and_both_are_named() {
    let five = Terms { quorum: Some(5), ..terms(GuardMode::On) };
    assert_eq!(five.to_string(), "quorum=5 guard=on max_ttl=30s");
    assert_eq!(Terms { mode: GuardMode::Off, db: 2, ..five }.to_string(), "quorum=5 guard=off db=2");
    let of_five = ServerRecord { settings: five.into(), ..record() };
    assert_eq!(decide(&five, &facts(), Some(&of_five)), Decision::Open);
    for quorum in [Some(3), None] {
        let other = Terms { quorum, ..five };
        let (theirs, ours) = (five.to_string(), other.to_string());
        let refused = Decision::Refuse(ClientRefusal::Mismatch { theirs, ours });
        assert_eq!(decide(&other, &facts(), Some(&of_five)), refused);
    }
    let longer = ServerRecord { settings: "quorum=5 guard=on max_ttl=1m 30s db=2".into(), ..record() };
    match adopt(&five, &facts(), Some(&longer), Adopt::Settings) {
        Decision::Write { wait, .. } => {
            assert_eq!(wait, Duration::from_secs(90), "the longest lease of theirs")
        }
        other => panic!("{other:?}"),
    }
}

/// Leases of the old settings are over before any is granted under the new ones.
#[test]
fn adopting_waits_for_the_longest_lease_of_either_settings() {
    let theirs = ServerRecord { settings: "guard=on max_ttl=1m".into(), ..record() };
    let ours = RecordedTerms::Known(terms(GuardMode::On));
    let minute = Duration::from_secs(60);
    let adopting = adopt(&terms(GuardMode::On), &facts(), Some(&theirs), Adopt::Settings);
    assert_eq!(
        adopting,
        Decision::Write {
            why: Why::Adopting,
            wait: minute,
            quiet: NONE,
            settings: theirs.settings.clone(),
            next: Some(ours.clone()),
            acked: None,
        }
    );
    let under_way = ServerRecord {
        ready: NOW + Duration::from_secs(20),
        next: Some(ours.clone()),
        is_open: false,
        ..theirs.clone()
    };
    assert_eq!(
        decide(&terms(GuardMode::On), &facts(), Some(&under_way)),
        Decision::Wait { why: Why::Waiting, wait: Duration::from_secs(20) }
    );
    let old = Terms { max_ttl: minute, ..terms(GuardMode::On) };
    // It is served under the new terms: none of its leases of before is renewed beyond them.
    assert_eq!(old.served(&facts(), Some(&under_way)), Some(terms(GuardMode::On)));
    assert!(matches!(decide(&old, &facts(), Some(&under_way)), Decision::Wait { .. }));
    let restarted = ServerFacts { run_id: "new".into(), up: NONE, ..facts() };
    match decide(&terms(GuardMode::On), &restarted, Some(&under_way)) {
        Decision::Write { wait, settings, next, .. } => {
            assert_eq!((wait, settings, next), (minute, theirs.settings.clone(), Some(ours.clone())));
        }
        other => panic!("{other:?}"),
    }
    let over = ServerRecord { ready: NOW, ..under_way };
    match decide(&terms(GuardMode::On), &facts(), Some(&over)) {
        Decision::Write { wait, settings, next, .. } => {
            assert_eq!((wait, settings, next), (NONE, ours, None))
        }
        other => panic!("{other:?}"),
    }
}

/// L1, L2: a client with a smaller `max_ttl` is the first after a second fail-over, or has its own adopted.
#[test]
fn no_fail_over_shortens_a_wait_that_another_client_wrote() {
    let wait = 3 * MAX + LINGER;
    let written =
        ServerRecord { run_id: "before".into(), ready: NOW + wait, wait, is_open: false, ..record() };
    let promoted = ServerFacts { is_promoted: true, ..facts() };
    waits(GuardMode::On, &promoted, Some(&written), (Why::Promoted, wait));
    let alone = ServerRecord { acked: Some(NOW - 2 * GRACE), ..written };
    match adopt(&terms(GuardMode::On), &promoted, Some(&alone), Adopt::Settings) {
        Decision::Write { wait: waits, .. } => assert_eq!(waits, wait),
        other => panic!("{other:?}"),
    }
}

/// L1: a server was promoted, and restarted as one that never was. To adopt settings shortened the wait that was written before.
#[test]
fn adopting_shortens_no_wait() {
    let waits = ServerRecord { ready: NOW + MAX + LINGER, is_open: false, ..record() };
    let other = Terms { max_ttl: MAX / 2, ..terms(GuardMode::On) };
    let alone = ServerRecord { acked: Some(NOW - 2 * GRACE), ..waits.clone() };
    for (terms, record) in [(other, waits), (terms(GuardMode::On), alone)] {
        match adopt(&terms, &facts(), Some(&record), Adopt::LargerMaxTtl) {
            Decision::Write { why: Why::Adopting, wait, .. } => assert_eq!(wait, MAX + LINGER),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn without_a_guard_nothing_waits() {
    let settings = RecordedTerms::from(terms(GuardMode::Off));
    waits(GuardMode::Off, &facts(), None, (Why::Unguarded, NONE));
    let other = ServerRecord { run_id: "before".into(), settings: settings.clone(), ..record() };
    waits(GuardMode::Off, &facts(), Some(&other), (Why::Unguarded, NONE));
    let ours = ServerRecord { settings, ..record() };
    assert_eq!(decide(&terms(GuardMode::Off), &facts(), Some(&ours)), Decision::Open);
}

/// L1, H4.5: without a guard leases may be of any length, and adopting one waits for the longest.
#[test]
fn adopting_a_guard_waits_for_the_longest_lease_there_may_be() {
    let unguarded = ServerRecord { settings: terms(GuardMode::Off).into(), ..record() };
    match adopt(&terms(GuardMode::On), &facts(), Some(&unguarded), Adopt::Settings) {
        Decision::Write { wait, .. } => assert_eq!(wait, Timing::MAX_TTL),
        other => panic!("{other:?}"),
    }
    match adopt(&terms(GuardMode::Off), &facts(), Some(&record()), Adopt::Settings) {
        Decision::Write { wait, .. } => {
            assert_eq!(wait, NONE, "there is nothing to wait for without a guard")
        }
        other => panic!("{other:?}"),
    }
}

fn promoted(predecessor: Predecessor, now: u64) -> ServerFacts {
    ServerFacts { is_promoted: true, predecessor, now: Duration::from_secs(now), ..facts() }
}

fn written_for(run_id: &str, ready: u64) -> ServerRecord {
    let ready = Duration::from_secs(ready);
    let renews = ready.saturating_sub(MAX);
    ServerRecord { run_id: run_id.into(), ready, renews, is_open: false, ..record() }
}

fn refused_for(facts: &ServerFacts, record: Option<&ServerRecord>) -> Duration {
    let terms = terms(GuardMode::On);
    renewals_wait(facts, record, &decide(&terms, facts, record))
}

/// L1: a promoted server renews nothing until the master before it has stopped or follows it.
#[test]
fn a_promoted_server_renews_nothing_while_the_master_before_it_may_grant() {
    let waits = |predecessor, now, record| refused_for(&promoted(predecessor, now), record);
    let old = written_for("old", 0);
    assert_eq!(waits(Predecessor::Unknown, 1000, Some(&old)), LINGER);
    assert_eq!(waits(Predecessor::Serving, 1000, Some(&old)), LINGER);
    assert_eq!(waits(Predecessor::Demoted, 1000, Some(&old)), Duration::ZERO);
    assert_eq!(waits(Predecessor::Unknown, 1000, None), LINGER);
    // The record of the wait, 4 s later, 10 s later, and while the other one is not demoted even then.
    let ours = written_for("run", 1040);
    assert_eq!(waits(Predecessor::Unknown, 1004, Some(&ours)), Duration::from_secs(6));
    assert_eq!(waits(Predecessor::Demoted, 1004, Some(&ours)), Duration::ZERO);
    assert_eq!(waits(Predecessor::Unknown, 1010, Some(&ours)), Duration::ZERO);
    assert_eq!(waits(Predecessor::Serving, 1011, Some(&ours)), LOOK);
}

/// A restart, a new server and an open gate keep nobody from renewing: no other server grants.
#[test]
fn where_no_other_server_may_grant_renewals_go_on() {
    let open = ServerRecord { is_open: true, ..written_for("run", 0) };
    let facts = ServerFacts { is_promoted: false, ..promoted(Predecessor::Unknown, 1000) };
    for known in [None, Some(written_for("old", 0)), Some(written_for("run", 1020)), Some(open)] {
        assert_eq!(refused_for(&facts, known.as_ref()), Duration::ZERO, "{known:?}");
    }
}

proptest::proptest! {
    /// L1: the scripts compare texts. What is read from one is written as the very same text, and every term of it is known.
    #[test]
    fn terms_that_are_written_are_read_again(
        is_on in proptest::bool::ANY,
        ms in 1_000..600_000_u64,
        db in 0..20_i64,
        quorum in proptest::option::of(3..9_usize),
    ) {
        let mode = if is_on { GuardMode::On } else { GuardMode::Off };
        let max_ttl = if is_on { Duration::from_millis(ms) } else { Timing::MAX_TTL };
        let terms = Terms { mode, max_ttl, db, quorum };
        proptest::prop_assert_eq!(RecordedTerms::from(&*terms.to_string()), RecordedTerms::Known(terms));
    }

    #[test]
    fn any_other_text_is_foreign_and_stays_as_it_is(text in "(quorum=[0-9]* )?guard=(on|off)?( max_ttl=[0-9a-z ]*)?( db=[-0-9]*)?[a-z= ]*") {
        let read = RecordedTerms::from(&*text);
        proptest::prop_assert_eq!(read.to_string(), text.clone());
        if let RecordedTerms::Known(terms) = read {
            proptest::prop_assert_eq!(terms.to_string(), text);
        }
    }
}

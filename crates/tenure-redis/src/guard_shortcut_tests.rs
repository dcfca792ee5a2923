//! The rules of the guard taken wrongly: each lets two in somewhere in the small world.

use super::*;

fn promoted_is_restarted(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
    decide(terms, &Facts { is_promoted: false, ..facts.clone() }, record)
}

/// The rule before: who has been up for longer than any lease has forgotten none.
fn uptime_counts(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
    match decide(terms, facts, record) {
        Decision::Write { why: Why::Missing | Why::Restarted, wait, settings, .. } if !facts.is_promoted => {
            write(Why::Missing, wait.saturating_sub(facts.up), settings)
        }
        other => other,
    }
}

fn missing_is_unused(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
    match decide(terms, facts, record) {
        Decision::Write { why: Why::Missing, settings, .. } => write(Why::Missing, NONE, settings),
        other => other,
    }
}

fn no_guard(terms: &Terms, facts: &Facts, _: Option<&Record>) -> Decision {
    decide(&Terms { mode: GuardMode::Off, ..*terms }, facts, None)
}

fn backlog_clears_a_wait(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
    match decide(terms, facts, record) {
        Decision::Write { why: Why::BacklogOver, settings, .. } => write(Why::BacklogOver, NONE, settings),
        other => other,
    }
}

/// The rule before: the old master is over when the new one begins.
fn no_demotion_wait(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
    match decide(terms, facts, record) {
        Decision::Write { why: Why::Promoted, settings, .. } => write(Why::Promoted, terms.max_ttl, settings),
        other => other,
    }
}

fn all_are_demoted(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
    decide(terms, &Facts { predecessor: Predecessor::Demoted, ..facts.clone() }, record)
}

fn nobody_moved(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
    decide(terms, &Facts { moved: None, ..facts.clone() }, record)
}

/// The model bites: each of these rules, taken wrongly, breaks L1.
#[test]
fn every_shortcut_taken_wrongly_lets_two_in() {
    let wrong: [(&str, Rule, bool); 9] = [
        ("a promoted server is taken for a restarted one", promoted_is_restarted, true),
        ("a missing record is taken for an unused server", missing_is_unused, true),
        ("up-time spares the wait", uptime_counts, true),
        ("there is no guard", no_guard, true),
        ("the end of the backlog ends a wait", backlog_clears_a_wait, true),
        ("a promoted server does not wait for the demotion", no_demotion_wait, true),
        ("a master is taken for demoted before it is", all_are_demoted, true),
        ("a master that lost its replicas goes on", decide, false),
        ("another server at the same address is taken for the same", nobody_moved, true),
    ];
    for (what, decide, looks) in wrong {
        assert!(
            explore(&Rules { decide, looks, faults: 2 }).is_err(),
            "{what}, and the model did not notice"
        );
    }
}

//! Worlds that run twice alike, and keep the laws.

use tenure_sim::{Law, PlanKind, WorldKind, run};

fn all() -> impl Iterator<Item = (WorldKind, PlanKind)> {
    WorldKind::ALL.iter().flat_map(|&world| PlanKind::ALL.iter().map(move |&plan| (world, plan)))
}

/// Seeds of each world and plan; in a debug build one takes some 0.2 s.
const SEEDS: std::ops::Range<u64> = 0..2;

#[test]
fn one_seed_is_one_history() {
    for (world, plan) in all() {
        let [one, other] = [(); 2].map(|()| run(world, plan, 5).fingerprint);
        assert_eq!(one, other, "{world}, {plan}");
    }
    let prints = [1, 2].map(|seed| run(WorldKind::Redis, PlanKind::All, seed).fingerprint);
    assert_ne!(prints[0], prints[1], "seeds differ");
}

#[test]
fn within_the_assumptions_no_law_breaks_and_outside_only_those_that_rest_on_them() {
    for (world, plan) in all() {
        for seed in SEEDS {
            let outcome = run(world, plan, seed);
            let bad: Vec<String> = (outcome.violations.iter())
                .filter(|violation| !plan.excuses(violation.law))
                .map(ToString::to_string)
                .collect();
            assert!(bad.is_empty(), "--world {world} --plan {plan} --seed {seed}: {bad:#?}");
        }
    }
}

/// A checker that never finds anything would pass all tests.
#[test]
fn where_an_assumption_breaks_the_laws_that_rest_on_it_do() {
    let breaks = |plan: PlanKind, law: Law| {
        (0..40).any(|seed| run(WorldKind::Redis, plan, seed).violations.iter().any(|v| v.law == law))
    };
    assert!(breaks(PlanKind::StepsForward, Law::L1), "A2");
    assert!(breaks(PlanKind::Unguarded, Law::L1), "A3");
    assert!(breaks(PlanKind::Skew, Law::L2), "A6");
}

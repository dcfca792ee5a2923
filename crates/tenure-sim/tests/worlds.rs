//! Worlds that run twice alike, and keep the laws.

use std::collections::BTreeSet;

use tenure_sim::{Event, Law, PlanKind, Served, What, WorldKind, run};

/// Each world and each plan. In a debug build a history takes some 0.2 s; `tenure-sim --twice` plays each plan in each world.
fn each() -> impl Iterator<Item = (WorldKind, PlanKind)> {
    let worlds = WorldKind::ALL.iter().map(|&world| (world, PlanKind::All));
    let plans = PlanKind::ALL.iter().zip(WorldKind::ALL.iter().cycle());
    worlds.chain(plans.map(|(&plan, &world)| (world, plan)))
}

const SEED: u64 = 5;

#[test]
fn one_seed_is_one_history_that_breaks_only_laws_whose_assumptions_do_not_hold() {
    for (world, plan) in each() {
        let [one, other] = [(); 2].map(|()| run(world, plan, SEED));
        assert_eq!(one.fingerprint, other.fingerprint, "{world}, {plan}");
        let bad: Vec<String> = (one.violations.iter())
            .filter(|violation| !plan.excuses(world, violation.law))
            .map(ToString::to_string)
            .collect();
        assert!(bad.is_empty(), "--world {world} --plan {plan} --seed {SEED}: {bad:#?}");
    }
    let prints = [1, 2].map(|seed| run(WorldKind::Redis, PlanKind::All, seed).fingerprint);
    assert_ne!(prints[0], prints[1], "seeds differ");
}

/// A checker that never finds anything would pass all tests.
#[test]
fn where_an_assumption_breaks_the_laws_that_rest_on_it_do() {
    let breaks = |plan: PlanKind, law: Law| {
        (0..40).any(|seed| run(WorldKind::Redis, plan, seed).violations.iter().any(|v| v.law == law))
    };
    assert!(breaks(PlanKind::StepsForward, Law::L1), "A2");
    assert!(breaks(PlanKind::Unguarded, Law::L1), "A3");
    assert!(breaks(PlanKind::Rewound, Law::L1), "A3: nobody is told that a server was put back");
    assert!(breaks(PlanKind::Skew, Law::L2), "A6");
}

/// Which servers granted something between two faults of this kind, in one of some histories.
fn granting(world: WorldKind, plan: PlanKind, from: &str, to: &str) -> BTreeSet<usize> {
    let mut most = BTreeSet::new();
    for seed in 0..20 {
        let mut now = BTreeSet::new();
        for Event { what, .. } in run(world, plan, seed).events {
            match what {
                What::Fault(fault) if fault.starts_with(from) || fault.starts_with(to) => now.clear(),
                What::Served { node, did: Served::Granted { .. }, .. } => {
                    now.insert(node);
                }
                _ => {}
            }
            most = if now.len() > most.len() { now.clone() } else { most };
        }
    }
    most
}

/// L1: a world of two masters in which one of them never grants beside the other shows nothing.
#[test]
fn the_old_master_grants_beside_the_new_one_and_one_address_has_several_servers() {
    let both = granting(WorldKind::Twins, PlanKind::Failover, "TakeOver", "Demote");
    assert_eq!(both.len(), 2, "an old master grants until it is demoted, or nothing is shown");
    let servers = granting(WorldKind::Spare, PlanKind::Failover, "nothing", "nothing");
    assert!(servers.len() > 1, "the address leads to one server only");
}

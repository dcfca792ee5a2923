//! For every known-fatal variant of the product a history that shows it: rows of variant, world, plan, seed and law.
//!
//! A seed is a history of one version of the product. When the product changes and a row no longer shows its variant,
//! `tenure-sim --find` looks for others and prints this table anew.

use tenure_core::Variant;

use crate::{
    checker::Law,
    plan::PlanKind,
    run::{WorldKind, run},
};

/// A variant, and a history that breaks a law with it and none without.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "fields are called what they are")]
pub struct Row {
    pub variant: Variant,
    pub world: WorldKind,
    pub plan: PlanKind,
    pub seed: u64,
    pub law: Law,
}

const fn row(variant: Variant, world: WorldKind, plan: PlanKind, seed: u64, law: Law) -> Row {
    Row { variant, world, plan, seed, law }
}

use Law::{L1, L2, L4, L5, L6};
use PlanKind::{All, Blocks, Calm, Crossing, Failover, Network, Pauses, Restarts, Rewound};
use WorldKind::{Ledger, Pair, Redis, Redlock3, Spare, Twins};

/// One row for each variant.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    row(Variant::NoSecondRound, Redlock3, Network, 3, L2),
    row(Variant::NoRecheck, Redis, Pauses, 69, L1),
    row(Variant::OwnerReused, Redlock3, Network, 2, L1),
    row(Variant::QuorumOfReachable, Redlock3, Network, 0, L1),
    row(Variant::RaiseUnguarded, Redlock3, Crossing, 11, L2),
    row(Variant::RaiseToFirst, Redlock3, Blocks, 3, L2),
    row(Variant::NoRestartGuard, Redis, Restarts, 7, L1),
    row(Variant::CountersLost, Redis, Restarts, 0, L2),
    row(Variant::EnterOnMessage, Redis, Calm, 0, L1),
    row(Variant::ValidityFromReply, Redis, All, 13, L1),
    row(Variant::LateRenewalResurrects, Redis, Pauses, 201, L5),
    row(Variant::RetryNotExtended, Redis, Network, 45, L1),
    row(Variant::TokenNotMinted, Redis, Network, 0, L2),
    row(Variant::BlindRelease, Redis, Calm, 0, L4),
    row(Variant::RenewalRecreates, Redis, Restarts, 3, L5),
    row(Variant::UptimeForPromoted, Pair, Failover, 19, L1),
    row(Variant::MissingIsUnused, Redis, Restarts, 2, L1),
    row(Variant::BacklogClearsWait, Pair, Restarts, 402, L1),
    row(Variant::HandedNotCounted, Ledger, Calm, 0, L1),
    row(Variant::LimitOfClaimOnly, Ledger, Calm, 0, L1),
    row(Variant::HandOffToAllShared, Ledger, Calm, 0, L1),
    row(Variant::NoTimers, Redis, Network, 0, L6),
    row(Variant::WaitTooShort, Redis, Restarts, 150, L1),
    row(Variant::NoDemotionWait, Twins, All, 34, L1),
    row(Variant::UnusedByUptime, Spare, Failover, 2, L1),
    row(Variant::FloorAtGateOnly, Redis, Rewound, 1, L2),
];

impl Row {
    /// Whether the law breaks with the variant, and whether all that must hold do without.
    pub fn shows(&self) -> (bool, bool) {
        Variant::switch(Some(self.variant));
        let with = run(self.world, self.plan, self.seed);
        Variant::switch(None);
        let is_broken = with.violations.iter().any(|violation| violation.law == self.law);
        let without = run(self.world, self.plan, self.seed);
        (is_broken, without.violations.iter().all(|violation| self.plan.excuses(self.world, violation.law)))
    }

    /// The first seed from this row's on that shows the variant, among so many.
    pub fn find(self, seeds: u64) -> Option<Self> {
        let rows = (self.seed..self.seed + seeds).map(|seed| Self { seed, ..self });
        rows.into_iter().find(|row| row.shows() == (true, true))
    }
}

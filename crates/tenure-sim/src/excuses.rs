//! What a plan that breaks an assumption excuses in a world.

use crate::{checker::Law, plan::PlanKind, run::WorldKind};

impl PlanKind {
    /// True if the laws allow that this one breaks in such a world.
    pub fn excuses(self, world: WorldKind, law: Law) -> bool {
        match self {
            // The clocks of its nodes differ: one that forgot may count less than another one's clock had it raised to.
            Self::Rewound if world.is_quorum() => matches!(law, Law::L1 | Law::L2 | Law::L3),
            // So do those of servers that grant in place of one another, and nobody waits until that makes no difference.
            Self::Unguarded if world.servers() > 1 || world == WorldKind::Pair => {
                matches!(law, Law::L1 | Law::L2 | Law::L3)
            }
            Self::Skew | Self::Scattered => matches!(law, Law::L1 | Law::L2 | Law::L3),
            Self::StepsForward | Self::Crossing | Self::Drift | Self::Unguarded | Self::Rewound => {
                law == Law::L1
            }
            _ => false,
        }
    }
}

//! Which laws a plan that breaks an assumption may break in a world.

use crate::{checker::Law, plan::PlanKind, run::WorldKind};

impl PlanKind {
    /// True if this plan may break this law in such a world.
    pub fn excuses(self, world: WorldKind, law: Law) -> bool {
        match self {
            // The clocks of the nodes differ. After a node forgot, its counter may be below the value to which another
            // node's clock had raised it.
            Self::Rewound if world.is_quorum() => matches!(law, Law::L1 | Law::L2 | Law::L3),
            // The clocks of servers that grant in place of one another also differ. No client waits until that makes no
            // difference.
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

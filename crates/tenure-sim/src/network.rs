//! `Network`: how long a message is on its way, and whether it arrives.

use std::collections::BTreeMap;

use crate::{
    chance::Chance,
    clockwork::{Micros, Pid},
    history::{Machine, NodeId},
};

/// How the network behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Of one way, in µs.
    pub(crate) delay: (u64, u64),
    /// In a thousand, how many take longer; and how long, in µs.
    pub(crate) slow: (u64, u64, u64),
    /// How many in a thousand are lost.
    pub(crate) loss: u64,
    /// How many in a thousand are applied twice.
    pub(crate) twice: u64,
}

impl Weather {
    pub(crate) const CALM: Self = Self { delay: (100, 2_000), slow: (0, 0, 0), loss: 0, twice: 0 };
}

pub(crate) struct Network {
    pub(crate) chance: Chance,
    pub(crate) weather: Weather,
    /// Until when no message passes, and whether messages are kept for later.
    pub(crate) cuts: BTreeMap<(Machine, NodeId), (Micros, bool)>,
    /// Processes to stop when their machine next sends something, and for how long.
    pub(crate) traps: BTreeMap<Machine, (Pid, Micros)>,
}

impl Network {
    /// When a message sent now arrives; `None` if it is lost.
    pub(crate) fn passage(&mut self, now: Micros, from: Machine, to: NodeId) -> Option<Micros> {
        let at = self.hint(now)?;
        match self.cuts.get(&(from, to)) {
            Some(&(until, is_kept)) if until > now => is_kept.then_some(until + (at - now)),
            _ => Some(at),
        }
    }

    pub(crate) fn hint(&mut self, now: Micros) -> Option<Micros> {
        let Weather { delay, slow, loss, .. } = self.weather;
        if self.chance.below(1000) < loss {
            return None;
        }
        let (share, from, to) = slow;
        let is_slow = self.chance.below(1000) < share;
        let (from, to) = if is_slow { (from, to) } else { delay };
        Some(now + self.chance.between(from, to))
    }
}

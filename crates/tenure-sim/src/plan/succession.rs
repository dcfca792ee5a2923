//! Servers that take over from one another: a replica from its master, another server behind the same address.

use std::collections::BTreeMap;

use super::{
    Planner, SECOND, Succession,
    faults::{Fault, Memory},
};
use crate::{clockwork::Micros, history::NodeId};

/// `SENTINEL FAILOVER` demotes the old master some ten seconds after it has promoted the new one. A master that comes back
/// from a partition is demoted some ten seconds after Sentinel sees it again.
const DEMOTION: Micros = 12 * SECOND;

/// Between two failovers: the old master is demoted, and a partition has ended.
const APART: (u64, u64) = (50, 80);

impl Planner<'_> {
    /// Servers take the place of others, as they do in this world.
    pub(super) fn successions(&mut self, least: u64, most: u64) {
        match self.size.succession {
            Succession::None => self.some(least, most, |_, _| {}),
            Succession::Standby => self.some(least, most, Self::promotion),
            Succession::Cells => {
                self.some(least, most, Self::promotion_of_cells);
                self.some(0, 3, Self::strangers);
            }
            Succession::Twins => self.one_after_the_other(|planner, at, nth| {
                let (old, new) = (nth % 2, (nth + 1) % 2);
                if planner.chance.per_mille(400) {
                    planner.planned(at, old, new);
                } else {
                    planner.forced(at, old, new);
                }
            }),
            Succession::Address => {
                let mut former = vec![0];
                self.one_after_the_other(|planner, at, _| planner.moved(at, &mut former));
            }
        }
    }

    /// A master that is cut off from its replicas, or was replaced, does not lose its data before it is demoted. Together
    /// with its data it would forget that it had replicas, and could not be distinguished from a master without replicas
    /// (A3).
    pub(super) fn replaced_masters_keep_their_data(&mut self) {
        let mut replaced = Vec::new();
        // Since when each master is cut off. A planned failover has no cut.
        let mut cut = BTreeMap::new();
        let mut faults: Vec<&(Micros, Fault)> = self.faults.iter().collect();
        faults.sort_by_key(|(at, _)| *at);
        for (at, fault) in faults {
            match *fault {
                Fault::CutReplica { master } => drop(cut.insert(master, *at)),
                Fault::TakeOver { old, .. } => drop(cut.entry(old).or_insert(*at)),
                Fault::Demote { old, .. } => replaced.extend(cut.remove(&old).map(|from| (old, from..=*at))),
                _ => {}
            }
        }
        replaced.extend(cut.into_iter().map(|(old, from)| (old, from..=Micros::MAX)));
        self.faults.retain(|(at, fault)| match fault {
            Fault::Flush { node } | Fault::Restart { node, memory: Memory::Empty, .. } => {
                !replaced.iter().any(|(old, time)| node == old && time.contains(at))
            }
            _ => true,
        });
    }

    fn one_after_the_other(&mut self, mut fault: impl FnMut(&mut Self, Micros, usize)) {
        let (mut at, mut nth) = (self.chance.between(10, 60) * SECOND, 0);
        while at + 30 * SECOND < self.end {
            fault(self, at, nth);
            (at, nth) = (at + self.chance.between(APART.0, APART.1) * SECOND, nth + 1);
        }
    }

    fn promotion(&mut self, at: Micros) {
        let least = if self.size.succession == Succession::Cells { 100_000 } else { 10_000 };
        let (node, down) = (0, self.chance.between(least, 12 * SECOND));
        let age = match self.chance.below(4) {
            0 => 0,
            1 => self.chance.between(1_000, 200_000),
            2 => self.chance.between(200_000, 5 * SECOND),
            _ => self.chance.between(5 * SECOND, 60 * SECOND),
        };
        self.faults.push((at.saturating_sub(age), Fault::Copy { node }));
        self.faults.push((at, Fault::Promote { node, down }));
        if self.chance.per_mille(400) {
            let later = at + self.chance.between(5, 25) * SECOND;
            self.faults.push((later, Fault::EndBacklog { node }));
        }
    }

    /// The clock of the new server is behind by less than a takeover takes (A2).
    fn promotion_of_cells(&mut self, at: Micros) {
        self.promotion(at);
        let by = self.chance.below(40_000);
        self.stepped_back += by;
        self.faults.push((at, Fault::StepServer { node: 0, by: -i64::try_from(by).unwrap_or(0) }));
    }

    /// A trigger that undoes what is written, or a transaction that has every cell locked.
    fn strangers(&mut self, at: Micros) {
        let until = (at + self.chance.between(10_000, 5 * SECOND)).min(self.end);
        let is_undone = self.chance.per_mille(500);
        self.faults.push((at, if is_undone { Fault::Undo { until } } else { Fault::Lock { until } }));
    }

    /// What has reached the replica when it last receives something from its master.
    fn copied(&mut self, at: Micros, master: NodeId) {
        let lag = if self.chance.per_mille(300) { 0 } else { self.chance.between(1_000, SECOND) };
        self.faults.push((at.saturating_sub(lag), Fault::Copy { node: master }));
    }

    /// Each machine learns of the new server at its own time, some of them late. Its connections stay where they are.
    fn told(&mut self, to: NodeId, from: Micros, until: Micros) {
        for machine in 0..self.size.machines {
            let latest = if self.chance.per_mille(600) { (from + SECOND).min(until) } else { until };
            let at = self.chance.between(from, latest);
            self.faults.push((at, Fault::Lead { machine, to }));
        }
    }

    fn demoted(&mut self, at: Micros, old: NodeId, new: NodeId) {
        self.faults.push((at, Fault::Demote { old, new }));
        if self.chance.per_mille(300) {
            let early = at.saturating_sub(self.chance.between(0, DEMOTION));
            self.faults.push((early, Fault::EndBacklog { node: new }));
        }
    }

    /// On command: the replica is promoted, clients are led to it, and the old master is demoted.
    fn planned(&mut self, at: Micros, old: NodeId, new: NodeId) {
        self.copied(at, old);
        self.faults.push((at, Fault::TakeOver { old, new }));
        let demoted_at = at + self.chance.between(0, DEMOTION);
        self.told(new, at, demoted_at + 2 * SECOND);
        self.demoted(demoted_at, old, new);
    }

    /// The master is cut off from its replica and from Sentinel, not from all clients. It goes on until the cut ends.
    fn forced(&mut self, at: Micros, old: NodeId, new: NodeId) {
        self.copied(at, old);
        self.faults.push((at, Fault::CutReplica { master: old }));
        let promoted_at = at + self.chance.between(200_000, 8 * SECOND);
        let longest = self.end.saturating_sub(promoted_at + DEMOTION + SECOND);
        let healed_at = promoted_at + self.chance.between(0, 25 * SECOND.min(longest));
        self.faults.push((promoted_at, Fault::TakeOver { old, new }));
        let demoted_at = healed_at + self.chance.between(0, DEMOTION);
        for machine in 0..self.size.machines {
            let (until, is_kept) = (healed_at, self.chance.per_mille(300));
            let mut cut = |node| self.faults.push((at, Fault::Cut { machine, node, until, is_kept }));
            match machine % 3 {
                0 => cut(new),
                1 => cut(old),
                _ => {}
            }
            let told = if machine % 3 == 0 { healed_at } else { promoted_at };
            let told_at = told + self.chance.between(0, DEMOTION);
            self.faults.push((told_at, Fault::Lead { machine, to: new }));
        }
        self.demoted(demoted_at, old, new);
    }

    /// The address leads to another server, and the one before cannot be reached any more. A server that had the address
    /// earlier was restarted in between.
    fn moved(&mut self, at: Micros, former: &mut Vec<NodeId>) {
        let from = former.last().copied().unwrap_or(0);
        let to = (from + 1 + self.chance.index(self.size.nodes - 1)) % self.size.nodes;
        let long_ago = at.saturating_sub(self.chance.between(0, 45 * SECOND));
        if former.contains(&to) {
            let memory = if self.chance.per_mille(500) { Memory::Kept } else { Memory::Empty };
            let loads_history = self.chance.per_mille(300);
            self.faults.push((long_ago, Fault::Restart { node: to, down: 0, memory, loads_history }));
        } else if self.chance.per_mille(400) {
            let loads_history = self.chance.per_mille(300);
            self.faults.push((long_ago, Fault::Restore { from, to, loads_history }));
        }
        self.faults.push((at, Fault::Leave { node: from }));
        self.told(to, at, at + 5 * SECOND);
        former.push(to);
    }

    /// Some machines are led to another server, perhaps one that they knew. Connections stay.
    pub(super) fn scatter(&mut self, at: Micros) {
        if self.size.succession != Succession::Address {
            return;
        }
        let to = self.node();
        for machine in 0..self.size.machines {
            if self.chance.per_mille(600) {
                self.faults.push((at, Fault::Lead { machine, to }));
            }
        }
        if self.chance.per_mille(500) {
            let (node, down) = (self.node(), self.chance.between(20_000, SECOND));
            let fault = Fault::Restart { node, down, memory: Memory::Kept, loads_history: false };
            self.faults.push((at, fault));
        }
    }
}

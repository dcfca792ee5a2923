//! What happens to a server: it forgets, its clock steps, it goes back to a snapshot.

use super::{
    Planner, SECOND, SKEW, Succession,
    faults::{Fault, Memory},
};
use crate::clockwork::Micros;

impl Planner<'_> {
    /// A server loses all of its memory, or a part.
    pub(super) fn loss(&mut self, at: Micros) {
        let node = self.node();
        let down = self.chance.between(20_000, 4 * SECOND);
        let loads_history = self.chance.per_mille(300);
        if self.size.is_durable {
            self.faults.push((at, Fault::Restart { node, down, memory: Memory::Kept, loads_history: false }));
            return;
        }
        let memory = match self.chance.below(10) {
            0..2 => Memory::Kept,
            2..5 => Memory::Empty,
            5..8 => Memory::Copy,
            8 => {
                self.faults.push((at, Fault::Flush { node }));
                // Perhaps its backlog runs out while it waits.
                if self.chance.per_mille(500) {
                    let later = at + self.chance.between(0, 6 * SECOND);
                    self.faults.push((later, Fault::EndBacklog { node }));
                }
                return;
            }
            _ => {
                self.faults.push((at, Fault::EndBacklog { node }));
                return;
            }
        };
        if memory == Memory::Copy {
            let age = self.chance.between(1_000, 5 * SECOND);
            self.faults.push((at.saturating_sub(age), Fault::Copy { node }));
        }
        self.faults.push((at, Fault::Restart { node, down, memory, loads_history }));
    }

    pub(super) fn flush(&mut self, at: Micros) {
        let node = self.node();
        if !self.size.is_durable {
            self.faults.push((at, Fault::Flush { node }));
        }
    }

    pub(super) fn step(&mut self, at: Micros, sign: i64) {
        let node = self.node();
        let by = self.chance.between(10_000, 3 * SECOND);
        self.stepped_back += if sign < 0 { by } else { 0 };
        self.faults.push((at, Fault::StepServer { node, by: sign * i64::try_from(by).unwrap_or(0) }));
    }

    /// A place that is made from a reading lasts longer by as much as the reading is ahead (L8).
    pub(super) fn split(&mut self, at: Micros) {
        if self.size.succession != Succession::Cells {
            return;
        }
        let by = self.chance.between(10_000, 25 * SECOND);
        let until = (at + self.chance.between(SECOND, 40 * SECOND)).min(self.end);
        let is_ahead = self.chance.per_mille(600);
        self.stepped_back += if is_ahead { by } else { 0 };
        let by = i64::try_from(by).unwrap_or(0);
        self.faults.push((at, Fault::Split { by: if is_ahead { by } else { -by }, until }));
    }

    pub(super) fn loss_and_skew(&mut self, at: Micros) {
        if self.size.is_durable {
            return;
        }
        let node = self.node();
        self.faults.push((at, Fault::StepServer { node, by: -SKEW }));
        let (down, memory) = (self.chance.between(20_000, SECOND), Memory::Empty);
        self.faults.push((at, Fault::Restart { node, down, memory, loads_history: false }));
    }

    /// The machine of a server goes back to an earlier state, once or twice to the same one.
    pub(super) fn rewind(&mut self, at: Micros) {
        let (node, down) = (self.node(), self.chance.between(0, 2 * SECOND));
        let age = match self.chance.below(3) {
            0 => self.chance.between(1_000, 200_000),
            1 => self.chance.between(200_000, 5 * SECOND),
            _ => self.chance.between(5 * SECOND, 60 * SECOND),
        };
        self.faults.push((at.saturating_sub(age), Fault::Keep { node }));
        self.faults.push((at, Fault::Rewind { node, down }));
        if self.chance.per_mille(300) {
            let later = at + self.chance.between(3, 20) * SECOND;
            self.faults.push((later.min(self.end), Fault::Rewind { node, down }));
        }
    }
}

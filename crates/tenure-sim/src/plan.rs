//! `Plan`: the faults of one history, drawn from its seed, and which assumptions they break.

mod faults;
mod servers;
mod succession;

use std::fmt;

use crate::{
    chance::Chance,
    clockwork::Micros,
    history::{Machine, NodeId},
    network::Weather,
};

pub(crate) use faults::{Fault, Memory};

/// The kinds of plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum PlanKind {
    /// Nothing goes wrong.
    Calm,
    /// Messages are late, lost, doubled, overtaken; links are cut.
    Network,
    /// Clients stop past their ttl, or are killed; their wall clocks step.
    Pauses,
    /// Servers restart with all of their memory, a part, or none; are flushed; forget their history.
    Restarts,
    /// The store is emptied again and again, while messages are late, lost and doubled.
    Emptied,
    /// A server takes the place of another. It is a replica that missed the last writes, while the old master is dead or
    /// goes on; or another server at the same address.
    Failover,
    /// The wall clocks of servers step back.
    StepsBack,
    /// All of the above except steps back, which must not occur together with a loss of data (A6).
    All,
    /// Programs ask for blocks of tokens over a bad network.
    Blocks,
    /// Outside: the wall clocks of servers step forward (A2).
    StepsForward,
    /// Outside: the clocks of two nodes step forward while two claims cross (A2, H3.3).
    Crossing,
    /// Outside: clocks run at rates that differ by more than the drift (A1).
    Drift,
    /// Outside: servers that forgot their counters have clocks that are behind (A6).
    Skew,
    /// Outside: servers forget locks, and there is no guard (A3).
    Unguarded,
    /// Outside: servers go back to a snapshot and cannot notice it (A3).
    Rewound,
    /// Outside: one address leads to several servers at the same time, and back to former ones (A3).
    Scattered,
    /// Many programs of one process ask at the same moments and hold for an instant, so that leases are passed on. Over a
    /// bad network, and with pauses.
    Crowds,
    /// Programs ask for several locks together, or for one of several; over a bad network, and with pauses.
    Several,
    /// Jobs that run once per interval, and memos; over a bad network, and with pauses.
    Jobs,
    /// One program of each process asks for one lock, holds it for an instant, and asks again immediately, many times.
    Hot,
    /// A larger `max_ttl` is rolled out: half of the machines have it, the others the smaller one. Servers lose their data,
    /// or others take their place; processes stop, and none is started.
    Rollout,
    /// Another clock than that of the server that writes answers readings, ahead of it or behind: a proxy sends them to a
    /// replica. Over a bad network. Only cells are read before they are written.
    Split,
    /// Processes are killed often, and stopped; a store that sees them frees what the dead ones held. Programs detach from
    /// leases, and others work under them.
    Deaths,
    /// Programs write in transactions that rely on the owner of the lock, and rest in them; some come late. Over a bad network,
    /// and with pauses. Only cells have transactions.
    Owned,
    /// Programs ask in classes; some give up. Nothing goes wrong.
    Classes,
    /// The same over a bad network, and with pauses.
    ClassesLate,
}

impl PlanKind {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Calm,
        Self::Network,
        Self::Pauses,
        Self::Restarts,
        Self::Emptied,
        Self::Failover,
        Self::StepsBack,
        Self::All,
        Self::Blocks,
        Self::Crowds,
        Self::Several,
        Self::Jobs,
        Self::StepsForward,
        Self::Crossing,
        Self::Drift,
        Self::Skew,
        Self::Unguarded,
        Self::Rewound,
        Self::Scattered,
        Self::Hot,
        Self::Rollout,
        Self::Split,
        Self::Deaths,
        Self::Owned,
        Self::Classes,
        Self::ClassesLate,
    ];

    /// The assumption of docs/evidence/laws.md that it breaks on purpose.
    pub fn breaks(self) -> Option<&'static str> {
        match self {
            Self::StepsForward | Self::Crossing => Some("A2"),
            Self::Drift => Some("A1"),
            Self::Skew => Some("A6"),
            Self::Unguarded | Self::Rewound | Self::Scattered => Some("A3"),
            _ => None,
        }
    }
}

impl fmt::Display for PlanKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = clap::ValueEnum::to_possible_value(self).expect("BUG: every plan has a name");
        f.write_str(value.get_name())
    }
}

/// How servers take over from one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Succession {
    /// They do not.
    None,
    /// A replica takes over when its master is dead.
    Standby,
    /// One of two servers is the replica of the other, and takes over while the other goes on.
    Twins,
    /// The address leads to another server.
    Address,
    /// As `Standby`, by a clock that is a little behind. Strangers lock and change what is stored.
    Cells,
}

/// How large a world is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) machines: usize,
    pub(crate) nodes: usize,
    pub(crate) succession: Succession,
    /// It never forgets.
    pub(crate) is_durable: bool,
}

/// The faults of one history.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) faults: Vec<(Micros, Fault)>,
    pub(crate) healed_at: Micros,
    /// By how much servers were stepped back in all: leases and waits last that much longer.
    pub(crate) stepped_back: Micros,
}

const SECOND: Micros = 1_000_000;

/// How long each message takes, in µs. A client that needs one message more than another comes too late each time.
const EVEN: (u64, u64) = (1_000, 1_050);

/// A clock that is behind by this much after a loss of data breaks A6.
const SKEW: i64 = 40_000_000;

/// When two claims are sent at the same time, in a history that ends at `end`.
pub(crate) fn crossing_times(end: Micros) -> impl Iterator<Item = Micros> {
    (1..).map(|round| round * 20 * SECOND).take_while(move |at| at + 30 * SECOND < end)
}

struct Planner<'a> {
    chance: &'a mut Chance,
    size: Size,
    end: Micros,
    faults: Vec<(Micros, Fault)>,
    stepped_back: Micros,
}

impl Plan {
    /// Draws the faults of a history.
    pub(crate) fn draw(kind: PlanKind, size: Size, chance: &mut Chance) -> Self {
        let end = chance.between(240, 360) * SECOND;
        let mut planner = Planner { chance, size, end, faults: Vec::new(), stepped_back: 0 };
        planner.add(kind);
        let Planner { mut faults, stepped_back, .. } = planner;
        faults.sort_by_key(|(at, _)| *at);
        Self { faults, healed_at: end, stepped_back }
    }
}

impl Planner<'_> {
    fn add(&mut self, kind: PlanKind) {
        match kind {
            PlanKind::Calm | PlanKind::Classes => {}
            PlanKind::Hot => self.faults.push((0, Fault::Weather(Weather { delay: EVEN, ..Weather::CALM }))),
            // A wrong clock does harm where renewals fail.
            PlanKind::Network | PlanKind::Blocks | PlanKind::Drift => self.network(),
            PlanKind::Crossing => self.crossings(),
            PlanKind::Pauses => self.pauses(),
            PlanKind::Deaths => {
                self.pauses();
                self.some(20, 60, Self::kill);
            }
            PlanKind::Crowds
            | PlanKind::Several
            | PlanKind::Jobs
            | PlanKind::Owned
            | PlanKind::ClassesLate => {
                self.network();
                self.pauses();
            }
            PlanKind::Restarts => self.some(3, 9, Self::loss),
            PlanKind::Emptied => {
                self.network();
                self.some(10, 40, Self::flush);
            }
            PlanKind::Failover => self.successions(3, 9),
            PlanKind::StepsBack => self.some(2, 6, |planner, at| planner.step(at, -1)),
            PlanKind::StepsForward => self.some(4, 12, |planner, at| planner.step(at, 1)),
            PlanKind::All | PlanKind::Rollout => {
                self.network();
                match kind {
                    PlanKind::Rollout => self.stops(),
                    _ => self.pauses(),
                }
                self.some(1, 4, Self::loss);
                self.successions(0, 4);
                self.replaced_masters_keep_their_data();
            }
            PlanKind::Skew => self.some(3, 9, Self::loss_and_skew),
            PlanKind::Unguarded => {
                self.some(3, 9, Self::loss);
                self.successions(0, 4);
            }
            PlanKind::Rewound => self.some(2, 7, Self::rewind),
            PlanKind::Scattered => self.some(3, 9, Self::scatter),
            PlanKind::Split => {
                self.network();
                self.some(2, 8, Self::split);
            }
        }
    }

    fn some(&mut self, least: u64, most: u64, mut fault: impl FnMut(&mut Self, Micros)) {
        for _ in 0..self.chance.between(least, most) {
            let at = self.chance.between(5 * SECOND, self.end - 30 * SECOND);
            fault(self, at);
        }
    }

    fn node(&mut self) -> NodeId {
        self.chance.index(self.size.nodes)
    }

    fn machine(&mut self) -> Machine {
        self.chance.index(self.size.machines)
    }

    fn network(&mut self) {
        self.some(2, 5, |planner, at| {
            let chance = &mut *planner.chance;
            let weather = Weather {
                delay: (200, chance.between(2_000, 40_000)),
                slow: (chance.below(60), 50_000, chance.between(100_000, 5_000_000)),
                loss: chance.below(60),
                twice: chance.below(80),
            };
            let until = at + chance.between(5, 60) * SECOND;
            planner.faults.push((at, Fault::Weather(weather)));
            planner.faults.push((until.min(planner.end), Fault::Weather(Weather::CALM)));
        });
        self.some(2, 8, |planner, at| {
            let until = (at + planner.chance.between(100_000, 20 * SECOND)).min(planner.end);
            let (whole, is_kept) = (planner.chance.below(3), planner.chance.per_mille(500));
            let (one, other) = (planner.machine(), planner.node());
            for machine in 0..planner.size.machines {
                for node in 0..planner.size.nodes {
                    let is_cut = match whole {
                        0 => machine == one,
                        1 => node == other,
                        _ => machine == one && node == other,
                    };
                    if is_cut {
                        planner.faults.push((at, Fault::Cut { machine, node, until, is_kept }));
                    }
                }
            }
        });
    }

    fn pauses(&mut self) {
        self.stops();
        self.some(1, 5, Self::kill);
        self.some(0, 4, |planner, at| {
            let (machine, by) = (planner.machine(), planner.chance.between(0, 20 * SECOND));
            let by = i64::try_from(by).unwrap_or(0) - 10_000_000;
            planner.faults.push((at, Fault::StepClient { machine, by }));
        });
    }

    fn kill(&mut self, at: Micros) {
        let (machine, back_after) = (self.machine(), self.chance.between(10_000, 10 * SECOND));
        self.faults.push((at, Fault::Kill { machine, back_after }));
    }

    fn stops(&mut self) {
        self.some(3, 15, |planner, at| {
            let length = planner.chance.between(50_000, 15 * SECOND);
            let (machine, is_asking) = (planner.machine(), planner.chance.per_mille(500));
            planner.faults.push((
                at,
                match is_asking {
                    true => Fault::StopAsking { machine, length },
                    false => Fault::Stop { machine, until: (at + length).min(planner.end) },
                },
            ));
        });
    }

    /// Two claims meet on two of three nodes. Each is granted one node, and gets the other when the clock there has ended
    /// the lease of the first. Then both raise the node that they have lost.
    fn crossings(&mut self) {
        const MS: Micros = 1_000;
        if self.size.nodes != 3 {
            return;
        }
        for at in crossing_times(self.end) {
            let jitter = self.chance.below(10 * MS);
            let mut cut = |from: Micros, machine, node, until: Micros, is_kept| {
                let until = at + until;
                self.faults.push((at - 10 * MS + from, Fault::Cut { machine, node, until, is_kept }));
            };
            cut(0, 0, 2, 2_000 * MS, false);
            cut(0, 1, 2, 2_000 * MS, false);
            cut(0, 0, 1, 150 * MS + jitter, true);
            cut(0, 1, 0, 100 * MS, true);
            cut(60 * MS, 1, 1, 220 * MS + jitter, true);
            let by = 10_000_000;
            self.faults.push((at + 60 * MS, Fault::StepServer { node: 0, by }));
            self.faults.push((at + 130 * MS, Fault::StepServer { node: 1, by }));
        }
    }
}

//! `Report`: the results of many histories.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde_json::json;
use tenure_sim::{Law, Outcome, PlanKind, Served, Violation, What, WorldKind};

/// What is kept of one history.
pub(crate) struct History {
    world: WorldKind,
    plan: PlanKind,
    seed: u64,
    simulated: Duration,
    grants: u64,
    raised: u64,
    losses: u64,
    violations: Vec<Violation>,
    /// A second run gave the same history.
    is_one: bool,
}

impl History {
    pub(crate) fn of(
        (world, plan, seed): (WorldKind, PlanKind, u64),
        outcome: Outcome,
        is_one: bool,
    ) -> Self {
        let count = |is_wanted: fn(&What) -> bool| {
            outcome.events.iter().filter(|event| is_wanted(&event.what)).count() as u64
        };
        Self {
            grants: count(|what| matches!(what, What::Entered { .. })),
            raised: count(|what| matches!(what, What::Served { did: Served::Raised(_), .. })),
            losses: count(|what| matches!(what, What::Lost { .. })),
            simulated: outcome.simulated,
            violations: outcome.violations,
            world,
            plan,
            seed,
            is_one,
        }
    }

    /// The laws that it broke and must keep.
    fn broken(&self) -> BTreeSet<Law> {
        let laws = self.violations.iter().map(|violation| violation.law);
        laws.filter(|law| !self.plan.excuses(self.world, *law)).collect()
    }

    fn replay(&self) -> String {
        let Self { world, plan, seed, .. } = self;
        format!("--world {world} --plan {plan} --seed {seed}")
    }
}

#[derive(Default)]
struct Row {
    histories: u64,
    grants: u64,
    raised: u64,
    losses: u64,
    broken: BTreeMap<Law, u64>,
    /// The laws that a history broke and must keep.
    bad: BTreeSet<Law>,
}

/// The results of many histories.
#[derive(Default)]
pub(crate) struct Report {
    histories: u64,
    simulated: Duration,
    rows: BTreeMap<PlanKind, Row>,
    /// Histories that broke a law that they must keep.
    bad: Vec<History>,
    /// How to show the histories that differed the second time.
    differing: Vec<String>,
}

impl Report {
    pub(crate) fn add(&mut self, history: History) {
        self.histories += 1;
        self.simulated += history.simulated;
        let row = self.rows.entry(history.plan).or_default();
        row.histories += 1;
        row.grants += history.grants;
        row.raised += history.raised;
        row.losses += history.losses;
        let laws: BTreeSet<Law> = history.violations.iter().map(|violation| violation.law).collect();
        for law in laws {
            *row.broken.entry(law).or_default() += 1;
        }
        if !history.is_one {
            self.differing.push(history.replay());
        }
        let bad = history.broken();
        row.bad.extend(&bad);
        if !bad.is_empty() {
            self.bad.push(history);
        }
    }

    /// True if a history broke this law, and must keep it.
    pub(crate) fn has_broken(&self, law: Law) -> bool {
        self.bad.iter().any(|history| history.broken().contains(&law))
    }

    pub(crate) fn is_bad(&self) -> bool {
        !self.bad.is_empty() || !self.differing.is_empty()
    }

    pub(crate) fn print(&mut self, took: Duration, as_json: bool) {
        self.bad.sort_by_key(|history| (history.world, history.plan, history.seed));
        if as_json { self.print_json(took) } else { self.print_table(took) }
    }

    fn print_table(&self, took: Duration) {
        let mut table = Table::new();
        table.load_style(NOTHING);
        let head = ["plan", "breaks", "histories", "grants", "raised", "lost"].map(str::to_owned);
        table.set_header(head.into_iter().chain(Law::ALL.iter().map(Law::to_string)));
        for (plan, row) in &self.rows {
            let mut cells = vec![plan.to_string(), plan.breaks().unwrap_or("").to_owned()];
            cells.extend([row.histories, row.grants, row.raised, row.losses].map(|n| n.to_string()));
            for law in Law::ALL {
                let broken = row.broken.get(law).copied().unwrap_or(0);
                let excuse = if row.bad.contains(law) { "!" } else { "" };
                cells.push(if broken == 0 { "·".to_owned() } else { format!("{broken}{excuse}") });
            }
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        println!("{table}");
        for history in self.bad.iter().take(10) {
            println!("\ntenure-sim {} --trace", history.replay());
            for violation in history.violations.iter().take(3) {
                println!("  {violation}");
            }
        }
        for replay in self.differing.iter().take(10) {
            println!("\ntenure-sim {replay} is not the same history twice");
        }
        let rate = self.histories as f64 / took.as_secs_f64();
        println!(
            "{} histories, {:.1} simulated hours in {:.1} s: {rate:.1} seeds/s; {} broke a law that they must keep",
            self.histories,
            self.simulated.as_secs_f64() / 3600.0,
            took.as_secs_f64(),
            self.bad.len(),
        );
    }

    fn print_json(&self, took: Duration) {
        let rows = self.rows.iter().map(|(plan, row)| {
            let broken: BTreeMap<String, u64> =
                row.broken.iter().map(|(law, count)| (law.to_string(), *count)).collect();
            json!({
                "plan": plan.to_string(), "breaks": plan.breaks(), "histories": row.histories, "grants": row.grants,
                "raised": row.raised, "lost": row.losses, "broken": broken,
            })
        });
        let bad = self.bad.iter().map(|history| {
            let violations: Vec<String> = history.violations.iter().map(Violation::to_string).collect();
            let laws: Vec<String> = history.broken().iter().map(Law::to_string).collect();
            json!({
                "world": history.world.to_string(), "plan": history.plan.to_string(), "seed": history.seed,
                "laws": laws, "violations": violations,
            })
        });
        let report = json!({
            "histories": self.histories, "simulated_hours": self.simulated.as_secs_f64() / 3600.0,
            "seconds": took.as_secs_f64(), "plans": rows.collect::<Vec<_>>(), "bad": bad.collect::<Vec<_>>(),
            "differing": self.differing,
        });
        println!("{report:#}");
    }
}

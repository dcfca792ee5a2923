//! The command `tenure-sim`: many seeds, one table; or one seed and its trace.

mod report;

use std::{
    io::IsTerminal,
    process::ExitCode,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use clap::Parser;
use tenure::TokioHost;
use tenure_core::Host;
use tenure_sim::{PlanKind, WorldKind, run};

use crate::report::{History, Report};

/// Runs simulated worlds and holds their histories against the laws of docs/laws.md.
#[derive(Debug, Parser)]
#[command(name = "tenure-sim", version)]
struct Args {
    /// How many histories to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// Run this seed only, or begin with it if --seeds is given too.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event of a single history.
    #[arg(long)]
    trace: bool,
    /// Only this kind of world; otherwise seeds take turns.
    #[arg(long)]
    world: Option<WorldKind>,
    /// Only this kind of plan; otherwise seeds take turns.
    #[arg(long)]
    plan: Option<PlanKind>,
    /// How many threads; every history runs on one.
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, Into::into))]
    jobs: usize,
    /// For programs.
    #[arg(long)]
    json: bool,
    /// Break this rule in product code on purpose, and look for a history that shows it.
    #[cfg(feature = "fatal-variants")]
    #[arg(long)]
    variant: Option<String>,
    /// With --variant: look for a history that breaks this law.
    #[cfg(feature = "fatal-variants")]
    #[arg(long, requires = "variant")]
    law: Option<String>,
    /// Look for a history for every variant, and print them as rows of src/fatal.rs.
    #[cfg(feature = "fatal-variants")]
    #[arg(long)]
    find: bool,
}

impl Args {
    /// What the nth history is.
    fn nth(&self, nth: u64) -> (WorldKind, PlanKind, u64) {
        let worlds = self.world.as_ref().map_or(WorldKind::ALL, std::slice::from_ref);
        let plans = self.plan.as_ref().map_or(PlanKind::ALL, std::slice::from_ref);
        let seed = self.seed.unwrap_or(0) + nth;
        let at = |turn: u64, len: usize| usize::try_from(turn % len as u64).expect("BUG: below a length");
        let world = worlds[at(seed, worlds.len())];
        (world, plans[at(seed / worlds.len() as u64, plans.len())], seed)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "fatal-variants")]
    if args.find {
        return find(args.seeds);
    }
    if args.seed.is_some() && !std::env::args().any(|arg| arg.starts_with("--seeds")) {
        return single(&args);
    }
    many(&args)
}

/// The rule that every thread of this run breaks.
#[cfg(feature = "fatal-variants")]
fn switch(args: &Args) {
    let Some(name) = &args.variant else { return };
    let variant = tenure_core::Variant::ALL.iter().find(|variant| format!("{variant:?}") == *name);
    let names = || tenure_core::Variant::ALL.iter().map(|v| format!("{v:?}")).collect::<Vec<_>>().join(", ");
    let Some(variant) = variant else {
        eprintln!("no variant {name}; there are {}", names());
        std::process::exit(64);
    };
    tenure_core::Variant::switch(Some(*variant));
}

#[cfg(not(feature = "fatal-variants"))]
fn switch(_args: &Args) {}

/// Prints the table of variants anew.
#[cfg(feature = "fatal-variants")]
fn find(seeds: u64) -> ExitCode {
    let mut missing = 0;
    for row in tenure_sim::fatal::ROWS {
        let found = row.find(seeds);
        missing += u8::from(found.is_none());
        let seed = found.map_or_else(|| "?".to_owned(), |row| row.seed.to_string());
        let tenure_sim::fatal::Row { variant, world, plan, law, .. } = row;
        println!("    row(Variant::{variant:?}, {world:?}, {plan:?}, {seed}, {law}),");
    }
    ExitCode::from(missing)
}

fn single(args: &Args) -> ExitCode {
    switch(args);
    let (world, plan, seed) = args.nth(0);
    let outcome = run(world, plan, seed);
    if args.trace {
        for event in &outcome.events {
            println!("{:>13.6} {:?}", Duration::from_micros(event.at).as_secs_f64(), event.what);
        }
    }
    for violation in &outcome.violations {
        println!("{violation}");
    }
    let breaks = plan.breaks().map_or_else(String::new, |assumption| format!(", which breaks {assumption}"));
    println!(
        "{world}, {plan}{breaks}, seed {seed}: {} events in {:.0} simulated seconds, fingerprint {:016x}, {} violations",
        outcome.events.len(),
        outcome.simulated.as_secs_f64(),
        outcome.fingerprint,
        outcome.violations.len(),
    );
    ExitCode::from(u8::from(outcome.violations.iter().any(|violation| !plan.excuses(world, violation.law))))
}

fn many(args: &Args) -> ExitCode {
    // How fast the simulation itself is: the only real time here.
    let began = TokioHost.now();
    let bar = if std::io::stderr().is_terminal() && !args.json {
        indicatif::ProgressBar::new(args.seeds)
    } else {
        indicatif::ProgressBar::hidden()
    };
    let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let mut report = Report::default();
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            let tell = tell.clone();
            scope.spawn(|| {
                switch(args);
                work(args, &next, &is_over, tell);
            });
        }
        drop(tell);
        for history in told {
            bar.inc(1);
            report.add(history);
            is_over.fetch_or(is_found(args, &report), Ordering::Relaxed);
        }
    });
    bar.finish_and_clear();
    report.print(began.elapsed(TokioHost.now()), args.json);
    ExitCode::from(u8::from(report.is_bad()))
}

/// Who looks for a variant stops when it is found.
#[cfg(feature = "fatal-variants")]
fn is_found(args: &Args, report: &Report) -> bool {
    let is_wanted = |law: tenure_sim::Law| args.law.as_ref().is_none_or(|wanted| *wanted == law.to_string());
    args.variant.is_some() && report.has_broken(is_wanted)
}

#[cfg(not(feature = "fatal-variants"))]
fn is_found(_args: &Args, _report: &Report) -> bool {
    false
}

fn work(args: &Args, next: &AtomicU64, is_over: &AtomicBool, tell: mpsc::Sender<History>) {
    loop {
        let nth = next.fetch_add(1, Ordering::Relaxed);
        if nth >= args.seeds || is_over.load(Ordering::Relaxed) {
            return;
        }
        let (world, plan, seed) = args.nth(nth);
        let history = History::of(world, plan, seed, run(world, plan, seed));
        if tell.send(history).is_err() {
            return;
        }
    }
}

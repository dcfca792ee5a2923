//! The command `tenure-sim`: many seeds, one table; or one seed and its trace.

mod drawing;
mod report;

use std::{
    fs,
    io::IsTerminal,
    ops::Range,
    path::PathBuf,
    process::ExitCode,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use clap::Parser;
use tenure::backend::TokioHost;
use tenure_core::Host;
use tenure_sim::{Law, PlanKind, WorldKind, run};

use crate::report::{History, Report};

/// Runs simulated worlds and checks their histories against the laws of docs/evidence/laws.md.
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
    /// Run each of many histories twice, and fail if one seed gives two histories.
    #[arg(long)]
    twice: bool,
    /// How many threads; every history runs on one.
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, Into::into))]
    jobs: usize,
    /// Draw a single history: one lane for each lock and process, and for each server.
    #[arg(long, value_name = "FILE", requires = "seed", conflicts_with = "seeds")]
    svg: Option<PathBuf>,
    /// Draw only these seconds of it, as 10..25.
    #[arg(long, value_name = "FROM..TO", requires = "svg", value_parser = window)]
    window: Option<Range<Duration>>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
    /// Stop at the first history that breaks this law and must keep it.
    #[arg(long, ignore_case = true)]
    until: Option<Law>,
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
    if args.seed.is_some() && !std::env::args().any(|arg| arg.starts_with("--seeds")) {
        return single(&args);
    }
    many(&args)
}

fn single(args: &Args) -> ExitCode {
    let (world, plan, seed) = args.nth(0);
    let outcome = run(world, plan, seed);
    if args.trace {
        for event in &outcome.events {
            println!("{:>13.6} {:?}", Duration::from_micros(event.at).as_secs_f64(), event.what);
        }
    }
    if let Some(file) = &args.svg {
        let whole = Duration::ZERO..outcome.simulated + Duration::from_micros(1);
        let title = format!("{world}, {plan}, seed {seed}");
        let picture = drawing::picture(&title, &outcome, args.window.as_ref().unwrap_or(&whole));
        if let Err(error) = fs::write(file, picture.svg() + "\n") {
            eprintln!("tenure-sim: --svg {}: {error}", file.display());
            return ExitCode::from(2);
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

/// `10..25`, in seconds.
fn window(text: &str) -> Result<Range<Duration>, String> {
    let seconds = |text: &str| {
        let seconds: f64 = text.parse().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    };
    let ends = text.split_once("..").and_then(|(from, to)| Some(seconds(from)?..seconds(to)?));
    ends.filter(|window| window.start < window.end)
        .ok_or_else(|| "two numbers of seconds are wanted, as 10..25".into())
}

fn many(args: &Args) -> ExitCode {
    // The speed of the simulation itself: the only real time here.
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
            scope.spawn(|| work(args, &next, &is_over, tell));
        }
        drop(tell);
        for history in told {
            bar.inc(1);
            report.add(history);
            is_over.fetch_or(args.until.is_some_and(|law| report.has_broken(law)), Ordering::Relaxed);
        }
    });
    bar.finish_and_clear();
    report.print(began.elapsed(TokioHost.now()), args.json);
    ExitCode::from(u8::from(report.is_bad()))
}

fn work(args: &Args, next: &AtomicU64, is_over: &AtomicBool, tell: mpsc::Sender<History>) {
    loop {
        let nth = next.fetch_add(1, Ordering::Relaxed);
        if nth >= args.seeds || is_over.load(Ordering::Relaxed) {
            return;
        }
        let (world, plan, seed) = args.nth(nth);
        let outcome = run(world, plan, seed);
        let is_one = !args.twice || run(world, plan, seed).fingerprint == outcome.fingerprint;
        if tell.send(History::of((world, plan, seed), outcome, is_one)).is_err() {
            return;
        }
    }
}

//! `cargo xtask test`: what the tests need, then every test once, and a verdict.

use std::{process::Command, thread, time::Instant};

use crate::{
    beside::{Beside, Busy},
    clients,
    options::Options,
    runner::Runner,
    step::{Failure, Steps, now},
    tools,
    verdict::Verdict,
    workspace::{Workspace, cargo_under},
};

/// Simulated histories in a run of the tests; `cargo run --release -p tenure-sim` takes more.
const SEEDS: &str = "500";

/// What the command and the benchmarks have only if asked, and are tested with.
pub(crate) const EXTRA: &[&str] = &["--features", "tenure-cli/etcd,tenure-bench/etcd"];

/// Provides the tools and the foreign clients, then runs all rings, whatever becomes of the first of them.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), Failure> {
    let began = now();
    let mut steps = Steps::default();
    tools::provide(&mut steps)?;
    clients::provide(workspace, &mut steps)?;
    let runner = Runner::find(options);
    steps.command("build the tests", &mut runner.build())?;
    let mut verdict = Verdict::default();
    let _loops = options.is_busy.then(Busy::start).transpose()?;
    if options.is_whole() {
        all_rings(workspace, &runner, &mut verdict)?;
    } else {
        steps.work("tests", || runner.run(workspace, &mut verdict))?;
    }
    sum_up(&verdict, began, &runner.report(workspace))
}

/// The tests mostly sleep: what needs the processor runs beside them, and says what it has to say when they are done.
fn all_rings(workspace: &Workspace, runner: &Runner<'_>, verdict: &mut Verdict) -> Result<(), Failure> {
    let beside = Beside::default();
    let rings = rings()?;
    thread::scope(|scope| {
        let rest = scope.spawn(|| beside.run_all(rings));
        let tests = Steps::default()
            .work("1 of 4, tests: rules, contract, engine, reality", || runner.run(workspace, verdict));
        beside.speak();
        let rest = rest.join().expect("BUG: a ring panicked");
        tests?;
        verdict.add(rest?);
        Ok(())
    })
}

/// The other rings: what each is called, and its command. The tests have the processor first.
fn rings() -> Result<Vec<(&'static str, Command)>, Failure> {
    let gentle = || cargo_under(&["nice"]);
    let mut simulation = gentle();
    simulation.args(["run", "--quiet", "--release", "--package", "tenure-sim", "--", "--seeds", SEEDS]);
    let us = std::env::current_exe().map_err(|error| Failure::new("mutants", error.to_string()))?;
    let mut mutants = Command::new("nice");
    mutants.arg(us).arg("mutants");
    let mut docs = gentle();
    // With the features of the tests, for which everything is built by now.
    docs.args(["test", "--workspace", "--doc", "--no-fail-fast"]).args(EXTRA);
    Ok(vec![
        ("2 of 4, worlds: the simulation", simulation),
        ("3 of 4, worlds: mutants", mutants),
        ("4 of 4, examples: doc tests", docs),
    ])
}

/// The red ones with their commands, then one line.
fn sum_up(verdict: &Verdict, began: Instant, report: &str) -> Result<(), Failure> {
    print!("{}", verdict.red_ones());
    let line = verdict.line(began.elapsed(), report);
    if verdict.is_green() {
        println!("\n{line}");
        return Ok(());
    }
    Err(Failure::new("test", line))
}

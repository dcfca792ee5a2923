//! `cargo xtask test`: what the tests need, then every test once, and a verdict.

use std::{thread, time::Instant};

use crate::{
    beside::{Beside, Busy, Ring},
    clients,
    options::Options,
    runner::Runner,
    session,
    step::{Failure, Steps, now},
    tools,
    verdict::Verdict,
    workspace::{HOUSE, SIMULATION, TESTED, Workspace, cargo, cargo_under},
};

/// Simulated histories in a run of the tests; `cargo run -p tenure-sim` takes more.
const SEEDS: &str = "500";

/// Provides the tools and the foreign clients, then runs all rings, whatever becomes of the first of them.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), Failure> {
    let began = now();
    let mut steps = Steps::default();
    let runner = Runner::find(options)?;
    tools::provide(&mut steps)?;
    clients::provide(workspace, &mut steps)?;
    steps.command("build the tests", &mut runner.build())?;
    if options.is_whole() {
        steps.command("build the simulation", cargo().args(SIMULATION))?;
    }
    let _loops = options.is_busy.then(Busy::start).transpose()?;
    let verdict = if options.is_whole() {
        all_rings(workspace, &runner, &mut steps)?
    } else {
        steps.work("tests", || runner.run(workspace))?
    };
    sum_up(&verdict, began, &runner.report(workspace))
}

/// The tests mostly sleep: what needs the processor runs beside them, and says what it has to say when they are done.
fn all_rings(workspace: &Workspace, runner: &Runner<'_>, steps: &mut Steps) -> Result<Verdict, Failure> {
    let beside = Beside::default();
    let rings = rings(workspace, runner.options());
    thread::scope(|scope| {
        let rest = scope.spawn(|| beside.run_all(rings));
        let tests = steps.work("1 of 5, tests: rules, contract, engine, reality", || runner.run(workspace));
        beside.speak();
        let rest = rest.join().expect("BUG: a ring panicked");
        let mut verdict = tests?;
        verdict.add(rest?);
        Ok(verdict)
    })
}

/// The other rings. The tests have the processor first. Last comes the one that uses all processors, for nothing may be left then
/// that would run beside it.
fn rings(workspace: &Workspace, options: &Options) -> Vec<Ring> {
    // Beside busy loops, whoever yields never has its turn.
    let starter = if options.is_busy { session::own } else { session::gentle };
    let starter = starter(options.is_alone);
    let ring = |name, command, program: &str, words: &[&str]| Ring {
        name,
        command,
        again: [&[program], words].concat().join(" "),
    };
    let program = workspace.target.join("debug/tenure-sim");
    let histories = ["--seeds", SEEDS, "--twice"];
    let mut simulation = session::under(&starter, &program);
    simulation.args(histories);
    let mut mutants = cargo_under(&starter);
    mutants.args(["xtask", "mutants"]);
    // With the features of the tests, for which everything is built by now.
    let words = [&["test", "--doc", "--no-fail-fast"], TESTED].concat();
    let mut docs = cargo_under(&starter);
    docs.args(&words);
    let mut house = cargo_under(&starter);
    house.args(HOUSE);
    vec![
        ring("2 of 5, the house: tests of xtask", house, "cargo", HOUSE),
        ring("3 of 5, examples: doc tests", docs, "cargo", &words),
        ring("4 of 5, worlds: the simulation", simulation, &program.display().to_string(), &histories),
        ring("5 of 5, worlds: mutants", mutants, "cargo", &["xtask", "mutants"]),
    ]
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

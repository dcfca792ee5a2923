//! `cargo xtask test`: what the tests need, then every test.

use std::process::Command;

use crate::{
    clients, mutants,
    step::{Failure, Steps, succeeds},
    tools,
    workspace::{Workspace, cargo},
};

/// Simulated histories in a run of the tests; `cargo run --release -p tenure-sim` takes more.
const SEEDS: &str = "500";

/// What the command and the benchmarks have only if asked, and are tested with.
pub(crate) const EXTRA: &[&str] = &["--features", "tenure-cli/etcd,tenure-bench/etcd"];

/// Provides the tools and the foreign clients, then runs unit and integration tests, then the examples in the docs.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let mut steps = Steps::default();
    tools::provide(&mut steps)?;
    clients::provide(workspace, &mut steps)?;
    let has_nextest = succeeds(cargo().args(["nextest", "--version"]));
    steps.command("tests", &mut runner(has_nextest))?;
    steps.command("simulation", &mut simulation())?;
    steps.work("mutants", || mutants::run(workspace, &[]))?;
    steps.last().command("doc tests", cargo().args(["test", "--workspace", "--doc"]))
}

/// Cargo's own runner knows no process per test and no slow-test report, but is always there.
fn runner(has_nextest: bool) -> Command {
    let mut command = cargo();
    if has_nextest {
        command.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    } else {
        command.args(["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"]);
    }
    command.args(EXTRA);
    command
}

/// Worlds in which the product's own code runs, checked against the laws.
fn simulation() -> Command {
    let mut command = cargo();
    command.args(["run", "--quiet", "--release", "--package", "tenure-sim", "--", "--seeds", SEEDS]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(command: &Command) -> Vec<&str> {
        command.get_args().map(|argument| argument.to_str().unwrap()).collect()
    }

    #[test]
    fn nextest_is_taken_where_it_is_installed() {
        assert_eq!(
            arguments(&runner(true)),
            [&["nextest", "run", "--workspace", "--no-fail-fast"], EXTRA].concat()
        );
    }

    #[test]
    fn without_it_cargo_runs_all_but_the_doc_tests() {
        let all = ["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"];
        assert_eq!(arguments(&runner(false)), [&all, EXTRA].concat());
    }
}

//! `cargo xtask ring`: Tenure beside the lock libraries of other languages. Not a part of the tests: ten runs of each client take half
//! an hour.

use crate::{
    clients,
    step::{Failure, Steps},
    tools,
    workspace::{Workspace, cargo},
};

/// Provides the libraries, then plays. `words` go to `tenure-ring`.
pub(crate) fn run(workspace: &Workspace, words: &[&str]) -> Result<(), Failure> {
    let mut steps = Steps::default();
    tools::provide_ring(&mut steps)?;
    clients::provide_ring(workspace, &mut steps)?;
    let mut ring = cargo();
    ring.args(["run", "--release", "--package", "tenure-ring", "--", "--installed"]);
    ring.arg(workspace.target.join("clients")).args(words);
    steps.command("ring", &mut ring)
}

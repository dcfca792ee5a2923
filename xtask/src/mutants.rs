//! `cargo xtask mutants`: the product with one rule broken at a time, to show that the simulation notices.
//!
//! A mutant is a file in `crates/tenure-sim/mutants`: what is wrong with it, the law that it breaks, where that shows, and its
//! edits. All are applied to one scratch copy of the crates, each behind a switch that is there only; the simulation is
//! built there once, and run for each mutant: with it the law must break, without it the same histories must keep every law.

mod copy;
mod edit;
mod mutant;
mod trial;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

pub(crate) use crate::mutants::mutant::FOLDER;
use crate::{
    mutants::{mutant::Mutant, trial::Verdict},
    step::{Failure, Steps},
    tree,
    workspace::Workspace,
};

/// Tries all mutants, or those of these names.
pub(crate) fn run(workspace: &Workspace, names: &[&str]) -> Result<(), Failure> {
    let texts = tree::texts(&workspace.root)?;
    let failed = |errors: Vec<String>| Failure::new("mutants", errors.join("\n"));
    let mutants = mutant::read_all(&texts).map_err(failed)?;
    let edited = edit::apply(&mutants, &texts).map_err(failed)?;
    let chosen = choose(&mutants, names)?;
    let mut steps = Steps::default();
    let program = copy::build(workspace, &texts, edited, &mut steps)?;
    steps.last().work("one rule broken at a time", || try_all(&program, &chosen))
}

/// What keeps a mutant of this tree from being tried: it cannot be read, or its text is not there as it says.
pub(crate) fn errors(texts: &BTreeMap<String, String>) -> Vec<String> {
    let applied = mutant::read_all(texts).and_then(|mutants| edit::apply(&mutants, texts));
    applied.err().unwrap_or_default()
}

fn choose<'a>(mutants: &'a [Mutant], names: &[&str]) -> Result<Vec<&'a Mutant>, Failure> {
    if let Some(unknown) = names.iter().find(|name| mutants.iter().all(|mutant| mutant.name != **name)) {
        return Err(Failure::new("mutants", format!("there is no {FOLDER}/{unknown}.toml")));
    }
    Ok(mutants.iter().filter(|mutant| names.is_empty() || names.contains(&&*mutant.name)).collect())
}

/// Tries as many at once as there are processors, and prints a line for each when it is known what became of it.
fn try_all(program: &Path, mutants: &[&Mutant]) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let (tell, told) = mpsc::channel();
    let mut missed = Vec::new();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            let tell = tell.clone();
            scope.spawn(|| work(program, mutants, &next, tell));
        }
        drop(tell);
        for (done, (mutant, verdict)) in told.iter().enumerate() {
            println!("{:>4}/{} {} {verdict}", done + 1, mutants.len(), mutant.headline());
            if !matches!(verdict, Verdict::Caught { .. }) {
                missed.push(&*mutant.name);
            }
        }
    });
    println!(
        "mutants: {} of {} break their law, and only with them",
        mutants.len() - missed.len(),
        mutants.len()
    );
    if missed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        "mutants",
        format!("{}; crates/tenure-sim/README.md says what to do", missed.join(", ")),
    ))
}

fn work<'a>(
    program: &Path,
    mutants: &[&'a Mutant],
    next: &AtomicUsize,
    tell: mpsc::Sender<(&'a Mutant, Verdict)>,
) {
    while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
        if tell.send((mutant, trial::of(program, mutant))).is_err() {
            return;
        }
    }
}

//! The house's own chores: `cargo xtask test`, `ci`, `api`, `tidy`, `deb`, `wheel`, `bench`, `mutants`, `neighbours`, `ring`.

mod api;
mod bench;
mod beside;
mod book;
mod ci;
mod clients;
mod deb;
mod mutants;
mod neighbours;
mod options;
mod ring;
mod runner;
mod session;
mod step;
mod test;
mod tidy;
mod tools;
mod tree;
mod verdict;
mod wheel;
mod workspace;

use std::{env, process::ExitCode};

use crate::{
    options::Options,
    step::{Failure, Steps},
    workspace::Workspace,
};

const HELP: &str = "\
The house's own chores.

Usage: cargo xtask <COMMAND>

Commands:
  test [OPTION...] [FILTER]
                     Install what the tests need, then run all tests once: unit, integration, worlds, documentation.
                     With a FILTER of nextest, as 'test(pooler)', only those; --times N: each so often;
                     --busy: beside two busy loops; --one-core: on one processor. FILTER and --times want nextest
  book               Build the book from docs/ and the READMEs of the stores into target/book
  ci                 All that CI does: format, lints, every feature alone, neighbours, docs, book, tidy, then `cargo xtask test`
  api                Write down what each published library shows to its users
  tidy               Check the house rules (dependency direction, rooms, sizes, laws, leftovers, ...)
  deb [try]          Make the Debian package and check it; try: install and use it in a clean root (as root)
  wheel [try]        Make the wheel for Python, with the command; try: install and use it in clean roots (as root)
  bench [--before COMMIT] [NAME...]
                     Measure, all of it some six minutes after it was built, and make docs/evidence/performance.md of it;
                     --before: a commit in turn with this one; bench page: the page alone, from what was measured
  mutants [NAME...]  Break one rule of the product at a time, on a copy: the simulation must notice each
  neighbours         Whether cargo finds versions for a program that has the library beside another user of SQLite
  ring [OPTION...]   Install lock libraries of other languages, and let three clients of each and three of Tenure want one lock.
                     --client NAME, --seconds N, --runs N, --pauses MS,...; --write: keep what was seen
  help               Show this text
";

/// Exit code of a usage error, as sysexits.h has it and as the command `tenure` uses it.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["test", words @ ..] => match Options::parse(words) {
            Ok(options) => run(|workspace| test::run(workspace, &options)),
            Err(complaint) => return usage(&complaint),
        },
        ["ci"] => run(ci::run),
        ["api"] => run(api::run),
        ["book"] => run(book::run),
        ["tidy"] => run(tidy::run),
        ["deb"] => run(deb::run),
        ["deb", "try"] => run(deb::run_and_try),
        ["wheel"] => run(wheel::run),
        ["wheel", "try"] => run(wheel::run_and_try),
        ["neighbours"] => run(|workspace| neighbours::run(workspace, &mut Steps::default())),
        ["bench", words @ ..] => run(|workspace| bench::run(workspace, words)),
        ["ring", words @ ..] => run(|workspace| ring::run(workspace, words)),
        ["mutants", names @ ..] => run(|workspace| mutants::run(workspace, names)),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        [] => return usage("which chore?"),
        other => return usage(&format!("unknown chore: {}", other.join(" "))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a chore on this workspace, from its root.
fn run(chore: impl FnOnce(&Workspace) -> Result<(), Failure>) -> Result<(), Failure> {
    let workspace = Workspace::load()?;
    env::set_current_dir(&workspace.root)
        .map_err(|e| Failure::new("start", format!("cannot enter {}: {e}", workspace.root.display())))?;
    chore(&workspace)
}

fn usage(complaint: &str) -> ExitCode {
    eprint!("xtask: {complaint}\n\n{HELP}");
    ExitCode::from(USAGE)
}

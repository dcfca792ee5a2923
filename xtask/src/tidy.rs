//! `cargo xtask tidy`: the house rules, each a function from the tree to its violations.

mod api;
mod backends;
mod changelog;
mod circles;
mod code;
mod dependencies;
mod docs;
mod doors;
mod evidence;
pub(crate) mod house;
mod laws;
mod mutants;
mod paths;
mod performance;
mod readme;
mod rust_file;
mod switches;
mod test_programs;
mod words;

use crate::{
    book::links,
    step::Failure,
    tidy::house::{House, Violation},
    workspace::Workspace,
};

/// A house rule: what in this tree breaks it. A file that is not there is a violation, never a panic.
type Rule = fn(&House<'_>) -> Vec<Violation>;

/// Every rule, by what it says.
const RULES: &[(&str, Rule)] = &[
    ("dependencies point down", dependencies::direction),
    ("nothing shipped can be told to be wrong", switches::of_tests),
    ("every mutant fits the tree", mutants::fit),
    ("only connect.rs names backends", backends::named),
    ("files of a crate form no circle", circles::of_files),
    ("every file of tests is run", test_programs::named),
    ("no test is left out", test_programs::left_out),
    ("time, tasks and threads come through the Host", doors::clocks_and_tasks),
    ("every law is cited by code and by a test", laws::cited),
    ("every page of evidence can be read", evidence::is_data),
    ("every test that the evidence names is there", evidence::is_there),
    ("the API says what cancelling and dropping do", docs::of_api),
    ("the public API is listed", api::listed),
    ("the changelog has this version", changelog::has_version),
    ("the README's commands are the ones that work", readme::commands),
    ("pages and rustdoc have no word that readers stumble over", words::refused),
    ("the README is short", readme::length),
    ("links between pages lead somewhere", links::lead_somewhere),
    ("the book lists every page", links::listed),
    ("the page of performance is made from its data", performance::is_measured),
    ("no path of this machine", paths::of_this_machine),
];

/// Checks the tree and prints each violation as `file:line: what`.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let house = House::load(workspace)?;
    let violations = violations(&house);
    for (rule, violation) in &violations {
        println!("{violation} [{rule}]");
    }
    if violations.is_empty() {
        println!("tidy: {} rules, {} files, no violation", RULES.len(), house.file_count());
        return Ok(());
    }
    Err(Failure::new("tidy", format!("{} violations of {} rules", violations.len(), RULES.len())))
}

fn violations(house: &House<'_>) -> Vec<(&'static str, Violation)> {
    RULES
        .iter()
        .flat_map(|(name, rule)| rule(house).into_iter().map(move |violation| (*name, violation)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample;

    #[test]
    fn an_empty_tree_breaks_rules_and_panics_nowhere() {
        let workspace = sample::workspace(&[]);
        let broken: Vec<String> =
            violations(&House::sample(&workspace, &[])).iter().map(|(_, v)| v.to_string()).collect();
        for paper in ["docs/evidence/laws.md:1", "CHANGELOG.md:1", "README.md:1", ".ci/run:1"] {
            assert!(broken.iter().any(|violation| violation.starts_with(paper)), "{paper}: {broken:?}");
        }
    }
}

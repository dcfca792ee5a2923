//! The tests' runner: `cargo nextest` where it is installed, else `cargo test`.

use std::{fs, path::PathBuf, process::Command, thread::available_parallelism};

use crate::{
    beside,
    options::Options,
    session,
    step::{Failure, succeeds},
    verdict::Verdict,
    workspace::{TESTED, Workspace, cargo, cargo_under},
};

/// How many tests share a processor: most of them sleep. Of those that need one, few run at a time (`.config/nextest.toml`).
const PER_PROCESSOR: usize = 4;

/// How the tests are run.
#[derive(Debug)]
pub(crate) struct Runner<'a> {
    /// Cargo's own runner knows no process per test and no report, but is always there.
    has_nextest: bool,
    options: &'a Options,
}

impl<'a> Runner<'a> {
    /// # Errors
    /// If only the other one can do what was asked for.
    pub(crate) fn find(options: &'a Options) -> Result<Self, Failure> {
        let runner = Self { has_nextest: succeeds(cargo().args(["nextest", "--version"])), options };
        runner.must_know_its_options()?;
        Ok(runner)
    }

    fn must_know_its_options(&self) -> Result<(), Failure> {
        if self.has_nextest || self.options.is_whole() {
            return Ok(());
        }
        Err(Failure::new("test", "FILTER and --times want nextest: cargo install cargo-nextest --locked"))
    }

    pub(crate) fn options(&self) -> &'a Options {
        self.options
    }

    /// Builds them, so that this is not done while they run.
    pub(crate) fn build(&self) -> Command {
        let mut command = self.started_by(&[]);
        command.arg("--no-run");
        command
    }

    /// Where a program finds what became of each test.
    pub(crate) fn report(&self, workspace: &Workspace) -> String {
        if self.has_nextest { junit(workspace).display().to_string() } else { "what stands above".to_owned() }
    }

    /// Runs them and reads what became of them.
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<Verdict, Failure> {
        let mut command = self.command();
        if !self.has_nextest {
            let told = beside::tell(&mut command, |line| println!("{line}"))?;
            return Ok(told.into_verdict("tests", "cargo xtask test"));
        }
        let report = junit(workspace);
        // A report of another run would be a lie.
        let _ = fs::remove_file(&report);
        let program = command.get_program().display().to_string();
        let status =
            command.status().map_err(|e| Failure::new("tests", format!("cannot start {program}: {e}")))?;
        let text = fs::read_to_string(&report);
        let text = text.map_err(|_| Failure::new("tests", format!("the runner has no report: {status}")))?;
        let verdict = Verdict::of_junit(&text).map_err(|why| Failure::new("tests", why))?;
        if verdict.is_green() && !status.success() {
            return Err(Failure::new("tests", format!("no test is red, and the runner fails: {status}")));
        }
        Ok(verdict)
    }

    fn words(&self) -> Vec<&'static str> {
        if self.has_nextest {
            vec!["nextest", "run"]
        } else {
            vec!["test", "--no-fail-fast", "--lib", "--bins", "--tests"]
        }
    }

    /// In a session of its own. It ends with us.
    fn command(&self) -> Command {
        let mut command = self.started_by(&session::own(self.options.is_alone));
        command.args(self.choice());
        command
    }

    fn started_by(&self, starter: &[&str]) -> Command {
        let mut command = cargo_under(starter);
        command.args(self.words()).args(TESTED);
        command
    }

    /// Which tests, how often, and how many at once.
    fn choice(&self) -> Vec<String> {
        let processors =
            if self.options.is_alone { 1 } else { available_parallelism().map_or(1, Into::into) };
        let places = (processors * PER_PROCESSOR).to_string();
        let mut words = Vec::new();
        if self.has_nextest {
            words.extend(["--test-threads".to_owned(), places]);
            let times = self.options.times.map(|times| ["--stress-count".to_owned(), times.to_string()]);
            words.extend(times.into_iter().flatten());
            let filter = self.options.filter.clone().map(|filter| ["-E".to_owned(), filter]);
            words.extend(filter.into_iter().flatten());
        } else {
            words.extend(["--".to_owned(), "--test-threads".to_owned(), places]);
        }
        words
    }
}

/// Where nextest keeps it, whatever the target folder is.
fn junit(workspace: &Workspace) -> PathBuf {
    workspace.root.join("target/nextest/default/junit.xml")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(options: &Options, has_nextest: bool) -> String {
        let command = Runner { has_nextest, options }.command();
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        words.join(" ")
    }

    #[test]
    fn nextest_is_taken_where_it_is_installed() {
        let all = words(&Options::default(), true);
        assert!(all.contains("nextest run --workspace --exclude"), "{all}");
        let some = Options::parse(&["--one-core", "--times", "30", "test(pooler)"]).unwrap();
        let some = words(&some, true);
        assert!(some.contains("taskset --cpu-list 0"), "{some}");
        assert!(some.ends_with("--test-threads 4 --stress-count 30 -E test(pooler)"), "{some}");
    }

    #[test]
    fn without_it_cargo_runs_all_but_the_doc_tests() {
        let all = words(&Options::default(), false);
        let asked = Options::parse(&["--times", "2"]).unwrap();
        let refused = Runner { has_nextest: false, options: &asked }.must_know_its_options().unwrap_err();
        assert!(refused.to_string().contains("want nextest"), "{refused}");
        let head = ["test --no-fail-fast --lib --bins --tests", &TESTED.join(" ")].join(" ");
        assert!(all.contains(&head), "{all}");
    }
}

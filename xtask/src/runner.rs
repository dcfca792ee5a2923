//! The tests' runner: `cargo nextest` where it is installed, else `cargo test`.

use std::{env, fs, path::PathBuf, process::Command, thread::available_parallelism};

use crate::{
    beside,
    options::Options,
    step::{Failure, succeeds},
    test::EXTRA,
    verdict::Verdict,
    workspace::{Workspace, cargo, cargo_under},
};

/// Most tests sleep: so many share a processor. A test that needs one for itself takes both places (`.config/nextest.toml`).
const PER_PROCESSOR: usize = 2;

/// How the tests are run.
#[derive(Debug)]
pub(crate) struct Runner<'a> {
    /// Cargo's own runner knows no process per test and no report, but is always there.
    has_nextest: bool,
    options: &'a Options,
}

impl<'a> Runner<'a> {
    pub(crate) fn find(options: &'a Options) -> Self {
        Self { has_nextest: succeeds(cargo().args(["nextest", "--version"])), options }
    }

    /// Builds them, so that nothing is built beside them.
    pub(crate) fn build(&self) -> Command {
        let mut command = cargo();
        command.args(self.words()).args(EXTRA).arg("--no-run");
        command
    }

    /// Where a program finds what became of each test.
    pub(crate) fn report(&self, workspace: &Workspace) -> String {
        if !self.has_nextest {
            return "what stands above".to_owned();
        }
        self.junit(workspace).display().to_string()
    }

    /// Runs them and reads what became of them.
    pub(crate) fn run(&self, workspace: &Workspace, verdict: &mut Verdict) -> Result<(), Failure> {
        if !self.has_nextest {
            let told = beside::tell(&mut self.command(), |line| println!("{line}"))?;
            verdict.add(told.into_verdict("tests", "cargo xtask test"));
            return Ok(());
        }
        let report = self.junit(workspace);
        // A report of another run would be a lie.
        let _ = fs::remove_file(&report);
        let status = self.command().status().map_err(|error| Failure::new("tests", error.to_string()))?;
        let text = fs::read_to_string(&report);
        let text = text.map_err(|_| Failure::new("tests", format!("the runner has no report: {status}")))?;
        let read = Verdict::of_junit(&text).map_err(|why| Failure::new("tests", why))?;
        if read.is_green() && !status.success() {
            return Err(Failure::new("tests", format!("no test is red, and the runner fails: {status}")));
        }
        verdict.add(read);
        Ok(())
    }

    fn junit(&self, workspace: &Workspace) -> PathBuf {
        workspace.target.join("nextest/default/junit.xml")
    }

    fn words(&self) -> Vec<&'static str> {
        if self.has_nextest {
            vec!["nextest", "run", "--workspace"]
        } else {
            vec!["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"]
        }
    }

    /// In a session of its own: the kernel shares its processors among sessions first. Some kernels starve a server, whose processes
    /// have sessions of their own, for seconds if the session of its clients has a busy loop in it (decision 0047). It ends with us.
    fn command(&self) -> Command {
        let mut starter = Vec::new();
        if is_linux() {
            starter.extend(["setpriv", "--pdeathsig", "INT", "setsid", "--wait"]);
        }
        if self.options.is_alone {
            starter.extend(["taskset", "--cpu-list", "0"]);
        }
        let mut command = cargo_under(&starter);
        command.args(self.words()).args(EXTRA).args(self.choice());
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
            words.extend(self.options.filter.clone());
            words.extend(["--".to_owned(), "--test-threads".to_owned(), places]);
        }
        words
    }
}

fn is_linux() -> bool {
    env::consts::OS == "linux"
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
        assert!(all.contains("nextest run --workspace --features"), "{all}");
        let some = Options::parse(&["--one-core", "--times", "30", "test(pooler)"]).unwrap();
        let some = words(&some, true);
        assert!(some.contains("taskset --cpu-list 0"), "{some}");
        assert!(some.ends_with("--test-threads 2 --stress-count 30 -E test(pooler)"), "{some}");
    }

    #[test]
    fn without_it_cargo_runs_all_but_the_doc_tests() {
        let all = words(&Options::default(), false);
        let head = ["test --workspace --no-fail-fast --lib --bins --tests", &EXTRA.join(" ")].join(" ");
        assert!(all.contains(&head), "{all}");
    }
}

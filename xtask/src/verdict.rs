//! What became of the tests: how many passed, which are red, and how each of those is run again.

use std::{fmt::Write, time::Duration};

use roxmltree::{Document, Node};

/// Of one ring or of several.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    passed: u32,
    red: Vec<Red>,
}

/// A test that is red.
#[derive(Debug, PartialEq, Eq)]
struct Red {
    what: String,
    /// The command that runs it again.
    again: String,
}

impl Verdict {
    /// From the report of nextest, a JUnit file.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) fn of_junit(text: &str) -> Result<Self, String> {
        let report = Document::parse(text).map_err(|error| format!("the report of the tests: {error}"))?;
        let mut verdict = Self::default();
        for case in report.descendants().filter(|node| node.has_tag_name("testcase")) {
            if case.children().any(|part| part.has_tag_name("failure") || part.has_tag_name("error")) {
                verdict.red.push(Red::of_case(&case));
            } else {
                verdict.passed += 1;
            }
        }
        Ok(verdict)
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.red.extend(other.red);
    }

    pub(crate) fn is_green(&self) -> bool {
        self.red.is_empty()
    }

    /// Two lines for each: which it is, and how it is run again.
    pub(crate) fn red_ones(&self) -> String {
        self.red.iter().fold(String::new(), |mut text, red| {
            let Red { what, again } = red;
            write!(text, "\nred: {what}\n     {again}\n").expect("BUG: a string takes everything");
            text
        })
    }

    /// The one line at the end, in the words of Rust's own runner.
    pub(crate) fn line(&self, took: Duration, report: &str) -> String {
        let word = if self.is_green() { "ok" } else { "FAILED" };
        let (passed, red, took) = (self.passed, self.red.len(), took.as_secs_f64());
        format!(
            "test result: {word}. {passed} passed; {red} failed; finished in {took:.1}s; report: {report}"
        )
    }
}

impl Red {
    fn of_case(case: &Node<'_, '_>) -> Self {
        let name = case.attribute("name").unwrap_or("?");
        let binary = case.attribute("classname").unwrap_or("?");
        let again = format!("cargo xtask test 'binary_id(={binary}) & test(={name})'");
        Self { what: format!("{binary} {name}"), again }
    }
}

/// What a command said of its tests in the words of Rust's own runner.
#[derive(Debug, Default)]
pub(crate) struct Told {
    passed: u32,
    red: Vec<String>,
    pub(crate) has_succeeded: bool,
}

impl Told {
    /// A line of its output.
    pub(crate) fn hear(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            let mut words = result.split_whitespace().skip(1);
            self.passed += words.next().and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
        } else if let Some(rest) = line.strip_prefix("test ") {
            self.red.extend(rest.strip_suffix(" ... FAILED").map(str::to_owned));
        }
    }

    /// A ring without tests of its own that fails is red as a whole.
    pub(crate) fn into_verdict(self, ring: &str, again: &str) -> Verdict {
        let names = if self.has_succeeded || !self.red.is_empty() { self.red } else { vec![ring.to_owned()] };
        let red = names.into_iter().map(|what| Red { what, again: again.to_owned() }).collect();
        Verdict { passed: self.passed, red }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
        <testsuites name="nextest-run" tests="3" failures="1" errors="1" time="1.2">
          <testsuite name="tenure-cli::loss" tests="3">
            <testcase name="sqlite::a" classname="tenure-cli::loss" time="0.1"/>
            <testcase name="sqlite::b" classname="tenure-cli::loss" time="0.1"><failure type="test failure"/></testcase>
            <testcase name="sqlite::c" classname="tenure-cli::loss" time="0.1"><error type="spawn"/></testcase>
          </testsuite>
        </testsuites>"#;

    #[test]
    fn a_report_is_read() {
        let verdict = Verdict::of_junit(REPORT).unwrap();
        assert!(!verdict.is_green());
        let red = verdict.red_ones();
        assert!(red.contains("red: tenure-cli::loss sqlite::b\n"), "{red}");
        assert!(red.contains("xtask test 'binary_id(=tenure-cli::loss) & test(=sqlite::c)'"), "{red}");
        let line = verdict.line(Duration::from_millis(1_250), "a file");
        assert_eq!(line, "test result: FAILED. 1 passed; 2 failed; finished in 1.2s; report: a file");
        assert!(Verdict::of_junit("<a").is_err());
    }

    #[test]
    fn the_words_of_the_runner_are_counted() {
        let mut told = Told::default();
        for line in [
            "running 3 tests",
            "test a ... ok",
            "test b ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored",
            "test result: ok. 40 passed; 0 failed; 0 ignored",
        ] {
            told.hear(line);
        }
        let verdict = told.into_verdict("doc tests", "cargo test --doc");
        assert_eq!(verdict.red_ones(), "\nred: b\n     cargo test --doc\n");
        assert!(verdict.line(Duration::ZERO, "").starts_with("test result: FAILED. 41 passed; 1 failed"));
    }

    #[test]
    fn a_ring_without_tests_is_red_as_a_whole() {
        let verdict = Told::default().into_verdict("mutants", "cargo xtask mutants");
        assert_eq!(verdict.red_ones(), "\nred: mutants\n     cargo xtask mutants\n");
        let green = Told { has_succeeded: true, ..Told::default() };
        assert!(green.into_verdict("mutants", "").is_green());
    }
}

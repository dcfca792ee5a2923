//! Commands as named, timed steps of a chore; the first failure ends it.

use std::{
    fmt, io,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Which step failed, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    step: String,
    why: String,
}

impl Failure {
    /// The step's name and the reason, lower case, one line where possible.
    pub(crate) fn new(step: impl Into<String>, why: impl Into<String>) -> Self {
        Self { step: step.into(), why: why.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step `{}` failed: {}", self.step, self.why.trim_end())
    }
}

/// Runs steps one after another, each under a heading, each followed by the time it took.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Nothing of ours may follow the runner's own last words, so the last step goes without its time.
    is_last: bool,
}

impl Steps {
    /// Says that the next step is the last one: what it prints is what stands at the end.
    pub(crate) fn last(&mut self) -> &mut Self {
        self.is_last = true;
        self
    }

    /// Runs a command with our own input and output.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) -> Result<(), Failure> {
        self.work(name, || {
            let status = command.status().map_err(|e| {
                Failure::new(name, format!("cannot start {}: {e}", command.get_program().display()))
            })?;
            if status.success() { Ok(()) } else { Err(Failure::new(name, status.to_string())) }
        })
    }

    /// Runs work of ours.
    pub(crate) fn work<T>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        println!("\n== {name}");
        let started = now();
        let done = work()?;
        if !self.is_last {
            println!("== {name}: {}", seconds(started.elapsed()));
        }
        Ok(done)
    }
}

/// Whether a command starts and succeeds; its output is thrown away.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[expect(clippy::disallowed_methods, reason = "no lease hangs on how long a chore took")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// What a command prints.
///
/// # Errors
/// If it cannot be started, or fails: with its last words.
pub(crate) fn output_of(command: &mut Command) -> Result<String, Failure> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|e| Failure::new(&name, format!("cannot be started: {e}")))?;
    if !output.status.success() {
        return Err(Failure::new(name, String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// A file that cannot be read or written.
pub(crate) fn io(path: &Path, error: &io::Error) -> Failure {
    Failure::new("files", format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_step() {
        let mut command = Command::new("false");
        let failure = Steps::default().command("clippy", &mut command).unwrap_err();
        assert!(failure.to_string().starts_with("step `clippy` failed: exit status"), "{failure}");
    }

    #[test]
    fn a_missing_program_is_a_failure_that_names_it() {
        let mut command = Command::new("no-such-program-here");
        let failure = Steps::default().command("doc", &mut command).unwrap_err();
        assert!(failure.to_string().contains("cannot start no-such-program-here"), "{failure}");
    }

    #[test]
    fn success_goes_on() {
        assert_eq!(Steps::default().command("fmt", &mut Command::new("true")), Ok(()));
        assert!(succeeds(&mut Command::new("true")));
        assert!(!succeeds(&mut Command::new("false")));
        assert!(!succeeds(&mut Command::new("no-such-program-here")));
    }

    #[test]
    fn time_is_said_in_seconds() {
        assert_eq!(seconds(Duration::from_millis(1_250)), "1.2 s");
    }
}

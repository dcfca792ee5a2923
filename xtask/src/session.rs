//! Programs in sessions of their own: Linux shares its processors among sessions first.

use std::{env, ffi::OsStr, process::Command};

/// What a program is started with that gets a session of its own and ends with us.
///
/// Some kernels starve a server, whose processes have sessions of their own, for seconds if the session of its clients has a busy
/// loop in it: somebody's shell may (`docs/decisions/builds-and-tests.md`).
pub(crate) fn own(is_alone: bool) -> Vec<&'static str> {
    let mut words = Vec::new();
    if env::consts::OS == "linux" {
        words.extend(["setpriv", "--pdeathsig", "TERM", "setsid", "--wait"]);
    }
    if is_alone {
        words.extend(["taskset", "--cpu-list", "0"]);
    }
    words
}

/// The same, for one that leaves the processor to others: `nice` counts inside of a session only, so the session yields as well.
pub(crate) fn gentle(is_alone: bool) -> Vec<&'static str> {
    let mut words = own(is_alone);
    words.extend(["sh", "-c", YIELDING, "sh"]);
    words
}

/// A program that is started by the one of these words.
pub(crate) fn under(starter: &[&str], program: impl AsRef<OsStr>) -> Command {
    let Some((first, words)) = starter.split_first() else { return Command::new(program) };
    let mut command = Command::new(first);
    command.args(words).arg(program);
    command
}

const YIELDING: &str = "echo 19 2>/dev/null >/proc/self/autogroup; exec nice \"$@\"";

#[cfg(test)]
mod tests {
    use super::*;

    fn niceness(starter: &[&str]) -> String {
        let script = "nice; cat /proc/self/autogroup 2>/dev/null";
        let output = under(starter, "sh").args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Our own, which is not zero for whoever started us under `nice`.
    fn own_niceness() -> i32 {
        let said = niceness(&["env"]);
        said.lines().next().and_then(|line| line.parse().ok()).unwrap()
    }

    #[test]
    fn a_gentle_session_yields_to_others() {
        let said = niceness(&gentle(false));
        let expected = (own_niceness() + 10).min(19);
        assert!(said.starts_with(&format!("{expected}\n")), "{said}");
        assert!(said.lines().nth(1).is_none_or(|group| group.ends_with("nice 19")), "{said}");
    }

    #[test]
    fn one_of_the_tests_does_not() {
        let said = niceness(&own(true));
        assert!(said.starts_with(&format!("{}\n", own_niceness())), "{said}");
    }
}

//! Work beside the tests: rings that keep what they say until it is their turn to speak, and loops that only want the processor.

use std::{
    io::{self, BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    step::{Failure, now, seconds},
    verdict::{Told, Verdict},
};

/// A ring of tests, as one command.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) name: &'static str,
    pub(crate) command: Command,
    /// What a person says to run it again.
    pub(crate) again: String,
}

/// What was said while others spoke, or nothing once it may be said at once.
#[derive(Debug)]
pub(crate) struct Beside(Mutex<Option<Vec<String>>>);

impl Default for Beside {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Beside {
    /// Runs one after the other; one that is red does not keep the next one from running.
    pub(crate) fn run_all(&self, rings: Vec<Ring>) -> Result<Verdict, Failure> {
        let mut verdict = Verdict::default();
        for Ring { name, mut command, again } in rings {
            let began = now();
            self.say(format!("\n== {name}"));
            let told = tell(&mut command, |line| self.say(line))?;
            self.say(format!("== {name}: {}", seconds(began.elapsed())));
            verdict.add(told.into_verdict(name, &again));
        }
        Ok(verdict)
    }

    /// From here on all is said at once.
    pub(crate) fn speak(&self) {
        let mut held = self.held();
        held.take().into_iter().flatten().for_each(|line| println!("{line}"));
    }

    fn say(&self, line: String) {
        let mut held = self.held();
        match &mut *held {
            Some(lines) => lines.push(line),
            None => println!("{line}"),
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Vec<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a command, hands on each of its lines, and reads what became of its tests.
pub(crate) fn tell(command: &mut Command, mut say: impl FnMut(String)) -> Result<Told, Failure> {
    let program = command.get_program().display().to_string();
    let failed = |error: io::Error| Failure::new("tests", format!("cannot run {program}: {error}"));
    let (reader, writer) = io::pipe().map_err(failed)?;
    let theirs = writer.try_clone().map_err(failed)?;
    let spawned = command.stdin(Stdio::null()).stdout(writer).stderr(theirs).spawn();
    // Our ends of the pipe are in the command; it ends only without them.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Ended(spawned.map_err(failed)?);
    let mut told = Told::default();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line.map_err(failed)?).into_owned();
        told.hear(&line);
        say(line);
    }
    told.has_succeeded = child.0.wait().map_err(failed)?.success();
    Ok(told)
}

/// Two loops in sessions of their own that want all they can get; they end with this.
#[derive(Debug)]
pub(crate) struct Busy {
    _loops: [Ended; 2],
}

impl Busy {
    pub(crate) fn start() -> Result<Self, Failure> {
        let one = || {
            let mut shell = Command::new("setsid");
            shell.args(["setpriv", "--pdeathsig", "KILL", "sh", "-c", "while :; do :; done"]);
            shell
                .spawn()
                .map(Ended)
                .map_err(|e| Failure::new("busy loops", format!("cannot start setsid: {e}")))
        };
        Ok(Self { _loops: [one()?, one()?] })
    }
}

/// A process that does not outlive this.
#[derive(Debug)]
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // OK to ignore because a process that has ended cannot be killed, and is buried by the wait.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn ring(name: &'static str, script: &str) -> Ring {
        Ring { name, command: shell(script), again: format!("again {name}") }
    }

    #[test]
    fn both_streams_are_handed_on_in_their_order() {
        let mut lines = Vec::new();
        let told = tell(&mut shell("echo a; echo b >&2; echo c"), |line| lines.push(line)).unwrap();
        assert_eq!(lines, ["a", "b", "c"]);
        assert!(told.has_succeeded);
    }

    #[test]
    fn a_red_ring_keeps_no_other_from_running() {
        let beside = Beside::default();
        let verdict = beside.run_all(vec![
            ring("red", "echo 'test a::b ... FAILED'; exit 1"),
            ring("green", "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'"),
        ]);
        let verdict = verdict.unwrap();
        assert!(!verdict.is_green());
        assert!(verdict.red_ones().contains("a::b\n     again red"), "{}", verdict.red_ones());
        assert!(verdict.line(now().elapsed(), "").contains("3 passed; 1 failed"));
        let held = beside.held().take().unwrap();
        assert_eq!((held[0].as_str(), held.len()), ("\n== red", 6));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let failure = tell(&mut Command::new("no-such-program-here"), drop).unwrap_err();
        assert!(failure.to_string().contains("no-such-program-here"), "{failure}");
    }
}

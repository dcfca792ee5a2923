//! The play: two holders, one of them stopped past its lease.

use std::{
    env,
    error::Error,
    fs,
    io::{BufRead, BufReader, Lines, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use crate::holder::{FENCED, PLAIN, STOP, TTL, VERB, WRITE, content};

/// Plays it, and fails if anything happens that should not.
pub(crate) fn run(url: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut first = Actor::start("first", url, folder)?;
    let former = first.token()?;
    println!("first   holds the lock, token {former}, and has looked: its lease is good, it may write");
    first.stop()?;
    println!("        It is stopped there (SIGSTOP), for longer than its lease of {} s", TTL.as_secs());

    let mut second = Actor::start("second", url, folder)?;
    let later = second.token()?;
    println!("second  holds the lock, token {later}");
    let by_second = second.write()?;

    println!("        The first goes on (SIGCONT) with what it was about to do");
    first.go_on()?;
    let by_first = first.write()?;

    let is_refused =
        format!("{FENCED}: token {former} is refused: a later holder with token {later} has been here");
    let [fenced, plain] = [FENCED, PLAIN].map(|file| format!("{file}: written"));
    expect("the token grows", former < later)?;
    expect("the second writes both files", by_second == [fenced, plain.clone()])?;
    expect("the first is refused at one file and not at the other", by_first == [is_refused, plain])?;
    show_files(folder)
}

fn show_files(folder: &Path) -> Result<(), Box<dyn Error>> {
    expect("the fence held", fs::read_to_string(folder.join(FENCED))? == content("second"))?;
    expect("the late write went through", fs::read_to_string(folder.join(PLAIN))? == content("first"))?;
    println!("\n{FENCED} has what the second wrote: the late write did no harm");
    println!("{PLAIN} has what the first wrote: the second's work is lost");
    Ok(())
}

fn expect(what: &str, is_so: bool) -> Result<(), Box<dyn Error>> {
    if is_so { Ok(()) } else { Err(format!("this should be so, and is not: {what}").into()) }
}

/// A holder's process. It does not outlive the play.
struct Actor {
    name: &'static str,
    child: Child,
    ear: ChildStdin,
    mouth: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    fn start(name: &'static str, url: &str, folder: &Path) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(env::current_exe()?);
        command.args([VERB, name, url]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (ear, mouth) = (child.stdin.take(), child.stdout.take());
        // OK because both were asked for.
        let (ear, mouth) = (ear.expect("BUG: a pipe to it"), mouth.expect("BUG: a pipe from it"));
        Ok(Self { name, child, ear, mouth: BufReader::new(mouth).lines() })
    }

    /// What it says next; it says why it failed on the standard error.
    fn says(&mut self) -> Result<String, Box<dyn Error>> {
        let line = self.mouth.next().ok_or_else(|| format!("the {} ended too soon", self.name))?;
        Ok(line?)
    }

    fn token(&mut self) -> Result<u64, Box<dyn Error>> {
        let line = self.says()?;
        Ok(line.strip_prefix("holds ").unwrap_or(&line).parse()?)
    }

    /// Lets it write, and passes on what it says of both files.
    fn write(&mut self) -> Result<[String; 2], Box<dyn Error>> {
        writeln!(self.ear, "{WRITE}")?;
        let said = [self.says()?, self.says()?];
        for line in &said {
            println!("{:<7} {line}", self.name);
        }
        let ended = self.child.wait()?;
        expect("a holder ends well", ended.success())?;
        Ok(said)
    }

    /// Returns when it does nothing any more.
    fn stop(&mut self) -> Result<(), Box<dyn Error>> {
        writeln!(self.ear, "{STOP}")?;
        let state = waitpid(self.pid()?, Some(WaitPidFlag::WUNTRACED))?;
        expect("a process can be stopped", matches!(state, WaitStatus::Stopped(..)))
    }

    fn go_on(&self) -> Result<(), Box<dyn Error>> {
        Ok(kill(self.pid()?, Signal::SIGCONT)?)
    }

    fn pid(&self) -> Result<Pid, Box<dyn Error>> {
        Ok(Pid::from_raw(self.child.id().try_into()?))
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // OK to ignore because one that has ended is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! `Daemon`: the process of a server that a test starts, stops, kills and starts again.

use std::{
    cell::RefCell,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::patience::{eventually, slowness};

/// Starts a server of this name, in up to `tries` attempts, and returns what `start` returned. An attempt may fail:
/// another process may take the port between the check for a free one and the start.
///
/// # Panics
/// If no attempt succeeds; the message has the end of its log.
pub(crate) fn started<T>(name: &str, tries: usize, mut start: impl FnMut() -> Result<T, String>) -> T {
    let mut log = String::new();
    for _ in 0..tries {
        match start() {
            Ok(server) => return server,
            Err(words) => log = words,
        }
    }
    panic!("{name} does not start. The end of its log:\n{log}")
}

/// The output of a command that must succeed, without white space at its end.
///
/// # Panics
/// If it does not start, or fails; the message has its errors.
#[track_caller]
pub(crate) fn checked(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| {
        panic!("cannot start {}: {error}; `cargo xtask test` installs it", command.get_program().display())
    });
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {words}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// The process of one server, of any kind. It dies with the test.
#[derive(Debug, Default)]
pub struct Daemon(Mutex<Run>);

/// The process, and how often it was started.
#[derive(Debug, Default)]
struct Run {
    child: Option<Child>,
    starts: u32,
}

impl Daemon {
    /// Starts the process and waits until it serves. If it ends before that, the error is the end of its log.
    ///
    /// `command` receives the log file of this start and makes the command. Output that the server does not write
    /// there itself goes to that file too. `serves` receives the log file and returns whether the server serves: on
    /// its port, another process may answer that was faster.
    ///
    /// # Panics
    /// If there is a process already, its program is missing, or it neither serves nor ends in time.
    pub fn launch(
        &self,
        folder: &Path,
        command: impl FnOnce(&Path) -> Command,
        mut serves: impl FnMut(&Path) -> bool,
    ) -> Result<(), String> {
        let mut run = self.locked();
        assert!(run.child.is_none(), "the server in {} runs already", folder.display());
        run.starts += 1;
        let log = log(folder, run.starts);
        let mut command = command(&log);
        let program = command.get_program().display().to_string();
        // Kept immediately, so that it is killed even if it never answers.
        let child = run.child.insert(spawn(&mut command, &log));
        let is_up = eventually(&format!("{program} serves"), PATIENCE, || {
            let has_ended = child.try_wait().expect("a child can be asked").is_some();
            if has_ended { Some(false) } else { serves(&log).then_some(true) }
        });
        if is_up {
            return Ok(());
        }
        run.child = None;
        Err(last_lines(&log))
    }

    /// The end of its log.
    pub(crate) fn last_words(&self, folder: &Path) -> String {
        last_lines(&log(folder, self.locked().starts))
    }

    /// Launches it until it serves: another process that checks for a free port may have this one for a moment.
    ///
    /// # Panics
    /// If it does not serve in time.
    pub fn insist(&self, mut launch: impl FnMut() -> Result<(), String>) {
        let deadline = Instant::now() + PATIENCE * slowness();
        while let Err(words) = launch() {
            assert!(Instant::now() < deadline, "no new start. Its log:\n{words}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The id of its process.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.locked().child.as_ref().expect("a server that runs").id()
    }

    /// Whether there is a process: it was not killed, and has not ended by itself.
    pub fn is_running(&self) -> bool {
        self.locked().child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Kills it as a crash does, and waits until it has ended. It may be stopped, or have ended already.
    pub fn kill(&self) {
        if let Some(mut child) = self.locked().child.take() {
            // OK to ignore because a child that has ended cannot be killed, and the wait reaps it.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Suspends it: the process does nothing, and its connections stay open. Returns when it has stopped.
    ///
    /// # Panics
    /// If it was killed.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let facts = PathBuf::from(format!("/proc/{}/stat", self.pid()));
        eventually("a stopped process does nothing", PATIENCE, || {
            // The state follows the name, which ends with the last bracket. No file: this is not Linux.
            let Ok(text) = fs::read_to_string(&facts) else { return Some(()) };
            text.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T')).then_some(())
        });
    }

    /// Continues it after a [`stop`](Self::stop).
    ///
    /// # Panics
    /// If it was killed.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it was killed.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a process id is an i32");
        // OK because the child is not reaped while it is in `child`, so the number is still its own.
        kill(Pid::from_raw(pid), signal).expect("our own child can be signalled");
    }

    fn locked(&self) -> MutexGuard<'_, Run> {
        tenure_core::locked(&self.0)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

thread_local! {
    static LASTING: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Processes that `start` starts may outlive this one. Each is written to the file `processes`, with its folder. Each
/// has its own session. In the session of this process, those that it leaves behind would receive a hangup if one of
/// them is stopped.
pub(crate) fn lasting<T>(processes: &Path, start: impl FnOnce() -> T) -> T {
    LASTING.set(Some(processes.to_owned()));
    let started = start();
    LASTING.set(None);
    started
}

fn apart(command: &Command) -> Command {
    let mut apart = Command::new("setsid");
    apart.arg(command.get_program()).args(command.get_args());
    apart.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        apart.current_dir(folder);
    }
    apart
}

fn spawn(command: &mut Command, log: &Path) -> Child {
    let processes = LASTING.with_borrow(Clone::clone);
    if processes.is_some() && cfg!(target_os = "linux") {
        *command = apart(command);
    }
    let file = || append(log);
    command.stdin(Stdio::null()).stdout(file()).stderr(file());
    let program = command.get_program().display().to_string();
    let child = command
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {program}: {error}; `cargo xtask test` installs it"));
    if let Some((processes, folder)) = processes.as_deref().zip(command.get_current_dir()) {
        let line = format!("{} {}\n", child.id(), folder.display());
        append(processes).write_all(line.as_bytes()).expect("a file of the run");
    }
    child
}

fn append(file: &Path) -> File {
    File::options().create(true).append(true).open(file).expect("a file in a folder of ours")
}

fn log(folder: &Path, start: u32) -> PathBuf {
    folder.join(format!("log-{start}"))
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_else(|error| format!("no log: {error}"));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// How long a server may take to start. A Java server on a busy machine needs some of it.
const PATIENCE: Duration = Duration::from_secs(30);

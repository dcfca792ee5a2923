//! `tenure hold`: the lock for the rest of a script, `eval "$(tenure hold NAME || echo exit 70)"`.
//!
//! The shell opens a FIFO and keeps it open: so the script, and all that it starts, has the lock, and the kernel tells us when
//! the last of them has ended, however it ended. Two processes of ours stand for the script:
//! * the **guard** reads the FIFO. It is the parent of a `tenure run`, which does all that concerns the lock;
//! * the **stand-in** is the command of that run.
//!
//! ```text
//!   script ──FIFO──▶ guard ──▶ tenure run ──▶ stand-in
//!          ◀─────── TERM, KILL ───────────────┘
//! ```
//! **Why the script ends before another owner has the lock (L1).** The run ends its command before the lease ends, or its watcher
//! does: first TERM, which the stand-in passes on to the script, then KILL, which the guard sees as the end of the stand-in: it
//! kills the script. The stand-in does so itself shortly before, because the guard may be stopped. If the guard is killed, the stand-in reads the end of its line, and kills the script before the run
//! releases the lock.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File, Permissions},
    io::{self, BufRead, BufReader, ErrorKind, Read, Write, stdin, stdout},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
            process::{CommandExt, parent_id},
        },
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    time::Duration,
};

use nix::{
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::SignalFd,
        stat::Mode,
    },
    unistd::{Pid, dup2_stdout, mkfifo, setsid},
};
use rustix::process::{PidfdFlags, pidfd_open};
use tempfile::TempDir;
use tenure::backend::{Host, Moment, TokioHost};
use tokio::{io::AsyncReadExt, net::unix::pipe::Receiver};

use crate::{
    args::Hold,
    exit::{self, Stop},
    nested,
    processes::{self, Process, ProcessKey, raw},
    signals::Signals,
    view,
};

/// The guard: `__hold GRACE WORDS`, with the words of the run.
pub(crate) const GUARD: &str = "__hold";
/// The stand-in: `__script GRACE SCRIPT`, with how long after TERM it kills the script itself, in ms.
pub(crate) const STAND_IN: &str = "__script";

/// Acquires the lock, leaves a guard with it, and prints what the shell evaluates.
pub(crate) async fn hold(args: &Hold) -> Result<u8, Stop> {
    let held = ask(args.grace()).await;
    match &held {
        Ok(0) => {}
        Ok(code) => refuse(*code),
        Err(stop) => refuse(stop.code()),
    }
    held
}

/// What the shell evaluates without the lock: the status of a substitution in `eval` is lost, and the script must not go on.
pub(crate) fn refuse(code: u8) {
    // OK to fail: then no shell evaluates it.
    let _ = view::try_print(&format!("exit {code}"));
}

async fn ask(grace: Duration) -> Result<u8, Stop> {
    if parent_id() == 1 {
        let line = "hold: the kernel lets no process end process 1, so the script could not be stopped when the lock is lost: \
             start the container with an init (docker run --init), or use `tenure run`";
        return Err(Stop::usage(line));
    }
    let mut signals = Signals::listen()?;
    let mut guard = start_guard(grace).map_err(|e| Stop::internal(format!("cannot start a process: {e}")))?;
    let output = guard.stdout.take().expect("BUG: it has a pipe");
    let mut output = Receiver::from_owned_fd(output.into())
        .map_err(|e| Stop::internal(format!("cannot read from a process: {e}")))?;
    let mut code = Vec::new();
    tokio::select! {
        biased;
        // The guard sees that its output is no longer read, and ends.
        signal = signals.asked_to_end() => return Err(Stop::signalled(signal)),
        _ = output.read_to_end(&mut code) => {}
    }
    if !code.is_empty() {
        // If this fails, no shell opens the FIFO, and the guard releases the lock.
        view::print_exactly(&String::from_utf8_lossy(&code))?;
        return Ok(0);
    }
    let ended = guard.wait().ok().and_then(|status| u8::try_from(status.code()?).ok());
    // The run has printed the reason.
    Ok(ended.filter(|code| *code != 0).unwrap_or(exit::INTERNAL))
}

fn start_guard(grace: Duration) -> io::Result<Child> {
    Command::new(processes::ourselves()?)
        .arg0("tenure")
        .args([GUARD, &grace.as_millis().to_string()])
        .args(as_run(std::env::args_os().skip(1)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
}

/// The same words for a `run` that holds the lock for the process that called this one.
fn as_run(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let (mut is_value, mut is_done) = (false, false);
    words.flat_map(move |word| {
        let is_verb = !is_done && !is_value && word == "hold";
        is_value = word == "--url";
        is_done |= is_verb;
        match is_verb {
            true => vec!["run".into(), "--script".into(), parent_id().to_string().into()],
            false => vec![word],
        }
    })
}

/// `__hold`.
pub(crate) fn guard(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let grace = words.next().unwrap_or_default();
    let guarded = Guard::start(grace, words).map(Guard::until_the_end);
    guarded.unwrap_or_else(|e| exit::say(&Stop::internal(format!("cannot guard the script: {e}"))))
}

struct Guard {
    fifo: Fifo,
    run: Child,
    /// To the stand-in.
    line: Option<ChildStdin>,
    /// From the stand-in.
    told: BufReader<ChildStdout>,
    /// Of the stand-in, once it is known.
    life: Option<OwnedFd>,
}

/// What the stand-in says when it has been started, which is when the lock is held.
#[derive(serde::Serialize, serde::Deserialize)]
struct Ready {
    pid: i32,
    variables: BTreeMap<String, String>,
}

impl Guard {
    fn start(grace: OsString, words: impl Iterator<Item = OsString>) -> io::Result<Self> {
        // The shell's job, its terminal and its signals are not for us.
        setsid()?;
        let fifo = Fifo::new(close_inherited()?)?;
        let mut run = Command::new(processes::ourselves()?)
            .arg0("tenure")
            .args(words)
            .args(["--", "/proc/self/exe", STAND_IN])
            .arg(grace)
            .arg(fifo.script(None).to_json())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (line, told) = (run.stdin.take(), run.stdout.take().expect("BUG: it has a pipe"));
        Ok(Self { fifo, run, line, told: BufReader::new(told), life: None })
    }

    fn until_the_end(mut self) -> ExitCode {
        let ready = self.ready();
        let code = match ready {
            Some(ready) => self.hold(&ready),
            None => self.ended(),
        };
        ExitCode::from(code)
    }

    /// Waits until the lock is held. `None` if it is not, or if no process waits for it any more.
    fn ready(&mut self) -> Option<Ready> {
        let is_read = {
            let output = stdout();
            let mut ready = [
                PollFd::new(self.told.get_ref().as_fd(), PollFlags::POLLIN),
                PollFd::new(output.as_fd(), PollFlags::empty()),
            ];
            while poll(&mut ready, PollTimeout::NONE) == Err(nix::errno::Errno::EINTR) {}
            !happened(&ready[1])
        };
        if !is_read {
            processes::send_to(pid_of(&self.run), Signal::SIGTERM as i32);
            return None;
        }
        let mut line = String::new();
        self.told.read_line(&mut line).ok()?;
        let ready: Ready = serde_json::from_str(&line).ok()?;
        self.life = raw(Pid::from_raw(ready.pid)).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Some(ready)
    }

    fn hold(&mut self, ready: &Ready) -> u8 {
        let Some(life) = self.life.take() else { return self.leave() };
        let printed = stdout().write_all(self.fifo.code(ready).as_bytes()).and_then(|()| stdout().flush());
        // What follows is read until its end.
        let is_told = printed.is_ok()
            && File::options().write(true).open("/dev/null").is_ok_and(|null| dup2_stdout(null).is_ok());
        let shell = if is_told { self.fifo.first(&life) } else { None };
        self.fifo.remove();
        let script = self.fifo.script(shell);
        if shell.is_none() {
            // It may have opened the FIFO a moment ago, and go on.
            if !self.fifo.is_unused() {
                script.kill();
            }
            return self.leave();
        }
        self.say(&format!("{}\n", script.to_json()));
        match self.fifo.until_closed(&life) {
            Closed::ByScript => self.leave(),
            Closed::ByRun => {
                // The lock is lost, or the run was killed.
                script.kill();
                self.ended()
            }
        }
    }

    fn say(&mut self, what: &str) {
        // If it has ended, that is seen.
        let _ = self.line.as_mut().map(|line| line.write_all(what.as_bytes()));
    }

    /// The stand-in ends, and the run releases the lock.
    fn leave(&mut self) -> u8 {
        self.say("end\n");
        self.line = None;
        self.ended()
    }

    fn ended(&mut self) -> u8 {
        self.line = None;
        let status = self.run.wait().ok();
        status.and_then(|status| u8::try_from(status.code()?).ok()).unwrap_or(exit::INTERNAL)
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("BUG: a pid is positive and fits"))
}

fn happened(polled: &PollFd<'_>) -> bool {
    polled.revents().is_some_and(|events| !events.is_empty())
}

/// Why a guard ends.
enum Closed {
    /// No process has the FIFO open for writing any more.
    ByScript,
    /// The stand-in has ended.
    ByRun,
}

/// The FIFO that the script keeps open.
struct Fifo {
    /// Until a shell has opened it, or is to open it no more.
    folder: Option<TempDir>,
    path: PathBuf,
    end: File,
    id: (u64, u64),
    /// Under which number the shell is to open it.
    number: u8,
}

impl Fifo {
    fn new(number: u8) -> io::Result<Self> {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
        let folder = folder.map_or_else(std::env::temp_dir, PathBuf::from);
        let mut draft = tempfile::Builder::new();
        draft.prefix("tenure-hold.").permissions(Permissions::from_mode(0o700));
        let folder = draft.tempdir_in(folder).or_else(|_| draft.tempdir())?;
        let path = folder.path().join(NAME);
        let made = mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).map_err(io::Error::from);
        let end =
            made.and_then(|()| File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path));
        let end = end?;
        let facts = end.metadata()?;
        Ok(Self { folder: Some(folder), path, end, id: (facts.dev(), facts.ino()), number })
    }

    /// What the shell evaluates. It writes its own id: only the shell itself, or its subshell, knows which process it is.
    fn code(&self, ready: &Ready) -> String {
        let (path, number) = (quoted(&self.path.to_string_lossy()), self.number);
        let names: Vec<&str> = ready.variables.keys().map(String::as_str).collect();
        let exports: String = ready
            .variables
            .iter()
            .map(|(name, value)| format!("export {name}={}\n", quoted(value)))
            .collect();
        let before = std::env::var(nested::VARIABLE).map_or_else(
            |_| format!("unset {}", nested::VARIABLE),
            |value| format!("export {}={}", nested::VARIABLE, quoted(&value)),
        );
        format!(
            "if [ -p {path} ] && exec {number}>{path} && command sh -c 'echo $PPID' >&{number}; then :; else\n\
             echo 'tenure: the lock was not held until the shell took it [exit 70]' >&2; exit 70; fi\n\
             {exports}\
             tenure_release() {{ exec {number}>&-; unset {}; {before}; tenure_release() {{ :; }}; }}\n",
            names.join(" "),
        )
    }

    /// Waits for the id of the script. `None` if no shell opens the FIFO, or if the stand-in ends before.
    fn first(&mut self, stand_in: &OwnedFd) -> Option<Pid> {
        let until = TokioHost.now() + FIRST;
        let mut text = Vec::new();
        loop {
            let left = until.remaining(TokioHost.now());
            let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            let mut there = [0; 32];
            match self.end.read(&mut there) {
                Ok(count) => text.extend_from_slice(&there[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
            if let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let pid: i32 = str::from_utf8(&text[..end]).ok()?.parse().ok()?;
                return (pid > 1).then(|| Pid::from_raw(pid));
            }
            if left.is_zero() || has_ended(stand_in) {
                return None;
            }
            // No writer yet, or no whole line: the end of the file is no event to wait for.
            let short = wait.min(PollTimeout::from(20_u8));
            let mut ready = [PollFd::new(self.end.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut ready, short);
            rest(2);
        }
    }

    /// What has the lock, with its shell once that is known.
    fn script(&self, shell: Option<Pid>) -> Script {
        let guard = processes::key(nix::unistd::getpid());
        Script { shell: shell.map(processes::key), fifo: self.id, guard }
    }

    fn remove(&mut self) {
        // The folder goes with it.
        self.folder = None;
    }

    /// No process has it open for writing.
    fn is_unused(&mut self) -> bool {
        matches!(self.end.read(&mut [0; 64]), Ok(0))
    }

    fn until_closed(&mut self, stand_in: &OwnedFd) -> Closed {
        loop {
            // What is written to it says nothing.
            match self.end.read(&mut [0; 64]) {
                Ok(0) => return Closed::ByScript,
                Err(error)
                    if error.kind() != ErrorKind::WouldBlock && error.kind() != ErrorKind::Interrupted =>
                {
                    return Closed::ByRun;
                }
                _ => {}
            }
            let mut ready = [
                PollFd::new(self.end.as_fd(), PollFlags::POLLIN),
                PollFd::new(stand_in.as_fd(), PollFlags::POLLIN),
            ];
            let _ = poll(&mut ready, PollTimeout::NONE);
            if happened(&ready[1]) {
                return Closed::ByRun;
            }
        }
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut ready, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// What has the lock: the shell, its descendants, and each process that has the FIFO open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Script {
    shell: Option<ProcessKey>,
    /// The device and the number of the FIFO.
    fifo: (u64, u64),
    /// It and its descendants, all of ours, are not part of the script, though the script may have adopted them.
    guard: ProcessKey,
}

impl Script {
    fn to_json(self) -> String {
        serde_json::to_string(&self).expect("BUG: numbers are JSON")
    }

    /// As far as they are seen.
    fn processes(&self) -> Vec<Process> {
        let mut all = self.family();
        let known: Vec<Pid> = all.iter().chain(&self.ours()).map(Process::pid).collect();
        all.extend(self.openers().into_iter().filter(|process| !known.contains(&process.pid())));
        all
    }

    /// Those that are found without a look at every process of the machine.
    fn family(&self) -> Vec<Process> {
        let ours: Vec<Pid> = self.ours().iter().map(Process::pid).collect();
        let mut all = self.shell.map(processes::of_script).unwrap_or_default();
        all.retain(|process| !ours.contains(&process.pid()));
        all
    }

    fn ours(&self) -> Vec<Process> {
        processes::of_script(self.guard)
    }

    fn openers(&self) -> Vec<Process> {
        // By its name first: to look at a file of another file system may take for ever.
        let is_named = |path: &Path| {
            let is_it = |to: PathBuf| to.to_string_lossy().trim_end_matches(" (deleted)").ends_with(NAME);
            fs::read_link(path).is_ok_and(is_it)
        };
        let is_it = |path: &Path| {
            is_named(path) && fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == self.fifo)
        };
        let has_it = |pid: &Pid| {
            let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            open.map(|entry| entry.path()).any(|path| is_it(&path))
        };
        let all = processes::pids().unwrap_or_default();
        all.into_iter().filter(has_it).filter_map(Process::read).collect()
    }

    fn signal(&self, signal: Signal) {
        for process in self.processes() {
            process.signal(signal as i32);
        }
    }

    /// Until none of them is left.
    fn kill(&self) {
        let until = TokioHost.now() + KILLS;
        loop {
            kill_all(&self.family());
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            if until.is_over(TokioHost.now()) {
                let pids: Vec<String> = left.iter().map(|process| process.pid().to_string()).collect();
                return exit::warn(&format!(
                    "the script could not be stopped; still running: {}",
                    pids.join(", ")
                ));
            }
            kill_all(&left);
            rest(5);
        }
    }
}

fn rest(millis: u8) {
    let _ = poll(&mut [], PollTimeout::from(millis));
}

fn kill_all(processes: &[Process]) {
    for process in processes {
        process.signal(Signal::SIGKILL as i32);
    }
}

/// Closes what this process has of the shell's descriptors: our processes must not keep them open. Returns a number that the
/// shell does not use; all shells can name 3 to 9.
fn close_inherited() -> io::Result<u8> {
    let all = fs::read_dir("/proc/self/fd")?.flatten();
    let open: Vec<i32> = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The folder that was read is closed by now.
    for number in open.iter().filter(|number| **number > 2) {
        let _ = nix::unistd::close(*number);
    }
    let free = (3..=9).rev().find(|number| !open.contains(&i32::from(*number)));
    free.ok_or_else(|| io::Error::other("the shell uses all descriptors from 3 to 9: close one"))
}

/// As one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// `__script`: stands for the script under the run.
pub(crate) fn stand_in(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let grace = words.next().and_then(|word| word.to_str()?.parse().ok()).map(Duration::from_millis);
    let script = words.next().and_then(|word| serde_json::from_str(word.to_str()?).ok());
    let given = |name: &&str| Some(((*name).to_owned(), std::env::var(name).ok()?));
    let variables = GIVEN.iter().filter_map(given).collect();
    let ready = Ready { pid: nix::unistd::getpid().as_raw(), variables };
    let stood = serde_json::to_string(&ready).map_err(io::Error::from).and_then(|line| {
        writeln!(stdout(), "{line}")?;
        stdout().flush()?;
        StandIn { grace: grace.unwrap_or_default(), script, asked: None, text: Vec::new() }.stand()
    });
    ExitCode::from(if stood.is_ok() { 0 } else { exit::INTERNAL })
}

struct StandIn {
    grace: Duration,
    /// At first without its shell.
    script: Option<Script>,
    /// When the run asked it to end.
    asked: Option<Moment>,
    text: Vec<u8>,
}

impl StandIn {
    /// Until the script has ended or has released the lock.
    fn stand(mut self) -> io::Result<()> {
        let asks: SigSet =
            [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT].into_iter().collect();
        asks.thread_block()?;
        let signals = SignalFd::new(&asks)?;
        loop {
            let left = self.asked.map(|asked| self.grace.saturating_sub(asked.elapsed(TokioHost.now())));
            if let (Some(Duration::ZERO), Some(script)) = (left, self.script) {
                // The guard does the same when the run has killed this process. It may be stopped.
                script.kill();
            }
            let wait = left.map_or(PollTimeout::NONE, |left| {
                PollTimeout::try_from(left.max(SOON)).unwrap_or(PollTimeout::MAX)
            });
            let input = stdin();
            let mut ready = [
                PollFd::new(input.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut ready, wait) {
                Err(nix::errno::Errno::EINTR) => continue,
                polled => polled?,
            };
            let (is_told, is_asked) = (happened(&ready[0]), happened(&ready[1]));
            if is_asked && signals.read_signal()?.is_some() {
                self.asked.get_or_insert_with(|| TokioHost.now());
                self.script.inspect(|script| script.signal(Signal::SIGTERM));
            }
            if is_told && self.hear(input.as_fd())? {
                return Ok(());
            }
        }
    }

    /// Reads what the guard says. True: the script has ended.
    fn hear(&mut self, input: BorrowedFd<'_>) -> io::Result<bool> {
        let mut there = [0; 256];
        // Not by the buffer of the standard input, which hides what it has read from `poll`.
        let count = nix::unistd::read(input, &mut there)?;
        self.text.extend_from_slice(&there[..count]);
        while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            let Ok(script) = serde_json::from_slice::<Script>(&line) else { return Ok(true) };
            self.script = Some(script);
            if self.asked.is_some() {
                script.signal(Signal::SIGTERM);
            }
        }
        if count == 0 {
            // The guard was killed.
            self.script.inspect(Script::kill);
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(false)
    }
}

/// What `tenure run` gives to its command, and the script has too.
const GIVEN: [&str; 5] = ["TENURE_LOCK", "TENURE_TOKEN", "TENURE_TOKENS", "TENURE_OWNER", nested::VARIABLE];
/// The FIFO in its folder.
const NAME: &str = "tenure-hold";
/// How long a shell may take to evaluate what was printed.
const FIRST: Duration = Duration::from_secs(10);
/// Between two looks at what is left of a script that was killed.
const SOON: Duration = Duration::from_millis(100);
/// How long processes may take to be killed.
const KILLS: Duration = Duration::from_secs(10);

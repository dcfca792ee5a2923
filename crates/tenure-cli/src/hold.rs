//! `tenure hold`: the lock for the rest of a script, `eval "$(tenure hold NAME || echo exit 70)"`.
//!
//! The shell opens a FIFO and keeps it open: so the script, and all that it starts, has the lock, and the kernel tells us when
//! the last of them has ended, however it ended. Two processes of ours stand for the script, and both read the FIFO:
//! * the **stand-in** is the command of a run, which does all that concerns the lock;
//! * the **guard** is the parent of that run.
//!
//! ```text
//!   script ──FIFO──▶ guard ──▶ run ──▶ stand-in ◀──FIFO── script
//!          ◀── KILL ──┘                └── TERM, KILL ──▶
//! ```
//! **Why the script does not work beside another owner (L1).** Only the end of the FIFO proves that the script does not have the
//! lock any more. The stand-in ends well only after it has read that end, and the run releases the lock only after a stand-in that
//! has ended well; else the ttl decides. No failed kill, and no list of processes, leads to a release.
//!
//! **Why the script ends before its lease.** The run asks its command to end before the lease ends, or its watcher does: the
//! stand-in sends the script TERM, and KILL shortly before it would get that itself. When the stand-in has ended, by whatever
//! means, the guard kills what is left; when the guard has ended, the stand-in does.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File, Permissions},
    future::pending,
    io::{self, ErrorKind, Read, Write, stdout},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
            process::{CommandExt, parent_id},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        stat::Mode,
    },
    unistd::{Pid, dup2_stdout, getpid, getsid, mkfifo, setsid},
};
use rustix::process::{PidfdFlags, pidfd_open};
use tempfile::TempDir;
use tenure::backend::{Host, Moment, TokioHost};
use tokio::{
    io::{AsyncReadExt, Interest},
    net::unix::pipe::{Receiver, Sender},
};

use crate::{
    exit::{self, Stop},
    lines, nested,
    processes::{self, Process, ProcessKey, raw},
    signals::Signals,
    view,
};

/// The guard: `__hold WORDS`, with the words of the command line.
pub(crate) const GUARD: &str = "__hold";
/// The stand-in: `__script GRACE`, with the time from TERM to KILL in ms.
pub(crate) const STAND_IN: &str = "__script";

/// Acquires the lock, leaves a guard with it, and prints what the shell evaluates.
pub(crate) async fn hold() -> Result<u8, Stop> {
    let held = ask().await;
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

async fn ask() -> Result<u8, Stop> {
    if parent_id() == 1 {
        return Err(Stop::usage(PROCESS_1));
    }
    let mut signals = Signals::listen()?;
    let mut guard = start_guard().map_err(|e| Stop::internal(format!("cannot start a process: {e}")))?;
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
        // If this fails, no shell opens the FIFO, and the lock is released.
        view::print_exactly(&String::from_utf8_lossy(&code))?;
        return Ok(0);
    }
    let ended = guard.wait().ok().and_then(|status| u8::try_from(status.code()?).ok());
    // The run has printed the reason.
    Ok(ended.filter(|code| *code != 0).unwrap_or(exit::INTERNAL))
}

fn start_guard() -> io::Result<Child> {
    Command::new(processes::ourselves()?)
        .arg0("tenure")
        .arg(GUARD)
        .args(of_run(std::env::args_os().skip(1)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
}

/// The same words for the run, which holds the lock for the process that called this one.
fn of_run(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let (mut is_value, mut is_done) = (false, false);
    words.flat_map(move |word| {
        let is_verb = !is_done && !is_value && word == "hold";
        is_value = word == "--url";
        is_done |= is_verb;
        match is_verb {
            true => vec![word, "--script".into(), parent_id().to_string().into()],
            false => vec![word],
        }
    })
}

/// For the run, before it has the lock: ends when no guard waits for that any more.
pub(crate) async fn guard_has_ended() {
    let output = stdout().as_fd().try_clone_to_owned();
    match output.and_then(Sender::from_owned_fd) {
        Ok(output) => drop(output.ready(Interest::ERROR).await),
        // OK because the stand-in sees it too.
        Err(_) => pending().await,
    }
}

/// `__hold`.
pub(crate) fn guard(words: impl Iterator<Item = OsString>) -> ExitCode {
    let guarded = Guard::start(words).and_then(Guard::until_the_end);
    guarded
        .map_or_else(|e| exit::say(&Stop::internal(format!("cannot guard the script: {e}"))), ExitCode::from)
}

struct Guard {
    /// Under which the shell is to open the FIFO.
    number: u8,
    run: Child,
    /// By the stand-in. When this is closed, the stand-in kills the script.
    told: Lines,
}

/// What the stand-in tells the guard.
#[derive(serde::Serialize, serde::Deserialize)]
enum Told {
    /// The lock is held.
    Ready { pid: i32, fifo: PathBuf, variables: BTreeMap<String, String> },
    /// This shell has taken it.
    Taken(ProcessKey),
    /// The shell has released it.
    Released,
}

impl Guard {
    fn start(words: impl Iterator<Item = OsString>) -> io::Result<Self> {
        // The shell's job, its terminal and its signals are not for us. What is in this session is ours.
        setsid()?;
        let number = close_inherited()?;
        let mut run = Command::new(processes::ourselves()?)
            .arg0("tenure")
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        // A TERM to each process of a service is for the script.
        SigSet::all().thread_block()?;
        let told = OwnedFd::from(run.stdout.take().expect("BUG: it has a pipe"));
        fcntl(&told, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { number, run, told: Lines::of(told.into()) })
    }

    /// Returns the exit code of the run.
    fn until_the_end(mut self) -> io::Result<u8> {
        if let Some(Told::Ready { pid, fifo, variables }) = self.ready()? {
            self.hold(pid, &fifo, &variables)?;
        }
        drop(self.told);
        Ok(self.run.wait()?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::INTERNAL))
    }

    /// Waits until the lock is held. `None` if it is not, or if no process waits for it any more.
    fn ready(&mut self) -> io::Result<Option<Told>> {
        loop {
            wait_for(&[(&self.told.from, PollFlags::POLLIN), (&stdout(), PollFlags::empty())], None);
            if is_left(&stdout()) {
                return Ok(None);
            }
            let is_open = self.told.read()?;
            match self.told.next() {
                Some(line) => return Ok(serde_json::from_slice(&line).ok()),
                None if is_open => {}
                None => return Ok(None),
            }
        }
    }

    /// Prints what the shell evaluates, and kills what is left of the script when the stand-in has ended.
    fn hold(&mut self, stand_in: i32, fifo: &Path, variables: &BTreeMap<String, String>) -> io::Result<()> {
        let stand_in = raw(Pid::from_raw(stand_in)).ok_or(ErrorKind::InvalidData)?;
        let stand_in = pidfd_open(stand_in, PidfdFlags::empty())?;
        let mut script = Script::of(fifo)?;
        stdout().write_all(code(fifo, self.number, variables).as_bytes()).and_then(|()| stdout().flush())?;
        // What follows is read until its end.
        dup2_stdout(File::options().write(true).open("/dev/null")?)?;
        loop {
            wait_for(&[(&self.told.from, PollFlags::POLLIN), (&stand_in, PollFlags::POLLIN)], None);
            let has_ended = is_ready(&stand_in);
            self.told.read()?;
            while let Some(line) = self.told.next() {
                match serde_json::from_slice(&line) {
                    Ok(Told::Taken(shell)) => script.shell = Some(shell),
                    Ok(Told::Released) => script.is_released = true,
                    _ => {}
                }
            }
            if has_ended {
                break;
            }
        }
        // Of a stand-in that was killed early. No shell opens it from now on.
        let _ = fs::remove_file(fifo);
        let _ = fifo.parent().map(fs::remove_dir);
        while script.read()? || script.has_shell() {
            rest(script.kill());
        }
        Ok(())
    }
}

/// What the shell evaluates. It writes its own id: only the shell itself, or its subshell, knows which process it is.
fn code(fifo: &Path, number: u8, variables: &BTreeMap<String, String>) -> String {
    let (fifo, guard, too_late) = (quoted(&fifo.to_string_lossy()), getpid(), exit::ending(TOO_LATE, 70));
    let names: Vec<&str> = variables.keys().map(String::as_str).collect();
    let exports: String =
        variables.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect();
    let before = std::env::var(nested::VARIABLE).map_or_else(
        |_| format!("unset {}", nested::VARIABLE),
        |value| format!("export {}={}", nested::VARIABLE, quoted(&value)),
    );
    let process_1 = quoted(&format!("tenure: {}", exit::ending(PROCESS_1, exit::USAGE)));
    // Opened for reading too, because that waits for no other reader.
    format!(
        "if [ $$ = 1 ]; then echo {process_1} >&2; exit {usage}; fi\n\
         if [ -p {fifo} ] && exec {number}<>{fifo} && command sh -c {TAKE} sh {guard} {fifo} >&{number} 2>/dev/null; then :; else\n\
         echo 'tenure: {too_late}' >&2; exit 70; fi\n\
         {exports}\
         tenure_release() {{ command echo {RELEASED} >&{number}; exec {number}>&-; unset {names}; {before}; tenure_release() {{ :; }}; }}\n",
        usage = exit::USAGE,
        names = names.join(" "),
    )
}

/// If the guard $1 lives, and the FIFO $2 still has its name. The stand-in removes that, and then finds the shell that has opened
/// the FIFO; or the shell finds no name here.
const TAKE: &str =
    r#"'read -r s </proc/$1/stat && case $s in *") Z "*) exit 1; esac && [ -p "$2" ] && echo $PPID'"#;

/// As one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Closes what this process has of the shell's descriptors: our processes must not keep them open. Returns a number that the
/// shell does not use.
fn close_inherited() -> io::Result<u8> {
    let all = fs::read_dir("/proc/self/fd")?.flatten();
    let open: Vec<i32> = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The folder that was read is closed by now.
    for number in open.iter().filter(|number| **number > 2) {
        let _ = nix::unistd::close(*number);
    }
    let free = NUMBERS.into_iter().find(|number| !open.contains(&i32::from(*number)));
    free.ok_or_else(|| io::Error::other("the shell uses all descriptors from 3 to 9: close one"))
}

/// What has the lock: the shell, its descendants, and each process that has the FIFO open.
struct Script {
    fifo: Lines,
    /// The device and the number of the FIFO. No other file gets them while it is open here.
    id: (u64, u64),
    shell: Option<ProcessKey>,
    /// The shell has released the lock: it is no longer part of this.
    is_released: bool,
    /// When it was killed for the first time.
    killed: Option<Moment>,
    is_reported: bool,
}

impl Script {
    fn of(fifo: &Path) -> io::Result<Self> {
        let end = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(fifo)?;
        let facts = end.metadata()?;
        let (fifo, id) = (Lines::of(end), (facts.dev(), facts.ino()));
        Ok(Self { fifo, id, shell: None, is_released: false, killed: None, is_reported: false })
    }

    /// Reads what the shell has written. False if no process has the FIFO open.
    fn read(&mut self) -> io::Result<bool> {
        let is_open = self.fifo.read()?;
        while let Some(line) = self.fifo.next() {
            self.is_released |= line == RELEASED.as_bytes();
            let pid = str::from_utf8(&line).ok().and_then(|line| line.parse().ok()).filter(|pid| *pid > 0);
            self.shell = self.shell.or_else(|| Some(processes::key(Pid::from_raw(pid?))));
        }
        Ok(is_open)
    }

    /// The shell runs, and counts on the lock.
    fn has_shell(&self) -> bool {
        !self.is_released && self.shell.is_some_and(processes::lives)
    }

    /// The shell and its descendants, which are found without a look at every process of the machine.
    fn family(&self) -> Vec<Process> {
        let shell = self.shell.filter(|_| !self.is_released);
        let mut all = shell.map(processes::of_script).unwrap_or_default();
        // The script may have adopted our own.
        all.retain(|process| !process.is_of_our_session());
        all
    }

    fn openers(&self) -> Vec<Process> {
        // By its name first: to look at a file of another file system may never end.
        let is_named = |path: &Path| {
            let is_it = |to: PathBuf| to.to_string_lossy().trim_end_matches(" (deleted)").ends_with(NAME);
            fs::read_link(path).is_ok_and(is_it)
        };
        let is_it = |path: &Path| {
            is_named(path) && fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == self.id)
        };
        let has_it = |process: &Process| {
            let open = fs::read_dir(format!("/proc/{}/fd", process.pid())).into_iter().flatten().flatten();
            !process.is_of_our_session() && open.map(|entry| entry.path()).any(|path| is_it(&path))
        };
        let all = processes::pids().unwrap_or_default().into_iter();
        all.filter_map(Process::read).filter(has_it).collect()
    }

    /// Sends a signal to all that are seen. Returns them.
    fn signal(&self, signal: Signal) -> Vec<Process> {
        let mut all = self.family();
        send(signal, &all);
        let known: Vec<Pid> = all.iter().map(Process::pid).collect();
        let mut others = self.openers();
        others.retain(|process| !known.contains(&process.pid()));
        send(signal, &others);
        all.extend(others);
        all
    }

    /// Returns when to do it again, unless it has helped.
    fn kill(&mut self) -> Duration {
        let left = self.signal(Signal::SIGKILL);
        let now = TokioHost.now();
        if self.killed.get_or_insert(now).elapsed(now) < KILLS {
            return SOON;
        }
        if !std::mem::replace(&mut self.is_reported, true) {
            let pids: Vec<String> = left.iter().map(|process| process.pid().to_string()).collect();
            exit::warn(&format!("the script could not be stopped; still running: {}", pids.join(", ")));
        }
        LATER
    }
}

fn send(signal: Signal, processes: &[Process]) {
    for process in processes {
        // OK to fail: only the end of the FIFO counts.
        process.signal(signal as i32);
    }
}

/// What stands for the script under the run: its argument is the grace that the run has.
pub(crate) fn stand_in_for(grace: Duration) -> Vec<OsString> {
    ["/proc/self/exe", STAND_IN, &grace.as_millis().to_string()].map(OsString::from).into()
}

/// `__script`. Ends well only if the script does not have the lock.
pub(crate) fn stand_in(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let grace = words.next().and_then(|word| word.to_str()?.parse().ok()).map(Duration::from_millis);
    let failed = |e| exit::say(&Stop::internal(format!("cannot stand for the script: {e}")));
    match StandIn::start(grace.unwrap_or_default()).map(StandIn::until_the_end) {
        Ok(Ok(())) => {
            lines::flush(CLOSING);
            ExitCode::SUCCESS
        }
        Ok(Err(e)) => failed(e),
        Err(e) => {
            failed(e);
            // OK because no shell was told of the FIFO.
            ExitCode::SUCCESS
        }
    }
}

struct StandIn {
    script: Script,
    /// With the FIFO, until a shell has opened it, or is to open it no more.
    folder: Option<TempDir>,
    began: Moment,
    signals: SignalFd,
    /// How long the script has from TERM to KILL: less than this process has, by what a look at all processes may take.
    grace: Duration,
    /// When the script was asked to end.
    asked: Option<Moment>,
    /// When no process had the FIFO open, but the shell ran.
    closed: Option<Moment>,
    is_orphaned: bool,
}

impl StandIn {
    fn start(grace: Duration) -> io::Result<Self> {
        // What is for the script is sent to the script.
        SigSet::all().thread_block()?;
        let signals = SignalFd::with_flags(&SigSet::from(Signal::SIGTERM), SfdFlags::SFD_NONBLOCK)?;
        let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
        let folder = folder.map_or_else(std::env::temp_dir, PathBuf::from);
        let mut draft = tempfile::Builder::new();
        draft.prefix("tenure-hold.").permissions(Permissions::from_mode(0o700));
        let folder = draft.tempdir_in(folder).or_else(|_| draft.tempdir())?;
        let fifo = folder.path().join(NAME);
        mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let script = Script::of(&fifo)?;
        let given = |name: &&str| Some(((*name).to_owned(), std::env::var(name).ok()?));
        tell(&Told::Ready {
            pid: getpid().as_raw(),
            fifo,
            variables: GIVEN.iter().filter_map(given).collect(),
        });
        Ok(Self {
            script,
            folder: Some(folder),
            began: TokioHost.now(),
            signals,
            grace: grace * 3 / 4,
            asked: None,
            closed: None,
            is_orphaned: false,
        })
    }

    fn until_the_end(mut self) -> io::Result<()> {
        loop {
            let is_open = self.hear()?;
            let now = TokioHost.now();
            self.hear_signals(now)?;
            if !self.is_orphaned && is_left(&stdout()) {
                // The guard was killed.
                (self.is_orphaned, self.grace, self.asked) = (true, Duration::ZERO, Some(now));
            }
            let has_shell = self.script.shell.is_some();
            if !has_shell && (self.began.elapsed(now) >= FIRST || is_left(&self.script.fifo.from)) {
                // None has taken the lock in time, or one has opened the FIFO and ended.
                (self.grace, self.asked) = (Duration::ZERO, Some(now));
            }
            if self.folder.is_some() && (has_shell || self.asked.is_some()) {
                self.folder.take().map_or(Ok(()), TempDir::close)?;
                // The end of the FIFO counts from now on, because no process can open it.
                continue;
            }
            if self.folder.is_none() && !is_open {
                if !self.script.has_shell() {
                    return Ok(());
                }
                self.is_closed(now);
            }
            self.rest(now, is_open);
        }
    }

    /// Reads the FIFO, and tells the guard what is new. False if no process has it open.
    fn hear(&mut self) -> io::Result<bool> {
        let (shell, was_released) = (self.script.shell, self.script.is_released);
        let is_open = self.script.read()?;
        if let Some(taken) = self.script.shell.filter(|_| shell.is_none()) {
            tell(&Told::Taken(taken));
        }
        if self.script.is_released && !was_released {
            tell(&Told::Released);
        }
        Ok(is_open)
    }

    /// The run, or its watcher, asks by TERM. One that others send is not for this process.
    fn hear_signals(&mut self, now: Moment) -> io::Result<()> {
        while let Some(signal) = self.signals.read_signal()? {
            let sender = i32::try_from(signal.ssi_pid).ok().filter(|pid| *pid > 0).map(Pid::from_raw);
            if sender.is_some_and(|sender| getsid(Some(sender)) == getsid(None)) {
                self.ask_to_end(now);
            }
        }
        Ok(())
    }

    fn ask_to_end(&mut self, now: Moment) {
        self.asked.get_or_insert(now);
        self.script.signal(Signal::SIGTERM);
    }

    /// The shell has closed the FIFO without a word, as `exec 7>file` does, and goes on as if it had the lock.
    fn is_closed(&mut self, now: Moment) {
        // Not immediately: a shell that ends has closed all before.
        if self.closed.get_or_insert(now).elapsed(now) >= CLOSING && self.asked.is_none() {
            let name = std::env::var("TENURE_LOCK").unwrap_or_default();
            exit::warn(&format!(
                "{name}: the script has closed the descriptor that holds the lock: stopping it. tenure_release releases a lock"
            ));
            self.ask_to_end(now);
        }
    }

    /// Until something has happened, or is due.
    fn rest(&mut self, now: Moment, is_open: bool) {
        let left = self.asked.map(|asked| self.grace.saturating_sub(asked.elapsed(now)));
        if left == Some(Duration::ZERO) {
            return rest(self.script.kill());
        }
        let first = self.folder.as_ref().map(|_| FIRST.saturating_sub(self.began.elapsed(now)));
        let ending = self.closed.map(|_| SOON);
        // `poll` does not count the time of a suspend.
        let wait = left.into_iter().chain(first).chain(ending).min().map(|wait| wait.min(CLOCKS));
        let mut on: Vec<(&dyn AsFd, PollFlags)> = vec![(&self.signals, PollFlags::POLLIN)];
        let output = stdout();
        if !self.is_orphaned {
            on.push((&output, PollFlags::empty()));
        }
        if is_open || self.folder.is_some() {
            on.push((&self.script.fifo.from, PollFlags::POLLIN));
        }
        wait_for(&on, wait);
    }
}

fn tell(told: &Told) {
    let mut line = serde_json::to_vec(told).expect("BUG: it is JSON");
    line.push(b'\n');
    // If the guard has ended, that is seen.
    let _ = stdout().write_all(&line).and_then(|()| stdout().flush());
}

/// What another process writes, line by line.
struct Lines {
    from: File,
    text: Vec<u8>,
}

impl Lines {
    fn of(from: File) -> Self {
        Self { from, text: Vec::new() }
    }

    /// Reads what is there. False if no process can write any more.
    fn read(&mut self) -> io::Result<bool> {
        let mut some = [0; 4096];
        match self.from.read(&mut some) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.text.extend_from_slice(&some[..count]);
                Ok(true)
            }
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&e.kind()) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// The next whole line.
    fn next(&mut self) -> Option<Vec<u8>> {
        let end = self.text.iter().position(|byte| *byte == b'\n');
        if end.is_none() && self.text.len() > LONGEST {
            self.text.clear();
        }
        let mut line: Vec<u8> = self.text.drain(..=end?).collect();
        line.pop();
        Some(line)
    }
}

/// Until one of them is ready, or has been left by the other side; or this time has passed.
fn wait_for(all: &[(&dyn AsFd, PollFlags)], longest: Option<Duration>) {
    let mut all: Vec<PollFd<'_>> = all.iter().map(|(one, what)| PollFd::new(one.as_fd(), *what)).collect();
    let longest = longest.map_or(PollTimeout::NONE, |longest| {
        PollTimeout::try_from(longest.as_millis() + 1).unwrap_or(PollTimeout::MAX)
    });
    // OK to fail: the caller asks each of them.
    let _ = poll(&mut all, longest);
}

fn is_ready(one: &dyn AsFd) -> bool {
    poll(&mut [PollFd::new(one.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// Whether the other side is closed, after it was open.
fn is_left(one: &dyn AsFd) -> bool {
    poll(&mut [PollFd::new(one.as_fd(), PollFlags::empty())], PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

fn rest(time: Duration) {
    wait_for(&[], Some(time));
}

const PROCESS_1: &str = "hold: the kernel lets no process end process 1, so the script could not be stopped when the lock is lost: \
     start the container with an init (docker run --init), or use `tenure run`";
const TOO_LATE: &str = "the lock was not held until the shell took it";
/// What `tenure run` gives to its command, and the script has too.
const GIVEN: [&str; 5] = ["TENURE_LOCK", "TENURE_TOKEN", "TENURE_TOKENS", "TENURE_OWNER", nested::VARIABLE];
/// The FIFO in its folder.
const NAME: &str = "tenure-hold";
/// What `tenure_release` writes.
const RELEASED: &str = "released";
/// All shells can name 3 to 9. Scripts keep their standard streams in 3 to 6 and lock files in 9, so these come last.
const NUMBERS: [u8; 7] = [7, 8, 6, 5, 4, 3, 9];
/// How long a shell may take to evaluate what was printed.
const FIRST: Duration = Duration::from_secs(10);
/// How long a shell that ends may take from its last file to its end.
const CLOSING: Duration = Duration::from_secs(1);
/// For how long processes are killed often; and between two times, then and later.
const KILLS: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(5);
const LATER: Duration = Duration::from_secs(1);
/// How often the clocks are read.
const CLOCKS: Duration = Duration::from_secs(1);
/// No line for us is longer.
const LONGEST: usize = 1 << 16;

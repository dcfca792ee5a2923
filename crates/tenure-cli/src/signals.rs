//! The signals that `tenure` handles, and those that were ignored or blocked when it started, so that the command
//! gets these back.

use std::{
    collections::VecDeque,
    ffi::{CString, OsStr, OsString},
    fs, io,
    os::unix::{
        ffi::OsStringExt,
        process::{CommandExt, parent_id},
    },
    process::{Command, id},
    sync::OnceLock,
    task::{Context, Poll, Waker},
    time::Duration,
};

use nix::sys::signal::{
    SigSet, SigmaskHow,
    Signal::{self, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGTTOU, SIGXFSZ},
    raise,
};
use tenure::backend::{Host, Moment, TokioHost};
use tokio::{
    net::unix::pipe::Receiver,
    signal::unix::{SignalKind, signal},
};

use crate::{exit::Stop, terminal::Terminal, worker};

type SignalStream = tokio::signal::unix::Signal;

/// INT, TERM, HUP and QUIT end a wait and are passed on to the command, and so are the others that people and programs send.
/// CHLD says that a child has changed.
///
/// A signal that was ignored at the start stays ignored, for `tenure` and for the command: HUP under `nohup`, INT
/// after `&` in a script.
pub(crate) struct Signals {
    asking: Vec<(Signal, SignalStream)>,
    /// Signals that only the command needs, by number: real-time signals have no name.
    others: Vec<(i32, SignalStream)>,
    /// TSTP, once there is a command that must not run while we are suspended.
    stop: Option<SignalStream>,
    child: SignalStream,
    asked: Option<Asked>,
    /// We were asked to end once more.
    is_insisted: bool,
    /// INT, TERM, HUP or QUIT was passed on to the command.
    was_passed_on: bool,
    /// The line of the [`front`](crate::front). `None` without one, or once it has ended.
    front: Option<Receiver>,
    /// What was read from it too early.
    kept: VecDeque<u8>,
    /// Signals that came to this process, and those that the front passed on, without the other one of a pair: a supervisor
    /// may send one to each process of a service.
    direct: Vec<(i32, Moment)>,
    told: Vec<(i32, Moment)>,
    /// The front was killed.
    is_orphaned: bool,
}

/// We were asked to end: how, and when.
#[derive(Clone, Copy)]
struct Asked {
    signal: Signal,
    at: Moment,
    /// Whether it came to this process, and not through the front; `None` once it came both ways, which is one stop of a service.
    is_direct: Option<bool>,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Stop> {
        let mut asking = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            asking.extend(listen_unless_ignored(signal as i32)?.map(|stream| (signal, stream)));
        }
        let front = worker::line().map(Receiver::from_owned_fd).transpose();
        let front = front.map_err(|error| Stop::internal(format!("cannot watch the front: {error}")))?;
        let has_front = front.is_some();
        let signals = Self {
            asking,
            others: Vec::new(),
            stop: None,
            child: listen(Signal::SIGCHLD as i32)?,
            asked: None,
            is_insisted: false,
            was_passed_on: false,
            front,
            kept: VecDeque::new(),
            direct: Vec::new(),
            told: Vec::new(),
            is_orphaned: false,
        };
        if has_front {
            worker::tell(&worker::Message::Listens);
        }
        Ok(signals)
    }

    /// The same for a verb that runs a command. Signals for the command are dropped until it has started.
    pub(crate) fn listen_for_command() -> Result<Self, Stop> {
        let mut signals = Self::listen()?;
        for number in passed_on() {
            signals.others.extend(listen_unless_ignored(number)?.map(|stream| (number, stream)));
        }
        Ok(signals)
    }

    /// The command has started. TSTP is handled from now on; until then it suspends `tenure`, like any other program. Earlier
    /// signals were not for the command and are dropped, but for those that ask to end.
    pub(crate) fn listen_to_stop(&mut self) {
        self.others.iter_mut().for_each(|(_, stream)| drain(stream));
        let mut some = [0; 1024];
        // From the pipe itself, because the runtime may not have seen yet that it is readable.
        while let Some(Ok(count @ 1..)) = self.front.as_ref().map(|line| nix::unistd::read(line, &mut some)) {
            let asking = some[..count].iter().filter(|number| asks_to_end(i32::from(**number)).is_some());
            self.kept.extend(asking);
        }
        self.stop = listen_unless_ignored(Signal::SIGTSTP as i32).unwrap_or(None);
    }

    /// Waits for the next signal that asks `tenure` to end: KILL if that has killed the front. Those for the command are
    /// dropped.
    pub(crate) async fn asked_to_end(&mut self) -> Signal {
        self.asked_to_end_again().await.0
    }

    /// The same, and whether that was not the first time.
    async fn asked_to_end_again(&mut self) -> (Signal, bool) {
        loop {
            let Some((number, is_direct)) = self.arrived(false).await else { continue };
            if let Some(signal) = asks_to_end(number) {
                return (signal, self.is_again(signal, is_direct));
            }
            // Of a leader that campaigns again: before the first command, the system stops this process.
            if self.passed(number) == Signal::SIGTSTP as i32 {
                tenure::command::suspend(stop_unless_continued);
            } else if number == Signal::SIGCONT as i32 && self.stop.is_some() {
                arm_stop();
            }
        }
    }

    /// Notes that we were asked to end. True if we were asked before, and this is not the other one of a pair.
    fn is_again(&mut self, signal: Signal, is_direct: bool) -> bool {
        match &mut self.asked {
            None => {
                let (at, is_direct) = (TokioHost.now(), Some(is_direct));
                self.asked = Some(Asked { signal, at, is_direct });
                false
            }
            Some(first) if first.signal == signal && first.is_direct == Some(!is_direct) => {
                first.is_direct = None;
                for list in [&mut self.direct, &mut self.told] {
                    list.retain(|(number, _)| *number != signal as i32);
                }
                false
            }
            Some(_) => true,
        }
    }

    /// Waits for the next signal, each once, and how it came. `None`: a child has changed, if that `counts`.
    async fn arrived(&mut self, counts: bool) -> Option<(i32, bool)> {
        loop {
            let (number, is_direct) = tokio::select! {
                biased;
                _ = self.child.recv(), if counts => return None,
                signal = next(&mut self.asking) => (signal as i32, true),
                number = next(&mut self.others) => (number, true),
                told = heard(&mut self.front, &mut self.kept) => match told {
                    Some(number) => (number, false),
                    None => return Some((self.orphaned() as i32, false)),
                },
                () = stopped(&mut self.stop) => return Some((Signal::SIGTSTP as i32, true)),
            };
            if self.front.is_none() || !self.is_second(number, is_direct) {
                return Some((number, is_direct));
            }
        }
    }

    /// Whether the other one of a pair was there.
    fn is_second(&mut self, number: i32, is_direct: bool) -> bool {
        let now = TokioHost.now();
        for list in [&mut self.direct, &mut self.told] {
            list.retain(|(_, at)| at.elapsed(now) < PAIR);
        }
        let (own, other) = match is_direct {
            true => (&mut self.direct, &mut self.told),
            false => (&mut self.told, &mut self.direct),
        };
        match other.iter().position(|(one, _)| *one == number) {
            Some(at) => {
                other.remove(at);
                let first = self.asked.iter_mut().filter(|first| first.signal as i32 == number);
                first.for_each(|first| first.is_direct = None);
                true
            }
            None => {
                own.push((number, now));
                false
            }
        }
    }

    /// We were asked to end: by INT or TERM while the command ran, or by HUP and QUIT as well before and after.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// The front was killed: all that it stood before ends at the same time.
    fn orphaned(&mut self) -> Signal {
        (self.front, self.is_orphaned) = (None, true);
        (self.is_insisted, self.was_passed_on) = (true, true);
        Signal::SIGKILL
    }

    /// The front was killed, and the command with it.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.is_orphaned
    }

    /// We were asked a second time.
    pub(crate) fn is_insisted(&self) -> bool {
        self.is_insisted
    }

    /// A signal that asks the command to end was passed on, such as HUP when the terminal is closed.
    pub(crate) fn was_passed_on(&self) -> bool {
        self.was_passed_on
    }

    /// Waits for one more signal to end: INT or TERM may have come before, while the command ran.
    pub(crate) async fn insisted(&mut self) -> Signal {
        loop {
            let (signal, is_again) = self.asked_to_end_again().await;
            if is_again && signal != Signal::SIGKILL {
                self.is_insisted = true;
                return signal;
            }
        }
    }

    /// Drops a TSTP that came with a CONT, because their order is not known. A stop that no shell ends is worse than none.
    fn passed(&mut self, number: i32) -> i32 {
        if number == Signal::SIGCONT as i32
            && let Some(stop) = &mut self.stop
        {
            drain(stop);
        }
        if number == Signal::SIGCONT as i32 {
            worker::wake_front();
        }
        number
    }

    /// Waits for the next signal, whatever it asks for. `None`: a child has changed.
    pub(crate) async fn any(&mut self) -> Option<i32> {
        let (number, _) = self.arrived(true).await?;
        Some(self.passed(number))
    }

    /// Waits for the next signal for the command, or for the processes that it left once it `has_ended`. `None`: a child
    /// has changed.
    pub(crate) async fn next(&mut self, has_ended: bool) -> Option<i32> {
        loop {
            let (number, is_direct) = self.arrived(true).await?;
            let Some(signal) = asks_to_end(number) else { return Some(self.passed(number)) };
            if signal == Signal::SIGKILL {
                self.is_again(signal, is_direct);
                return Some(number);
            }
            self.was_passed_on = true;
            // HUP may mean "read your settings again", and QUIT "show your threads".
            let now = TokioHost.now();
            let is_key = is_key(signal);
            match self.asked {
                _ if !matches!(signal, SIGINT | SIGTERM) || is_key && !has_ended => {}
                Some(first) if first.signal == signal && first.at.elapsed(now) < ECHO => continue,
                Some(first) if first.at.elapsed(now) < AGAIN && !is_key => {}
                _ => self.is_insisted |= self.is_again(signal, is_direct),
            }
            return Some(signal as i32);
        }
    }
}

/// What comes again so soon is the same signal: `timeout` sends TERM to the process and then to its group.
const ECHO: Duration = Duration::from_millis(20);
/// A second signal within this time may belong to the same stop: systemd signals each process of a service, and a script
/// in it may pass its signal on.
const AGAIN: Duration = Duration::from_secs(1);

/// Within this time the two of a pair come.
const PAIR: Duration = Duration::from_secs(1);

/// Whether this is a Ctrl-C on the terminal, which `tenure` receives if its input or output is a pipe.
fn is_key(signal: Signal) -> bool {
    signal == SIGINT && Terminal::in_foreground().is_some()
}

/// The signals that are passed on, other than those that end `tenure`: each that a process may send and that would end or wake
/// the command.
fn passed_on() -> impl Iterator<Item = i32> {
    use Signal::{SIGALRM, SIGCONT, SIGIO, SIGPROF, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH};
    let named = [SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGCONT, SIGVTALRM, SIGPROF, SIGIO];
    named.into_iter().map(|signal| signal as i32).chain(beside())
}

/// Those that only Linux has. The C library has the first two or three of real time for itself: no program can handle them.
#[cfg(target_os = "linux")]
fn beside() -> impl Iterator<Item = i32> {
    use rustix_libc_wrappers::process::SignalExt as _;
    let real_time = (0..).map_while(|n| rustix::process::Signal::rt(n).map(rustix::process::Signal::as_raw));
    [Signal::SIGPWR, Signal::SIGSTKFLT].into_iter().map(|signal| signal as i32).chain(real_time)
}

#[cfg(not(target_os = "linux"))]
fn beside() -> impl Iterator<Item = i32> {
    std::iter::empty()
}

/// For a verb that handles no signal: the first one ends the process, which holds nothing that it would have to give back.
pub(crate) async fn unhandled() -> Signal {
    std::future::pending().await
}

fn listen(to: i32) -> Result<SignalStream, Stop> {
    signal(SignalKind::from_raw(to))
        .map_err(|error| Stop::internal(format!("cannot install signal handlers: {error}")))
}

fn listen_unless_ignored(to: i32) -> Result<Option<SignalStream>, Stop> {
    if is_ignored(to) { Ok(None) } else { listen(to).map(Some) }
}

/// Waits for the next of these signals.
async fn next<N: Copy>(streams: &mut [(N, SignalStream)]) -> N {
    std::future::poll_fn(|context| {
        let came = streams.iter_mut().find_map(|(signal, stream)| {
            matches!(stream.poll_recv(context), Poll::Ready(Some(()))).then_some(*signal)
        });
        came.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

fn drain(stream: &mut SignalStream) {
    let mut context = Context::from_waker(Waker::noop());
    while matches!(stream.poll_recv(&mut context), Poll::Ready(Some(()))) {}
}

/// Keeps a stop signal blocked and pending in this thread. The system discards it when the process is sent CONT, so that
/// [`stop_unless_continued`] needs no order between TSTP and CONT. Call on the main thread, which waits for the command.
pub(crate) fn arm_stop() {
    let _ = SigSet::from(STOP).thread_block();
    let _ = raise(STOP);
}

/// Stops this process, unless it was continued since [`arm_stop`].
pub(crate) fn stop_unless_continued() {
    let _ = SigSet::from(STOP).thread_unblock();
    arm_stop();
}

/// Stops as TSTP does, which `tenure` handles.
pub(crate) const STOP: Signal = Signal::SIGTTIN;

/// The signal, if it asks `tenure` to end; KILL was sent to the front.
fn asks_to_end(number: i32) -> Option<Signal> {
    let asking = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, Signal::SIGKILL];
    asking.into_iter().find(|signal| *signal as i32 == number)
}

/// Waits for a signal that the front passes on; `None` once it has ended.
async fn heard(line: &mut Option<Receiver>, kept: &mut VecDeque<u8>) -> Option<i32> {
    if let Some(number) = kept.pop_front() {
        return Some(number.into());
    }
    let Some(line) = line else { return std::future::pending().await };
    loop {
        line.readable().await.ok()?;
        let mut number = [0];
        match line.try_read(&mut number) {
            Ok(0) => return None,
            Ok(_) => return Some(number[0].into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// Whether it is not for the command alone: it asks to end, stops or continues.
pub(crate) fn is_for_tenure(number: i32) -> bool {
    asks_to_end(number).is_some()
        || [Signal::SIGTSTP, Signal::SIGCONT].into_iter().any(|one| one as i32 == number)
}

async fn stopped(stream: &mut Option<SignalStream>) {
    match stream {
        Some(stream) => drop(stream.recv().await),
        None => std::future::pending().await,
    }
}

/// Blocked in all processes of `tenure`, so that a write neither stops nor kills one: TTOU is for a write to a
/// terminal in the background (`stty tostop`), XFSZ for a write to a file at its limit, which is then an error.
const BLOCKED: [Signal; 2] = [SIGTTOU, SIGXFSZ];

/// The signals that were ignored, one bit for each.
static IGNORED: OnceLock<u64> = OnceLock::new();

/// The mask of signals at the start.
static MASK: OnceLock<SigSet> = OnceLock::new();

/// Before `main`, because the runtime of Rust ignores PIPE before it calls that. Without `/proc` this is unknown,
/// and no signal counts as ignored.
#[ctor::ctor]
fn read_ignored() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let _ = IGNORED.set(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0));
}

/// The ignored signals and the mask of the front: its worker was started with others.
static OF_THE_FRONT: OnceLock<(u64, SigSet)> = OnceLock::new();

/// What the worker of a front takes over.
pub(crate) fn at_start() -> String {
    let blocked = BLOCKED.into_iter().chain([STOP]).filter(|signal| was_blocked(*signal)).map(Signal::as_str);
    format!("{:x}:{}", ignored(), blocked.collect::<Vec<_>>().join(","))
}

/// Counts as what was found at the start. Call it before the first signal is listened to.
pub(crate) fn take_over(at_start: &str) {
    let (ignored, blocked) = at_start.split_once(':').unwrap_or_default();
    let blocked = blocked.split(',').filter_map(|name| name.parse::<Signal>().ok()).collect();
    let _ = OF_THE_FRONT.set((u64::from_str_radix(ignored, 16).unwrap_or(0), blocked));
}

fn ignored() -> u64 {
    let own = || IGNORED.get().copied().unwrap_or(0);
    OF_THE_FRONT.get().map_or_else(own, |(ignored, _)| *ignored)
}

fn was_blocked(signal: Signal) -> bool {
    let mask = OF_THE_FRONT.get().map(|(_, blocked)| blocked).or_else(|| MASK.get());
    mask.is_some_and(|mask| mask.contains(signal))
}

/// True if the signal was ignored at the start.
fn is_ignored(signal: i32) -> bool {
    ignored() >> (signal - 1) & 1 == 1
}

/// Blocks the signals that must not stop or kill `tenure`. Call it before there are threads, which inherit the
/// mask.
pub(crate) fn block() {
    if let Ok(mask) = SigSet::from_iter(BLOCKED).thread_swap_mask(SigmaskHow::SIG_BLOCK) {
        let _ = MASK.set(mask);
    }
}

/// What a process between `tenure` and the command has to undo: see [`execute`].
pub(crate) fn to_undo() -> String {
    let blocked = BLOCKED.into_iter().chain([STOP]).filter(|signal| !was_blocked(*signal));
    let undone = blocked.chain(is_ignored(SIGPIPE as i32).then_some(SIGPIPE));
    undone.map(Signal::as_str).collect::<Vec<_>>().join(",")
}

/// Lets the next program be stopped by a signal that [`arm_stop`] has blocked, where another command ran before.
pub(crate) fn disarm_stop(to_undo: &str) {
    let is_undone = to_undo.split(',').any(|name| name == STOP.as_str());
    let _ = is_undone.then(|| SigSet::from(STOP).thread_unblock());
}

/// Becomes the program, with the signals as they were for the process that said what is to undo, and as the one for which a
/// supervisor meant what it had for that process. Returns why it cannot.
pub(crate) fn execute(argv: Vec<OsString>, to_undo: &str) -> io::Error {
    let undone: SigSet = to_undo.split(',').filter_map(|name| name.parse::<Signal>().ok()).collect();
    let blocked = SigSet::from_iter(BLOCKED.into_iter().filter(|signal| undone.contains(*signal)));
    let _ = blocked.thread_unblock();
    let environment = environment(std::env::vars_os(), parent_id(), id());
    // The runtime ignores PIPE in this process, and `Command` ends that for the program.
    let error = if undone.contains(SIGPIPE) {
        execute_as_it_is(argv, environment)
    } else {
        Command::new(&argv[0]).args(&argv[1..]).env_clear().envs(environment).exec()
    };
    let _ = blocked.thread_block();
    error
}

#[cfg(target_os = "linux")]
fn execute_as_it_is(argv: Vec<OsString>, environment: Vec<(OsString, OsString)>) -> io::Error {
    let argv: Vec<CString> = argv.into_iter().map(text).collect();
    let entry = |(name, value): (OsString, OsString)| [name, value].join(OsStr::new("="));
    let environment: Vec<CString> = environment.into_iter().map(|variable| text(entry(variable))).collect();
    let Err(error) = nix::unistd::execvpe(&argv[0], &argv, &environment);
    error.into()
}

/// Other systems have no supervisor that names a process.
#[cfg(not(target_os = "linux"))]
fn execute_as_it_is(argv: Vec<OsString>, _environment: Vec<(OsString, OsString)>) -> io::Error {
    let argv: Vec<CString> = argv.into_iter().map(text).collect();
    let Err(error) = nix::unistd::execvp(&argv[0], &argv);
    error.into()
}

/// The environment of the command: sockets and a watchdog of systemd that were for us are for it. They are named by a pid, and
/// by a handle that is left out because the command has another one.
fn environment(
    ours: impl Iterator<Item = (OsString, OsString)>,
    us: u32,
    command: u32,
) -> Vec<(OsString, OsString)> {
    let (us, command) = (us.to_string(), command.to_string());
    let named = |name: &OsStr| name == "LISTEN_PID" || name == "WATCHDOG_PID";
    let passed = |(name, value): (OsString, OsString)| match named(&name) && value == *us {
        true => (name, OsString::from(&command)),
        false => (name, value),
    };
    ours.filter(|(name, _)| name != "LISTEN_PIDFDID").map(passed).collect()
}

fn text(argument: OsString) -> CString {
    CString::new(argument.into_vec()).expect("BUG: an argument of a process ends at its first NUL")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A USR1 that waited in the line at the moment of the grant killed the command at its start.
    #[tokio::test]
    async fn what_waits_in_the_line_of_the_front_is_not_for_a_command_that_starts() {
        let mut signals = Signals::listen_for_command().unwrap();
        let (line, mut front) = io::pipe().unwrap();
        signals.front = Some(Receiver::from_owned_fd(line.into()).unwrap());
        let [told, asked] = [Signal::SIGUSR1, SIGTERM].map(|signal| signal as i32);
        front.write_all(&[told as u8, asked as u8]).unwrap();
        signals.listen_to_stop();
        assert_eq!(signals.next(false).await, Some(asked));
        front.write_all(&[told as u8]).unwrap();
        assert_eq!(signals.next(false).await, Some(told));
    }

    #[test]
    fn what_a_supervisor_meant_for_us_is_for_the_command() {
        let given =
            [("LISTEN_PID", "7"), ("LISTEN_FDS", "2"), ("WATCHDOG_PID", "8"), ("LISTEN_PIDFDID", "99")];
        let given = given.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let command = environment(given.into_iter(), 7, 42);
        let text: Vec<String> =
            command.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
        assert_eq!(
            text,
            ["LISTEN_PID=42", "LISTEN_FDS=2", "WATCHDOG_PID=8"],
            "another process has the watchdog"
        );
    }
}

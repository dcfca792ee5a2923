//! The signals that were ignored or blocked when this process started, and how the command gets them back.

use std::{
    ffi::{CString, OsString},
    fs, io,
    os::unix::{ffi::OsStringExt, process::CommandExt},
    process::Command,
    sync::OnceLock,
};

use nix::{
    sys::signal::{
        SigSet, SigmaskHow,
        Signal::{self, SIGPIPE, SIGTTOU, SIGXFSZ},
    },
    unistd::execvp,
};

/// Blocked in all our processes, so that a write is neither a stop nor a death: TTOU is for a write to a terminal in the
/// background (`stty tostop`), XFSZ for a write to a file at its limit, which is then an error.
const BLOCKED: [Signal; 2] = [SIGTTOU, SIGXFSZ];

/// What was ignored, a bit for each signal.
static IGNORED: OnceLock<u64> = OnceLock::new();

/// The mask of signals at the start.
static MASK: OnceLock<SigSet> = OnceLock::new();

/// Before `main`, because the runtime of Rust ignores PIPE before it calls that. Without `/proc` nothing is known, and
/// no signal counts as ignored.
#[ctor::ctor]
fn look() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let _ = IGNORED.set(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0));
}

/// True if the signal was ignored at the start.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    IGNORED.get().copied().unwrap_or(0) >> (signal as i32 - 1) & 1 == 1
}

/// Blocks what must not stop or kill us. Call it before there are threads, which inherit it.
pub(crate) fn block() {
    if let Ok(mask) = SigSet::from_iter(BLOCKED).thread_swap_mask(SigmaskHow::SIG_BLOCK) {
        let _ = MASK.set(mask);
    }
}

/// What a process of ours between us and the command has to undo: see [`execute`].
pub(crate) fn to_undo() -> String {
    let was_blocked = |signal| MASK.get().is_some_and(|mask| mask.contains(signal));
    let blocked = BLOCKED.into_iter().filter(|signal| !was_blocked(*signal));
    let undone = blocked.chain(is_ignored(SIGPIPE).then_some(SIGPIPE));
    undone.map(Signal::as_str).collect::<Vec<_>>().join(",")
}

/// Becomes the program, with the signals as they were for the process that said what is to undo. Returns why it cannot.
pub(crate) fn execute(argv: Vec<OsString>, to_undo: &str) -> io::Error {
    let undone: SigSet = to_undo.split(',').filter_map(|name| name.parse::<Signal>().ok()).collect();
    let blocked = SigSet::from_iter(BLOCKED.into_iter().filter(|signal| undone.contains(*signal)));
    let _ = blocked.thread_unblock();
    // The runtime ignores PIPE in this process, and `Command` ends that for the program.
    let error = if undone.contains(SIGPIPE) {
        let argv: Vec<CString> = argv.into_iter().map(text).collect();
        let Err(error) = execvp(&argv[0], &argv);
        error.into()
    } else {
        Command::new(&argv[0]).args(&argv[1..]).exec()
    };
    let _ = blocked.thread_block();
    error
}

fn text(argument: OsString) -> CString {
    CString::new(argument.into_vec()).expect("BUG: an argument of a process ends at its first NUL")
}

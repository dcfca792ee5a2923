//! The standard error, written by a thread of its own: a reader that stands still, or is gone, costs no lease.

use std::{
    collections::VecDeque,
    io::{self, Write},
    mem,
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use indicatif::TermLike;
use tenure::backend::Timing;

use crate::text;

/// Writes lines for people. If the reader stands still, they wait, and are dropped and counted when there are too many.
pub(crate) fn say(lines: String) {
    put(Text::Lines(lines));
}

/// Waits until all lines are written, at most this long. True if they are.
pub(crate) fn flush(patience: Duration) -> bool {
    let Some(Some(lines)) = LINES.get() else { return true };
    let waits = |state: &mut State| state.written < state.put;
    let waited = lines.written.wait_timeout_while(lines.state(), patience, waits);
    !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
}

fn put(text: Text) {
    let started = LINES.get_or_init(|| {
        let lines: &'static Lines = Box::leak(Box::default());
        let writes = move || lines.write_all(&mut io::stderr());
        thread::Builder::new().name("tenure-lines".to_owned()).spawn(writes).ok().map(|_| lines)
    });
    match started {
        Some(lines) => lines.put(text),
        // OK to drop an error: it is closed.
        None => drop(text::write(&mut io::stderr(), text.as_str())),
    }
}

/// `None` if the system starts no thread: then each line is written where it is said.
static LINES: OnceLock<Option<&'static Lines>> = OnceLock::new();

#[derive(Default)]
struct Lines {
    state: Mutex<State>,
    added: Condvar,
    written: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Text>,
    lost: usize,
    put: u64,
    written: u64,
    /// The last line was not written in time: the next ones are not waited for.
    is_stuck: bool,
}

enum Text {
    Lines(String),
    /// A picture of progress: one that is not seen is not missed.
    Frame(String),
}

impl Text {
    fn as_str(&self) -> &str {
        match self {
            Self::Lines(text) | Self::Frame(text) => text,
        }
    }
}

impl Lines {
    fn state(&self) -> MutexGuard<'_, State> {
        // OK because no code that can panic runs under it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when it is written, so that it stands before what the command prints later; or soon.
    fn put(&self, text: Text) {
        let mut state = self.state();
        match text {
            Text::Frame(_) if !state.waiting.is_empty() => return,
            Text::Lines(_) if state.waiting.len() >= MOST => {
                state.lost += 1;
                return;
            }
            _ => state.waiting.push_back(text),
        }
        state.put += 1;
        let mine = state.put;
        self.added.notify_one();
        if !state.is_stuck {
            let waits = |state: &mut State| state.written < mine;
            let (mut state, _) =
                self.written.wait_timeout_while(state, SOON, waits).unwrap_or_else(PoisonError::into_inner);
            state.is_stuck = state.written < mine;
        }
    }

    /// Writes for ever what is put.
    fn write_all(&self, out: &mut impl Write) {
        loop {
            let is_idle = |state: &mut State| state.waiting.is_empty();
            let mut state =
                self.added.wait_while(self.state(), is_idle).unwrap_or_else(PoisonError::into_inner);
            let next = state.waiting.pop_front();
            let lost = if state.waiting.is_empty() { mem::take(&mut state.lost) } else { 0 };
            drop(state);
            // OK to drop an error: it is closed.
            let _ = next.map(|next| text::write(out, next.as_str()));
            if lost > 0 {
                let _ = text::write(
                    out,
                    &format!(
                        "tenure: {lost} more lines were lost: the standard error was not read in time\n"
                    ),
                );
            }
            let mut state = self.state();
            state.written += 1;
            state.is_stuck = false;
            drop(state);
            self.written.notify_all();
        }
    }
}

/// The standard error for logs, which come a line at a time.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        say(text::fitted(&String::from_utf8_lossy(line)));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The terminal on which progress is drawn.
#[derive(Debug, Default)]
pub(crate) struct Terminal(Mutex<String>);

impl Terminal {
    fn add(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        let size = rustix::termios::tcgetwinsize(io::stderr());
        size.ok().map(|size| size.ws_col).filter(|columns| *columns > 0).unwrap_or(80)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.add(&moved(n, 'A'))
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.add(&moved(n, 'B'))
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.add(&moved(n, 'C'))
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.add(&moved(n, 'D'))
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.add(&format!("{line}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let frame = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if !frame.is_empty() {
            put(Text::Frame(frame));
        }
        Ok(())
    }
}

fn moved(n: usize, to: char) -> String {
    if n == 0 { String::new() } else { format!("\x1b[{n}{to}") }
}

/// How long the caller waits until its line is written.
const SOON: Duration = Duration::from_millis(20);
// The caller may hold a lease with the shortest ttl.
const _: () = assert!(5 * SOON.as_millis() <= Timing::MIN_TTL.as_millis());
/// How many lines wait for a reader.
const MOST: usize = 256;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use tenure::backend::{Host, TokioHost};

    use super::*;

    /// L7, L8: a full pipe stopped renewals, and one without a reader ended them.
    #[test]
    fn a_reader_that_stands_still_delays_nobody() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let lines: &'static Lines = Box::leak(Box::default());
        thread::spawn(move || lines.write_all(&mut writer));
        let began = TokioHost.now();
        // More than a pipe holds, and than may wait.
        let line = format!("{}\n", "x".repeat(4000));
        (0..MOST + 60).for_each(|_| lines.put(Text::Lines(line.clone())));
        assert!(
            began.elapsed(TokioHost.now()) < Duration::from_secs(5),
            "{:?}",
            began.elapsed(TokioHost.now())
        );
        let mut read = String::new();
        while !read.contains("lines were lost") {
            let mut some = [0; 65536];
            let n = reader.read(&mut some).unwrap();
            read.push_str(std::str::from_utf8(&some[..n]).unwrap());
        }
        assert!(read.lines().count() > MOST, "{}", read.lines().count());
        drop(reader);
        let began = TokioHost.now();
        (0..100).for_each(|_| lines.put(Text::Lines("y\n".to_owned())));
        assert!(
            began.elapsed(TokioHost.now()) < Duration::from_secs(5),
            "no reader: {:?}",
            began.elapsed(TokioHost.now())
        );
    }
}

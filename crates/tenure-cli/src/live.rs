//! `watch`: the locks as they change, in a table on a terminal, as lines of JSON elsewhere.

use std::{
    io::{self, IsTerminal},
    os::fd::AsFd,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::termios::tcgetwinsize;
use tenure::{
    BackendError,
    backend::{Host, Moment, TokioHost},
    view::{LockView, Watch},
};

use crate::{
    args::{Global, WatchArgs},
    exit::{self, Stop, chain},
    signals::Signals,
    store, text,
    view::{self, json, table, try_print},
    waiting::{self, LONG, announce_after, attended, silence},
};

/// The interval from the start of one poll to the next.
const PERIOD: Duration = Duration::from_secs(1);
/// A new lock that is shown later than that is worth a line.
const LATE: Duration = Duration::from_secs(5);
/// How long the store may fail in a row.
const PATIENCE: Duration = Duration::from_secs(30);

/// From the top: the new table overwrites the old one, and nothing flickers.
const HOME: &str = "\x1b[H";
const END_OF_LINE: &str = "\x1b[K\r\n";
const REST: &str = "\x1b[J";
const CLEAR: &str = "\x1b[2J";

/// Since when the store fails in a row, and whether that was reported.
#[derive(Default)]
struct Failing {
    since: Option<Moment>,
}

pub(crate) async fn watch(global: &Global, args: &WatchArgs) -> Result<u8, Stop> {
    let locks = store::open(global).await?;
    let mut signals = Signals::listen()?;
    let mut watch = locks.watch_all(&args.prefix);
    let is_live = io::stdout().is_terminal() && !args.json;
    let (mut failing, mut is_slow) = (Failing::default(), false);
    if is_live {
        drawn(CLEAR)?;
    }
    loop {
        let looked = looked(global, args, &mut watch, is_live, &mut signals).await?;
        let trouble = failing.on(looked.as_ref().err(), is_live)?;
        if is_live {
            let views: Vec<LockView> = watch.latest().cloned().collect();
            draw(&views, &args.prefix, &store::place(global), trouble.as_deref())?;
            continue;
        }
        if let Some(trouble) = trouble.filter(|_| !global.quiet) {
            exit::warn(&trouble);
        }
        if let Some(interval) = watch.list_interval().filter(|interval| *interval > LATE && !is_slow) {
            is_slow = true;
            if !global.quiet {
                exit::warn(&format!(
                    "{} has many keys: a new lock is shown up to {} late; a database of their own for locks, as in \
                     redis://HOST/1, ends that",
                    store::place(global),
                    text::seconds(interval)
                ));
            }
        }
        for view in looked.unwrap_or_default() {
            match try_print(&json(&view)) {
                // The reader has seen what it wanted.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(0),
                printed => view::printed(printed)?,
            }
        }
        if has_no_reader() {
            return Ok(0);
        }
    }
}

/// The next poll. If the store does not answer, a line below the table reports it, or a line on the standard error.
async fn looked(
    global: &Global,
    args: &WatchArgs,
    watch: &mut Watch,
    is_live: bool,
    signals: &mut Signals,
) -> Result<Result<Vec<LockView>, BackendError>, Stop> {
    let (began, place) = (TokioHost.now(), store::place(global));
    let line = || silence(&place, began.elapsed(TokioHost.now()).saturating_sub(PERIOD));
    let views: Vec<LockView> = watch.latest().cloned().collect();
    let shown = async {
        waiting::pause(PERIOD + LONG).await;
        if !is_live {
            return waiting::spin(global.quiet, line).await;
        }
        loop {
            // OK to go on: the next answer is drawn as well, and ends it.
            let _ = draw(&views, &args.prefix, &place, Some(&line()));
            waiting::pause(PERIOD).await;
        }
    };
    let said = announce_after(global.quiet || is_live, PERIOD + LONG, line);
    attended(watch.look(), signals.asked_to_end(), shown, said).await.map_err(Stop::signalled)
}

/// The reader of the standard output, a pipe, has gone: the next change may come late or never.
fn has_no_reader() -> bool {
    let out = io::stdout();
    let mut out = [PollFd::new(out.as_fd(), PollFlags::empty())];
    poll(&mut out, PollTimeout::ZERO).is_ok()
        && out[0].revents().is_some_and(|events| events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP))
}

impl Failing {
    /// The message about the answer: in a live table while the failure lasts, elsewhere once.
    ///
    /// # Errors
    /// If the store fails permanently, or has failed for too long.
    fn on(&mut self, error: Option<&BackendError>, is_live: bool) -> Result<Option<String>, Stop> {
        let Some(error) = error else {
            self.since = None;
            return Ok(None);
        };
        let now = TokioHost.now();
        let is_new = self.since.is_none();
        let since = *self.since.get_or_insert(now);
        if !error.kind().is_transient() || since.elapsed(now) >= PATIENCE {
            return Err(Stop::store(error));
        }
        let is_said = is_new || is_live;
        let line = || format!("{}; asking again, giving up after {}", chain(error), text::seconds(PATIENCE));
        Ok(is_said.then(line))
    }
}

/// As many lines as the terminal has.
fn draw(views: &[LockView], prefix: &str, place: &str, trouble: Option<&str>) -> Result<(), Stop> {
    let size = tcgetwinsize(io::stdout());
    let (rows, columns) =
        size.map_or((24, 80), |size| (size.ws_row.max(4).into(), size.ws_col.max(20).into()));
    let names = if prefix.is_empty() { String::new() } else { format!(" that start with {prefix}") };
    let clock = text::clock(TokioHost.now().wall);
    let mut lines = vec![format!("{clock}  {} locks{names} in {place}", views.len())];
    lines.extend(trouble.map(str::to_owned));
    if !views.is_empty() {
        lines.extend(table(views).lines().map(str::to_owned));
    }
    if lines.len() >= rows {
        let more = lines.len() - (rows - 2);
        lines.truncate(rows - 2);
        lines.push(format!("and {more} more"));
    }
    let fitted = lines.iter().map(|line| line.chars().take(columns).collect::<String>());
    let text: String = fitted.map(|line| tenure::command::shown(&line).to_string() + END_OF_LINE).collect();
    drawn(&format!("{HOME}{text}{REST}"))
}

fn drawn(text: &str) -> Result<(), Stop> {
    use io::Write;
    let mut out = io::stdout();
    view::printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

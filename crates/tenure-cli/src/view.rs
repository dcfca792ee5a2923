//! `ls`, `show`, `break`, `completions`.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use clap::CommandFactory;
use comfy_table::{Table, presets::NOTHING};
use serde::Serialize;
use tenure::{
    BackendError, Locker, Priority,
    command::shown,
    view::{BreakScope, LockView},
};

use crate::{
    args::{Break, Cli, Global, Ls, Show},
    exit::{self, Stop, chain},
    signals::unhandled,
    store, text,
    waiting::{Question, WALK},
};

/// Prints lines for people to the standard output.
///
/// # Errors
/// If it cannot be written, as on a full disk. A reader that has gone is not an error: it has seen what it wanted.
pub(crate) fn print(text: &str) -> Result<(), Stop> {
    print_exactly(&text::fitted(text))
}

/// The same for programs: no line is cut.
pub(crate) fn print_exactly(text: &str) -> Result<(), Stop> {
    printed(try_print(text))
}

/// The result of an attempt to print.
pub(crate) fn printed(attempt: io::Result<()>) -> Result<(), Stop> {
    match attempt {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Stop::internal(format!("cannot write to the standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints text that the reader must not miss: here a reader that has gone is an error too.
pub(crate) fn try_print(text: &str) -> io::Result<()> {
    if STDOUT_IS_CLOSED.load(Ordering::Relaxed) {
        return Err(io::Error::other("the standard output is closed"));
    }
    text::write(&mut io::stdout(), &format!("{}\n", text.trim_end()))
}

/// Whether the standard output was closed at the start.
static STDOUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Before `main`, because the runtime of Rust opens `/dev/null` in its place.
#[ctor::ctor]
fn read_stdout() {
    STDOUT_IS_CLOSED.store(rustix::io::fcntl_getfd(io::stdout()).is_err(), Ordering::Relaxed);
}

pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> String {
    let json = serde_json::to_string(value).expect("BUG: a view is plain data");
    // JSON lets them stand, and a terminal takes some for the beginning of an order: those from 80 to 9F, and 7F. They are in
    // texts only.
    let is_order = |c: char| c.is_control() && !c.is_ascii() || c == '\x7f';
    if !json.contains(is_order) {
        return json;
    }
    json.chars().map(|c| if is_order(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() }).collect()
}

/// A list, an element a line.
pub(crate) fn json_list<T: Serialize>(values: &[T]) -> String {
    let lines: Vec<String> = values.iter().map(json).collect();
    format!("[{}]", lines.join(",\n"))
}

pub(crate) async fn ls(global: &Global, args: &Ls) -> Result<u8, Stop> {
    let locks = store::open(global).await?;
    let question = Question::new(global, "looking through the store").lasting(WALK);
    let views = question.answered(unhandled(), locks.list(&args.prefix)).await?;
    let closed = closed(global, &locks).await?;
    if args.json {
        let views: Vec<Shown<'_>> =
            views.iter().map(|view| Shown { view, closed: closed.as_ref() }).collect();
        print_exactly(&json_list(&views))?;
    } else if views.is_empty() {
        store::tell_where(global);
    } else {
        print(&table(&views))?;
    }
    tell(global, closed.as_ref());
    Ok(0)
}

/// What `ls` and `show` print as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    view: &'a LockView,
    #[serde(skip_serializing_if = "Option::is_none")]
    closed: Option<&'a Closed>,
}

/// A store that grants nothing at present, though no lock need be held.
#[derive(Serialize)]
struct Closed {
    why: String,
    /// Until it grants again; `None` if that is not known.
    left_ms: Option<u128>,
}

async fn closed(global: &Global, locks: &Locker) -> Result<Option<Closed>, Stop> {
    let question = Question::new(global, "looking whether the store grants");
    let closed = |error: BackendError| Closed {
        why: chain(&error),
        left_ms: error.retry_hint().map(|left| left.as_millis()),
    };
    Ok(question.awaited(unhandled(), locks.may_grant()).await.map_err(Stop::signalled)?.err().map(closed))
}

fn tell(global: &Global, closed: Option<&Closed>) {
    if let Some(closed) = closed.filter(|_| !global.quiet) {
        exit::warn(&closed.why);
    }
}

pub(crate) fn table(views: &[LockView]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["NAME", "MODE", "HELD BY", "TOKEN", "SINCE", "LEFT", "WAITING"]);
    for view in views {
        let waiting = waiting(view);
        for held in &view.holders {
            table.add_row([
                shown(view.name.as_str()).to_string(),
                held.mode.to_string(),
                held.who(),
                held.token.map_or_else(|| "-".into(), |token| token.to_string()),
                held.since.map_or_else(String::new, text::clock),
                text::left(held.expires_in),
                waiting.clone(),
            ]);
        }
        if view.holders.is_empty() {
            let nobody = ["-", "-", "-", "-", "-"].map(String::from);
            table.add_row(
                [vec![shown(view.name.as_str()).to_string()], nobody.to_vec(), vec![waiting]].concat(),
            );
        }
    }
    lines(table)
}

/// How many wait, and how many of them in another class than the default.
fn waiting(view: &LockView) -> String {
    let of = |class: &Priority| view.queue.iter().filter(|waits| waits.priority == *class).count();
    let counted = Priority::ALL.iter().filter(|class| !class.is_normal() && of(class) > 0);
    let classes: Vec<String> = counted.map(|class| format!("{} {class}", of(class))).collect();
    let all = view.queue.len();
    if classes.is_empty() { all.to_string() } else { format!("{all} ({})", classes.join(", ")) }
}

/// A table as lines, its columns two spaces apart.
pub(crate) fn lines(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

pub(crate) async fn show(global: &Global, args: &Show) -> Result<u8, Stop> {
    let locks = store::open(global).await?;
    let question = Question::new(global, "looking at the lock").about(&args.name);
    let view = question.answered(unhandled(), locks.inspect(&args.name)).await?;
    let closed = closed(global, &locks).await?;
    if args.json {
        print_exactly(&json(&Shown { view: &view, closed: closed.as_ref() }))?
    } else {
        print(&text(&view))?
    }
    tell(global, closed.as_ref());
    Ok(0)
}

fn text(view: &LockView) -> String {
    let name = shown(view.name.as_str());
    let is_free = view.holders.is_empty() && view.kept_by.is_none();
    let mut text = if is_free { format!("{name} is free\n") } else { format!("{name}\n") };
    if let Some(sessions) = &view.kept_by {
        let sessions = shown(sessions).within(512);
        text += &format!("  expired; perhaps kept by the open transaction of {sessions}\n");
    }
    for held in &view.holders {
        let token = held.token.map_or_else(String::new, |token| format!(", token {token}"));
        let who = text::holder(held);
        let owner = match held.is_foreign() {
            true => String::new(),
            false => format!(", owner {}", shown(&held.owner).within(128)),
        };
        text += &format!("  held ({}) by {who}{token}{owner}\n", held.mode);
    }
    for (place, waits) in view.queue.iter().enumerate() {
        let (place, waited) = (place + 1, text::seconds(waits.waiting));
        let class = if waits.priority.is_normal() { String::new() } else { format!(", {}", waits.priority) };
        text += &format!("  {place}. waits ({}{class}) for {waited}: {}\n", waits.mode, waits.who());
    }
    if let Some(memo) = &view.memo {
        let (age, left) = (text::ago(memo.age), text::seconds(memo.left));
        let (owner, said) = (shown(&memo.owner).within(128), shown(&memo.text).within(1024));
        text += &format!("  memo of {age}, {left} left, owner {owner}: {said}\n");
    }
    text += &format!("  fence {}\n", view.fence);
    text
}

pub(crate) async fn break_lock(global: &Global, args: &Break) -> Result<u8, Stop> {
    let locks = store::open(global).await?;
    let question = Question::new(global, "breaking the lock").about(&args.name);
    let scope = match args.owner {
        Some(owner) => BreakScope::Owner(owner),
        None if args.foreign => BreakScope::All,
        None => BreakScope::Leases,
    };
    let robbed = question.awaited(unhandled(), locks.force_release_from(&args.name, scope)).await;
    let robbed = robbed.map_err(Stop::signalled)?.map_err(|error| {
        let stop = if error.is_foreign_holder() { Stop::usage(chain(&error)) } else { Stop::store(&error) };
        stop.of(&args.name)
    })?;
    if global.quiet {
        return Ok(0);
    }
    let name = shown(args.name.as_str());
    let mut text = String::new();
    for holder in &robbed {
        text += &format!("{name} was taken from {}\n", text::holder_since(holder));
    }
    if robbed.is_empty() {
        text = args.owner.map_or_else(
            || format!("{name} was free"),
            |owner| format!("{name} is not held by {owner}: nothing has changed"),
        );
    }
    match try_print(&text) {
        // The break is done, even if it cannot be printed.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Stop::internal(format!(
            "{name}: the lock was broken, but cannot write to the standard output: {error}"
        ))),
        _ => Ok(0),
    }
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Stop> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
    print_exactly(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::{prelude::*, sample::select};
    use tenure::{
        AcquireError, BackendError, ErrorKind, FencingToken, Label, LockName,
        backend::Outcome,
        view::{HolderView, MemoView, Mode, WaiterView},
    };

    use super::*;

    #[test]
    fn json_orders_a_terminal_nothing_and_is_exact() {
        let text = "a\u{9b}31m\u{85}\x7f\x1bé";
        let shown = json(text);
        assert!(!shown.contains(char::is_control), "{shown:?}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
    }

    fn stranger() -> impl Strategy<Value = String> {
        let evil = select(vec![
            "\x1b[31m", "\n", "\r", "\u{202e}", "\u{2028}", "\u{9b}", "\u{85}", "\x7f", "\nforged", "\0",
        ]);
        let part = prop_oneof![evil.prop_map(str::to_owned), any::<String>(), Just("x".repeat(3000))];
        prop::collection::vec(part, 0..4).prop_map(|parts| parts.concat())
    }

    /// Whether it is `lines` lines that a terminal shows literally.
    fn is_tame(text: &str, lines: usize) -> bool {
        let hidden = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
        let is_bad = |c: char| (c.is_control() && c != '\n') || hidden(c);
        !text.contains(is_bad)
            && text.lines().count() == lines
            && text.lines().all(|line| line.chars().count() < 6000)
    }

    proptest! {
        /// An owner or a label in the store painted the terminal and forged lines, because a label was shown
        /// unchanged.
        #[test]
        fn nothing_that_is_stored_paints_the_terminal_or_forges_a_line(a in stranger(), b in stranger(), foreign: bool) {
            let mut label = Label::new("", 7, "", "");
            (label.host, label.user, label.command) = (a.clone(), b.clone(), b.clone());
            let label = (!foreign).then_some(label);
            let (owner, mode) = (a.clone(), Mode::Exclusive);
            let mut held = HolderView::new(owner.clone(), mode);
            held.label.clone_from(&label);
            let waits = WaiterView::new(owner, mode, label, Duration::ZERO);
            let clean: String = b.chars().filter(|c| !c.is_control()).take(100).collect();
            let name = LockName::new(format!("n{clean}")).unwrap();
            let view = LockView::new(name, vec![held.clone()], vec![waits], FencingToken::new(1));
            let mut noted = view.clone();
            let (age, left) = (Duration::ZERO, Duration::MAX);
            noted.memo = Some(MemoView::new(a.clone(), (a.clone(), FencingToken::new(1)), age, left));
            prop_assert!(is_tame(&text(&view), 4), "{:?}", text(&view));
            prop_assert!(is_tame(&text(&noted), 5), "{:?}", text(&noted));
            let mut free = view.clone();
            free.holders.clear();
            let table = table(&[view, free]);
            prop_assert!(is_tame(&table, 3), "{table:?}");
            prop_assert!(is_tame(&text::holder(&held), 1));
            let busy = AcquireError::TimedOut { waited: Duration::ZERO, ahead: None, holder: Some(Box::new(held)) };
            prop_assert!(is_tame(&busy.to_string(), 1));
            let error = BackendError::new(ErrorKind::Corrupt, Outcome::NotApplied, format!("it says {a}"))
                .with("lock", &b)
                .caused_by(io::Error::other(b));
            let shown = [error.to_string(), format!("{error:?}")];
            prop_assert!(shown.iter().all(|text| is_tame(text, 1)), "a failure");
            prop_assert!(is_tame(&chain(&error), 1));
        }
    }
}

//! What the library says, for `logging`: events wait here until a thread of Python fetches them.

use std::{
    fmt::{self, Write as _},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use pyo3::prelude::*;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// More events than these are not kept: a program that does not fetch them would fill its memory.
const MOST: usize = 1_000;

static JOURNAL: Journal =
    Journal { state: Mutex::new(State { events: Vec::new(), is_ended: false }), rang: Condvar::new() };

struct Journal {
    state: Mutex<State>,
    rang: Condvar,
}

struct State {
    events: Vec<(u8, String)>,
    is_ended: bool,
}

impl Journal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if it stays locked: in a child whose parent forked while one of its threads had it.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        let tries = (0..100).map(|_| {
            let state = self.state.try_lock();
            if state.is_err() {
                thread::yield_now();
            }
            state.ok()
        });
        tries.flatten().next()
    }
}

/// The events from `info` on, of this library alone.
struct Collector(AtomicU64);

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO && metadata.target().starts_with("tenure")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.0.fetch_add(1, Ordering::Relaxed).max(1))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        let Some(mut state) = JOURNAL.try_state() else { return };
        if state.events.len() < MOST {
            state.events.push((level, line.whole()));
            JOURNAL.rang.notify_one();
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event as one line: its message, then its fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn whole(self) -> String {
        if self.fields.is_empty() { self.message } else { format!("{} ({})", self.message, self.fields) }
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
            return;
        }
        let comma = if self.fields.is_empty() { "" } else { ", " };
        // OK to ignore: a text takes what is written to it.
        let _ = write!(self.fields, "{comma}{}: {value:?}", field.name());
    }
}

/// Begins to collect; `False` if another library of this process does.
#[pyfunction]
pub(crate) fn start_journal() -> bool {
    tracing::subscriber::set_global_default(Collector(AtomicU64::new(1))).is_ok()
}

/// Waits for events, and returns each with its level of `logging`; `None` when the interpreter ends.
#[pyfunction]
pub(crate) fn next_events(py: Python<'_>) -> Option<Vec<(u8, String)>> {
    py.detach(|| {
        let state = JOURNAL.state();
        let is_quiet = |state: &mut State| state.events.is_empty() && !state.is_ended;
        let mut state = JOURNAL.rang.wait_while(state, is_quiet).unwrap_or_else(PoisonError::into_inner);
        let events = std::mem::take(&mut state.events);
        let is_ended = state.is_ended;
        drop(state);
        (!is_ended || !events.is_empty()).then_some(events)
    })
}

/// What the parent of a fork has not fetched is not the child's.
pub(crate) fn forget_events() {
    if let Some(mut state) = JOURNAL.try_state() {
        state.events.clear();
    }
}

/// No thread waits for events any more.
#[pyfunction]
pub(crate) fn stop_journal() {
    if let Some(mut state) = JOURNAL.try_state() {
        state.is_ended = true;
        JOURNAL.rang.notify_all();
    }
}

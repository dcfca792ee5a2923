//! Prints that a store refuses to renew. The renewal is repeated until the lease ends; only this line has the reason.

use std::{fmt, sync::Mutex, time::Duration};

use tenure::{
    backend::{Host, Moment, TokioHost},
    command::shown,
};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::lines;

/// Writes refused renewals, a line every ten seconds, and nothing else of the log.
#[derive(Default)]
struct Refusals(Mutex<Option<Moment>>);

pub(crate) fn init() {
    let logs = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
    logs.event_format(Refusals::default()).with_writer(|| lines::Log).init();
}

impl<S, N> FormatEvent<S, N> for Refusals
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if event.metadata().target() != tenure::command::REFUSED {
            return Ok(());
        }
        // A lock that a panic left poisoned still has its time.
        let mut said = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = TokioHost.now();
        if said.is_some_and(|said| said.elapsed(now) < EVERY) {
            return Ok(());
        }
        *said = Some(now);
        let mut line = Line::default();
        event.record(&mut line);
        let Line { lock, error, message } = line;
        // What is logged may have come from the store.
        writeln!(out, "tenure: {}", shown(&format!("{lock}: {message}: {error}")).within(4096))
    }
}

#[derive(Default)]
struct Line {
    lock: String,
    error: String,
    message: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let part = match field.name() {
            "lock" => &mut self.lock,
            "error" => &mut self.error,
            "message" => &mut self.message,
            _ => return,
        };
        *part = format!("{value:?}");
    }
}

const EVERY: Duration = Duration::from_secs(10);

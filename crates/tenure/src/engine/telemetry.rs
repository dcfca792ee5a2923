//! Telemetry of acquisitions, holds and renewals: spans with their outcome, the warning of a loss, and metrics.

use std::{sync::OnceLock, time::Duration};

use tenure_core::{BackendError, Grant, Host, LockName, Mode, Moment, Outcome, Renewal};
use tracing::{Span, debug_span, field::Empty};

use crate::{
    engine::metrics::{
        AcquireOutcome, HoldOutcome, IS_COUNTED, LockMetrics, LossCause, Metrics, ReleaseOutcome,
        RenewalOutcome,
    },
    error::{AcquireError, Lost},
};

/// The telemetry of one store. All spans have the same fields.
#[derive(Clone)]
pub(crate) struct Telemetry {
    backend: &'static str,
    pub(crate) metrics: Metrics,
}

impl Telemetry {
    pub(crate) fn new(backend: &'static str) -> Self {
        Self { backend, metrics: Metrics::new(backend) }
    }

    /// From the first request to the answer; the owner and the token are recorded when they are known.
    pub(crate) fn acquire<'a>(&self, lock: &LockName, mode: Mode, host: &'a dyn Host) -> AcquireRecord<'a> {
        let backend = self.backend;
        let span = debug_span!("acquire", %lock, owner = Empty, token = Empty, backend, outcome = Empty);
        AcquireRecord {
            span,
            metrics: self.metrics.of(lock),
            mode,
            host,
            began: OnceLock::new(),
            ahead: OnceLock::new(),
            outcome: AcquireOutcome::Cancelled,
        }
    }

    /// Lasts as long as the guard.
    pub(crate) fn hold_span(&self, grant: &Grant) -> Span {
        let (Grant { name, owner, token, .. }, backend) = (grant, self.backend);
        debug_span!("hold", lock = %name, %owner, %token, backend, outcome = Empty)
    }

    /// The metrics and warnings of a held lease.
    pub(crate) fn hold(&self, lock: &LockName) -> HoldRecord {
        HoldRecord::new(self.backend, self.metrics.of(lock))
    }

    /// One renewal of one lease. It has no parent, because it runs on a separate thread, and may outlive the guard.
    pub(crate) fn renewal(&self, grant: &Grant, hold: &HoldRecord) -> RenewalRecord {
        let (Grant { name, owner, token, .. }, backend) = (grant, self.backend);
        let span =
            debug_span!(parent: None, "renewal", lock = %name, %owner, %token, backend, outcome = Empty);
        RenewalRecord { span, metrics: hold.metrics.clone(), result: RenewalOutcome::Unknown }
    }

    /// A release in the background was abandoned.
    pub(crate) fn release_given_up(&self, lock: &LockName) {
        self.metrics.of(lock).released(ReleaseOutcome::GivenUp);
    }
}

/// One acquisition. If it is dropped before its end, it was cancelled.
pub(crate) struct AcquireRecord<'a> {
    pub(crate) span: Span,
    metrics: LockMetrics,
    mode: Mode,
    host: &'a dyn Host,
    began: OnceLock<Moment>,
    ahead: OnceLock<usize>,
    outcome: AcquireOutcome,
}

impl AcquireRecord<'_> {
    pub(crate) fn began(&self, now: Moment) {
        // OK if it is set: it begins once.
        let _ = self.began.set(now);
    }

    /// The number of waiters ahead; only the first number counts.
    pub(crate) fn on_queue(&self, ahead: impl FnOnce() -> Option<usize>) {
        if IS_COUNTED
            && self.ahead.get().is_none()
            && let Some(ahead) = ahead()
            && self.ahead.set(ahead).is_ok()
        {
            self.metrics.queue_ahead(ahead);
        }
    }

    pub(crate) fn end<T>(mut self, answer: &Result<T, AcquireError>) {
        self.outcome = match answer {
            Ok(_) => AcquireOutcome::Acquired,
            Err(AcquireError::TimedOut { .. }) => AcquireOutcome::TimedOut,
            Err(_) => AcquireOutcome::Failed,
        };
    }
}

impl Drop for AcquireRecord<'_> {
    fn drop(&mut self) {
        self.span.record("outcome", self.outcome.as_str());
        let took = || self.began.get().map_or(Duration::ZERO, |began| began.elapsed(self.host.now()));
        self.metrics.acquired(self.mode, self.outcome, took);
    }
}

/// One holder's time with a lease. A lease that was passed on, or is kept idle, has none before it is taken.
pub(crate) struct HoldRecord {
    backend: &'static str,
    metrics: LockMetrics,
    since: OnceLock<Moment>,
    outcome: OnceLock<HoldOutcome>,
}

impl HoldRecord {
    fn new(backend: &'static str, metrics: LockMetrics) -> Self {
        Self { backend, metrics, since: OnceLock::new(), outcome: OnceLock::new() }
    }

    /// The record of the next holder.
    pub(crate) fn next(&self) -> Self {
        Self::new(self.backend, self.metrics.clone())
    }

    pub(crate) fn begin(&self, now: Moment) {
        if self.since.set(now).is_ok() {
            self.metrics.hold_began();
        }
    }

    /// How it ended: the first report counts.
    pub(crate) fn end(&self, outcome: HoldOutcome, now: impl FnOnce() -> Moment) -> HoldOutcome {
        if let Some(since) = self.since.get()
            && self.outcome.set(outcome).is_ok()
        {
            self.metrics.hold_ended(outcome, || since.elapsed(now()));
        }
        self.outcome.get().copied().unwrap_or(outcome)
    }

    /// Warns, once, if a holder had the lease and it ended without its release.
    ///
    /// Not under a mutex: a subscriber may be slow.
    pub(crate) fn lose(&self, grant: &Grant, lost: &Lost, now: Moment) {
        let (Some(cause), Some(since)) = (LossCause::of(lost.cause()), self.since.get()) else { return };
        if self.outcome.set(HoldOutcome::Lost).is_err() {
            return;
        }
        let held = since.elapsed(now);
        self.metrics.hold_ended(HoldOutcome::Lost, || held);
        self.metrics.lost(cause);
        let (Grant { name, owner, token, .. }, backend) = (grant, self.backend);
        tracing::warn!(lock = %name, %owner, %token, cause = cause.as_str(), held = %format_args!("{held:.1?}"), backend, "lease lost");
    }

    pub(crate) fn released(&self, outcome: ReleaseOutcome) {
        self.metrics.released(outcome);
    }

    /// A renewal succeeded with this much validity left; if none was left, it came too late.
    pub(crate) fn renewed_with(&self, left: Duration) {
        if !left.is_zero() {
            self.metrics.renewal_margin(left);
        }
    }
}

/// One renewal of one lease. If it is dropped before its answer, its result is unknown.
pub(crate) struct RenewalRecord {
    pub(crate) span: Span,
    metrics: LockMetrics,
    result: RenewalOutcome,
}

impl RenewalRecord {
    pub(crate) fn end(mut self, answer: &Result<Renewal, BackendError>) {
        self.result = match answer {
            Ok(Renewal::Renewed) => RenewalOutcome::Renewed,
            Ok(Renewal::Gone) => RenewalOutcome::Gone,
            Err(error) if error.outcome() == Outcome::Unknown => RenewalOutcome::Unknown,
            Err(_) => RenewalOutcome::Failed,
        };
    }
}

impl Drop for RenewalRecord {
    fn drop(&mut self) {
        self.span.record("outcome", self.result.as_str());
        self.metrics.renewed(self.result);
    }
}

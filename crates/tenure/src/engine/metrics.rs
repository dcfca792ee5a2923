//! Metrics: names, labels and counters. Without the feature `metrics` nothing is counted.

use std::time::Duration;

use tenure_core::Mode;

use crate::error::Loss;

pub(crate) use counting::{LockMetrics, Metrics};

/// A label with few values, independent of the lock.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$of])* $value),+ }

        impl $name {
            #[cfg(feature = "metrics")]
            const ALL: &[Self] = &[$(Self::$value),+];

            #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "some are counted only, and said nowhere"))]
            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text),+ }
            }
        }
    };
}

label! {
    /// How an acquisition ended.
    AcquireOutcome {
        Acquired = "acquired",
        TimedOut = "timed_out",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

label! {
    /// How a hold ended.
    HoldOutcome {
        Released = "released",
        Lost = "lost",
        Dropped = "dropped",
        Detached = "detached",
        /// It was released, and the store did not confirm it.
        Unknown = "unknown",
    }
}

label! {
    /// The result of a renewal.
    RenewalOutcome {
        Renewed = "renewed",
        Gone = "gone",
        Failed = "failed",
        Unknown = "unknown",
    }
}

label! {
    /// The result of a release.
    ReleaseOutcome {
        Released = "released",
        /// The lease goes on, for another holder of the process or for none yet.
        PassedOn = "passed_on",
        Gone = "gone",
        /// It is tried again in the background.
        Unknown = "unknown",
        /// In the background: the lease ends with its ttl.
        GivenUp = "given_up",
    }
}

label! {
    /// How a holder lost its lease.
    LossCause {
        Expired = "expired",
        Taken = "taken",
        MaxHold = "max_hold",
    }
}

impl LossCause {
    /// `None` if it was not lost: its holder released it, or is another process.
    pub(crate) fn of(loss: Loss) -> Option<Self> {
        match loss {
            Loss::Expired => Some(Self::Expired),
            Loss::Taken => Some(Self::Taken),
            Loss::MaxHold => Some(Self::MaxHold),
            Loss::Forked | Loss::Released => None,
        }
    }
}

/// Whether metrics are counted: without them, clocks that only metrics need are not read.
pub(crate) const IS_COUNTED: bool = cfg!(feature = "metrics");

#[cfg(feature = "metrics")]
mod counting {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    };

    use foldhash::HashMap;
    use metrics::{
        Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge,
        describe_histogram, gauge, histogram,
    };
    use tenure_core::{LockName, locked};

    use crate::engine::metrics::{
        AcquireOutcome, Duration, HoldOutcome, LossCause, Mode, ReleaseOutcome, RenewalOutcome,
    };

    label! {
        /// The mode of a request: the number of slots is not a label.
        ModeLabel {
            Exclusive = "exclusive",
            Shared = "shared",
            Semaphore = "semaphore",
        }
    }

    impl From<Mode> for ModeLabel {
        fn from(mode: Mode) -> Self {
            match mode {
                Mode::Exclusive => Self::Exclusive,
                Mode::Shared { limit: None, .. } => Self::Shared,
                Mode::Shared { limit: Some(_), .. } => Self::Semaphore,
            }
        }
    }

    const ACQUIRE: &str = "tenure_acquire_seconds";
    const AHEAD: &str = "tenure_queue_ahead";
    const HELD: &str = "tenure_leases_held";
    const HOLD: &str = "tenure_hold_seconds";
    const RENEWALS: &str = "tenure_renewals_total";
    const MARGIN: &str = "tenure_renewal_margin_seconds";
    const LOST: &str = "tenure_leases_lost_total";
    const RELEASES: &str = "tenure_releases_total";

    /// How many locks get separate metrics where the program asks for them: 100. Each has a series for each label.
    const LOCKS_MAX: usize = 100;

    fn describe() {
        describe_histogram!(ACQUIRE, Unit::Seconds, "How long an acquisition took, however it ended.");
        describe_histogram!(AHEAD, Unit::Count, "How many were ahead of a client that began to wait.");
        describe_gauge!(HELD, Unit::Count, "Leases that this process holds.");
        describe_histogram!(HOLD, Unit::Seconds, "How long a lease was held.");
        describe_counter!(RENEWALS, Unit::Count, "Renewals, by what came of them.");
        describe_histogram!(MARGIN, Unit::Seconds, "The validity that was left when a renewal succeeded.");
        describe_counter!(LOST, Unit::Count, "Leases that a holder lost, by cause.");
        describe_counter!(RELEASES, Unit::Count, "Releases, by what came of them.");
    }

    /// The metrics of one store: of all locks together, or of each.
    #[derive(Clone)]
    pub(crate) struct Metrics(Arc<StoreMetrics>);

    struct StoreMetrics {
        backend: &'static str,
        of_all: LockMetrics,
        is_by_lock: AtomicBool,
        by_lock: Mutex<HashMap<LockName, LockMetrics>>,
    }

    impl Metrics {
        /// They go to the recorder that is installed now.
        pub(crate) fn new(backend: &'static str) -> Self {
            describe();
            let of_all = LockMetrics::new(&[Label::from_static_parts("backend", backend)]);
            let (is_by_lock, by_lock) = (AtomicBool::new(false), Mutex::default());
            Self(Arc::new(StoreMetrics { backend, of_all, is_by_lock, by_lock }))
        }

        /// From now on each lock has separate metrics, up to the maximum.
        pub(crate) fn split_by_lock(&self) {
            self.0.is_by_lock.store(true, Ordering::Release);
        }

        /// The metrics of this lock.
        pub(crate) fn of(&self, lock: &LockName) -> LockMetrics {
            let StoreMetrics { backend, of_all, is_by_lock, by_lock } = &*self.0;
            if !is_by_lock.load(Ordering::Acquire) {
                return of_all.clone();
            }
            // OK because a map is consistent whenever code that can panic runs.
            let mut by_lock = locked(by_lock);
            if let Some(own) = by_lock.get(lock) {
                return own.clone();
            }
            if by_lock.len() >= LOCKS_MAX {
                return of_all.clone();
            }
            let backend = Label::from_static_parts("backend", backend);
            let own = LockMetrics::new(&[backend, Label::new("lock", lock.to_string())]);
            by_lock.insert(lock.clone(), own.clone());
            own
        }
    }

    /// The metrics of one lock, or of all. They exist from the beginning, because an alert misses the first event
    /// of a counter that did not exist before.
    #[derive(Clone)]
    pub(crate) struct LockMetrics(Arc<Handles>);

    struct Handles {
        acquire: ByLabel<(ModeLabel, AcquireOutcome), Histogram>,
        ahead: Histogram,
        held: Gauge,
        hold: ByLabel<HoldOutcome, Histogram>,
        renewals: ByLabel<RenewalOutcome, Counter>,
        margin: Histogram,
        lost: ByLabel<LossCause, Counter>,
        releases: ByLabel<ReleaseOutcome, Counter>,
    }

    impl LockMetrics {
        fn new(labels: &[Label]) -> Self {
            let with = |more: &[(&'static str, &'static str)]| -> Vec<Label> {
                let more = more.iter().map(|(key, value)| Label::from_static_parts(key, value));
                labels.iter().cloned().chain(more).collect()
            };
            let acquire = ModeLabel::ALL
                .iter()
                .flat_map(|mode| AcquireOutcome::ALL.iter().map(|outcome| (*mode, *outcome)));
            Self(Arc::new(Handles {
                acquire: ByLabel::new(acquire, |(mode, outcome)| {
                    histogram!(ACQUIRE, with(&[("mode", mode.as_str()), ("outcome", outcome.as_str())]))
                }),
                ahead: histogram!(AHEAD, with(&[])),
                held: gauge!(HELD, with(&[])),
                hold: ByLabel::new(HoldOutcome::ALL.iter().copied(), |outcome| {
                    histogram!(HOLD, with(&[("outcome", outcome.as_str())]))
                }),
                renewals: ByLabel::new(RenewalOutcome::ALL.iter().copied(), |result| {
                    counter!(RENEWALS, with(&[("result", result.as_str())]))
                }),
                margin: histogram!(MARGIN, with(&[])),
                lost: ByLabel::new(LossCause::ALL.iter().copied(), |cause| {
                    counter!(LOST, with(&[("cause", cause.as_str())]))
                }),
                releases: ByLabel::new(ReleaseOutcome::ALL.iter().copied(), |outcome| {
                    counter!(RELEASES, with(&[("outcome", outcome.as_str())]))
                }),
            }))
        }

        pub(crate) fn acquired(&self, mode: Mode, outcome: AcquireOutcome, took: impl FnOnce() -> Duration) {
            self.0.acquire.get((mode.into(), outcome)).record(took());
        }

        pub(crate) fn queue_ahead(&self, ahead: usize) {
            self.0.ahead.record(u32::try_from(ahead).unwrap_or(u32::MAX));
        }

        pub(crate) fn hold_began(&self) {
            self.0.held.increment(1);
        }

        pub(crate) fn hold_ended(&self, outcome: HoldOutcome, held: impl FnOnce() -> Duration) {
            self.0.held.decrement(1);
            self.0.hold.get(outcome).record(held());
        }

        pub(crate) fn lost(&self, cause: LossCause) {
            self.0.lost.get(cause).increment(1);
        }

        pub(crate) fn renewed(&self, result: RenewalOutcome) {
            self.0.renewals.get(result).increment(1);
        }

        pub(crate) fn renewal_margin(&self, left: Duration) {
            self.0.margin.record(left);
        }

        pub(crate) fn released(&self, outcome: ReleaseOutcome) {
            self.0.releases.get(outcome).increment(1);
        }
    }

    /// One for each value of a label. There are few: a linear search is faster than a hash.
    struct ByLabel<L, T>(Vec<(L, T)>);

    impl<L: Copy + PartialEq, T> ByLabel<L, T> {
        fn new(values: impl Iterator<Item = L>, make: impl Fn(L) -> T) -> Self {
            Self(values.map(|value| (value, make(value))).collect())
        }

        fn get(&self, value: L) -> &T {
            let found = self.0.iter().find(|(known, _)| *known == value);
            &found.expect("BUG: every value has one").1
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod counting {
    use tenure_core::LockName;

    use crate::engine::metrics::{
        AcquireOutcome, Duration, HoldOutcome, LossCause, Mode, ReleaseOutcome, RenewalOutcome,
    };

    #[derive(Clone)]
    pub(crate) struct Metrics;

    impl Metrics {
        pub(crate) fn new(_: &'static str) -> Self {
            Self
        }

        pub(crate) fn of(&self, _: &LockName) -> LockMetrics {
            LockMetrics
        }
    }

    #[derive(Clone)]
    pub(crate) struct LockMetrics;

    impl LockMetrics {
        pub(crate) fn acquired(&self, _: Mode, _: AcquireOutcome, _: impl FnOnce() -> Duration) {}
        pub(crate) fn queue_ahead(&self, _: usize) {}
        pub(crate) fn hold_began(&self) {}
        pub(crate) fn hold_ended(&self, _: HoldOutcome, _: impl FnOnce() -> Duration) {}
        pub(crate) fn lost(&self, _: LossCause) {}
        pub(crate) fn renewed(&self, _: RenewalOutcome) {}
        pub(crate) fn renewal_margin(&self, _: Duration) {}
        pub(crate) fn released(&self, _: ReleaseOutcome) {}
    }
}

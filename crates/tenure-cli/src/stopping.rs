//! `Stopping`: how long a command may take to end, so that it is gone before its lease.

use std::time::Duration;

use tenure::{Guards, Host, TokioHost};

use crate::{exit::Stop, text, watcher::Deadline};

/// The longest time between two looks at the command and two messages to the watcher process; a twentieth of a short
/// ttl.
const LOOK: Duration = Duration::from_millis(50);

/// The durations of a stop.
#[derive(Clone, Copy)]
pub(crate) struct Stopping {
    /// From TERM to KILL.
    pub(crate) grace: Duration,
    /// From KILL until the group is surely gone.
    pub(crate) slack: Duration,
    /// Between two looks at the command.
    pub(crate) look: Duration,
}

impl Stopping {
    /// With the grace that was named, if one was.
    pub(crate) fn new(grace: Option<Duration>, ttl: Duration) -> Result<Self, Stop> {
        let grace = grace.unwrap_or_else(|| (ttl / 4).min(Duration::from_secs(5)));
        if grace > ttl / 3 {
            let (grace, most) = (text::seconds(grace), text::seconds(ttl / 3));
            return Err(Stop::usage(format!(
                "--grace {grace} is more than a third of the ttl ({most}); raise --ttl"
            )));
        }
        let slack = (ttl / 20).clamp(Duration::from_millis(20), Duration::from_millis(250));
        Ok(Self { grace, slack, look: LOOK.min(ttl / 20) })
    }

    /// Until when the watcher leaves everything to us: for half of the slack longer than we need ourselves.
    pub(crate) fn deadline(self, guard: &Guards) -> Deadline {
        let end = TokioHost.now() + guard.remaining();
        Deadline::new(Some(end.minus(self.grace + self.slack / 2)), end.minus(self.slack / 2))
    }

    /// The validity that must be left when TERM is sent.
    pub(crate) fn margin(self) -> Duration {
        self.grace + self.slack
    }
}

//! `Ears`: where what the server pushes is heard, and the words in which it is said.

use tenure_client::{Hint, HintRouter, Hints};
use tenure_core::{Audience, OwnerId, ProcessId};

/// Where what the server pushes is heard. Shared by the connections of one handle.
pub(crate) struct Ears(HintRouter);

impl Ears {
    pub(crate) fn new(router: HintRouter) -> Self {
        Self(router)
    }

    /// The channel of a process.
    pub(crate) fn channel(process: ProcessId) -> String {
        format!("tenure_{process}")
    }

    /// What is said in it.
    pub(crate) fn hint(audience: Audience, owner: OwnerId, behind: Option<OwnerId>) -> String {
        let letter = match audience {
            Audience::Waiters if behind == Some(owner) => 'b',
            Audience::Waiters => 'w',
            Audience::Holders => 'h',
        };
        format!("{letter}{owner}")
    }

    /// Rings for owners of this process. Who stands behind the next holder need not ask before that one's turn is over, and would
    /// only race it.
    pub(crate) fn ring(&self, audience: Audience, owner: OwnerId, is_behind: bool) {
        self.0.route(Hint { owner, audience, is_behind });
    }

    /// How many processes and audiences are heard; it only grows.
    pub(crate) fn count(&self) -> usize {
        self.0.wanted_count()
    }

    /// Of each of them the process.
    pub(crate) fn processes(&self) -> Vec<ProcessId> {
        self.0.wanted().into_iter().map(|(process, _)| process).collect()
    }

    pub(crate) fn hear(&self, process: ProcessId, audience: Audience) -> Hints {
        self.0.listen(process, audience)
    }

    /// Anything but a hint of ours is somebody's joke.
    pub(crate) fn on_notification(&self, channel: &str, text: &str) {
        let (audience, is_behind) = match text.as_bytes().first() {
            Some(b'w') => (Audience::Waiters, false),
            Some(b'b') => (Audience::Waiters, true),
            Some(b'h') => (Audience::Holders, false),
            _ => return,
        };
        let Ok(owner) = text[1..].parse::<OwnerId>() else { return };
        if self.0.wants(owner.process(), audience) && Self::channel(owner.process()) == channel {
            self.ring(audience, owner, is_behind);
        }
    }

    /// Hints may have been missed.
    pub(crate) fn ring_all(&self) {
        self.0.ring_all();
    }
}

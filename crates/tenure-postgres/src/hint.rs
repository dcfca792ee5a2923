//! Hints as PostgreSQL pushes them: which channels there are, and what is said in them.

use tenure_client::HintRouter;
use tenure_core::{Audience, Hint, OwnerId, ProcessId};

/// The channel of a process.
pub(crate) fn channel(process: ProcessId) -> String {
    format!("tenure_{process}")
}

/// What is said in it. A waiter behind the next holder need not ask before that one's turn is over, and would only race it.
pub(crate) fn text(hint: &Hint) -> String {
    let letter = match hint.audience {
        Audience::Waiters if hint.is_behind => 'b',
        Audience::Waiters => 'w',
        Audience::Holders => 'h',
        Audience::Observers => 'o',
    };
    format!("{letter}{}", hint.owner)
}

/// A notification for an owner whose hints are wanted here. Anything else is somebody's joke.
pub(crate) fn on_notification(router: &HintRouter, from: &str, text: &str) {
    let (audience, is_behind) = match text.as_bytes().first() {
        Some(b'w') => (Audience::Waiters, false),
        Some(b'b') => (Audience::Waiters, true),
        Some(b'h') => (Audience::Holders, false),
        Some(b'o') => (Audience::Observers, false),
        _ => return,
    };
    let Ok(owner) = text[1..].parse::<OwnerId>() else { return };
    if router.wants(owner.process(), audience) && channel(owner.process()) == from {
        router.route(Hint { owner, audience, is_behind });
    }
}

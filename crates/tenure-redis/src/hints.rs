//! Hints: the channel of a process, and what comes over it.

use redis::{PushInfo, PushKind, Value};
use tenure_client::{Channels, End};
use tenure_core::{Audience, Hint, OwnerId, ProcessId};

/// The channel of a process.
pub(crate) fn channel((process, audience): (ProcessId, Audience)) -> String {
    match audience {
        Audience::Waiters => format!("tenure:p:{process}"),
        Audience::Holders => format!("tenure:h:{process}"),
        Audience::Observers => format!("tenure:o:{process}"),
    }
}

/// Handles what came over a connection, perhaps its end.
pub(crate) fn on_push(push: PushInfo, channels: &Channels, end: &End) {
    match push.kind {
        PushKind::Disconnection if end.set() => channels.notify_all(),
        PushKind::Message => {
            if let [Value::BulkString(channel), Value::BulkString(text)] = push.data.as_slice()
                && let Some(hint) = read_hint(channel, text)
            {
                channels.notifier.deliver(hint);
            }
        }
        _ => {}
    }
}

/// In the channel of a process: a letter, and the claim part of an owner. Anything else is no hint of Tenure.
pub(crate) fn read_hint(channel: &[u8], text: &[u8]) -> Option<Hint> {
    let (channel, text) = (std::str::from_utf8(channel).ok()?, std::str::from_utf8(text).ok()?);
    let (audience, process) = match channel.split_at_checked("tenure:p:".len())? {
        ("tenure:p:", process) => (Audience::Waiters, process),
        ("tenure:h:", process) => (Audience::Holders, process),
        ("tenure:o:", process) => (Audience::Observers, process),
        _ => return None,
    };
    let (kind, claim) = text.split_at_checked(1)?;
    let owner = format!("{process}{claim}").parse::<OwnerId>().ok()?;
    Some(Hint { owner, audience, is_behind: kind == "b" })
}

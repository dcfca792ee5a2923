//! Hints: the changes that an owner waits for, and its wake-up when one happens.

use std::{collections::HashSet, time::Duration};

use tenure_core::{Audience, Mode};

use crate::queue::{Place, Queue};

/// Many are watched as a whole, few each by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// One key.
    Key(Vec<u8>),
    /// These keys, all of one lock.
    Folder(Vec<u8>, HashSet<Vec<u8>>),
}

/// The changes that an owner waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Awaited {
    pub(crate) sight: Sight,
    /// New holders count, too; otherwise only keys that are deleted.
    pub(crate) entries: bool,
    pub(crate) audience: Audience,
}

/// A holder hears of a break, but one that leaves sooner than this need not listen.
pub(crate) const HOLDERS_LISTEN_AFTER: Duration = Duration::from_millis(100);

impl Awaited {
    /// What the waiter at this place of the queue waits for: that room is made, or, unless it is the first one that
    /// waits,
    /// that the one before it moves. So one change of owner wakes the next one and no herd.
    pub(crate) fn by(queue: &Queue, at: usize) -> Option<Self> {
        let (holders, me) = (queue.holders(), queue.places.get(at)?);
        if at > holders.len() {
            let before = &queue.places[at - 1];
            // Where both are shared, they may enter together: the entry of the one is the cue of the other.
            let entries = before.mode() != Mode::Exclusive && me.mode() != Mode::Exclusive;
            return Some(Self::of(Sight::Key(before.key.clone()), entries));
        }
        let sight = match (holders, me.mode()) {
            ([holder], _) | ([.., holder], Mode::Exclusive) => Sight::Key(holder.key.clone()),
            _ => Sight::Folder(folder_of(me), holders.iter().map(|holder| holder.key.clone()).collect()),
        };
        Some(Self::of(sight, false))
    }

    /// The change that a holder waits for: the deletion of its own key.
    pub(crate) fn end_of(key: Vec<u8>) -> Self {
        Self { sight: Sight::Key(key), entries: false, audience: Audience::Holders }
    }

    fn of(sight: Sight, entries: bool) -> Self {
        Self { sight, entries, audience: Audience::Waiters }
    }

    /// True if it waits for a change of this key.
    pub(crate) fn is_about(&self, key: &[u8]) -> bool {
        match &self.sight {
            Sight::Key(_) => true,
            Sight::Folder(_, keys) => keys.contains(key),
        }
    }
}

fn folder_of(place: &Place) -> Vec<u8> {
    // OK because every place has a key with a slash before its lease.
    let end = place.key.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    place.key[..end].to_vec()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tenure_core::{Label, OwnerId, ProcessId};

    use super::*;
    use crate::keys::Value;

    fn queue(modes: &[Mode]) -> Queue {
        let place = |(n, mode): (usize, &Mode)| Place {
            key: format!("l/{n}").into_bytes(),
            created: i64::try_from(n).unwrap(),
            modified: 1,
            lease: 1,
            ours: Some(Value {
                owner: OwnerId::from_random(ProcessId::from_random([0; 8]), [0; 16]),
                mode: *mode,
                label: Label::default(),
                since_ms: 0,
                ttl_ms: 0,
                lease: 1,
                waits: false,
            }),
        };
        Queue { places: modes.iter().enumerate().map(place).collect(), revision: 9 }
    }

    fn sight(modes: &[Mode], at: usize) -> (String, bool) {
        let awaited = Awaited::by(&queue(modes), at).unwrap();
        let seen = match awaited.sight {
            Sight::Key(key) => String::from_utf8(key).unwrap(),
            Sight::Folder(folder, keys) => format!("{} {}", String::from_utf8(folder).unwrap(), keys.len()),
        };
        (seen, awaited.entries)
    }

    #[test]
    fn everybody_waits_for_the_one_before_and_the_first_one_for_room() {
        let (read, alone) = (Mode::READ, Mode::Exclusive);
        let slots = Mode::Shared { limit: NonZeroU32::new(2) };
        assert_eq!(sight(&[alone, alone], 1), ("l/0".into(), false));
        assert_eq!(sight(&[alone, alone, alone], 2), ("l/1".into(), false));
        assert_eq!(sight(&[alone, read, read], 1), ("l/0".into(), false));
        assert_eq!(sight(&[alone, read, read], 2), ("l/1".into(), true));
        assert_eq!(sight(&[read, read, alone], 2), ("l/1".into(), false));
        assert_eq!(sight(&[read, alone, read], 2), ("l/1".into(), false));
        assert_eq!(sight(&[slots, slots, slots], 2), ("l/ 2".into(), false));
    }
}

//! Tokens: L2 and L3.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::OwnerId;

use super::{Claims, Law, Violation, belief::Tenure, broken};
use crate::history::{Event, GrantId, LockId, NodeId, Served, What};

/// L2, on every server: each token is larger than all before, and than all values to which the counter was raised.
pub(super) fn minted(events: &[Event], found: &mut Vec<Violation>) {
    let mut largest: BTreeMap<(NodeId, LockId), u64> = BTreeMap::new();
    for event in events {
        let What::Served { node, lock, owner, did, .. } = event.what else { continue };
        let known = largest.entry((node, lock)).or_default();
        match did {
            Served::Granted { first, last, .. } => {
                if first <= *known {
                    let what = format!(
                        "node {node}, lock {lock:#06x}: {owner} was granted token {first} after {known}"
                    );
                    found.push(broken(Law::L2, event.at, what));
                }
                *known = last.max(*known);
            }
            Served::Raised(to) => *known = to.max(*known),
            _ => {}
        }
    }
}

/// L2: a program that enters has tokens that a server granted to its owner, or to which a server raised its counter for this
/// owner (H5.2).
pub(super) fn granted(events: &[Event], found: &mut Vec<Violation>) {
    let mut last_of: BTreeMap<OwnerId, u64> = BTreeMap::new();
    for event in events {
        match event.what {
            What::Served { owner, did: Served::Granted { last, .. } | Served::Raised(last), .. } => {
                let known = last_of.entry(owner).or_default();
                *known = last.max(*known);
            }
            What::Entered { grant, owner, lock, last, .. }
                if last_of.get(&owner).is_some_and(|known| *known < last) =>
            {
                let what = format!("lock {lock:#06x}: grant {grant} has token {last}, which nobody granted");
                found.push(broken(Law::L2, event.at, what));
            }
            _ => {}
        }
    }
}

/// L2, as programs see it.
pub(super) fn entered(
    events: &[Event],
    claims: &Claims,
    forgotten: &BTreeSet<OwnerId>,
    found: &mut Vec<Violation>,
) {
    let mut seen: BTreeMap<LockId, BTreeMap<u64, GrantId>> = BTreeMap::new();
    // The largest of all tokens, and of those of exclusive grants.
    let mut largest: BTreeMap<LockId, (u64, u64)> = BTreeMap::new();
    for event in events {
        let What::Entered { grant, owner, lock, token, last, limit, .. } = event.what else { continue };
        for token in token..=last {
            if let Some(other) = seen.entry(lock).or_default().insert(token, grant) {
                let what =
                    format!("lock {lock:#06x}: grants {other} and {grant} have the same token {token}");
                found.push(broken(Law::L2, event.at, what));
            }
        }
        let (of_all, of_lone) = largest.entry(lock).or_default();
        let is_alone = limit == 1 || lock & 0xff != 0;
        let bar = if is_alone { *of_all } else { *of_lone };
        if claims.is_within && token < bar && !forgotten.contains(&owner) {
            let what = format!("lock {lock:#06x}: grant {grant} entered with token {token} after {bar}");
            found.push(broken(Law::L2, event.at, what));
        }
        *of_all = last.max(*of_all);
        if is_alone {
            *of_lone = last.max(*of_lone);
        }
    }
}

/// L3: what the resource accepted.
pub(super) fn fenced(events: &[Event], claims: &Claims, found: &mut Vec<Violation>) {
    // The order in which a single server minted.
    let mut order: BTreeMap<(LockId, u64), usize> = BTreeMap::new();
    let mut last: BTreeMap<LockId, (GrantId, u64)> = BTreeMap::new();
    let mut over: BTreeSet<GrantId> = BTreeSet::new();
    for event in events {
        match event.what {
            What::Served { lock, did: Served::Granted { first, .. }, .. } if !claims.is_quorum => {
                let next = order.len();
                order.entry((lock, first)).or_insert(next);
            }
            What::Wrote { grant, lock, token, is_accepted: true, .. } => {
                if over.contains(&grant) {
                    let what = format!(
                        "lock {lock:#06x}: grant {grant} (token {token}) wrote after a later holder had"
                    );
                    found.push(broken(Law::L3, event.at, what));
                }
                let Some((before, its)) = last.insert(lock, (grant, token)) else { continue };
                if before == grant {
                    continue;
                }
                over.insert(before);
                let minted = (order.get(&(lock, its)), order.get(&(lock, token)));
                if let (Some(earlier), Some(later)) = minted
                    && earlier > later
                {
                    let what = format!(
                        "lock {lock:#06x}: grant {grant} (token {token}) wrote after grant {before} (token {its}), \
                         which was granted later"
                    );
                    found.push(broken(Law::L3, event.at, what));
                }
            }
            _ => {}
        }
    }
}

/// L3, in the database that holds the locks: no transaction of an owner is committed after a grant to another owner, nor after
/// the next holder of its process has entered.
pub(super) fn committed(events: &[Event], found: &mut Vec<Violation>) {
    let mut owner_of: BTreeMap<GrantId, OwnerId> = BTreeMap::new();
    // The last owner that the server granted a lock, and the largest token that entered.
    let mut granted: BTreeMap<LockId, OwnerId> = BTreeMap::new();
    let mut entered: BTreeMap<LockId, u64> = BTreeMap::new();
    for event in events {
        match event.what {
            What::Served { lock, owner, did: Served::Granted { .. }, .. } => {
                granted.insert(lock, owner);
            }
            What::Entered { grant, lock, owner, token, .. } => {
                owner_of.insert(grant, owner);
                let known = entered.entry(lock).or_default();
                *known = token.max(*known);
            }
            What::Committed { grant, lock, token } => {
                let is_followed = granted.get(&lock) != owner_of.get(&grant);
                if is_followed || entered.get(&lock).is_some_and(|latest| *latest > token) {
                    let what = format!(
                        "lock {lock:#06x}: grant {grant} (token {token}) committed after a later grant"
                    );
                    found.push(broken(Law::L3, event.at, what));
                }
            }
            _ => {}
        }
    }
}

/// L2, at the resource and in the database of the locks: no holder is refused that may treat its lease as held.
pub(super) fn refused(events: &[Event], tenures: &[Tenure], found: &mut Vec<Violation>) {
    let of: BTreeMap<GrantId, &Tenure> = tenures.iter().map(|tenure| (tenure.grant, tenure)).collect();
    for event in events {
        let (What::Wrote { grant, lock, token, is_accepted: false, .. }
        | What::NotOwner { grant, lock, token }) = event.what
        else {
            continue;
        };
        if of.get(&grant).is_some_and(|tenure| tenure.believes_at(event.at)) {
            let what =
                format!("lock {lock:#06x}: grant {grant} (token {token}) was refused while it was believed");
            found.push(broken(Law::L2, event.at, what));
        }
    }
}

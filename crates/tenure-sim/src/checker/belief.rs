//! Which grant treats its lease as held, and when: L1 and L5.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::OwnerId;

use super::{Law, Violation, broken, seconds};
use crate::{
    clockwork::Micros,
    history::{Event, GrantId, LockId, Served, What},
};

/// One grant, as its program knew it.
#[derive(Clone, Debug)]
pub(super) struct Tenure {
    pub(super) grant: GrantId,
    pub(super) owner: OwnerId,
    pub(super) lock: LockId,
    pub(super) limit: u32,
    pub(super) permits: u32,
    pub(super) token: u64,
    /// The intervals in which the program may treat the lease as held. The first may be empty; it counts anyway.
    pub(super) believed: Vec<(Micros, Micros)>,
}

impl Tenure {
    pub(super) fn believes_at(&self, at: Micros) -> bool {
        self.believed.iter().any(|&(from, to)| from <= at && at < to)
    }
}

/// The owners whose leases a server has forgotten.
pub(super) fn forgotten(events: &[Event]) -> BTreeSet<OwnerId> {
    let owner = |event: &Event| match event.what {
        What::Forgotten { owner, .. } => Some(owner),
        _ => None,
    };
    events.iter().filter_map(owner).collect()
}

/// All grants, in the order of entry.
pub(super) fn tenures(events: &[Event]) -> Vec<Tenure> {
    let mut tenures: Vec<Tenure> = Vec::new();
    let mut at_of: BTreeMap<GrantId, usize> = BTreeMap::new();
    // The grants that have not ended, each with the last report of its guard.
    let mut open: BTreeMap<GrantId, (Micros, Micros)> = BTreeMap::new();
    for event in events {
        match event.what {
            What::Entered { grant, owner, lock, limit, permits, token, .. } => {
                at_of.insert(grant, tenures.len());
                tenures.push(Tenure {
                    grant,
                    owner,
                    lock,
                    limit,
                    permits,
                    token,
                    believed: vec![(event.at, event.at)],
                });
                open.insert(grant, (event.at, event.at));
            }
            What::Believes { grant, until } => {
                if let (Some(said), Some(&at)) = (open.get_mut(&grant), at_of.get(&grant)) {
                    close(&mut tenures[at], *said, event.at);
                    *said = (event.at, until);
                }
            }
            What::Left { grant, .. } => {
                if let (Some(said), Some(&at)) = (open.remove(&grant), at_of.get(&grant)) {
                    close(&mut tenures[at], said, event.at);
                }
            }
            _ => {}
        }
    }
    for (grant, said) in open {
        close(&mut tenures[at_of[&grant]], said, Micros::MAX);
    }
    tenures
}

/// The lease was treated as held from `from` until the reported time, or until the next event of this grant.
fn close(tenure: &mut Tenure, (from, until): (Micros, Micros), now: Micros) {
    let to = until.min(now);
    if to <= from {
        return;
    }
    match tenure.believed.last_mut() {
        Some(last) if last.1 == from => last.1 = to,
        _ => tenure.believed.push((from, to)),
    }
}

/// An interval in which a lease is treated as held, the permits that it takes, and how many there are.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    from: Micros,
    to: Micros,
    limit: u32,
    permits: u32,
    tenure: &'a Tenure,
}

/// L1.
pub(super) fn exclusion(tenures: &[Tenure], found: &mut Vec<Violation>) {
    let mut by_lock: BTreeMap<(LockId, bool), Vec<Stretch<'_>>> = BTreeMap::new();
    for tenure in tenures {
        let (whole, slot) = (tenure.lock & !0xff, tenure.lock & 0xff);
        for &(from, to) in &tenure.believed {
            let stretch = Stretch { from, to, limit: tenure.limit, permits: tenure.permits, tenure };
            by_lock.entry((whole, false)).or_default().push(stretch);
            // Each slot is a mutex.
            if slot != 0 {
                by_lock.entry((tenure.lock, true)).or_default().push(Stretch {
                    limit: 1,
                    permits: 1,
                    ..stretch
                });
            }
        }
    }
    for stretches in by_lock.values_mut() {
        stretches.sort_by_key(|stretch| (stretch.from, stretch.to, stretch.tenure.grant));
        sweep(stretches, found);
    }
}

fn sweep(stretches: &[Stretch<'_>], found: &mut Vec<Violation>) {
    let mut active: Vec<Stretch<'_>> = Vec::new();
    for &stretch in stretches {
        let Stretch { from, to, limit, permits, tenure: Tenure { grant, token, lock, .. } } = stretch;
        active.retain(|other| other.to > from);
        // Each grant counts once.
        let others: BTreeMap<GrantId, u32> = active
            .iter()
            .map(|other| (other.tenure.grant, other.permits))
            .filter(|(other, _)| other != grant)
            .collect();
        let taken = others.values().chain([&permits]).map(|permits| u64::from(*permits)).sum::<u64>();
        let smallest = active.iter().map(|other| other.limit).chain([limit]).min().unwrap_or(limit);
        if taken > u64::from(smallest) {
            let others: Vec<GrantId> = others.into_keys().collect();
            let what = format!(
                "lock {lock:#06x}: grant {grant} (token {token}) is believed from {:.6} to {:.6} s beside {others:?}: \
                 {taken} of {smallest} permits",
                seconds(from),
                seconds(to),
            );
            found.push(broken(Law::L1, from, what));
        }
        active.push(stretch);
    }
}

/// L5.
pub(super) fn finality(events: &[Event], found: &mut Vec<Violation>) {
    let mut lost = BTreeSet::new();
    for event in events {
        match event.what {
            What::Lost { grant } => {
                lost.insert(grant);
            }
            What::Resurrected { grant } => {
                found.push(broken(Law::L5, event.at, format!("grant {grant} was lost and is held again")));
            }
            What::Believes { grant, until } if until > event.at && lost.contains(&grant) => {
                let until = seconds(until);
                let what = format!("grant {grant} was lost and is believed until {until:.6} s");
                found.push(broken(Law::L5, event.at, what));
            }
            What::Served { node, lock, owner, did: Served::Recreated, .. } => {
                let what = format!(
                    "node {node}, lock {lock:#06x}: a renewal made {owner} a holder, which it was not"
                );
                found.push(broken(Law::L5, event.at, what));
            }
            _ => {}
        }
    }
}

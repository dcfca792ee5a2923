//! Harmless and truthful: L4 and L9.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::{Outcome, OwnerId};

use super::{Claims, Law, Violation, broken, phases};
use crate::{
    clockwork::Micros,
    history::{Event, GrantId, NodeId, ReleaseAnswer, Served, What},
};

/// L4.
pub(super) fn harmless(events: &[Event], found: &mut Vec<Violation>) {
    for event in events {
        if let What::Served { node, lock, owner, did: Served::Robbed(by), .. } = event.what {
            let what = format!("node {node}, lock {lock:#06x}: {owner} was robbed by a late call of {by}");
            found.push(broken(Law::L4, event.at, what));
        }
    }
}

enum After {
    Done,
    Passed,
    NotDone,
}

#[derive(Default)]
struct Account {
    /// Nodes that granted it the lock or a place since its claim was sent.
    took: BTreeSet<NodeId>,
    /// Nodes that removed its lease or its place.
    left: BTreeSet<NodeId>,
    /// It has left since its claim was sent.
    has_left: bool,
    /// Claims that are not answered.
    under_way: usize,
    /// An earlier claim may still be on its way, or another claim ran at the same time. Either may have made a change.
    is_uncertain: bool,
    /// A server has renewed it since the last renewal was sent.
    is_renewed: bool,
    /// An earlier renewal may still be on its way.
    may_be_renewed: bool,
    /// The store has reported that it is gone.
    is_gone: bool,
    /// The last token that it was granted.
    last: u64,
    /// A holder that entered with it may keep it when it is released.
    may_be_kept: bool,
}

impl Account {
    /// The effect of a repeated message proves nothing about the message that was sent last.
    fn on_served(&mut self, node: NodeId, did: Served, again: bool) {
        if let Served::Granted { last, .. } = did {
            self.last = self.last.max(last);
        }
        match did {
            Served::Renewed(true) => self.is_renewed |= !again,
            // Another client may have read the place that this owner has left, and moves it up. This owner's claim did not
            // do that.
            Served::Queued { .. } if self.has_left => {}
            Served::Granted { .. } | Served::Queued { .. } if !again => {
                self.took.insert(node);
            }
            Served::Left(true) => {
                self.left.insert(node);
                self.has_left = true;
            }
            _ => {}
        }
    }

    /// Called when a release with this token returned `Released`.
    fn after_release(&self, token: u64, quorum: usize) -> After {
        // With a token left, the lease may have been passed on, or is kept.
        if self.left.is_empty() && token < self.last {
            return After::Passed;
        }
        if self.left.len() < quorum { After::NotDone } else { After::Done }
    }

    fn on_claimed(&mut self) {
        self.under_way += 1;
        self.is_uncertain |= self.under_way > 1;
        self.took.clear();
        self.has_left = false;
        self.is_gone = false;
    }

    fn on_claim_answered(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// True if the claim failed as `NotApplied`, but is known to have been applied.
    fn is_false_of_claim(&mut self, outcome: Outcome) -> bool {
        self.on_claim_answered();
        let is_false = outcome == Outcome::NotApplied && !self.is_uncertain && !self.took.is_empty();
        self.is_uncertain |= outcome == Outcome::Unknown;
        is_false
    }

    /// The same for a renewal.
    fn is_false_of_renewal(&mut self, outcome: Outcome) -> bool {
        let is_false = outcome == Outcome::NotApplied && self.is_renewed && !self.may_be_renewed;
        self.may_be_renewed |= outcome == Outcome::Unknown;
        is_false
    }
}

/// L9.
pub(super) fn outcomes(events: &[Event], claims: &Claims, found: &mut Vec<Violation>) {
    let quorum = claims.nodes / 2 + 1;
    let mut accounts: BTreeMap<OwnerId, Account> = BTreeMap::new();
    let mut owners: BTreeMap<GrantId, (OwnerId, u64)> = BTreeMap::new();
    let mut keepers = BTreeSet::new();
    // Released, but still on the servers: passed on to a waiter of the same process. The waiter then enters or leaves, or is
    // killed.
    let mut passed: BTreeMap<OwnerId, (Micros, GrantId)> = BTreeMap::new();
    for event in events {
        match event.what {
            What::Asked { ask, keeps: true, .. } => _ = keepers.insert(ask),
            What::Entered { ask, grant, owner, token, .. } => {
                owners.insert(grant, (owner, token));
                accounts.entry(owner).or_default().may_be_kept |= keepers.contains(&ask);
                passed.remove(&owner);
            }
            What::Served { owner, did: Served::Left(true), .. } if passed.remove(&owner).is_some() => {}
            What::Claimed { owner } => accounts.entry(owner).or_default().on_claimed(),
            What::ClaimAnswered { owner } => accounts.entry(owner).or_default().on_claim_answered(),
            What::Gone { owner } => {
                let account = accounts.entry(owner).or_default();
                // The client waits for a claim that is under way, and releases again.
                account.is_gone = account.under_way == 0;
            }
            What::Renewing { owner } => accounts.entry(owner).or_default().is_renewed = false,
            What::RenewFailed { owner, outcome }
                if accounts.entry(owner).or_default().is_false_of_renewal(outcome) =>
            {
                let what = format!("a renewal of {owner} is said not to be applied, and was");
                found.push(broken(Law::L9, event.at, what));
            }
            What::Served { node, owner, did, again, .. } => {
                let account = accounts.entry(owner).or_default();
                if claims.bars_late && account.is_gone && matches!(did, Served::Granted { .. }) {
                    let what = format!("{owner} was let in after a release had said that it is gone");
                    found.push(broken(Law::L9, event.at, what));
                }
                account.on_served(node, did, again);
            }
            What::ClaimFailed { owner, outcome }
                if accounts.entry(owner).or_default().is_false_of_claim(outcome) =>
            {
                let what = format!("a claim of {owner} is said not to be applied, and was");
                found.push(broken(Law::L9, event.at, what));
            }
            What::Answered { grant, answer: ReleaseAnswer::Released } => {
                let Some(&(owner, token)) = owners.get(&grant) else { continue };
                let account = accounts.entry(owner).or_default();
                match account.after_release(token, quorum) {
                    After::Passed => drop(passed.insert(owner, (event.at, grant))),
                    After::NotDone => found.push(not_done(event.at, grant)),
                    After::Done => {}
                }
            }
            _ => {}
        }
    }
    let may_be_kept = |owner: &OwnerId| accounts.get(owner).is_some_and(|account| account.may_be_kept);
    not_given_back(events, claims, &passed, may_be_kept, found);
}

/// Finds released leases that in the end were neither removed from the store nor taken over by a waiter.
fn not_given_back(
    events: &[Event],
    claims: &Claims,
    passed: &BTreeMap<OwnerId, (Micros, GrantId)>,
    may_be_kept: impl Fn(&OwnerId) -> bool,
    found: &mut Vec<Violation>,
) {
    let quiet = phases(events).map_or(Micros::MAX, |(healed, _)| healed + claims.bound);
    for (owner, &(at, grant)) in passed {
        // Before all is quiet, a kept lease may end with its ttl, if the store is away when the client releases it. A
        // program that takes several locks may have received a passed lease before it enters, and may be killed in between.
        let may_be_lost = claims.takes_several || may_be_kept(owner);
        if at >= quiet || !may_be_lost {
            found.push(not_done(at, grant));
        }
    }
}

fn not_done(at: Micros, grant: GrantId) -> Violation {
    broken(Law::L9, at, format!("the release of grant {grant} is said to be done, and was not"))
}

//! `Ballot`: one claim to all nodes, from the first request until all is settled or released. No I/O, no clock.

use std::{collections::BTreeMap, ops::Range};

use tenure_core::{BackendError, ClaimAnswer, HolderView, Outcome, Raised};

use crate::{
    nodes::Nodes,
    tally::{Tally, Tokens, Verdict, Vote},
};

/// A request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Claim(usize),
    Raise(usize, u64),
    Release(usize),
}

/// The answer of a node.
pub(crate) enum Event {
    Vote(usize, Result<ClaimAnswer, BackendError>),
    Raised(usize, u64, Result<Raised, BackendError>),
    Released,
}

/// How it ended for the caller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcomes {
    /// Not yet.
    Open,
    /// The lock is ours with these tokens.
    Kept(Tokens),
    /// Another owner holds the lock; ours has only places in queues.
    Refused,
    /// A split vote: some nodes granted, but no quorum. Their grants are being released.
    GivenBack,
    /// Too many nodes failed. Grants stay: the same owner may claim again, and must release.
    Failed,
    /// Another ballot of the same attempt continues with the grants that there are.
    Stopped,
}

/// One claim under way.
pub(crate) struct Ballot {
    tally: Tally,
    /// The nodes that are asked first; the others are asked only once one of these grants.
    first: Nodes,
    asked: Nodes,
    /// Asked and not answered.
    pending: Nodes,
    raising: Vec<u64>,
    released: Nodes,
    /// Something of ours may be there although the vote does not say so.
    may_be_there: Nodes,
    errors: Vec<Option<BackendError>>,
    holders: BTreeMap<String, Nodes>,
    /// The nodes to release here, if the owner has left all nodes.
    left: Option<Nodes>,
    outcome: Outcomes,
}

impl Ballot {
    /// A ballot among so many nodes. `silent` nodes are not asked; `held` nodes are known to refuse.
    pub(crate) fn new(nodes: usize, silent: Nodes, held: Option<Nodes>) -> Self {
        let mut tally = Tally::new(nodes);
        let mut all = Nodes::first(nodes);
        for node in silent.iter() {
            tally.vote(node, Vote::Failed);
            all.remove(node);
        }
        // Only if their refusals alone decide it.
        let held = held.map(|held| held.and(all));
        let first = held.filter(|held| held.len() > nodes - tally.quorum()).unwrap_or(all);
        Self {
            tally,
            first,
            asked: Nodes::default(),
            pending: Nodes::default(),
            raising: vec![0; nodes],
            released: Nodes::default(),
            may_be_there: Nodes::default(),
            errors: vec![None; nodes],
            holders: BTreeMap::new(),
            left: None,
            outcome: Outcomes::Open,
        }
    }

    pub(crate) fn outcome(&self) -> &Outcomes {
        &self.outcome
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The errors of the nodes that failed.
    pub(crate) fn errors(&self) -> impl Iterator<Item = BackendError> + '_ {
        self.errors.iter().flatten().cloned()
    }

    /// The nodes on which one other owner holds a quorum.
    pub(crate) fn held_elsewhere(&self) -> Option<Nodes> {
        self.holders.values().find(|nodes| nodes.len() >= self.tally.quorum()).copied()
    }

    /// The caller has gone: grants are to be released.
    pub(crate) fn abandon(&mut self) {
        self.outcome = Outcomes::GivenBack;
    }

    /// The owner has left all nodes; these are to be left once more, when they have answered.
    pub(crate) fn withdraw(&mut self, left: Nodes) {
        self.left = Some(left);
        self.outcome = Outcomes::GivenBack;
    }

    /// Asked and not answered.
    pub(crate) fn pending(&self) -> Nodes {
        self.pending
    }

    /// Those that have refused.
    pub(crate) fn refused(&self) -> Nodes {
        self.nodes().filter(|&node| self.tally.has_refused(node)).collect()
    }

    /// All is done: nothing to send, and nothing to release.
    pub(crate) fn stop(&mut self) {
        self.outcome = Outcomes::Stopped;
    }

    /// A node has answered, or may have done something all the same.
    pub(crate) fn has_reached_any(&self) -> bool {
        self.has_left_something() || self.nodes().any(|node| self.tally.has_refused(node))
    }

    pub(crate) fn on_event(&mut self, event: Event) {
        match event {
            Event::Vote(node, answer) => self.on_vote(node, answer),
            Event::Raised(node, to, Ok(Raised::Raised)) => self.tally.raised(node, to),
            Event::Raised(node, _, Ok(Raised::Gone)) => self.tally.lost(node),
            Event::Raised(node, _, Err(error)) => {
                self.tally.lost(node);
                self.may_be_there.insert(node);
                self.errors[node] = Some(error);
            }
            Event::Released => {}
        }
    }

    fn on_vote(&mut self, node: usize, answer: Result<ClaimAnswer, BackendError>) {
        self.pending.remove(node);
        let vote = match answer {
            Ok(ClaimAnswer::Granted(grant)) => Vote::Granted { first: grant.token, block: grant.block },
            Ok(
                ClaimAnswer::Queued { retry_after, holder, .. }
                | ClaimAnswer::Busy { retry_after, holder }
                | ClaimAnswer::Split { retry_after, holder },
            ) => {
                self.note_holder(node, holder.as_ref());
                Vote::Refused { retry_after, holder }
            }
            Err(error) => {
                if error.outcome() == Outcome::Unknown {
                    self.may_be_there.insert(node);
                }
                self.errors[node] = Some(error);
                Vote::Failed
            }
        };
        self.tally.vote(node, vote);
    }

    fn note_holder(&mut self, node: usize, holder: Option<&HolderView>) {
        if let Some(holder) = holder {
            self.holders.entry(holder.owner.clone()).or_default().insert(node);
        }
    }

    /// The requests to send now; none if there was no event since the last call.
    pub(crate) fn steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.outcome == Outcomes::Open {
            match self.tally.verdict() {
                Verdict::Open => self.ask(&mut steps),
                Verdict::Raise { to, nodes } => {
                    self.ask(&mut steps);
                    self.raise(to, nodes, &mut steps);
                }
                Verdict::Granted(tokens) => self.outcome = Outcomes::Kept(tokens),
                // The last answer says whether something is to be given back, or places can be kept.
                Verdict::Refused if !self.pending.is_empty() => {}
                Verdict::Refused if self.has_left_something() => self.outcome = Outcomes::GivenBack,
                Verdict::Refused => self.outcome = Outcomes::Refused,
                Verdict::Failed => self.outcome = Outcomes::Failed,
            }
        }
        match self.outcome {
            Outcomes::Kept(tokens) => {
                // Late grants are ours as well; raised, all nodes count alike and the next claim needs one round.
                let behind =
                    self.tally.granted().filter(|&node| self.tally.count_of(node) < Some(tokens.end));
                let behind = behind.collect();
                self.raise(tokens.end, behind, &mut steps);
            }
            Outcomes::GivenBack => self.release(&mut steps),
            _ => {}
        }
        steps
    }

    fn nodes(&self) -> Range<usize> {
        0..self.raising.len()
    }

    /// Nodes that granted, have not answered, or answered with an error of unknown outcome.
    fn has_left_something(&self) -> bool {
        !self.pending.is_empty() || !self.may_be_there.is_empty() || self.tally.granted().next().is_some()
    }

    fn ask(&mut self, steps: &mut Vec<Step>) {
        let is_wanted = self.tally.granted().next().is_some();
        for node in self.nodes() {
            let is_new = !self.asked.contains(node) && !self.tally.has_voted(node);
            if is_new && (is_wanted || self.first.contains(node)) {
                self.asked.insert(node);
                self.pending.insert(node);
                steps.push(Step::Claim(node));
            }
        }
    }

    fn raise(&mut self, to: u64, nodes: Vec<usize>, steps: &mut Vec<Step>) {
        for node in nodes {
            if self.raising[node] < to {
                self.raising[node] = to;
                steps.push(Step::Raise(node, to));
            }
        }
    }

    /// All nodes, also those that refused, where a place is left, and those that were not asked now, but perhaps in an
    /// earlier
    /// ballot of the same attempt. An answer that is not here yet is waited for, so that the release does not come
    /// first.
    fn release(&mut self, steps: &mut Vec<Step>) {
        for node in self.nodes() {
            let is_ours = self.left.is_none_or(|left| left.contains(node));
            if is_ours && !self.pending.contains(node) && !self.released.contains(node) {
                self.released.insert(node);
                steps.push(Step::Release(node));
            }
        }
    }
}

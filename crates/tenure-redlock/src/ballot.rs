//! `Ballot`: one claim to all nodes, from the first request until all is settled or released; `VoteCount`:
//! the votes on it, and their result. Pure: no I/O, no clock.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use tenure_core::{BackendError, ClaimAnswer, FencingToken, HolderView, Outcome, Raised};

/// One claim under way.
pub(crate) struct Ballot {
    votes: VoteCount,
    /// The nodes that are asked first; the others are asked only once one of these grants.
    first: Nodes,
    asked: Nodes,
    /// Asked and not answered.
    unanswered: Nodes,
    raising: Vec<u64>,
    /// Nodes that may have something of this claim although the vote does not show it.
    may_be_there: Nodes,
    errors: Vec<Option<BackendError>>,
    holders: BTreeMap<String, Nodes>,
    outcome: BallotOutcome,
}

impl Ballot {
    /// A ballot among `nodes` nodes. `silent` nodes are not asked; `held` nodes are known to refuse.
    pub(crate) fn new(nodes: usize, silent: Nodes, held: Option<Nodes>) -> Self {
        let mut votes = VoteCount::new(nodes);
        let mut all = Nodes::first(nodes);
        for node in silent.iter() {
            votes.vote(node, Vote::Failed);
            all.remove(node);
        }
        // Only if their refusals alone decide it.
        let held = held.map(|held| held.and(all));
        let first = held.filter(|held| held.len() > nodes - votes.quorum()).unwrap_or(all);
        Self {
            votes,
            first,
            asked: Nodes::default(),
            unanswered: Nodes::default(),
            raising: vec![0; nodes],
            may_be_there: Nodes::default(),
            errors: vec![None; nodes],
            holders: BTreeMap::new(),
            outcome: BallotOutcome::Open,
        }
    }

    pub(crate) fn outcome(&self) -> &BallotOutcome {
        &self.outcome
    }

    pub(crate) fn votes(&self) -> &VoteCount {
        &self.votes
    }

    /// The errors of the nodes that failed.
    pub(crate) fn errors(&self) -> impl Iterator<Item = BackendError> + '_ {
        self.errors.iter().flatten().cloned()
    }

    /// The nodes on which one other owner holds a quorum.
    pub(crate) fn held_elsewhere(&self) -> Option<Nodes> {
        self.holders.values().find(|nodes| nodes.len() >= self.votes.quorum()).copied()
    }

    /// The owner is released at all nodes.
    pub(crate) fn release(&mut self) {
        self.outcome = BallotOutcome::Released;
    }

    /// Asked and not answered.
    pub(crate) fn unanswered(&self) -> Nodes {
        self.unanswered
    }

    /// A node has answered, or may have done something anyway.
    pub(crate) fn has_reached_any(&self) -> bool {
        self.has_left_something() || self.nodes().any(|node| self.votes.has_refused(node))
    }

    pub(crate) fn on_answer(&mut self, answer: NodeAnswer) {
        match answer {
            NodeAnswer::Vote(node, answer) => self.on_vote(node, answer),
            NodeAnswer::Raised(node, to, Ok(Raised::Raised)) => self.votes.raised(node, to),
            NodeAnswer::Raised(node, _, Ok(Raised::Gone)) => self.votes.lost(node),
            NodeAnswer::Raised(node, _, Err(error)) => {
                self.votes.lost(node);
                self.may_be_there.insert(node);
                self.errors[node] = Some(error);
            }
        }
    }

    fn on_vote(&mut self, node: usize, answer: Result<ClaimAnswer, BackendError>) {
        self.unanswered.remove(node);
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
        self.votes.vote(node, vote);
    }

    fn note_holder(&mut self, node: usize, holder: Option<&HolderView>) {
        if let Some(holder) = holder {
            self.holders.entry(holder.owner.clone()).or_default().insert(node);
        }
    }

    /// The requests to send now; none if there was no answer since the last call.
    pub(crate) fn requests(&mut self) -> Vec<NodeRequest> {
        let mut requests = Vec::new();
        if self.outcome == BallotOutcome::Open {
            match self.votes.result() {
                VoteResult::Open => self.ask(&mut requests),
                VoteResult::Raise { to, nodes } => {
                    self.ask(&mut requests);
                    self.raise(to, nodes, &mut requests);
                }
                VoteResult::Granted(tokens) => self.outcome = BallotOutcome::Kept(tokens),
                // The last answer shows whether something must be released, or places can be kept.
                VoteResult::Refused if !self.unanswered.is_empty() => {}
                VoteResult::Refused if self.has_left_something() => self.outcome = BallotOutcome::Released,
                VoteResult::Refused => self.outcome = BallotOutcome::Refused,
                VoteResult::Failed => self.outcome = BallotOutcome::Failed,
            }
        }
        if let BallotOutcome::Kept(tokens) = self.outcome {
            // Late grants belong to this claim too. Once raised, all nodes count alike and the next claim needs one
            // round.
            let behind = self.votes.granted().filter(|&node| self.votes.count_of(node) < Some(tokens.end));
            let behind = behind.collect();
            self.raise(tokens.end, behind, &mut requests);
        }
        requests
    }

    fn nodes(&self) -> Range<usize> {
        0..self.raising.len()
    }

    /// Nodes that granted, have not answered, or answered with an error of unknown outcome.
    fn has_left_something(&self) -> bool {
        !self.unanswered.is_empty() || !self.may_be_there.is_empty() || self.votes.granted().next().is_some()
    }

    fn ask(&mut self, requests: &mut Vec<NodeRequest>) {
        let is_wanted = self.votes.granted().next().is_some();
        for node in self.nodes() {
            let is_new = !self.asked.contains(node) && !self.votes.has_voted(node);
            if is_new && (is_wanted || self.first.contains(node)) {
                self.asked.insert(node);
                self.unanswered.insert(node);
                requests.push(NodeRequest::Claim(node));
            }
        }
    }

    fn raise(&mut self, to: u64, nodes: Vec<usize>, requests: &mut Vec<NodeRequest>) {
        for node in nodes {
            if self.raising[node] < to {
                self.raising[node] = to;
                requests.push(NodeRequest::Raise(node, to));
            }
        }
    }
}

/// A request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRequest {
    Claim(usize),
    Raise(usize, u64),
}

/// The answer of a node.
pub(crate) enum NodeAnswer {
    Vote(usize, Result<ClaimAnswer, BackendError>),
    Raised(usize, u64, Result<Raised, BackendError>),
}

/// How it ended for the caller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BallotOutcome {
    /// Not yet.
    Open,
    /// This claim holds the lock with these tokens.
    Kept(Tokens),
    /// Another owner holds the lock; this claim has only places in queues.
    Refused,
    /// A split vote: some nodes granted, but no quorum; or the owner was released during the ballot. It must be
    /// released at all nodes. Those that refused have a place of it, and an earlier claim may have asked those that
    /// were not asked now.
    Released,
    /// Too many nodes failed. Grants stay: the same owner may claim again, and must release.
    Failed,
}

/// The votes on one claim, one per node; the first of a node counts (hazard 48).
///
/// # Why a quorum of these tokens is larger than every earlier one (S3.3)
/// Every earlier grant ended on a token T. A quorum of nodes counted up to T, by minting or by a raise, which a node
/// refuses to every owner but its holder. Two quorums share a node, and that node minted for this claim after T. The
/// token of this claim is no smaller than what any counted node minted for it. A block is as long as the shortest
/// that one of them granted: its first token lies above what each of them had before.
#[derive(Clone, Debug)]
pub(crate) struct VoteCount {
    votes: Vec<Option<Vote>>,
    /// Up to where each node counts: by its own mint, or because it was raised.
    counts: Vec<u64>,
}

impl VoteCount {
    fn new(nodes: usize) -> Self {
        Self { votes: vec![None; nodes], counts: vec![0; nodes] }
    }

    /// A majority of all nodes, whether they answer or not (H3.5).
    fn quorum(&self) -> usize {
        quorum_of(self.votes.len())
    }

    /// Counts the first vote of a node; a later one of the same node does not count. A node that counts beyond the
    /// largest token has failed: the others would be raised to where none can count on (L2).
    fn vote(&mut self, node: usize, vote: Vote) {
        if self.votes[node].is_some() {
            return;
        }
        let is_beyond =
            matches!(vote, Vote::Granted { first, block } if end_of(first, block) > FencingToken::MAX.get());
        self.votes[node] = Some(if is_beyond { Vote::Failed } else { vote });
        self.counts[node] = self.minted(node).unwrap_or(0);
    }

    /// The node counts up to `to` now; only if it had granted.
    fn raised(&mut self, node: usize, to: u64) {
        if self.has_granted(node) {
            self.counts[node] = self.counts[node].max(to);
        }
    }

    /// The node does not hold for this claim any more: its raise failed.
    fn lost(&mut self, node: usize) {
        self.votes[node] = Some(Vote::Failed);
        self.counts[node] = 0;
    }

    fn has_refused(&self, node: usize) -> bool {
        matches!(self.votes[node], Some(Vote::Refused { .. }))
    }

    fn has_granted(&self, node: usize) -> bool {
        matches!(self.votes[node], Some(Vote::Granted { .. }))
    }

    fn granted(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.votes.len()).filter(|&node| self.has_granted(node))
    }

    fn has_voted(&self, node: usize) -> bool {
        self.votes[node].is_some()
    }

    /// The counter of a node that granted.
    fn count_of(&self, node: usize) -> Option<u64> {
        self.has_granted(node).then(|| self.counts[node])
    }

    /// The result of the votes so far.
    fn result(&self) -> VoteResult {
        let quorum = self.quorum();
        let granted: Vec<usize> = self.granted().collect();
        if granted.len() >= quorum {
            return self.of_quorum(&granted, quorum);
        }
        let of = |wanted: fn(&Vote) -> bool| self.votes.iter().flatten().filter(|vote| wanted(vote)).count();
        let failed = of(|vote| matches!(vote, Vote::Failed));
        let refused = of(|vote| matches!(vote, Vote::Refused { .. }));
        if self.votes.len() - failed - refused >= quorum {
            VoteResult::Open
        } else if self.votes.len() - failed < quorum {
            VoteResult::Failed
        } else {
            VoteResult::Refused
        }
    }

    /// The largest token that any of them minted is that of this claim, if a quorum of them counts up to it. No node
    /// that counts has minted a larger one for this claim. Otherwise another attempt may have been granted what lies
    /// between (H3.3).
    fn of_quorum(&self, granted: &[usize], quorum: usize) -> VoteResult {
        let end = granted.iter().filter_map(|&node| self.minted(node)).max().unwrap_or(0);
        let block = granted.iter().filter_map(|&node| self.block_of(node)).min().unwrap_or(1);
        let tokens = Tokens { end, block };
        let nodes: Vec<usize> = granted.iter().copied().filter(|&node| self.counts[node] < end).collect();
        if granted.len() - nodes.len() >= quorum {
            VoteResult::Granted(tokens)
        } else {
            VoteResult::Raise { to: end, nodes }
        }
    }

    /// The last token that it minted for this claim.
    fn minted(&self, node: usize) -> Option<u64> {
        match self.votes[node] {
            Some(Vote::Granted { first, block }) => Some(end_of(first, block)),
            _ => None,
        }
    }

    fn block_of(&self, node: usize) -> Option<u32> {
        match self.votes[node] {
            Some(Vote::Granted { block, .. }) => Some(block),
            _ => None,
        }
    }

    /// When another attempt may succeed, and one of the holders.
    pub(crate) fn refusal(&self) -> (Option<Duration>, Option<HolderView>) {
        let mut soonest: Option<Duration> = None;
        let mut seen: Option<HolderView> = None;
        for vote in self.votes.iter().flatten() {
            let Vote::Refused { retry_after, holder } = vote else { continue };
            soonest = Some(soonest.map_or(*retry_after, |known| known.min(*retry_after)));
            let lasts = |view: &Option<HolderView>| view.as_ref().and_then(|view| view.expires_in);
            if seen.is_none() || lasts(holder) > lasts(&seen) {
                seen.clone_from(holder);
            }
        }
        (soonest, seen)
    }
}

/// The answer of one node in the first round.
#[derive(Clone, Debug, PartialEq)]
enum Vote {
    /// It granted, and minted `block` tokens from `first` on.
    Granted { first: FencingToken, block: u32 },
    /// Another owner holds it there.
    Refused { retry_after: Duration, holder: Option<HolderView> },
    /// It did not answer, or with an error.
    Failed,
}

/// The result of the votes.
#[derive(Clone, Debug, PartialEq)]
enum VoteResult {
    /// Not decided yet.
    Open,
    /// A quorum granted, and its counters are at `tokens.end` already, so that no node need be raised.
    Granted(Tokens),
    /// A quorum granted; these nodes must count up to there before the tokens may be used.
    Raise { to: u64, nodes: Vec<usize> },
    /// No quorum can be had any more.
    Refused,
    /// So many nodes failed that there could be no quorum even if all others had granted.
    Failed,
}

/// The tokens of a grant: `end` is the last of `block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tokens {
    end: u64,
    pub(crate) block: u32,
}

impl Tokens {
    pub(crate) fn first(self) -> FencingToken {
        FencingToken::new((self.end + 1).saturating_sub(u64::from(self.block)))
    }
}

fn end_of(first: FencingToken, block: u32) -> u64 {
    first.get().saturating_add(u64::from(block)).saturating_sub(1)
}

/// The majority of `nodes` nodes.
pub(crate) fn quorum_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// A set of nodes. Every claim makes several and reads them often, so it is one machine word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes(u64);

impl Nodes {
    /// The first `count` nodes.
    fn first(count: usize) -> Self {
        (0..count).collect()
    }

    /// # Panics
    /// In a debug build, beyond [`MOST`].
    pub(crate) fn insert(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    pub(crate) fn remove(&mut self, node: usize) {
        self.0 &= !(1 << node);
    }

    pub(crate) fn contains(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// In order.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..=MOST).filter(move |&node| self.contains(node))
    }

    pub(crate) fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }
}

impl FromIterator<usize> for Nodes {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        let mut all = Self::default();
        nodes.into_iter().for_each(|node| all.insert(node));
        all
    }
}

/// The largest number of nodes that a quorum may have.
pub(crate) const MOST: usize = 63;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    // Any order, duplication and loss of answers.

    fn granted(first: u64, block: u32) -> Vote {
        Vote::Granted { first: FencingToken::new(first), block }
    }

    fn refused() -> Vote {
        Vote::Refused { retry_after: Duration::from_millis(1), holder: None }
    }

    fn any_vote() -> impl Strategy<Value = Vote> {
        prop_oneof![
            4 => (1..20u64, 1..4u32).prop_map(|(first, block)| granted(first, block)),
            1 => Just(refused()),
            1 => Just(Vote::Failed),
        ]
    }

    /// What arrives, in order: a vote of a node, that it was raised to so much, or that its raise failed.
    #[derive(Clone, Debug)]
    enum Arrival {
        Vote(usize, Vote),
        Raised(usize, u64),
        Lost(usize),
    }

    fn any_arrival(nodes: usize) -> impl Strategy<Value = Arrival> {
        prop_oneof![
            6 => (0..nodes, any_vote()).prop_map(|(node, vote)| Arrival::Vote(node, vote)),
            2 => (0..nodes, 1..30u64).prop_map(|(node, to)| Arrival::Raised(node, to)),
            1 => (0..nodes).prop_map(Arrival::Lost),
        ]
    }

    fn apply(count: &mut VoteCount, arrival: &Arrival) {
        match arrival {
            Arrival::Vote(node, vote) => count.vote(*node, vote.clone()),
            Arrival::Raised(node, to) => count.raised(*node, *to),
            Arrival::Lost(node) if count.has_granted(*node) => count.lost(*node),
            Arrival::Lost(_) => {}
        }
    }

    fn arrivals() -> impl Strategy<Value = (usize, Vec<Arrival>)> {
        prop_oneof![Just(3), Just(5), Just(7)]
            .prop_flat_map(|nodes| (Just(nodes), prop::collection::vec(any_arrival(nodes), 0..40)))
    }

    proptest! {
        /// S3.3, hazard 48: whatever arrives, granted is a quorum of different nodes, each of which counts up
        /// to the end of the block and minted nothing in it before.
        #[test]
        fn granted_is_a_quorum_that_counts_up_to_the_end((nodes, arrivals) in arrivals()) {
            let mut count = VoteCount::new(nodes);
            let mut votes: Vec<Option<Vote>> = vec![None; nodes];
            for arrival in &arrivals {
                apply(&mut count, arrival);
                if let Arrival::Vote(node, vote) = arrival {
                    votes[*node].get_or_insert_with(|| vote.clone());
                }
                let VoteResult::Granted(tokens) = count.result() else { continue };
                let counted: Vec<usize> = count.granted().filter(|&node| count.count_of(node) >= Some(tokens.end)).collect();
                prop_assert!(counted.len() >= quorum_of(nodes), "{counted:?} of {nodes}");
                prop_assert!(tokens.block >= 1);
                for node in counted {
                    let Some(Vote::Granted { first, block }) = votes[node] else { panic!("it granted") };
                    prop_assert!(first.get() + u64::from(block) - 1 <= tokens.end, "{tokens:?} below what {node} minted for us");
                    prop_assert!(tokens.first() >= first, "{tokens:?} reach into what {node} had given to others");
                }
            }
        }

        /// A vote that comes twice, or a second vote of a node, does not count; neither does the order of refusals.
        #[test]
        fn the_first_vote_of_a_node_counts((nodes, arrivals) in arrivals(), again in any::<prop::sample::Index>()) {
            let (mut once, mut twice) = (VoteCount::new(nodes), VoteCount::new(nodes));
            let votes: Vec<&Arrival> = arrivals.iter().filter(|arrival| matches!(arrival, Arrival::Vote(..))).collect();
            for (at, arrival) in votes.iter().enumerate() {
                apply(&mut once, arrival);
                apply(&mut twice, arrival);
                apply(&mut twice, votes[again.index(at + 1)]);
                prop_assert_eq!(once.result(), twice.result());
            }
        }

        /// No claim is refused while it can still get a quorum, and one that cannot get a quorum never can again.
        #[test]
        fn a_refusal_is_final_and_never_early(votes in prop::collection::vec(any_vote(), 5)) {
            let mut count = VoteCount::new(5);
            let mut hopeless = false;
            for (node, vote) in votes.iter().enumerate() {
                count.vote(node, vote.clone());
                let against = votes[..=node].iter().filter(|vote| !matches!(vote, Vote::Granted { .. })).count();
                let is_refused = matches!(count.result(), VoteResult::Refused | VoteResult::Failed);
                prop_assert_eq!(is_refused, against > 2);
                prop_assert!(is_refused || !hopeless);
                hopeless = is_refused;
            }
            let failed = votes.iter().filter(|vote| matches!(vote, Vote::Failed)).count();
            prop_assert_eq!(count.result() == VoteResult::Failed, failed > 2);
        }

        /// L2 by S3.3: attempts run one after another. Each reaches only some nodes, in any order, and its raises may
        /// be lost. The tokens of those that complete grow, block by block.
        #[test]
        fn the_tokens_of_completed_attempts_grow(
            nodes in prop_oneof![Just(3usize), Just(5)],
            start in prop::collection::vec(1..50u64, 5),
            attempts in prop::collection::vec((prop::collection::vec((any::<bool>(), 1..4u32, any::<bool>()), 5), any::<u64>()), 1..12),
        ) {
            let mut counters = start;
            let mut last = 0;
            for (reaches, order) in attempts {
                let mut count = VoteCount::new(nodes);
                let mut all: Vec<usize> = (0..nodes).collect();
                all.rotate_left(usize::try_from(order % nodes as u64).unwrap());
                for &node in &all {
                    let (is_reached, block, _) = reaches[node];
                    if is_reached {
                        counters[node] += u64::from(block);
                        count.vote(node, granted(counters[node] - u64::from(block) + 1, block));
                    } else {
                        count.vote(node, Vote::Failed);
                    }
                    if let VoteResult::Raise { to, nodes } = count.result() {
                        for raised in nodes.into_iter().filter(|&raised| reaches[raised].2) {
                            counters[raised] = counters[raised].max(to);
                            count.raised(raised, to);
                        }
                    }
                }
                if let VoteResult::Granted(tokens) = count.result() {
                    prop_assert!(tokens.first().get() > last, "{} after {last}", tokens.first().get());
                    last = tokens.end;
                }
            }
        }
    }

    /// S3.3, H3.3; mutant `no_second_round`: where nodes count differently, those behind are raised before the claim
    /// is granted.
    #[test]
    fn nodes_that_are_behind_are_raised_first() {
        let mut count = VoteCount::new(3);
        count.vote(0, granted(7, 1));
        assert_eq!(count.result(), VoteResult::Open);
        count.vote(2, granted(4, 1));
        assert_eq!(count.result(), VoteResult::Raise { to: 7, nodes: vec![2] });
        count.raised(2, 7);
        assert_eq!(count.result(), VoteResult::Granted(Tokens { end: 7, block: 1 }));
    }

    /// H3.3: a late grant with a larger token does not acknowledge a smaller one. In between, another attempt may
    /// have been granted the smaller one: it took node 1 from this claim, was raised there, and had node 2 before
    /// this claim.
    #[test]
    fn nobody_who_counts_minted_a_larger_token() {
        let mut count = VoteCount::new(3);
        count.vote(0, granted(7, 1));
        count.vote(1, granted(4, 1));
        count.lost(1);
        count.vote(2, granted(8, 1));
        assert_eq!(count.result(), VoteResult::Raise { to: 8, nodes: vec![0] });
        count.raised(0, 8);
        assert_eq!(count.result(), VoteResult::Granted(Tokens { end: 8, block: 1 }));
    }

    /// H3.6: the end of a block is what the quorum counts up to, and the block is as long as the shortest.
    #[test]
    fn a_block_is_raised_to_its_end() {
        let mut count = VoteCount::new(3);
        count.vote(0, granted(1, 2));
        count.vote(1, granted(3, 3));
        assert_eq!(count.result(), VoteResult::Raise { to: 5, nodes: vec![0] });
        count.raised(0, 5);
        let VoteResult::Granted(tokens) = count.result() else { panic!("{:?}", count.result()) };
        assert_eq!((tokens.first().get(), tokens.end, tokens.block), (4, 5, 2));
    }

    /// H3.3: a node whose raise failed holds for another owner and does not count.
    #[test]
    fn a_node_that_lost_us_does_not_count() {
        let mut count = VoteCount::new(3);
        count.vote(0, granted(7, 1));
        count.vote(1, granted(4, 1));
        count.lost(1);
        assert_eq!(count.result(), VoteResult::Open);
        count.vote(2, refused());
        assert_eq!(count.result(), VoteResult::Refused);
    }

    /// L2: a node that had counted beyond 2^53 - 1 would have all others raised to where each counts the same
    /// number again.
    #[test]
    fn a_node_that_counts_beyond_the_end_has_failed() {
        let max = FencingToken::MAX.get();
        let mut count = VoteCount::new(3);
        count.vote(0, Vote::Granted { first: FencingToken::new(max), block: 2 });
        assert!(!count.has_granted(0));
        count.vote(1, Vote::Granted { first: FencingToken::new(7), block: 1 });
        count.vote(2, Vote::Granted { first: FencingToken::new(7), block: 1 });
        assert_eq!(count.result(), VoteResult::Granted(Tokens { end: 7, block: 1 }));
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            some in proptest::collection::btree_set(0..MOST, 0..9),
            others in proptest::collection::btree_set(0..MOST, 0..9),
        ) {
            let of = |set: &BTreeSet<usize>| -> Nodes { set.iter().copied().collect() };
            let back = |nodes: Nodes| -> BTreeSet<usize> { nodes.iter().collect() };
            let (one, other) = (of(&some), of(&others));
            prop_assert_eq!(back(one), some.clone());
            prop_assert_eq!(one.len(), some.len());
            prop_assert_eq!(one.is_empty(), some.is_empty());
            prop_assert!((0..MOST).all(|node| one.contains(node) == some.contains(&node)));
            prop_assert_eq!(back(one.and(other)), &some & &others);
            let mut rest = one;
            others.iter().for_each(|&node| rest.remove(node));
            prop_assert_eq!(back(rest), &some - &others);
            prop_assert_eq!(back(Nodes::first(some.len())), (0..some.len()).collect::<BTreeSet<_>>());
        }
    }
}

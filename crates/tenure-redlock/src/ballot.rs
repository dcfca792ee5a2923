//! `Ballot`: one claim to all nodes, from the first request until all is settled or released; `Tally`: the votes on it, and
//! their result. Pure: no I/O, no clock.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use tenure_core::{BackendError, ClaimAnswer, FencingToken, HolderView, Outcome, Raised};

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
    /// earlier ballot of the same attempt. An answer that is not here yet is waited for, so that the release does not
    /// come first.
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

/// The votes on one claim, one per node; the first of a node counts (hazard 48).
///
/// # Why a quorum of these tokens is larger than every earlier one (S3.3)
/// Every earlier grant ended on a token T that a quorum of nodes counted up to, by minting or by a raise that was
/// refused to anybody but the holder. Of two quorums one node is in both, and it minted for us after T; ours is no
/// smaller
/// than what any counted node minted for us. A block is as long as the shortest that one of them granted: its first
/// token lies above what each of them had before.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    votes: Vec<Option<Vote>>,
    /// Counts up to there: by its own mint, or since it was raised.
    counts: Vec<u64>,
}

impl Tally {
    fn new(nodes: usize) -> Self {
        Self { votes: vec![None; nodes], counts: vec![0; nodes] }
    }

    /// A majority of all nodes there are, whether they answer or not (H3.5).
    fn quorum(&self) -> usize {
        quorum_of(self.votes.len())
    }

    /// Counts the first vote of a node; a later one of the same node counts for nothing. A node that counts beyond what
    /// can be counted has failed: the others would be raised to where none can count on (L2).
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

    /// The node does not hold for us any more: it was raised in vain.
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
    fn verdict(&self) -> Verdict {
        let quorum = self.quorum();
        let granted: Vec<usize> = self.granted().collect();
        if granted.len() >= quorum {
            return self.of_quorum(&granted, quorum);
        }
        let of = |wanted: fn(&Vote) -> bool| self.votes.iter().flatten().filter(|vote| wanted(vote)).count();
        let failed = of(|vote| matches!(vote, Vote::Failed));
        let refused = of(|vote| matches!(vote, Vote::Refused { .. }));
        if self.votes.len() - failed - refused >= quorum {
            Verdict::Open
        } else if self.votes.len() - failed < quorum {
            Verdict::Failed
        } else {
            Verdict::Refused
        }
    }

    /// The largest token that any of them minted is ours, if so many count up to it: nobody who counts minted a larger
    /// one for us, else another attempt may have been granted what lies between (H3.3).
    fn of_quorum(&self, granted: &[usize], quorum: usize) -> Verdict {
        let end = granted.iter().filter_map(|&node| self.minted(node)).max().unwrap_or(0);
        let block = granted.iter().filter_map(|&node| self.block_of(node)).min().unwrap_or(1);
        let tokens = Tokens { end, block };
        let nodes: Vec<usize> = granted.iter().copied().filter(|&node| self.counts[node] < end).collect();
        if granted.len() - nodes.len() >= quorum {
            Verdict::Granted(tokens)
        } else {
            Verdict::Raise { to: end, nodes }
        }
    }

    /// The last token that it minted for us.
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
    /// It let us in and minted `block` tokens from `first` on.
    Granted { first: FencingToken, block: u32 },
    /// Another owner holds it there.
    Refused { retry_after: Duration, holder: Option<HolderView> },
    /// It did not answer, or with an error.
    Failed,
}

/// The result of the votes.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    /// Not decided yet.
    Open,
    /// A quorum granted, and its counters are at `tokens.end` already, so that no node need be raised.
    Granted(Tokens),
    /// A quorum granted; these nodes must count up to there before the tokens may be used.
    Raise { to: u64, nodes: Vec<usize> },
    /// No quorum can be had any more.
    Refused,
    /// So many nodes failed that none could be had even if all others had granted.
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

/// A majority of so many nodes.
pub(crate) fn quorum_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// A set of them. Every claim makes several and asks often: it is one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes(u64);

impl Nodes {
    /// The first so many.
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

    pub(crate) fn add(&mut self, others: Self) {
        self.0 |= others.0;
    }

    fn and(self, others: Self) -> Self {
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

/// As many as a quorum may have.
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

    /// What arrives, in order: a vote of a node, that it was raised to so much, or that it was raised in vain.
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

    fn apply(tally: &mut Tally, arrival: &Arrival) {
        match arrival {
            Arrival::Vote(node, vote) => tally.vote(*node, vote.clone()),
            Arrival::Raised(node, to) => tally.raised(*node, *to),
            Arrival::Lost(node) if tally.has_granted(*node) => tally.lost(*node),
            Arrival::Lost(_) => {}
        }
    }

    fn arrivals() -> impl Strategy<Value = (usize, Vec<Arrival>)> {
        prop_oneof![Just(3), Just(5), Just(7)]
            .prop_flat_map(|nodes| (Just(nodes), prop::collection::vec(any_arrival(nodes), 0..40)))
    }

    proptest! {
        /// S3.3, hazard 48: whatever arrives, granted is a quorum of different nodes, each of which counts up to the end of
        /// the block and minted nothing in it before.
        #[test]
        fn granted_is_a_quorum_that_counts_up_to_the_end((nodes, arrivals) in arrivals()) {
            let mut tally = Tally::new(nodes);
            let mut votes: Vec<Option<Vote>> = vec![None; nodes];
            for arrival in &arrivals {
                apply(&mut tally, arrival);
                if let Arrival::Vote(node, vote) = arrival {
                    votes[*node].get_or_insert_with(|| vote.clone());
                }
                let Verdict::Granted(tokens) = tally.verdict() else { continue };
                let counted: Vec<usize> = tally.granted().filter(|&node| tally.count_of(node) >= Some(tokens.end)).collect();
                prop_assert!(counted.len() >= quorum_of(nodes), "{counted:?} of {nodes}");
                prop_assert!(tokens.block >= 1);
                for node in counted {
                    let Some(Vote::Granted { first, block }) = votes[node] else { panic!("it granted") };
                    prop_assert!(first.get() + u64::from(block) - 1 <= tokens.end, "{tokens:?} below what {node} minted for us");
                    prop_assert!(tokens.first() >= first, "{tokens:?} reach into what {node} had given to others");
                }
            }
        }

        /// A vote that comes twice, or a second vote of a node, counts for nothing; neither does the order of refusals.
        #[test]
        fn the_first_vote_of_a_node_counts((nodes, arrivals) in arrivals(), again in any::<prop::sample::Index>()) {
            let (mut once, mut twice) = (Tally::new(nodes), Tally::new(nodes));
            let votes: Vec<&Arrival> = arrivals.iter().filter(|arrival| matches!(arrival, Arrival::Vote(..))).collect();
            for (at, arrival) in votes.iter().enumerate() {
                apply(&mut once, arrival);
                apply(&mut twice, arrival);
                apply(&mut twice, votes[again.index(at + 1)]);
                prop_assert_eq!(once.verdict(), twice.verdict());
            }
        }

        /// Nobody is told that it cannot be had while it still can, and a quorum that cannot be had stays so.
        #[test]
        fn a_refusal_is_final_and_never_early(votes in prop::collection::vec(any_vote(), 5)) {
            let mut tally = Tally::new(5);
            let mut hopeless = false;
            for (node, vote) in votes.iter().enumerate() {
                tally.vote(node, vote.clone());
                let against = votes[..=node].iter().filter(|vote| !matches!(vote, Vote::Granted { .. })).count();
                let is_refused = matches!(tally.verdict(), Verdict::Refused | Verdict::Failed);
                prop_assert_eq!(is_refused, against > 2);
                prop_assert!(is_refused || !hopeless);
                hopeless = is_refused;
            }
            let failed = votes.iter().filter(|vote| matches!(vote, Vote::Failed)).count();
            prop_assert_eq!(tally.verdict() == Verdict::Failed, failed > 2);
        }

        /// L2 by S3.3: attempts one after another, each of which reaches only some nodes, in any order, whose raises may be
        /// lost; the tokens of those that complete grow, block by block.
        #[test]
        fn the_tokens_of_completed_attempts_grow(
            nodes in prop_oneof![Just(3usize), Just(5)],
            start in prop::collection::vec(1..50u64, 5),
            attempts in prop::collection::vec((prop::collection::vec((any::<bool>(), 1..4u32, any::<bool>()), 5), any::<u64>()), 1..12),
        ) {
            let mut counters = start;
            let mut last = 0;
            for (reaches, order) in attempts {
                let mut tally = Tally::new(nodes);
                let mut all: Vec<usize> = (0..nodes).collect();
                all.rotate_left(usize::try_from(order % nodes as u64).unwrap());
                for &node in &all {
                    let (is_reached, block, _) = reaches[node];
                    if is_reached {
                        counters[node] += u64::from(block);
                        tally.vote(node, granted(counters[node] - u64::from(block) + 1, block));
                    } else {
                        tally.vote(node, Vote::Failed);
                    }
                    if let Verdict::Raise { to, nodes } = tally.verdict() {
                        for raised in nodes.into_iter().filter(|&raised| reaches[raised].2) {
                            counters[raised] = counters[raised].max(to);
                            tally.raised(raised, to);
                        }
                    }
                }
                if let Verdict::Granted(tokens) = tally.verdict() {
                    prop_assert!(tokens.first().get() > last, "{} after {last}", tokens.first().get());
                    last = tokens.end;
                }
            }
        }
    }

    /// S3.3, H3.3; mutant `no_second_round`: where nodes count differently, those behind are raised before anybody enters.
    #[test]
    fn nodes_that_are_behind_are_raised_first() {
        let mut tally = Tally::new(3);
        tally.vote(0, granted(7, 1));
        assert_eq!(tally.verdict(), Verdict::Open);
        tally.vote(2, granted(4, 1));
        assert_eq!(tally.verdict(), Verdict::Raise { to: 7, nodes: vec![2] });
        tally.raised(2, 7);
        assert_eq!(tally.verdict(), Verdict::Granted(Tokens { end: 7, block: 1 }));
    }

    /// H3.3: a late grant with a larger token is no acknowledgement of a smaller one. In between another attempt may have been
    /// granted it: that one took node 1 from us, was raised there, and had node 2 before us.
    #[test]
    fn nobody_who_counts_minted_a_larger_token() {
        let mut tally = Tally::new(3);
        tally.vote(0, granted(7, 1));
        tally.vote(1, granted(4, 1));
        tally.lost(1);
        tally.vote(2, granted(8, 1));
        assert_eq!(tally.verdict(), Verdict::Raise { to: 8, nodes: vec![0] });
        tally.raised(0, 8);
        assert_eq!(tally.verdict(), Verdict::Granted(Tokens { end: 8, block: 1 }));
    }

    /// H3.6: the end of a block is what the quorum counts up to, and the block is as long as the shortest.
    #[test]
    fn a_block_is_raised_to_its_end() {
        let mut tally = Tally::new(3);
        tally.vote(0, granted(1, 2));
        tally.vote(1, granted(3, 3));
        assert_eq!(tally.verdict(), Verdict::Raise { to: 5, nodes: vec![0] });
        tally.raised(0, 5);
        let Verdict::Granted(tokens) = tally.verdict() else { panic!("{:?}", tally.verdict()) };
        assert_eq!((tokens.first().get(), tokens.end, tokens.block), (4, 5, 2));
    }

    /// H3.3: a node that was raised in vain holds for somebody else and is out.
    #[test]
    fn a_node_that_lost_us_does_not_count() {
        let mut tally = Tally::new(3);
        tally.vote(0, granted(7, 1));
        tally.vote(1, granted(4, 1));
        tally.lost(1);
        assert_eq!(tally.verdict(), Verdict::Open);
        tally.vote(2, refused());
        assert_eq!(tally.verdict(), Verdict::Refused);
    }

    /// L2: a node that had counted beyond 2^53 - 1 would have all others raised to where each counts the same number again.
    #[test]
    fn a_node_that_counts_beyond_the_end_has_failed() {
        let max = FencingToken::MAX.get();
        let mut tally = Tally::new(3);
        tally.vote(0, Vote::Granted { first: FencingToken::new(max), block: 2 });
        assert!(!tally.has_granted(0));
        tally.vote(1, Vote::Granted { first: FencingToken::new(7), block: 1 });
        tally.vote(2, Vote::Granted { first: FencingToken::new(7), block: 1 });
        assert_eq!(tally.verdict(), Verdict::Granted(Tokens { end: 7, block: 1 }));
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

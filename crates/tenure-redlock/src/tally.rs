//! `Tally`: the votes on one claim, and their result. Pure: no clock, no I/O.

use std::time::Duration;

use tenure_core::{FencingToken, HolderView};

/// The answer of one node in the first round.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Vote {
    /// It let us in and minted `block` tokens from `first` on.
    Granted { first: FencingToken, block: u32 },
    /// Another owner holds it there.
    Refused { retry_after: Duration, holder: Option<HolderView> },
    /// It did not answer, or with an error.
    Failed,
}

/// The result of the votes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
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
    pub(crate) end: u64,
    pub(crate) block: u32,
}

impl Tokens {
    pub(crate) fn first(self) -> FencingToken {
        FencingToken::new((self.end + 1).saturating_sub(u64::from(self.block)))
    }
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
    pub(crate) fn new(nodes: usize) -> Self {
        Self { votes: vec![None; nodes], counts: vec![0; nodes] }
    }

    /// A majority of all nodes there are, whether they answer or not (H3.5).
    pub(crate) fn quorum(&self) -> usize {
        quorum_of(self.votes.len())
    }

    /// Counts the first vote of a node; a later one of the same node counts for nothing. A node that counts beyond what
    /// can be
    /// counted has failed: the others would be raised to where none can count on (L2).
    pub(crate) fn vote(&mut self, node: usize, vote: Vote) {
        if self.votes[node].is_some() {
            return;
        }
        let is_beyond =
            matches!(vote, Vote::Granted { first, block } if end_of(first, block) > FencingToken::MAX.get());
        self.votes[node] = Some(if is_beyond { Vote::Failed } else { vote });
        self.counts[node] = self.minted(node).unwrap_or(0);
    }

    /// The node counts up to `to` now; only if it had granted.
    pub(crate) fn raised(&mut self, node: usize, to: u64) {
        if self.has_granted(node) {
            self.counts[node] = self.counts[node].max(to);
        }
    }

    /// The node does not hold for us any more: it was raised in vain.
    pub(crate) fn lost(&mut self, node: usize) {
        self.votes[node] = Some(Vote::Failed);
        self.counts[node] = 0;
    }

    pub(crate) fn has_refused(&self, node: usize) -> bool {
        matches!(self.votes[node], Some(Vote::Refused { .. }))
    }

    pub(crate) fn has_granted(&self, node: usize) -> bool {
        matches!(self.votes[node], Some(Vote::Granted { .. }))
    }

    pub(crate) fn granted(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.votes.len()).filter(|&node| self.has_granted(node))
    }

    pub(crate) fn has_voted(&self, node: usize) -> bool {
        self.votes[node].is_some()
    }

    /// The counter of a node that granted.
    pub(crate) fn count_of(&self, node: usize) -> Option<u64> {
        self.has_granted(node).then(|| self.counts[node])
    }

    /// The result of the votes so far.
    pub(crate) fn verdict(&self) -> Verdict {
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
    /// one
    /// for us, else another attempt may have been granted what lies between (H3.3).
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

fn end_of(first: FencingToken, block: u32) -> u64 {
    first.get().saturating_add(u64::from(block)).saturating_sub(1)
}

/// A majority of so many nodes.
pub(crate) fn quorum_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

#[cfg(test)]
#[path = "tally_tests.rs"]
mod tests;

//! Any order, duplication and loss of answers.

use proptest::prelude::*;

use super::*;

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

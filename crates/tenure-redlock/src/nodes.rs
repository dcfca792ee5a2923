//! `Nodes`: some of the nodes of a quorum, by number.

/// As many as a quorum may have.
pub(crate) const MOST: usize = 63;

/// A set of them. Every claim makes several and asks often: it is one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes(u64);

impl Nodes {
    /// The first so many.
    pub(crate) fn first(count: usize) -> Self {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

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

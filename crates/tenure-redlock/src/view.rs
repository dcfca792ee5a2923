//! The views of the nodes as one view, by quorum.

use std::{cmp::Reverse, collections::BTreeMap};

use tenure_core::{FencingToken, HolderView, LockName, LockView, MemoView, WaiterView};

/// One view from those of the nodes that answered. An owner that holds fewer than `quorum` of them does not
/// hold the lock.
pub(crate) fn merge(name: LockName, views: &[LockView], quorum: usize) -> LockView {
    let mut holders: BTreeMap<&str, Vec<&HolderView>> = BTreeMap::new();
    let mut queue: BTreeMap<&str, &WaiterView> = BTreeMap::new();
    for view in views {
        for holder in &view.holders {
            holders.entry(&holder.owner).or_default().push(holder);
        }
        for waiter in &view.queue {
            let longest = queue.entry(&waiter.owner).or_insert(waiter);
            if waiter.waiting > longest.waiting {
                *longest = waiter;
            }
        }
    }
    let of_quorum = holders.values().filter(|seen| seen.len() >= quorum);
    let holders = of_quorum.map(|seen| holder(seen, quorum)).collect();
    let mut queue: Vec<WaiterView> = queue.into_values().cloned().collect();
    queue.sort_by_key(|waiter| Reverse(waiter.waiting));
    // A quorum counts up to every token that was granted. It counts up to this number too, and the next token will be
    // larger.
    let mut fences: Vec<FencingToken> = views.iter().map(|view| view.fence).collect();
    fences.sort_unstable();
    let fence = fences.get(quorum - 1).or_else(|| fences.last()).copied().unwrap_or(FencingToken::new(0));
    let mut merged = LockView::new(name, holders, queue, fence);
    merged.memo = latest(views);
    merged
}

/// The same for all locks that any node reports; those that a quorum reports as free are left out.
pub(crate) fn merge_all(lists: Vec<Vec<LockView>>, quorum: usize) -> Vec<LockView> {
    let mut by_name: BTreeMap<LockName, Vec<LockView>> = BTreeMap::new();
    for view in lists.into_iter().flatten() {
        by_name.entry(view.name.clone()).or_default().push(view);
    }
    let mut merged: Vec<LockView> =
        by_name.into_iter().map(|(name, views)| merge(name, &views, quorum)).collect();
    merged.retain(|view| !(view.holders.is_empty() && view.queue.is_empty()));
    merged
}

/// The owner holds as long as a quorum of nodes reports it, with the token that a quorum of them has reached: a node
/// that granted late may be ahead.
fn holder(seen: &[&HolderView], quorum: usize) -> HolderView {
    let mut ends: Vec<_> = seen.iter().map(|holder| holder.expires_in).collect();
    // A lock that never ends comes last.
    ends.sort_by_key(|left| (left.is_none(), *left));
    let expires_in = ends[ends.len() - quorum];
    let mut tokens: Vec<_> = seen.iter().map(|holder| holder.token).collect();
    tokens.sort_unstable();
    let token = tokens[tokens.len() - quorum];
    let mut holder = seen[0].clone();
    (holder.expires_in, holder.token) = (expires_in, token);
    holder
}

/// The last memo that a majority has confirmed, from the views of a majority.
///
/// # Why it is the last one
/// A memo is written on every node where its owner holds, and is confirmed once a majority has written it. A reader
/// asks a majority as well, so at least one node of those has the last confirmed memo. The token distinguishes it
/// from older ones: tokens grow from holder to holder (L2), and no node replaces a memo by one with a smaller token.
/// Of two memos by one holder, the younger one is the last, because a holder writes one after the other. A memo that
/// fewer nodes wrote is not confirmed: it may be read, or not.
///
/// Not promised: that an older memo is not read again, where a node has missed a younger one that was kept for less
/// time. It ends by its own time.
fn latest(views: &[LockView]) -> Option<MemoView> {
    let memos = views.iter().filter_map(|view| view.memo.as_ref());
    memos.max_by_key(|memo| (memo.token, Reverse(memo.age))).cloned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_core::Mode;

    use super::*;

    fn seen(owner: &str, token: u64, left_s: u64) -> LockView {
        let mut holder = HolderView::new(owner, Mode::Exclusive);
        holder.token = Some(FencingToken::new(token));
        holder.expires_in = Some(Duration::from_secs(left_s));
        let name = LockName::new("a").expect("a name");
        LockView::new(name, vec![holder], Vec::new(), FencingToken::new(token))
    }

    /// An owner that holds two nodes of five does not hold; one with three does, until the first of those
    /// three expires.
    #[test]
    fn who_holds_a_quorum_of_nodes_holds() {
        let views = [seen("x", 7, 9), seen("x", 9, 4), seen("y", 3, 9), seen("x", 8, 6), seen("y", 4, 9)];
        let merged = merge(views[0].name.clone(), &views, 3);
        let [holder] = &merged.holders[..] else { panic!("one holder: {merged:?}") };
        assert_eq!((holder.owner.as_str(), holder.token), ("x", Some(FencingToken::new(7))));
        assert_eq!(holder.expires_in, Some(Duration::from_secs(4)));
        assert_eq!(merged.fence, FencingToken::new(7));
    }

    fn noted(token: u64, age: u64) -> LockView {
        let name = LockName::new("a").expect("a name");
        let mut view = LockView::new(name, Vec::new(), Vec::new(), FencingToken::new(token));
        let (age, left) = (Duration::from_secs(age), Duration::from_secs(9));
        view.memo = Some(MemoView::new("", ("x", FencingToken::new(token)), age, left));
        view
    }

    #[test]
    fn the_largest_token_and_then_the_youngest_is_the_last() {
        let last = latest(&[noted(7, 3), noted(8, 50), noted(8, 40)]).expect("a memo");
        assert_eq!((last.token, last.age), (FencingToken::new(8), Duration::from_secs(40)));
        assert_eq!(latest(&[]), None);
    }
}

//! The queue of a lock: holders, waiters and the nodes that each one watches, from the names of the nodes
//! alone.

use tenure_core::Mode;

use crate::{config::Layout, node::Contender};

/// All claims of a lock, in the order in which they came. All clients read the same queue and come to the
/// same conclusion (L1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeQueue {
    contenders: Vec<Contender>,
    /// How many of them hold.
    leading: usize,
}

impl NodeQueue {
    /// From the children of a lock's directory, in any order.
    pub(crate) fn read<'a>(children: impl IntoIterator<Item = &'a String>) -> Self {
        let mut contenders: Vec<_> = children.into_iter().filter_map(|name| Contender::read(name)).collect();
        let is_at_the_wrap =
            contenders.iter().any(|c| c.sequence > FAR) && contenders.iter().any(|c| c.sequence < -FAR);
        // After 2³¹ − 1 comes −2³¹, and after −1 comes 0.
        let key = |c: &Contender| {
            if is_at_the_wrap { i64::from(c.sequence.cast_unsigned()) } else { i64::from(c.sequence) }
        };
        contenders.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name)));
        let leading = Mode::leading(contenders.iter().map(|c| c.mode));
        Self { contenders, leading }
    }

    pub(crate) fn holders(&self) -> &[Contender] {
        &self.contenders[..self.leading]
    }

    pub(crate) fn waiters(&self) -> &[Contender] {
        &self.contenders[self.leading..]
    }

    /// Whether one more in this mode would hold immediately.
    pub(crate) fn fits(&self, mode: Mode) -> bool {
        let queue = self.contenders.iter().map(|c| c.mode).chain([mode]);
        Mode::leading(queue) == self.contenders.len() + 1
    }

    /// The nodes that clients of this layout do not count.
    pub(crate) fn unknown_to(&self, layout: Layout) -> impl Iterator<Item = &Contender> {
        self.contenders.iter().filter(move |c| !layout.is_of(&c.name))
    }

    pub(crate) fn position(&self, name: &str) -> Option<QueuePosition> {
        let at = self.contenders.iter().position(|c| c.name == name)?;
        Some(if at < self.leading { QueuePosition::Holds } else { QueuePosition::Waits(at - self.leading) })
    }

    /// The first node whose name starts with `mark`.
    pub(crate) fn marked(&self, mark: &str) -> Option<&Contender> {
        self.all_marked(mark).next()
    }

    pub(crate) fn all_marked(&self, mark: &str) -> impl Iterator<Item = &Contender> {
        self.contenders.iter().filter(move |c| c.name.starts_with(mark))
    }

    /// The nodes that a waiter with `ahead` others before it must watch: their change may make it a holder. A
    /// waiter further back watches the one before it, so that one change wakes few.
    pub(crate) fn watched_by(&self, ahead: usize) -> Vec<&str> {
        let Some(own) = self.waiters().get(ahead) else { return Vec::new() };
        match ahead.checked_sub(1) {
            Some(before) => vec![&self.waiters()[before].name],
            // All holders must leave, so watching the last one is enough.
            None if own.mode == Mode::Exclusive => {
                self.holders().last().map(|c| c.name.as_str()).into_iter().collect()
            }
            None => self.holders().iter().take(WATCHED).map(|c| c.name.as_str()).collect(),
        }
    }
}

/// The position of a claim in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePosition {
    Holds,
    /// This many waiters are before it.
    Waits(usize),
}

/// A number beyond this is far from zero.
const FAR: i32 = 1 << 30;
/// Holders that one waiter watches at most; of more, those that came last are found by asking again.
const WATCHED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(names: &[&str]) -> NodeQueue {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        NodeQueue::read(&names)
    }

    fn shared(limit: u32, number: i32) -> String {
        format!("{}-shared-{limit}__lock__{number:010}", "ab".repeat(16))
    }

    fn alone(number: i32) -> String {
        format!("x-lock-{number:010}")
    }

    fn order(queue: &NodeQueue) -> Vec<i32> {
        queue.contenders.iter().map(|c| c.sequence).collect()
    }

    /// L1, L7.
    #[test]
    fn the_first_that_fit_together_hold_in_the_order_of_their_numbers() {
        let names = [shared(0, 12), alone(3), shared(0, 13), alone(20), "config".to_owned()];
        let queue = NodeQueue::read(&names);
        assert_eq!(order(&queue), [3, 12, 13, 20]);
        assert_eq!(queue.position(&alone(3)), Some(QueuePosition::Holds));
        assert_eq!(queue.position(&shared(0, 13)), Some(QueuePosition::Waits(1)));
        assert_eq!(queue.position("gone"), None);
        let queue = NodeQueue::read(&names[2..]);
        assert_eq!(queue.holders().len(), 1);
        assert!(!queue.fits(Mode::READ), "a writer waits");
        assert!(NodeQueue::read(&[shared(0, 12)]).fits(Mode::READ));
        assert!(!NodeQueue::read(&[shared(1, 12)]).fits(Mode::READ));
    }

    /// L1: the counter of a directory is 32 bits wide.
    #[test]
    fn the_order_survives_the_wrap_of_the_counter() {
        assert_eq!(order(&queue(&["a-lock--2147483648", "a-lock-2147483647"])), [i32::MAX, i32::MIN]);
        assert_eq!(order(&queue(&["a-lock-0000000000", "a-lock--000000001"])), [-1, 0]);
    }

    /// One change of owner wakes few.
    #[test]
    fn who_waits_watches_the_one_before_it_or_those_who_hold() {
        let names = [shared(0, 1), shared(0, 2), alone(3), shared(0, 4)];
        let queue = NodeQueue::read(&names);
        assert_eq!(queue.watched_by(0), [shared(0, 2)], "the last of the readers");
        assert_eq!(queue.watched_by(1), [alone(3)]);
        let slots = [shared(2, 1), shared(2, 2), shared(2, 3)];
        assert_eq!(NodeQueue::read(&slots).watched_by(0), [shared(2, 1), shared(2, 2)], "any of them");
        assert!(queue.watched_by(9).is_empty());
    }
}

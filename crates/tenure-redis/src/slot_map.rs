//! `View`, the slot map that one node of a Redis Cluster reports, and `KnownCluster`, which chooses one.
//!
//! A node that never joined the Cluster, or left it, answers too: with an empty map, or with that of another Cluster. The
//! node ids distinguish them: a node that left is in no view of the others.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use redis::Value;
use tenure_client::url::HostPort;
use tenure_core::Moment;

/// The slot map that one node reports.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The node that was asked.
    pub(crate) at: HostPort,
    /// In order.
    pub(crate) ranges: Vec<SlotRange>,
    /// Masters and replicas by their ids.
    nodes: BTreeMap<String, HostPort>,
    /// `cluster_current_epoch`; 0 if this user may not ask for it.
    epoch: u64,
}

/// A range of slots, and the id and the address of the master that has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    master: String,
    pub(crate) at: HostPort,
}

/// The Cluster of the URL, as this process last saw it.
#[derive(Debug, Default)]
pub(crate) struct KnownCluster {
    /// The ids of its masters and replicas.
    ids: BTreeSet<String>,
    /// The addresses of its masters.
    pub(crate) masters: Vec<HostPort>,
    /// Since when all nodes that answer belong to another Cluster.
    replaced: Option<Moment>,
}

/// Why no view is chosen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Disagreement {
    /// These two nodes belong to different Clusters.
    Two(HostPort, HostPort),
    /// This node, and all others that answer, belong to another Cluster than the known one.
    Another(HostPort),
}

impl View {
    /// From the answers to `CLUSTER SLOTS` and `CLUSTER INFO`. `None` for a map that is empty or cannot be parsed.
    pub(crate) fn read(at: &HostPort, slots: &Value, info: Option<Value>) -> Option<Self> {
        let Value::Array(answers) = slots else { return None };
        let (mut ranges, mut nodes) = (Vec::new(), BTreeMap::new());
        for answer in answers {
            ranges.push(slot_range(answer, &at.0, &mut nodes)?);
        }
        ranges.sort();
        let info: Option<String> = info.and_then(|info| redis::from_redis_value(info).ok());
        let line = |text: &String| text.lines().find_map(|line| line.strip_prefix(EPOCH)?.parse().ok());
        let epoch = info.as_ref().and_then(line).unwrap_or(0);
        (!ranges.is_empty()).then(|| Self { at: at.clone(), ranges, nodes, epoch })
    }

    /// Whether this node belongs to the Cluster of this view. Decided by the views of other nodes if there are any,
    /// because a removed node may list itself.
    pub(crate) fn has(&self, at: &HostPort, views: &[Self]) -> bool {
        let others = views.iter().filter(|view| view.at != *at && self.is_of_one_cluster_with(view));
        let mut others = others.peekable();
        let knows = |view: &Self| view.nodes.values().any(|known| known == at);
        if others.peek().is_none() { knows(self) } else { others.any(knows) }
    }

    /// Where the masters are, each once.
    pub(crate) fn masters(&self) -> Vec<HostPort> {
        self.ranges.iter().map(|range| range.at.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn owners(&self) -> impl Iterator<Item = (u16, u16, &str)> {
        self.ranges.iter().map(|range| (range.first, range.last, &*range.master))
    }

    fn covered(&self) -> usize {
        self.ranges.iter().map(|range| usize::from(range.last - range.first) + 1).sum()
    }

    /// Share more than half of the ids of the smaller set: a node that has just joined knows few others, and a node that
    /// moved between Clusters may be in views of both.
    fn is_of_one_cluster_with(&self, other: &Self) -> bool {
        let shared = self.nodes.keys().filter(|id| other.nodes.contains_key(*id)).count();
        shared * 2 > self.nodes.len().min(other.nodes.len())
    }
}

impl KnownCluster {
    /// Whether a view is of this Cluster: it has at least half of the known ids. A node that left has its own id, and
    /// none of the others.
    fn is_shown_by(&self, view: &View) -> bool {
        self.ids.iter().filter(|id| view.nodes.contains_key(*id)).count() * 2 >= self.ids.len()
    }

    /// How much longer to wait for the other nodes: `asked` were asked, and those of `views` have answered. `None`: until
    /// the timeout.
    pub(crate) fn patience(&self, asked: usize, views: &[&View], connect: Duration) -> Option<Duration> {
        if !self.ids.is_empty() {
            return views.iter().any(|view| self.is_shown_by(view)).then_some(connect / 10);
        }
        let largest = groups(views.to_vec()).first().map_or(0, Vec::len);
        match largest {
            0 => None,
            // A node that hangs delays no other.
            _ if largest * 2 > asked => Some(Duration::ZERO),
            _ => Some(connect / 2),
        }
    }

    /// Chooses one of at least one view. Never one of another Cluster than the known one, or than most of them. Among
    /// views of one Cluster: the most slots with an owner, then the largest epoch, then the most nodes with the same map.
    ///
    /// OK because each failover and each move of a slot raises the epoch of the new owner and of its voters, so an
    /// isolated old master has a smaller one. A wrong view harms no lock: a node refuses requests for slots of another
    /// node.
    pub(crate) fn choose(&mut self, now: Moment, views: &[&View]) -> Result<View, Disagreement> {
        let mut candidates: Vec<&View> =
            views.iter().copied().filter(|view| self.is_shown_by(view)).collect();
        if candidates.is_empty() {
            let since = *self.replaced.get_or_insert(now);
            if since.elapsed(now) < RESET {
                return Err(Disagreement::Another(views[0].at.clone()));
            }
            candidates = views.to_vec();
        }
        let count = candidates.len();
        let groups = groups(candidates);
        if let [first, second, ..] = &*groups
            && first.len() * 2 <= count
        {
            return Err(Disagreement::Two(first[0].at.clone(), second[0].at.clone()));
        }
        let votes = |view: &View| groups[0].iter().filter(|other| other.owners().eq(view.owners())).count();
        let best = groups[0].iter().max_by_key(|view| (view.covered(), view.epoch, votes(view)));
        let best: View = (*best.expect("BUG: a view is of a group")).clone();
        *self = Self { ids: best.nodes.keys().cloned().collect(), masters: best.masters(), replaced: None };
        Ok(best)
    }
}

/// The views grouped by Cluster, the largest group first.
fn groups(views: Vec<&View>) -> Vec<Vec<&View>> {
    let mut groups: Vec<Vec<&View>> = Vec::new();
    for view in views {
        let mut group = vec![view];
        groups.retain_mut(|known| {
            let is_same = known.iter().any(|other| other.is_of_one_cluster_with(view));
            if is_same {
                group.append(known);
            }
            !is_same
        });
        groups.push(group);
    }
    groups.sort_by_key(|group| Reverse(group.len()));
    groups
}

/// One of `CLUSTER SLOTS`: `first, last, [host, port, id, …], replicas …`. A node without a host is on the host that was
/// asked; one without an id (before Redis 4) is identified by its address.
fn slot_range(range: &Value, asked: &str, nodes: &mut BTreeMap<String, HostPort>) -> Option<SlotRange> {
    let Value::Array(range) = range else { return None };
    let [first, last, master, replicas @ ..] = range.as_slice() else { return None };
    let slot =
        |value: &Value| redis::from_redis_value::<u16>(value.clone()).ok().filter(|slot| *slot < SLOTS);
    let (first, last) = (slot(first)?, slot(last)?);
    let (master, at) = node(master, asked)?;
    nodes.insert(master.clone(), at.clone());
    nodes.extend(replicas.iter().filter_map(|replica| node(replica, asked)));
    (first <= last).then_some(SlotRange { first, last, master, at })
}

fn node(node: &Value, asked: &str) -> Option<(String, HostPort)> {
    let Value::Array(node) = node else { return None };
    let host: Option<String> = redis::from_redis_value(node.first()?.clone()).ok()?;
    let port: u16 = redis::from_redis_value(node.get(1)?.clone()).ok()?;
    let at = (host_or(&host.unwrap_or_default(), asked), port);
    let id = node.get(2).and_then(|id| redis::from_redis_value(id.clone()).ok());
    Some((id.unwrap_or_else(|| format!("{}:{}", at.0, at.1)), at))
}

/// The named host; a node that does not know its own has the host that was asked.
pub(crate) fn host_or(named: &str, known: &str) -> String {
    if named.is_empty() || named == "?" { known.to_owned() } else { named.to_owned() }
}

pub(crate) const SLOTS: u16 = 16_384;

const EPOCH: &str = "cluster_current_epoch:";

/// How long all nodes that answer must belong to another Cluster before it is accepted, as after all nodes were replaced.
/// A short outage of the known nodes looks the same.
const RESET: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        let since = Duration::from_secs(seconds);
        Moment { boot: since, wall: since }
    }

    /// By the node at this port: the slots up to the first number belong to the first id, and so on.
    fn view(port: u16, epoch: u64, masters: &[(u16, &str)], replicas: &[&str]) -> View {
        let node = |id: &str| {
            let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
            Value::Array(vec![bulk("h"), Value::Int(i64::from(id.as_bytes()[0])), bulk(id)])
        };
        let mut first = 0;
        let range = |(last, id): &(u16, &str)| {
            let from = std::mem::replace(&mut first, i64::from(*last) + 1);
            let mut range = vec![Value::Int(from), Value::Int(i64::from(*last)), node(id)];
            range.extend(replicas.iter().map(|id| node(id)));
            Value::Array(range)
        };
        let slots = Value::Array(masters.iter().map(range).collect());
        let info = Value::SimpleString(format!("cluster_state:ok\r\n{EPOCH}{epoch}\r\n"));
        View::read(&("h".to_owned(), port), &slots, Some(info)).unwrap()
    }

    /// The node whose view was chosen, or the nodes that disagree.
    fn chosen(known: &mut KnownCluster, now: u64, views: &[&View]) -> String {
        match known.choose(at(now), views) {
            Ok(view) => view.at.1.to_string(),
            Err(Disagreement::Two(one, other)) => format!("{} or {}", one.1, other.1),
            Err(Disagreement::Another(at)) => format!("not {}", at.1),
        }
    }

    const ALL: u16 = SLOTS - 1;

    #[test]
    fn an_empty_or_unreadable_map_is_no_view() {
        let range = |first, last| Value::Array(vec![Value::Int(first), Value::Int(last), Value::Nil]);
        for slots in [Value::Array(vec![]), Value::Nil, Value::Array(vec![range(0, 5)])] {
            assert!(View::read(&("h".to_owned(), 1), &slots, None).is_none(), "{slots:?}");
        }
    }

    /// L1: the first answer decided, even if it came from a node of another Cluster.
    #[test]
    fn another_cluster_is_outvoted_or_named() {
        let [one, two] = [1, 2].map(|port| view(port, 5, &[(9000, "a"), (ALL, "b")], &["c"]));
        let strange = view(9, 99, &[(ALL, "x")], &[]);
        let fresh = KnownCluster::default;
        assert_eq!(chosen(&mut fresh(), 0, &[&strange, &one, &two]), "1");
        assert_eq!(chosen(&mut fresh(), 0, &[&strange, &one]), "9 or 1");
        assert_eq!(chosen(&mut fresh(), 0, &[&strange]), "9");
        let mut known = fresh();
        known.choose(at(0), &[&one]).unwrap();
        assert_eq!(chosen(&mut known, 0, &[&strange, &two]), "2");
        // A known node has left, with its id.
        let left = view(3, 99, &[(9000, "c"), (ALL, "y")], &[]);
        assert_eq!(chosen(&mut known, 0, &[&left]), "not 3");
        assert_eq!(chosen(&mut known, 0, &[&left, &one]), "1");
        // All were replaced.
        assert_eq!(chosen(&mut known, 10, &[&strange]), "not 9");
        assert_eq!(chosen(&mut known, 69, &[&strange]), "not 9");
        assert_eq!(chosen(&mut known, 70, &[&strange]), "9");
        assert_eq!(chosen(&mut known, 70, &[&one]), "not 1");
    }

    /// An isolated old master keeps its map, and so do the nodes isolated with it.
    #[test]
    fn of_one_cluster_the_largest_epoch_is_right_and_then_most_nodes() {
        let [old, beside] = [1, 2].map(|port| view(port, 5, &[(9000, "a"), (ALL, "b")], &["c"]));
        let new = view(3, 6, &[(9000, "c"), (ALL, "b")], &[]);
        let fresh = KnownCluster::default;
        assert_eq!(chosen(&mut fresh(), 0, &[&old, &beside, &new]), "3");
        let [late, too] =
            [(4, "a"), (6, "c")].map(|(port, id)| view(port, 6, &[(9000, id), (ALL, "b")], &["c"]));
        assert_eq!(chosen(&mut fresh(), 0, &[&too, &late, &new]), "6");
        assert_eq!(chosen(&mut fresh(), 0, &[&late, &new, &too]), "3");
        let hosts = [99, 120].map(|port| ("h".to_owned(), port));
        assert_eq!(hosts.map(|at| new.has(&at, &[new.clone(), too.clone()])), [true, false]);
        // Only it lists itself.
        let removed = view(120, 6, &[(9000, "c"), (ALL, "b")], &["x"]);
        let itself = removed.at.clone();
        assert!(removed.has(&itself, std::slice::from_ref(&removed)));
        assert!(!removed.has(&itself, &[removed.clone(), too.clone()]));
        // One that has just joined knows some of the masters.
        let joins = view(7, 7, &[(9000, "b")], &[]);
        assert_eq!(chosen(&mut fresh(), 0, &[&joins, &new, &joins]), "3");
    }

    /// If most nodes agree, a node that hangs delays no other. If no Cluster is known, slow nodes are waited for.
    #[test]
    fn the_others_are_waited_for_until_most_agree() {
        let [one, two] = [1, 2].map(|port| view(port, 5, &[(ALL, "a")], &["c"]));
        let (strange, connect) = (view(9, 9, &[(ALL, "x")], &[]), Duration::from_secs(1));
        let mut known = KnownCluster::default();
        let patience = |known: &KnownCluster, asked, views: &[&View]| {
            known.patience(asked, views, connect).map(|patience| patience.as_millis())
        };
        assert_eq!(patience(&known, 3, &[]), None);
        assert_eq!(patience(&known, 3, &[&one]), Some(500));
        assert_eq!(patience(&known, 3, &[&one, &strange]), Some(500));
        assert_eq!(patience(&known, 3, &[&one, &strange, &two]), Some(0));
        known.choose(at(0), &[&one]).unwrap();
        assert_eq!(patience(&known, 3, &[&strange]), None);
        assert_eq!(patience(&known, 3, &[&strange, &one]), Some(100));
    }
}

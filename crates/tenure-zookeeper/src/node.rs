//! A contender's node: its content, and its name, which has its owner's claim, its mode and its number in the queue.

use std::{num::NonZeroU32, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use tenure_core::{Claim, FencingToken, Label, LockName, Mode, Moment, OwnerId};

use crate::config::Layout;

/// A node that claims a lock, in the directory of that lock, of Tenure or of another library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    /// The number that ZooKeeper gave to the node.
    pub(crate) sequence: i32,
}

impl Contender {
    /// Reads a name. A node whose name ends in a number of ZooKeeper's may want the lock. It counts as exclusive,
    /// unless the name is Tenure's and has another mode.
    pub(crate) fn read(name: &str) -> Option<Self> {
        let (rest, sequence) = split(name)?;
        Some(Self { name: name.to_owned(), mode: shared(rest).unwrap_or(Mode::Exclusive), sequence })
    }
}

impl Layout {
    /// How the name of an owner's node begins: enough to find the node when the reply to its creation was lost (H6.5,
    /// hazard 57).
    pub(crate) fn mark(self, owner: OwnerId) -> String {
        let hex = owner.hex();
        let claim: String = hex[16..].iter().copied().map(char::from).collect();
        match self {
            Self::Curator => {
                let (a, b, c, d, e) =
                    (&claim[..8], &claim[8..12], &claim[12..16], &claim[16..20], &claim[20..]);
                format!("_c_{a}-{b}-{c}-{d}-{e}-")
            }
            Self::Kazoo => claim,
        }
    }

    /// True if clients of this layout count a node of this name.
    pub(crate) fn is_of(self, node: &str) -> bool {
        number(node, self.marker()).is_some()
    }

    /// The owner of another library's node, for people. Clients with another layout do not count Tenure's nodes.
    pub(crate) fn stranger(self, node: &str) -> String {
        if self.is_of(node) {
            return node.to_owned();
        }
        format!("{node}, of a client with another layout, which does not wait for Tenure")
    }

    fn marker(self) -> &'static str {
        match self {
            Self::Curator => CURATOR,
            Self::Kazoo => KAZOO,
        }
    }

    /// The name of an owner's node up to its number. A mode that other libraries do not know comes before the text
    /// that they search for, so that they count the node.
    pub(crate) fn prefix(self, owner: OwnerId, mode: Mode) -> String {
        let mark = self.mark(owner);
        match (self, mode) {
            (Self::Curator, Mode::Exclusive) => format!("{mark}{CURATOR}"),
            (Self::Kazoo, Mode::Exclusive) => format!("{mark}{KAZOO}"),
            (_, Mode::Shared { limit, permits }) => {
                let limit = limit.map_or(0, NonZeroU32::get);
                // A version that counts holders cannot read several permits, and lets the node hold alone (L1).
                let limit = match permits {
                    NonZeroU32::MIN => limit.to_string(),
                    permits => format!("{limit}.{permits}"),
                };
                match self {
                    Self::Curator => format!("{mark}tenure-shared-{limit}-{CURATOR}"),
                    Self::Kazoo => format!("{mark}-shared-{limit}{KAZOO}"),
                }
            }
        }
    }
}

/// A name before its number, and the number, which becomes negative after 2³¹ − 1.
fn split(name: &str) -> Option<(&str, i32)> {
    if let Some(found) = [CURATOR, KAZOO].into_iter().find_map(|marker| number(name, marker)) {
        return Some(found);
    }
    let at = name.len().checked_sub(DIGITS)?;
    let (rest, digits) = name.split_at_checked(at)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: i64 = digits.parse().ok()?;
    // Ten digits that exceed ZooKeeper's numbers are a negative one: its sign is in the text before them.
    i32::try_from(number).or_else(|_| i32::try_from(-number)).ok().map(|number| (rest, number))
}

/// A name before this marker, and the number after it, if nothing else follows.
fn number<'n>(name: &'n str, marker: &str) -> Option<(&'n str, i32)> {
    let (rest, number) = name.rsplit_once(marker).filter(|(_, number)| number.len() >= DIGITS)?;
    number.parse().ok().map(|number| (rest, number))
}

/// The mode in one of Tenure's names, given without marker and number.
fn shared(rest: &str) -> Option<Mode> {
    let curator = || rest.strip_prefix("_c_")?.get(36..)?.strip_prefix("-tenure-shared-")?.strip_suffix('-');
    let kazoo = || {
        let (claim, rest) = rest.split_at_checked(32)?;
        claim.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| rest.strip_prefix("-shared-"))?
    };
    let limit = curator().or_else(kazoo)?;
    match limit.split_once('.') {
        Some((limit, permits)) => Mode::several(limit.parse().ok()?, permits.parse().ok()?),
        None => limit.parse().ok().map(|limit| NonZeroU32::new(limit).map_or(Mode::READ, Mode::permit)),
    }
}

/// The element of a path that a lock's name becomes.
pub(crate) fn encode(name: &LockName) -> String {
    match name.as_str() {
        // ZooKeeper has no elements of these names.
        "." => "%2E".into(),
        ".." => "%2E%2E".into(),
        name => utf8_percent_encode(name, PLAIN).to_string(),
    }
}

/// The lock that an element of a path names, if Tenure wrote that name.
pub(crate) fn decode(element: &str) -> Option<LockName> {
    let name = percent_decode_str(element).decode_utf8().ok()?;
    let name = LockName::new(name).ok()?;
    (encode(&name) == element).then_some(name)
}

/// The data of Tenure's nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) owner: OwnerId,
    pub(crate) label: Label,
    /// When it took its place, since the Unix epoch.
    pub(crate) since_ms: u64,
    pub(crate) ttl_ms: u64,
    /// It waited, and now holds together with others: the next waiter in the queue should check again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) entered: bool,
}

impl NodeRecord {
    pub(crate) fn new(claim: &Claim, now: Moment) -> Self {
        Self {
            owner: claim.owner,
            label: Label::clone(&claim.label),
            since_ms: millis(now.wall),
            ttl_ms: millis(claim.ttl),
            entered: false,
        }
    }

    /// `None` for the data of another library.
    pub(crate) fn read(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    pub(crate) fn written(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("BUG: a record of numbers and texts is always JSON")
    }
}

/// True for a text that a newer version wrote: it has a format, and texts of this version have none.
pub(crate) fn is_newer(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Stored {
        format: u32,
    }
    serde_json::from_slice::<Stored>(data).is_ok_and(|stored| stored.format > 0)
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// Curator sorts by the text after the last occurrence of this.
const CURATOR: &str = "lock-";
/// kazoo searches for this before the number.
const KAZOO: &str = "__lock__";
const DIGITS: usize = 10;
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The token is the number of the transaction that made the node. The ensemble counts all transactions, so later
/// places have larger tokens (L2).
pub(crate) fn token(zxid: i64) -> FencingToken {
    FencingToken::new(u64::try_from(zxid).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use tenure_core::ProcessId;

    use super::*;

    fn owner() -> OwnerId {
        OwnerId::from_random(ProcessId::from_random([7; 8]), [0xab; 16])
    }

    fn slots(limit: u32) -> Mode {
        Mode::permit(NonZeroU32::new(limit).unwrap())
    }

    fn several(permits: u32, limit: u32) -> Mode {
        let [limit, permits] = [limit, permits].map(|number| NonZeroU32::new(number).unwrap());
        Mode::several(limit, permits).unwrap()
    }

    /// Interop: Curator's `InterProcessMutex` takes the text after the last `lock-` as the number, kazoo's `Lock`
    /// what its pattern `__lock__(-?\d{10})$` finds.
    #[test]
    fn nodes_are_called_as_curator_and_kazoo_call_theirs() {
        let (curator, kazoo) = (Layout::Curator, Layout::Kazoo);
        let uuid = "abababab-abab-abab-abab-abababababab";
        assert_eq!(curator.prefix(owner(), Mode::Exclusive), format!("_c_{uuid}-lock-"));
        assert_eq!(kazoo.prefix(owner(), Mode::Exclusive), format!("{}__lock__", "ab".repeat(16)));
        for mode in [Mode::Exclusive, Mode::READ, slots(3), several(2, 3)] {
            let name = format!("{}0000000042", curator.prefix(owner(), mode));
            assert_eq!(name.rsplit_once("lock-").unwrap().1, "0000000042");
            let name = format!("{}0000000042", kazoo.prefix(owner(), mode));
            assert_eq!(name.rsplit_once("__lock__").unwrap().1, "0000000042");
        }
    }

    #[test]
    fn a_name_tells_mode_and_number_in_every_layout() {
        for layout in [Layout::Curator, Layout::Kazoo] {
            for mode in [Mode::Exclusive, Mode::READ, slots(1), slots(u32::MAX), several(4, 10)] {
                for (number, text) in [(7, "0000000007"), (i32::MIN, "-2147483648"), (-5, "-000000005")] {
                    let name = format!("{}{text}", layout.prefix(owner(), mode));
                    assert!(name.starts_with(&layout.mark(owner())));
                    assert_eq!(Contender::read(&name), Some(Contender { name, mode, sequence: number }));
                }
            }
        }
    }

    /// A client that may want the lock exclusively counts as exclusive.
    #[test]
    fn strangers_that_end_in_a_number_contend_alone() {
        for name in [
            "latch-0000000003",
            "0000000003",
            "_c_abababab-abab-abab-abab-abababababab-__READ__0000000003",
            "_c_x-tenure-shared-9-lock-0000000003",
            "a-shared-9__lock__0000000003",
            "é0000000003",
        ] {
            let read = Contender::read(name).unwrap();
            assert_eq!((read.mode, read.sequence), (Mode::Exclusive, 3), "{name}");
        }
        for name in ["config", "lock-", "lock-12", "000000003", "", "é"] {
            assert_eq!(Contender::read(name), None, "{name}");
        }
    }

    /// L1: each library counts only the nodes in its layout.
    #[test]
    fn a_layout_knows_its_nodes() {
        let (curator, kazoo) = (Layout::Curator, Layout::Kazoo);
        for name in ["x-lock-0000000003", "_c_x-tenure-shared-3-lock--2147483648"] {
            assert!(curator.is_of(name) && !kazoo.is_of(name), "{name}");
        }
        for name in ["abc__lock__0000000003", "abc-shared-3__lock__0000000003"] {
            assert!(kazoo.is_of(name) && !curator.is_of(name), "{name}");
        }
        for name in ["latch-0000000003", "x-lock-x0000000003", "x__READ__0000000003", "a__lock__a0000000003"]
        {
            assert!(!kazoo.is_of(name) && !curator.is_of(name), "{name}");
        }
    }

    #[test]
    fn a_text_with_a_format_is_of_a_newer_version() {
        let ours =
            NodeRecord { owner: owner(), label: Label::default(), since_ms: 1, ttl_ms: 2, entered: true };
        assert!(!is_newer(&ours.written()));
        assert!(is_newer(br#"{"format":1,"holder":"x"}"#));
        for data in [&b""[..], b"tenure", b"{}", br#"{"format":0}"#, b"\xff"] {
            assert!(!is_newer(data), "{data:?}");
        }
    }

    #[test]
    fn a_lock_is_one_element_of_a_path() {
        for name in ["a", "a/b", ".", "..", "%", "ñ x", "a.b-c_d~", "n'\"\\"] {
            let name = LockName::new(name).unwrap();
            let element = encode(&name);
            assert!(!element.contains('/') && element != "." && element != "..", "{element}");
            assert_eq!(decode(&element), Some(name));
        }
        assert_eq!(encode(&LockName::new("orders/42").unwrap()), "orders%2F42");
        assert_eq!(decode("a b"), None, "somebody else's");
    }
}

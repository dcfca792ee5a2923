//! The scripts: called by hash, and by their text where the server has forgotten them (hazard 29); and
//! reading their replies.

use std::{sync::OnceLock, time::Duration};

use redis::{Arg, Cmd, Value};
use tenure_core::{ClaimAnswer, FencingToken, HolderView, Mode};

use crate::{keys::Counting, value};

/// A script: its text and its hash.
pub(crate) struct Script {
    text: String,
    /// Made at the first call: a program that takes one lock calls two of them.
    hash: OnceLock<String>,
}

/// All scripts, for one way of minting tokens.
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) release: Script,
    /// For one server, alone or in a quorum.
    pub(crate) acquire_many: Script,
    pub(crate) release_many: Script,
    pub(crate) renew: Script,
    pub(crate) claim: Script,
    /// As `claim`, but of a waiter behind a foreign client.
    pub(crate) follow: Script,
    pub(crate) leave: Script,
    pub(crate) keep: Script,
    pub(crate) break_lock: Script,
    pub(crate) inspect: Script,
    pub(crate) walk: Script,
    pub(crate) tell: Script,
    pub(crate) note: Script,
    /// For nodes of a quorum.
    pub(crate) raise: Script,
    /// For a server with one counter for all locks.
    pub(crate) rewound: Script,
    pub(crate) check: Script,
    pub(crate) judge: Script,
    pub(crate) look: Script,
}

/// The parts that depend on the way of minting tokens.
macro_rules! minting {
    ($way:literal) => {
        [
            include_str!(concat!("scripts/gate.", $way, ".lua")),
            include_str!(concat!("scripts/mint.", $way, ".lua")),
            include_str!(concat!("scripts/fence.", $way, ".lua")),
        ]
    };
}

impl Scripts {
    pub(crate) fn new(counting: Counting) -> Self {
        let count = include_str!("scripts/count.lua");
        let [gate, mint, fence] = match counting {
            Counting::One => minting!("one"),
            Counting::Own => minting!("own"),
            Counting::Quorum => minting!("quorum"),
        };
        let acquire: &[&str] = match counting {
            Counting::One => &[include_str!("scripts/acquire.lua")],
            Counting::Own => &[count, mint, include_str!("scripts/acquire.own.lua")],
            Counting::Quorum => &[include_str!("scripts/acquire.quorum.lua")],
        };
        let acquire_many = match counting {
            Counting::One | Counting::Own => include_str!("scripts/acquire.many.lua"),
            Counting::Quorum => include_str!("scripts/acquire.many.quorum.lua"),
        };
        let (lock, enter) = (include_str!("scripts/lock.lua"), include_str!("scripts/enter.lua"));
        let (sides, place) = (include_str!("scripts/sides.lua"), include_str!("scripts/place.lua"));
        let (handoff, claim) = (include_str!("scripts/handoff.lua"), include_str!("scripts/claim.lua"));
        // An error of a script without these comes before its first write.
        let (begin, end) = (include_str!("scripts/begin.lua"), include_str!("scripts/end.lua"));
        let (facts, replicas) = (include_str!("scripts/facts.lua"), include_str!("scripts/replicas.lua"));
        // To define a function costs a script a third of a command: scripts that hand on have no parts but these.
        let handing = |parts: &[&str], verb| {
            Script::new(&[&[gate], parts, &[lock, begin, sides, handoff, verb, end]].concat())
        };
        let claiming = |first| {
            Script::new(&[first, gate, count, mint, lock, enter, begin, sides, place, handoff, claim, end])
        };
        Self {
            acquire: Script::new(acquire),
            release: Script::new(&[include_str!("scripts/release.lua")]),
            acquire_many: Script::new(&[acquire_many]),
            release_many: Script::new(&[include_str!("scripts/release.many.lua")]),
            renew: Script::new(&[include_str!("scripts/renew.lua")]),
            claim: claiming(""),
            follow: claiming(include_str!("scripts/follow.lua")),
            leave: handing(&[], include_str!("scripts/leave.lua")),
            keep: handing(&[], include_str!("scripts/keep.lua")),
            break_lock: handing(&[count, mint, fence], include_str!("scripts/break.lua")),
            inspect: Script::new(&[gate, count, mint, fence, include_str!("scripts/inspect.lua")]),
            walk: Script::new(&[include_str!("scripts/walk.lua")]),
            tell: Script::new(&[include_str!("scripts/tell.lua")]),
            note: Script::new(&[include_str!("scripts/note.lua")]),
            raise: Script::new(&[count, include_str!("scripts/raise.lua")]),
            rewound: Script::new(&[include_str!("scripts/rewound.lua")]),
            check: Script::new(&[facts, replicas, include_str!("scripts/check.lua")]),
            look: Script::new(&[replicas, include_str!("scripts/look.lua")]),
            judge: Script::new(&[facts, include_str!("scripts/judge.lua")]),
        }
    }
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        Self { text: parts.concat(), hash: OnceLock::new() }
    }

    fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(&self.text).get_hash().to_owned())
    }

    /// A call with these keys; arguments are added to it.
    pub(crate) fn call(&self, keys: &[&str]) -> Cmd {
        let mut cmd = self.begin(keys.len(), ARGUMENTS);
        for key in keys {
            cmd.arg(key.as_bytes());
        }
        cmd
    }

    /// A call to which this many keys are added, and then about this many arguments.
    pub(crate) fn begin(&self, keys: usize, arguments: usize) -> Cmd {
        // With room from the start: a request that grows while it is written costs as much as a small
        // command. A key and two arguments have some 96 bytes; the head and a label are as long as six keys.
        let bytes = BYTES * (keys + 6).max(keys + arguments / 2);
        let mut cmd = Cmd::with_capacity(3 + keys + arguments, bytes);
        cmd.arg("EVALSHA").arg(self.hash().as_bytes()).arg(keys);
        cmd
    }

    /// The same call with the text instead of the hash.
    pub(crate) fn in_full(&self, call: &Cmd) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.text.as_bytes());
        for arg in call.args_iter().skip(2) {
            if let Arg::Simple(bytes) = arg {
                cmd.arg(bytes);
            }
        }
        cmd
    }
}

/// The reply of a script to a claim, on the plain path or on the full path.
#[derive(Debug)]
pub(crate) enum ClaimReply {
    /// With `block` tokens, of which `first` is the first.
    Granted { first: FencingToken, block: u32 },
    /// Another owner holds the lock, or waits before this one.
    NotGranted { answer: Box<ClaimAnswer>, foreign: Option<ForeignHolder> },
    /// Nothing was done: this claim needs the full path.
    NotPlain,
    /// The number of owners that wait already.
    QueueIsFull(u64),
    /// This owner holds in this mode, not in that of the claim.
    HoldsOtherwise(Mode),
    /// The server may not grant with the gate that this client knows.
    GateClosed,
    /// The counter of the server is behind what it granted to this client: it was put back to an earlier
    /// state.
    RolledBack,
}

/// A foreign client holds the lock: what distinguishes this hold from the next one.
#[derive(Debug)]
pub(crate) struct ForeignHolder {
    head: Vec<u8>,
    pub(crate) left: Option<Duration>,
    /// How many wait before the owner that asked.
    pub(crate) before: u64,
}

impl ForeignHolder {
    fn new(mut head: Vec<u8>, left: Option<Duration>, before: u64) -> Self {
        head.truncate(FOREIGN_HEAD);
        Self { head, left, before }
    }

    /// Whether what was seen after `self` is the same hold.
    pub(crate) fn goes_on_as(&self, later: &Self) -> bool {
        self.head == later.head && later.left <= self.left
    }
}

impl ClaimReply {
    /// See the contract of `acquire.lua`.
    pub(crate) fn of_plain(answer: Value) -> Option<Self> {
        match number(&answer) {
            Some(last) => Some(Self::plain(last, 1)),
            None => {
                Reply::new(answer).and_then(|mut reply| Some(Self::plain(reply.number()?, reply.count()?)))
            }
        }
    }

    /// From the last token and their count, or from the number that is there instead.
    pub(crate) fn plain(last: i64, count: u64) -> Self {
        match last {
            -2 => Self::RolledBack,
            -1 => Self::GateClosed,
            0 => Self::NotPlain,
            _ => Self::granted(last.saturating_add(1).saturating_sub_unsigned(count), count),
        }
    }

    /// See the contracts of `claim.lua` and `follow.lua`.
    pub(crate) fn of_full(answer: Value) -> Option<Self> {
        let mut reply = Reply::new(answer)?;
        let kind = reply.number()?;
        Some(match kind {
            0 => Self::GateClosed,
            1 => Self::granted(reply.number()?, reply.count()?),
            4 => Self::QueueIsFull(reply.count()?),
            5 => Self::RolledBack,
            7 => Self::HoldsOtherwise(value::decode_mode(&reply.text()?)?),
            6 => {
                let (before, left, head) = (reply.count()?, reply.millis(), reply.bytes()?);
                let holder = Some(HolderView::foreign(left));
                let retry_after = left.unwrap_or(Duration::MAX);
                let answer = ClaimAnswer::Queued { ahead: 0, retry_after, holder };
                let foreign = Some(ForeignHolder::new(head, left, before));
                Self::NotGranted { answer: Box::new(answer), foreign }
            }
            _ => {
                let (ahead, retry_after) = (usize::try_from(reply.count()?).ok()?, reply.millis()?);
                let (holder, foreign) = holder_of(&mut reply).unzip();
                let answer = if kind == 3 {
                    ClaimAnswer::Busy { retry_after, holder }
                } else {
                    ClaimAnswer::Queued { ahead, retry_after, holder }
                };
                Self::NotGranted { answer: Box::new(answer), foreign: foreign.flatten() }
            }
        })
    }

    fn granted(first: i64, count: u64) -> Self {
        let block = u32::try_from(count).unwrap_or(1);
        Self::Granted { first: FencingToken::new(first.unsigned_abs()), block }
    }
}

/// See the contract of `claim.lua`.
fn holder_of(reply: &mut Reply) -> Option<(HolderView, Option<ForeignHolder>)> {
    let (value, left) = (reply.bytes()?, reply.millis());
    if value == value::SHARED.as_bytes()
        && let (Some(owner), Some(details)) = (reply.text(), reply.text())
    {
        return value::shared_holder(&owner, &details, left.unwrap_or_default()).map(|holder| (holder, None));
    }
    let holder = value::sole_holder(&value, left);
    let before = reply.count().unwrap_or_default();
    let foreign = holder.is_foreign().then(|| ForeignHolder::new(value, left, before));
    Some((holder, foreign))
}

/// A list that is read from the front; what is not there reads as `None`.
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(crate) fn new(value: Value) -> Option<Self> {
        match value {
            Value::Array(items) => Some(Self(items.into_iter())),
            _ => None,
        }
    }

    pub(crate) fn number(&mut self) -> Option<i64> {
        self.0.next().as_ref().and_then(number)
    }

    pub(crate) fn count(&mut self) -> Option<u64> {
        self.number().and_then(|n| u64::try_from(n).ok())
    }

    pub(crate) fn millis(&mut self) -> Option<Duration> {
        self.count().map(Duration::from_millis)
    }

    pub(crate) fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.0.next()? {
            Value::BulkString(bytes) => Some(bytes),
            Value::SimpleString(text) => Some(text.into_bytes()),
            _ => None,
        }
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        self.bytes().and_then(|bytes| String::from_utf8(bytes).ok())
    }

    pub(crate) fn list(&mut self) -> Option<Self> {
        self.0.next().and_then(Self::new)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }
}

/// An integer, or a text that is one.
pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

/// Arguments of the longest call for one lock.
const ARGUMENTS: usize = 9;
/// Of a key, or of two arguments, in a request.
const BYTES: usize = 96;

/// How many bytes of a foreign value distinguish one hold from another: see `follow.lua`.
const FOREIGN_HEAD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_in_full_has_the_text_and_the_same_arguments() {
        let script = Script::new(&["return 1"]);
        let mut call = script.call(&["k"]);
        call.arg("a").arg(7);
        let args = |cmd: &Cmd| -> Vec<String> {
            let text = |arg| match arg {
                Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            };
            cmd.args_iter().map(text).collect()
        };
        assert_eq!(args(&call), ["EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "1", "k", "a", "7"]);
        assert_eq!(args(&script.in_full(&call)), ["EVAL", "return 1", "1", "k", "a", "7"]);
    }
}

//! The one place where the driver's errors become `BackendError`s.

use std::{borrow::Cow, error::Error as _, path::Path, time::Duration};

use etcd_client::Error;
use tenure_client::tls::TlsFault;
use tenure_core::{
    BackendError,
    ErrorKind::{self, Corrupt, Denied, Invalid, TimedOut, Unavailable, Unsupported},
    Outcome,
};

use crate::config::Config;

/// Which member is asked again after a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberRetry {
    /// None: the member has answered, and another one would answer the same.
    No,
    /// The same member may do better if it is asked once more.
    Same,
    /// Another member may do better.
    Other,
    /// Another member may do better, and this connection is dead.
    OtherConnection,
}

/// Judges a failed request: which member to ask again, and the error for the caller.
pub(crate) fn asked(config: &Config, place: &str, error: Error) -> (MemberRetry, BackendError) {
    let (retry, kind, outcome, message) = judge(config, &error);
    // A password that was replaced ends the session of its user; a new connection has the new one.
    let retry = if message == NOT_YOU { MemberRetry::Same } else { retry };
    (retry, BackendError::new(kind, outcome, message).with("etcd", place).caused_by(error))
}

/// A connection that could not be made: no request but the login was sent.
pub(crate) fn connecting(config: &Config, place: &str, error: Error) -> (MemberRetry, BackendError) {
    let (retry, kind, _, message) = judge(config, &error);
    let refused = BackendError::new(kind, Outcome::NotApplied, message).with("etcd", place);
    (retry, refused.caused_by(error))
}

/// No member answered in time.
pub(crate) fn no_answer(place: &str, patience: Duration) -> BackendError {
    let message = format!("no etcd member answered within {patience:.1?}");
    BackendError::new(TimedOut, Outcome::Unknown, message).with("etcd", place)
}

/// A member accepts a connection, and does not answer the login.
pub(crate) fn no_login(patience: Duration) -> BackendError {
    let message = format!("the etcd member did not answer the login within {patience:.1?}");
    BackendError::new(TimedOut, Outcome::NotApplied, message)
}

/// A key that is named like a place in a queue, but was not written by tenure.
pub(crate) fn no_lock(key: &[u8]) -> BackendError {
    let message =
        "a key in the range of this lock was not written by tenure; delete it or use another lock name";
    BackendError::new(Invalid, Outcome::NotApplied, message).with("key", String::from_utf8_lossy(key))
}

/// A place in a queue that a newer version wrote.
pub(crate) fn newer(key: &[u8]) -> BackendError {
    let message = "the stored state of the lock is newer than this tenure: upgrade it";
    BackendError::new(Unsupported, Outcome::NotApplied, message).with("key", String::from_utf8_lossy(key))
}

/// The cluster has lost data that this process has seen.
pub(crate) fn put_back() -> BackendError {
    let message = "the etcd cluster was restored to an earlier state, in which fencing tokens would repeat; restore \
                   it with --bump-revision, or reset the largest token that each of your resources has stored, and \
                   restart this program";
    BackendError::new(Corrupt, Outcome::NotApplied, message)
}

/// Another cluster answers than the one that this process began with.
pub(crate) fn another_cluster() -> BackendError {
    let message = "another etcd cluster than before answers at this address, and it does not know who holds locks; if \
                   that is intended, restart this program";
    BackendError::new(Corrupt, Outcome::NotApplied, message)
}

/// Another client has a lock of this name in another layout.
pub(crate) fn single_key(key: &str) -> BackendError {
    let message = "another client keeps this lock in a single key, as python-etcd3, aetcd, tooz and npm etcd3 do: it excludes no client \
                   of Tenure, nor the other way round; use different names, or prefix= in the URL";
    BackendError::new(Invalid, Outcome::NotApplied, message).with("key", key)
}

/// A `WaitMode::Wake`.
pub(crate) fn no_turnless_place() -> BackendError {
    let message = "etcd cannot be a node of a quorum: its queue grants to every waiter in turn";
    BackendError::new(Unsupported, Outcome::NotApplied, message)
}

/// The server keeps a lease for less time than was asked for.
pub(crate) fn too_short(asked: i64, seconds: i64) -> BackendError {
    let message = format!("etcd gave a lease of {seconds} s instead of {asked} s; use a shorter ttl");
    BackendError::new(Invalid, Outcome::Unknown, message)
}

/// The requested change was made and undone several times.
pub(crate) fn unsettled(place: &str) -> BackendError {
    let message = "the etcd cluster changed its leader during every attempt; try again later";
    BackendError::new(Unavailable, Outcome::Unknown, message).with("etcd", place)
}

/// A release that was sent twice, and the second found nothing: the first may have done it (L9).
pub(crate) fn left_or_gone(place: &str) -> BackendError {
    let message = "the lock was released, but it is not known whether it was held until then";
    BackendError::new(Unavailable, Outcome::Unknown, message).with("etcd", place)
}

pub(crate) fn unreadable(path: &Path, error: std::io::Error) -> BackendError {
    let message = "cannot read the file of a certificate or a key";
    BackendError::new(Invalid, Outcome::NotApplied, message).with("file", path.display()).caused_by(error)
}

/// True if a lease, or the key's lease, is not there.
pub(crate) fn is_no_lease(error: &Error) -> bool {
    text(error).is_some_and(|text| text.contains("requested lease not found"))
        || matches!(error, Error::LeaseKeepAliveError(text) if text.contains("not found"))
}

/// True if a lease of this id is there already.
pub(crate) fn is_known_lease(error: &Error) -> bool {
    text(error).is_some_and(|text| text.contains("lease already exists"))
}

fn text(error: &Error) -> Option<&str> {
    match error {
        Error::GRpcStatus(status) => Some(status.message()),
        _ => None,
    }
}

type Classified<M> = (MemberRetry, ErrorKind, Outcome, M);

/// The meaning of the server's messages. Except for those of unknown outcome, the server sends them before it
/// proposes a change.
const WORDS: &[(&str, MemberRetry, ErrorKind, Outcome, &str)] = &[
    // The driver's tasks ended with the runtime on which it was first used: the request was not even sent.
    (
        "Service was not ready",
        MemberRetry::Same,
        Unavailable,
        Outcome::NotApplied,
        "the connection to the etcd member is gone",
    ),
    // The connection ended before the driver sent the request: with TLS 1.3, the driver receives a refusal after the
    // handshake.
    (
        "operation was canceled",
        MemberRetry::Same,
        Unavailable,
        Outcome::NotApplied,
        "the connection to the etcd member is gone",
    ),
    ("no leader", MemberRetry::Other, Unavailable, Outcome::NotApplied, "the etcd cluster has no leader"),
    (
        "leader changed",
        MemberRetry::Other,
        Unavailable,
        Outcome::Unknown,
        "the etcd cluster changed its leader",
    ),
    ("not leader", MemberRetry::Other, Unavailable, Outcome::Unknown, "the etcd cluster changed its leader"),
    (
        "request timed out",
        MemberRetry::Other,
        TimedOut,
        Outcome::Unknown,
        "the etcd cluster did not agree in time",
    ),
    (
        "too many requests",
        MemberRetry::Other,
        Unavailable,
        Outcome::NotApplied,
        "the etcd member has too much to do",
    ),
    (
        "server stopped",
        MemberRetry::OtherConnection,
        Unavailable,
        Outcome::Unknown,
        "the etcd member was stopped",
    ),
    (
        "not ready to serve",
        MemberRetry::Other,
        Unavailable,
        Outcome::NotApplied,
        "the etcd member is not ready yet",
    ),
    (
        "unhealthy cluster",
        MemberRetry::Other,
        Unavailable,
        Outcome::NotApplied,
        "the etcd cluster is not healthy",
    ),
    (
        "rpc not supported for learner",
        MemberRetry::Other,
        Unavailable,
        Outcome::NotApplied,
        "the etcd member is a learner",
    ),
    // The server sends this before a request is proposed, but also after it has carried out the request that used up
    // the space.
    ("database space exceeded", MemberRetry::No, Unavailable, Outcome::Unknown, NO_SPACE),
    ("space exceeded", MemberRetry::No, Unavailable, Outcome::Unknown, NO_SPACE),
    (
        "corrupt",
        MemberRetry::No,
        Corrupt,
        Outcome::NotApplied,
        "the etcd cluster reports that its data are corrupt (alarm CORRUPT)",
    ),
    ("permission denied", MemberRetry::No, Denied, Outcome::NotApplied, NO_RIGHT),
    ("invalid auth token", MemberRetry::Same, Denied, Outcome::NotApplied, NOT_YOU),
    (
        "revision of auth store is old",
        MemberRetry::Same,
        Unavailable,
        Outcome::NotApplied,
        "the users or roles of etcd were just changed; try again",
    ),
    ("authentication failed", MemberRetry::No, Denied, Outcome::NotApplied, NOT_YOU),
    (
        "user name is empty",
        MemberRetry::No,
        Denied,
        Outcome::NotApplied,
        "etcd requires a user and a password, as in etcd://user:password@host",
    ),
    ("authentication is not enabled", MemberRetry::No, Denied, Outcome::NotApplied, NO_AUTH),
    (
        "too large lease TTL",
        MemberRetry::No,
        Invalid,
        Outcome::NotApplied,
        "etcd does not accept a ttl as long as this one",
    ),
    (
        "request is too large",
        MemberRetry::No,
        Invalid,
        Outcome::NotApplied,
        "etcd does not accept a request as large as this one",
    ),
];

const NO_SPACE: &str =
    "the database space of etcd is used up (NOSPACE); compact and defragment it, then disarm the alarm";
const TOO_MANY: &str = "the name of this lock is the prefix of too many other keys; use a name that is not";
const NO_RIGHT: &str =
    "this etcd user may not read and write the keys of this lock; give a role with both rights to the prefix";
const NOT_YOU: &str = "etcd refuses this user or password";
const NO_AUTH: &str = "etcd has authentication turned off; leave user and password out of the URL";

fn judge(config: &Config, error: &Error) -> Classified<Cow<'static, str>> {
    // An answer of a member has no source.
    if let Error::GRpcStatus(status) = error
        && let Some(fault) = status.source().and_then(TlsFault::of)
    {
        let fault = if config.cert.is_some() { fault } else { fault.without_identity() };
        let message = fault.message("etcd", "ca", "write that name as the host", ("cert", "key"));
        return (MemberRetry::OtherConnection, Denied, Outcome::NotApplied, message.into());
    }
    let (retry, kind, outcome, message) = judge_words(error);
    (retry, kind, outcome, message.into())
}

fn judge_words(error: &Error) -> Classified<&'static str> {
    let message = text(error).unwrap_or_default();
    if let Some((_, retry, kind, outcome, ours)) = WORDS.iter().find(|(words, ..)| message.contains(words)) {
        return (*retry, *kind, *outcome, *ours);
    }
    match error {
        Error::GRpcStatus(_) if speaks_of(error, "ConnectError") => (
            MemberRetry::OtherConnection,
            Unavailable,
            Outcome::NotApplied,
            "cannot reach the etcd member; check that it runs and that the URL is right",
        ),
        // This client's end of the connection reports this: the member has carried out the request.
        Error::GRpcStatus(_) if message.contains("decoded message length too large") => {
            (MemberRetry::No, Invalid, Outcome::Unknown, TOO_MANY)
        }
        Error::GRpcStatus(status) if status.source().is_none() && message.starts_with("etcdserver:") => {
            (MemberRetry::No, Invalid, Outcome::NotApplied, "etcd refuses the request")
        }
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::TransportError(_) => {
            (MemberRetry::No, Invalid, Outcome::NotApplied, "cannot set up the connection as the URL says")
        }
        _ => (
            MemberRetry::OtherConnection,
            Unavailable,
            Outcome::Unknown,
            "the connection to the etcd member broke",
        ),
    }
}

/// Whether some error in the chain is of this kind; only the driver's text shows it.
fn speaks_of(error: &Error, what: &str) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    let mut next = status.source();
    while let Some(error) = next {
        if format!("{error:?}").contains(what) {
            return true;
        }
        next = error.source();
    }
    status.message().contains(what)
}

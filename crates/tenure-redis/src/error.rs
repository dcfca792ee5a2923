//! The one place where the driver's errors become errors of Tenure.

use std::{error::Error as _, io};

use redis::{RedisError, ServerErrorKind};
use tenure_client::tls::TlsFault;
use tenure_core::{
    BackendError,
    ErrorKind::{self, Corrupt, Denied, Invalid, TimedOut, Unavailable},
    FOREIGN_HOLDER, Outcome,
};

/// What a failed request means for the connection it came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterError {
    /// It goes on.
    Keep,
    /// It is dropped: the next request opens another one and checks the server again (H4.3).
    Drop,
}

/// A request that failed after it may have been sent.
pub(crate) fn asked(place: &str, error: RedisError) -> (AfterError, BackendError) {
    let (then, kind, outcome, message) = classify(&error);
    let answer = BackendError::new(kind, outcome, message).with("redis", place);
    // The message of a script is complete; the rest of such an error is the text of the script.
    (then, if [FOREIGN_HOLDER, WRONG_TYPE].contains(&message) { answer } else { answer.caused_by(error) })
}

/// A connection that could not be made: nothing was sent.
pub(crate) fn connecting(place: &str, error: RedisError) -> BackendError {
    let (_, kind, _, message) = classify(&error);
    let fault = if error.kind() == redis::ErrorKind::Io { TlsFault::of(&error) } else { None };
    if let Some(fault) = fault {
        let message = fault.message(
            "Redis",
            "ca",
            "name it with tls_name=, or write it as the host",
            ("cert", "cert_key"),
        );
        return BackendError::new(Denied, Outcome::NotApplied, message).with("redis", place).caused_by(error);
    }
    let (kind, message) = match error.kind() {
        redis::ErrorKind::Io if error.is_timeout() => (Unavailable, "the Redis server does not answer"),
        redis::ErrorKind::Io => {
            (Unavailable, "cannot reach the Redis server; check that it runs and that the URL is right")
        }
        redis::ErrorKind::MasterNameNotFoundBySentinel => {
            (Unavailable, "no Sentinel knows a living master of this name")
        }
        redis::ErrorKind::InvalidClientConfig => (Invalid, "cannot set up the connection as the URL says"),
        _ => (kind, message),
    };
    BackendError::new(kind, Outcome::NotApplied, message).with("redis", place).caused_by(error)
}

/// After this error another server may have the lock, or another connection is needed.
pub(crate) fn leaves(error: &RedisError) -> bool {
    classify(error).0 == AfterError::Drop
}

/// After this error the connection is of no use: it broke, or its login is not valid any more.
pub(crate) fn is_of_no_use(error: &RedisError) -> bool {
    let (then, kind, ..) = classify(error);
    then == AfterError::Drop && (error.code().is_none() || kind == Denied)
}

/// A proxy that spreads keys cuts the connection at the first command that it does not know.
pub(crate) fn is_cut(error: &BackendError) -> bool {
    let driver = error.source().and_then(|source| source.downcast_ref::<RedisError>());
    driver.is_some_and(|error| error.is_io_error() && !error.is_timeout() && !error.is_connection_refusal())
}

pub(crate) fn proxy(place: &str) -> BackendError {
    BackendError::new(Invalid, Outcome::NotApplied, PROXY).with("redis", place)
}

pub(crate) fn no_answer(place: &str) -> BackendError {
    let message = "the Redis server does not answer";
    BackendError::new(Unavailable, Outcome::NotApplied, message).with("redis", place)
}

pub(crate) fn no_thread(place: &str, error: io::Error) -> BackendError {
    let message = "the system starts no thread for the hints of the Redis server";
    BackendError::new(Unavailable, Outcome::NotApplied, message).with("redis", place).caused_by(error)
}

/// It may have been sent, and other renewals do not wait for its answer.
pub(crate) fn late(place: &str) -> BackendError {
    BackendError::new(TimedOut, Outcome::Unknown, LATE).with("redis", place)
}

/// The task that was to send it has ended or is stuck, and may have sent it.
pub(crate) fn unsent(place: &str) -> BackendError {
    let message = "the runtime that speaks with the Redis server has ended, or stands still";
    BackendError::new(Unavailable, Outcome::Unknown, message).with("redis", place)
}

pub(crate) fn unreadable(place: &str, what: &str) -> BackendError {
    let message = format!("the Redis server gave an answer to {what} that cannot be read");
    BackendError::new(Corrupt, Outcome::Unknown, message).with("redis", place)
}

type ErrorClass = (AfterError, ErrorKind, Outcome, &'static str);

/// The code of an error that a script met after its first write (end.lua, L9); that error follows it.
const MIDWAY: &str = "MIDWAY";

/// The codes of what this client found in a Cluster: a node was not reached, the nodes do not agree, a node is in no
/// Cluster, or in another one. No node executed the request.
pub(crate) const UNREACHED: &str = "UNREACHED";
pub(crate) const UNSETTLED: &str = "UNSETTLED";
pub(crate) const UNJOINED: &str = "UNJOINED";
pub(crate) const STRANGE: &str = "STRANGE";

/// What a server's code means. The server refuses a whole script before its first write, and a script's own error without
/// [`MIDWAY`] comes before it too: nothing was done.
const CODES: &[(&str, AfterError, ErrorKind, &str)] = &[
    ("READONLY", AfterError::Drop, Unavailable, "the Redis server is a replica and takes no writes"),
    ("LOADING", AfterError::Drop, Unavailable, "the Redis server is still loading its data"),
    ("MASTERDOWN", AfterError::Drop, Unavailable, "the Redis server has lost its master"),
    ("BUSY", AfterError::Keep, Unavailable, "the Redis server is busy with a script"),
    (
        "OOM",
        AfterError::Keep,
        Unavailable,
        "the memory of the Redis server is full; give it more, or free some",
    ),
    (
        "MISCONF",
        AfterError::Keep,
        Unavailable,
        "the Redis server refuses writes because it cannot save its data",
    ),
    ("NOREPLICAS", AfterError::Keep, Unavailable, "the Redis server has too few replicas to take writes"),
    ("CLUSTERDOWN", AfterError::Drop, Unavailable, "the Redis Cluster is down"),
    (UNREACHED, AfterError::Keep, Unavailable, "a node of the Redis Cluster cannot be reached"),
    (UNSETTLED, AfterError::Keep, Unavailable, MOVING),
    (
        UNJOINED,
        AfterError::Keep,
        Unavailable,
        "this node is in no Redis Cluster: it never joined one, or has left it",
    ),
    (STRANGE, AfterError::Keep, Unavailable, "the nodes that answer are of different Redis Clusters"),
    ("TRYAGAIN", AfterError::Keep, Unavailable, MOVING),
    ("MOVED", AfterError::Drop, Invalid, NOT_ALONE),
    ("ASK", AfterError::Drop, Invalid, NOT_ALONE),
    ("CROSSSLOT", AfterError::Keep, Invalid, NOT_ALONE),
    ("NOAUTH", AfterError::Drop, Denied, "the Redis server wants a password"),
    ("WRONGPASS", AfterError::Drop, Denied, NOT_YOU),
    (
        "NOPERM",
        AfterError::Keep,
        Denied,
        "this Redis user lacks a permission; run `tenure doctor`, which prints the ACL SETUSER line",
    ),
    ("SPENT", AfterError::Keep, Corrupt, SPENT),
    ("PROXY", AfterError::Drop, Invalid, PROXY),
    ("FOREIGN", AfterError::Keep, Invalid, FOREIGN_HOLDER),
    ("WRONGTYPE", AfterError::Keep, Corrupt, WRONG_TYPE),
];

const MOVING: &str = "the Redis Cluster is moving this lock to another node";
const WRONG_TYPE: &str =
    "the key of the lock holds data that is not a lock; use another name or ?key= template";
const SPENT: &str = "the counter of fencing tokens in Redis is at its maximum, 2^53 - 1, or no number: a wrong clock or \
                     another program has set it; set the clock right, stop all users, and delete the counter";
const PROXY: &str = "behind this address is a proxy that spreads keys over servers (twemproxy, Envoy, …), which cannot run the \
                     steps of a lock; name the Redis server itself";
const NOT_ALONE: &str =
    "the lock lies on another node of a Redis Cluster; begin the URL with redis-cluster://";
const LATE: &str = "the Redis server did not answer in time";
const REFUSED: &str = "the Redis server refuses the request";
const NOT_YOU: &str = "the Redis server refuses this user or password";

fn by_code(code: &str) -> Option<ErrorClass> {
    let found = CODES.iter().find(|(known, ..)| *known == code);
    found.map(|&(_, then, kind, message)| (then, kind, Outcome::NotApplied, message))
}

fn classify(error: &RedisError) -> ErrorClass {
    // An error inside a script may come with the code in its text.
    let text = error.detail().unwrap_or_default();
    // Redis 7.0 has no code for what a user may not do inside a script.
    let is_denied = text.contains("user executing the script can't");
    // No version has a code for a counter that cannot be counted up.
    let is_no_count = text.contains("is not an integer") || text.contains("would overflow");
    // Envoy answers this for a command that it cannot shard.
    let is_proxy = text.contains("unsupported command");
    let unsaid = is_denied.then_some("NOPERM").or_else(|| is_no_count.then_some("SPENT"));
    let unsaid = unsaid.or_else(|| is_proxy.then_some("PROXY"));
    let nested = || text.split([' ', ':']).find_map(by_code).or_else(|| by_code(unsaid?));
    if error.code() == Some(MIDWAY) {
        let refused = (AfterError::Keep, Invalid, Outcome::Unknown, REFUSED);
        return nested().map_or(refused, |(then, kind, _, message)| (then, kind, Outcome::Unknown, message));
    }
    if let Some(class) = error.code().and_then(by_code).or_else(nested) {
        return class;
    }
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => (AfterError::Drop, Denied, Outcome::NotApplied, NOT_YOU),
        redis::ErrorKind::Server(ServerErrorKind::ResponseError) => {
            (AfterError::Keep, Invalid, Outcome::NotApplied, REFUSED)
        }
        redis::ErrorKind::RESP3NotSupported => {
            let message = "the Redis server does not know RESP3; add protocol=2 to the URL";
            (AfterError::Drop, Invalid, Outcome::NotApplied, message)
        }
        redis::ErrorKind::InvalidClientConfig => {
            (AfterError::Drop, Invalid, Outcome::NotApplied, "cannot set up the connection as the URL says")
        }
        _ if error.is_timeout() => (AfterError::Drop, TimedOut, Outcome::Unknown, LATE),
        _ => (AfterError::Drop, Unavailable, Outcome::Unknown, "the connection to the Redis server broke"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L9: the text after the code is the error; the code means that something was done before.
    #[test]
    fn an_error_after_the_first_write_of_a_script_has_an_unknown_outcome() {
        for (behind, kind) in [
            ("WRONGTYPE Operation against a key", Corrupt),
            ("ERR The user executing the script can't run this command or subcommand", Denied),
            ("ERR user_script:25: SPENT the counter", Corrupt),
            ("ERR unsupported command 'info'", Invalid),
            ("user_script:7: attempt to compare number with nil", Invalid),
        ] {
            let (code, detail) = behind.split_once(' ').unwrap();
            let before = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
            let after = redis::make_extension_error(MIDWAY.to_owned(), Some(behind.to_owned()));
            let [(_, before), (then, after)] = [before, after].map(|error| asked("here", error));
            // The connection to a proxy is not kept.
            let kept = if detail.starts_with("unsupported") { AfterError::Drop } else { AfterError::Keep };
            assert_eq!((then, after.kind(), after.outcome()), (kept, kind, Outcome::Unknown), "{behind}");
            assert!(
                kind == Invalid || (before.kind(), before.outcome()) == (kind, Outcome::NotApplied),
                "{before:?}"
            );
        }
    }
}

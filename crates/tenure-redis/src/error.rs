//! The one place where the driver's errors become ours.

use redis::{RedisError, ServerErrorKind};
use tenure_core::{BackendError, ErrorKind, Outcome};

/// What a failed request means for the connection it came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on.
    Keep,
    /// It is dropped: the next request makes another one and looks at the server anew (H4.3).
    Drop,
}

/// A request that failed after it may have been sent.
pub(crate) fn asked(place: &str, error: RedisError) -> (Fate, BackendError) {
    let (fate, kind, outcome, message) = judge(&error);
    (fate, BackendError::new(kind, outcome, message).with("redis", place).caused_by(error))
}

/// A connection that could not be made: nothing was asked.
pub(crate) fn connecting(place: &str, error: RedisError) -> BackendError {
    let (_, kind, _, message) = judge(&error);
    let (kind, message) = match error.kind() {
        redis::ErrorKind::Io if error.is_timeout() => {
            (ErrorKind::Unavailable, "the Redis server does not answer")
        }
        redis::ErrorKind::Io => (ErrorKind::Unavailable, "the Redis server cannot be reached"),
        redis::ErrorKind::MasterNameNotFoundBySentinel => {
            (ErrorKind::Unavailable, "no Sentinel knows a living master of this name")
        }
        redis::ErrorKind::InvalidClientConfig => {
            (ErrorKind::Invalid, "the connection cannot be set up as the URL says")
        }
        _ => (kind, message),
    };
    BackendError::new(kind, Outcome::NotApplied, message).with("redis", place).caused_by(error)
}

pub(crate) fn no_answer(place: &str) -> BackendError {
    let message = "the Redis server does not answer";
    BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message).with("redis", place)
}

pub(crate) fn unreadable(place: &str, what: &str) -> BackendError {
    let message = format!("the Redis server answered {what} with something that is no answer to it");
    BackendError::new(ErrorKind::Corrupt, Outcome::Unknown, message).with("redis", place)
}

type Verdict = (Fate, ErrorKind, Outcome, &'static str);

/// Our scripts read before they write, and the lock's SET comes last: an error that the server itself answers says that
/// nothing was granted. Any other error leaves open what happened.
fn judge(error: &RedisError) -> Verdict {
    use ErrorKind::{Corrupt, Denied, Invalid, TimedOut, Unavailable};
    use Outcome::{NotApplied, Unknown};
    let by_code = |code: &str| -> Option<Verdict> {
        Some(match code {
            "READONLY" => {
                (Fate::Drop, Unavailable, NotApplied, "the Redis server is a replica and takes no writes")
            }
            "LOADING" => (Fate::Drop, Unavailable, NotApplied, "the Redis server is still loading its data"),
            "MASTERDOWN" => (Fate::Drop, Unavailable, NotApplied, "the Redis server has lost its master"),
            "BUSY" => {
                (Fate::Keep, Unavailable, NotApplied, "the Redis server is busy with somebody's script")
            }
            "OOM" => (
                Fate::Keep,
                Unavailable,
                NotApplied,
                "the memory of the Redis server is full; give it more, or free some",
            ),
            "MISCONF" => (
                Fate::Keep,
                Unavailable,
                NotApplied,
                "the Redis server refuses writes because it cannot save its data",
            ),
            "NOREPLICAS" => {
                (Fate::Keep, Unavailable, NotApplied, "the Redis server has too few replicas to take writes")
            }
            "CLUSTERDOWN" => (Fate::Drop, Unavailable, NotApplied, "the Redis Cluster is down"),
            "MOVED" | "ASK" => (
                Fate::Drop,
                Unavailable,
                NotApplied,
                "the lock lies on another node of a Redis Cluster; begin the URL with redis-cluster://",
            ),
            "TRYAGAIN" | "CROSSSLOT" => {
                (Fate::Keep, Unavailable, NotApplied, "the Redis Cluster is moving this lock to another node")
            }
            "NOAUTH" => (Fate::Drop, Denied, NotApplied, "the Redis server wants a password"),
            "WRONGPASS" => (Fate::Drop, Denied, NotApplied, "the Redis server refuses this user or password"),
            "NOPERM" => (
                Fate::Keep,
                Denied,
                NotApplied,
                "this Redis user lacks a right; the README of tenure-redis has the line that gives it",
            ),
            "WRONGTYPE" => {
                (Fate::Keep, Corrupt, NotApplied, "the key of the lock holds something that is no lock")
            }
            "UNKILLABLE" => (Fate::Drop, Unavailable, Unknown, "the Redis server is stuck in a script"),
            _ => return None,
        })
    };
    // An error inside a script may come with the code in its text.
    let text = error.detail().unwrap_or_default();
    let nested = text.split([' ', ':']).find_map(by_code);
    if let Some(verdict) = error.code().and_then(by_code).or(nested) {
        return verdict;
    }
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => {
            (Fate::Drop, Denied, NotApplied, "the Redis server refuses this user or password")
        }
        redis::ErrorKind::Server(ServerErrorKind::ResponseError) => {
            (Fate::Keep, Invalid, NotApplied, "the Redis server refuses the request")
        }
        redis::ErrorKind::RESP3NotSupported => (
            Fate::Drop,
            Invalid,
            NotApplied,
            "the Redis server does not know RESP3; add protocol=2 to the URL",
        ),
        redis::ErrorKind::InvalidClientConfig => {
            (Fate::Drop, Invalid, NotApplied, "the connection cannot be set up as the URL says")
        }
        redis::ErrorKind::ClusterConnectionNotFound => {
            (Fate::Drop, Unavailable, Unknown, "no node of the Redis Cluster can be reached")
        }
        _ if error.is_timeout() => (Fate::Drop, TimedOut, Unknown, "the Redis server did not answer in time"),
        _ => (Fate::Drop, Unavailable, Unknown, "the connection to the Redis server broke"),
    }
}

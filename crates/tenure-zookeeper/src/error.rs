//! The one place where the driver's errors become `BackendError`s.

use std::time::Duration;

#[cfg(feature = "tls")]
use tenure_client::tls::TlsFault;
use tenure_core::{
    BackendError,
    ErrorKind::{self, Corrupt, Denied, Invalid, Throttled, TimedOut, Unavailable, Unsupported},
    Outcome::{self, NotApplied, Unknown},
};
use zookeeper_client::Error;

/// A failed read: nothing was changed.
pub(crate) fn looked(place: &str, error: Error) -> BackendError {
    let (kind, _, message) = judge(&error);
    BackendError::new(kind, NotApplied, message).with("zookeeper", place).caused_by(error)
}

/// A failed write.
pub(crate) fn wrote(place: &str, error: Error) -> BackendError {
    let (kind, outcome, message) = judge(&error);
    BackendError::new(kind, outcome, message).with("zookeeper", place).caused_by(error)
}

/// A session that could not be opened: no request was sent.
pub(crate) fn opening(place: &str, error: Error) -> BackendError {
    let message = match error {
        Error::AuthFailed => return looked(place, error),
        Error::NoHosts | Error::Timeout | Error::ConnectionLoss => {
            "no ZooKeeper server can be reached, or all refuse another connection of this machine (maxClientCnxns)"
        }
        _ => "no ZooKeeper session can be opened",
    };
    BackendError::new(Unavailable, NotApplied, message).with("zookeeper", place).caused_by(error)
}

/// A server that refuses the handshake of TLS, or is not trusted.
#[cfg(feature = "tls")]
pub(crate) fn untrusted(server: &str, kind: ErrorKind, fault: TlsFault) -> BackendError {
    let message =
        fault.message("ZooKeeper", "ca", "write one of its names as the host in the URL", ("cert", "key"));
    BackendError::new(kind, NotApplied, message).with("zookeeper", server)
}

/// A file that is not text, though it has a certificate in it.
#[cfg(feature = "tls")]
pub(crate) fn unreadable(path: &std::path::Path, error: std::io::Error) -> BackendError {
    BackendError::new(Invalid, NotApplied, "the file cannot be read as PEM")
        .with("file", path.display())
        .caused_by(error)
}

/// Several servers in one URL must be one ensemble: otherwise each grants the same lock to another client.
pub(crate) fn alone(place: &str, server: &str) -> BackendError {
    let message = format!(
        "the URL names several servers, and {server} runs alone (standalone), not in one ensemble with the others: name the \
         members of one ensemble, or one server once"
    );
    BackendError::new(Invalid, NotApplied, message).with("zookeeper", place)
}

/// The same for servers of two ensembles. For some seconds after an election, the former leader may not know of it.
pub(crate) fn two_lead(place: &str, [one, other]: [String; 2]) -> BackendError {
    let message = format!(
        "{one} and {other} both lead; if this lasts, they are in two ensembles: name the members of one, and each of them once"
    );
    BackendError::new(Unavailable, NotApplied, message).with("zookeeper", place)
}

/// None of several servers has reported whether it runs alone, although one of them serves.
pub(crate) fn untold(place: &str) -> BackendError {
    let message = "no server of the URL says in time whether it is a member of an ensemble; if this lasts, allow the word srvr \
                   there (4lw.commands.whitelist)";
    BackendError::new(Unavailable, NotApplied, message).with("zookeeper", place)
}

/// The session ended before anything was sent.
pub(crate) fn over(place: &str) -> BackendError {
    let message = "the ZooKeeper session has ended; the next attempt opens a new one";
    BackendError::new(Unavailable, NotApplied, message).with("zookeeper", place)
}

/// A session needs a separate thread, and the system starts none.
pub(crate) fn no_thread(place: &str, error: std::io::Error) -> BackendError {
    let message = "no thread can be started for a ZooKeeper session";
    BackendError::new(Unavailable, NotApplied, message).with("zookeeper", place).caused_by(error)
}

/// The owner's earlier node is being deleted, or its earlier request is not answered yet.
pub(crate) fn lapsed(place: &str) -> BackendError {
    let message = "an earlier node of this claim is still being deleted; try again";
    BackendError::new(Unavailable, Unknown, message).with("zookeeper", place)
}

/// The other requests of the call have been answered, and do not wait for this one.
pub(crate) fn unanswered(place: &str) -> BackendError {
    let message = "ZooKeeper did not answer in time; try again";
    BackendError::new(TimedOut, Unknown, message).with("zookeeper", place)
}

pub(crate) fn too_long(place: &str, ttl: Duration, longest: Duration, session: Duration) -> BackendError {
    let message = format!(
        "the ensemble allows sessions of at most {session:?} (maxSessionTimeout), and so a ttl of at most {longest:?}; \
         {ttl:?} is longer"
    );
    BackendError::new(Invalid, NotApplied, message).with("zookeeper", place)
}

pub(crate) fn no_lock(place: &str, path: &str) -> BackendError {
    let message = format!(
        "{path} holds data that tenure did not write; use another lock name, or another path in the URL"
    );
    BackendError::new(Invalid, NotApplied, message).with("zookeeper", place)
}

/// Another library has a node there, in another layout than that of the URL.
pub(crate) fn mixed(place: &str, path: &str) -> BackendError {
    let message = "a client with another layout uses this lock, and would not wait for Tenure; set layout= in the URL as its library \
                   names nodes, or use another path";
    BackendError::new(Invalid, NotApplied, message).with("zookeeper", place).with("node", path)
}

pub(crate) fn newer(place: &str, path: &str) -> BackendError {
    let message = "the stored state of the lock is newer than this tenure: upgrade it";
    BackendError::new(Unsupported, NotApplied, message).with("zookeeper", place).with("node", path)
}

/// The ensemble has lost data that this process has seen.
pub(crate) fn put_back(place: &str) -> BackendError {
    let message = "the ensemble was restored to an earlier state, or is another one: fencing tokens would repeat; \
                   reset the largest token that each of your resources has stored, and restart this program";
    BackendError::new(Corrupt, Unknown, message).with("zookeeper", place)
}

fn judge(error: &Error) -> (ErrorKind, Outcome, &'static str) {
    match error {
        Error::NoAuth => (
            Denied,
            NotApplied,
            "this user lacks a permission on the nodes of the lock; check their ACLs and the login",
        ),
        Error::AuthFailed => (Denied, NotApplied, "ZooKeeper refuses this login"),
        Error::InvalidAcl => (
            Denied,
            NotApplied,
            "ZooKeeper knows no user of this session, so no node can be its own; check the login, or set acl=open",
        ),
        Error::BadArguments(_) => (Invalid, NotApplied, "ZooKeeper has no such path"),
        Error::NoChildrenForEphemerals => {
            (Invalid, NotApplied, "the path of the locks lies below an ephemeral node; choose another one")
        }
        Error::QuotaExceeded => {
            (Invalid, NotApplied, "the quota of the path is used up; raise it, or choose another path")
        }
        Error::Throttled => (Throttled, NotApplied, "ZooKeeper is busy with others' requests"),
        Error::NotReadOnly => {
            (Unavailable, NotApplied, "this ZooKeeper server has lost its quorum and takes no writes")
        }
        Error::UnmarshalError { .. } => (Corrupt, Unknown, "ZooKeeper gave an answer that cannot be read"),
        Error::SessionExpired | Error::ClientClosed | Error::SessionMoved => {
            (Unavailable, Unknown, "the ZooKeeper session has ended")
        }
        Error::NoNode | Error::NodeExists | Error::NotEmpty | Error::BadVersion => {
            (Unavailable, NotApplied, "the nodes of the lock changed meanwhile; try again")
        }
        _ => (Unavailable, Unknown, "the connection to ZooKeeper broke"),
    }
}

//! The one place where the driver's errors become ours.

use mysql_async::{DriverError, Error};
use tenure_cas::{CellError, VerbError};
use tenure_client::tls::TlsFault;
use tenure_core::{
    BackendError,
    ErrorKind::{self, Corrupt, Denied, Invalid, Throttled, TimedOut, Unavailable},
    Outcome,
};

/// In the words of this store.
pub(crate) fn worded(place: &str, trouble: VerbError) -> BackendError {
    let (kind, outcome, message) = match trouble {
        VerbError::Overtaken => (
            Throttled,
            Outcome::NotApplied,
            "other clients changed this lock during every attempt (heavy contention); try again",
        ),
        VerbError::Unsettled => (
            Unavailable,
            Outcome::Unknown,
            "the connection to the MySQL server broke during a request; it is not known whether the request \
             had an effect",
        ),
        VerbError::Locked => {
            (Unavailable, Outcome::NotApplied, "the row of the lock is locked by another transaction")
        }
        VerbError::Swallowed => (
            Corrupt,
            Outcome::NotApplied,
            "writes to the table of the locks have no effect: a trigger or an engine drops them, or reads are \
             stale",
        ),
        VerbError::Altered => (
            Corrupt,
            Outcome::Unknown,
            "a trigger on the table changes what Tenure writes, so no lock can be granted; drop the \
             trigger",
        ),
        VerbError::Ledger(error) => return refused(place, error.kind(), error.to_string()),
    };
    BackendError::new(kind, outcome, message).with("mysql", place)
}

/// Where there is nothing to be read again.
pub(crate) fn settled(place: &str, failure: CellError) -> BackendError {
    failure.into_error(|trouble| worded(place, trouble))
}

pub(crate) fn refused(place: &str, kind: ErrorKind, message: impl Into<String>) -> BackendError {
    BackendError::new(kind, Outcome::NotApplied, message).with("mysql", place)
}

/// A statement that failed after it may have been sent. An error that the server answers says that nothing
/// was applied, because a statement is a transaction; but for those that end it in the middle of a commit, or
/// with its connection (L9).
pub(crate) fn asked(place: &str, error: Error) -> CellError {
    let code = code(&error);
    match code {
        _ if code == 0 || BROKEN.contains(&code) => {
            let message = "the connection to the MySQL server broke";
            let broken = BackendError::new(Unavailable, Outcome::NotApplied, message);
            CellError::Broken(broken.with("mysql", place).caused_by(error))
        }
        LOCK_WAIT_TIMEOUT => CellError::Locked,
        // Without its table a statement did nothing, and the next reading makes the table.
        NO_SUCH_TABLE => CellError::Overtaken,
        _ if OVERTAKEN.contains(&code) => CellError::Overtaken,
        _ => {
            let (kind, message) = judge(code).unwrap_or((Invalid, "the MySQL server refuses the statement"));
            CellError::Refused(refused(place, kind, message).caused_by(error))
        }
    }
}

/// A connection that could not be made: nothing was asked. `may_want_certificate`: TLS is spoken, and no certificate shown.
pub(crate) fn connecting(place: &str, error: Error, may_want_certificate: bool) -> BackendError {
    if let Some(fault) = TlsFault::of(&error) {
        let name = "write that name as the host, or use ssl-mode=VERIFY_CA";
        let message = fault.message("MySQL", "ssl-ca", name, ("ssl-cert", "ssl-key"));
        return refused(place, Denied, message).caused_by(error);
    }
    let (kind, message) = match &error {
        Error::Server(server) if may_want_certificate && server.code == ACCESS_DENIED => {
            (Denied, NO_CERTIFICATE)
        }
        Error::Server(server) => {
            judge(server.code).unwrap_or((Unavailable, "the MySQL server refuses the connection"))
        }
        Error::Driver(DriverError::NoClientSslFlagFromServer) => {
            (Invalid, "the MySQL server does not speak TLS, which ssl-mode= demands")
        }
        Error::Driver(DriverError::UnknownAuthPlugin { .. } | DriverError::CleartextPluginDisabled) => (
            Denied,
            "the MySQL server wants a login that tenure does not know; use a password of the usual kind",
        ),
        _ => (Unavailable, "cannot reach the MySQL server; check that it runs and that the URL is right"),
    };
    refused(place, kind, message).caused_by(error)
}

/// The connection was left, and its answer did not come.
pub(crate) fn unanswered(place: &str) -> BackendError {
    let message = "the MySQL server did not answer in time";
    BackendError::new(TimedOut, Outcome::Unknown, message).with("mysql", place)
}

/// The server took writes when it was looked at, and does not any more.
pub(crate) fn is_demoted(error: &Error) -> bool {
    READ_ONLY.contains(&code(error))
}

/// The table was dropped.
pub(crate) fn is_table_missing(error: &Error) -> bool {
    code(error) == NO_SUCH_TABLE
}

/// 0: it is none of the server's.
fn code(error: &Error) -> u16 {
    if let Error::Server(server) = error { server.code } else { 0 }
}

fn judge(code: u16) -> Option<(ErrorKind, &'static str)> {
    let found = CODES.iter().find(|(codes, ..)| codes.contains(&code));
    found.map(|(_, kind, message)| (*kind, *message))
}

const LOCK_WAIT_TIMEOUT: u16 = 1205;
const NO_SUCH_TABLE: u16 = 1146;
pub(crate) const ACCESS_DENIED: u16 = 1045;
/// Lost races between writers, in whatever isolation: a deadlock, a row that is there already, a row that has
/// changed since the transaction began, a table that is being altered.
const OVERTAKEN: [u16; 5] = [1213, 1062, 1020, 1412, 1050];
/// The server ended the statement or the connection, perhaps in its commit: an error during the commit,
/// shutting down (two), killed (two), out of time (two), idle for too long.
const BROKEN: [u16; 8] = [1180, 1053, 1077, 1317, 1927, 1969, 3024, 4031];
const READ_ONLY: [u16; 4] = [1290, 1792, 1836, 1874];

const CODES: [(&[u16], ErrorKind, &str); 14] = [
    (
        &[ACCESS_DENIED, 1698, 1820, 1862, 3118, 4151],
        Denied,
        "the MySQL server refuses this user or password",
    ),
    (&[1130, 1129], Denied, "the MySQL server refuses connections from this host"),
    (
        &[1044, 1142, 1143, 1227],
        Denied,
        "this MySQL user lacks a permission; grant SELECT, INSERT, UPDATE and DELETE on the table of the locks",
    ),
    (&[3159], Denied, "the MySQL server wants TLS; set ssl-mode=REQUIRED, or better VERIFY_IDENTITY"),
    (&[1049], Invalid, "the MySQL server has no database of this name"),
    (&[1046], Invalid, "no database is named; put it behind the host, or name it with table=database.table"),
    (&[1040, 1203, 1226], Unavailable, "the MySQL server has too many connections"),
    (&READ_ONLY, Unavailable, "this MySQL server takes no writes: it is a replica, or read_only is on"),
    (&[3, 1021, 1026, 1114], Unavailable, "the disk of the MySQL server is full"),
    (&[1030, 1037, 1038, 1041], Unavailable, "the MySQL server is out of memory, or its disk failed"),
    (&[1153], Invalid, "the queue of this lock is larger than max_allowed_packet of the MySQL server"),
    (
        &[1048, 1364, 1406, 3819, 4025],
        Corrupt,
        "the table refuses what tenure writes: a column that was added needs a default, or a check is too strict",
    ),
    (&[1054, 1136, 1264, 1366], Corrupt, NOT_OURS),
    (&[1047, 1105], Unavailable, "the MySQL server cannot serve at present"),
];

const NO_CERTIFICATE: &str = "the MySQL server refuses this user or password, or wants a client certificate; name it \
                              with ssl-cert= and ssl-key=";
pub(crate) const NOT_OURS: &str = "the table is not one of tenure; name another with table=";
pub(crate) const NO_AUTOCOMMIT: &str =
    "autocommit is off, so that no statement would be a commit; switch it on for this user or in the pooler";

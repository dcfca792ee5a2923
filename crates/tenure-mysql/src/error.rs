//! The one place where errors of the driver become errors of Tenure.

use mysql_async::{DriverError, Error};
use tenure_cas::{CellError, TableWords};
use tenure_client::tls::TlsFault;
use tenure_core::{
    BackendError,
    ErrorKind::{self, Corrupt, Denied, Invalid, Unavailable, Unsupported},
};

use crate::answer::Answer;

/// The words of this store.
pub(crate) const WORDS: TableWords = TableWords {
    store: "mysql",
    product: "MySQL",
    swallowed: "a proxy sends SELECT to another server, whose clock or rows differ, or a trigger or an engine discards \
                writes; send all statements to the server that writes",
};

/// A statement that failed after it may have been sent. The server returns a number that is known here instead of a
/// commit, because a statement is a transaction. Any other number may be that of a proxy that has lost its server
/// (2013, 9001), or come in the middle of a commit: the outcome is unknown (L9).
pub(crate) fn asked(place: &str, error: Error) -> CellError {
    let code = code(&error);
    match code {
        LOCK_WAIT_TIMEOUT | LOCK_NOWAIT => CellError::Locked,
        // Without its table a statement did nothing, and the next reading looks for the table.
        NO_SUCH_TABLE => CellError::Overtaken,
        _ if OVERTAKEN.contains(&code) => CellError::Overtaken,
        _ => match judge(code) {
            Some((kind, message)) => CellError::Refused(WORDS.refused(place, kind, message).caused_by(error)),
            None => {
                let message = if code == 0 {
                    "the connection to the MySQL server broke"
                } else {
                    "the MySQL server, or a proxy, ended the statement and does not say whether it had an effect"
                };
                CellError::Broken(WORDS.refused(place, Unavailable, message).caused_by(error))
            }
        },
    }
}

/// A statement that was answered, but not committed.
pub(crate) fn uncommitted(place: &str, answer: &Answer) -> CellError {
    let message = if answer.is_autocommit { OPEN_TRANSACTION } else { NO_AUTOCOMMIT };
    let error = WORDS.refused(place, Unsupported, message);
    // The statement is rolled back with its connection, unless a pooler keeps the connection.
    if answer.written > 0 { CellError::Broken(error.of_unknown_outcome()) } else { CellError::Refused(error) }
}

/// A connection that could not be opened: no request was sent over it. `may_want_certificate`: TLS is used, without a
/// client certificate.
pub(crate) fn connecting(place: &str, error: Error, may_want_certificate: bool) -> BackendError {
    if let Some(fault) = TlsFault::of(&error) {
        let name = "write that name as the host, or use ssl-mode=VERIFY_CA";
        let message = fault.message("MySQL", "ssl-ca", name, ("ssl-cert", "ssl-key"));
        return WORDS.refused(place, Denied, message).caused_by(error);
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
        _ => return WORDS.unreachable(place, error),
    };
    WORDS.refused(place, kind, message).caused_by(error)
}

/// Each of two servers would grant the same lock.
pub(crate) fn rivals(place: &str, rival: &str) -> BackendError {
    let message = format!(
        "two servers of the URL take writes, this one and {rival}: set read_only = 1 on all but the primary, or name one server"
    );
    WORDS.refused(place, Unavailable, message)
}

/// The server reports that it takes no writes, although this user could write there.
pub(crate) fn read_only(place: &str, variable: &str) -> BackendError {
    WORDS.refused(place, Unavailable, format!("this MySQL server takes no writes: {variable} is on"))
}

/// The server took writes when it was checked, and no longer does.
pub(crate) fn is_demoted(error: &Error) -> bool {
    READ_ONLY.contains(&code(error))
}

/// The table does not exist any more.
pub(crate) fn is_table_missing(error: &Error) -> bool {
    code(error) == NO_SUCH_TABLE
}

/// 0 if the error is not the server's.
fn code(error: &Error) -> u16 {
    if let Error::Server(server) = error { server.code } else { 0 }
}

fn judge(code: u16) -> Option<(ErrorKind, &'static str)> {
    let found = CODES.iter().find(|(codes, ..)| codes.contains(&code));
    found.map(|(_, kind, message)| (*kind, *message))
}

const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// The same of a statement that does not wait, on MySQL.
const LOCK_NOWAIT: u16 = 3572;
const NO_SUCH_TABLE: u16 = 1146;
pub(crate) const ACCESS_DENIED: u16 = 1045;
/// Lost races between writers, in any isolation level: a deadlock; a row or table that exists already; a row that has
/// changed since the transaction began; a table that is being altered; a member of a group that rolls back.
const OVERTAKEN: [u16; 6] = [1213, 1062, 1020, 1412, 1050, 3101];
const READ_ONLY: [u16; 4] = [1290, 1792, 1836, 1874];

/// Each means that the statement, or the login, was refused before it had an effect, or was rolled back. Errors that
/// may come in a commit are not here: an error during it (1180); a server that shuts down (1053, 1077); a statement
/// that was killed (1317, 1927), timed out (1969, 3024) or could not be logged (3, 1026); and a connection that was
/// idle for too long (4031). Neither is the number that a proxy may use for any error (1105).
const CODES: [(&[u16], ErrorKind, &str); 16] = [
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
    (&[1021, 1114], Unavailable, "the disk of the MySQL server is full"),
    (&[1030, 1037, 1038, 1041], Unavailable, "the MySQL server is out of memory, or its disk failed"),
    (
        &[1786],
        Invalid,
        "this MySQL server does not let a client make the table (enforce_gtid_consistency); make it as the README shows",
    ),
    (&[1153], Invalid, "the queue of this lock is larger than max_allowed_packet of the MySQL server"),
    (
        &[1048, 1364, 1406, 3819, 4025],
        Corrupt,
        "the table refuses what tenure writes: a column that was added needs a default, or a check is too strict",
    ),
    (&[1054, 1136, 1264, 1366], Corrupt, TableWords::NOT_OURS),
    // A cluster is not ready, or another client of a pooler has locked the tables of this connection.
    (&[1047, 1099, 1100, 1192, 1223], Unavailable, "the MySQL server cannot serve at present"),
    (
        // Errors of the statement itself, and refusals by a trigger, a view, a routine or a limit.
        &[
            1064, 1102, 1103, 1104, 1109, 1146, 1148, 1149, 1175, 1193, 1231, 1235, 1238, 1242, 1273, 1288,
            1292, 1305, 1347, 1348, 1356, 1370, 1411, 1422, 1436, 1442, 1449, 1471, 1644, 1690, 1701, 1971,
            3065, 3098, 4078,
        ],
        Invalid,
        "the MySQL server refuses the statement",
    ),
];

const NO_CERTIFICATE: &str = "the MySQL server refuses this user or password, or wants a client certificate; name it \
                              with ssl-cert= and ssl-key=";
const OPEN_TRANSACTION: &str = "a transaction is open, so that no statement would be a commit: init_connect or another \
                                client of a pooler has begun it";
pub(crate) const STOPPED_CLOCK: &str = "SET timestamp has stopped the clock of this session: init_connect or another client of \
                                        a pooler did that";
pub(crate) const NO_AUTOCOMMIT: &str =
    "autocommit is off, so that no statement would be a commit; switch it on for this user or in the pooler";

/// Rows are locked on one server only.
pub(crate) fn not_alone(place: &str, other: &str) -> BackendError {
    let message = format!(
        "a transaction on another server ({other}) would lock nothing here, so it cannot rely on the owner of a lock: check \
         the fencing token instead"
    );
    WORDS.refused(place, Unsupported, message)
}

#[cfg(test)]
mod tests {
    use mysql_async::ServerError;
    use tenure_core::Outcome;

    use super::*;

    fn failure(code: u16) -> CellError {
        asked("h", Error::Server(ServerError { code, message: String::new(), state: "HY000".into() }))
    }

    /// L9: a proxy that had lost its server returned 2013 or its own number, but the lease existed.
    #[test]
    fn a_number_that_is_not_known_says_nothing_of_what_happened() {
        for code in [2013, 2006, 9001, 1105, 1180, 1053, 1317, 1969, 3024, 1026, 65535] {
            let failure = failure(code);
            assert!(
                matches!(&failure, CellError::Broken(error) if error.kind() == Unavailable),
                "{code}: {failure:?}"
            );
        }
        for code in [1142, 1064, 1290, 1792, 1836, 1114, 1040, 1644] {
            let failure = failure(code);
            assert!(
                matches!(&failure, CellError::Refused(error) if error.outcome() == Outcome::NotApplied),
                "{code}: {failure:?}"
            );
        }
        assert!(matches!(failure(1205), CellError::Locked));
        assert!(matches!(failure(3572), CellError::Locked));
        assert!(matches!(failure(1213), CellError::Overtaken));
    }
}

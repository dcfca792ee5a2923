//! The one place where errors of the driver become errors of Tenure.

use std::error::Error as _;

use tenure_cas::{CellError, TableWords};
use tenure_client::tls::{TlsFault, words};
use tenure_core::{
    BackendError,
    ErrorKind::{self, Corrupt, Denied, Invalid, Unavailable},
};
use tokio_postgres::{
    Error,
    error::{DbError, Severity, SqlState},
};

/// The words of this store.
pub(crate) const WORDS: TableWords = TableWords {
    store: "postgres",
    product: "PostgreSQL",
    swallowed: "a pooler sends SELECT to another server, whose clock or rows differ, or a trigger, a rule or a policy \
                discards writes; send all statements to the server that writes",
};

/// A statement that failed after it may have been sent. If the server itself returns the error, nothing was applied,
/// because a statement is a transaction. Only an error that ends the connection may come after the commit (L9).
pub(crate) fn asked(place: &str, error: Error) -> CellError {
    let Some(db) = error.as_db_error().filter(|db| !ends_connection(db)) else {
        let message = "the connection to the PostgreSQL server broke";
        return CellError::Broken(WORDS.refused(place, Unavailable, message).caused_by(error));
    };
    let code = db.code();
    // Without its table a statement did nothing, and the next reading looks for the table.
    if OVERTAKEN.contains(code) || is_table_missing(&error) {
        return CellError::Overtaken;
    }
    if *code == SqlState::LOCK_NOT_AVAILABLE {
        return CellError::Locked;
    }
    let (kind, message) = judge(code).unwrap_or((Invalid, "the PostgreSQL server refuses the statement"));
    CellError::Refused(WORDS.refused(place, kind, message).caused_by(error))
}

/// A connection that could not be opened: no request was sent over it.
pub(crate) fn connecting(place: &str, error: Error) -> BackendError {
    if let Some(fault) = TlsFault::of(&error) {
        let message =
            fault.message("PostgreSQL", "sslrootcert", "write that name as the host", ("sslcert", "sslkey"));
        return WORDS.refused(place, Denied, message).caused_by(error);
    }
    let words = words(&error);
    // Both of these have the code of a wrong password.
    if words.contains("client certificate") {
        let message = TlsFault::NoIdentity.message("PostgreSQL", "sslrootcert", "", ("sslcert", "sslkey"));
        return WORDS.refused(place, Denied, message).caused_by(error);
    }
    if words.contains("certificate authentication failed") {
        let message =
            "the client certificate that sslcert= names is for another user of the PostgreSQL server";
        return WORDS.refused(place, Denied, message).caused_by(error);
    }
    let judged = match error.code().map(judge) {
        Some(verdict) => {
            Some(verdict.unwrap_or((Unavailable, "the PostgreSQL server refuses the connection")))
        }
        None => judge_handshake(&words),
    };
    let Some((kind, message)) = judged else { return WORDS.unreachable(place, error) };
    WORDS.refused(place, kind, message).caused_by(error)
}

/// The wait for a standby was cancelled. The server reports that the write is done, but perhaps no standby has it.
pub(crate) fn unconfirmed(place: &str) -> BackendError {
    let message = "the wait for a synchronous standby was cancelled, so the standby may lack this write";
    WORDS.refused(place, Unavailable, message).of_unknown_outcome()
}

/// The server's queue of notifications is full, so the server refused the whole statement.
pub(crate) fn is_without_hints(failure: &CellError) -> bool {
    let CellError::Refused(error) = failure else { return false };
    let cause = error.source().and_then(|cause| cause.downcast_ref::<Error>());
    cause.and_then(Error::code) == Some(&SqlState::PROGRAM_LIMIT_EXCEEDED)
}

/// The table does not exist any more.
pub(crate) fn is_table_missing(error: &Error) -> bool {
    error.code() == Some(&SqlState::UNDEFINED_TABLE)
}

/// Another server might return something else. This one took writes when it was checked, and no longer does; or it
/// stops, starts or recovers. The name of the host may lead to the next primary by now, which only a new connection
/// reaches.
pub(crate) fn is_of_the_server(error: &Error) -> bool {
    let of_server =
        |code: &SqlState| *code == SqlState::READ_ONLY_SQL_TRANSACTION || code.code().starts_with("57P0");
    error.code().is_some_and(of_server)
}

/// The server has ended the connection: a statement that was sent before may have been committed.
fn ends_connection(db: &DbError) -> bool {
    let is_fatal = matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
    is_fatal || db.severity() == "FATAL" || !is_certain(db.code().code())
}

/// Whether a statement that failed with this code did nothing. A pooler that has lost its server returns codes of the
/// classes 08 and 58, 57P01 to 57P05, XX000, or its own.
fn is_certain(code: &str) -> bool {
    let class = code.get(..2).unwrap_or_default();
    // 40003 means that the outcome is unknown.
    let is_known = !code.starts_with("57P0") && code != "40003";
    CERTAIN.contains(&class) && is_known || matches!(code, "58P01" | "58P02" | "58030")
}

/// The classes of errors after which PostgreSQL rolls the statement back.
const CERTAIN: [&str; 24] = [
    "0A", "20", "21", "22", "23", "24", "25", "26", "28", "2B", "2F", "34", "38", "39", "3D", "3F", "40",
    "42", "44", "53", "54", "55", "57", "P0",
];

/// Lost races between writers, in any isolation level.
const OVERTAKEN: &[SqlState] = &[
    SqlState::T_R_SERIALIZATION_FAILURE,
    SqlState::T_R_DEADLOCK_DETECTED,
    // Another client made the table at the same time.
    SqlState::UNIQUE_VIOLATION,
];

type KindAndMessage = (ErrorKind, &'static str);

const CODES: &[(SqlState, ErrorKind, &str)] = &[
    (SqlState::INVALID_PASSWORD, Denied, NOT_YOU),
    (SqlState::INVALID_AUTHORIZATION_SPECIFICATION, Denied, NOT_YOU),
    (
        SqlState::INSUFFICIENT_PRIVILEGE,
        Denied,
        "this PostgreSQL role lacks a permission; run `tenure doctor`, which names the GRANT",
    ),
    (SqlState::INVALID_CATALOG_NAME, Invalid, "the PostgreSQL server has no database of this name"),
    (
        SqlState::INVALID_SCHEMA_NAME,
        Invalid,
        "the database has no schema of this name; make it, or name another with table=",
    ),
    (SqlState::TOO_MANY_CONNECTIONS, Unavailable, "the PostgreSQL server has too many connections"),
    (SqlState::CANNOT_CONNECT_NOW, Unavailable, "the PostgreSQL server is starting up or shutting down"),
    (SqlState::ADMIN_SHUTDOWN, Unavailable, "the PostgreSQL server is shutting down"),
    (SqlState::CRASH_SHUTDOWN, Unavailable, "the PostgreSQL server recovers from a crash"),
    (
        SqlState::READ_ONLY_SQL_TRANSACTION,
        Unavailable,
        "this PostgreSQL server takes no writes: it is a standby, or default_transaction_read_only is on, for the role or in a \
         session of a pooler",
    ),
    (
        SqlState::QUERY_CANCELED,
        Unavailable,
        "the PostgreSQL server stopped the statement: the row is locked by another transaction, or statement_timeout was reached",
    ),
    (
        SqlState::UNTRANSLATABLE_CHARACTER,
        Invalid,
        "the encoding of the database lacks a character of the name; take another name, or a database in UTF8",
    ),
    (SqlState::DISK_FULL, Unavailable, "the disk of the PostgreSQL server is full"),
    (SqlState::OUT_OF_MEMORY, Unavailable, "the PostgreSQL server is out of memory"),
    (SqlState::IO_ERROR, Unavailable, "the disk of the PostgreSQL server failed"),
    (SqlState::UNDEFINED_COLUMN, Corrupt, TableWords::NOT_OURS),
    (SqlState::DATATYPE_MISMATCH, Corrupt, TableWords::NOT_OURS),
    (SqlState::INVALID_COLUMN_REFERENCE, Corrupt, TableWords::NOT_OURS),
    (SqlState::NOT_NULL_VIOLATION, Corrupt, NOT_TAKEN),
    (SqlState::CHECK_VIOLATION, Corrupt, NOT_TAKEN),
    (SqlState::STRING_DATA_RIGHT_TRUNCATION, Corrupt, NOT_TAKEN),
    (SqlState::GENERATED_ALWAYS, Corrupt, TableWords::NOT_OURS),
];

const NOT_YOU: &str = "the PostgreSQL server refuses this user or password";
const NOT_TAKEN: &str = "the table refuses what tenure writes: a column that was added needs a default, or a check or a \
                         length is too strict";
pub(crate) const NOT_ONE_DATABASE: &str =
    "the servers of the URL are not one database and its copies: two may hold one lock; name those of one";

fn judge(code: &SqlState) -> Option<KindAndMessage> {
    let found = CODES.iter().find(|(known, ..)| known == code);
    found.map(|(_, kind, message)| (*kind, *message)).or_else(|| {
        // Classes: lack of resources, actions of an operator, errors of the system.
        let passes = ["53", "57", "58"].iter().any(|class| code.code().starts_with(class));
        passes.then_some((Unavailable, "the PostgreSQL server cannot serve at present"))
    })
}

/// The driver has no code for these errors, but their texts are fixed.
fn judge_handshake(words: &str) -> Option<KindAndMessage> {
    let known = [
        ("does not support TLS", Invalid, "the PostgreSQL server does not speak TLS, which sslmode= demands"),
        ("password missing", Denied, "the PostgreSQL server wants a password"),
        ("authentication", Denied, "the PostgreSQL server cannot be authenticated to as it demands"),
    ];
    let found = known.into_iter().find(|(text, ..)| words.contains(text));
    found.map(|(_, kind, message)| (kind, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L9: the error of a pooler that had lost its server counted as a refusal, but the lease existed.
    #[test]
    fn a_code_that_is_not_known_says_nothing_of_what_happened() {
        for code in ["08P01", "08006", "08000", "57P01", "57P05", "58000", "XX000", "XX001", "EPOOL", "", "9"]
        {
            assert!(!is_certain(code), "{code}");
        }
        for code in [
            "25006", "40001", "42501", "42P01", "55P03", "57014", "53100", "53300", "58030", "23505", "P0001",
        ] {
            assert!(is_certain(code), "{code}");
        }
    }
}

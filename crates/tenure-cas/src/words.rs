//! `TableWords`: the errors of a store whose cells are rows of a table, in the same words for each database.

use std::{error::Error, time::Duration};

use tenure_core::{
    BackendError,
    ErrorKind::{self, Corrupt, Throttled, TimedOut, Unavailable},
    Outcome::{self, NotApplied, Unknown},
};

use crate::cell::{CellError, VerbError};

/// What the errors of a store say of its server. `place`, in each of them, is the name of the server in the URL.
#[derive(Clone, Copy, Debug)]
pub struct TableWords {
    /// The store, as [`Promises::backend`](tenure_core::Promises::backend).
    pub store: &'static str,
    /// The product: the text is followed by *server*.
    pub product: &'static str,
    /// Why writes to a row may have no effect, and what to do about it.
    pub swallowed: &'static str,
}

impl TableWords {
    /// For a table that lacks what Tenure uses.
    pub const NOT_OURS: &'static str = "the table is not one of tenure; name another with table=";

    /// A request that did nothing.
    pub fn refused(&self, place: &str, kind: ErrorKind, message: impl Into<String>) -> BackendError {
        self.error(place, (kind, NotApplied), message)
    }

    /// The error of a verb.
    pub fn verb(&self, place: &str, trouble: VerbError) -> BackendError {
        let (kind, outcome, message) = match trouble {
            VerbError::Overtaken => (
                Throttled,
                NotApplied,
                "other clients changed this lock during every attempt (heavy contention); try again".to_owned(),
            ),
            VerbError::Unsettled => {
                let broke = format!("the connection to the {} server broke during a request", self.product);
                (Unavailable, Unknown, format!("{broke}; it is not known whether the request had an effect"))
            }
            VerbError::Locked => {
                (Unavailable, NotApplied, "the row of the lock is locked by another transaction".to_owned())
            }
            VerbError::ReliedOn(by) => {
                let by = if by.is_empty() { by } else { format!(", perhaps of {by}") };
                let message = format!(
                    "a transaction that relies on the owner of this lock is still open{by}: commit it, roll it back, or end its \
                     session; the lock is free then"
                );
                (Unavailable, NotApplied, message)
            }
            VerbError::Swallowed => {
                let message = format!("writes to the row of the lock have no effect: {}", self.swallowed);
                (Corrupt, NotApplied, message)
            }
            VerbError::Altered => (
                Corrupt,
                Unknown,
                "a trigger on the table changes what Tenure writes, so no lock can be granted; drop the trigger"
                    .to_owned(),
            ),
            VerbError::Ledger(error) => (error.kind(), NotApplied, error.to_string()),
        };
        self.error(place, (kind, outcome), message)
    }

    /// For a caller that does not read again.
    pub fn settled(&self, place: &str, failure: CellError) -> BackendError {
        failure.into_error(|trouble| self.verb(place, trouble))
    }

    /// The table existed, and is missing now: a table that cannot be read is not an empty one.
    pub fn away(&self, place: &str) -> CellError {
        let message = "the table of the locks is away, though this process has seen it: leases may be in it, so \
                       nothing is granted; put it back, or, if it is gone for good, make it as the README shows, when \
                       the longest ttl has passed";
        CellError::Refused(self.refused(place, Unavailable, message))
    }

    /// A client that had found no table made this one a moment ago: how long it is closed.
    pub fn young(&self, place: &str, left: Duration) -> CellError {
        let message = format!(
            "a client has made the table of the locks, which it had not seen before: nothing is granted in it for \
             another {:.1} s, because leases of an earlier one may be valid",
            left.as_secs_f64()
        );
        CellError::Refused(self.refused(place, Unavailable, message).retry_after(left))
    }

    /// The table belongs to another program, and has these columns.
    pub fn strange(&self, place: &str, columns: &str) -> BackendError {
        self.refused(place, Corrupt, Self::NOT_OURS).with("columns", columns)
    }

    /// The connection was abandoned, and the answer did not arrive.
    pub fn unanswered(&self, place: &str) -> BackendError {
        self.error(place, (TimedOut, Unknown), format!("the {} server did not answer in time", self.product))
    }

    /// The server, or a pooler, still has an earlier connection, and has not answered the requests that were sent
    /// over it.
    pub fn occupied(&self, place: &str) -> BackendError {
        let silent = format!("the {} server does not answer", self.product);
        let message = format!("{silent}, and has not ended an earlier connection of this process yet");
        self.refused(place, Unavailable, message)
    }

    /// The task that was logging in has ended with its runtime.
    pub fn login_ended(&self, place: &str) -> BackendError {
        self.refused(place, Unavailable, "the runtime in which the login was under way has ended")
    }

    /// The connection did not open in time: no request was sent over it.
    pub fn not_opened(&self, place: &str, patience: Duration) -> BackendError {
        let message =
            format!("the {} server does not answer within connect_timeout={patience:?}", self.product);
        self.refused(place, Unavailable, message)
    }

    /// No connection was made.
    pub fn unreachable(&self, place: &str, cause: impl Error + Send + Sync + 'static) -> BackendError {
        let product = self.product;
        let message =
            format!("cannot reach the {product} server; check that it runs and that the URL is right");
        self.refused(place, Unavailable, message).caused_by(cause)
    }

    fn error(&self, place: &str, of: (ErrorKind, Outcome), message: impl Into<String>) -> BackendError {
        BackendError::new(of.0, of.1, message).with(self.store, place)
    }
}

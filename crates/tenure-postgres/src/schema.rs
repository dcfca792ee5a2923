//! The table: what a connection finds, whether it is ours, and making it.

use std::time::Duration;

use tenure_core::{BackendError, ErrorKind};
use tokio_postgres::{Error, Row};

use crate::{config::Place, error, memory::since_epoch, sql};

/// What was found when a connection was made.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Nobody stands between us and the server, so that what it pushes reaches us.
    pub(crate) is_direct: bool,
    pub(crate) takes_writes: bool,
    pub(crate) is_standby: bool,
    pub(crate) table: Table,
    pub(crate) clock: Duration,
}

/// What was found where the table should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Ours,
    Missing,
    /// Somebody else's, with these columns.
    Strange(String),
}

impl Facts {
    /// From the row of [`sql::LOOK`].
    pub(crate) fn read(row: &Row, place: &Place, own_port: Option<u16>) -> Result<Self, Error> {
        let (seen, server): (Option<i32>, i32) = (row.try_get(0)?, row.try_get(1)?);
        let (is_there, columns, is_unique): (bool, String, bool) =
            (row.try_get(5)?, row.try_get(6)?, row.try_get(7)?);
        let is_direct = match (place, own_port) {
            (_, Some(port)) => seen == Some(i32::from(port)),
            (Place::Socket(_, port), None) => seen.is_none() && server == i32::from(*port),
            (Place::Host(..), None) => false,
        };
        Ok(Self {
            is_direct,
            takes_writes: row.try_get(2)?,
            is_standby: row.try_get(3)?,
            table: match is_there {
                false => Table::Missing,
                true if columns == sql::SHAPE && is_unique => Table::Ours,
                true => Table::Strange(columns),
            },
            clock: since_epoch(row.try_get(4)?),
        })
    }

    /// # Errors
    /// `Unavailable` for a standby, which another one may replace; `Denied` for a server that was set so.
    pub(crate) fn must_take_writes(&self, place: &str) -> Result<(), BackendError> {
        if self.takes_writes {
            return Ok(());
        }
        let (kind, message) = if self.is_standby {
            (
                ErrorKind::Unavailable,
                "this PostgreSQL server is a standby and takes no writes; name its primary too",
            )
        } else {
            (ErrorKind::Denied, "this PostgreSQL server takes no writes: default_transaction_read_only is on")
        };
        Err(error::refused(place, kind, message))
    }

    /// # Errors
    /// `Corrupt` for a table of somebody else's: nothing is read from it or written to it.
    pub(crate) fn must_be_ours(&self, place: &str) -> Result<(), BackendError> {
        match &self.table {
            Table::Strange(columns) => {
                let strange = error::refused(place, ErrorKind::Corrupt, error::NOT_OURS);
                Err(strange.with("columns", columns))
            }
            Table::Ours | Table::Missing => Ok(()),
        }
    }
}

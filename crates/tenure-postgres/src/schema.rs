//! The table: what a connection finds, whether it is ours, and making it.

use std::time::Duration;

use tenure_core::{BackendError, ErrorKind};
use tokio_postgres::{Error, Row};

use crate::{config::Place, error, memory::since_epoch};

/// What was found when a connection was made.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Nobody stands between us and the server, so that what it pushes reaches us.
    pub(crate) is_direct: bool,
    pub(crate) takes_writes: bool,
    pub(crate) is_standby: bool,
    /// Places may have rows of their own: those can be deleted, and names are in the order of their bytes.
    pub(crate) takes_places: bool,
    pub(crate) table: Table,
    pub(crate) clock: Duration,
}

/// What was found where the table should be: ours is one that has what we use, whatever else it has.
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
        let (is_there, columns): (bool, String) = (row.try_get(5)?, row.try_get(6)?);
        let (is_unique, has_ours): (bool, bool) = (row.try_get(7)?, row.try_get(8)?);
        let is_direct = match (place, own_port) {
            (_, Some(port)) => seen == Some(i32::from(port)),
            (Place::Socket(_, port), None) => seen.is_none() && server == i32::from(*port),
            (Place::Host(..), None) => false,
        };
        Ok(Self {
            is_direct,
            takes_writes: row.try_get(2)?,
            is_standby: row.try_get(3)?,
            takes_places: row.try_get(9)?,
            table: match is_there {
                false => Table::Missing,
                true if has_ours && is_unique => Table::Ours,
                true => Table::Strange(columns),
            },
            clock: since_epoch(row.try_get(4)?),
        })
    }

    /// # Errors
    /// `Unavailable`: a standby may be promoted, and a server is set to read only for a moment while its successor takes over. Who
    /// set it so for good is told after the patience of whoever waits.
    pub(crate) fn must_take_writes(&self, place: &str) -> Result<(), BackendError> {
        if self.takes_writes {
            return Ok(());
        }
        let message = if self.is_standby {
            "this PostgreSQL server is a standby and takes no writes; name its primary too"
        } else {
            "this PostgreSQL server takes no writes: default_transaction_read_only is on"
        };
        Err(error::refused(place, ErrorKind::Unavailable, message))
    }

    /// # Errors
    /// `Corrupt` for a table of somebody else's: nothing is claimed in it, and nothing of it is shown. A lease that is in it already
    /// is renewed and released for as long as the server takes the statements, since they compare the whole row.
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

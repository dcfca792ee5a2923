//! `Unsigned`: an unsigned number in a column; SQLite has only signed ones.

use rusqlite::{
    Error, ToSql,
    types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef},
};

/// A `u64` or a `usize`. A number that does not fit is an error, never another number. Some supported versions of the driver
/// have this always, others only with a feature that not all have (`docs/decisions/sqlite-driver.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsigned<T>(pub(crate) T);

impl<T> ToSql for Unsigned<T>
where
    T: Copy + TryInto<i64, Error: std::error::Error + Send + Sync + 'static>,
{
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let number: i64 = self.0.try_into().map_err(|e| Error::ToSqlConversionFailure(Box::new(e)))?;
        Ok(number.into())
    }
}

impl<T: TryFrom<i64>> FromSql for Unsigned<T> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let number = i64::column_result(value)?;
        T::try_from(number).map(Self).map_err(|_| FromSqlError::OutOfRange(number))
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn a_number_comes_back_as_it_was_and_one_that_does_not_fit_is_an_error() {
        let db = Connection::open_in_memory().unwrap();
        let back = |number| {
            db.query_row("SELECT ?1", [Unsigned::<u64>(number)], |row| row.get::<_, Unsigned<u64>>(0))
        };
        let largest = i64::MAX.unsigned_abs();
        for number in [0, 1, 1 << 53 | 1, largest] {
            assert_eq!(back(number), Ok(Unsigned(number)));
        }
        for number in [largest + 1, u64::MAX] {
            assert!(matches!(back(number), Err(Error::ToSqlConversionFailure(_))), "{number}");
        }
        let negative = db.query_row("SELECT -1", [], |row| row.get::<_, Unsigned<usize>>(0));
        assert_eq!(negative, Err(Error::IntegralValueOutOfRange(0, -1)));
    }
}

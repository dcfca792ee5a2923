//! Fenced rows in a real SQLite file, with connections that get in each other's way.

use std::{thread, time::Duration};

use rusqlite::{
    Connection, ErrorCode, OptionalExtension, Transaction,
    TransactionBehavior::{Deferred, Immediate},
};
use tempfile::TempDir;
use tenure::{
    FencingToken,
    fence::{
        Pass,
        sql::{Column, Dialect, Table},
    },
};

const fn alone(token: u64) -> Pass {
    Pass::exclusive(FencingToken::new(token))
}

const fn together(token: u64) -> Pass {
    Pass::shared(FencingToken::new(token))
}

/// A database file with a table of marks and one of what was written.
struct Books {
    folder: TempDir,
    fence: Table,
}

impl Books {
    fn new(journal: &str) -> Self {
        let books = Self {
            folder: tempfile::tempdir().unwrap(),
            fence: Table::new("fence", Dialect::Sqlite).unwrap(),
        };
        let db = books.open();
        db.pragma_update(None, "journal_mode", journal).unwrap();
        db.execute_batch(&books.fence.create()).unwrap();
        db.execute_batch(&books.fence.create()).unwrap();
        db.execute_batch("CREATE TABLE entry (at INTEGER PRIMARY KEY, token BIGINT)").unwrap();
        books
    }

    fn open(&self) -> Connection {
        let db = Connection::open(self.folder.path().join("books.db")).unwrap();
        db.busy_timeout(Duration::from_secs(20)).unwrap();
        db
    }

    /// The mark after the touch, if it was let in.
    fn touch(&self, transaction: &Transaction<'_>, pass: Pass) -> Option<i64> {
        let parameters = ("books", number(pass));
        transaction.query_row(&self.fence.touch(pass), parameters, |row| row.get(0)).optional().unwrap()
    }

    /// Touches and writes in one transaction; whether it was let in.
    fn enter(&self, db: &mut Connection, pass: Pass) -> bool {
        let transaction = db.transaction_with_behavior(Immediate).unwrap();
        if self.touch(&transaction, pass).is_none() {
            return false;
        }
        write(&transaction, pass).unwrap();
        transaction.commit().unwrap();
        true
    }

    fn entries(&self) -> Vec<u64> {
        let db = self.open();
        let mut all = db.prepare("SELECT token FROM entry ORDER BY at").unwrap();
        all.query_map((), |row| row.get::<_, i64>(0))
            .unwrap()
            .map(|token| token.unwrap().unsigned_abs())
            .collect()
    }
}

/// Its token, as SQLite takes it.
fn number(pass: Pass) -> i64 {
    pass.token().get().try_into().unwrap()
}

fn write(db: &Connection, pass: Pass) -> rusqlite::Result<usize> {
    db.execute("INSERT INTO entry (token) VALUES (?1)", [number(pass)])
}

/// L3, hazard 50: the rule, from a resource that nobody has been at, and with tokens that are too large for a float.
#[test]
fn a_table_of_marks_lets_in_whom_the_rule_lets_in() {
    let books = Books::new("WAL");
    let mut db = books.open();
    let big = 1 << 53;
    let largest = i64::MAX.unsigned_abs();
    assert!(!books.enter(&mut db, together(5)), "not registered: nothing to lock");
    assert!(books.enter(&mut db, alone(7)), "an exclusive holder needs no registration");
    db.execute(&books.fence.register(), ["books"]).unwrap();
    for (pass, is_let_in) in [
        (alone(6), false),
        (alone(7), true),
        (together(9), true),
        (together(7), true),
        (together(6), false),
        (alone(8), true),
        (together(7), false),
        (alone(big + 1), true),
        (alone(big), false),
        (together(big), false),
        (alone(largest), true),
        (alone(largest - 1), false),
    ] {
        assert_eq!(books.enter(&mut db, pass), is_let_in, "{pass:?}");
    }
    assert_eq!(books.entries(), [7, 7, 9, 7, 8, big + 1, largest]);
}

#[test]
fn what_is_registered_lets_everybody_in_until_an_exclusive_holder_comes() {
    let books = Books::new("WAL");
    let mut db = books.open();
    for _ in 0..2 {
        assert!(db.execute(&books.fence.register(), ["books"]).unwrap() <= 1);
    }
    assert!(books.enter(&mut db, together(5)) && books.enter(&mut db, together(3)));
    assert!(books.enter(&mut db, alone(4)) && !books.enter(&mut db, together(3)));
    db.execute(&books.fence.register(), ["books"]).unwrap();
    assert!(!books.enter(&mut db, together(3)), "registering again lowers nothing");
}

/// L3: the mark belongs to the transaction of the write; one that is rolled back has raised nothing.
#[test]
fn a_transaction_that_is_rolled_back_raises_no_mark() {
    let books = Books::new("WAL");
    let mut db = books.open();
    let transaction = db.transaction_with_behavior(Immediate).unwrap();
    assert_eq!(books.touch(&transaction, alone(8)), Some(8));
    transaction.rollback().unwrap();
    assert!(books.enter(&mut db, alone(7)));
}

/// L3: what is in the row goes with its mark, and a refused statement changes no row.
#[test]
fn a_column_refuses_a_former_holder() {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch(
        "CREATE TABLE report (body TEXT, seen INTEGER DEFAULT 0, mark BIGINT NOT NULL DEFAULT 0)",
    )
    .unwrap();
    db.execute_batch("INSERT INTO report (body) VALUES ('')").unwrap();
    let mark = Column::new("mark", ":token").unwrap();
    let write = |pass: Pass, body: &str| {
        let sql =
            format!("UPDATE report SET body = :body, {} WHERE {}", mark.assignment(pass), mark.condition());
        db.execute(&sql, rusqlite::named_params! { ":body": body, ":token": number(pass) }).unwrap()
    };
    let text = || db.query_row("SELECT body || mark FROM report", (), |row| row.get::<_, String>(0)).unwrap();
    assert_eq!((write(alone(7), "a"), text().as_str()), (1, "a7"));
    assert_eq!((write(together(9), "b"), text().as_str()), (1, "b7"));
    assert_eq!((write(alone(8), "c"), text().as_str()), (1, "c8"));
    assert_eq!((write(alone(7), "d"), text().as_str()), (0, "c8"));
    assert_eq!((write(together(7), "e"), text().as_str()), (0, "c8"));
}

/// L3: with writers that all believe they hold, nothing is written after what a later holder wrote.
#[test]
fn among_many_connections_the_tokens_of_what_is_written_never_fall() {
    let books = Books::new("WAL");
    let refused: usize = thread::scope(|scope| {
        let writers: Vec<_> = (1..=4)
            .map(|first| {
                let (books, mut db) = (&books, books.open());
                let visit = move |turn: u64| !books.enter(&mut db, alone(first + 4 * turn));
                scope.spawn(move || (0..50).map(visit).filter(|is_refused| *is_refused).count())
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    let entries = books.entries();
    assert!(entries.is_sorted(), "{entries:?}");
    assert_eq!((entries.len() + refused, entries.last()), (200, Some(&200)));
}

/// L3, hazard 51: a check and a later write of one plain transaction, and a raise that wants to get between them. Either
/// the raise waits, or the write fails.
#[test]
fn nobody_raises_between_the_check_and_the_write_of_a_plain_transaction() {
    for journal in ["WAL", "DELETE"] {
        let books = Books::new(journal);
        let (mut holder, mut later) = (books.open(), books.open());
        for db in [&holder, &later] {
            db.busy_timeout(Duration::ZERO).unwrap();
        }
        holder.execute(&books.fence.register(), ["books"]).unwrap();

        let former = holder.transaction_with_behavior(Deferred).unwrap();
        assert_eq!(books.touch(&former, together(5)), Some(0));
        let transaction = later.transaction_with_behavior(Immediate).unwrap();
        books.touch(&transaction, alone(6)).unwrap();
        write(&transaction, alone(6)).unwrap();
        let has_passed = transaction.commit();
        let was_late = write(&former, together(5)).and_then(|_| former.commit());

        let busy = |answer: &rusqlite::Result<()>| {
            answer.as_ref().is_err_and(|e| e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy))
        };
        let expected = if journal == "WAL" { vec![6] } else { vec![5] };
        assert_eq!((busy(&has_passed), busy(&was_late)), (journal != "WAL", journal == "WAL"), "{journal}");
        assert_eq!(books.entries(), expected, "{journal}");
    }
}

/// L3: in a table that is named `excluded` the row was compared with itself, and every former holder was let in.
#[test]
fn a_table_may_be_named_as_the_new_row_is() {
    for name in ["excluded", "main.EXCLUDED", "fenced", "mark", "resource"] {
        let fence = Table::new(name, Dialect::Sqlite).unwrap();
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(&fence.create()).unwrap();
        let touch = |pass| {
            let mark = db.query_row(&fence.touch(pass), ("books", number(pass)), |row| row.get::<_, i64>(0));
            mark.optional().unwrap()
        };
        let marks = [alone(8), alone(7), together(8), together(7), alone(9)].map(touch);
        assert_eq!(marks, [Some(8), None, Some(8), None, Some(9)], "{name}");
    }
}

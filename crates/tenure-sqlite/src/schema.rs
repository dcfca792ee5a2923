//! Opening the file: is it Tenure's, is it new, is it the one in the guard?

use std::{path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags, config::DbConfig};
use tenure_core::{BackendError, ErrorKind, Host, Moment, Timing};
use tenure_ledger::{Ledger, Rules};

use crate::{
    clock::{LeaseClock, micros},
    config::Config,
    error::{self, RowError, replaced_meanwhile},
    file::{
        FileId, LogFiles, Names, create, has_log, is_blank, is_link, refuse_second_worlds, remove_leftovers,
    },
    front::add_place,
    guard::{self, GuardRecord, LostLog, Precaution},
    link::{Anchor, FileConnection, FolderLock},
    room, sql,
    unsigned::Unsigned,
};

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) conn: FileConnection,
    pub(crate) names: Names,
    pub(crate) guard: GuardRecord,
    /// Nothing is granted before this point on the lease clock.
    pub(crate) opens_us: u64,
}

/// What the table `meta` of a file contains.
pub(crate) struct Meta {
    clock: String,
    pub(crate) world: String,
    pub(crate) opens_us: u64,
}

/// The file that is being opened, and the client's host and clock.
struct FileOpening<'a> {
    path: &'a Path,
    file: FileId,
    /// The log and the shared memory that were at their names before SQLite opened any.
    log_files: Option<LogFiles>,
    host: &'a dyn Host,
    clock: &'a LeaseClock,
}

/// Opens the file, or makes it if `may_create`; `None` if there is none and it may not be made.
pub(crate) fn open(
    config: &Config,
    host: &dyn Host,
    clock: &LeaseClock,
    may_create: bool,
) -> Result<Option<OpenFile>, BackendError> {
    let path = config.path.as_path();
    if is_link(path) {
        let message = "the path of the database is a symbolic link, and the files beside its target would be missed; \
                       use the path of the file itself";
        return Err(error::refused(path, ErrorKind::Invalid, message));
    }
    if FileId::of(path)?.is_none() && !may_create {
        return Ok(None);
    }
    if let Some(refusal) = refusal_of(rusqlite::version_number()) {
        return Err(error::refused(path, ErrorKind::Unsupported, refusal));
    }
    if let Some(refusal) = clock.refusal() {
        return Err(error::refused(path, ErrorKind::Unsupported, refusal));
    }
    // At the same time as other processes, as long as there is nothing to change.
    let open_beside_others = || open_under(FolderLock::shared(path)?, path, host, clock);
    if let Some(open) = open_beside_others()? {
        return Ok(Some(open));
    }
    if let Some(ready) = open_under(FolderLock::exclusive(path)?, path, host, clock)? {
        room::make(&ready.conn, path);
        ready.conn.close_beside_its_log();
    }
    open_beside_others()?.map(Some).ok_or_else(|| replaced_meanwhile(path))
}

/// Why the SQLite of this version is refused. The number is that of `sqlite3_libversion_number`.
fn refusal_of(linked: i32) -> Option<String> {
    let said = |number: i32| format!("{}.{}.{}", number / 1_000_000, number / 1000 % 1000, number % 1000);
    (linked < OLDEST_SQLITE).then(|| {
        format!(
            "this program is linked with SQLite {}, and tenure needs {} or later; upgrade the system's, or build without \
             LIBSQLITE3_SYS_USE_PKG_CONFIG, with the one that is compiled in",
            said(linked),
            said(OLDEST_SQLITE)
        )
    })
}

/// If the file or its log has vanished, a failure is worth another attempt.
fn unless_replaced<'a>(opening: &FileOpening<'a>) -> impl Fn(BackendError) -> BackendError + 'a {
    let &FileOpening { path, file, log_files, .. } = opening;
    move |error| match (FileId::of(path), LogFiles::of(path)) {
        (Ok(there), _) if there != Some(file) => replaced_meanwhile(path),
        (_, Ok(there)) if log_files.is_some() && there != log_files => replaced_meanwhile(path),
        _ => error,
    }
}

/// Opens the file under this lock; `None` if that needs the exclusive lock.
fn open_under(
    lock: FolderLock,
    path: &Path,
    host: &dyn Host,
    clock: &LeaseClock,
) -> Result<Option<OpenFile>, BackendError> {
    if is_blank(path) {
        if !lock.is_exclusive() {
            return Ok(None);
        }
        create(path)?;
    }
    let Some(file) = FileId::of(path)? else { return Err(replaced_meanwhile(path)) };
    let opening = FileOpening { path, file, log_files: LogFiles::of(path)?, host, clock };
    let anchor = Anchor::of(file);
    // Two files with this name, one after the other, would share a log: an unknown file is opened under the exclusive lock.
    let is_known = match GuardRecord::read(path).ok().flatten().filter(|guard| guard.file == file) {
        Some(guard) => has_known_log(&guard, &anchor, &opening, lock.is_exclusive())?,
        None => false,
    };
    // A log is made under it, too, and left: only if the log existed before is it certain which one a connection opens.
    if !lock.is_exclusive() && (!is_known || opening.log_files.is_none()) {
        return Ok(None);
    }
    refuse_second_worlds(path).map_err(unless_replaced(&opening))?;
    let conn = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(|e| error::before_commit(path, e))
    .map_err(unless_replaced(&opening))?;
    let mut conn = FileConnection::new(conn, path, anchor, lock);
    let settled = settle(&mut conn, &opening).map_err(unless_replaced(&opening))?;
    let Some((guard, log_files)) = settled else { return Ok(None) };
    // Only now is it certain that SQLite has opened it: was it this file? And newcomers now see which log it has: was it
    // this one until now?
    if FileId::of(path)? != Some(file) || LogFiles::of(path)? != Some(log_files) {
        return Err(replaced_meanwhile(path));
    }
    let meta = read_meta(&conn).map_err(|e| error::before_commit(path, e))?;
    conn.set_prepared_statement_cache_capacity(sql::STATEMENTS);
    conn.opened();
    Ok(Some(OpenFile {
        conn,
        names: Names::new(path, GuardRecord::path(path), file, log_files),
        guard,
        opens_us: meta.opens_us,
    }))
}

/// Whether all processes that have this file open have the log that is at its name. If not, and this process has the
/// exclusive lock, the loss is recorded. The file may be opened once no process can be writing to the lost log.
fn has_known_log(
    guard: &GuardRecord,
    anchor: &Anchor,
    opening: &FileOpening<'_>,
    is_alone: bool,
) -> Result<bool, BackendError> {
    let &FileOpening { path, file, host, clock, .. } = opening;
    // SQLite would give this connection the shared memory that the other connections of this process have.
    if guard::is_other_log_open(path, file)? {
        return Err(replaced_meanwhile(path));
    }
    let others = anchor.others(path)?;
    let verdict = guard::judge(guard, others);
    if verdict == Precaution::Lost && is_alone {
        guard::remember_lost_log(path, file, host, clock)?;
        if others.are_elsewhere {
            guard::must_be_settled(path, host, clock)?;
        }
    }
    Ok(verdict == Precaution::Known)
}

/// Sets up a file that is new, and compares it with the guard. Returns `None` if something must be written, and this process
/// does not have the exclusive lock.
fn settle(
    conn: &mut FileConnection,
    opening: &FileOpening<'_>,
) -> Result<Option<(GuardRecord, LogFiles)>, BackendError> {
    let &FileOpening { path, file, clock, .. } = opening;
    let sqlite = |e| error::before_commit(path, e);
    conn.busy_timeout(Duration::ZERO).map_err(sqlite)?;
    // With this, plans do not depend on the values of parameters. Otherwise a cached statement is parsed again for each new
    // value: a sixth of the cost of a cycle.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(sqlite)?;
    // Tenure must not move another program's log into its file. A log that only this reading makes is removed.
    let keep_log =
        |keep| conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map_err(sqlite);
    keep_log(has_log(path))?;
    // Before anything is read, because reading in WAL mode makes files next to the database.
    if conn.is_readonly(rusqlite::MAIN_DB).map_err(sqlite)? {
        return Err(error::refused(
            path,
            ErrorKind::Denied,
            "the database file is read-only; give this user write permission",
        ));
    }
    let is_fresh = check_ownership(conn, path)?;
    keep_log(false)?;
    let has_log = journal_mode(conn, "PRAGMA journal_mode").map_err(sqlite)? == WAL;
    let is_ready = !is_fresh && has_log && is_current(conn).map_err(sqlite)?;
    if !is_ready && !conn.is_alone() {
        return Ok(None);
    }
    if is_fresh || !has_log {
        prepare(conn, path, file)?;
    }
    let log_files = conn.hold()?;
    if !conn.is_alone() && opening.log_files != Some(log_files) {
        return Err(replaced_meanwhile(path));
    }
    if !is_fresh && !is_ready {
        in_transaction(conn, path, || migrate(conn, path))?;
    }
    // A log that grew because of a long reader is truncated after the reader has ended.
    conn.execute_batch("PRAGMA journal_size_limit = 4194304").map_err(sqlite)?;
    // No commit of a lease is flushed. Where `fsync` does not flush everything (Apple's systems), the other flushes are
    // complete ones.
    conn.execute_batch("PRAGMA fullfsync = ON")
        .and_then(|()| conn.execute_batch(sql::FLUSH_CHECKPOINTS))
        .map_err(sqlite)?;
    if !is_fresh {
        let meta = read_meta(conn).map_err(sqlite)?;
        let is_known = |guard: &GuardRecord| {
            is_known(guard, &meta, file) && meta.clock == clock.id() && guard.knows_log(log_files.number())
        };
        if let Some(guard) = GuardRecord::read(path)?.filter(is_known) {
            return Ok(Some((guard, log_files)));
        }
    }
    if !conn.is_alone() {
        return Ok(None);
    }
    Ok(Some((become_ours(conn, opening)?, log_files)))
}

/// Makes sure that a file without tables shares no log with an older one of its name, and turns its own log on. If another
/// program has turned it off, it is turned on again: without it readers and writers block each other.
///
/// Once this connection has SQLite's exclusive lock, no other connection has this file open. Under Tenure's exclusive lock
/// of the directory, no other file appears here.
fn prepare(conn: &Connection, path: &Path, file: FileId) -> Result<(), BackendError> {
    let sqlite = |e| error::before_commit(path, e);
    if is_blank(path) {
        conn.execute_batch("BEGIN EXCLUSIVE").map_err(sqlite)?;
        let is_same = FileId::of(path)? == Some(file) && is_blank(path);
        let removed = if is_same { remove_leftovers(path) } else { Err(replaced_meanwhile(path)) };
        conn.execute_batch(sql::ROLLBACK).map_err(sqlite)?;
        removed?;
    }
    if journal_mode(conn, "PRAGMA journal_mode = WAL").map_err(sqlite)? != WAL {
        let message = "SQLite cannot use its WAL mode here; put the database on a local file system";
        return Err(error::refused(path, ErrorKind::Unsupported, message));
    }
    // Only a read opens the log.
    is_current(conn).map(drop).map_err(sqlite)
}

/// Reads to the end: SQLite returns a new mode first, and commits it after that, where the disk may be full.
fn journal_mode(conn: &Connection, pragma: &str) -> rusqlite::Result<String> {
    let modes: rusqlite::Result<Vec<String>> =
        conn.prepare(pragma)?.query_map([], |row| row.get(0))?.collect();
    modes?.pop().ok_or(rusqlite::Error::QueryReturnedNoRows)
}

fn become_ours(conn: &FileConnection, opening: &FileOpening<'_>) -> Result<GuardRecord, BackendError> {
    let path = opening.path;
    let guard = in_transaction(conn, path, || adopt(conn, opening))?;
    // In a second transaction: until the guard is written, each process that opens the file finds the mismatch again, and
    // waits again. What other processes have recorded in between is kept.
    in_transaction(conn, path, || {
        if FileId::of(path)? != Some(opening.file) {
            return Err(replaced_meanwhile(path));
        }
        let remembered = GuardRecord::read(path)?.map_or(0, |guard| guard.max_ttl_ms);
        let guard = GuardRecord { max_ttl_ms: guard.max_ttl_ms.max(remembered), ..guard };
        guard.write(path, opening.host).map(|()| guard)
    })
}

fn in_transaction<A>(
    conn: &FileConnection,
    path: &Path,
    work: impl FnOnce() -> Result<A, BackendError>,
) -> Result<A, BackendError> {
    let _lock = conn.write_lock().ok_or_else(|| error::busy(path))?;
    conn.execute_batch(sql::BEGIN).map_err(|e| error::before_commit(path, e))?;
    let done = work().and_then(|answer| {
        conn.execute_batch(sql::COMMIT).map(|()| answer).map_err(|e| error::at_commit(path, e))
    });
    done.inspect_err(|_| {
        // Fails only if SQLite has rolled back already.
        let _ = conn.execute_batch(sql::ROLLBACK);
    })
}

/// True if the file is empty; an error, and no change, if it belongs to another program.
fn check_ownership(conn: &Connection, path: &Path) -> Result<bool, BackendError> {
    let number = |pragma: &str| conn.query_row(pragma, [], |row| row.get::<_, i64>(0));
    // One snapshot: another process may be making the tables at the same time.
    let read = || -> rusqlite::Result<(i64, i64, i64)> {
        let snapshot = if conn.is_autocommit() { Some(conn.unchecked_transaction()?) } else { None };
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        let facts = (number("PRAGMA application_id")?, number("PRAGMA user_version")?, tables);
        snapshot.map_or(Ok(()), rusqlite::Transaction::commit)?;
        Ok(facts)
    };
    let (application, version, tables) = read().map_err(|e| error::before_commit(path, e))?;
    if (application, version, tables) == (0, 0, 0) {
        return Ok(true);
    }
    if application != i64::from(sql::APPLICATION_ID) {
        return Err(error::refused(
            path,
            ErrorKind::Invalid,
            "the file is the SQLite database of another program; name another file",
        ));
    }
    if version != i64::from(sql::SCHEMA_VERSION) && !is_old(version) {
        let known = sql::SCHEMA_VERSION;
        let message = format!(
            "the database has schema {version}, this tenure knows {known}; upgrade tenure or name another file"
        );
        return Err(error::refused(path, ErrorKind::Unsupported, message));
    }
    Ok(false)
}

fn is_current(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("PRAGMA user_version", [], |row| row.get::<_, i32>(0))
        .map(|version| version == sql::SCHEMA_VERSION)
}

pub(crate) fn read_meta(conn: &Connection) -> rusqlite::Result<Meta> {
    conn.query_row(sql::READ_META, [], |row| {
        let Unsigned(opens_us) = row.get(2)?;
        Ok(Meta { clock: row.get(0)?, world: row.get(1)?, opens_us })
    })
}

fn is_known(guard: &GuardRecord, meta: &Meta, file: FileId) -> bool {
    guard.world == meta.world && guard.file == file
}

/// Inside a write transaction: makes the tables, and ends the leases of another boot. If the file has taken the place of
/// another one, grants nothing for a time. Returns what to write into the guard.
fn adopt(conn: &FileConnection, opening: &FileOpening<'_>) -> Result<GuardRecord, BackendError> {
    let &FileOpening { path, file, host, clock, .. } = opening;
    let sqlite = |e| error::before_commit(path, e);
    let remembered = GuardRecord::read(path)?;
    if check_ownership(conn, path)? {
        make(conn, host, clock).map_err(sqlite)?;
    } else {
        migrate(conn, path)?;
    }
    let meta = read_meta(conn).map_err(sqlite)?;
    let now = clock.now(host);
    if meta.clock != clock.id() {
        let furthest = now.boot + longest(remembered.as_ref());
        end_other_boots(conn, path, furthest)?;
        conn.execute(sql::SET_CLOCK, (clock.id(), Unsigned(micros(furthest)))).map_err(sqlite)?;
    }
    let max_ttl_ms = remembered.as_ref().map_or(0, |guard| guard.max_ttl_ms);
    // Since when nothing is granted in the file or log that is lost.
    let since = remembered.as_ref().and_then(|remembered| match remembered.lost_log {
        _ if !is_known(remembered, &meta, file) => Some(now.boot),
        Some(LostLog::Seen { .. }) => Some(guard::seen_at(remembered, clock).unwrap_or(now.boot)),
        _ => None,
    });
    if let Some(since) = since {
        let opens = since + Duration::from_millis(max_ttl_ms);
        conn.execute(sql::SET_OPENS, [Unsigned(micros(opens))]).map_err(sqlite)?;
    }
    let others = conn.others()?;
    let number = others.number.filter(|_| others.are_elsewhere);
    let lost_log = number.map(|number| LostLog::WaitedFor { number });
    Ok(GuardRecord { world: meta.world, file, max_ttl_ms, lost_log })
}

/// The schemas that `migrate` knows, other than that of this version.
fn is_old(version: i64) -> bool {
    version == i64::from(sql::SCHEMA_WITHOUT_PLACES)
}

/// Inside a write transaction: gives every place a separate row. Holders, fences and the order of the queues stay.
///
/// An older Tenure that has the file open continues to write places into the row of the lock, where this version does not
/// read them. Its waiters may lose their places, but no lease is lost, and exclusion holds.
fn migrate(conn: &Connection, path: &Path) -> Result<(), BackendError> {
    let version: i64 = conn
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(|e| error::before_commit(path, e))?;
    if is_old(version) { move_places(conn).map_err(|e| error::row(path, e)) } else { Ok(()) }
}

fn move_places(conn: &Connection) -> Result<(), RowError> {
    conn.execute_batch(sql::PLACES)?;
    let mut all = conn.prepare(sql::ALL_BUSY)?;
    let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for (name, state) in rows.collect::<rusqlite::Result<Vec<(String, String)>>>()? {
        // A client that asks for a lock with an unreadable row gets the error; other locks are not affected.
        let Ok(mut ledger) = Ledger::decode(&state) else { continue };
        for place in ledger.take_queue() {
            add_place(conn, &name, &place)?;
        }
        conn.execute(sql::WRITE_STATE, (name, ledger.encode()))?;
    }
    conn.pragma_update(None, "user_version", sql::SCHEMA_VERSION)?;
    Ok(())
}

fn make(conn: &Connection, host: &dyn Host, clock: &LeaseClock) -> rusqlite::Result<()> {
    let mut bits = [0; 16];
    host.random(&mut bits);
    let world = format!("{:032x}", u128::from_be_bytes(bits));
    conn.execute_batch(sql::SCHEMA)?;
    conn.execute_batch(sql::PLACES)?;
    conn.execute(sql::NEW_META, (clock.id(), &world))?;
    conn.pragma_update(None, "application_id", sql::APPLICATION_ID)?;
    conn.pragma_update(None, "user_version", sql::SCHEMA_VERSION)
}

/// No lease or place of this boot ends later than this from now.
fn longest(remembered: Option<&GuardRecord>) -> Duration {
    let ttl = remembered.map_or(Timing::MAX_TTL, |guard| Duration::from_millis(guard.max_ttl_ms));
    ttl.max(Rules::default().place_ttl)
}

/// Under another boot id: ends what ends later than anything of this boot can. The clock that counts suspend never goes back
/// in one boot. So it was granted in another boot, whose holders have all ended. What could be of this boot is kept until it
/// expires, because a container may have its own boot id. The wall clock proves nothing, because it may be stepped. Fences
/// stay.
fn end_other_boots(conn: &Connection, path: &Path, furthest: Duration) -> Result<(), BackendError> {
    let sqlite = |e| error::before_commit(path, e);
    conn.execute(sql::FORGET_PLACES, [Unsigned(micros(furthest))]).map_err(sqlite)?;
    let mut all = conn.prepare(sql::ALL_BUSY).map_err(sqlite)?;
    let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(sqlite)?;
    let rows: Vec<(String, String)> = rows.collect::<rusqlite::Result<_>>().map_err(sqlite)?;
    for (name, state) in rows {
        let mut ledger = Ledger::decode(&state).map_err(|e| error::ledger(path, e))?;
        ledger.forget_leases_beyond(furthest);
        conn.execute(sql::WRITE_LOCK, (name, !ledger.is_free(), 0, ledger.encode())).map_err(sqlite)?;
    }
    conn.execute(sql::BUSY_BY_PLACES, []).map(drop).map_err(sqlite)
}

/// How long until locks are granted, if they are not yet.
pub(crate) fn until_open(open: &OpenFile, now: Moment) -> Option<Duration> {
    Some(Duration::from_micros(open.opens_us.saturating_sub(micros(now.boot)))).filter(|left| !left.is_zero())
}

const WAL: &str = "wal";
/// The oldest SQLite that the tests of this crate were run with, 3.40.1 (`docs/decisions/sqlite-driver.md`). `STRICT` alone
/// needs 3.37.
const OLDEST_SQLITE: i32 = 3_040_001;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sqlite_that_is_older_than_the_tested_ones_is_refused_in_one_line() {
        let refusal = refusal_of(3_037_002).unwrap();
        for part in ["linked with SQLite 3.37.2,", "needs 3.40.1 or later;", "upgrade the system's"] {
            assert!(refusal.contains(part) && refusal.lines().count() == 1, "{refusal}");
        }
        assert!(refusal_of(OLDEST_SQLITE - 1).is_some());
    }

    #[test]
    fn a_tested_sqlite_and_a_newer_one_are_taken() {
        for number in [OLDEST_SQLITE, 3_046_000, 4_000_000, rusqlite::version_number()] {
            assert_eq!(refusal_of(number), None, "{number}");
        }
    }
}

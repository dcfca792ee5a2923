//! The SQL statements.

/// Marks a database as Tenure's: "tnur".
pub(crate) const APPLICATION_ID: i32 = 0x746e_7572;
/// Not fewer than are below: a statement that is not cached is parsed each time.
pub(crate) const STATEMENTS: usize = 64;
/// The schema this version knows.
pub(crate) const SCHEMA_VERSION: i32 = 2;
/// The schema that kept the places of a lock in its row.
pub(crate) const SCHEMA_WITHOUT_PLACES: i32 = 1;

/// * `lock`: one row per lock, its ledger without the queue. `busy` is 0 if there is no holder and no waiter; `used_s` is
///   the wall clock of the last write.
/// * `wake`: hints for processes that poll; the last 1000 are kept.
/// * `meta`: one row. `clock` is the id of the clock by which ledgers count, `world` a random id of this file. Before
///   `opens_us` nothing is granted. `floor` is no smaller than the fence of any row that was swept; `swept` is the name that
///   the sweep has reached.
pub(crate) const SCHEMA: &str = "
    CREATE TABLE lock (
        name TEXT PRIMARY KEY, busy INTEGER NOT NULL, used_s INTEGER NOT NULL, state TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE wake (
        seq INTEGER PRIMARY KEY, process TEXT NOT NULL, audience INTEGER NOT NULL, owner TEXT NOT NULL
    ) STRICT;
    CREATE TABLE meta (
        one INTEGER PRIMARY KEY CHECK (one = 1), clock TEXT NOT NULL, world TEXT NOT NULL, opens_us INTEGER NOT NULL,
        floor INTEGER NOT NULL, swept TEXT NOT NULL
    ) STRICT;
";

/// One row per place; the numbers are the order of the places of a lock. `turn` is 0 for a place that is only notified.
/// `state` has its owner and mode. It was written when the place was taken: only `ends_us` shows until when it is kept.
pub(crate) const PLACES: &str = "
    CREATE TABLE place (
        name TEXT NOT NULL, number INTEGER NOT NULL, owner TEXT NOT NULL, turn INTEGER NOT NULL, ends_us INTEGER NOT NULL,
        state TEXT NOT NULL, PRIMARY KEY (name, number)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX place_owner ON place (owner, name);
";

pub(crate) const WRITE_STATE: &str = "UPDATE lock SET state = ?2 WHERE name = ?1";

pub(crate) const BEGIN_READING: &str = "BEGIN";
pub(crate) const BEGIN: &str = "BEGIN IMMEDIATE";
pub(crate) const COMMIT: &str = "COMMIT";
pub(crate) const ROLLBACK: &str = "ROLLBACK";

/// The log is flushed before it is moved into the database, and the database before the log restarts. No transaction may be
/// open.
pub(crate) const FLUSH_CHECKPOINTS: &str = "PRAGMA synchronous = NORMAL";
/// Moves what no reader needs. Returns how long the log was, and how much of it is in the database.
pub(crate) const MOVE_LOG: &str = "PRAGMA wal_checkpoint(PASSIVE)";

/// Adds [`ADDED_PAGES`] free pages, if SQLite overwrites what is deleted.
pub(crate) const MAKE_ROOM: &str = "
    BEGIN IMMEDIATE;
    CREATE TABLE room (bytes BLOB NOT NULL) STRICT;
    INSERT INTO room SELECT zeroblob(64 * page_size) FROM pragma_page_size;
    DROP TABLE room;
    COMMIT;
";
pub(crate) const OVERWRITE_DELETED: &str = "PRAGMA secure_delete = ON";
pub(crate) const LEAVE_DELETED: &str = "PRAGMA secure_delete = OFF";
pub(crate) const ADDED_PAGES: u64 = 64;
/// How many pages the database has, and how long one is.
pub(crate) const PAGES: &str = "SELECT page_count, page_size FROM pragma_page_count, pragma_page_size";
pub(crate) const FREE_PAGES: &str = "PRAGMA freelist_count";

pub(crate) const NEW_META: &str = "INSERT INTO meta VALUES (1, ?1, ?2, 0, 0, '')";
pub(crate) const READ_META: &str = "SELECT clock, world, opens_us FROM meta";
/// A wait that ends later than ?2 is one of another boot.
pub(crate) const SET_CLOCK: &str = "UPDATE meta SET clock = ?1, opens_us = iif(opens_us > ?2, 0, opens_us)";
pub(crate) const SET_OPENS: &str = "UPDATE meta SET opens_us = max(opens_us, ?1)";
pub(crate) const READ_OPENS: &str = "SELECT opens_us FROM meta";
pub(crate) const READ_FLOOR: &str = "SELECT floor FROM meta";

/// Also reads whether there are waiters: mostly there are none, and a separate statement costs more.
pub(crate) const READ_LOCK: &str =
    "SELECT busy, state, EXISTS (SELECT 1 FROM place WHERE name = ?1) FROM lock WHERE name = ?1";
/// A free lock's row is kept for its fence until it is swept (H6.4).
pub(crate) const ADD_LOCK: &str = "INSERT INTO lock VALUES (?1, ?2, ?3, ?4)";
pub(crate) const WRITE_LOCK: &str = "UPDATE lock SET busy = ?2, used_s = ?3, state = ?4 WHERE name = ?1";
/// Only if the state of the row is still ?5, and there is no waiter.
pub(crate) const WRITE_LOCK_AT_ONCE: &str = "
    UPDATE lock SET busy = ?2, used_s = ?3, state = ?4
    WHERE name = ?1 AND state = ?5 AND NOT EXISTS (SELECT 1 FROM place WHERE name = ?1)";
pub(crate) const LIST: &str = "
    SELECT name FROM lock WHERE busy = 1 AND substr(name, 1, length(?1)) = ?1 ORDER BY name";
pub(crate) const EVERY_LOCK: &str = "SELECT name, state FROM lock";
pub(crate) const ALL_BUSY: &str = "SELECT name, state FROM lock WHERE busy = 1";

/// `LIMIT -1` is no limit.
pub(crate) const READ_FRONT: &str =
    "SELECT number, ends_us, state FROM place WHERE name = ?1 ORDER BY number LIMIT ?2";
pub(crate) const READ_PLACE: &str = "SELECT number, ends_us, state FROM place WHERE owner = ?2 AND name = ?1";
pub(crate) const NEXT_PLACE: &str = "
    SELECT coalesce(max(number), ?2) + 1 FROM place WHERE name = ?1 AND number >= ?2 AND number < ?3";
pub(crate) const COUNT_TURNS: &str = "
    SELECT count(*) FROM (SELECT 1 FROM place
    WHERE name = ?1 AND number > ?2 AND number < ?3 AND turn = 1 AND ends_us > ?4 LIMIT ?5)";
pub(crate) const COUNT_PLACES: &str = "
    SELECT count(*) FROM (SELECT 1 FROM place
    WHERE name = ?1 AND number > ?2 AND number < ?3 AND ends_us > ?4 LIMIT ?5)";
pub(crate) const ADD_PLACE: &str = "
    INSERT INTO place SELECT ?1, coalesce(max(number), ?6) + 1, ?2, ?3, ?4, ?5 FROM place
    WHERE name = ?1 AND number >= ?6 AND number < ?7";
pub(crate) const KEEP_PLACE: &str = "UPDATE place SET ends_us = ?3 WHERE name = ?1 AND number = ?2";
pub(crate) const REMOVE_PLACE: &str = "DELETE FROM place WHERE name = ?1 AND number = ?2";
pub(crate) const FORGET_PLACES: &str = "DELETE FROM place WHERE ends_us > ?1";
pub(crate) const BUSY_BY_PLACES: &str =
    "UPDATE lock SET busy = 1 WHERE busy = 0 AND name IN (SELECT name FROM place)";
pub(crate) const EVERY_PLACE: &str = "SELECT name, state FROM place";

pub(crate) const ADD_WAKE: &str = "INSERT INTO wake (process, audience, owner) VALUES (?1, ?2, ?3)";
/// Never empties the table: the next `seq` is the largest plus one, and only the oldest are missing.
pub(crate) const TRIM_WAKES: &str = "DELETE FROM wake WHERE seq <= (SELECT max(seq) FROM wake) - 1000";
/// What a poll reads: the end of one table and the front of one queue.
pub(crate) const GLANCE: &str = "
    SELECT (SELECT max(seq) FROM wake), (SELECT min(number) FROM place WHERE name = ?1)";
pub(crate) const READ_NUMBER: &str = "SELECT number FROM place WHERE owner = ?2 AND name = ?1";
pub(crate) const OLDEST_WAKE: &str = "SELECT min(seq) FROM wake";
pub(crate) const READ_WAKES: &str = "
    SELECT owner FROM wake WHERE seq > ?1 AND seq <= ?2 AND process = ?3 AND audience = ?4 ORDER BY seq";

pub(crate) const SWEEP_NEXT: &str = "
    SELECT name, busy, used_s FROM lock WHERE name > (SELECT swept FROM meta) ORDER BY name LIMIT 256";
pub(crate) const SWEEP_ONE: &str = "DELETE FROM lock WHERE name = ?1";
pub(crate) const SWEEP_PLACES: &str = "DELETE FROM place WHERE name = ?1";
pub(crate) const SWEPT: &str = "UPDATE meta SET swept = ?1, floor = max(floor, ?2)";

//! Files that are not for us are refused in one line, and nothing in them is touched.

use std::{fs, path::Path, sync::Arc};

use rusqlite::Connection;
use tenure_core::{BackendError, ErrorKind, Outcome};
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{conformance::player::Player, host::PausedHost};

async fn refusal(path: &Path) -> BackendError {
    let player = Player::new(Arc::new(Sqlite::new(Config::new(path), PausedHost::new(1))), "one");
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotApplied, "L9: {error}");
    assert!(!error.to_string().contains('\n'));
    error
}

async fn is_refused_untouched(path: &Path, kind: ErrorKind, part: &str) {
    let before = fs::read(path).unwrap();
    let error = refusal(path).await;
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(part), "{error}");
    assert_eq!(fs::read(path).unwrap(), before, "the file was touched");
    for part in ["-wal", "-shm", "-journal"] {
        assert!(!Path::new(&format!("{}{part}", path.display())).exists(), "{part} was left behind");
    }
}

#[tokio::test(start_paused = true)]
async fn another_programs_database_is_refused_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE customer (name TEXT)").unwrap();
    is_refused_untouched(&path, ErrorKind::Invalid, "another program").await;
}

/// Nor is its log moved into its file: that program will do so itself.
#[tokio::test(start_paused = true)]
async fn another_programs_unfinished_log_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (path, log) = (folder.path().join("app.db"), folder.path().join("app.db-wal"));
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE customer (name TEXT)").unwrap();
    conn.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    drop(conn);
    let before = (fs::read(&path).unwrap(), fs::read(&log).unwrap());
    assert_eq!(refusal(&path).await.kind(), ErrorKind::Invalid);
    assert_eq!((fs::read(&path).unwrap(), fs::read(&log).unwrap()), before);
}

#[tokio::test(start_paused = true)]
async fn garbage_is_refused_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "this is no database at all\n".repeat(100)).unwrap();
    is_refused_untouched(&path, ErrorKind::Corrupt, "not an SQLite database").await;
}

#[tokio::test(start_paused = true)]
async fn a_newer_schema_is_refused_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    Player::new(Arc::new(Sqlite::new(Config::new(&path), PausedHost::new(1))), "one").enter().await;
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch("PRAGMA user_version = 3; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(raw);
    is_refused_untouched(&path, ErrorKind::Unsupported, "schema 3, this tenure knows 2").await;
}

#[tokio::test(start_paused = true)]
async fn a_state_that_is_not_ours_is_corrupt_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    Player::new(Arc::new(Sqlite::new(Config::new(&path), PausedHost::new(1))), "one").enter().await;
    let raw = Connection::open(&path).unwrap();
    raw.execute("UPDATE lock SET state = '{}'", []).unwrap();
    assert_eq!(refusal(&path).await.kind(), ErrorKind::Corrupt);
    let state: String = raw.query_row("SELECT state FROM lock", [], |row| row.get(0)).unwrap();
    assert_eq!(state, "{}");
}

/// Somebody else's transaction: busy for a moment, certainly not done, ask again soon.
#[tokio::test(start_paused = true)]
async fn a_locked_database_is_throttled_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let player = Player::new(Arc::new(Sqlite::new(Config::new(&path), PausedHost::new(1))), "one");
    player.enter().await;
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Throttled, Outcome::NotApplied));
    let hint = error.retry_hint().unwrap();
    assert!((1..=5).contains(&hint.as_millis()), "{hint:?}");
    raw.execute_batch("ROLLBACK").unwrap();
    player.enter().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_directory_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = refusal(&folder.path().join("nowhere/locks.db")).await;
    assert_eq!(error.kind(), ErrorKind::Invalid, "not worth waiting for");
    assert!(
        error.to_string().contains("its directory must exist") && error.to_string().contains("nowhere"),
        "{error}"
    );
}

//! How a file and what is beside it are made: for this user alone, through no link, and never over what lives.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::PathBuf,
    sync::Arc,
};

use rusqlite::Connection;
use tempfile::TempDir;
use tenure_core::{Backend, BackendHandle, ErrorKind, Outcome};
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{conformance::player::Player, host::PausedHost};

struct Scene {
    folder: TempDir,
    host: Arc<PausedHost>,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), host: PausedHost::new(1) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self) -> BackendHandle {
        Arc::new(Sqlite::new(Config::new(self.file("locks.db")), self.host.clone()))
    }

    fn player(&self, name: &str) -> Player {
        Player::new(self.open(), name)
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.file(name)).unwrap().mode() & 0o777
    }
}

/// L1: the first user of a new file deleted the log of the second one, which had come meanwhile: two worlds in one file.
/// So nobody makes a file while somebody else opens one, and nothing beside a file that has been written to is deleted.
#[tokio::test(start_paused = true)]
async fn a_file_is_made_by_one_process_at_a_time() {
    let scene = Scene::new();
    let folder = fs::File::open(scene.folder.path()).unwrap();
    folder.lock_shared().unwrap();
    let player = scene.player("one");
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Throttled, Outcome::NotApplied), "{error}");
    assert!(error.retry_hint().is_some() && !scene.file("locks.db").exists());
    folder.unlock().unwrap();
    player.enter().await;
    folder.lock_shared().unwrap();
    scene.player("two").backend.inspect(&player.claim.name).await.unwrap();
    scene.player("two").enter().await;
}

/// L1: a blank file that somebody has open is not made anew beneath him.
#[tokio::test(start_paused = true)]
async fn a_blank_file_that_is_in_use_is_left_alone() {
    let scene = Scene::new();
    fs::write(scene.file("locks.db"), "").unwrap();
    fs::write(scene.file("locks.db-shm"), "of somebody").unwrap();
    let raw = Connection::open(scene.file("locks.db")).unwrap();
    raw.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").unwrap();
    let player = scene.player("one");
    // In this process SQLite itself keeps the two apart.
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Throttled, "{error}");
    assert_eq!(fs::read(scene.file("locks.db-shm")).unwrap(), b"of somebody");
    drop(raw);
    player.enter().await;
}

/// A connection that is closed while somebody opens a file here deletes nothing by its name.
#[tokio::test(start_paused = true)]
async fn the_log_is_tidied_up_only_by_one_who_is_alone() {
    for is_busy in [true, false] {
        let scene = Scene::new();
        let player = scene.player("one");
        player.enter().await;
        let folder = fs::File::open(scene.folder.path()).unwrap();
        if is_busy {
            folder.lock_shared().unwrap();
        }
        drop(player);
        assert_eq!(scene.file("locks.db-wal").exists(), is_busy);
        folder.unlock().unwrap();
        assert_eq!(scene.player("one").backend.list("").await.unwrap().len(), 1, "the lease is there");
    }
}

/// The guard's draft had a name that could be told before, and was written through a link of that name: whoever may
/// write to the directory had a file of the user's emptied.
#[tokio::test(start_paused = true)]
async fn a_planted_draft_is_not_written_through() {
    let scene = Scene::new();
    fs::write(scene.file("victim"), "precious").unwrap();
    for number in 0..64 {
        let draft = format!(".locks.db.guard.{}.{number}", std::process::id());
        symlink(scene.file("victim"), scene.file(&draft)).unwrap();
    }
    scene.player("one").enter().await;
    assert_eq!(fs::read(scene.file("victim")).unwrap(), b"precious");
    let kept = fs::read_dir(scene.folder.path()).unwrap().count();
    assert_eq!(kept, 64 + 3, "the planted ones, the victim, the file and its guard");
}

/// Nor is a guard read through one, or waited for.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_no_plain_file_is_refused() {
    for kind in ["link", "pipe"] {
        let scene = Scene::new();
        fs::write(scene.file("victim"), "secret").unwrap();
        let guard = scene.file(".locks.db.guard");
        match kind {
            "link" => symlink(scene.file("victim"), &guard).unwrap(),
            _ => nix::unistd::mkfifo(&guard, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        }
        let player = scene.player("one");
        let error = player.backend.claim(&player.claim).await.unwrap_err();
        assert!(error.to_string().contains("guard file"), "{kind}: {error}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
}

/// What we make is for this user alone.
#[tokio::test(start_paused = true)]
async fn a_new_database_and_its_guard_are_private() {
    let scene = Scene::new();
    let player = scene.player("one");
    player.enter().await;
    for name in ["locks.db", "locks.db-wal", "locks.db-shm", ".locks.db.guard"] {
        assert_eq!(scene.mode(name), 0o600, "{name}");
    }
}

/// What is there already keeps its mode, and the guard is for those who may use the database.
#[tokio::test(start_paused = true)]
async fn a_database_that_others_share_stays_shared() {
    let scene = Scene::new();
    fs::write(scene.file("locks.db"), "").unwrap();
    fs::set_permissions(scene.file("locks.db"), fs::Permissions::from_mode(0o664)).unwrap();
    let player = scene.player("one");
    player.enter().await;
    for name in ["locks.db", "locks.db-wal", "locks.db-shm", ".locks.db.guard"] {
        assert_eq!(scene.mode(name), 0o664, "{name}");
    }
    let backend = Sqlite::new(Config::new(scene.file("locks.db")), scene.host.clone());
    assert_eq!(backend.diagnose().await.unwrap(), []);
}

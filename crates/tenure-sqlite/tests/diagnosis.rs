//! What `diagnose` finds in a file and around it, and that it finds nothing where there is nothing.

use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rusqlite::Connection;
use tempfile::TempDir;
use tenure_core::{Adopt, Backend, ErrorKind, Finding, Severity, Timing};
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{
    conformance::player::Player,
    host::{PausedHost, pass},
};

struct Scene {
    folder: TempDir,
    host: Arc<PausedHost>,
}

impl Scene {
    /// A folder without a file.
    fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), host: PausedHost::new(1) }
    }

    /// A file in which one lock was taken and given back.
    async fn used() -> Self {
        let scene = Self::empty();
        scene.uses(Timing::DEFAULT_TTL).await;
        scene
    }

    async fn uses(&self, ttl: Duration) {
        let mut player = Player::new(Arc::new(self.open()), "job");
        player.claim.ttl = ttl;
        player.enter().await;
        player.backend.release(&player.claim.name, player.claim.owner).await.unwrap();
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    fn open(&self) -> Sqlite {
        Sqlite::new(Config::new(self.path()), self.host.clone())
    }

    /// What another program sees and does.
    fn raw(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    async fn findings(&self) -> Vec<Finding> {
        self.open().diagnose().await.unwrap()
    }

    /// The only finding; what to do is said, and all in one line.
    async fn finding(&self) -> (Severity, String) {
        let mut findings = self.findings().await;
        assert_eq!(findings.len(), 1, "{findings:?}");
        let Finding { severity, what, remedy, .. } = findings.remove(0);
        assert!(!remedy.is_empty() && !format!("{what}{remedy}").contains('\n'), "{what}: {remedy}");
        (severity, what)
    }
}

#[tokio::test(start_paused = true)]
async fn a_healthy_file_has_no_findings() {
    assert_eq!(Scene::used().await.findings().await, []);
}

/// Nor is it made by looking.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_not_there_yet_is_a_note() {
    let scene = Scene::empty();
    let (severity, what) = scene.finding().await;
    assert!(severity == Severity::Note && what.contains("no file"), "{what}");
    assert!(!scene.path().exists());
}

/// As a claim would say.
#[tokio::test(start_paused = true)]
async fn a_missing_directory_is_an_error() {
    let scene = Scene::empty();
    let path = scene.folder.path().join("nowhere/locks.db");
    let error = Sqlite::new(Config::new(path), scene.host.clone()).diagnose().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("its directory must exist"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_everybody_may_write_to_is_a_warning() {
    let scene = Scene::used().await;
    fs::set_permissions(scene.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (severity, what) = scene.finding().await;
    assert!(severity == Severity::Warning && what.contains("every user may write to"), "{what}");
}

/// Readers and writers would stop each other, and the log would have no locks of ours.
#[tokio::test(start_paused = true)]
async fn a_file_that_was_switched_from_wal_is_switched_back() {
    let scene = Scene::used().await;
    let mode = |pragma| {
        let mode: String = scene.raw().query_row(pragma, [], |row| row.get(0)).unwrap();
        mode
    };
    assert_eq!(mode("PRAGMA journal_mode = DELETE"), "delete");
    scene.uses(Timing::DEFAULT_TTL).await;
    assert_eq!(mode("PRAGMA journal_mode"), "wal");
    assert_eq!(scene.findings().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_page_is_a_problem() {
    let scene = Scene::used().await;
    let raw = scene.raw();
    let number = |sql: &str| raw.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
    let page = number("SELECT rootpage FROM sqlite_schema WHERE name = 'wake'");
    let size = number("PRAGMA page_size");
    raw.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(raw);
    let file = fs::OpenOptions::new().write(true).open(scene.path()).unwrap();
    file.write_all_at(&[0xff; 64], u64::from((page - 1) * size)).unwrap();
    let (severity, what) = scene.finding().await;
    assert!(severity == Severity::Problem && what.contains("the database is damaged: "), "{what}");
}

/// And the remedy is one: the file may go, and the doors stay closed for a while.
#[tokio::test(start_paused = true)]
async fn a_lock_in_a_form_that_is_not_ours_is_a_problem_and_the_remedy_helps() {
    let scene = Scene::used().await;
    scene.raw().execute("UPDATE lock SET state = 'mine'", []).unwrap();
    let (severity, what) = scene.finding().await;
    assert!(severity == Severity::Problem && what.contains("\"job\""), "{what}");
    for part in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{part}", scene.path().display()));
    }
    let player = Player::new(Arc::new(scene.open()), "job");
    player.backend.claim(&player.claim).await.unwrap_err();
    let (severity, what) = scene.finding().await;
    assert!(severity == Severity::Warning && what.contains("nothing is granted for another 10"), "{what}");
    pass(Timing::DEFAULT_TTL).await;
    assert_eq!(scene.findings().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_long_ttl_that_is_remembered_is_a_note() {
    let scene = Scene::used().await;
    scene.uses(Duration::from_secs(600)).await;
    assert_eq!(scene.findings().await, []);
    scene.uses(Duration::from_secs(3600)).await;
    let (severity, what) = scene.finding().await;
    assert!(severity == Severity::Note && what.contains("a ttl of 3600s"), "{what}");
}

/// A store that keeps no record of settings says so.
#[tokio::test(start_paused = true)]
async fn there_is_no_record_to_adopt() {
    let error = Scene::used().await.open().adopt(Adopt::Settings).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("sqlite"), "{error}");
}

//! A disk that is full while locks are held.

use std::{io::Write as _, process::Command, sync::Arc, time::Duration};

use rusqlite::Connection;
use tenure_core::{Backend, ClaimAnswer, ErrorKind, Released, Renewal};
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{
    conformance::player::{Player, TTL},
    disk::SmallDisk,
    host::{PausedHost, pass},
};

/// L6: a backup that filled the disk lost its lock, and so did all others: a young log had no room for one renewal more. More
/// is written here than the log has room for.
#[tokio::test(start_paused = true)]
async fn leases_are_kept_and_handed_on_while_the_disk_is_full() {
    let Some(disk) = SmallDisk::new(3) else { return };
    let (path, host) = (disk.path().join("locks.db"), PausedHost::new(1));
    let open = || Arc::new(Sqlite::new(Config::new(&path), host.clone()));
    Player::new(open(), "warm").enter().await;
    let (held, waiter, mut other) =
        (Player::new(open(), "held"), Player::new(open(), "held"), Player::new(open(), "other"));
    let mut grant = held.enter().await;
    waiter.queue_behind(0).await;
    other.enter().await;
    assert_eq!(other.leave().await, Released::Released);
    disk.fill();
    for _ in 0..400 {
        pass(TTL / 3).await;
        assert_eq!(held.renew(&grant).await, Renewal::Renewed);
        assert!(matches!(waiter.ask().await, ClaimAnswer::Queued { .. }), "its place is kept");
        other = Player::new(other.backend, "other");
        other.enter().await;
        assert_eq!(other.leave().await, Released::Released);
    }
    assert_eq!(held.leave().await, Released::Released);
    let found = open().diagnose().await.unwrap();
    assert!(found.iter().any(|found| found.what.contains("the disk")), "{found:?}");
    grant = waiter.enter().await;
    disk.fill();
    assert_eq!(waiter.renew(&grant).await, Renewal::Renewed);
    disk.free();
    Player::new(open(), "new").enter().await;
    let check: String =
        Connection::open(&path).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

/// L6: the pages that were made in time were an eighth of the file, more than was free: they were in the log only, which could
/// not be moved any more, and all leases ended. Here each of 512 leases is on a page of its own, which is more than a young log
/// has room for.
#[tokio::test(start_paused = true)]
async fn a_file_that_fills_the_disk_by_itself_ends_no_lease() {
    let Some(disk) = SmallDisk::new(16) else { return };
    let (path, host) = (disk.path().join("locks.db"), PausedHost::new(1));
    let open = || Arc::new(Sqlite::new(Config::new(&path), host.clone()));
    let mut grants = Vec::new();
    let mut backend = open();
    let names = (0..).map(|n| format!("new/{n}/{}", "n".repeat(450)));
    let claims = names.map(|name| Player::new(backend.clone(), &name).lasting(Duration::from_secs(600)));
    for new in claims {
        match new.backend.claim(&new.claim).await {
            Ok(ClaimAnswer::Granted(grant)) => grants.push(grant),
            refused => {
                assert!(refused.unwrap_err().to_string().contains("the disk is full"));
                break;
            }
        }
    }
    let step = grants.len() / 512;
    let batch: Vec<_> = grants.into_iter().step_by(step).take(512).collect();
    for is_young in [false, true] {
        if is_young {
            // Closed by the last one, and so without its log.
            backend = open();
            assert_eq!(backend.renew(&batch[..1]).await.remove(0).unwrap(), Renewal::Renewed);
        }
        disk.fill();
        for _ in 0..20 {
            for renewed in backend.renew(&batch).await {
                assert_eq!(renewed.unwrap(), Renewal::Renewed);
            }
        }
        disk.free();
    }
}

/// L6: blocks reserved for root did not count as free, and root got the error that the disk is full.
#[tokio::test(start_paused = true)]
async fn root_uses_what_is_kept_for_it() {
    let Some(disk) = Kept::new() else { return };
    let backend = Arc::new(Sqlite::new(Config::new(disk.0.path().join("locks.db")), PausedHost::new(1)));
    Player::new(backend.clone(), "warm").enter().await;
    disk.fill();
    for n in 0..400 {
        Player::new(backend.clone(), &format!("new/{n}/{}", "n".repeat(400))).enter().await;
    }
}

/// A file system with half of its blocks reserved for root.
struct Kept(tempfile::TempDir);

impl Kept {
    /// `None`, with a printed reason, if nothing can be mounted.
    fn new() -> Option<Self> {
        let (image, folder) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
        image.as_file().set_len(64 << 20).unwrap();
        let run = |program: &str, arguments: &[&str], last: &std::path::Path| {
            let output = Command::new(program).args(arguments).arg(image.path()).arg(last).output();
            output.is_ok_and(|output| output.status.success())
        };
        let made = Command::new("mkfs.ext4").args(["-q", "-m", "50"]).arg(image.path()).output();
        let is_there =
            made.is_ok_and(|output| output.status.success()) && run("mount", &["-o", "loop"], folder.path());
        if !is_there {
            println!("nothing is mounted here: room that is kept for root is not tried");
        }
        is_there.then_some(Self(folder))
    }

    /// Until only the reserved blocks are free.
    fn fill(&self) {
        let mut file = std::fs::File::create_new(self.0.path().join("filler")).unwrap();
        while nix::sys::statvfs::statvfs(self.0.path()).unwrap().blocks_available() > 0 {
            file.write_all(&[7; 1 << 16]).unwrap();
            file.sync_all().unwrap();
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

/// What needs more than the room that was made is refused by name, and harms no other.
#[tokio::test(start_paused = true)]
async fn new_locks_on_a_full_disk_end_no_lease() {
    let Some(disk) = SmallDisk::new(3) else { return };
    let (path, host) = (disk.path().join("locks.db"), PausedHost::new(1));
    let backend = Arc::new(Sqlite::new(Config::new(&path), host));
    let held = Player::new(backend.clone(), "held").lasting(Duration::from_secs(600));
    let grant = held.enter().await;
    disk.fill();
    let claims = (0..4000).map(|n| Player::new(backend.clone(), &format!("new/{n}/{}", "n".repeat(400))));
    let mut refused = None;
    for new in claims {
        if let Err(error) = new.backend.claim(&new.claim).await {
            refused = Some(error);
            break;
        }
    }
    let error = refused.expect("the disk is full");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert_eq!(held.renew(&grant).await, Renewal::Renewed);
}

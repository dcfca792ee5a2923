//! `Scene` and `Pair`: what the file is when a process is stopped, and what befalls it meanwhile.

use std::{
    fs,
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use rusqlite::Connection;
use tempfile::TempDir;
use tenure_core::BackendHandle;
use tenure_testkit::patience::slowness;

use crate::actor::{self, Stay, short_ttl};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    /// There is no file yet.
    Fresh,
    /// It was used before.
    Existing,
    /// The process comes again and again, and no longer reads what it wrote last.
    Regular,
    /// It is deleted meanwhile, with its log.
    Deleted,
    /// Only the database is deleted meanwhile, and its log stays.
    Beheaded,
    /// Another database of ours takes its place meanwhile.
    Replaced,
    /// A ttl is granted that is longer than any before, and the file is deleted meanwhile.
    Longer,
    /// Its log and its shared memory are deleted beneath it, and it stays.
    LogDeleted,
    /// Only the shared memory.
    MemoryDeleted,
    /// Copies take the place of both beneath it.
    LogReplaced,
    /// It was last used under another boot id.
    OtherBoot,
}

/// A process that is stopped before its call number `at`, and one that comes meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) scene: Scene,
    pub(crate) at: usize,
}

/// A process that ends with its pair.
struct Player(Child);

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Scene {
    pub(crate) const ALL: [Self; 11] = [
        Self::Fresh,
        Self::Existing,
        Self::Regular,
        Self::Deleted,
        Self::Beheaded,
        Self::Replaced,
        Self::Longer,
        Self::LogDeleted,
        Self::MemoryDeleted,
        Self::LogReplaced,
        Self::OtherBoot,
    ];

    fn vanishes(self) -> bool {
        matches!(self, Self::Deleted | Self::Beheaded | Self::Replaced | Self::Longer) || self.loses_its_log()
    }

    fn loses_its_log(self) -> bool {
        matches!(self, Self::LogDeleted | Self::MemoryDeleted | Self::LogReplaced)
    }

    /// Of the process that is stopped.
    fn ttl(self) -> Duration {
        if self == Self::Longer { short_ttl() * 2 } else { short_ttl() }
    }

    fn prepare(self, folder: &Path) {
        let db = folder.join("db");
        for part in ["db", "control"] {
            fs::create_dir(folder.join(part)).unwrap();
        }
        if self == Self::Fresh {
            return;
        }
        if self == Self::Replaced {
            used(&db);
            fs::rename(db.join("l.db"), db.join("other.db")).unwrap();
            fs::remove_file(db.join(".l.db.guard")).unwrap();
        }
        used(&db);
        if self == Self::OtherBoot {
            let raw = Connection::open(db.join("l.db")).unwrap();
            assert_eq!(raw.execute("UPDATE meta SET clock = 'another boot'", []).unwrap(), 1);
        }
    }

    /// What somebody else does to the file while the first process stands still.
    fn meanwhile(self, folder: &Path) {
        if !self.vanishes() {
            return;
        }
        let db = folder.join("db");
        if self.loses_its_log() {
            return self.loses(&db);
        }
        let _ = fs::remove_file(db.join("l.db"));
        if self != Self::Beheaded {
            let _ = fs::remove_file(db.join("l.db-wal"));
            let _ = fs::remove_file(db.join("l.db-shm"));
        }
        if self == Self::Replaced {
            fs::rename(db.join("other.db"), db.join("l.db")).unwrap();
        }
    }
}

impl Scene {
    /// Not every one of them is there already.
    fn loses(self, db: &Path) {
        let parts: &[&str] =
            if self == Self::MemoryDeleted { &["l.db-shm"] } else { &["l.db-wal", "l.db-shm"] };
        for part in parts.iter().map(|part| db.join(part)) {
            let copy = part.with_extension("copy");
            let _ = match self {
                Self::LogReplaced => fs::copy(&part, &copy).and_then(|_| fs::rename(&copy, &part)),
                _ => fs::remove_file(&part),
            };
        }
    }
}

/// Makes a file in which one lock was taken and given back.
fn used(db: &Path) -> BackendHandle {
    let mut player = actor::player(actor::open(db));
    player.claim.ttl = short_ttl();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        player.enter().await;
        player.leave().await;
    });
    player.backend
}

impl Pair {
    /// The calls of a process that nobody stops.
    pub(crate) fn calls(self, shim: &Path) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        self.scene.prepare(folder.path());
        let mut alone = self.stopped(&folder, shim);
        wait_for("it ends", || alone.0.try_wait().unwrap().map(|_| ())).unwrap();
        actor::report(folder.path(), "hasty").unwrap();
        let calls = fs::read_to_string(folder.path().join("control/calls")).unwrap();
        calls.lines().map(str::to_owned).collect()
    }

    /// The calls of a process that leaves a memo or none while another one has the file open, and what the other one does before
    /// the call number `at`, if that is not 0. At the end a memo must be in the database without its log.
    pub(crate) fn beside_another(
        shim: &Path,
        leaves_memo: bool,
        at: usize,
        meanwhile: impl FnOnce(BackendHandle),
    ) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        Scene::Existing.prepare(folder.path());
        let (db, control) = (folder.path().join("db"), folder.path().join("control"));
        let other = used(&db);
        let mut command = actor::command("hasty", folder.path(), short_ttl(), 1);
        command.env("LD_PRELOAD", shim).env("DELAY_AT", at.to_string());
        if leaves_memo {
            command.env(actor::NOTES, "");
        }
        let mut process = start(&mut command);
        if at > 0 {
            wait_for("it stops", || control.join("paused").exists().then_some(())).unwrap();
            meanwhile(other.clone());
            fs::write(control.join("go"), "").unwrap();
        }
        assert!(process.0.wait().unwrap().success());
        actor::report(folder.path(), "hasty").unwrap();
        fs::copy(db.join("l.db"), folder.path().join("copy.db")).unwrap();
        let copy = Connection::open(folder.path().join("copy.db")).unwrap();
        let memos =
            copy.query_row("SELECT count(*) FROM lock WHERE state LIKE '%done%'", [], |row| row.get(0));
        assert_eq!(memos, Ok(i64::from(leaves_memo)), "without the log");
        let calls = fs::read_to_string(control.join("calls")).unwrap();
        calls.lines().map(str::to_owned).collect()
    }

    /// The process that will be stopped.
    fn stopped(self, folder: &TempDir, shim: &Path) -> Player {
        let times = if self.scene == Scene::Regular || self.scene.loses_its_log() { 3 } else { 1 };
        let mut command = actor::command("hasty", folder.path(), self.scene.ttl(), times);
        start(command.env("LD_PRELOAD", shim).env("DELAY_AT", self.at.to_string()))
    }

    /// Stops one before its call, lets another one come, and lets the first go on while the other is inside, if it is.
    pub(crate) fn play(self, shim: &Path) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let (path, control) = (folder.path(), folder.path().join("control"));
        self.scene.prepare(path);
        let mut first = self.stopped(&folder, shim);
        let is_there = |name: &str| control.join(name).exists().then_some(());
        wait_for("it stops or ends", || {
            is_there("paused").or_else(|| first.0.try_wait().unwrap().map(|_| ()))
        })?;
        self.scene.meanwhile(path);
        let mut second = start(&mut actor::command("staying", path, short_ttl(), 1));
        // It may have to wait for the first one's call, or for a lease that was forgotten.
        let patience = if self.scene.vanishes() { self.scene.ttl() * 3 / 2 } else { short_ttl() };
        let _ = wait_within(patience, || is_there("in.staying"));
        fs::write(control.join("go"), "").unwrap();
        // Long enough for the first one to come in where it must not: in a world of its own it waits for a ttl.
        let _ = wait_within(self.scene.ttl() * 3 / 2, || is_there("in.hasty"));
        fs::write(control.join("leave"), "").unwrap();
        for player in [&mut first, &mut second] {
            wait_for("both are served", || player.0.try_wait().unwrap().map(|_| ()))?;
        }
        judge(&[actor::report(path, "hasty")?, actor::report(path, "staying")?].concat())
    }
}

/// L1: no two stays meet. L2: the later one has the larger token.
fn judge(stays: &[Stay]) -> Result<(), String> {
    let mut stays = stays.to_vec();
    stays.sort_by_key(|stay| stay.from);
    match stays.windows(2).find(|two| two[0].to > two[1].from || two[0].token >= two[1].token) {
        Some(two) => Err(format!("{two:?}")),
        None => Ok(()),
    }
}

fn start(command: &mut Command) -> Player {
    Player(command.spawn().unwrap())
}

fn wait_for(what: &str, look: impl FnMut() -> Option<()>) -> Result<(), String> {
    wait_within(Duration::from_secs(30) * slowness(), look).ok_or_else(|| format!("never: {what}"))
}

fn wait_within(patience: Duration, mut look: impl FnMut() -> Option<()>) -> Option<()> {
    let end = Instant::now() + patience;
    loop {
        if let Some(()) = look() {
            return Some(());
        }
        if Instant::now() > end {
            return None;
        }
        thread::sleep(Duration::from_millis(8));
    }
}

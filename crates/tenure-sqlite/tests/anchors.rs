//! The locks that a process has on its database besides SQLite's: no close of another descriptor loses them, and newcomers read in
//! them which log it has open.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::Path,
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use tenure_core::{BackendError, ErrorKind, Outcome, Released, Renewal};
use tenure_testkit::{conformance::player::TTL, host::pass};

use crate::stage::Stage;

/// Where SQLite locks the database alone before it deletes its log, and the shared memory before it begins it anew.
const TO_DELETE: (i64, i64) = (0x4000_0002, 510);
const TO_BEGIN_ANEW: (i64, i64) = (128, 1);
/// A place in which no log of a test has its number, but by chance.
const ANOTHER_LOG: (i64, i64) = ((1 << 62) + 4711, 1);
/// How long a newcomer writes nothing beside a process that has another log open.
const SETTLED: Duration = Duration::from_secs(5);

fn lock(file: &File, (start, length): (i64, i64), kind: i32) -> io::Result<()> {
    let kind = i16::try_from(kind).unwrap();
    let lock = libc::flock { l_type: kind, l_whence: 0, l_start: start, l_len: length, l_pid: 0 };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock))?;
    Ok(())
}

fn part(stage: &Stage, part: &str) -> std::path::PathBuf {
    stage.folder.path().join(format!("locks.db{part}"))
}

fn opened(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// What a client of another process has locked that has another log open.
fn stranger(stage: &Stage) -> File {
    let file = opened(&stage.file());
    for range in [TO_DELETE, ANOTHER_LOG] {
        lock(&file, range, libc::F_RDLCK).unwrap();
    }
    file
}

fn is_busy(error: &BackendError) {
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Throttled, Outcome::NotApplied), "{error}");
}

/// L1: a program that copied its own database lost SQLite's locks on it, and the next process deleted the log beneath it.
#[tokio::test(start_paused = true)]
async fn no_close_of_another_descriptor_loses_what_keeps_the_log() {
    let stage = Stage::new();
    let player = stage.player("one");
    player.enter().await;
    for name in ["", "-shm", "-wal"] {
        fs::read(part(&stage, name)).unwrap();
    }
    let (database, memory) = (opened(&stage.file()), opened(&part(&stage, "-shm")));
    lock(&database, TO_DELETE, libc::F_WRLCK).unwrap_err();
    lock(&memory, TO_BEGIN_ANEW, libc::F_WRLCK).unwrap_err();
    let second = stage.player("two");
    second.enter().await;
    drop(player);
    lock(&database, TO_DELETE, libc::F_WRLCK).unwrap_err();
    drop(second);
    lock(&database, TO_DELETE, libc::F_WRLCK).unwrap();
    assert!(!part(&stage, "-wal").exists() && !part(&stage, "-shm").exists(), "the last one tidies up");
}

/// A command that is started has no part in the locks of the process that starts it.
#[tokio::test(start_paused = true)]
async fn the_locks_are_not_inherited_by_commands() {
    let stage = Stage::new();
    let player = stage.player("one");
    player.enter().await;
    let mut ours = 0;
    for descriptor in fs::read_dir("/proc/self/fd").unwrap() {
        let descriptor = descriptor.unwrap();
        let Ok(file) = fs::read_link(descriptor.path()) else { continue };
        if !file.starts_with(stage.folder.path()) {
            continue;
        }
        let facts = fs::read_to_string(Path::new("/proc/self/fdinfo").join(descriptor.file_name())).unwrap();
        let flags = facts.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
        assert_ne!(flags & libc::O_CLOEXEC, 0, "{}", file.display());
        ours += 1;
    }
    assert!(ours > 3, "SQLite's and ours: {ours}");
}

/// L1: a newcomer that finds neither log nor shared memory cannot know that they were deleted beneath a process that is alive,
/// unless that one says so. It writes nothing while that process may be in the midst of a write, and then waits for its leases.
#[tokio::test(start_paused = true)]
async fn a_newcomer_waits_for_the_leases_of_a_process_that_has_another_log() {
    let stage = Stage::new();
    let before = stage.player("one");
    before.enter().await;
    before.leave().await;
    drop(before);
    let stranger = stranger(&stage);
    let ask = async || stage.player("one").backend.inspect(&stage.player("one").claim.name).await;
    let database = fs::read(stage.file()).unwrap();
    for _ in 0..3 {
        let error = ask().await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
        assert!(error.retry_hint().is_some() && error.to_string().contains("deleted or replaced"), "{error}");
        pass(SETTLED / 4).await;
    }
    assert!(!part(&stage, "-wal").exists() && fs::read(stage.file()).unwrap() == database);
    pass(SETTLED / 4).await;
    ask().await.unwrap();
    let player = stage.player("one");
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert!(error.retry_hint().unwrap() <= TTL - SETTLED, "since it was seen: {error:?}");
    pass(TTL - SETTLED).await;
    player.enter().await;
    drop(stranger);
}

/// L6: and not again and again: a process that has the file open and does nothing may stay for as long as it likes.
#[tokio::test(start_paused = true)]
async fn a_process_with_another_log_is_waited_for_once() {
    let stage = Stage::new();
    stage.player("one").enter().await;
    let stranger = stranger(&stage);
    let other = || stage.player("two");
    other().backend.claim(&other().claim).await.unwrap_err();
    pass(TTL).await;
    for _ in 0..3 {
        let player = other();
        player.enter().await;
        player.leave().await;
    }
    assert!(part(&stage, "-wal").exists(), "it is not tidied up beside the stranger");
    drop(stranger);
    other().enter().await;
    // The next one is waited for again.
    other().leave().await;
    let _stranger = self::stranger(&stage);
    let error = other().backend.claim(&other().claim).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// L1: the log was moved away and back. Another process had made another one in between and was granted there; a client that had
/// slept through it found its own log at its name.
#[tokio::test(start_paused = true)]
async fn a_log_that_was_away_is_waited_for_even_if_another_opened_one_first() {
    let stage = Stage::new();
    let player = stage.player("one");
    for _ in 0..2 {
        player.enter().await;
        player.leave().await;
    }
    let guard = stage.folder.path().join(".locks.db.guard");
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&guard).unwrap()).unwrap();
    text["lost_log"] = serde_json::json!({ "WaitedFor": { "number": 4711 } });
    fs::write(stage.folder.path().join("new"), text.to_string()).unwrap();
    fs::rename(stage.folder.path().join("new"), &guard).unwrap();
    let stranger = stranger(&stage);
    for _ in 0..3 {
        let error = player.backend.claim(&player.claim).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotApplied, "{error}");
    }
    drop(stranger);
    pass(TTL).await;
    player.enter().await;
}

/// L1: a close of the shared memory in the midst of a transaction dropped SQLite's write lock; another process wrote at the same
/// time, and a commit that was granted was gone. So each write takes a lock on the log, too.
#[tokio::test(start_paused = true)]
async fn nothing_is_written_while_another_writes() {
    let stage = Stage::new();
    let one = stage.player("one");
    for _ in 0..2 {
        one.enter().await;
        one.leave().await;
    }
    let log = File::open(part(&stage, "-wal")).unwrap();
    log.lock().unwrap();
    is_busy(&one.backend.claim(&one.claim).await.unwrap_err());
    log.unlock().unwrap();
    let grant = one.enter().await;
    log.lock().unwrap();
    is_busy(one.backend.renew(std::slice::from_ref(&grant)).await[0].as_ref().unwrap_err());
    is_busy(&one.backend.release(&one.claim.name, one.claim.owner).await.unwrap_err());
    assert_eq!(
        one.backend.inspect(&one.claim.name).await.unwrap().holders.len(),
        1,
        "who reads needs no lock"
    );
    log.unlock().unwrap();
    assert_eq!(one.renew(&grant).await, Renewal::Renewed);
    assert_eq!(one.leave().await, Released::Released);
}

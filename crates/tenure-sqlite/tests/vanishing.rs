//! The file is deleted, replaced, or of another boot: never a second world beside the first.

use std::{fs, os::unix::fs::MetadataExt, path::PathBuf, sync::Arc, time::Duration};

use rusqlite::Connection;
use tempfile::TempDir;
use tenure_core::{
    Audience, BackendHandle, BreakScope, ErrorKind, Grant, Outcome, Released, Renewal, WakeEvent,
};
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{
    conformance::player::{Player, TTL},
    host::{PausedHost, pass},
};

struct Stage {
    folder: TempDir,
    host: Arc<PausedHost>,
}

impl Stage {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), host: PausedHost::new(1) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, name: &str) -> BackendHandle {
        Arc::new(Sqlite::new(Config::new(self.file(name)), self.host.clone()))
    }

    fn delete(&self, name: &str) {
        for part in [name.to_owned(), format!("{name}-wal"), format!("{name}-shm")] {
            let _ = fs::remove_file(self.file(&part));
        }
    }

    fn rename(&self, from: &str, to: &str) {
        for part in ["", "-wal", "-shm"] {
            fs::rename(self.file(&format!("{from}{part}")), self.file(&format!("{to}{part}"))).unwrap();
        }
    }

    fn max_ttl_ms(&self) -> u64 {
        let text = fs::read_to_string(self.file(".locks.db.guard")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["max_ttl_ms"].as_u64().unwrap()
    }
}

async fn assert_shut(player: &Player) {
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    assert!(error.retry_hint().unwrap() <= TTL, "{error:?}");
    assert!(error.to_string().contains("deleted or replaced"), "{error}");
}

/// The store knows nothing of the holder, whose lease is gone, and lets another one in only when it is over.
async fn waits_for_the_lease(other: &Player, holder: &Player, grant: &Grant) {
    assert_shut(other).await;
    assert_eq!(holder.renew(grant).await, Renewal::Gone);
    pass(TTL).await;
    other.enter().await;
}

/// The file is away for a while, and another one is made and used in its place.
async fn goes_away_and_comes_back(stage: &Stage) {
    stage.rename("locks.db", "away.db");
    let other = Player::new(stage.open("locks.db"), "one");
    assert_shut(&other).await;
    pass(TTL).await;
    other.enter().await;
    stage.delete("locks.db");
    stage.rename("away.db", "locks.db");
}

/// The same; a client that knew the file before has to ask again.
async fn was_away(stage: &Stage, knew: &Player) {
    goes_away_and_comes_back(stage).await;
    let error = knew.backend.claim(&knew.claim).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotApplied, "{error:?}");
}

/// L1: a new file grants nothing until every lease that the old one may have granted is over.
#[tokio::test(start_paused = true)]
async fn a_deleted_file_grants_nothing_until_its_leases_are_over() {
    let stage = Stage::new();
    let holder = Player::new(stage.open("locks.db"), "one");
    let grant = holder.enter().await;
    stage.delete("locks.db");
    let other = Player::new(stage.open("locks.db"), "one");
    assert_shut(&other).await;
    assert_eq!(holder.renew(&grant).await, Renewal::Gone, "L5: the holder learns that its lease is lost");
    assert_eq!(holder.leave().await, Released::WasGone);
    pass(TTL - Duration::from_millis(1)).await;
    assert_shut(&other).await;
    pass(Duration::from_millis(1)).await;
    assert!(other.enter().await.token > grant.token, "L2: the clock is the floor");
}

/// A renewal does not make a new file; only a claim does.
#[tokio::test(start_paused = true)]
async fn a_renewal_on_a_deleted_file_is_gone_and_makes_nothing() {
    let stage = Stage::new();
    let holder = Player::new(stage.open("locks.db"), "one");
    let grant = holder.enter().await;
    stage.delete("locks.db");
    assert_eq!(holder.renew(&grant).await, Renewal::Gone);
    assert_eq!(holder.backend.list("").await.unwrap(), []);
    assert!(!stage.file("locks.db").exists());
}

/// L1: the same if another database of ours takes the place, which has a history of its own.
#[tokio::test(start_paused = true)]
async fn a_file_that_takes_anothers_place_waits_for_its_leases() {
    let stage = Stage::new();
    let holder = Player::new(stage.open("locks.db"), "one");
    let grant = holder.enter().await;
    Player::new(stage.open("other.db"), "elsewhere").enter().await;
    stage.delete("locks.db");
    // Closed, so it is one file without a log.
    fs::rename(stage.file("other.db"), stage.file("locks.db")).unwrap();
    let other = Player::new(stage.open("locks.db"), "one");
    waits_for_the_lease(&other, &holder, &grant).await;
}

/// The longest ttl ever granted decides how long, also one that came by renewal.
#[tokio::test(start_paused = true)]
async fn the_longest_ttl_is_remembered_before_it_is_granted() {
    let stage = Stage::new();
    let mut holder = Player::new(stage.open("locks.db"), "one");
    holder.claim.ttl = Duration::from_secs(3);
    let mut grant = holder.enter().await;
    assert_eq!(stage.max_ttl_ms(), 3_000);
    grant.ttl = Duration::from_secs(70);
    assert_eq!(holder.renew(&grant).await, Renewal::Renewed);
    assert_eq!(stage.max_ttl_ms(), 70_000);
    let other = Player::new(stage.open("locks.db"), "two");
    other.enter().await;
    assert_eq!(stage.max_ttl_ms(), 70_000, "a shorter one does not take it back");
}

/// Nobody waits for nothing: the first use, and a file whose guard was removed on purpose.
#[tokio::test(start_paused = true)]
async fn without_a_guard_file_nothing_is_waited_for() {
    let stage = Stage::new();
    Player::new(stage.open("locks.db"), "one").enter().await;
    stage.delete("locks.db");
    fs::remove_file(stage.file(".locks.db.guard")).unwrap();
    Player::new(stage.open("locks.db"), "one").enter().await;
}

/// A holder hears at once: its stream looks at the file as well.
#[tokio::test(start_paused = true)]
async fn a_vanished_file_rings_all_holders() {
    let stage = Stage::new();
    let holder = Player::new(stage.open("locks.db"), "one");
    let mut stream = holder.backend.wakes(holder.claim.owner.process(), Audience::Holders);
    holder.enter().await;
    stage.delete("locks.db");
    let heard = tokio::time::timeout(Duration::from_secs(1), stream.next()).await;
    assert_eq!(heard.unwrap(), WakeEvent::All);
}

/// The id of the boot in the file is another one than ours.
fn change_boot_id(stage: &Stage) {
    let raw = Connection::open(stage.file("locks.db")).unwrap();
    assert_eq!(raw.execute("UPDATE meta SET clock = 'another boot'", []).unwrap(), 1);
}

/// Another boot ends every lease and every holder at once; tokens go on.
#[tokio::test(start_paused = true)]
async fn another_boot_ends_all_leases_but_no_fence() {
    let mut stage = Stage::new();
    let holder = Player::new(stage.open("locks.db"), "one");
    let grant = holder.enter().await;
    Player::new(stage.open("locks.db"), "one").queue_behind(0).await;
    change_boot_id(&stage);
    stage.host = PausedHost::up_for(Duration::from_secs(20), 1);
    let after = Player::new(stage.open("locks.db"), "one");
    let view = after.backend.inspect(&after.claim.name).await.unwrap();
    assert_eq!((view.holders.len(), view.queue.len(), view.fence), (0, 0, grant.token));
    assert!(after.enter().await.token > grant.token);
}

/// A wait that the boot before had not finished is over as well.
#[tokio::test(start_paused = true)]
async fn another_boot_ends_the_wait_for_a_lost_file() {
    let mut stage = Stage::new();
    Player::new(stage.open("locks.db"), "one").enter().await;
    stage.delete("locks.db");
    assert_shut(&Player::new(stage.open("locks.db"), "one")).await;
    change_boot_id(&stage);
    stage.host = PausedHost::up_for(Duration::from_secs(20), 1);
    Player::new(stage.open("locks.db"), "one").enter().await;
}

/// L1: a container with a boot id of its own on the same boot: its neighbours' leases are what they were. They were
/// forgotten if the wall clock had been stepped by more than 10 s since the boot: that was taken for another boot.
#[tokio::test(start_paused = true)]
async fn another_boot_id_without_another_boot_waits_for_the_leases() {
    for step_ms in [0, 11_000, 86_400_000, -86_400_000] {
        let stage = Stage::new();
        let holder = Player::new(stage.open("locks.db"), "one");
        let grant = holder.enter().await;
        stage.host.step_wall(step_ms);
        change_boot_id(&stage);
        let other = Player::new(stage.open("locks.db"), "one");
        other.queue_behind(0).await;
        assert_eq!(holder.renew(&grant).await, Renewal::Renewed, "nobody loses a lease for it");
        pass(TTL).await;
        assert!(other.enter().await.token > grant.token);
    }
}

/// L1, L2: a copy that was put back has another inode, so the leases that it does not know are waited for.
#[tokio::test(start_paused = true)]
async fn a_copy_that_was_put_back_waits_for_the_leases_it_does_not_know() {
    let stage = Stage::new();
    Player::new(stage.open("locks.db"), "else").enter().await;
    fs::copy(stage.file("locks.db"), stage.file("copy.db")).unwrap();
    let holder = Player::new(stage.open("locks.db"), "one");
    let grant = holder.enter().await;
    stage.delete("locks.db");
    fs::rename(stage.file("copy.db"), stage.file("locks.db")).unwrap();
    let other = Player::new(stage.open("locks.db"), "one");
    waits_for_the_lease(&other, &holder, &grant).await;
    assert!(other.backend.inspect(&other.claim.name).await.unwrap().fence > grant.token);
}

/// L2: an older copy knows the lock and its token of then. However it was put back, its tokens are larger than those that it does
/// not know; moved into the place, it has another inode, and waits for their leases as well (L1).
#[tokio::test(start_paused = true)]
async fn tokens_grow_over_an_older_copy_of_the_file_that_was_put_back() {
    for is_moved in [true, false] {
        let stage = Stage::new();
        let before = Player::new(stage.open("locks.db"), "one");
        let known = before.enter().await;
        before.leave().await;
        // Without users it is one file.
        drop(before);
        assert!(!stage.file("locks.db-wal").exists());
        fs::copy(stage.file("locks.db"), stage.file("copy.db")).unwrap();
        let (mut newest, moment) = (known.token, Duration::from_millis(1));
        let holder = Player::new(stage.open("locks.db"), "one");
        for _ in 0..5 {
            pass(moment).await;
            let grant = holder.enter().await;
            assert!(grant.token > newest);
            newest = grant.token;
        }
        let grant = holder.enter().await;
        drop(holder);
        pass(moment).await;
        let inode = |name: &str| fs::metadata(stage.file(name)).unwrap().ino();
        let original = inode("locks.db");
        if is_moved {
            fs::rename(stage.file("copy.db"), stage.file("locks.db")).unwrap();
        } else {
            fs::copy(stage.file("copy.db"), stage.file("locks.db")).unwrap();
        }
        assert_eq!(inode("locks.db") != original, is_moved);
        let other = Player::new(stage.open("locks.db"), "one");
        let seen = other.backend.inspect(&other.claim.name).await.unwrap();
        assert!(seen.holders.is_empty() && seen.fence < newest, "it has forgotten: {seen:?}");
        if is_moved {
            assert_shut(&other).await;
            pass(TTL).await;
        }
        let next = other.enter().await;
        assert!(next.token > grant.token, "{} after {}", next.token, grant.token);
    }
}

/// L1: what was not written is not remembered: a claim that failed for that reason is not granted when it asks again.
#[tokio::test(start_paused = true)]
async fn a_ttl_that_could_not_be_remembered_is_not_granted() {
    let stage = Stage::new();
    let mut holder = Player::new(stage.open("locks.db"), "one");
    holder.enter().await;
    holder.leave().await;
    holder.claim.ttl = 2 * TTL;
    let guard = stage.file(".locks.db.guard");
    let text = fs::read(&guard).unwrap();
    fs::remove_file(&guard).unwrap();
    fs::create_dir(&guard).unwrap();
    for _ in 0..3 {
        assert!(holder.backend.claim(&holder.claim).await.is_err());
    }
    fs::remove_dir(&guard).unwrap();
    fs::write(&guard, text).unwrap();
    holder.enter().await;
    assert_eq!(stage.max_ttl_ms(), 20_000);
}

/// L1: a file that was away, while another stood in its place, is not believed by a handle that saw nothing of it.
#[tokio::test(start_paused = true)]
async fn a_file_that_was_away_waits_for_the_leases_of_the_other() {
    let stage = Stage::new();
    let idle = Player::new(stage.open("locks.db"), "one");
    idle.enter().await;
    idle.leave().await;
    was_away(&stage, &idle).await;
    assert_shut(&idle).await;
    pass(TTL).await;
    idle.enter().await;
}

/// L1: nor does such a handle go by the row of a lock that it wrote before.
#[tokio::test(start_paused = true)]
async fn a_row_of_a_file_that_was_away_is_no_way_in() {
    let stage = Stage::new();
    let idle = Player::new(stage.open("locks.db"), "one");
    let beside = Player::new(idle.backend.clone(), "two");
    for player in [&idle, &beside, &idle, &beside] {
        player.enter().await;
        player.leave().await;
    }
    was_away(&stage, &beside).await;
    // With the second of these the handle knows again which file it has.
    for player in [&beside, &beside, &idle] {
        assert_shut(player).await;
    }
}

/// L1: a newcomer opened the file that had come back, wrote into it until when nothing is granted, and put the guard right. A
/// client that had slept through all of it found its guard, and granted by what it had read when it opened the file.
#[tokio::test(start_paused = true)]
async fn a_file_that_was_away_is_waited_for_even_if_another_opened_it_first() {
    for knows_the_row in [false, true] {
        let stage = Stage::new();
        let idle = Player::new(stage.open("locks.db"), "one");
        for _ in 0..=u8::from(knows_the_row) {
            idle.enter().await;
            idle.leave().await;
        }
        goes_away_and_comes_back(&stage).await;
        assert_shut(&Player::new(stage.open("locks.db"), "one")).await;
        for _ in 0..3 {
            assert_shut(&idle).await;
        }
        pass(TTL).await;
        idle.enter().await;
    }
}

/// L1: the guard of the file that stood in its place knew shorter leases only. A holder that slept through it renews a longer
/// one: it is remembered again, in case the file vanishes.
#[tokio::test(start_paused = true)]
async fn a_renewal_in_a_file_that_was_away_is_remembered() {
    let stage = Stage::new();
    let mut holder = Player::new(stage.open("locks.db"), "one");
    holder.claim.ttl = 6 * TTL;
    let grant = holder.enter().await;
    assert_eq!(stage.max_ttl_ms(), 60_000);
    stage.rename("locks.db", "away.db");
    fs::remove_file(stage.file(".locks.db.guard")).unwrap();
    Player::new(stage.open("locks.db"), "one").enter().await;
    stage.delete("locks.db");
    stage.rename("away.db", "locks.db");
    Player::new(stage.open("locks.db"), "two").backend.inspect(&holder.claim.name).await.unwrap();
    assert_eq!(stage.max_ttl_ms(), 10_000, "the newcomer opened it first");
    assert_eq!(holder.renew(&grant).await, Renewal::Renewed);
    assert_eq!(stage.max_ttl_ms(), 60_000);
}

/// Only the database itself is deleted: what is left of its log is none of the new one's.
#[tokio::test(start_paused = true)]
async fn a_log_without_its_database_is_not_taken_over() {
    let stage = Stage::new();
    let holder = Player::new(stage.open("locks.db"), "one");
    let grant = holder.enter().await;
    fs::remove_file(stage.file("locks.db")).unwrap();
    let other = Player::new(stage.open("locks.db"), "one");
    assert_shut(&other).await;
    assert_eq!(holder.renew(&grant).await, Renewal::Gone);
    pass(TTL).await;
    assert!(other.enter().await.token > grant.token);
}

/// What befalls the log or the shared memory of a file that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Deleted(&'static [&'static str]),
    /// A copy takes its place, as `rsync` does it.
    Replaced(&'static [&'static str]),
    MovedAway(&'static [&'static str]),
}

impl Loss {
    const ALL: [Self; 7] = [
        Self::Deleted(&["-wal"]),
        Self::Deleted(&["-shm"]),
        Self::Deleted(&["-wal", "-shm"]),
        Self::Replaced(&["-wal"]),
        Self::Replaced(&["-shm"]),
        Self::Replaced(&["-wal", "-shm"]),
        Self::MovedAway(&["-wal", "-shm"]),
    ];

    fn befall(self, stage: &Stage) {
        let (Self::Deleted(parts) | Self::Replaced(parts) | Self::MovedAway(parts)) = self;
        for part in parts {
            let (file, other) = (stage.file(&format!("locks.db{part}")), stage.file("other"));
            match self {
                Self::Deleted(_) => fs::remove_file(file).unwrap(),
                Self::Replaced(_) => {
                    fs::copy(&file, &other).unwrap();
                    fs::rename(&other, &file).unwrap();
                }
                Self::MovedAway(_) => fs::rename(&file, stage.file(&format!("away{part}"))).unwrap(),
            }
        }
    }

    /// Whether what was written is where it was, or a copy of it.
    fn keeps_what_was_written(self) -> bool {
        matches!(self, Self::Replaced(_) | Self::Deleted(&["-shm"]))
    }
}

/// L1: the log or the shared memory was deleted or replaced beneath an open file. The holder went on in the one that it had open,
/// and a client that came later was granted in a new one.
#[tokio::test(start_paused = true)]
async fn a_file_whose_log_is_lost_grants_nothing_until_its_leases_have_expired() {
    for loss in Loss::ALL {
        let stage = Stage::new();
        let holder = Player::new(stage.open("locks.db"), "one");
        let grant = holder.enter().await;
        loss.befall(&stage);
        let other = Player::new(stage.open("locks.db"), "one");
        assert_shut(&other).await;
        let renewal = holder.renew(&grant).await;
        assert_eq!(renewal == Renewal::Renewed, loss.keeps_what_was_written(), "{loss:?}: {renewal:?}");
        pass(TTL - Duration::from_millis(1)).await;
        assert_shut(&other).await;
        holder.leave().await;
        pass(Duration::from_millis(1)).await;
        assert!(other.enter().await.token > grant.token, "{loss:?}");
    }
}

/// L1, L5: the holder finds it out itself, at each of its verbs, as does a handle that has just written the row.
#[tokio::test(start_paused = true)]
async fn a_client_whose_log_is_lost_does_not_go_on_in_it() {
    for loss in Loss::ALL {
        let stage = Stage::new();
        let (holder, idle) =
            (Player::new(stage.open("locks.db"), "one"), Player::new(stage.open("locks.db"), "two"));
        for _ in 0..2 {
            idle.enter().await;
            idle.leave().await;
        }
        let grant = holder.enter().await;
        loss.befall(&stage);
        assert_shut(&idle).await;
        assert_eq!(holder.renew(&grant).await == Renewal::Renewed, loss.keeps_what_was_written(), "{loss:?}");
        assert_eq!(holder.leave().await == Released::Released, loss.keeps_what_was_written(), "{loss:?}");
        assert_shut(&holder).await;
        pass(TTL).await;
        holder.enter().await;
    }
}

/// L5: a holder hears of it by its poll, and a waiter that only reads asks again.
#[tokio::test(start_paused = true)]
async fn a_lost_log_rings_holders_and_waiters() {
    for loss in Loss::ALL {
        let stage = Stage::new();
        let (holder, waiter) =
            (Player::new(stage.open("locks.db"), "one"), Player::new(stage.open("locks.db"), "one"));
        let process = |player: &Player| player.claim.owner.process();
        let mut streams = [
            holder.backend.wakes(process(&holder), Audience::Holders),
            waiter.backend.wakes(process(&waiter), Audience::Waiters),
        ];
        holder.enter().await;
        waiter.queue_behind(0).await;
        loss.befall(&stage);
        for stream in &mut streams {
            let heard = tokio::time::timeout(Duration::from_secs(1), stream.next()).await;
            assert_eq!(heard.unwrap(), WakeEvent::All, "{loss:?}");
        }
        holder.leave().await;
        pass(TTL).await;
        waiter.enter().await;
    }
}

/// L1: until the log is looked at again, a handle of the same process has the old shared memory, and SQLite would give it to a new
/// one as well. An idle one must not keep the others out for that.
#[tokio::test(start_paused = true)]
async fn an_idle_handle_of_the_same_process_keeps_no_other_in_a_lost_log() {
    let stage = Stage::new();
    let idle = Player::new(stage.open("locks.db"), "idle");
    idle.enter().await;
    Loss::Deleted(&["-wal", "-shm"]).befall(&stage);
    let one = Player::new(stage.open("locks.db"), "one");
    assert_shut(&one).await;
    pass(TTL).await;
    let grant = one.enter().await;
    // Nor does it go on where it was.
    assert!(!Player::new(idle.backend.clone(), "one").try_enter().await);
    drop(one);
    let view = idle.backend.inspect(&grant.name).await.unwrap();
    assert_eq!(view.holders[0].token, Some(grant.token));
}

/// A hard link is a second world.
#[tokio::test(start_paused = true)]
async fn a_file_with_other_names_is_refused() {
    let stage = Stage::new();
    Player::new(stage.open("locks.db"), "one").enter().await;
    fs::hard_link(stage.file("locks.db"), stage.file("linked.db")).unwrap();
    let other = Player::new(stage.open("linked.db"), "one");
    let error = other.backend.claim(&other.claim).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// L1: a symbolic link is another name as well, and has a guard of its own. A lease that was granted through the link was
/// unknown to whoever made the deleted file anew under its own name: the second holder came at once.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_named_by_a_link_is_refused() {
    let stage = Stage::new();
    Player::new(stage.open("locks.db"), "one").enter().await;
    for target in ["locks.db", "none.db"] {
        let _ = fs::remove_file(stage.file("link.db"));
        std::os::unix::fs::symlink(stage.file(target), stage.file("link.db")).unwrap();
        let other = Player::new(stage.open("link.db"), "one");
        let error = other.backend.claim(&other.claim).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert!(!stage.file("none.db").exists() && !stage.file(".link.db.guard").exists());
}

/// The first hint in a new file is heard, also when a request of ours opened it.
#[tokio::test(start_paused = true)]
async fn hints_of_a_new_file_are_heard_from_the_first() {
    let stage = Stage::new();
    let holder = Player::new(stage.open("locks.db"), "one");
    let mut stream = holder.backend.wakes(holder.claim.owner.process(), Audience::Holders);
    for _ in 0..3 {
        holder.enter().await;
        stage.open("locks.db").break_lock(&holder.claim.name, BreakScope::Leases).await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(1), stream.next()).await;
        assert_eq!(heard.unwrap(), WakeEvent::Owner(holder.claim.owner));
    }
    stage.delete("locks.db");
    assert_shut(&holder).await;
    pass(TTL).await;
    holder.enter().await;
    stage.open("locks.db").break_lock(&holder.claim.name, BreakScope::Leases).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(1), stream.next()).await;
    assert!(matches!(heard.unwrap(), WakeEvent::All | WakeEvent::Owner(_)), "L6");
}

/// H6.4: rows of free locks are swept in time, and tokens do not go back when they are made anew.
#[tokio::test(start_paused = true)]
async fn swept_rows_leave_their_fence_as_the_floor() {
    let stage = Stage::new();
    let backend = stage.open("locks.db");
    let mut last = None;
    for n in 0..40 {
        let player = Player::new(backend.clone(), &format!("old/{n}"));
        last = Some(player.enter().await.token);
        player.leave().await;
    }
    let held = Player::new(backend.clone(), "old/held");
    let grant = held.enter().await;
    for _ in 0..1000 {
        pass(TTL / 2).await;
        assert_eq!(held.renew(&grant).await, Renewal::Renewed);
    }
    for n in 0..40 {
        Player::new(backend.clone(), &format!("new/{n}")).enter().await;
    }
    let raw = Connection::open(stage.file("locks.db")).unwrap();
    let old: i64 =
        raw.query_row("SELECT count(*) FROM lock WHERE name GLOB 'old/*'", [], |row| row.get(0)).unwrap();
    assert_eq!(old, 1, "all but the held one were swept");
    stage.host.step_wall(-100_000_000);
    assert!(
        Player::new(backend, "old/3").enter().await.token > last.unwrap(),
        "L2 with a clock that went back"
    );
}

//! What waiting costs, and that it does not grow with the number of those who wait.

use std::{fs, num::NonZeroU32, time::Duration};

use rusqlite::Connection;
use tenure_core::{Audience, ClaimAnswer, ErrorKind, Outcome, Released, WakeEvent};
use tenure_testkit::{conformance::player::Player, host::pass};

use crate::stage::Stage;

/// A frame of SQLite's log: a page and its header.
const FRAME: u64 = 4096 + 24;

impl Stage {
    async fn with_holder() -> (Self, Player) {
        let stage = Self::new();
        let holder = stage.player("job");
        holder.enter().await;
        (stage, holder)
    }

    async fn line_up(&self, waiters: usize) -> Vec<Player> {
        let mut queue = Vec::new();
        for _ in 0..waiters {
            let player = self.player("job");
            assert!(matches!(player.ask().await, ClaimAnswer::Queued { .. }));
            queue.push(player);
        }
        self.empty_log();
        queue
    }

    fn empty_log(&self) {
        let raw = Connection::open(self.file()).unwrap();
        raw.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        assert_eq!(self.written(), 0);
    }

    /// How many pages were written since the log was emptied.
    fn written(&self) -> u64 {
        let log = self.folder.path().join("locks.db-wal");
        fs::metadata(log).map_or(0, |log| log.len() / FRAME)
    }
}

/// How many pages were read by this thread so far; SQLite reads each by a call of its own.
fn reads() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/io").unwrap();
    text.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}

/// L6: with some 500 waiting processes the holder lost its lease, because each of their polls rewrote the whole queue under
/// the only write lock. Now a poll writes nothing as long as the place is fresh.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_asks_again_writes_nothing_while_its_place_is_fresh() {
    let (stage, _holder) = Stage::with_holder().await;
    let queue = stage.line_up(100).await;
    for _ in 0..2 {
        pass(Duration::from_secs(1)).await;
        for (ahead, waiter) in queue.iter().enumerate() {
            let retry_after = waiter.queue_behind(ahead).await;
            assert!(retry_after <= Duration::from_secs(2), "{retry_after:?}");
        }
    }
    assert_eq!(stage.written(), 0);
}

/// L6, L7: a place is kept by who asks as often as it is told, with two pages at a time, and rarely.
#[tokio::test(start_paused = true)]
async fn a_place_is_kept_rarely_and_by_a_small_write() {
    let (stage, holder) = Stage::with_holder().await;
    let queue = stage.line_up(10).await;
    let (mut writes, mut asked) = (0, 0);
    let grant = holder.enter().await;
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while tokio::time::Instant::now() < until {
        let ClaimAnswer::Queued { ahead: 3, retry_after, .. } = queue[3].ask().await else {
            panic!("the place was lost after {asked} polls");
        };
        asked += 1;
        stage.empty_log();
        pass(retry_after).await;
        holder.renew(&grant).await;
        for (ahead, other) in queue.iter().enumerate().filter(|(ahead, _)| *ahead != 3) {
            other.queue_behind(ahead).await;
        }
        stage.empty_log();
        queue[3].queue_behind(3).await;
        asked += 1;
        assert!(stage.written() <= 2, "{} pages for one place", stage.written());
        writes += u64::from(stage.written() > 0);
    }
    assert!((10..=27).contains(&writes), "{writes} writes in 60 s, {asked} polls");
}

/// Pages that are read and written by one poll after somebody else wrote, and by a release and the claim of the next one.
async fn costs(waiters: usize) -> [u64; 4] {
    let (stage, holder) = Stage::with_holder().await;
    let queue = stage.line_up(waiters).await;
    let last = queue.last().unwrap();
    // Its pages are not those of another thread, or of an older snapshot.
    assert!(matches!(last.ask().await, ClaimAnswer::Queued { .. }));
    stage.player("job").ask().await;
    stage.empty_log();
    let before = reads();
    let ClaimAnswer::Queued { ahead, .. } = last.ask().await else { panic!("it waits") };
    let polled = [reads() - before, stage.written()];
    assert_eq!(ahead, waiters - 1);
    let before = reads();
    assert_eq!(holder.leave().await, Released::Released);
    queue[0].enter().await;
    [polled[0], polled[1], reads() - before, stage.written()]
}

/// L6: a poll and a change of owner took time in proportion to the queue, and 600 waiters took more than there was. The pages that
/// are read and written are counted, with few and with many waiters.
#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn neither_a_poll_nor_a_change_of_owner_costs_more_with_many_waiters() {
    let few = costs(60).await;
    let many = costs(300).await;
    let [reads, writes, change_reads, change_writes] = many;
    assert!(reads <= few[0] + 8 && reads <= 16, "a poll reads {reads} pages, {} with 60", few[0]);
    assert_eq!((writes, few[1]), (0, 0), "a poll writes");
    assert!(change_reads <= few[2] + 6, "a change reads {change_reads} pages, {} with 60", few[2]);
    assert!(change_writes <= few[3] + 4, "a change writes {change_writes} pages, {} with 60", few[3]);
}

/// L6: each is told when it is handed the lock, soon enough to enter.
#[tokio::test(start_paused = true)]
async fn every_waiter_hears_of_its_turn_in_time_and_enters() {
    let (stage, mut holder) = Stage::with_holder().await;
    let queue = stage.line_up(60).await;
    let hints = queue.iter().map(|w| w.backend.wakes(w.claim.owner.process(), Audience::Waiters));
    let mut hints: Vec<_> = hints.collect();
    pass(Duration::from_millis(1500)).await;
    for (waiter, hints) in queue.into_iter().zip(&mut hints) {
        assert_eq!(holder.leave().await, Released::Released);
        let wake = tokio::time::timeout(Duration::from_millis(400), hints.next()).await;
        assert_eq!(wake.unwrap(), WakeEvent::Owner(waiter.claim.owner));
        waiter.enter().await;
        holder = waiter;
    }
}

/// L6: all readers that wait are let in by one hand-off, however many there are.
#[tokio::test(start_paused = true)]
async fn a_hand_off_reads_as_far_as_it_hands_on() {
    let (stage, holder) = Stage::with_holder().await;
    let mut readers = Vec::new();
    for _ in 0..80 {
        let reader = stage.player("job").reading();
        assert!(matches!(reader.ask().await, ClaimAnswer::Queued { .. }));
        readers.push(reader);
    }
    let writer = stage.player("job");
    assert!(matches!(writer.ask().await, ClaimAnswer::Queued { .. }));
    assert_eq!(holder.leave().await, Released::Released);
    let view = writer.backend.inspect(&writer.claim.name).await.unwrap();
    assert_eq!((view.holders.len(), view.queue.len()), (80, 1), "by the release alone");
    for reader in &readers {
        reader.enter().await;
    }
    assert_eq!(writer.queue_behind(0).await, Duration::from_secs(2));
}

/// L6, hazard 33: those who died together are passed over together, by reading as far as they stand.
#[tokio::test(start_paused = true)]
async fn many_dead_in_front_of_a_live_waiter_are_passed_over_at_once() {
    let (stage, holder) = Stage::with_holder().await;
    let dead = stage.line_up(60).await;
    pass(Duration::from_millis(5500)).await;
    let live = stage.player("job");
    live.queue_behind(60).await;
    pass(Duration::from_millis(600)).await;
    drop(dead);
    assert_eq!(holder.leave().await, Released::Released);
    live.enter().await;
    assert_eq!(live.leave().await, Released::Released);
    let raw = Connection::open(stage.file()).unwrap();
    let left: i64 = raw.query_row("SELECT count(*) FROM place", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0, "L8: nothing of them is left");
}

/// L6: who finds the queue full is told so, at the bound and not before it.
#[tokio::test(start_paused = true)]
async fn a_full_queue_says_how_many_wait_and_takes_the_next_one_when_somebody_leaves() {
    let (stage, _holder) = Stage::with_holder().await;
    let first = stage.line_up(1).await.remove(0);
    // Rows as the command writes them, all but the last few at once.
    let raw = Connection::open(stage.file()).unwrap();
    raw.execute_batch(
        "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 4095)
         INSERT INTO place SELECT p.name, n.i, printf('%048x', n.i), 1, p.ends_us, json_set(p.state, '$.owner', printf('%048x', n.i))
         FROM n, (SELECT * FROM place) AS p",
    )
    .unwrap();
    let last = stage.player("job");
    assert!(matches!(last.ask().await, ClaimAnswer::Queued { ahead: 4095, .. }));
    let refused = stage.player("job");
    let error = refused.backend.claim(&refused.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied));
    assert!(error.to_string().contains("4096 owners wait already"), "{error}");
    assert_eq!(first.leave().await, Released::Released);
    assert!(matches!(refused.ask().await, ClaimAnswer::Queued { .. }));
}

/// A file of the schema before this one keeps its holders, its fence and its queue.
#[tokio::test(start_paused = true)]
async fn a_file_of_the_older_schema_is_taken_over_with_its_holders_and_its_queue() {
    let stage = Stage::new();
    let semaphore = |player: Player| player.slots(NonZeroU32::MIN.get());
    let holder = semaphore(stage.player("job"));
    let token = holder.enter().await.token;
    let (second, third) = (semaphore(stage.player("job")), semaphore(stage.player("job")));
    second.queue_behind(0).await;
    third.queue_behind(1).await;
    let raw = Connection::open(stage.file()).unwrap();
    raw.execute_batch(
        "UPDATE lock SET state = json_set(state, '$.queue',
             json((SELECT json_group_array(json(state)) FROM (SELECT state FROM place ORDER BY number))));
         DROP TABLE place; PRAGMA user_version = 1",
    )
    .unwrap();
    let newcomer = semaphore(stage.player("job"));
    newcomer.queue_behind(2).await;
    let view = newcomer.backend.inspect(&newcomer.claim.name).await.unwrap();
    let owners = [&second, &third, &newcomer].map(|player| player.claim.owner.to_string());
    assert_eq!(view.queue.iter().map(|w| w.owner.clone()).collect::<Vec<_>>(), owners);
    assert_eq!(view.holders[0].owner, holder.claim.owner.to_string());
    assert_eq!(holder.leave().await, Released::Released);
    assert!(second.enter().await.token > token, "L2");
}

//! Who stands far from the front of a queue looks rarely, and finds its turn in time all the same.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rusqlite::Connection;
use tenure_core::{
    Audience, BoxFuture, ClaimAnswer, Host, LockName, Moment, OwnerId, Released, Start, WakeEvent, WakeStream,
};
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{
    conformance::player::Player,
    host::{PausedHost, pass},
};
use tokio::{task::JoinHandle, time::timeout};

use crate::stage::Stage;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Counts how often somebody slept: a poll sleeps once for each look.
struct CountingHost {
    host: Arc<PausedHost>,
    sleeps: AtomicUsize,
}

impl Host for CountingHost {
    fn now(&self) -> Moment {
        self.host.now()
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        self.host.sleep_until(until)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.host.spawn(task);
    }

    fn spawn_apart(&self, name: &'static str, start: Start) -> io::Result<()> {
        self.host.spawn_apart(name, start)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.host.random(bytes);
    }
}

impl Stage {
    async fn queued(&self, name: &str) -> Player {
        let player = self.player(name);
        assert!(matches!(player.ask().await, ClaimAnswer::Queued { .. }));
        player
    }

    /// A holder and so many who wait behind it.
    async fn queue(&self, waiters: usize) -> (Player, Vec<Player>) {
        let holder = self.player("job");
        holder.enter().await;
        let mut queue = Vec::new();
        for _ in 0..waiters {
            queue.push(self.queued("job").await);
        }
        (holder, queue)
    }

    /// One more, whose looks are counted.
    async fn far(&self) -> Far {
        let host = Arc::new(CountingHost { host: self.host.clone(), sleeps: AtomicUsize::new(0) });
        let player = Player::new(Arc::new(Sqlite::new(Config::new(self.file()), host.clone())), "job");
        let hints = player.backend.wakes(player.claim.owner.process(), Audience::Waiters);
        assert!(matches!(player.ask().await, ClaimAnswer::Queued { .. }));
        Far { player, host, listening: listen(hints) }
    }
}

type Heard = (WakeEvent, Box<dyn WakeStream>);

fn listen(mut hints: Box<dyn WakeStream>) -> JoinHandle<Heard> {
    tokio::spawn(async move { (hints.next().await, hints) })
}

struct Far {
    player: Player,
    host: Arc<CountingHost>,
    listening: JoinHandle<Heard>,
}

impl Far {
    fn looks(&self) -> usize {
        self.host.sleeps.load(Ordering::SeqCst)
    }

    /// Until a moment after it has looked: the next look is as far away as it can be.
    async fn has_just_looked(&self) {
        let before = self.looks();
        while self.looks() == before {
            pass(ms(1)).await;
        }
    }

    async fn hears_within(&mut self, bound: Duration) -> WakeEvent {
        let heard = timeout(bound, &mut self.listening).await;
        heard.expect("it hears of its turn in time").unwrap().0
    }
}

/// L6: 500 waiting processes took a whole processor. Each looked eight times a second; and a change of owner leaves two hints,
/// of which each was counted as a place, so behind half of the queue all others looked once in a millisecond.
#[tokio::test(start_paused = true)]
async fn who_is_far_from_the_front_looks_rarely_while_the_queue_stands_and_while_it_moves() {
    let stage = Stage::new();
    let (mut holder, queue) = stage.queue(200).await;
    let mut far = stage.far().await;
    pass(ms(2000)).await;
    let stood = far.looks();
    assert!(stood <= 10, "{stood} looks in 2 s behind 200 others");
    for next in queue {
        assert_eq!(holder.leave().await, Released::Released);
        next.enter().await;
        holder = next;
        pass(ms(5)).await;
    }
    let moved = far.looks() - stood;
    assert!(moved <= 60, "{moved} looks while 200 others were served in a second");
    assert_eq!(holder.leave().await, Released::Released);
    assert_eq!(far.hears_within(ms(30)).await, WakeEvent::Owner(far.player.claim.owner));
    far.player.enter().await;
}

/// L6, L7: many in front leave at once, and the one behind them is handed the lock a moment after it has looked. It is told
/// one claim ttl later at the latest, and has as long again to enter.
#[tokio::test(start_paused = true)]
async fn who_was_far_when_all_ahead_left_at_once_keeps_its_turn() {
    let stage = Stage::new();
    let (holder, queue) = stage.queue(150).await;
    let mut far = stage.far().await;
    pass(ms(2000)).await;
    let behind = stage.queued("job").await;
    far.has_just_looked().await;
    for waiter in &queue {
        assert_eq!(waiter.leave().await, Released::Released);
    }
    assert_eq!(holder.leave().await, Released::Released);
    assert_eq!(far.hears_within(ms(500)).await, WakeEvent::Owner(far.player.claim.owner));
    pass(ms(450)).await;
    assert!(!behind.try_enter().await, "it is not its turn");
    far.player.enter().await;
}

/// L6: a process looks as often as the foremost of its waiters needs, also if that one came while it slept.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_near_is_told_soon_though_another_one_of_its_process_is_far() {
    let stage = Stage::new();
    let (_holder, _queue) = stage.queue(150).await;
    let mut far = stage.far().await;
    pass(ms(2000)).await;
    let other = stage.player("other");
    other.enter().await;
    far.has_just_looked().await;
    let process = far.player.claim.owner.process();
    let owner = OwnerId::from_random(process, [7; 16]);
    let claim = far.player.claim.clone().with_name(LockName::new("other").unwrap()).with_owner(owner);
    let answer = far.player.backend.claim(&claim).await.unwrap();
    assert!(matches!(answer, ClaimAnswer::Queued { ahead: 0, .. }), "{answer:?}");
    assert_eq!(other.leave().await, Released::Released);
    assert_eq!(far.hears_within(ms(30)).await, WakeEvent::Owner(owner));
}

/// L6: the last thousand hints are kept, for all locks of a file. Whoever slept through more heard nothing of its turn, and lost
/// it; now it is told to ask.
#[tokio::test(start_paused = true)]
async fn who_slept_through_more_hints_than_are_kept_is_told_to_ask() {
    let stage = Stage::new();
    let (_holder, _queue) = stage.queue(1).await;
    let mut far = stage.far().await;
    pass(ms(100)).await;
    let raw = Connection::open(stage.file()).unwrap();
    let (process, owner) = (far.player.claim.owner.process().to_string(), far.player.claim.owner.to_string());
    raw.execute("INSERT INTO wake (process, audience, owner) VALUES (?1, 0, ?2)", (process, owner)).unwrap();
    raw.execute_batch(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)
         INSERT INTO wake (process, audience, owner) SELECT '', 0, '' FROM n;
         DELETE FROM wake WHERE seq <= (SELECT max(seq) FROM wake) - 1000",
    )
    .unwrap();
    assert_eq!(far.hears_within(ms(100)).await, WakeEvent::All);
}

/// L6: whoever is handed the lock stands in everybody's way until it has entered. It came back to a busy file ever later, as those
/// do who only wait; now it asks as hard as a holder.
#[tokio::test(start_paused = true)]
async fn whoever_may_enter_asks_as_hard_as_a_holder() {
    let stage = Stage::new();
    let (holder, queue) = stage.queue(2).await;
    assert_eq!(holder.leave().await, Released::Released);
    let raw = Connection::open(stage.file()).unwrap();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    for _ in 0..10 {
        let error = queue[0].backend.claim(&queue[0].claim).await.unwrap_err();
        assert!(error.retry_hint().unwrap() <= ms(2), "{error:?}");
    }
    raw.execute_batch("ROLLBACK").unwrap();
    queue[0].enter().await;
}

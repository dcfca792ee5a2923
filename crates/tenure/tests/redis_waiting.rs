//! Hazards of waiting for a lock in Redis: first with the queue that everybody writes, then with ours.

#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tenure::{AcquireError, ErrorKind, Guard, Locker, ReleaseError};
use tenure_testkit::{
    patience::{eventually, slowness},
    redis::{Raw, Reply},
};

use crate::redis_stage::{
    Far, LONG, NAME, Naive, PATIENCE, Stage, TOLD, acquire, entry, in_time, ms, naive, process_of, waiting,
};

/// The channel on which naive clients tell each other.
const CHANNEL: &str = "naive:free";
/// So that nobody enters because somebody else's time to enter is over. The releasing client's counts.
const SLOW_CLAIMS: &str = "&claim_ttl=6s&response_timeout=10s";

/// The holder, in a process of its own.
async fn holder(stage: &Stage, query: &str) -> (Locker, Guard) {
    let locks = stage.locks(query).await;
    let guard = acquire(locks.mutex(NAME).ttl(LONG)).await;
    (locks, guard)
}

/// Whether a message comes to a client that waits for one.
fn hears(raw: &mut Raw) -> bool {
    raw.set_patience(ms(200)).unwrap();
    raw.read().is_ok()
}

/// Hazard 31, L6: the lock is released while the answer to the claim is on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_between_the_claim_and_its_answer_is_heard() {
    let stage = Stage::new().await;
    let [mut first, mut second] = ["first", "second"].map(|owner| Naive::to(stage.server.port(), owner));
    assert!(first.acquire(LONG) && !second.acquire(LONG));
    assert!(first.release());
    assert_eq!(stage.ask(&["PUBLISH", CHANNEL, "free"]), Reply::Int(0));
    second.raw.command(&["SUBSCRIBE", CHANNEL]);
    assert!(!hears(&mut second.raw), "it waits for a message that was sent before");
    assert_eq!(stage.value(naive::KEY), None, "and the lock is free");

    for protocol in ["&protocol=3", "&protocol=2"] {
        let query = format!("{SLOW_CLAIMS}{protocol}");
        let far = stage.far(&query).await;
        let (_locks, guard) = holder(&stage, &query).await;
        // From here on it asks for a place with its first request.
        assert!(far.locks.mutex(NAME).try_acquire().await.unwrap().is_none());
        far.proxy.hold_replies();
        let next = waiting(&far.locks, LONG);
        stage.settle(1, 1).await;
        guard.release().await.unwrap();
        far.proxy.release();
        let (guard, took) = entry(next).await;
        assert!(took < TOLD, "{protocol}: {took:?}");
        guard.release().await.unwrap();
    }
}

/// Hazard 32, L6: whichever connection is killed just before the release, the holder's or the waiter's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_connection_is_killed_before_the_release_enters_all_the_same() {
    let stage = Stage::new().await;
    let mut naive = stage.server.raw();
    naive.command(&["SUBSCRIBE", CHANNEL]);
    assert_eq!(stage.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]), Reply::Int(1));
    assert_eq!(stage.ask(&["PUBLISH", CHANNEL, "free"]), Reply::Int(0));
    let mut naive = stage.server.raw();
    naive.command(&["SUBSCRIBE", CHANNEL]);
    assert!(!hears(&mut naive), "it has subscribed again, and waits for a message that was sent before");

    for protocol in ["&protocol=3", "&protocol=2"] {
        for kind in ["pubsub", "normal"] {
            let case = format!("{protocol}, {kind}");
            let (_locks, guard) = holder(&stage, protocol).await;
            let waiter = stage.locks(protocol).await;
            let next = waiting(&waiter, LONG);
            stage.settle(1, 1).await;
            let killed = stage.ask(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).int();
            assert!(killed > 0, "{case}");
            let answer = in_time(guard.release()).await;
            assert!(matches!(answer, Ok(()) | Err(ReleaseError::Unknown(_))), "{case}: {answer:?}");
            let (guard, took) = entry(next).await;
            assert!(took < TOLD, "{case}: {took:?}");
            guard.release().await.unwrap();
        }
    }
}

/// Hazard 32, L6: nobody could be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_was_cut_off_during_the_release_enters_when_it_is_back() {
    let stage = Stage::new().await;
    let far = stage.far("").await;
    let (_locks, guard) = holder(&stage, "").await;
    let next = waiting(&far.locks, LONG);
    stage.settle(1, 1).await;
    cut(&stage, &far, &guard).await;
    guard.release().await.unwrap();
    assert!(!next.is_finished());
    far.proxy.heal();
    let (_guard, took) = entry(next).await;
    assert!(took < TOLD, "{took:?}");
}

/// L6. In a fail-over a server takes no writes for a moment: it has become a replica, and is made a master again, here without
/// another one's data. Whoever waits goes on waiting, in the queue or for the server; who does not wait is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moment_of_read_only_is_waited_out() {
    let stage = Stage::new().await;
    let (locks, guard) = holder(&stage, "").await;
    let waiter = stage.locks("").await;
    let next = waiting(&waiter, LONG);
    stage.settle(1, 1).await;
    // Nobody answers there.
    stage.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let late = stage.locks("").await;
    for locks in [&locks, &late] {
        let error = locks.mutex("other").try_acquire().await.map(drop).unwrap_err();
        let AcquireError::Store(error) = error else { panic!("{error:?}") };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("is a replica and takes no writes"), "{error}");
    }
    let other = late.mutex("other").ttl(LONG);
    let newcomer = tokio::spawn(async move { other.within(PATIENCE * slowness()).acquire().await });
    // Longer than until the waiter asks again.
    tokio::time::sleep(ms(2_500)).await;
    assert!(!next.is_finished() && !newcomer.is_finished(), "both wait");
    guard.check().unwrap();
    stage.ask(&["REPLICAOF", "NO", "ONE"]);
    in_time(newcomer).await.unwrap().unwrap().release().await.unwrap();
    assert!(!next.is_finished(), "L1");
    guard.release().await.unwrap();
    entry(next).await.0.release().await.unwrap();
}

/// As the server sees it, the process is gone.
async fn cut(stage: &Stage, far: &Far, other: &Guard) {
    far.proxy.cut();
    let channels = || stage.ask(&["PUBSUB", "CHANNELS", "tenure:p:*"]).texts();
    let own = format!("tenure:p:{}", process_of(other));
    eventually("it is gone", PATIENCE, || channels().iter().all(|channel| *channel == own).then_some(()));
}

/// The queue that everybody writes: the holder gives the lock to the head of a list.
fn naive_hand_off_to_the_dead(stage: &Stage) {
    let mut holder = Naive::to(stage.server.port(), "holder");
    assert!(holder.acquire(LONG));
    stage.ask(&["RPUSH", "naive:queue", "dead", "next"]);
    let head = stage.ask(&["LPOP", "naive:queue"]).text();
    stage.ask(&["SET", naive::KEY, &head, "PX", &naive::millis(LONG)]);
    let mut next = Naive::to(stage.server.port(), "next");
    assert!(!next.acquire(LONG), "it waits for the dead");
    assert!(stage.ask(&["PTTL", naive::KEY]).int() > 500_000, "for a whole ttl");
}

/// The first in the queue, far away, and the one behind it.
struct Queue {
    stage: Stage,
    far: Far,
    guard: Guard,
    first: tokio::task::JoinHandle<Result<Guard, AcquireError>>,
    second: tokio::task::JoinHandle<Result<Guard, AcquireError>>,
    _locks: [Locker; 2],
}

async fn queue(query: &str) -> Queue {
    let stage = Stage::new().await;
    let far = stage.far(query).await;
    let (locks, guard) = holder(&stage, query).await;
    let first = waiting(&far.locks, LONG);
    stage.settle(1, 1).await;
    let behind = stage.locks(query).await;
    let second = waiting(&behind, LONG);
    stage.settle(1, 2).await;
    Queue { stage, far, guard, first, second, _locks: [locks, behind] }
}

/// Hazard 33, L6, H1.8: cancelled when its turn had come and it did not know yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_to_a_cancelled_waiter_is_handed_on_at_once() {
    let Queue { stage, far, guard, first, second, _locks } = queue(SLOW_CLAIMS).await;
    naive_hand_off_to_the_dead(&stage);
    far.proxy.hold_replies();
    guard.release().await.unwrap();
    assert_eq!(stage.held().unwrap().token, None, "handed, and not entered (H1.1)");
    first.abort();
    assert!(in_time(first).await.unwrap_err().is_cancelled());
    far.proxy.release();
    let (guard, took) = entry(second).await;
    assert!(took < TOLD, "{took:?}");
    assert_eq!(stage.held().unwrap().owner, guard.owner().to_string());
    stage.settle(1, 0).await;
}

/// Hazard 33, L6: nobody listens for it any more, as the release can see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_is_passed_over_at_once() {
    let Queue { stage, far, guard, first, second, _locks } = queue(SLOW_CLAIMS).await;
    far.proxy.cut();
    let channels = || stage.ask(&["PUBSUB", "CHANNELS", "tenure:p:*"]).texts().len();
    // That of the holder, which has asked for a lock once, and that of the second.
    eventually("the first one is gone", PATIENCE, || (channels() == 2).then_some(()));
    guard.release().await.unwrap();
    let (_guard, took) = entry(second).await;
    assert!(took < TOLD, "{took:?}");
    first.abort();
}

/// Hazard 33, L6: it listens, and does nothing. Costs the time to enter, 500 ms, and no ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_hangs_is_passed_over_when_its_time_to_enter_is_over() {
    let Queue { stage, far, guard, first, second, _locks } = queue("&claim_ttl=500ms").await;
    far.proxy.stall();
    guard.release().await.unwrap();
    assert_eq!(stage.held().unwrap().token, None, "handed to the one that hangs");
    let (_guard, took) = entry(second).await;
    assert!(took < Duration::from_millis(500) + ms(1_500), "{took:?}");
    assert!(!first.is_finished());
    first.abort();
}

/// A client that hears every message to waiters.
struct Spy(Raw);

impl Spy {
    fn on(stage: &Stage) -> Self {
        let mut raw = stage.server.raw();
        raw.command(&["PSUBSCRIBE", "tenure:*"]);
        Self(raw)
    }

    /// Channel and text of the next message.
    fn next(&mut self) -> (String, String) {
        let mut words = self.0.read().unwrap().texts();
        (words.remove(2), words.pop().unwrap())
    }
}

/// A naive waiter enters when it is told that it may, with the token that it is told.
fn naive_entry_on_an_old_message(stage: &Stage) {
    let mut waiter = stage.server.raw();
    waiter.command(&["SUBSCRIBE", CHANNEL]);
    stage.ask(&["PUBLISH", CHANNEL, "granted 7"]);
    let first = waiter.read().unwrap();
    let mut holder = Naive::to(stage.server.port(), "holder");
    assert!(holder.acquire(LONG), "the claim was over; somebody else holds, with the token 8");
    stage.ask(&["PUBLISH", CHANNEL, "granted 7"]);
    assert_eq!(waiter.read().unwrap(), first, "it enters beside the holder, with the old token");
    assert!(holder.believes());
}

/// Hazard 34, H1.1, H1.4, L1, L2: a message makes a waiter ask, and nothing else. So does every other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_enters_on_a_message_and_no_message_does_harm() {
    let stage = Stage::new().await;
    naive_entry_on_an_old_message(&stage);
    let mut spy = Spy::on(&stage);
    let waiter = stage.locks("").await;
    let (locks, guard) = holder(&stage, "").await;
    let next = waiting(&waiter, LONG);
    stage.settle(1, 1).await;
    guard.release().await.unwrap();
    let (channel, grant) = spy.next();
    let (served, _) = entry(next).await;
    assert_eq!(format!("a{}", &served.owner().to_string()[16..]), grant, "that was the message of its grant");
    served.release().await.unwrap();

    let guard = acquire(locks.mutex(NAME).ttl(LONG)).await;
    stage.hears_of_robbery(&guard);
    let next = waiting(&waiter, LONG);
    stage.settle(1, 1).await;
    let owner = stage.view().await.unwrap().queue[0].owner.clone();
    assert_eq!(stage.ask(&["PUBLISH", &channel, &grant]), Reply::Int(2), "the waiter and the spy hear it");
    disturb(&stage, &channel, &owner[16..], &guard);
    // Every message was read: the last one made the waiter ask.
    let claims = || stage.server.info("commandstats", "cmdstat_evalsha");
    let before = claims();
    stage.ask(&["PUBLISH", &channel, &format!("a{}", &owner[16..])]);
    eventually("it asks", PATIENCE, || (claims() != before).then_some(()));
    stage.settle(1, 1).await;
    assert!(!next.is_finished(), "L1");
    assert_eq!(guard.check(), Ok(()));
    let token = guard.token();
    guard.release().await.unwrap();
    let (guard, took) = entry(next).await;
    assert!(took < TOLD, "it still hears: {took:?}");
    assert!(guard.token() > token, "L2");
    assert_eq!(stage.held().unwrap().token, Some(guard.token()));
}

/// Messages of every wrong kind to the waiter with this part of an owner and to the holder, and many of them.
fn disturb(stage: &Stage, channel: &str, claim: &str, holder: &Guard) {
    let robbed = format!("tenure:h:{}", process_of(holder));
    let huge = "a".repeat(1 << 20);
    let own = &holder.owner().to_string()[16..];
    for text in ["", "a", "b", "é", "\0", "a0", &huge, &format!("a{claim}0"), &format!("a{}", "g".repeat(32))]
    {
        stage.ask(&["PUBLISH", channel, text]);
        stage.ask(&["PUBLISH", &robbed, text]);
    }
    for kind in ["a", "b", "x", "granted 7 "] {
        stage.ask(&["PUBLISH", channel, &format!("{kind}{claim}")]);
        stage.ask(&["PUBLISH", &robbed, &format!("{kind}{own}")]);
        stage.ask(&["PUBLISH", channel, &format!("{kind}{own}")]);
    }
    let flood = "for i = 1, 5000 do for _, kind in ipairs({'a', 'b', 'x', '\\255\\254'}) do \
                 redis.call('PUBLISH', KEYS[1], kind .. ARGV[1]) redis.call('PUBLISH', KEYS[2], kind .. ARGV[2]) \
                 end end return 'done'";
    let said = stage.ask(&["EVAL", flood, "2", channel, &robbed, claim, own]);
    assert_eq!(said, Reply::Text("done".into()));
}

/// L6, L7, L2: in the order of arrival, from two processes, each told by the one before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_waiters_enter_in_the_order_in_which_they_came() {
    let stage = Stage::new().await;
    let processes = [stage.locks("").await, stage.locks("").await];
    let (_locks, guard) = holder(&stage, "").await;
    let entries = Arc::<Mutex<Vec<_>>>::default();
    let mut visitors = Vec::new();
    for number in 0..8 {
        let (lock, entries) = (processes[number % 2].rwlock(NAME).write().ttl(LONG), entries.clone());
        visitors.push(tokio::spawn(async move {
            let guard = acquire(lock).await;
            entries.lock().unwrap().push((number, guard.token()));
            guard.release().await.unwrap();
        }));
        stage.settle(1, number + 1).await;
    }
    let began = Instant::now();
    guard.release().await.unwrap();
    for visitor in visitors {
        in_time(visitor).await.unwrap();
    }
    assert!(began.elapsed() < TOLD, "all were told: {:?}", began.elapsed());
    let entries = entries.lock().unwrap().clone();
    assert_eq!(entries.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(entries.is_sorted_by(|(_, a), (_, b)| a < b), "L2: {entries:?}");
    stage.settle(0, 0).await;
}

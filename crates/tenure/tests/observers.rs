//! An observer of an election on each store: every change of leader, in order, and not late. Told of it where the store can
//! tell, and by looking once a second elsewhere.

#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

use std::time::{Duration, Instant};

use tenure::{
    FencingToken, connect,
    election::{Leader, Observed},
};
use tenure_testkit::{
    patience::slowness, postgres::PostgresServer, redis::RedisServer, zookeeper::ZooKeeperServer,
};

/// How long a leader leads, and nobody does: longer than an observer pauses.
const STAY: Duration = Duration::from_millis(600);
/// How long an observer pauses that is told nothing.
const PAUSE: Duration = Duration::from_millis(200);
/// Its pause, and a look.
const LATE: Duration = Duration::from_millis(400);

/// How rarely an observer looks that is told: what it sees sooner it was told of.
const RARELY: Duration = Duration::from_secs(20);

/// What an observer is to see: who leads, and what that one said.
type Seen = Option<(FencingToken, Option<String>)>;

fn seen(leader: Option<Leader>) -> Seen {
    leader.map(|leader| (leader.term, leader.proclaimed))
}

/// L2: three leaders one after the other, each with an address, seen by a process that has nothing to do with them.
async fn every_change_is_seen_in_order(url: &str) {
    let stay = STAY * slowness();
    let election = connect(url).await.unwrap().election("scheduler");
    let mut observer = connect(url).await.unwrap().election("scheduler").poll_interval(PAUSE).observe();
    assert_eq!(observer.next().await.unwrap(), Observed::Vacant);
    let watching = tokio::spawn(async move {
        let mut changes: Vec<(Instant, Seen)> = Vec::new();
        while changes.len() < 9 {
            // A busy machine may keep the store from answering in time.
            if let Ok(leader) = observer.next().await.map(Observed::leader) {
                changes.push((Instant::now(), seen(leader)));
            }
        }
        changes
    });
    let mut expected: Vec<(Instant, Seen)> = Vec::new();
    for n in 0..3 {
        let leadership = election.campaign().await.unwrap();
        let (term, address) = (leadership.token(), format!("10.0.0.{n}:80"));
        expected.push((Instant::now(), Some((term, None))));
        tokio::time::sleep(stay).await;
        leadership.proclaim(&address).await.unwrap();
        expected.push((Instant::now(), Some((term, Some(address)))));
        tokio::time::sleep(stay).await;
        leadership.resign().await.unwrap();
        expected.push((Instant::now(), None));
        tokio::time::sleep(stay).await;
    }
    let changes = tokio::time::timeout(20 * stay, watching).await.expect("all changes are seen").unwrap();
    assert!(expected.windows(2).all(|pair| match (&pair[0].1, &pair[1].1) {
        (Some((earlier, _)), Some((later, _))) => earlier <= later,
        _ => true,
    }));
    for ((at, change), (came, wanted)) in changes.into_iter().zip(expected) {
        assert_eq!(change, wanted);
        let late = at.saturating_duration_since(came);
        assert!(late <= LATE * slowness(), "{wanted:?} was seen {late:?} late");
    }
}

/// L2: the same, by an observer that is told of most of it, for a hint may be lost.
async fn every_change_is_told(url: &str) {
    let election = connect(url).await.unwrap().election("scheduler");
    let mut observer = connect(url).await.unwrap().election("scheduler").poll_interval(RARELY).observe();
    assert_eq!(observer.next().await.unwrap(), Observed::Vacant);
    let first = election.campaign().await.unwrap();
    // Who does not listen yet is told in vain.
    let told = async {
        while observer.next().await.unwrap().leader().is_none_or(|leader| leader.proclaimed.is_none()) {}
    };
    let telling = async {
        loop {
            first.proclaim("here").await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! { () = told => {}, () = telling => {} }
    let mut seen_soon = 0;
    let mut sees = async |change: Seen| {
        let began = Instant::now();
        let next = tokio::time::timeout(RARELY * 2 * slowness(), observer.next()).await;
        assert_eq!(seen(next.expect("it is seen").unwrap().leader()), change);
        let took = began.elapsed();
        println!("seen {took:?} after it was told");
        seen_soon += u32::from(took < RARELY / 4);
    };
    first.resign().await.unwrap();
    sees(None).await;
    for n in 0..2 {
        let leadership = election.campaign().await.unwrap();
        let (term, address) = (leadership.token(), format!("10.0.0.{n}:80"));
        sees(Some((term, None))).await;
        leadership.proclaim(&address).await.unwrap();
        sees(Some((term, Some(address)))).await;
        leadership.resign().await.unwrap();
        sees(None).await;
    }
    assert!(seen_soon > 3, "{seen_soon} of 7 were told");
}

#[tokio::test]
async fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    every_change_is_told(&format!("sqlite:{}", folder.path().join("locks.db").display())).await;
}

#[tokio::test]
async fn on_redis() {
    every_change_is_told(&RedisServer::start().url("?guard=off")).await;
}

/// Where messages come over a connection of their own.
#[tokio::test]
async fn on_redis_without_pushes() {
    every_change_is_told(&RedisServer::start().url("?guard=off&protocol=2")).await;
}

#[tokio::test]
async fn on_a_quorum() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let nodes: Vec<String> = servers.iter().map(|server| server.url("")).collect();
    every_change_is_told(&format!("redlock:{}?guard=off", nodes.join(","))).await;
}

#[tokio::test]
async fn on_postgres() {
    every_change_is_told(&PostgresServer::start().url("")).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn on_mysql() {
    every_change_is_told(&tenure_testkit::mysql::MysqlServer::start().url("")).await;
}

#[tokio::test]
async fn on_zookeeper() {
    every_change_is_seen_in_order(&ZooKeeperServer::start().url("")).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn on_etcd() {
    every_change_is_seen_in_order(&tenure_testkit::etcd::EtcdServer::start().url("")).await;
}

//! What is left of locks that nobody uses any more.

use std::{sync::Arc, time::Duration};

use rusqlite::Connection;
use tenure_core::{BackendHandle, Renewal};
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{
    conformance::player::{Player, TTL},
    host::{PausedHost, pass},
};

/// L8, L2: a row whose holder had died in it stayed for ever unless somebody asked for that lock again, and so did the places of
/// dead waiters: one of each for every `job-UUID` that was killed. Only rows that were given back were swept.
#[tokio::test(start_paused = true)]
async fn rows_in_which_everybody_died_are_swept_like_free_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let backend: BackendHandle = Arc::new(Sqlite::new(Config::new(&path), PausedHost::new(1)));
    let mut last = None;
    for n in 0..40 {
        last = Some(Player::new(backend.clone(), &format!("old/{n}")).enter().await.token);
        Player::new(backend.clone(), &format!("old/{n}")).queue_behind(0).await;
    }
    let mut detached = Player::new(backend.clone(), "old/detached");
    detached.claim.ttl = Duration::from_secs(24 * 3600);
    detached.enter().await;
    let held = Player::new(backend.clone(), "old/held");
    let grant = held.enter().await;
    for _ in 0..1000 {
        pass(TTL / 2).await;
        assert_eq!(held.renew(&grant).await, Renewal::Renewed);
    }
    let raw = Connection::open(&path).unwrap();
    raw.execute("INSERT INTO lock VALUES ('old/unreadable', 1, 0, '?')", []).unwrap();
    for n in 0..40 {
        Player::new(backend.clone(), &format!("new/{n}")).enter().await;
    }
    let left = |what: &str| {
        let mut rows = raw.prepare(&format!("SELECT name FROM {what} WHERE name GLOB 'old/*'")).unwrap();
        let names: Vec<String> = rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        names
    };
    assert_eq!(left("lock"), ["old/detached", "old/held", "old/unreadable"]);
    assert_eq!(left("place"), Vec::<String>::new());
    assert!(Player::new(backend, "old/3").enter().await.token > last.unwrap(), "L2");
}

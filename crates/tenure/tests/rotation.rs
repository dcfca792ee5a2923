//! A password that is replaced while a program holds a lease and another one waits: the new one is read from its file or asked
//! for when a connection is made, and no lease that was alive is lost.

#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure::{
    Locker,
    store::{EtcdStore, MysqlStore, PostgresStore, RedisStore},
};
use tenure_testkit::{
    patience::{stretch, until},
    rotation::Rotating,
};
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);

/// The first program holds and the second waits, each with handles of its own. Until the file is replaced, neither program has the new password.
async fn nothing_is_lost(server: &Rotating, pairs: [[Locker; 2]; 2], hand_over: impl FnOnce()) {
    let ttl = Duration::from_secs(6) * stretch();
    let (mut guards, mut waiters) = (Vec::new(), Vec::new());
    for (name, [first, second]) in ["file", "asked"].into_iter().zip(&pairs) {
        guards.push(first.mutex(name).ttl(ttl).acquire().await.unwrap());
        waiters.push(tokio::spawn(second.mutex(name).ttl(ttl).acquire()));
        until("it waits", PATIENCE, async || first.inspect(name).await.unwrap().queue.len() == 1).await;
    }
    server.change("new");
    for program in pairs.iter().flatten() {
        until("the old password is refused", PATIENCE, async || {
            let refused = program.inspect("file").await;
            refused.is_err_and(|error| error.to_string().contains("refuses this user or password"))
        })
        .await;
    }
    // By then a renewal was due.
    sleep(ttl / 3).await;
    hand_over();
    // By then a lease that is not renewed has ended.
    sleep(ttl + ttl / 3).await;
    for (guard, waiter) in guards.into_iter().zip(waiters) {
        guard.check().unwrap();
        assert!(!waiter.is_finished(), "it waits for its turn");
        let token = guard.token();
        guard.release().await.unwrap();
        let next = timeout(ttl, waiter).await.expect("the waiter is next").unwrap().unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
    }
}

macro_rules! rotations {
    ($($test:ident: $store:ty, $server:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let server = $server;
            let folder = tempfile::tempdir().unwrap();
            let (file, word) = (folder.path().join("secret"), Arc::new(Mutex::new("old")));
            fs::write(&file, "old\n").unwrap();
            // A user needs a password from the start; it is replaced below.
            let url = server.url().replace("locks@", "locks:none@");
            let (store, asked): ($store, _) = (url.parse().unwrap(), word.clone());
            let by_file = store.clone().password_file(&file);
            let by_program = store.password_from(move || Ok((*asked.lock().unwrap()).to_owned()));
            let [mut files, mut programs] = [Vec::new(), Vec::new()];
            for _ in 0..2 {
                files.push(by_file.connect().await.unwrap());
                programs.push(by_program.connect().await.unwrap());
            }
            let pair = |lockers: Vec<Locker>| <[Locker; 2]>::try_from(lockers).ok().unwrap();
            nothing_is_lost(&server, [pair(files), pair(programs)], || {
                fs::write(&file, "new\n").unwrap();
                *word.lock().unwrap() = "new";
            })
            .await;
        }
    )*};
}

rotations! {
    a_program_outlives_its_password_on_redis: RedisStore, Rotating::redis();
    a_program_outlives_its_password_on_postgres: PostgresStore, Rotating::postgres();
    a_program_outlives_its_password_on_mysql: MysqlStore, Rotating::mysql();
    a_program_outlives_its_password_on_etcd: EtcdStore, Rotating::etcd();
}

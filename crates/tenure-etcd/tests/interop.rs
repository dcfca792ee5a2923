//! `etcdctl lock` and we on the same lock: each waits for the other, and there are never two.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tenure::view::BreakScope;
use tenure_core::Mode;
use tenure_testkit::{
    conformance::player::Player,
    etcd::EtcdServer,
    patience::{eventually, slowness, until},
};

use crate::stage::{PATIENCE, becomes, etcd, left, locker, named};

/// An `etcdctl lock NAME COMMAND`, whose command ends when it is let go.
struct Foreign {
    process: Child,
    folder: TempDir,
}

impl Foreign {
    /// Starts it, and waits until it holds. Its key.
    fn holding(server: &EtcdServer, name: &str) -> (Self, String) {
        let theirs = Self::waiting(server, name);
        let key = theirs.holds();
        (theirs, key)
    }

    fn waiting(server: &EtcdServer, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script =
            "echo $ETCD_LOCK_KEY >key.new; mv key.new key; while test -e key -a ! -e go; do sleep 0.05; done";
        let mut command = server.etcdctl(&["lock", name, "--", "sh", "-c", script]);
        command.current_dir(folder.path()).env("PATH", std::env::var("PATH").unwrap()).stdout(Stdio::null());
        Self { process: command.spawn().unwrap(), folder }
    }

    /// Waits until it holds. Its key.
    fn holds(&self) -> String {
        let key = || fs::read_to_string(self.folder.path().join("key")).ok();
        eventually("etcdctl holds", PATIENCE, key).trim().to_owned()
    }

    fn is_inside(&self) -> bool {
        self.folder.path().join("key").exists()
    }

    /// Its command ends, and it gives the lock back.
    fn let_go(&self) {
        fs::write(self.folder.path().join("go"), "").unwrap();
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.let_go();
        // One that has ended cannot be killed, which is as well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// L1: what etcdctl holds is held for us; it is shown, and told from ours.
#[tokio::test]
async fn its_lock_is_held_for_us() {
    let server = EtcdServer::start();
    let (theirs, key) = Foreign::holding(&server, "job");
    assert!(key.starts_with("job/"), "{key}");
    let waiter = Player::new(etcd(&server.url("")), "job");
    waiter.queue_behind(0).await;
    let view = waiter.backend.inspect(&waiter.claim.name).await.unwrap();
    let holder = &view.holders[0];
    assert_eq!(holder.owner, format!("lease {}", key.strip_prefix("job/").unwrap()));
    assert_eq!((holder.mode, holder.token, &holder.label), (Mode::Exclusive, None, &None));
    assert!(holder.expires_in.is_some());
    assert!(locker(&server.url("")).mutex("job").try_acquire().await.unwrap().is_none());
    theirs.let_go();
    becomes("we are let in", async || waiter.try_enter().await.then_some(())).await;
    waiter.leave().await;
    assert_eq!(left(&server).0, Vec::<String>::new());
}

/// L6: a hint comes when a foreign holder leaves.
#[tokio::test]
async fn we_hear_of_its_release_at_once() {
    let server = EtcdServer::start();
    let (theirs, _) = Foreign::holding(&server, "job");
    let locks = locker(&server.url(""));
    let name = named("job");
    let look = locks.clone();
    let waiting = tokio::spawn(async move { locks.mutex("job").within(PATIENCE).acquire().await.unwrap() });
    becomes("we wait", async || (look.inspect(&name).await.unwrap().queue.len() == 1).then_some(())).await;
    let let_go = Instant::now();
    theirs.let_go();
    let guard = waiting.await.unwrap();
    println!("in {:?} after etcdctl was told to leave", let_go.elapsed());
    assert!(let_go.elapsed() < Duration::from_secs(1) * slowness());
    guard.release().await.unwrap();
}

/// L1: what we hold, also shared, is held for etcdctl.
#[tokio::test]
async fn our_lock_is_held_for_it() {
    let server = EtcdServer::start();
    let [first, second] = [(); 2].map(|()| Player::new(etcd(&server.url("")), "job").reading());
    first.enter().await;
    second.enter().await;
    let theirs = Foreign::waiting(&server, "job");
    becomes("it waits", async || (left(&server).0.len() == 3).then_some(())).await;
    second.leave().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(left(&server).0.len(), 2, "it still waits");
    assert!(!theirs.is_inside());
    first.leave().await;
    theirs.holds();
    let late = Player::new(etcd(&server.url("")), "job");
    late.queue_behind(0).await;
    late.leave().await;
}

/// L6: a memo that we have left keeps nobody out. In the folder of the lock it did: `etcdctl` waits for every key there that is older
/// than its own, and a memo outlives its lease by hours.
#[tokio::test]
async fn our_memo_does_not_keep_it_out() {
    let server = EtcdServer::start();
    let guard = locker(&server.url("")).mutex("job").acquire().await.unwrap();
    guard.set_memo("10.0.0.7:80", Duration::from_secs(3600)).await.unwrap();
    guard.release().await.unwrap();
    let (_theirs, key) = Foreign::holding(&server, "job");
    let view = locker(&server.url("")).inspect("job").await.unwrap();
    assert_eq!(view.memo.unwrap().text, "10.0.0.7:80");
    assert_eq!(view.holders[0].owner, format!("lease {}", key.strip_prefix("job/").unwrap()));
}

/// L1: locks of python-etcd3, aetcd, tooz and npm etcd3 are single keys with a lease: both sides were let in, and nothing said so.
#[tokio::test]
async fn a_lock_in_a_single_key_is_refused_and_shown() {
    let server = EtcdServer::start();
    let mut client = etcd_client::Client::connect([server.address()], None).await.unwrap();
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let options = etcd_client::PutOptions::new().with_lease(lease);
    client.put("job", "a secret", Some(options)).await.unwrap();
    let locks = locker(&server.url(""));
    let refused = format!("{:?}", locks.mutex("job").within(PATIENCE).acquire().await.unwrap_err());
    let view = locks.inspect("job").await.unwrap();
    assert!(view.holders[0].is_foreign() && view.holders[0].who().contains("single key"), "{view:?}");
    client.delete("job", None).await.unwrap();
    let guard = locks.mutex("job").within(PATIENCE).acquire().await.unwrap();
    guard.release().await.unwrap();
    assert!(refused.contains("single key") && !format!("{view:?}{refused}").contains("secret"), "{refused}");
}

/// A foreign holder is robbed by `break`, and its lease, on which it may have more, stays its own.
#[tokio::test]
async fn a_break_takes_its_lock_and_not_its_lease() {
    let server = EtcdServer::start();
    let (_theirs, key) = Foreign::holding(&server, "job");
    let locks = locker(&server.url(""));
    let robbed = locks.force_release_from(&named("job"), BreakScope::All).await.unwrap();
    assert_eq!(robbed[0].owner, format!("lease {}", key.strip_prefix("job/").unwrap()));
    let guard = locks.mutex("job").within(PATIENCE).acquire().await.unwrap();
    assert_eq!(left(&server).1, 2, "its lease and ours");
    guard.release().await.unwrap();
}

/// L1, L2: ten seconds of both, or more where somebody came in seldom; a file that must not be there when one comes in finds two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_contend_and_there_are_never_two() {
    let server = EtcdServer::start();
    let folder = tempfile::tempdir().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let theirs: Vec<_> = (0..2).map(|_| contend(&server, folder.path(), is_over.clone())).collect();
    let entries: Arc<[AtomicUsize; 3]> = Arc::default();
    let mut ours = Vec::new();
    for n in 0..entries.len() {
        let (locks, folder) = (locker(&server.url("")), folder.path().to_owned());
        let (is_over, entries) = (is_over.clone(), entries.clone());
        ours.push(tokio::spawn(async move {
            let mut last = 0;
            while !is_over.load(Ordering::Relaxed) {
                let guard = locks.mutex("job").within(PATIENCE * slowness()).acquire().await.unwrap();
                assert!(guard.token().get() > last);
                last = guard.token().get();
                fs::create_dir(folder.join("inside")).expect("somebody else is inside");
                tokio::time::sleep(Duration::from_millis(3)).await;
                fs::remove_dir(folder.join("inside")).unwrap();
                guard.release().await.unwrap();
                entries[n].fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let count = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default().lines().count();
    tokio::time::sleep(Duration::from_secs(10)).await;
    until("everybody came in", PATIENCE, async || {
        count("entries") > 5 && entries.iter().all(|entries| entries.load(Ordering::Relaxed) > 5)
    })
    .await;
    is_over.store(true, Ordering::Relaxed);
    for task in ours {
        task.await.unwrap();
    }
    for thread in theirs {
        thread.join().unwrap();
    }
    println!("we entered {entries:?} times, etcdctl {}", count("entries"));
    assert_eq!(count("two"), 0, "etcdctl found somebody inside");
}

/// Runs `etcdctl lock job sh -c …` again and again.
fn contend(server: &EtcdServer, folder: &Path, is_over: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let script = "mkdir inside 2>>two || exit; echo in >>entries; sleep 0.003; rmdir inside";
    let mut command = server.etcdctl(&["lock", "job", "--", "sh", "-c", script]);
    command.current_dir(folder).env("PATH", std::env::var("PATH").unwrap()).stdout(Stdio::null());
    std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            assert!(command.status().unwrap().success());
        }
    })
}

//! Replies that are lost, requests that come late, and servers that die: never two holders, and no untrue word (L9).

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tenure_core::{
    BackendHandle, BreakScope, ClaimAnswer, ErrorKind, FencingToken, LockName, Outcome, Released, Renewal,
};
use tenure_testkit::{
    conformance::player::Player,
    postgres::{PostgresServer, Recipe},
    proxy::Proxy,
};

use crate::stage::{PATIENCE, enter_in_time, player, postgres, soon, until};

/// A server, a bad network before it, and a handle that goes past that.
struct Scene {
    server: PostgresServer,
    proxy: Proxy,
    witness: BackendHandle,
}

impl Scene {
    fn new() -> Self {
        let server = PostgresServer::start();
        let proxy = Proxy::to(server.port(), 7);
        let witness = postgres(&server.url(""));
        Self { server, proxy, witness }
    }

    fn player(&self) -> Player {
        player(&format!("postgres://tenure@127.0.0.1:{}/tenure", self.proxy.port()), "one")
    }

    async fn holders(&self) -> usize {
        self.witness.inspect(&LockName::new("one").unwrap()).await.unwrap().holders.len()
    }

    /// The reply to what was just sent is lost with its connection; the next one works.
    async fn lose_reply(&self, holders: usize) {
        until("the server has done it", async || self.holders().await == holders).await;
        self.proxy.cut();
        self.proxy.heal();
    }
}

/// L1, L9, H1.5: the reply to a commit is lost. The owner is granted anew on a new connection.
#[tokio::test]
async fn a_lost_reply_to_a_claim_is_settled_by_asking_as_the_same_owner() {
    let scene = Scene::new();
    let a = scene.player();
    let first = a.enter().await;
    a.leave().await;
    scene.proxy.drop_replies();
    let (answer, ()) = soon(async { tokio::join!(a.backend.claim(&a.claim), scene.lose_reply(1)) }).await;
    let ClaimAnswer::Granted(grant) = answer.unwrap() else { panic!("granted") };
    let stored = scene.witness.inspect(&a.claim.name).await.unwrap();
    assert_eq!(stored.holders.len(), 1);
    assert_eq!(stored.holders[0].token, Some(grant.token), "the token is the one that is stored");
    assert!(grant.token > first.token);
    assert!(!player(&scene.server.url(""), "one").try_enter().await);
}

/// L9: it was there when it was asked, and is not when it is looked for. Who ended it cannot be told.
#[tokio::test]
async fn a_release_whose_reply_was_lost_does_not_say_that_it_was_gone() {
    let scene = Scene::new();
    let a = scene.player();
    a.enter().await;
    scene.proxy.drop_replies();
    let release = a.backend.release(&a.claim.name, a.claim.owner);
    let (answer, ()) = soon(async { tokio::join!(release, scene.lose_reply(0)) }).await;
    let error = answer.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error:?}");
    // Asked again, it knows of no earlier try, and tells what it finds.
    assert_eq!(a.leave().await, Released::WasGone);
}

/// L5: what a renewal did is what it says.
#[tokio::test]
async fn a_lost_reply_to_a_renewal_is_settled() {
    let scene = Scene::new();
    let a = scene.player();
    let mut grant = a.enter().await;
    grant.ttl = Duration::from_secs(3600);
    let is_long = async || {
        let view = scene.witness.inspect(&a.claim.name).await.unwrap();
        view.holders[0].expires_in.unwrap() > Duration::from_secs(3000)
    };
    scene.proxy.drop_replies();
    let (renewal, ()) = soon(async {
        tokio::join!(a.renew(&grant), async {
            until("the server has done it", is_long).await;
            scene.proxy.cut();
            scene.proxy.heal();
        })
    })
    .await;
    assert_eq!(renewal, Renewal::Renewed);
}

/// L9: without a second connection nobody knows.
#[tokio::test]
async fn without_a_new_connection_the_outcome_is_unknown() {
    let scene = Scene::new();
    let a = scene.player();
    a.enter().await;
    a.leave().await;
    scene.proxy.drop_replies();
    let cut = async {
        until("the server has done it", async || scene.holders().await == 1).await;
        scene.proxy.cut();
    };
    let (answer, ()) = soon(async { tokio::join!(a.backend.claim(&a.claim), cut) }).await;
    let error = answer.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error:?}");
    // While nothing can be reached, nothing is asked, and that is certain.
    let error = a.backend.claim(&a.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    scene.proxy.heal();
    assert_eq!(a.leave().await, Released::Released, "it held, and has left");
}

/// L4, L9, hazard 44: a claim that was given up, and released, arrives after its own release.
#[tokio::test]
async fn a_late_claim_is_barred_by_the_release_that_came_before_it() {
    let scene = Scene::new();
    let a = scene.player();
    a.enter().await;
    a.leave().await;
    scene.proxy.hold_requests();
    {
        let claim = a.backend.claim(&a.claim);
        tokio::pin!(claim);
        until("the claim is on its way", async || {
            let asked = tokio::time::timeout(Duration::from_millis(5), &mut claim).await;
            assert!(asked.is_err(), "it cannot be answered: {asked:?}");
            scene.proxy.traffic().held_requests > 0
        })
        .await;
    }
    scene.proxy.pass_new();
    // As the reaper has it, on another connection.
    let reaper = soon(a.backend.handle()).await.unwrap();
    assert_eq!(reaper.release(&a.claim.name, a.claim.owner).await.unwrap(), Released::WasGone);
    let delivered = scene.proxy.traffic().requested;
    scene.proxy.release();
    until("the late claim was delivered", async || scene.proxy.traffic().requested > delivered).await;
    // Behind it in the same connection: what is answered now was asked after it.
    let b = Player::new(a.backend.clone(), "another");
    b.enter().await;
    assert_eq!(scene.holders().await, 0, "the late claim was not applied");
}

/// Restart::Survives; L1, L2: a crash of the server forgets neither lease nor token.
#[tokio::test]
async fn a_lease_survives_a_crash_of_the_server() {
    let server = Recipe::new().durable().start();
    let (mut a, b) = (player(&server.url(""), "one"), player(&server.url(""), "one"));
    // Nobody renews it while the server starts again.
    a.claim.ttl = Duration::from_secs(300);
    let first = a.enter().await;
    server.kill();
    let error = b.backend.claim(&b.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    server.start_again();
    assert!(!soon(b.try_enter()).await, "it is still held");
    assert_eq!(soon(a.renew(&first)).await, Renewal::Renewed);
    assert_eq!(a.leave().await, Released::Released);
    let second = enter_in_time(&b).await;
    assert!(second.token > first.token);
}

/// A3, L2. Many crashes under load: whoever was told that it holds is found to hold, and each row has the last token that was granted.
///
/// This test broke each lock before it looked at the fence. That mints from the clock, so that the test would have passed with all
/// rows lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_granted_before_a_crash_is_there_after_it() {
    let server = Recipe::new().durable().start();
    let mut holder = player(&server.url(""), "held");
    holder.claim.ttl = Duration::from_secs(3600);
    let held = holder.enter().await;
    let mut last = vec![None; WORKERS];
    for _ in 0..3 {
        let let_in: Arc<Vec<AtomicUsize>> = Arc::new((0..WORKERS).map(|_| AtomicUsize::new(0)).collect());
        let workers: Vec<_> = (0..WORKERS)
            .map(|n| {
                let backend = postgres(&server.url(""));
                tokio::spawn(cycles(backend, n, let_in.clone()))
            })
            .collect();
        // Some cycles of each, however slow the machine is.
        let is_so = async || let_in.iter().all(|count| count.load(Ordering::Relaxed) >= CYCLES);
        until("all are let in again and again", is_so).await;
        tokio::task::block_in_place(|| server.kill());
        let mut newest = Vec::new();
        for worker in workers {
            let tokens = tokio::time::timeout(PATIENCE, worker).await.unwrap().unwrap();
            assert!(tokens.is_sorted_by(|a, b| a < b));
            newest.push(tokens.last().copied());
        }
        assert!((0..WORKERS).all(|n| newest[n] > last[n]), "{newest:?} after {last:?}: all were let in");
        last = newest;
        tokio::task::block_in_place(|| server.start_again());
        let witness = postgres(&server.url(""));
        for (n, last) in last.iter().enumerate() {
            let name = LockName::new(format!("crash/{n}")).unwrap();
            let fence = witness.inspect(&name).await.unwrap().fence;
            assert!(Some(fence) >= *last, "{fence:?} is stored, and {last:?} was granted");
            witness.break_lock(&name, BreakScope::Leases).await.unwrap();
        }
        let seen = witness.inspect(&held.name).await.unwrap();
        assert_eq!(seen.holders.first().and_then(|holder| holder.token), Some(held.token), "it holds");
        assert_eq!(soon(holder.renew(&held)).await, Renewal::Renewed);
    }
}

/// Each with a lock of its own.
const WORKERS: usize = 4;
/// How often each is let in at least before the server dies.
const CYCLES: usize = 20;

/// Takes and releases until the server dies; the tokens that were granted.
async fn cycles(backend: BackendHandle, n: usize, let_in: Arc<Vec<AtomicUsize>>) -> Vec<FencingToken> {
    let mut tokens = Vec::new();
    loop {
        let player = Player::new(backend.clone(), &format!("crash/{n}"));
        let Ok(ClaimAnswer::Granted(grant)) = backend.claim(&player.claim).await else { return tokens };
        tokens.push(grant.token);
        let_in[n].fetch_add(1, Ordering::Relaxed);
        if backend.release(&grant.name, grant.owner).await.is_err() {
            return tokens;
        }
    }
}

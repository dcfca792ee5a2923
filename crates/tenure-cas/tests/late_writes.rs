//! Writes that arrive when what they were made from has been forgotten.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use tenure_cas::{Locks, ReadRequest};
use tenure_core::{
    Backend, Claim, ClaimAnswer, FencingToken, Grant, Label, LockName, Mode, OwnerId, ProcessId, Released,
    Renewal, WaitMode,
};
use tenure_ledger::Rules;
use tenure_testkit::{
    cells::CellStore,
    host::{PausedHost, pass},
};

fn claim(number: u8) -> Claim {
    let owner = OwnerId::from_random(ProcessId::from_random([number; 8]), [number; 16]);
    let (name, label) = (LockName::new("one").unwrap(), Arc::new(Label::default()));
    let (mode, ttl) = (Mode::Exclusive, Duration::from_secs(10));
    Claim::new(name, owner, mode, ttl).with_label(label).with_wait(WaitMode::Turn)
}

struct Stage {
    host: Arc<PausedHost>,
    store: CellStore,
}

impl Stage {
    fn new() -> Self {
        let host = PausedHost::new(1);
        Self { store: CellStore::new(host.clone()), host }
    }

    /// As a process of its own has them.
    fn locks(&self) -> Arc<Locks<CellStore>> {
        Arc::new(Locks::new(self.store.elsewhere(), self.host.clone(), Rules::default()))
    }
}

async fn token(locks: &Locks<CellStore>, claim: &Claim) -> FencingToken {
    let ClaimAnswer::Granted(grant) = locks.claim(claim).await.unwrap() else { panic!("it is free") };
    grant.token
}

async fn pass_through(locks: &Locks<CellStore>, claim: &Claim) -> FencingToken {
    let token = token(locks, claim).await;
    locks.release(&claim.name, claim.owner).await.unwrap();
    token
}

/// A claim that is written late, after others were granted the lock, and then all was lost that had been written since it was read.
async fn late_claim(is_new: bool, late_by: Duration) -> (FencingToken, FencingToken) {
    let stage = Stage::new();
    let (a, b) = (stage.locks(), stage.locks());
    if !is_new {
        pass_through(&b, &claim(2)).await;
    }
    let copy = stage.store.copy();
    let arrives = stage.store.delay_write();
    let others = async {
        pass(late_by / 2).await;
        let last = pass_through(&b, &claim(2)).await;
        stage.store.restore(copy);
        pass(late_by / 2).await;
        arrives.notify_one();
        last
    };
    let late = claim(1);
    let (token, last) = tokio::join!(token(&a, &late), others);
    (last, token)
}

/// L2. A claim read that there was no cell, and found none when it was written, after the lock had been granted to others: its token was
/// of the time of its read (`--world cell --plan all --seed 9431`).
#[tokio::test(start_paused = true)]
async fn a_claim_that_finds_no_cell_again_is_granted_no_old_token() {
    for late in [1, 10, 1000, 100_000].map(Duration::from_millis) {
        let (last, token) = late_claim(true, late).await;
        assert!(token > last, "{token:?} after {last:?}, {late:?} late");
    }
}

/// L2. The same with a cell that has come back from a copy: the server cannot tell, and lets in who is not too late.
#[tokio::test(start_paused = true)]
async fn a_claim_that_finds_an_old_cell_again_is_granted_no_token_that_is_older_than_5_s() {
    let (last, token) = late_claim(false, Duration::from_secs(6)).await;
    assert!(token > last, "{token:?} after {last:?}");
}

/// L2: a cell that was deleted and made again has no version that it had.
#[tokio::test(start_paused = true)]
async fn versions_of_one_name_never_come_back() {
    let stage = Stage::new();
    let (locks, empty) = (stage.locks(), stage.store.copy());
    let mut last = 0;
    for _ in 0..10 {
        for _ in 0..3 {
            pass_through(&locks, &claim(1)).await;
            let cell = stage.store.copy().read(&claim(1).name, &ReadRequest::default(), Duration::ZERO);
            assert!(last < cell.version, "{last} and {}", cell.version);
            last = cell.version;
        }
        stage.store.restore(empty.clone());
        pass(Duration::from_millis(1)).await;
    }
}

/// Grants this claim, and does `verb` by a process that knows nothing of the lock while its writes arrive so late.
async fn beside_late_writes<A>(late: Duration, verb: impl AsyncFnOnce(&Locks<CellStore>, Grant) -> A) -> A {
    let stage = Stage::new();
    let (a, b) = (stage.locks(), stage.locks());
    let long = claim(1).with_ttl(Duration::from_secs(600));
    let ClaimAnswer::Granted(grant) = a.claim(&long).await.unwrap() else { panic!("it is free") };
    let delays = async {
        for _ in 0..WRITES {
            let arrives = stage.store.delay_write();
            pass(late).await;
            arrives.notify_one();
        }
    };
    tokio::join!(delays, verb(&b, grant)).1
}

/// More than a verb may find a cell as it was.
const WRITES: usize = 8;

/// A write that came too late was taken for one that somebody's lock kept out: the renewal failed, and was not tried again.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_written_late_is_written_again() {
    for late in [4, 6, 60].map(Duration::from_secs) {
        let renewed = beside_late_writes(late, async |locks, grant| locks.renew(&[grant]).await).await;
        assert_eq!(renewed[0].as_ref().unwrap(), &Renewal::Renewed, "{late:?} late");
    }
}

/// The same with a release: after a few of them the store was said to drop what is written.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_written_late_is_written_again() {
    for late in [4, 6, 60].map(Duration::from_secs) {
        let release = async |locks: &Locks<CellStore>, grant: Grant| {
            locks.release(&grant.name, grant.owner).await.unwrap()
        };
        assert_eq!(beside_late_writes(late, release).await, Released::Released, "{late:?} late");
    }
}

/// L9: a claim that was dropped on its way may be written after the release of its owner was answered. The release writes the cell,
/// although it finds nothing to release: the claim compares a version that the cell no longer has.
#[tokio::test(start_paused = true)]
async fn a_release_bars_a_claim_that_is_still_on_its_way() {
    let stage = Stage::new();
    let locks = stage.locks();
    pass_through(&locks, &claim(2)).await;
    let version = || stage.store.copy().read(&claim(1).name, &ReadRequest::default(), Duration::ZERO).version;
    let before = version();
    stage.store.delay_write();
    let late = claim(1);
    assert!(locks.claim(&late).now_or_never().is_none(), "it is on its way");
    assert_eq!(version(), before);
    assert_eq!(locks.release(&late.name, late.owner).await.unwrap(), Released::WasGone);
    assert!(version() > before);
}

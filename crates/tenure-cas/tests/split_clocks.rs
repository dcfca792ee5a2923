//! Readings that another server answers than the one that writes, by its own clock and as late as it is: a proxy sends them to a
//! replica.

use std::{sync::Arc, time::Duration};

use tenure_cas::Locks;
use tenure_core::{
    Backend, BreakScope, Claim, ClaimAnswer, Label, LockName, Memo, Mode, Noted, Outcome, OwnerId, ProcessId,
    Released, Renewal, WaitMode,
};
use tenure_ledger::Rules;
use tenure_testkit::{
    cells::CellStore,
    host::{PausedHost, pass},
};

const TTL: Duration = Duration::from_secs(10);

fn claim(number: u8, wait: WaitMode) -> Claim {
    let owner = OwnerId::from_random(ProcessId::from_random([number; 8]), [number; 16]);
    let (name, label) = (LockName::new("one").unwrap(), Arc::new(Label::default()));
    Claim::new(name, owner, Mode::Exclusive, TTL).with_label(label).with_wait(wait)
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
    fn locks(&self) -> Locks<CellStore> {
        Locks::new(self.store.elsewhere(), self.host.clone(), Rules::default())
    }
}

async fn enters(locks: &Locks<CellStore>, number: u8) -> bool {
    matches!(locks.claim(&claim(number, WaitMode::No)).await, Ok(ClaimAnswer::Granted(_)))
}

/// L1: a proxy sent readings to a replica whose clock was 20 s ahead. By that clock a live lease had expired, and the write
/// compared the row and not the clock: two processes held (`stores/mysql-split-clock`, `stores/pg-split-clock`).
#[tokio::test(start_paused = true)]
async fn a_lease_that_has_expired_by_the_clock_of_a_reading_only_is_granted_to_no_other_owner() {
    for wait in [WaitMode::No, WaitMode::Turn, WaitMode::Wake] {
        let stage = Stage::new();
        let (holder, other, third) = (stage.locks(), stage.locks(), stage.locks());
        assert!(enters(&holder, 1).await);
        stage.store.split_clock(20_000);
        let answer = other.claim(&claim(2, wait)).await;
        assert!(!matches!(answer, Ok(ClaimAnswer::Granted(_))), "{wait:?}: {answer:?}");
        if let Err(error) = answer {
            assert_eq!(error.outcome(), Outcome::NotApplied, "{error}");
        }
        // Nor is it said to be gone: that would be a decision by the wrong clock, too.
        let name = claim(1, wait).name;
        let broken = third.break_lock(&name, BreakScope::Owner(claim(1, wait).owner)).await;
        assert!(broken.is_err(), "{broken:?}");
        stage.store.split_clock(0);
        let view = third.inspect(&name).await.unwrap();
        assert_eq!(view.holders[0].owner, claim(1, wait).owner.to_string(), "{wait:?}");
    }
}

/// L1: the end of a lease was counted by a clock that was 4 s behind, so by that of the server that wrote it had expired 4 s before
/// its owner knew.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_made_by_a_clock_that_is_behind_does_not_end_too_early() {
    for behind_ms in [0, 50, 90, 1_000, 4_000] {
        let stage = Stage::new();
        let (holder, other) = (stage.locks(), stage.locks());
        assert!(enters(&other, 2).await);
        other.release(&claim(2, WaitMode::No).name, claim(2, WaitMode::No).owner).await.unwrap();
        stage.store.split_clock(-behind_ms);
        if !enters(&holder, 1).await {
            assert!(behind_ms > 100, "by so little it is granted: {behind_ms} ms");
            continue;
        }
        stage.store.split_clock(0);
        pass(TTL - Duration::from_millis(1)).await;
        assert!(!enters(&other, 2).await, "{behind_ms} ms behind");
    }
}

/// L7: a place that was made by a clock which was behind had expired when it was stored, and its owner was passed over.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_made_by_a_clock_that_is_behind_is_not_stored() {
    // In the cell, and beside it.
    for ahead in [0, 6] {
        let stage = Stage::new();
        let holder = stage.locks();
        assert!(enters(&holder, 1).await);
        for number in 0..ahead {
            stage.locks().claim(&claim(10 + number, WaitMode::Turn)).await.unwrap();
        }
        stage.store.split_clock(-60_000);
        let error = stage.locks().claim(&claim(2, WaitMode::Turn)).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotApplied, "{error}");
        stage.store.split_clock(0);
        let view = holder.inspect(&claim(1, WaitMode::No).name).await.unwrap();
        assert_eq!(view.queue.len(), usize::from(ahead), "{ahead}");
    }
}

/// A proxy sent readings to a replica. The replica lacked the last run of a job, or its clock showed that the memo had expired: the job
/// ran twice.
/// A memo that is asked for to decide is confirmed by a write.
#[tokio::test(start_paused = true)]
async fn a_memo_that_decides_is_not_the_one_of_a_replica() {
    const KEPT: Duration = Duration::from_secs(3600);
    let stage = Stage::new();
    let (holder, next) = (stage.locks(), stage.locks());
    let Claim { name, owner, .. } = claim(1, WaitMode::No);
    let Ok(ClaimAnswer::Granted(grant)) = holder.claim(&claim(1, WaitMode::No)).await else {
        panic!("it is free")
    };
    stage.store.fall_behind();
    assert_eq!(
        holder.note(&name, owner, grant.token, &Memo::new("ran", KEPT).unwrap()).await.unwrap(),
        Noted::Noted
    );
    let decided =
        async |locks: &Locks<CellStore>| locks.memo(&name).await.map(|memo| memo.map(|memo| memo.text));
    let seen = async || next.inspect(&name).await.unwrap().memo;
    assert_eq!(seen().await, None, "the test shows something");
    let ran = Some("ran".to_owned());
    assert_eq!(decided(&holder).await.unwrap(), ran, "it needs no reading");
    assert_eq!(decided(&next).await.unwrap_err().outcome(), Outcome::NotApplied);
    stage.store.catch_up();
    assert_eq!(decided(&next).await.unwrap(), ran);
    for ahead_s in [7_200, -7_200] {
        stage.store.split_clock(ahead_s * 1000);
        assert_eq!(seen().await.is_some(), ahead_s < 0);
        let third = decided(&stage.locks()).await;
        assert_eq!(third.unwrap_err().outcome(), Outcome::NotApplied, "{ahead_s} s ahead");
    }
    stage.store.split_clock(0);
    pass(KEPT + Duration::from_millis(200)).await;
    assert_eq!(decided(&next).await.unwrap(), None);
}

/// A holder whose own writes a replica did not show yet was told that its lease was gone, and that it had left nothing: its lock
/// stayed locked for a ttl, and its work was stopped although no other client had taken it.
#[tokio::test(start_paused = true)]
async fn a_lease_that_a_replica_does_not_show_yet_is_not_gone() {
    let stage = Stage::new();
    let (holder, other) = (stage.locks(), stage.locks());
    let Claim { name, owner, .. } = claim(1, WaitMode::No);
    assert!(enters(&other, 2).await);
    other.release(&name, claim(2, WaitMode::No).owner).await.unwrap();
    stage.store.fall_behind();
    // Made from what it stored last: that needs no reading.
    let Ok(ClaimAnswer::Granted(grant)) = other.claim(&claim(1, WaitMode::No)).await else {
        panic!("it is free")
    };
    let memo = Memo::new("ran", TTL).unwrap();
    // The write that is refused shows the cell as it is.
    let renewed = holder.renew(std::slice::from_ref(&grant)).await.remove(0);
    assert_eq!(renewed.unwrap(), Renewal::Renewed);
    let both = holder.renew(&[grant.clone(), grant.clone().with_name(LockName::new("two").unwrap())]).await;
    assert_eq!(*both[0].as_ref().unwrap(), Renewal::Renewed);
    assert_eq!(holder.note(&name, owner, grant.token, &memo).await.unwrap(), Noted::Noted);
    // What has stored nothing since has only the replica.
    let third = stage.locks();
    let noted = third.note(&name, owner, grant.token, &memo).await;
    assert_eq!(noted.unwrap_err().outcome(), Outcome::NotApplied);
    let broken = third.break_lock(&name, BreakScope::Owner(owner)).await;
    assert_eq!(broken.unwrap_err().outcome(), Outcome::NotApplied);
    assert_eq!(third.release(&name, owner).await.unwrap_err().outcome(), Outcome::NotApplied);
    stage.store.catch_up();
    assert_eq!(holder.release(&name, owner).await.unwrap(), Released::Released);
    assert_eq!(holder.release(&name, owner).await.unwrap(), Released::WasGone);
}

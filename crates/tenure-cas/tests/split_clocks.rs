//! Readings that another server's clock dates than the one that writes: a proxy sends them to a replica.

use std::{sync::Arc, time::Duration};

use tenure_cas::Locks;
use tenure_core::{
    Asker, Backend, BreakScope, Claim, ClaimAnswer, Label, LockName, Mode, Outcome, OwnerId, ProcessId,
    WaitMode,
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
    Claim { name, owner, mode: Mode::Exclusive, ttl: TTL, label, block: 1, wait, asker: Asker::default() }
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

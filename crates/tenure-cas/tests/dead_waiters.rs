//! Places beside a cell whose owners have gone without a word.

use std::{sync::Arc, time::Duration};

use tenure_cas::{Cell, Locks};
use tenure_core::{Backend, Claim, ClaimAnswer, Label, LockName, Mode, OwnerId, ProcessId, Timing, WaitMode};
use tenure_ledger::Rules;
use tenure_testkit::{
    cells::CellStore,
    host::{PausedHost, pass},
};

const TTL: Duration = Duration::from_secs(10);

fn claim(number: u8) -> Claim {
    let owner = OwnerId::from_random(ProcessId::from_random([1; 8]), [number; 16]);
    let (name, label) = (LockName::new("one").unwrap(), Arc::new(Label::default()));
    Claim::new(name, owner, Mode::Exclusive, TTL).with_label(label).with_wait(WaitMode::Turn)
}

/// L6. More waiters than are read at once died with the holder: whoever stood behind them saw only the first of them, wrote nothing for
/// it had no turn, and so nobody ever took them away. The lock was free, and nobody was let in.
#[tokio::test(start_paused = true)]
async fn who_waits_behind_many_that_are_dead_is_let_in_when_their_places_are_over() {
    for dead in [1, 4, 5, 11, 30, 200] {
        let host = PausedHost::new(1);
        let locks = Locks::new(CellStore::new(host.clone()), host, Rules::default());
        for number in 0..=dead {
            locks.claim(&claim(number)).await.unwrap();
        }
        let last = claim(dead + 1);
        let mut waited = Duration::ZERO;
        while let ClaimAnswer::Queued { .. } = locks.claim(&last).await.unwrap() {
            pass(Timing::RETRY_MAX).await;
            waited += Timing::RETRY_MAX;
            assert!(waited < Duration::from_secs(60), "behind {dead}");
        }
    }
}

/// A cell that had four waiters stayed busy for ever in a store without places beside it: no client could find out that none was left
/// there, and its row was never deleted.
#[tokio::test(start_paused = true)]
async fn a_cell_that_was_full_is_free_when_all_have_left() {
    let host = PausedHost::new(1);
    let store = CellStore::new(host.clone()).without_places_beside();
    let locks = Locks::new(store.clone(), host, Rules::default());
    let claims: Vec<_> = (0..8).map(claim).collect();
    for claim in &claims {
        locks.claim(claim).await.unwrap();
    }
    assert_eq!(store.list(&(), "").await.unwrap().len(), 1);
    for claim in &claims {
        locks.release(&claim.name, claim.owner).await.unwrap();
    }
    assert!(store.list(&(), "").await.unwrap().is_empty());
}

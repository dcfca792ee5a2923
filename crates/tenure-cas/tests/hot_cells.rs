//! A claim of a cell which another owner writes again and again.

use std::{cell::Cell, sync::Arc, time::Duration};

use tenure_cas::Locks;
use tenure_core::{
    Backend, Claim, ClaimAnswer, Label, LockName, Mode, Outcome, OwnerId, ProcessId, Released, WaitMode,
};
use tenure_ledger::Rules;
use tenure_testkit::{
    cells::CellStore,
    host::{PausedHost, pass},
};

fn claim(number: u8) -> Claim {
    let owner = OwnerId::from_random(ProcessId::from_random([number; 8]), [number; 16]);
    let (name, label) = (LockName::new("one").unwrap(), Arc::new(Label::default()));
    let (mode, ttl) = (Mode::Exclusive, Duration::from_secs(3600));
    Claim::new(name, owner, mode, ttl).with_label(label).with_wait(WaitMode::Turn)
}

async fn enters(locks: &Locks<CellStore>, claim: &Claim) -> bool {
    matches!(locks.claim(claim).await.unwrap(), ClaimAnswer::Granted(_))
}

async fn leaves(locks: &Locks<CellStore>, claim: &Claim) {
    assert_eq!(locks.release(&claim.name, claim.owner).await.unwrap(), Released::Released);
}

/// How many turns another owner has from when a claim asks until it has its place or the lock. Each turn comes between a reading of
/// that claim and its write. If `is_held`, the other one holds at each reading.
async fn turns_of_another(is_held: bool) -> usize {
    let host = PausedHost::new(1);
    let store = CellStore::new(host.clone());
    let [owner, newcomer] = [(); 2].map(|()| Locks::new(store.elsewhere(), host.clone(), Rules::default()));
    assert!(enters(&owner, &claim(1)).await);
    if !is_held {
        leaves(&owner, &claim(1)).await;
    }
    let (has_come, turns) = (Cell::new(false), Cell::new(0));
    let comes = async {
        newcomer.claim(&claim(2)).await.unwrap();
        has_come.set(true);
    };
    let mut arrives = store.delay_write();
    let others = async {
        while turns.get() < 100 {
            pass(Duration::from_secs(2)).await;
            if has_come.get() {
                return;
            }
            if is_held {
                leaves(&owner, &claim(1)).await;
            }
            let has_entered = enters(&owner, &claim(1)).await;
            if has_entered && !is_held {
                leaves(&owner, &claim(1)).await;
            }
            arrives.notify_one();
            if !has_entered {
                return;
            }
            turns.set(turns.get() + 1);
            arrives = store.delay_write();
        }
    };
    tokio::join!(comes, others);
    turns.get()
}

/// L6, L7. Two processes passed a lock on, and one of them had 7 turns while the other had 345: a claim that came read the cell before
/// it wrote, the owner wrote on top of its own last write, and the claim lost each comparison and paused for longer each time.
#[tokio::test(start_paused = true)]
async fn a_claim_gets_its_place_within_a_turn_of_another_owner() {
    for is_held in [true, false] {
        let turns = turns_of_another(is_held).await;
        assert!(turns <= 1, "it was passed {turns} times, held {is_held}");
    }
}

/// L8, L9: the answer to a place that was put into the cell is lost. A second try would have hidden it, and the first may come after
/// the release.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_place_in_the_cell_may_be_there_is_of_unknown_outcome() {
    let host = PausedHost::new(1);
    let store = CellStore::new(host.clone());
    let new = || Locks::new(store.elsewhere(), host.clone(), Rules::default());
    let (holder, locks) = (new(), new());
    assert!(enters(&holder, &claim(1)).await);
    store.lose_answers(1);
    let error = locks.claim(&claim(2)).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert_eq!(locks.inspect(&claim(2).name).await.unwrap().queue.len(), 1, "it is there");
    leaves(&locks, &claim(2)).await;
    assert_eq!(locks.inspect(&claim(2).name).await.unwrap().queue.len(), 0);
}

/// A server whose transactions are serializable refuses a write for a race with others who have not changed the cell: of 16 lockers
/// some were told that the table drops what is written, which only a person can mend.
#[tokio::test(start_paused = true)]
async fn a_store_that_says_who_was_faster_is_not_said_to_drop_writes() {
    let host = PausedHost::new(1);
    let store = CellStore::new(host.clone());
    let new = || Locks::new(store.elsewhere(), host.clone(), Rules::default());
    let (holder, newcomer) = (new(), new());
    store.lose_races(20);
    assert!(enters(&holder, &claim(1)).await);
    store.lose_races(20);
    assert!(!enters(&newcomer, &claim(2)).await);
    assert_eq!(newcomer.inspect(&claim(2).name).await.unwrap().queue.len(), 1);
    store.lose_races(20);
    leaves(&holder, &claim(1)).await;
}

/// L7: those who come one after the other have their places in that order, also those for whom the cell has no room.
#[tokio::test(start_paused = true)]
async fn those_who_come_enter_in_their_order() {
    come_and_enter(|_| true).await;
}

/// L7: users without the right to delete took the places next to the cell for none, and overtook the others 58 to 1
/// (`stores/mysql-rights-overtake`, `stores/pg-rights-overtake`).
#[tokio::test(start_paused = true)]
async fn those_who_may_not_delete_enter_in_their_order_as_well() {
    come_and_enter(|at| at % 2 == 0).await;
    come_and_enter(|at| at < 7).await;
    come_and_enter(|at| at >= 7).await;
    come_and_enter(|_| false).await;
}

/// Twelve come, and each enters when those before it have left. Some of them may delete places next to the cell.
async fn come_and_enter(may_delete: impl Fn(usize) -> bool) {
    let host = PausedHost::new(1);
    let store = CellStore::new(host.clone());
    let new = |at| {
        let store = store.elsewhere();
        let store = if may_delete(at) { store } else { store.without_deletes() };
        Locks::new(store, host.clone(), Rules::default())
    };
    let all: Vec<Locks<CellStore>> = (0..12).map(new).collect();
    let number = |at: usize| u8::try_from(at).unwrap();
    for (at, locks) in all.iter().enumerate() {
        assert_eq!(enters(locks, &claim(number(at))).await, at == 0);
    }
    for (at, locks) in all.iter().enumerate() {
        for (late, locks) in all.iter().enumerate().skip(at + 1) {
            assert!(!enters(locks, &claim(number(late))).await, "{late} before {at}");
        }
        assert!(enters(locks, &claim(number(at))).await, "{at}");
        leaves(locks, &claim(number(at))).await;
    }
}

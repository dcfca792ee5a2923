//! What is said of a verb whose answers were lost.

use std::{sync::Arc, time::Duration};

use tenure_cas::Locks;
use tenure_core::{
    Backend, Claim, ClaimAnswer, Label, LockName, Mode, Outcome, OwnerId, ProcessId, Released, WaitMode,
};
use tenure_ledger::Rules;
use tenure_testkit::{cells::CellStore, host::PausedHost};

fn name() -> LockName {
    LockName::new("one").unwrap()
}

fn claim(number: u8) -> Claim {
    let owner = OwnerId::from_random(ProcessId::from_random([1; 8]), [number; 16]);
    let (mode, ttl, label) = (Mode::Exclusive, Duration::from_secs(10), Arc::new(Label::default()));
    Claim::new(name(), owner, mode, ttl).with_label(label).with_wait(WaitMode::Turn)
}

fn stage() -> (CellStore, Locks<CellStore>) {
    let host = PausedHost::new(1);
    let store = CellStore::new(host.clone());
    (store.clone(), Locks::new(store, host, Rules::default()))
}

/// L9. The answer to a place beside the cell was lost, and so was the next one: the claim failed as not applied, and its place was
/// there. Only a write of the cell itself counted as one that nobody knows of.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_place_beside_the_cell_may_be_there_is_of_unknown_outcome() {
    let (store, locks) = stage();
    assert!(matches!(locks.claim(&claim(0)).await, Ok(ClaimAnswer::Granted(_))));
    for number in 1..=4 {
        assert!(matches!(locks.claim(&claim(number)).await, Ok(ClaimAnswer::Queued { .. })));
    }
    store.lose_answers(2);
    let error = locks.claim(&claim(5)).await.unwrap_err();
    assert_eq!(locks.inspect(&name()).await.unwrap().queue.len(), 5, "it stands there");
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert_eq!(locks.release(&name(), claim(5).owner).await.unwrap(), Released::Released);
    assert_eq!(locks.inspect(&name()).await.unwrap().queue.len(), 4);
}

/// L9. A withdrawal whose answer was lost forgot where the place was: asked again, it said that there was none, and left it there.
#[tokio::test(start_paused = true)]
async fn a_withdrawal_is_asked_again_until_the_place_is_gone() {
    let (store, locks) = stage();
    for number in 0..=5 {
        locks.claim(&claim(number)).await.unwrap();
    }
    store.fail_removals(1);
    let error = locks.release(&name(), claim(5).owner).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert_eq!(locks.release(&name(), claim(5).owner).await.unwrap(), Released::Released);
    assert_eq!(locks.inspect(&name()).await.unwrap().queue.len(), 4);
}

/// L9. A batch of renewals broke after it was applied, and each lease was then asked for alone: an error of that said that nothing had
/// happened.
#[tokio::test(start_paused = true)]
async fn after_a_batch_of_renewals_broke_no_error_says_that_nothing_happened() {
    let (store, locks) = stage();
    let mut grants = Vec::new();
    for (number, name) in ["one", "two"].into_iter().enumerate() {
        let claim = claim(u8::try_from(number).unwrap()).with_name(LockName::new(name).unwrap());
        let Ok(ClaimAnswer::Granted(grant)) = locks.claim(&claim).await else { panic!("it is free") };
        grants.push(grant);
    }
    store.lose_answers(100);
    for answer in locks.renew(&grants).await {
        let error = answer.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    }
}

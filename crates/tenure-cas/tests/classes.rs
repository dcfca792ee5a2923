//! Classes of waiters: a cell answers as the ledger does while its places are in it, and grants in the order of classes when most
//! places are next to it.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use tenure_cas::Locks;
use tenure_core::{
    Backend, Claim, ClaimAnswer, Host, Label, LockName, Mode, OwnerId, Priority, ProcessId, WaitMode,
};
use tenure_ledger::{Ledger, Rules};
use tenure_testkit::{
    cells::CellStore,
    chance::Chance,
    host::{PausedHost, pass},
};

/// Longer than any history: no lease and no place ends.
const TTL: Duration = Duration::from_secs(3600);

fn claim(number: u8, priority: Priority) -> Claim {
    let owner = OwnerId::from_random(ProcessId::from_random([number % 4; 8]), [number; 16]);
    let (name, label) = (LockName::new("one").unwrap(), Arc::new(Label::default()));
    let claim = Claim::new(name, owner, Mode::Exclusive, TTL).with_label(label);
    claim.with_wait(WaitMode::Turn).with_priority(priority)
}

fn locks() -> (Locks<CellStore>, Arc<PausedHost>) {
    let host = PausedHost::new(1);
    // A place lasts for as long as the test.
    let rules = Rules { place_ttl: TTL, claim_ttl: TTL, ..Rules::default() };
    (Locks::new(CellStore::new(host.clone()), host.clone(), rules), host)
}

/// L7: with no more waiters than a cell has places for.
#[tokio::test(start_paused = true)]
async fn a_cell_answers_in_classes_as_the_ledger_does() {
    for seed in 1..=30 {
        let mut chance = Chance::new(seed);
        let (locks, host) = locks();
        let rules = Rules { place_ttl: TTL, claim_ttl: TTL, ..Rules::default() };
        let mut ledger = Ledger::new(0);
        // The last ones that were used, each in its class.
        let mut number = 0;
        let mut used: Vec<Claim> = Vec::new();
        for step in 0..200 {
            pass(Duration::from_millis(10)).await;
            let now = host.now();
            let at = chance.below(5);
            if used.len() <= at {
                number = (number + 1) % 200;
                used.push(claim(number, Priority::ALL[chance.below(4)]));
            }
            let at = at.min(used.len() - 1);
            if chance.below(3) == 0 {
                let gone = used.remove(at);
                let real = locks.release(&gone.name, gone.owner).await.unwrap();
                let ideal = ledger.release(now, &rules, gone.owner).answer;
                assert_eq!(real, ideal, "seed {seed}, step {step}");
            } else {
                let real = locks.claim(&used[at]).await.unwrap();
                let ideal = ledger.claim(now, &rules, &used[at]).unwrap().answer;
                let seen = |answer: &ClaimAnswer| match answer {
                    ClaimAnswer::Granted(grant) => Err(grant.owner),
                    ClaimAnswer::Queued { ahead, .. } => Ok(*ahead),
                    other => panic!("{other:?}"),
                };
                assert_eq!(seen(&real), seen(&ideal), "seed {seed}, step {step}");
            }
            let queue = |queue: Vec<tenure_core::WaiterView>| {
                queue.into_iter().map(|waits| (waits.owner, waits.priority)).collect::<Vec<_>>()
            };
            let real = locks.inspect(&LockName::new("one").unwrap()).await.unwrap();
            let ideal = ledger.view(LockName::new("one").unwrap(), now);
            assert_eq!(queue(real.queue), queue(ideal.queue), "seed {seed}, step {step}");
        }
    }
}

/// L7: most places are next to the cell. Urgent ones pass all of those, and each ninth grant is for the one that has waited
/// longest, wherever its place is.
#[tokio::test(start_paused = true)]
async fn urgent_waiters_pass_those_next_to_a_cell_and_the_longest_waiter_has_its_turn() {
    // Places of claims that can hold together move up together.
    for mode in [Mode::Exclusive, Mode::permit(NonZeroU32::MIN)] {
        urgent_waiters_pass(mode).await;
    }
}

async fn urgent_waiters_pass(mode: Mode) {
    let (locks, _) = locks();
    let claim = |number, priority| claim(number, priority).with_mode(mode);
    let mut holder = claim(0, Priority::Normal);
    locks.claim(&holder).await.unwrap();
    let mut waiting: Vec<Claim> = Vec::new();
    for number in 1..=40 {
        let claim = claim(number, if number % 2 == 0 { Priority::Low } else { Priority::Normal });
        assert!(matches!(locks.claim(&claim).await.unwrap(), ClaimAnswer::Queued { .. }));
        waiting.push(claim);
        pass(Duration::from_millis(5)).await;
    }
    let mut urgent = (100..=220).map(|number| claim(number, Priority::Urgent));
    let (mut granted, mut passed) = (Vec::new(), 0);
    while granted.len() < 100 {
        // Three urgent ones wait at any time.
        while waiting.iter().filter(|claim| claim.priority == Priority::Urgent).count() < 3 {
            let claim = urgent.next().unwrap();
            assert!(matches!(locks.claim(&claim).await.unwrap(), ClaimAnswer::Queued { .. }));
            waiting.push(claim);
            pass(Duration::from_millis(5)).await;
        }
        locks.release(&holder.name, holder.owner).await.unwrap();
        let mut next = None;
        for (at, claim) in waiting.iter().enumerate() {
            if let ClaimAnswer::Granted(_) = locks.claim(claim).await.unwrap() {
                assert!(next.replace(at).is_none(), "two hold");
            }
        }
        let at = next.expect("one of them was handed the lock");
        passed = if at == 0 { 0 } else { passed + 1 };
        // The first in this list has waited longest.
        assert!(passed <= Priority::PASSED_MAX, "passed {passed} times: {granted:?}");
        holder = waiting.remove(at);
        granted.push(holder.priority);
    }
    // The four places that were in the cell came first; of the others, eight of nine were urgent.
    let late = &granted[10..];
    let others = late.iter().filter(|class| **class != Priority::Urgent).count();
    assert!(others * 8 <= late.len() + 8, "{granted:?}");
}

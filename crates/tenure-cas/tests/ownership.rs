//! Transactions that rely on an owner: what they keep waiting, and what ends them.

use std::{sync::Arc, time::Duration};

use tenure_cas::Locks;
use tenure_core::{
    Backend, BackendError, BreakScope, Claim, ClaimAnswer, ErrorKind, Exposure, Grant, Label, LockName, Mode,
    Outcome, OwnerId, Ownership, ProcessId, Released, Renewal, WaitMode,
};
use tenure_ledger::Rules;
use tenure_testkit::{
    cells::CellStore,
    host::{PausedHost, pass},
    polls::{dropped_after, is_pending},
};

const TTL: Duration = Duration::from_secs(10);

struct Room {
    store: CellStore,
    locks: Locks<CellStore>,
    /// Another process.
    others: Locks<CellStore>,
}

fn room() -> Room {
    let host = PausedHost::new(1);
    let store = CellStore::new(host.clone());
    let locks = || Locks::new(store.clone(), host.clone(), Rules::default());
    Room { locks: locks(), others: locks(), store }
}

fn claim(number: u8) -> Claim {
    let owner = OwnerId::from_random(ProcessId::from_random([1; 8]), [number; 16]);
    let name = LockName::new("one").unwrap();
    let claim = Claim::new(name, owner, Mode::Exclusive, TTL).with_label(Arc::new(Label::default()));
    claim.with_wait(WaitMode::Turn)
}

impl Room {
    async fn grant(&self, number: u8) -> Grant {
        match self.locks.claim(&claim(number)).await.unwrap() {
            ClaimAnswer::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    async fn expose(&self, grant: &Grant) -> Ownership {
        match self.locks.expose(grant).await.unwrap() {
            Exposure::Exposed(ownership) => ownership,
            Exposure::Gone => panic!("it is gone"),
        }
    }

    async fn waits(&self, number: u8) -> bool {
        matches!(self.locks.claim(&claim(number)).await.unwrap(), ClaimAnswer::Queued { .. })
    }
}

fn is_relied_on(error: &BackendError) -> bool {
    (error.kind(), error.outcome()) == (ErrorKind::Unavailable, Outcome::Unknown)
        && error.to_string().contains("ReliedOn")
}

/// L1, L7: after the ttl the waiters wait on, in their order, until the transaction has ended; then it finds the owner no
/// more.
#[tokio::test(start_paused = true)]
async fn an_open_transaction_keeps_waiters_behind_an_expired_owner() {
    let room = room();
    let grant = room.grant(1).await;
    let ownership = room.expose(&grant).await;
    assert!(room.store.rely(7, &ownership));
    pass(TTL * 2).await;
    assert!(room.store.rely(8, &ownership), "expiry alone changes nothing");
    for _ in 0..8 {
        assert!(room.waits(2).await && room.waits(3).await);
        pass(Duration::from_secs(2)).await;
    }
    // Expired, and neither renewed nor followed.
    assert_eq!(room.locks.renew(&[grant]).await.pop().unwrap().unwrap(), Renewal::Gone);
    room.store.end(7);
    assert!(room.waits(2).await);
    room.store.end(8);
    assert!(room.waits(3).await);
    let next = room.grant(2).await;
    assert!(!room.store.rely(9, &ownership));
    room.store.end(9);
    assert_eq!(room.locks.release(&next.name, next.owner).await.unwrap(), Released::Released);
}

/// L3, L6: a release and a break are refused, and no other client acquires the lock. The lease ends: its client is told, and a
/// waiter acquires the lock when the transaction has ended.
#[tokio::test(start_paused = true)]
async fn the_owner_stays_as_long_as_a_transaction_relies_on_it() {
    let ends = [None, Some(BreakScope::Leases), Some(BreakScope::All)];
    for end in ends {
        let room = room();
        let grant = room.grant(1).await;
        let ownership = room.expose(&grant).await;
        assert!(room.store.rely(7, &ownership));
        for _ in 0..2 {
            let refused = match end {
                None => room.locks.release(&grant.name, grant.owner).await.unwrap_err(),
                Some(scope) => room.locks.break_lock(&grant.name, scope).await.unwrap_err(),
            };
            assert!(is_relied_on(&refused), "{refused}");
        }
        let renewed = room.locks.renew(std::slice::from_ref(&grant)).await.pop().unwrap().unwrap();
        assert_eq!(renewed, Renewal::Gone, "{end:?}");
        assert!(room.waits(2).await);
        room.store.end(7);
        room.grant(2).await;
        assert!(!room.store.rely(8, &ownership));
    }
}

/// L8: a break that is dropped halfway, as by Ctrl-C, has ended the lease, or nothing.
#[tokio::test(start_paused = true)]
async fn a_verb_that_is_cut_off_stops_no_holder_that_is_renewed() {
    for polls in 1..40 {
        let room = room();
        let grant = room.grant(1).await;
        let ownership = room.expose(&grant).await;
        assert!(room.store.rely(7, &ownership));
        let breaks = room.locks.break_lock(&grant.name, BreakScope::Leases);
        if let Some(done) = dropped_after(polls, breaks).await {
            assert!(is_relied_on(&done.unwrap_err()));
        }
        let renewed = room.locks.renew(std::slice::from_ref(&grant)).await.pop().unwrap().unwrap();
        if renewed == Renewal::Renewed {
            assert!(room.store.rely(8, &ownership), "{polls}: it holds, and can write");
        }
    }
}

/// L4: a break that waits for the transaction of the holder that it has robbed robs no other one, that has come since.
#[tokio::test(start_paused = true)]
async fn a_break_that_waits_robs_no_later_holder() {
    for scope in [BreakScope::Leases, BreakScope::All] {
        let room = room();
        let grant = room.grant(1).await;
        let ownership = room.expose(&grant).await;
        assert!(room.store.rely(7, &ownership));
        let mut breaks = room.others.break_lock(&grant.name, scope);
        let holds = async |grant: &Grant| {
            room.locks.renew(std::slice::from_ref(grant)).await.pop().unwrap().unwrap() == Renewal::Renewed
        };
        while holds(&grant).await {
            assert!(is_pending(&mut breaks).await);
            pass(Duration::from_millis(1)).await;
        }
        room.store.end(7);
        let next = room.grant(2).await;
        let robbed = breaks.await.unwrap();
        assert_eq!(robbed.iter().map(|holder| holder.token).collect::<Vec<_>>(), [Some(grant.token)]);
        assert!(holds(&next).await, "{scope:?}");
    }
}

/// A chosen owner that claims again needs another token, for which its own transactions do not look: it waits for them, and
/// its lease goes on.
#[tokio::test(start_paused = true)]
async fn an_owner_that_claims_again_waits_for_its_own_transactions() {
    let room = room();
    let grant = room.grant(1).await;
    let ownership = room.expose(&grant).await;
    assert!(room.store.rely(7, &ownership));
    assert!(room.waits(1).await);
    let once = claim(1).with_wait(WaitMode::No);
    assert!(matches!(room.locks.claim(&once).await.unwrap(), ClaimAnswer::Busy { .. }));
    let renewed = room.locks.renew(std::slice::from_ref(&grant)).await.pop().unwrap().unwrap();
    assert_eq!(renewed, Renewal::Renewed);
    room.store.end(7);
    let again = room.grant(1).await;
    assert!(again.token > grant.token);
}

/// An operator is told why, and not that the lock is free, although the lease has expired.
#[tokio::test(start_paused = true)]
async fn a_break_of_an_expired_owner_is_refused_while_a_transaction_relies_on_it() {
    let room = room();
    let grant = room.grant(1).await;
    let ownership = room.expose(&grant).await;
    assert!(room.store.rely(7, &ownership));
    pass(TTL * 2).await;
    for scope in [BreakScope::Leases, BreakScope::Owner(grant.owner)] {
        let broken = room.locks.break_lock(&grant.name, scope).await.unwrap_err();
        assert!(is_relied_on(&broken), "{broken}");
    }
    room.store.end(7);
    assert!(room.locks.break_lock(&grant.name, BreakScope::Leases).await.unwrap().is_empty());
}

/// L6: what would end the lease stops the transactions that begin, so that those of one lease that overlap end.
#[tokio::test(start_paused = true)]
async fn no_transaction_begins_to_rely_on_an_owner_that_a_verb_would_end() {
    for stops in ["claim", "release", "break"] {
        let room = room();
        let grant = room.grant(1).await;
        let ownership = room.expose(&grant).await;
        assert!(room.store.rely(7, &ownership));
        match stops {
            "claim" => {
                pass(TTL * 2).await;
                assert!(room.waits(2).await);
            }
            "release" => assert!(room.locks.release(&grant.name, grant.owner).await.is_err()),
            _ => assert!(room.locks.break_lock(&grant.name, BreakScope::Leases).await.is_err()),
        }
        assert!(!room.store.rely(8, &ownership), "{stops}");
        room.store.end(8);
        room.store.end(7);
        // The next owner is another one.
        room.locks.break_lock(&grant.name, BreakScope::All).await.unwrap();
        let next = room.grant(2).await;
        let newer = room.expose(&next).await;
        assert!(room.store.rely(9, &newer), "{stops}");
    }
}

/// L6: a process that has not seen the renewals takes the holder for expired, until it reads.
#[tokio::test(start_paused = true)]
async fn transactions_of_a_holder_that_was_renewed_elsewhere_are_not_stopped() {
    let room = room();
    let grant = room.grant(1).await;
    let ownership = room.expose(&grant).await;
    let waits = async || matches!(room.others.claim(&claim(2)).await.unwrap(), ClaimAnswer::Queued { .. });
    // It keeps its place, and remembers what it has written.
    assert!(waits().await);
    pass(TTL / 3).await;
    assert!(waits().await);
    assert!(room.store.rely(7, &ownership));
    pass(TTL / 3).await;
    let renewed = room.locks.renew(std::slice::from_ref(&grant)).await.pop().unwrap().unwrap();
    assert_eq!(renewed, Renewal::Renewed);
    pass(TTL / 2).await;
    assert!(waits().await);
    assert!(room.store.rely(8, &ownership), "it holds");
}

/// A transaction that was refused, and stays open, has a row locked: the next owners take another one.
#[tokio::test(start_paused = true)]
async fn a_row_that_a_refused_transaction_has_locked_is_left_out() {
    let room = room();
    let first = room.grant(1).await;
    let ownership = room.expose(&first).await;
    room.locks.release(&first.name, first.owner).await.unwrap();
    assert!(!room.store.rely(7, &ownership));
    for number in 2..12 {
        let grant = room.grant(number).await;
        let ownership = room.expose(&grant).await;
        assert!(room.store.rely(100, &ownership));
        room.store.end(100);
        room.locks.release(&grant.name, grant.owner).await.unwrap();
    }
}

/// L9: the answer is lost, the owner is shown, and the same request shows it again.
#[tokio::test(start_paused = true)]
async fn an_owner_that_was_shown_without_an_answer_is_shown_again() {
    let room = room();
    let grant = room.grant(1).await;
    room.store.lose_answers(1);
    let ownership = room.expose(&grant).await;
    assert!(room.store.rely(7, &ownership));
    room.store.end(7);
    assert_eq!(room.expose(&grant).await, ownership);
    room.locks.release(&grant.name, grant.owner).await.unwrap();
    assert_eq!(room.locks.expose(&grant).await.unwrap(), Exposure::Gone);
    assert!(!room.store.rely(8, &ownership));
}

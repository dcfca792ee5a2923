//! Laws L1–L8 as invariants over random histories of one ledger, with clocks that jump.

#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

use std::{collections::BTreeSet, num::NonZeroU32, time::Duration};

use proptest::prelude::*;
use tenure_core::{
    Audience, BreakScope, Claim, ClaimAnswer, ErrorKind, FencingToken, LockName, Mode, Moment, OwnerId,
    ProcessId, Released, Renewal, Timing, WaitMode,
};
use tenure_ledger::{Change, Exposed, Ledger, LedgerError, Reliance, Rules, proof};

#[derive(Clone, Debug)]
enum Step {
    Claim {
        client: usize,
        wait: WaitMode,
    },
    Renew {
        client: usize,
    },
    Release {
        client: usize,
    },
    /// A call of an attempt that is long over arrives now.
    LateRelease {
        attempt: usize,
    },
    LateRenewal {
        attempt: usize,
    },
    Break,
    /// Both clocks go on; then the wall clock steps.
    Pass {
        ms: u64,
        step_ms: i64,
    },
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::READ), permits(),]
}

/// One permit or several.
fn permits() -> impl Strategy<Value = Mode> {
    (1u32..5).prop_flat_map(|limit| (1..=limit).prop_map(move |permits| several(permits, limit)))
}

fn several(permits: u32, limit: u32) -> Mode {
    let [limit, permits] = [limit, permits].map(|number| NonZeroU32::new(number).unwrap());
    Mode::several(limit, permits).unwrap()
}

fn steps() -> impl Strategy<Value = Step> {
    let client = 0usize..5;
    prop_oneof![
        6 => (client.clone(), prop_oneof![5 => Just(WaitMode::Turn), 1 => Just(WaitMode::No), 1 => Just(WaitMode::Wake)])
            .prop_map(|(client, wait)| Step::Claim { client, wait }),
        2 => client.clone().prop_map(|client| Step::Renew { client }),
        3 => client.prop_map(|client| Step::Release { client }),
        1 => (0usize..40).prop_map(|attempt| Step::LateRelease { attempt }),
        1 => (0usize..40).prop_map(|attempt| Step::LateRenewal { attempt }),
        1 => Just(Step::Break),
        4 => (0u64..1500, prop_oneof![4 => Just(0i64), 1 => -5000i64..5000])
            .prop_map(|(ms, step_ms)| Step::Pass { ms, step_ms }),
    ]
}

/// One attempt of a client: an owner of its own, and until when it may believe.
#[derive(Clone)]
struct Attempt {
    owner: OwnerId,
    mode: Mode,
    wait: WaitMode,
    believes_until: Option<Moment>,
    robbed: bool,
    over: bool,
}

struct World {
    ledger: Ledger,
    rules: Rules,
    timing: Timing,
    now: Moment,
    modes: Vec<Mode>,
    attempts: Vec<Attempt>,
    current: Vec<Option<usize>>,
    last_token: u64,
}

impl World {
    fn new(modes: Vec<Mode>) -> Self {
        let wall = Duration::from_secs(1_700_000_000);
        let current = vec![None; modes.len()];
        Self {
            ledger: Ledger::new(0),
            rules: Rules::default(),
            timing: Timing::new(Duration::from_secs(2)).unwrap(),
            now: Moment { boot: Duration::from_secs(100), wall },
            modes,
            attempts: Vec::new(),
            current,
            last_token: 0,
        }
    }

    fn attempt_of(&mut self, client: usize, wait: WaitMode) -> usize {
        if let Some(at) =
            self.current[client].filter(|&at| !self.attempts[at].over && self.attempts[at].wait == wait)
        {
            return at;
        }
        let at = self.attempts.len();
        let process = ProcessId::from_random([u8::try_from(client).unwrap(); 8]);
        let owner = OwnerId::from_random(process, (at as u128).to_be_bytes());
        let mode = self.modes[client];
        self.attempts.push(Attempt { owner, mode, wait, believes_until: None, robbed: false, over: false });
        if let Some(old) = self.current[client].replace(at) {
            // The client gives its former attempt up, as the engine does.
            self.release(old);
        }
        at
    }

    fn claim_for(&self, at: usize) -> Claim {
        let Attempt { owner, mode, wait, .. } = self.attempts[at];
        Claim::new(LockName::new("law").unwrap(), owner, mode, self.timing.ttl())
            .with_label(Default::default())
            .with_wait(wait)
    }

    fn claim(&mut self, client: usize, wait: WaitMode) {
        let at = self.attempt_of(client, wait);
        let claim = self.claim_for(at);
        let places = self.live_places();
        let mut ahead = places.iter().take_while(|&o| *o != claim.owner.to_string());
        let had = self.holds(at);
        let change = self.ledger.claim(self.now, &self.rules, &claim).unwrap();
        self.check_wakes(&change.wakes);
        let ClaimAnswer::Granted(grant) = change.answer else {
            if wait == WaitMode::No {
                assert!(!self.live_places().contains(&claim.owner.to_string()), "L8: a trace was left");
            }
            return;
        };
        assert!(grant.token.get() > self.last_token, "L2: {} after {}", grant.token, self.last_token);
        self.last_token = grant.token.get() + u64::from(grant.block) - 1;
        let still: BTreeSet<String> = self.live_places().into_iter().collect();
        let passed = ahead.find(|&o| still.contains(o) && self.waits_for_turn(o));
        assert!(had || passed.is_none(), "L7: granted past {passed:?}, who still waits");
        let until = self.timing.believed_until(self.now, grant.ttl);
        let attempt = &mut self.attempts[at];
        attempt.believes_until = Some(until);
    }

    fn renew(&mut self, at: usize) {
        let owner = self.attempts[at].owner;
        let before = self.settled();
        let change = self.ledger.renew(self.now, &self.rules, owner, self.timing.ttl());
        self.check_wakes(&change.wakes);
        let believed = self.believes(at);
        match change.answer {
            Renewal::Renewed => {
                assert!(!self.attempts[at].over, "L5: renewed after its release");
                // The machine ignores an answer that comes after the loss; only a believer gains.
                if believed {
                    self.attempts[at].believes_until =
                        Some(self.timing.believed_until(self.now, self.timing.ttl()));
                }
            }
            Renewal::Gone => {
                assert_eq!(self.ledger, before, "L4: a late renewal changed something");
                assert!(!believed || self.attempts[at].robbed, "L1: a believer is gone without a break");
                self.attempts[at].believes_until = None;
            }
        }
    }

    fn release(&mut self, at: usize) {
        let before = self.settled();
        let owner = self.attempts[at].owner;
        let change = self.ledger.release(self.now, &self.rules, owner);
        self.check_wakes(&change.wakes);
        if change.answer == Released::WasGone {
            assert_eq!(self.ledger, before, "L4: a late release changed something");
        }
        assert!(
            !self.holds(at) && !self.live_places().contains(&owner.to_string()),
            "L8: released but there"
        );
        self.attempts[at].over = true;
        self.attempts[at].believes_until = None;
    }

    /// The ledger with nothing done but expiry, which any call may notice.
    fn settled(&self) -> Ledger {
        let mut ledger = self.ledger.clone();
        let stranger = OwnerId::from_random(ProcessId::from_random([255; 8]), [255; 16]);
        let _ = ledger.release(self.now, &self.rules, stranger);
        ledger
    }

    fn believes(&self, at: usize) -> bool {
        self.attempts[at].believes_until.is_some_and(|until| !until.is_over(self.now))
    }

    fn holds(&self, at: usize) -> bool {
        let view = self.ledger.view(LockName::new("law").unwrap(), self.now);
        view.holders.iter().any(|h| h.owner == self.attempts[at].owner.to_string())
    }

    fn live_places(&self) -> Vec<String> {
        let view = self.ledger.view(LockName::new("law").unwrap(), self.now);
        view.queue.into_iter().map(|p| p.owner).collect()
    }

    fn waits_for_turn(&self, owner: &str) -> bool {
        self.attempts.iter().any(|a| a.owner.to_string() == owner && a.wait == WaitMode::Turn)
    }

    /// A change of owner wakes those who may enter, one behind, and at most two bells; never the crowd.
    fn check_wakes(&self, wakes: &[(Audience, OwnerId)]) {
        let view = self.ledger.view(LockName::new("law").unwrap(), self.now);
        let entering = view.holders.iter().filter(|h| h.token.is_none()).count();
        let robbed = wakes.iter().filter(|(audience, _)| *audience == Audience::Holders).count();
        // `settle` and the verb may each hand on once.
        assert!(wakes.len() <= robbed + entering + 2 * 3, "{} wakes", wakes.len());
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Claim { client, wait } => self.claim(client, wait),
            Step::Renew { client } => {
                if let Some(at) = self.current[client] {
                    self.renew(at);
                }
            }
            Step::Release { client } => {
                if let Some(at) = self.current[client].take() {
                    self.release(at);
                }
            }
            Step::LateRelease { attempt } if self.attempts.get(attempt).is_some_and(|a| a.over) => {
                self.release(attempt);
            }
            Step::LateRenewal { attempt } if self.attempts.get(attempt).is_some_and(|a| a.over) => {
                self.renew(attempt);
            }
            Step::LateRelease { .. } | Step::LateRenewal { .. } => {}
            Step::Break => self.break_lock(),
            Step::Pass { ms, step_ms } => {
                self.now = self.now + Duration::from_millis(ms);
                let step = Duration::from_millis(step_ms.unsigned_abs());
                self.now.wall = if step_ms < 0 { self.now.wall - step } else { self.now.wall + step };
            }
        }
    }

    fn break_lock(&mut self) {
        let before = self.last_token.max(self.ledger.fence());
        let change = self.ledger.break_lock(self.now, &self.rules, BreakScope::Leases).unwrap();
        assert!(self.ledger.fence() > before, "L2: break raises the fence");
        for robbed in &change.answer {
            let attempt = self.attempts.iter_mut().find(|a| a.owner.to_string() == robbed.owner).unwrap();
            attempt.robbed = true;
            // Exclusion is overridden from here on; fencing is what protects.
            attempt.believes_until = None;
        }
    }

    fn check(&self) {
        let believers: Vec<Mode> = (0..self.attempts.len())
            .filter(|&at| self.believes(at))
            .map(|at| self.attempts[at].mode)
            .collect();
        let taken: u64 = believers.iter().map(|mode| u64::from(mode.permits())).sum();
        let least = believers.iter().map(|mode| mode.limit()).min().unwrap_or(u32::MAX);
        assert!(taken <= u64::from(least), "L1: {believers:?} believe at the same time");
        for at in (0..self.attempts.len()).filter(|&at| self.believes(at)) {
            assert!(self.holds(at), "L1: a believer that the ledger does not know");
        }
        let view = self.settled().view(LockName::new("law").unwrap(), self.now);
        let held: Vec<Mode> = view.holders.iter().map(|h| h.mode).collect();
        if let Some(first) = view.queue.iter().find(|p| self.waits_for_turn(&p.owner)) {
            assert!(
                !first.mode.fits_beside(held.into_iter()),
                "L6: the first in the queue fits but was not let in"
            );
        }
        assert_eq!(
            Ledger::decode(&self.ledger.encode()).unwrap(),
            self.ledger,
            "a ledger reads back as written"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_history_breaks_a_law(
        modes in proptest::collection::vec(modes(), 5),
        history in proptest::collection::vec(steps(), 1..80),
    ) {
        let mut world = World::new(modes);
        for step in &history {
            world.step(step);
            world.check();
        }
        // L8: when everybody is gone, the lock is free within one ttl or one place.
        world.now = world.now + world.rules.place_ttl.max(world.timing.ttl());
        world.modes.push(Mode::Exclusive);
        world.current.push(None);
        world.claim(5, WaitMode::No);
        prop_assert!(world.holds(world.current[5].unwrap()), "L8: something was left behind");
    }
}

fn owner(n: u8) -> OwnerId {
    OwnerId::from_random(ProcessId::from_random([n; 8]), [n; 16])
}

fn claim(n: u8, mode: Mode) -> Claim {
    Claim::new(LockName::new("law").unwrap(), owner(n), mode, Duration::from_secs(10))
        .with_label(Default::default())
        .with_wait(WaitMode::Turn)
}

fn at(ms: u64) -> Moment {
    Moment { boot: Duration::from_millis(ms), wall: Duration::from_millis(1_700_000_000_000 + ms) }
}

/// H1.3: the retry of a claim whose reply was lost extends the lease, because its validity counts from the retry.
#[test]
fn a_retried_claim_is_granted_anew_and_extended() {
    let (mut ledger, rules) = (Ledger::new(0), Rules::default());
    let first = ledger.claim(at(0), &rules, &claim(1, Mode::Exclusive)).unwrap();
    let ClaimAnswer::Granted(first) = first.answer else { panic!("free") };
    let again = ledger.claim(at(9_000), &rules, &claim(1, Mode::Exclusive)).unwrap();
    let ClaimAnswer::Granted(again) = again.answer else { panic!("mine") };
    assert!(again.token > first.token, "H1.5: minted anew");
    let other = ledger.claim(at(18_000), &rules, &claim(2, Mode::Exclusive)).unwrap();
    assert!(matches!(other.answer, ClaimAnswer::Queued { .. }), "still held at 18 s");
}

/// L6: a waiter that died delays those behind it by one claim ttl at its turn.
#[test]
fn a_dead_waiter_costs_one_claim_ttl() {
    let (mut ledger, rules) = (Ledger::new(0), Rules::default());
    for n in 1..=3 {
        let _ = ledger.claim(at(0), &rules, &claim(n, Mode::Exclusive)).unwrap();
    }
    let change = ledger.release(at(100), &rules, owner(1));
    assert_eq!(
        change.wakes,
        [(Audience::Waiters, owner(2)), (Audience::Waiters, owner(3))],
        "the next and one behind"
    );
    let asked = ledger.claim(at(101), &rules, &claim(3, Mode::Exclusive)).unwrap();
    let ClaimAnswer::Queued { ahead: 0, retry_after, .. } = asked.answer else {
        panic!("{:?}", asked.answer)
    };
    assert_eq!(retry_after, Duration::from_millis(499));
    let asked = ledger.claim(at(600), &rules, &claim(3, Mode::Exclusive)).unwrap();
    assert!(matches!(asked.answer, ClaimAnswer::Granted(_)));
}

/// L6: who came alone behind many may look rarely, and has two claim ttls to enter; a reader has one.
#[test]
fn who_came_behind_many_has_two_claim_ttls_to_enter() {
    let rules = Rules { far: Some(1), rare_turns: 2, ..Rules::default() };
    for (mode, enters_until) in [(Mode::Exclusive, 1_000), (Mode::READ, 500)] {
        let mut ledger = Ledger::new(0);
        for (n, mode) in [(1, Mode::Exclusive), (2, Mode::Exclusive), (3, mode), (4, Mode::Exclusive)] {
            let _ = ledger.claim(at(0), &rules, &claim(n, mode)).unwrap();
        }
        let _ = ledger.release(at(0), &rules, owner(2));
        let _ = ledger.release(at(0), &rules, owner(1));
        let before = ledger.claim(at(enters_until - 1), &rules, &claim(4, Mode::Exclusive)).unwrap();
        assert!(matches!(before.answer, ClaimAnswer::Queued { ahead: 0, .. }), "{mode}");
        let after = ledger.claim(at(enters_until), &rules, &claim(4, Mode::Exclusive)).unwrap();
        assert!(matches!(after.answer, ClaimAnswer::Granted(_)), "{mode}");
    }
}

/// A killed writer ahead of readers costs them its place's lease.
#[test]
fn a_dead_writer_bars_readers_until_its_place_ends() {
    let (mut ledger, rules) = (Ledger::new(0), Rules::default());
    let _ = ledger.claim(at(0), &rules, &claim(1, Mode::READ)).unwrap();
    let _ = ledger.claim(at(0), &rules, &claim(2, Mode::Exclusive)).unwrap();
    for ms in [1, 2_000, 4_000, 5_999] {
        let asked = ledger.claim(at(ms), &rules, &claim(3, Mode::READ)).unwrap();
        assert!(matches!(asked.answer, ClaimAnswer::Queued { .. }), "{ms}");
    }
    let asked = ledger.claim(at(6_000), &rules, &claim(3, Mode::READ)).unwrap();
    assert!(matches!(asked.answer, ClaimAnswer::Granted(_)));
}

/// H1.1: being handed the lock is not holding it; a renewal does not turn the one into the other.
#[test]
fn a_handed_lock_is_entered_only_by_a_claim() {
    let (mut ledger, rules) = (Ledger::new(0), Rules::default());
    let _ = ledger.claim(at(0), &rules, &claim(1, Mode::Exclusive)).unwrap();
    let _ = ledger.claim(at(0), &rules, &claim(2, Mode::Exclusive)).unwrap();
    let _ = ledger.release(at(1), &rules, owner(1));
    let renewed = ledger.renew(at(2), &rules, owner(2), Duration::from_secs(10));
    assert_eq!(renewed.answer, Renewal::Gone);
    let entered = ledger.claim(at(3), &rules, &claim(2, Mode::Exclusive)).unwrap();
    assert!(matches!(entered.answer, ClaimAnswer::Granted(_)));
}

/// `WaitMode::Wake`: woken, never made holder, blocks no other claim; one release wakes two of them at most.
#[test]
fn a_place_without_a_turn_is_woken_and_bars_nobody() {
    let (mut ledger, rules) = (Ledger::new(0), Rules::default());
    let _ = ledger.claim(at(0), &rules, &claim(1, Mode::Exclusive)).unwrap();
    for n in 2..6 {
        let waker = claim(n, Mode::Exclusive).with_wait(WaitMode::Wake);
        let _ = ledger.claim(at(0), &rules, &waker).unwrap();
    }
    let change = ledger.release(at(1), &rules, owner(1));
    assert_eq!(change.wakes.len(), 2);
    assert_eq!(ledger.view(LockName::new("law").unwrap(), at(1)).holders, []);
    let barging = ledger.claim(at(2), &rules, &claim(9, Mode::Exclusive)).unwrap();
    assert!(matches!(barging.answer, ClaimAnswer::Granted(_)));
}

/// Every queue has a bound.
#[test]
fn a_full_queue_refuses_and_changes_nothing() {
    let rules = Rules { places_max: 2, ..Rules::default() };
    let mut ledger = Ledger::new(0);
    for n in 1..=3 {
        let _ = ledger.claim(at(0), &rules, &claim(n, Mode::Exclusive)).unwrap();
    }
    let before = ledger.clone();
    assert!(ledger.claim(at(0), &rules, &claim(4, Mode::Exclusive)).is_err());
    assert_eq!(ledger, before);
}

/// A waiter whose turn has come is no holder yet: `break` leaves it its turn.
#[test]
fn a_break_leaves_the_turn_to_whoever_was_handed_the_lock() {
    let (mut ledger, rules) = (Ledger::new(0), Rules::default());
    for n in 1..=3 {
        let _ = ledger.claim(at(0), &rules, &claim(n, Mode::Exclusive)).unwrap();
    }
    let _ = ledger.release(at(1), &rules, owner(1));
    assert_eq!(ledger.break_lock(at(2), &rules, BreakScope::Leases).unwrap().answer, []);
    let third = ledger.claim(at(3), &rules, &claim(3, Mode::Exclusive)).unwrap();
    assert!(matches!(third.answer, ClaimAnswer::Queued { .. }), "L7: {:?}", third.answer);
    let second = ledger.claim(at(4), &rules, &claim(2, Mode::Exclusive)).unwrap();
    assert!(matches!(second.answer, ClaimAnswer::Granted(_)));
}

/// An old program took what a newer one had stored for its own, and wrote it back without what it did not know.
#[test]
fn what_a_newer_version_stored_is_refused() {
    let text = Ledger::new(7).encode();
    assert!(!text.contains("format"), "today's text is as it was: {text}");
    for newer in [text.replacen('{', r#"{"format":2,"#, 1), r#"{"format":3,"other":[]}"#.to_owned()] {
        let error = Ledger::decode(&newer).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().contains("is newer than this tenure")),
            (ErrorKind::Unsupported, true)
        );
    }
    assert_eq!(Ledger::decode("{}").unwrap_err().kind(), ErrorKind::Corrupt);
}

fn granted(change: Change<ClaimAnswer>) -> FencingToken {
    let ClaimAnswer::Granted(grant) = change.answer else { panic!("{:?}", change.answer) };
    grant.last_token()
}

/// L1, L3: an owner is shown under its token, once, and no more when its lease has ended in whatever way. Older versions
/// refuse the lock then: they would end the lease and leave the owner to transactions.
#[test]
fn an_owner_is_shown_for_as_long_as_its_lease_has_no_successor() {
    let rules = Rules::default();
    let mut ledger = Ledger::new(0);
    let token = granted(ledger.claim(at(0), &rules, &claim(1, Mode::Exclusive)).unwrap());
    let other = FencingToken::new(token.get() + 1);
    assert_eq!(ledger.expose(at(1), &rules, (owner(1), other), 2).answer, Exposed::Gone);
    assert_eq!(ledger.expose(at(1), &rules, (owner(2), token), 2).answer, Exposed::Gone);
    assert_eq!(ledger.shown(), None);
    assert_eq!(ledger.expose(at(1), &rules, (owner(1), token), 2).answer, Exposed::Exposed { slot: 2 });
    // Asked again, it is the same.
    assert_eq!(ledger.expose(at(2), &rules, (owner(1), token), 3).answer, Exposed::Exposed { slot: 2 });
    assert_eq!(ledger.shown(), Some((2, proof(owner(1), token.get()))));
    let text = ledger.encode();
    assert!(text.starts_with(r#"{"format":1,"#), "{text}");
    assert_eq!(Ledger::decode(&text).unwrap(), ledger);
    assert_eq!(ledger.renew(at(3), &rules, owner(1), Duration::from_secs(10)).answer, Renewal::Renewed);
    assert!(ledger.shown().is_some());
    let ends: [&dyn Fn(&mut Ledger); 4] = [
        &|ledger| drop(ledger.release(at(4), &rules, owner(1))),
        &|ledger| drop(ledger.break_lock(at(4), &rules, BreakScope::Leases).unwrap()),
        &|ledger| drop(ledger.claim(at(60_000), &rules, &claim(2, Mode::Exclusive)).unwrap()),
        // Its own claim has another token.
        &|ledger| drop(ledger.claim(at(4), &rules, &claim(1, Mode::Exclusive)).unwrap()),
    ];
    for end in ends {
        let mut ledger = ledger.clone();
        end(&mut ledger);
        assert_eq!(ledger.shown(), None);
        assert!(!ledger.encode().contains("format"), "{}", ledger.encode());
    }
    let mut shared = Ledger::new(0);
    let token = granted(shared.claim(at(0), &rules, &claim(1, Mode::READ)).unwrap());
    assert_eq!(shared.expose(at(1), &rules, (owner(1), token), 0).answer, Exposed::Shared);
}

/// L5, L6: a lease that has expired stays for as long as a transaction may rely on it. It is renewed no more, a waiter keeps
/// its place and asks again soon, and enters when the transaction has ended.
#[test]
fn an_expired_lease_on_which_a_transaction_relies_keeps_others_waiting() {
    let rules = Rules::default();
    let mut ledger = Ledger::new(0);
    let token = granted(ledger.claim(at(0), &rules, &claim(1, Mode::Exclusive)).unwrap());
    drop(ledger.expose(at(1), &rules, (owner(1), token), 0));
    ledger.rely(Reliance::Open);
    let late = at(60_000);
    let second = ledger.claim(late, &rules, &claim(2, Mode::Exclusive)).unwrap();
    let ClaimAnswer::Queued { retry_after, .. } = second.answer else { panic!("{:?}", second.answer) };
    assert!(retry_after >= Duration::from_millis(50), "{retry_after:?}");
    assert_eq!(ledger.renew(late, &rules, owner(1), Duration::from_secs(10)).answer, Renewal::Gone);
    assert!(ledger.shown().is_some());
    ledger.rely(Reliance::Unknown);
    granted(ledger.claim(late, &rules, &claim(2, Mode::Exclusive)).unwrap());
    assert_eq!(ledger.shown(), None);
}

/// L1: a version that knows no permits writes holders of several back with a limit of 1. They hold on, and no client enters beside
/// them. How many they had is not known any more: one that claims again is refused, until it is alone.
#[test]
fn holders_of_several_permits_survive_an_older_version() {
    let rules = Rules::default();
    let mut ledger = Ledger::new(0);
    for owner in [1, 2] {
        granted(ledger.claim(at(0), &rules, &claim(owner, several(2, 5))).unwrap());
    }
    let waits = ledger.claim(at(1), &rules, &claim(3, several(2, 5))).unwrap().answer;
    assert!(matches!(waits, ClaimAnswer::Queued { ahead: 0, .. }), "{waits:?}");
    let text = ledger.encode();
    assert_eq!(text.matches(r#""permits":2,"of":5"#).count(), 3, "{text}");
    let mut ledger = Ledger::decode(&text.replace(r#","permits":2,"of":5"#, "")).unwrap();
    assert_eq!(ledger.renew(at(2), &rules, owner(1), Duration::from_secs(10)).answer, Renewal::Renewed);
    for mode in [several(2, 5), Mode::Exclusive] {
        let refused = ledger.claim(at(3), &rules, &claim(2, mode)).unwrap_err();
        assert!(matches!(refused, LedgerError::OtherMode(_)), "{refused}");
    }
    let single = ledger.claim(at(4), &rules, &claim(4, several(1, 5))).unwrap().answer;
    assert!(matches!(single, ClaimAnswer::Queued { ahead: 1, .. }), "{single:?}");
    for (leaves, is_handed) in [(1, false), (2, true)] {
        assert_eq!(ledger.release(at(5), &rules, owner(leaves)).answer, Released::Released);
        assert_eq!(ledger.holds(owner(3)), is_handed, "it can hold alone");
        if !is_handed {
            granted(ledger.claim(at(5), &rules, &claim(2, several(2, 5))).unwrap());
        }
    }
    granted(ledger.claim(at(6), &rules, &claim(3, several(2, 5))).unwrap());
}

/// L6, L8: behind a transaction that lasts, a release and a break end the lease. The owner stays, so that no other one enters.
#[test]
fn a_lease_ends_behind_a_transaction_that_lasts_and_its_owner_stays() {
    let (rules, ttl) = (Rules::default(), Duration::from_secs(10));
    let ends: [fn(&mut Ledger, &Rules); 2] = [
        |ledger, rules| assert_eq!(ledger.release(at(5), rules, owner(1)).answer, Released::Released),
        |ledger, rules| {
            assert_eq!(ledger.break_lock(at(5), rules, BreakScope::Leases).unwrap().answer.len(), 1)
        },
    ];
    for end in ends {
        let mut ledger = Ledger::new(0);
        let token = granted(ledger.claim(at(0), &rules, &claim(1, Mode::Exclusive)).unwrap());
        drop(ledger.expose(at(1), &rules, (owner(1), token), 0));
        let shown = ledger.shown();
        ledger.rely(Reliance::Found);
        end(&mut ledger, &rules);
        assert_eq!(ledger.shown(), shown);
        assert!(ledger.shows_an_expired_owner(at(5)));
        ledger.rely(Reliance::Open);
        assert_eq!(ledger.renew(at(6), &rules, owner(1), ttl).answer, Renewal::Gone);
        // Its own owner cannot take it back either: the transactions look for the former token.
        for client in [1, 2] {
            let waits = ledger.claim(at(6), &rules, &claim(client, Mode::Exclusive)).unwrap().answer;
            assert!(matches!(waits, ClaimAnswer::Queued { ahead: 0, .. }), "{client}: {waits:?}");
        }
        ledger.rely(Reliance::Unknown);
        granted(ledger.claim(at(7), &rules, &claim(2, Mode::Exclusive)).unwrap());
    }
}

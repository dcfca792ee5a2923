//! Every outcome of every await, in every combination: the laws hold among two processes that want the same lock.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{sync::Arc, time::Duration};

use tenure::{Guard, Lock, Loss, ReleaseError};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
};

use crate::stage::{Actor, Court, RETRY_MAX, Stage, in_time, ms};

/// Validity 988 ms, renewal after 333 ms. A claim or release may take 333 ms, a renewal 167 ms: a delay of 200 ms is
/// within the one and beyond the other.
const TTL: Duration = ms(1_000);
const GATES: [Gate; 6] =
    [Gate::Open, Gate::Refuse, Gate::LoseReply, Gate::Slow(ms(200)), Gate::Late(ms(200)), Gate::Hang];

/// How the first process leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leave {
    Release,
    Drop,
}

fn lock(actor: &Actor) -> Lock {
    actor.lock().ttl(TTL)
}

/// Two processes and the court that watches them.
struct Play {
    stage: Stage,
    /// The one whose requests meet gates.
    actor: Actor,
    court: Court,
}

impl Play {
    fn new() -> Self {
        let stage = Stage::new();
        Self { actor: stage.actor(), stage, court: Court::default() }
    }

    /// Takes the lock again and again, for a moment each; the longest that it had to wait.
    fn rival(&self) -> tokio::task::JoinHandle<Duration> {
        let (stage, court, lock) = (self.stage.clone(), self.court.clone(), lock(&self.stage.actor()));
        tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            loop {
                let began = stage.clock();
                let guard = court.admit(in_time(lock.acquire()).await.unwrap());
                longest = longest.max(stage.clock() - began);
                pass(ms(30)).await;
                assert_eq!(guard.check(), Ok(()), "its own store is sound");
                let released = Arc::into_inner(guard).expect("the court only watches").release().await;
                assert!(released.is_ok(), "{released:?}");
                pass(ms(1)).await;
                if stage.is_over() {
                    return longest;
                }
            }
        })
    }

    /// Holds until it is enough, or lost; a loss must be final (L5).
    async fn hold(&self, guard: &Guard) {
        tokio::select! {
            lost = guard.lost() => {
                pass(ms(50)).await;
                assert_eq!(guard.check(), Err(lost), "L5");
            }
            () = pass(TTL + TTL / 2) => {}
        }
    }

    /// Gives it back; what the answer says must be true (L9).
    async fn leave(&self, guard: Arc<Guard>, how: Leave) {
        let guard = Arc::into_inner(guard).expect("the court only watches");
        let owner = guard.owner().to_string();
        if how == Leave::Drop {
            return drop(guard);
        }
        match guard.release().await {
            Ok(()) => {
                let holders = self.stage.view().await.holders;
                assert!(
                    holders.iter().all(|holder| holder.owner != owner),
                    "L9: it said that it was released"
                );
            }
            Err(ReleaseError::AlreadyLost(lost)) => assert_eq!(lost.cause(), Loss::Expired),
            Err(ReleaseError::Unknown(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// One play: the first requests of each verb of one process meet these gates, later ones are open. How often it was
/// granted the lock.
async fn play(claims: &[Gate], renewals: &[Gate], releases: &[Gate], how: Leave) -> usize {
    let mut grants = 0;
    let play = Play::new();
    for (verb, gates) in [(Verb::Claim, claims), (Verb::Renew, renewals), (Verb::Release, releases)] {
        play.actor.gates.plan(verb, gates, Gate::Open);
    }
    let rival = play.rival();
    for _ in 0..2 {
        if let Ok(guard) = lock(&play.actor).within(ms(1_500)).acquire().await {
            let guard = play.court.admit(guard);
            grants += 1;
            play.hold(&guard).await;
            play.leave(guard, how).await;
        }
    }
    play.stage.finish();
    let longest = rival.await.unwrap();
    // L6: what one tenure and then one ttl can cost, and the timer of a waiter.
    assert!(longest <= 3 * TTL + RETRY_MAX, "L6: the rival waited for {longest:?}");
    pass(TTL).await;
    assert!(play.stage.is_free().await, "L8: {:?}", play.stage.view().await);
    grants
}

/// Every sequence of so many gates.
fn sequences(length: u32) -> impl Iterator<Item = Vec<Gate>> {
    let count = GATES.len();
    (0..count.pow(length))
        .map(move |at| (0..length).map(|digit| GATES[at / count.pow(digit) % count]).collect())
}

/// L1, L2, L5, L6, L8, L9: 1296 plays: each outcome of the first claim, of the second, of the first renewal and of the
/// first release.
#[tokio::test(start_paused = true)]
async fn the_laws_hold_whatever_becomes_of_claims_a_renewal_and_a_release() {
    let mut grants = 0;
    for gates in sequences(4) {
        let case = Case(format!("{gates:?}"));
        grants += play(&gates[..2], &gates[2..3], &gates[3..], Leave::Release).await;
        drop(case);
    }
    assert!(grants > 2_500, "only {grants} grants: the plays show nothing");
}

/// L1, L5, L8: 216 plays with a guard that is dropped: each outcome of a claim, of a renewal, and of the release that
/// follows in the background.
#[tokio::test(start_paused = true)]
async fn the_laws_hold_whatever_becomes_of_a_claim_and_a_dropped_guard() {
    let mut grants = 0;
    for gates in sequences(3) {
        let case = Case(format!("{gates:?}"));
        grants += play(&gates[..1], &gates[1..2], &gates[2..], Leave::Drop).await;
        drop(case);
    }
    assert!(grants > 420, "only {grants} grants");
}

/// L1, L5: 216 plays of three renewals in a row, with a release that hangs.
#[tokio::test(start_paused = true)]
async fn the_laws_hold_whatever_becomes_of_three_renewals() {
    let mut grants = 0;
    for gates in sequences(3) {
        let case = Case(format!("{gates:?}"));
        grants += play(&[], &gates, &[Gate::Hang], Leave::Release).await;
        drop(case);
    }
    assert!(grants > 420, "only {grants} grants");
}

/// L2, L5: a break overrides exclusion; the robbed one is told by its hint or, if its renewals fail, by the clock, and
/// every later token is larger.
#[tokio::test(start_paused = true)]
async fn a_broken_lock_is_lost_whatever_becomes_of_the_renewals() {
    for renewal in GATES {
        let case = Case(format!("{renewal:?}"));
        let play = Play::new();
        play.actor.set(Verb::Renew, renewal);
        let guard = play.court.admit(lock(&play.actor).acquire().await.unwrap());
        let rival = play.rival();
        pass(ms(350)).await;
        let began = play.stage.clock();
        play.stage.break_lock().await;
        play.court.pardon();
        let lost = in_time(guard.lost()).await;
        let took = play.stage.clock() - began;
        assert!(took <= TTL, "{took:?}");
        if renewal == Gate::Open {
            assert!(lost.cause() == Loss::Taken && took <= ms(5), "{lost:?} after {took:?}");
        }
        play.stage.finish();
        rival.await.unwrap();
        drop(case);
    }
}

/// Told when an assertion fails: in which play.
struct Case(String);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the play: {}", self.0);
        }
    }
}

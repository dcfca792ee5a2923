//! The backend against the ledger alone: the same verbs at the same times get the same answers.
//!
//! Time goes in steps of 700 ms, and no lease, place or turn ends within 200 ms of one: what the tolerance of the first, blind
//! try adds never decides.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use tenure_core::{
    BackendHandle, Claim, ClaimAnswer, FencingToken, Grant, Label, LockName, Mode, Moment, OwnerId,
    ProcessId, WaitMode,
};
use tenure_ledger::{Ledger, Rules};
use tenure_testkit::{chance::Chance, clock::Clock, postgres::Recipe};

use crate::stage::postgres;

const OWNERS: usize = 14;
const STEPS: usize = 40;
const LOCKS: u64 = 200;
const MIN_COMPARED: usize = STEPS * 50;

/// What an answer says beside times and tokens, which are compared on their own.
#[derive(Debug, PartialEq)]
enum Said {
    Granted,
    Queued(usize),
    Busy,
    Refused,
    Other(String),
}

impl Said {
    fn of<E>(answer: &Result<ClaimAnswer, E>) -> Self {
        match answer {
            Ok(ClaimAnswer::Granted(_)) => Self::Granted,
            Ok(ClaimAnswer::Queued { ahead, .. }) => Self::Queued(*ahead),
            Ok(ClaimAnswer::Busy { .. }) => Self::Busy,
            Ok(_) | Err(_) => Self::Refused,
        }
    }

    fn other(answer: impl std::fmt::Debug) -> Self {
        Self::Other(format!("{answer:?}"))
    }
}

/// One lock, in both worlds.
struct Pair {
    name: LockName,
    handles: Vec<BackendHandle>,
    claims: Vec<Claim>,
    ledger: Ledger,
    now: Duration,
    last: FencingToken,
}

impl Pair {
    fn new(name: String, handles: &[BackendHandle]) -> Self {
        let name = LockName::new(name).unwrap();
        let label = Arc::new(Label::new("host", 1, "user", "command"));
        let claims = (0..OWNERS).map(|n| {
            let process = ProcessId::from_random([u8::try_from(n % handles.len()).unwrap() + 1; 8]);
            let owner = OwnerId::from_random(process, [u8::try_from(n).unwrap(); 16]);
            let (name, mode, label) = (name.clone(), Mode::Exclusive, label.clone());
            Claim::new(name, owner, mode, Duration::from_millis(2500))
                .with_label(label)
                .with_wait(WaitMode::Turn)
        });
        let claims = claims.collect();
        let now = Duration::from_secs(1_000_000);
        let last = FencingToken::new(0);
        Self { name, handles: handles.to_vec(), claims, ledger: Ledger::new(0), now, last }
    }

    fn moment(&self) -> Moment {
        Moment { boot: self.now, wall: self.now }
    }

    /// One verb in both worlds.
    async fn step(&mut self, chance: &mut Chance) -> (String, Said, Said) {
        let at = chance.below(OWNERS);
        let handle = self.handles[at % self.handles.len()].clone();
        let (owner, rules, now) = (self.claims[at].owner, Rules::default(), self.moment());
        match chance.below(8) {
            0..5 => {
                let modes = [
                    Mode::Exclusive,
                    Mode::Exclusive,
                    Mode::READ,
                    Mode::permit(NonZeroU32::new(3).unwrap()),
                    Mode::several(NonZeroU32::new(3).unwrap(), NonZeroU32::new(2).unwrap()).unwrap(),
                ];
                let mode = modes[chance.below(modes.len())];
                // A claim is repeated as it was.
                if !self.ledger.knows(owner) {
                    self.claims[at].mode = mode;
                }
                let wait = [WaitMode::Turn, WaitMode::Turn, WaitMode::No][chance.below(3)];
                // An owner that waits already goes on waiting.
                self.claims[at].wait = if self.ledger.has_place(owner) { WaitMode::Turn } else { wait };
                let claim = &self.claims[at];
                let real = handle.claim(claim).await;
                let before = self.ledger.clone();
                let ideal = self.ledger.claim(now, &rules, claim).map(|change| change.answer);
                if ideal.is_err() {
                    // What expired is stored with the next change.
                    self.ledger = before;
                }
                let (real_said, ideal_said) = (Said::of(&real), Said::of(&ideal));
                let what = format!("{at} claims {:?} {:?}", claim.mode, claim.wait);
                if let Ok(ClaimAnswer::Granted(grant)) = real {
                    assert!(grant.token > self.last, "{what}: {grant:?} after {:?}", self.last);
                    assert_eq!(grant.ttl, claim.ttl);
                    self.last = grant.token;
                }
                (what, real_said, ideal_said)
            }
            5 => {
                let real = handle.release(&self.name, owner).await.unwrap();
                let ideal = self.ledger.release(now, &rules, owner).answer;
                (format!("{at} leaves"), Said::other(real), Said::other(ideal))
            }
            6 => {
                let ttl = Duration::from_millis(3200);
                let token = FencingToken::new(1);
                let grant = Grant::new(self.name.clone(), owner, token, ttl);
                let real = handle.renew(std::slice::from_ref(&grant)).await.remove(0).unwrap();
                let ideal = self.ledger.renew(now, &rules, owner, ttl).answer;
                (format!("{at} renews"), Said::other(real), Said::other(ideal))
            }
            _ => {
                let view = handle.inspect(&self.name).await.unwrap();
                let ideal = self.ledger.view(self.name.clone(), now);
                let said = |view: &tenure_core::LockView| {
                    let holders: Vec<_> =
                        view.holders.iter().map(|h| (h.owner.clone(), h.mode, h.token.is_some())).collect();
                    let queue: Vec<_> = view.queue.iter().map(|w| (w.owner.clone(), w.mode)).collect();
                    Said::other((holders, queue))
                };
                (format!("{at} looks"), said(&view), said(&ideal))
            }
        }
    }
}

#[tokio::test]
async fn the_table_answers_as_the_ledger_does() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    let here = postgres(&server.url(""));
    let handles = [here.clone(), here.handle().await.unwrap(), postgres(&server.url(""))];
    let (mut compared, mut behind) = (0, 0);
    // As many again as a slow machine wants, on which most locks say nothing.
    for seed in 1..=10 * LOCKS {
        if seed > LOCKS && behind > 8 && compared > MIN_COMPARED {
            break;
        }
        let mut chance = Chance::new(seed);
        let mut pair = Pair::new(format!("pair/{seed}"), &handles);
        let begun = Instant::now();
        let mut trail = Vec::new();
        for _ in 0..STEPS {
            let passed = Duration::from_millis(700) * [0, 0, 0, 1, 1, 3, 9][chance.below(7)];
            clock.advance(passed);
            pair.now += passed;
            let (what, real, ideal) = pair.step(&mut chance).await;
            // On a machine that slow, real time decides: this lock says nothing.
            if begun.elapsed() > Duration::from_millis(350) {
                break;
            }
            trail.push(format!("+{passed:?}: {what}: {real:?}"));
            assert_eq!(real, ideal, "seed {seed}: {trail:#?}");
            compared += 1;
            // More than the row of the lock has places for.
            behind += usize::from(matches!(real, Said::Queued(4..)));
        }
    }
    assert!(behind > 8, "only {behind} waited behind the queue");
    assert!(compared > MIN_COMPARED, "only {compared} verbs were compared");
}

//! The rule of the gathering against histories of a small world: two locks, two owners for each, one connection whose requests are
//! gathered, and another one over which releases go. Owners ask, give up and ask again under the same name, or leave; requests are
//! done and answered at any later moment, or the connection ends before.
//!
//! L1 is broken when somebody who believes loses a lock, L9 when a lock stays with somebody who has left. What the server has got of
//! a connection that ended, and does later, is hazard 17: the ttl ends it, gathered or not.

use std::{
    cell::Cell,
    collections::HashMap,
    pin::Pin,
    task::{Context, Poll},
    vec,
};

use futures_util::task::noop_waker;
use proptest::{
    collection::vec as bytes,
    prelude::any,
    prop_assert,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner},
};
use tenure_core::LockName;
use tenure_testkit::host::PausedHost;

use super::*;
use crate::{
    given_up::Claimant,
    keys::{Counting, Keys},
    plain::{Asked, Taking},
};

const LOCKS: usize = 2;
const OWNERS: usize = 4;
/// In which owners may begin something; then all that is under way ends.
const MOVES: usize = 60;

const CASES: u32 = 20_000;

/// What happens next, and to whom.
struct Choices(vec::IntoIter<u8>);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.0.next().unwrap_or(0)) % bound
    }
}

/// What is being done, polled by hand.
type Doing<T> = Pin<Box<dyn Future<Output = T>>>;

/// What waits for the claims that an owner has given up.
#[derive(Clone, Copy)]
struct Rule {
    release: bool,
    /// Asks again if the lock is busy.
    claim: bool,
}

/// A release: on its way to the server until it is done there, or between its two ways.
enum Leaving {
    OnItsWay { is_last: bool },
    UntilSettled(Doing<()>),
}

enum Stage {
    Away,
    Asks {
        asking: Doing<Option<Told<Taking>>>,
        /// Another claim of it was under way when it asked.
        is_doubtful: bool,
    },
    /// Its claim found the lock busy, and another one of it is under way.
    AsksAgain(Doing<()>),
    GaveUp,
    Holds,
    Leaves(Leaving),
}

struct World {
    rule: Rule,
    choices: Choices,
    gathering: Gathering,
    clock: Arc<PausedHost>,
    given_up: Arc<GivenUp>,
    stages: Vec<Stage>,
    /// Handed to the connection and not done; and done, but not answered.
    sent: Vec<Vec<Asked<Taking>>>,
    done: Vec<(Vec<Asked<Taking>>, Vec<bool>)>,
    /// Who holds each lock, as the server has it.
    server: HashMap<usize, usize>,
    grants: usize,
    left_alone: usize,
}

fn lock_of(owner: usize) -> usize {
    owner % LOCKS
}

fn claimant(owner: usize) -> Claimant {
    ([b'a' + u8::try_from(owner).unwrap(); 48], LockName::new(lock_of(owner).to_string()).unwrap())
}

fn owner_of(taking: &Taking) -> usize {
    usize::from(taking.owner[0] - b'a')
}

fn poll<T>(doing: &mut Doing<T>) -> Option<T> {
    match doing.as_mut().poll(&mut Context::from_waker(&noop_waker())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

impl World {
    fn new(choices: Vec<u8>, rule: Rule) -> Self {
        let given_up = Arc::<GivenUp>::default();
        Self {
            rule,
            choices: Choices(choices.into_iter()),
            gathering: Gathering::new(true, given_up.clone()),
            clock: PausedHost::new(1),
            given_up,
            stages: (0..OWNERS).map(|_| Stage::Away).collect(),
            sent: Vec::new(),
            done: Vec::new(),
            server: HashMap::new(),
            grants: 0,
            left_alone: 0,
        }
    }

    fn ask(&mut self, owner: usize) {
        let is_doubtful = self.given_up.has(&claimant(owner));
        let (owner_hex, name) = claimant(owner);
        let keys = Keys::new("%s", &name, Counting::One).unwrap();
        let (gate, tail) = (Arc::from("g"), String::new());
        let ear = self
            .gathering
            .join(Taking { name, keys, gate, owner: owner_hex, tail, ttl_ms: 1, block: 1 }, &*self.clock);
        self.stages[owner] = Stage::Asks { asking: Box::pin(ear.hear()), is_doubtful };
    }

    fn leave(&mut self, owner: usize) {
        let is_last = !(self.rule.release && self.given_up.has(&claimant(owner)));
        self.stages[owner] = Stage::Leaves(Leaving::OnItsWay { is_last });
    }

    fn settled(&self, owner: usize) -> Doing<()> {
        let (given_up, claimant) = (self.given_up.clone(), claimant(owner));
        Box::pin(async move { given_up.settled(&claimant).await })
    }

    /// The owner's next step, if it has one. Once it is `over`, nobody begins anything.
    fn step(&mut self, owner: usize, over: bool) {
        let gives_up = over || self.choices.below(3) == 0;
        match &mut self.stages[owner] {
            Stage::Away if !over => self.ask(owner),
            Stage::Away => {}
            Stage::Asks { asking, is_doubtful } => match poll(asking) {
                Some(Some(Told::Answer(Ok((1, _))))) => {
                    self.grants += 1;
                    self.stages[owner] = Stage::Holds;
                }
                Some(Some(_)) if self.rule.claim && *is_doubtful => {
                    self.stages[owner] = Stage::AsksAgain(self.settled(owner));
                }
                Some(Some(_)) => self.stages[owner] = Stage::Away,
                // What became of it is unknown.
                Some(None) => self.stages[owner] = Stage::GaveUp,
                None if gives_up => self.stages[owner] = Stage::GaveUp,
                None => {}
            },
            Stage::AsksAgain(settled) => {
                if poll(settled).is_some() {
                    self.ask(owner);
                } else if gives_up {
                    self.stages[owner] = Stage::GaveUp;
                }
            }
            // As the engine does after an error that may pass, or when its time is over.
            Stage::GaveUp if !over && self.choices.below(2) == 0 => self.ask(owner),
            Stage::GaveUp | Stage::Holds => self.leave(owner),
            Stage::Leaves(Leaving::OnItsWay { is_last }) => {
                let is_last = *is_last;
                if self.server.get(&lock_of(owner)) == Some(&owner) {
                    self.server.remove(&lock_of(owner));
                }
                self.stages[owner] = if is_last {
                    Stage::Away
                } else {
                    Stage::Leaves(Leaving::UntilSettled(self.settled(owner)))
                };
            }
            Stage::Leaves(Leaving::UntilSettled(settled)) => {
                if poll(settled).is_some() {
                    self.stages[owner] = Stage::Leaves(Leaving::OnItsWay { is_last: true });
                }
            }
        }
    }

    fn send(&mut self) {
        for run in self.gathering.next() {
            let Run::Take(run) = run else { panic!("nobody gathers releases here") };
            self.sent.push(run);
        }
    }

    /// The server does one of the scripts that were sent.
    fn serve(&mut self) {
        if self.sent.is_empty() {
            return;
        }
        let which = self.choices.below(self.sent.len());
        let run = self.sent.swap_remove(which);
        let mut granted = Vec::new();
        for (taking, _) in &run {
            let owner = owner_of(taking);
            let holder = *self.server.entry(lock_of(owner)).or_insert(owner);
            // Who holds already asks the other script, and is granted again.
            granted.push(holder == owner);
        }
        self.done.push((run, granted));
    }

    fn answer(&mut self, is_lost: bool) {
        if self.done.is_empty() {
            return;
        }
        let which = self.choices.below(self.done.len());
        let (run, granted) = self.done.swap_remove(which);
        if is_lost {
            return;
        }
        for ((_, mouth), granted) in run.into_iter().zip(granted) {
            self.left_alone += usize::from(granted && mouth.is_unheard());
            mouth.tell(Told::Answer(Ok((i64::from(granted), 1))));
        }
    }

    /// L1: whoever believes holds.
    fn check_belief(&self) -> Result<(), TestCaseError> {
        for (owner, stage) in self.stages.iter().enumerate() {
            let is_robbed = matches!(stage, Stage::Holds) && self.server.get(&lock_of(owner)) != Some(&owner);
            prop_assert!(!is_robbed, "L1: {} was robbed", owner);
        }
        Ok(())
    }

    fn play(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..MOVES {
            match self.choices.below(10) {
                0..=4 => {
                    let owner = self.choices.below(OWNERS);
                    self.step(owner, false);
                }
                5 | 6 => self.send(),
                7 => self.serve(),
                8 => self.answer(false),
                // The connection ends before a script is done, or before it is answered.
                _ if self.choices.below(2) == 0 => drop(self.sent.pop()),
                _ => self.answer(true),
            }
            self.check_belief()?;
        }
        for _ in 0..MOVES {
            (0..OWNERS).for_each(|owner| self.step(owner, true));
            self.send();
            self.serve();
            self.answer(false);
            self.check_belief()?;
        }
        let is_over = self.stages.iter().all(|stage| matches!(stage, Stage::Away));
        prop_assert!(is_over && self.sent.is_empty() && self.done.is_empty(), "something never ends");
        prop_assert!(!(0..OWNERS).any(|owner| self.given_up.has(&claimant(owner))), "remembered for ever");
        prop_assert!(self.server.is_empty(), "L9: held by nobody: {:?}", self.server);
        Ok(())
    }
}

/// Plays histories until one breaks a law; how many claims were granted, and how many of those to nobody.
fn play(rule: Rule) -> Result<(usize, usize), TestError<Vec<u8>>> {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let (grants, left_alone) = (Cell::new(0), Cell::new(0));
    // The same histories each time: whether a rule that is too weak is found is no matter of luck.
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner.run(&bytes(any::<u8>(), 4 * MOVES), |choices| {
        let mut world = World::new(choices, rule);
        let played = world.play();
        grants.set(grants.get() + world.grants);
        left_alone.set(left_alone.get() + world.left_alone);
        played
    })?;
    Ok((grants.get(), left_alone.get()))
}

/// L1, L9: a release that waits for the claims that were given up leaves no lock to an owner who has left, and robs nobody.
#[test]
fn nobody_who_has_left_keeps_a_lock() {
    let (grants, left_alone) = play(Rule { release: true, claim: true }).unwrap();
    assert!(
        grants > 2_000 && left_alone > 2_000,
        "too little happens: {grants} grants, {left_alone} to nobody"
    );
}

/// The world is large enough: if either does not wait, L9 is broken in it.
#[test]
fn a_release_or_a_claim_that_does_not_wait_leaves_a_lock_to_nobody() {
    for rule in [Rule { release: true, claim: false }, Rule { release: false, claim: true }] {
        let Err(TestError::Fail(why, _)) = play(rule) else { panic!("no law was broken") };
        assert!(why.message().contains("L9"), "{why}");
    }
}

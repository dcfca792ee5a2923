//! `Reference`: the ledger of one lock, and around it what only Redis has: a gate that may be closed, and waiters to whom
//! nobody listens.
//!
//! The ledger knows neither. So places that a hand-off passes over are put apart before the ledger hands on, and back in
//! their order afterwards; while the gate is closed, these are all of them.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use tenure_core::{
    BreakScope, Claim, ClaimAnswer, FencingToken, HolderView, Label, LockName, LockView, Mode, Moment,
    OwnerId, ProcessId, Raised, Released, Renewal,
};
use tenure_ledger::{Ledger, Rules};

/// How much later than the longest sleep of a waiter it must have asked, so as not to be taken for dead.
const LATE: Duration = Duration::from_millis(500);

/// What a verb depends on besides the ledger.
pub(crate) struct Scene<'a> {
    pub(crate) now: Moment,
    pub(crate) rules: &'a Rules,
    /// The gate is open.
    pub(crate) is_open: bool,
    /// Somebody listens to these processes.
    pub(crate) heard: &'a BTreeSet<ProcessId>,
}

pub(crate) struct Reference(Ledger);

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

fn owner_of(entry: &Value) -> OwnerId {
    entry["owner"].as_str().unwrap().parse().unwrap()
}

fn ends(entry: &Value) -> u64 {
    entry["ends_us"].as_u64().unwrap()
}

fn waits_for_a_turn(place: &Value) -> bool {
    place["turn"] == true
}

impl Scene<'_> {
    fn is_live(&self, entry: &Value) -> bool {
        ends(entry) > micros(self.now.boot)
    }

    /// A hand-off passes this place, in the name of `me`.
    fn passes(&self, place: &Value, me: Option<OwnerId>) -> bool {
        let owner = owner_of(place);
        Some(owner) != me
            && (!self.is_open || waits_for_a_turn(place) && !self.heard.contains(&owner.process()))
    }

    /// Its owner has not asked for longer than any waiter sleeps.
    fn is_dead(&self, place: &Value) -> bool {
        let asked = ends(place) - micros(self.rules.place_ttl);
        asked + micros(self.rules.retry_max + LATE) < micros(self.now.boot)
    }
}

impl Reference {
    pub(crate) fn new(floor: u64) -> Self {
        Self(Ledger::new(floor))
    }

    pub(crate) fn fence(&self) -> u64 {
        self.0.fence()
    }

    pub(crate) fn view(&self, name: &str, now: Moment) -> LockView {
        self.0.view(LockName::new(name).unwrap(), now)
    }

    /// Through an open gate only: a closed one applies nothing.
    pub(crate) fn claim(&mut self, scene: &Scene<'_>, claim: &Claim) -> ClaimAnswer {
        assert!(scene.is_open, "a claim through a closed gate does nothing");
        let enters = |ledger: &mut Ledger| ledger.claim(scene.now, scene.rules, claim).unwrap().answer;
        // Who has the lock alone needs no look at the others.
        if self.has_alone(scene, claim.owner, false) {
            return self.beside_the_queue(enters);
        }
        // Whoever comes notices what is over, and hands on; then it is barred by all, heard or not.
        let nobody = OwnerId::from_random(ProcessId::from_random([0; 8]), [0; 16]);
        self.handing(
            scene,
            Some(claim.owner),
            |ledger| ledger.release(scene.now, scene.rules, nobody).answer,
            |_| false,
        );
        enters(&mut self.0)
    }

    pub(crate) fn renew(&mut self, scene: &Scene<'_>, owner: OwnerId, ttl: Duration) -> Renewal {
        let renew = |ledger: &mut Ledger| ledger.renew(scene.now, scene.rules, owner, ttl).answer;
        if self.has_alone(scene, owner, true) {
            return self.beside_the_queue(renew);
        }
        self.handing(scene, None, renew, |_| false)
    }

    pub(crate) fn release(&mut self, scene: &Scene<'_>, owner: OwnerId) -> Released {
        let release = |ledger: &mut Ledger| ledger.release(scene.now, scene.rules, owner).answer;
        self.handing(scene, Some(owner), release, |answer| *answer == Released::Released)
    }

    pub(crate) fn break_lock(&mut self, scene: &Scene<'_>) -> Vec<HolderView> {
        let rob = |ledger: &mut Ledger| {
            ledger.break_lock(scene.now, scene.rules, BreakScope::Leases).unwrap().answer
        };
        self.handing(scene, None, rob, |_| true)
    }

    pub(crate) fn raise(&mut self, scene: &Scene<'_>, owner: OwnerId, to: FencingToken) -> Raised {
        self.0.raise(scene.now, scene.rules, owner, to).answer
    }

    /// Holders and places, to be changed.
    fn edit<A>(&mut self, change: impl FnOnce(&mut Vec<Value>, &mut Vec<Value>) -> A) -> A {
        let mut value = serde_json::to_value(&self.0).unwrap();
        let mut take = |field: &str| match value[field].take() {
            Value::Array(all) => all,
            other => panic!("no list: {other}"),
        };
        let (mut holders, mut queue) = (take("holders"), take("queue"));
        let answer = change(&mut holders, &mut queue);
        (value["holders"], value["queue"]) = (Value::Array(holders), Value::Array(queue));
        self.0 = serde_json::from_value(value).unwrap();
        answer
    }

    /// It holds an exclusive lock, or was handed it.
    fn has_alone(&mut self, scene: &Scene<'_>, owner: OwnerId, must_have_entered: bool) -> bool {
        let exclusive = serde_json::to_value(Mode::Exclusive).unwrap();
        self.edit(|holders, _| {
            holders.iter().any(|holder| {
                owner_of(holder) == owner
                    && holder["mode"] == exclusive
                    && scene.is_live(holder)
                    && !(must_have_entered && holder["token"].is_null())
            })
        })
    }

    /// A verb that leaves the queue as it is, what is over included.
    fn beside_the_queue<A>(&mut self, verb: impl FnOnce(&mut Ledger) -> A) -> A {
        let passed = serde_json::to_value(&self.0).unwrap()["passed"].take();
        let queue = self.edit(|_, queue| std::mem::take(queue));
        let answer = verb(&mut self.0);
        self.edit(|_, places| *places = queue);
        // A queue that is taken out has not become empty.
        let mut value = serde_json::to_value(&self.0).unwrap();
        value["passed"] = passed;
        self.0 = serde_json::from_value(value).unwrap();
        answer
    }

    /// A verb that hands on if anything was over, if nobody holds, or if it `did` something.
    fn handing<A>(
        &mut self,
        scene: &Scene<'_>,
        me: Option<OwnerId>,
        verb: impl FnOnce(&mut Ledger) -> A,
        did: impl FnOnce(&A) -> bool,
    ) -> A {
        let (is_over, order, apart) = self.edit(|holders, queue| {
            let before = queue.len();
            queue.retain(|place| scene.is_live(place));
            let nobody_holds = holders.is_empty();
            let is_over =
                nobody_holds || queue.len() < before || !holders.iter().all(|holder| scene.is_live(holder));
            if is_over {
                holders.push(ghost());
            }
            let order: Vec<OwnerId> = queue.iter().map(owner_of).collect();
            let (apart, rest) = std::mem::take(queue).into_iter().partition(|place| scene.passes(place, me));
            *queue = rest;
            (is_over, order, apart)
        });
        let answer = verb(&mut self.0);
        let has_handed_on = scene.is_open && (is_over || did(&answer));
        self.put_back(scene, &order, apart, has_handed_on);
        answer
    }

    /// Where they were. A hand-off has dropped the dead among those that it passed, up to the first that it woke in vain.
    fn put_back(&mut self, scene: &Scene<'_>, order: &[OwnerId], mut apart: Vec<Value>, has_handed_on: bool) {
        // The ledger may have moved one of several classes.
        if apart.is_empty() {
            return;
        }
        let rank = |place: &Value| order.iter().position(|owner| *owner == owner_of(place));
        self.edit(|_, queue| {
            let end = queue.iter().find(|place| waits_for_a_turn(place)).map_or(Some(usize::MAX), rank);
            if has_handed_on {
                apart.retain(|place| rank(place) > end || !scene.is_dead(place));
            }
            queue.extend(apart);
            queue.sort_by_key(rank);
        });
    }
}

/// A holder whose lease is over: the ledger finds that something has changed.
fn ghost() -> Value {
    let owner = OwnerId::from_random(ProcessId::from_random([0; 8]), [1; 16]);
    json!({
        "owner": owner, "mode": Mode::Exclusive, "ends_us": 0, "token": null, "since_ms": 0, "label": Label::default(),
    })
}

//! Scene 5: a release that frees the lock of somebody else.

use crate::{
    card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, scenes::schedules, world::World,
};

/// A client that is late deletes the lock of the next one.
pub(crate) struct BlindDel;

const CARD: Card = Card {
    number: 5,
    title: "A DEL that looks at nothing",
    hazards: &[4, 5],
    naive: "blind_del",
    needs: &[Need::Redis],
    rules: &[Rule::OneAtATime],
    fault: "A is stopped for longer than its lock lasts, as by a collection of garbage.",
    harm: "The lock of A ends while A is stopped, and B goes in. A resumes and deletes what is there: the lock of B. C goes in beside B.",
    instead: "A release names its owner, so that of A could not delete the lock of B. A was told that its lease was over, and C waited for B.",
};

impl Scene for BlindDel {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::open(world);
        let mut a = world.client("A", &room.address);
        let mut b = world.client("B", &room.address);
        let c = world.client("C", &room.address);
        a.enters();
        b.asks();
        world.pass(0.2);
        if world.has_fault() {
            a.stops();
            b.is_in();
            a.continues();
            a.leaves();
        } else {
            a.leaves();
            b.is_in();
        }
        schedules::c_comes_beside_b(world, b, c);
    }
}

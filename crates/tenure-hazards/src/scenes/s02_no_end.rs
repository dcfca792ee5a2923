//! Scene 2: a lock without an end, and a crash.

use crate::{
    card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, scenes::schedules, world::World,
};

/// A client dies, and its lock does not.
pub(crate) struct NoEnd;

const CARD: Card = Card {
    number: 2,
    title: "A lock without an end, and a crash",
    hazards: &[3],
    naive: "set_forever",
    needs: &[Need::Redis],
    rules: &[Rule::Served { ttls: 2.0 }],
    fault: "A crashes while it holds the lock.",
    harm: "A crashes. Its lock has no end, so B waits for ever.",
    instead: "A had not renewed its lease yet. So the lock ended one ttl after the grant, and B went in.",
};

impl Scene for NoEnd {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::open(world);
        let mut a = world.client("A", &room.address);
        let b = world.client("B", &room.address);
        a.enters();
        schedules::b_waits_for_the_dead(world, a, b);
    }
}

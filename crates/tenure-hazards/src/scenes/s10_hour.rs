//! Scene 10: an end that is far away, and a crash.

use crate::{
    card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, scenes::schedules, world::World,
};

/// To be safe from scene 8, the lock lasts an hour.
pub(crate) struct Hour;

const CARD: Card = Card {
    number: 10,
    title: "An end that is far away, and a crash",
    hazards: &[3],
    naive: "set_long",
    needs: &[Need::Redis],
    rules: &[Rule::Served { ttls: 2.0 }],
    fault: "A crashes while it holds the lock.",
    harm: "To be on the safe side, the lock lasts an hour. A crashes after a moment, and B waits for the rest of the hour.",
    instead: "With renewal the ttl need not cover the length of the work. It was short, so B waited for a short time.",
};

impl Scene for Hour {
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

//! Scene 3: SETNX, then EXPIRE, and a crash between them.

use crate::{
    card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, scenes::schedules, world::World,
};

/// A client dies between taking the lock and saying until when.
pub(crate) struct SetnxExpire;

const CARD: Card = Card {
    number: 3,
    title: "SETNX, then EXPIRE, and a crash between",
    hazards: &[3],
    naive: "setnx_expire",
    needs: &[Need::Redis],
    rules: &[Rule::Served { ttls: 2.0 }],
    fault: "A crashes between its two requests.",
    harm: "A takes the lock and crashes before it can set the end. B waits for ever.",
    instead: "Lock and end are one write. There is no moment in which the lock is there without an end.",
};

impl Scene for SetnxExpire {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::open(world);
        let mut a = world.client("A", &room.address);
        let b = world.client("B", &room.address);
        a.asks_and_stops_if(world.has_fault());
        a.is_in_or_stands();
        schedules::b_waits_for_the_dead(world, a, b);
    }
}

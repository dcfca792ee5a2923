//! Scene 1: GET, and then SET.

use crate::{card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, world::World};

/// Two clients see that nobody holds, and both write their names.
pub(crate) struct GetThenSet;

const CARD: Card = Card {
    number: 1,
    title: "Get, then set",
    hazards: &[1],
    naive: "get_set",
    needs: &[Need::Redis],
    rules: &[Rule::OneAtATime],
    fault: "A stands still between its two requests.",
    harm: "A reads that the lock is free. Before it writes, B reads the same. Both write their names, and both work.",
    instead: "One request looks and takes. B waited in the queue until A had left.",
};

impl Scene for GetThenSet {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::open(world);
        let mut a = world.client("A", &room.address);
        let mut b = world.client("B", &room.address);
        a.asks_and_stops_if(world.has_fault());
        let is_in = a.is_in_or_stands();
        b.asks();
        let b_is_in = b.is_in_within(world.ttl() / 4);
        if !is_in {
            a.goes_on();
            a.is_in();
        }
        world.pass(0.2);
        a.leaves();
        if !b_is_in {
            b.is_in();
        }
        world.pass(0.1);
        b.leaves();
    }
}

//! Scene 6: GET, compare, DEL: three steps where one is needed.

use crate::{
    card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, scenes::schedules, world::World,
};

/// Between the look and the deletion the lock changes hands.
pub(crate) struct GetDel;

const CARD: Card = Card {
    number: 6,
    title: "GET, compare, DEL",
    hazards: &[6],
    naive: "get_del",
    needs: &[Need::Redis],
    rules: &[Rule::OneAtATime],
    fault: "A stands still between GET and DEL until its lock has ended.",
    harm: "A reads its own name, so it may delete. Before it does, its lock ends and B goes in. A deletes the lock of B, and C goes in beside B.",
    instead: "Comparison and deletion are one step inside the server.",
};

impl Scene for GetDel {
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
        let has_left = a.leaves_and_stops_if(world.has_fault());
        b.is_in();
        if !has_left {
            a.goes_on();
            a.has_left();
        }
        schedules::c_comes_beside_b(world, b, c);
    }
}

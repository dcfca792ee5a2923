//! Scene 8: work that lasts longer than the lock.

use crate::{card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, world::World};

/// The lock ends, the work does not.
pub(crate) struct TooLong;

const CARD: Card = Card {
    number: 8,
    title: "Work that lasts longer than the lock",
    hazards: &[24],
    naive: "set_nx",
    needs: &[Need::Redis],
    rules: &[Rule::OneAtATime],
    fault: "The work of A lasts longer than its lock.",
    harm: "The lock of A ends in the middle of its work. B goes in, and both work.",
    instead: "A background thread renewed the lease while A worked. B waited in the queue.",
};

impl Scene for TooLong {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::open(world);
        let mut a = world.client("A", &room.address);
        let mut b = world.client("B", &room.address);
        a.enters();
        b.asks();
        let work = world.ttl().mul_f64(if world.has_fault() { 2.0 } else { 0.3 });
        let is_in = b.is_in_within(work);
        world.pass(0.2);
        a.leaves();
        if !is_in {
            b.is_in();
        }
        world.pass(0.1);
        b.leaves();
    }
}

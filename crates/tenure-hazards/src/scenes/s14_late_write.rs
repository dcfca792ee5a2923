//! Scene 14: a holder is stopped, and its write comes late.

use crate::{card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, world::World};

/// No lock can prevent this: only the resource can.
pub(crate) struct LateWrite;

const CARD: Card = Card {
    number: 14,
    title: "The late write of a holder that was stopped",
    hazards: &[11, 13],
    naive: "set_nx",
    needs: &[Need::Redis],
    rules: &[Rule::NoLateWrite],
    fault: "A is stopped after it has looked whether it holds, and before it writes.",
    harm: "A looks, and has the lock. Then it is stopped. Its lock ends, B goes in and writes. A resumes, and its write lands on that of B.",
    instead: "Each write carries the token of its grant. The resource had seen the token of B, which is larger, and refused that of A.",
};

impl Scene for LateWrite {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::open(world);
        let mut a = world.client("A", &room.address);
        let mut b = world.client("B", &room.address);
        a.enters();
        world.pass(0.1);
        a.writes("first of A");
        world.pass(0.1);
        a.is_about_to_write("second of A", world.has_fault());
        b.asks();
        if world.has_fault() {
            world.pass(0.1);
            a.stops();
            b.is_in();
            world.pass(0.1);
            b.writes("of B");
            world.pass(0.2);
            a.goes_on();
            a.continues();
            a.has_written();
            world.pass(0.2);
        } else {
            a.has_written();
            a.leaves();
            b.is_in();
            b.writes("of B");
        }
        b.leaves();
    }
}

//! Scene 19: a ZooKeeper session that ends while its client is stopped.

use crate::{card::Card, judge::Rule, needs::Need, rooms::Ensemble, scene::Scene, world::World};

/// The client does not know that its node is gone.
pub(crate) struct Session;

const CARD: Card = Card {
    number: 19,
    title: "A session that ends while its client is stopped",
    hazards: &[11, 58],
    naive: "ephemeral",
    needs: &[Need::ZooKeeper],
    rules: &[Rule::NoLateWrite],
    fault: "A is stopped for longer than its session lasts.",
    harm: "ZooKeeper ends the session of A and takes its node away. B goes in and writes. A resumes where it was, and its write lands on that of B.",
    instead: "A asked its own clock before it wrote. By its clock the lease was over, so A did not write. Had it done so, the token would have been refused.",
};

impl Scene for Session {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = Ensemble::open(world);
        let mut a = world.client("A", &room.address);
        let mut b = world.client("B", &room.address);
        a.enters();
        world.pass(0.1);
        a.writes("first of A");
        world.pass(0.1);
        b.asks();
        if world.has_fault() {
            a.stops();
            b.is_in();
            world.pass(0.1);
            b.writes("of B");
            world.pass(0.2);
            a.is_about_to_write("second of A", false);
            a.continues();
            a.has_written();
            world.pass(0.2);
        } else {
            a.writes("second of A");
            a.leaves();
            b.is_in();
            b.writes("of B");
        }
        b.leaves();
    }
}

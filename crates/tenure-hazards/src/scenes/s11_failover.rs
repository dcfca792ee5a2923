//! Scene 11: a fail-over that forgets the lock.

use crate::{card::Card, judge::Rule, needs::Need, rooms::Copies, scene::Scene, world::World};

/// A replica is promoted before it has heard of the lock.
pub(crate) struct Failover;

const CARD: Card = Card {
    number: 11,
    title: "A fail-over that forgets the lock",
    hazards: &[8],
    naive: "set_nx",
    needs: &[Need::OwnRedis],
    rules: &[Rule::OneAtATime],
    fault: "The master crashes before the replica has heard of the lock.",
    harm: "The master grants the lock to A and crashes. The replica has not heard of it, is promoted, and grants the lock to B.",
    instead: "A heard from its own clock that its lease was lost. The promoted server granted nothing for 10 s, in which the old master may still grant, and for one ttl more: by then every lease that it may have missed is over.",
};

impl Scene for Failover {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = Copies::open(world);
        let mut a = world.client("A", &room.address);
        let mut b = world.client("B", &room.address);
        if world.has_fault() {
            room.link.hold_replies();
            world.fault("replica", "hears nothing");
        }
        a.enters();
        if !world.has_fault() {
            room.is_copied(world.lock());
        }
        room.fails_over(world);
        b.asks();
        if b.is_in_within(world.ttl().mul_f64(if world.has_fault() { 1.5 } else { 0.3 })) {
            world.pass(0.3);
            a.leaves();
        } else {
            a.leaves();
            b.is_in();
        }
        world.pass(0.2);
        b.leaves();
    }
}

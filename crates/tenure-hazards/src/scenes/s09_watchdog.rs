//! Scene 9: a watchdog that nobody hears, and one that outlives its owner.

use tenure_testkit::{proxy::Proxy, redis::Recipe};

use crate::{
    card::Card,
    judge::Rule,
    needs::Need,
    rooms::{RedisRoom, address},
    scene::Scene,
    world::World,
};

/// Two faults of a renewal that runs beside the work.
pub(crate) struct Watchdog;

const CARD: Card = Card {
    number: 9,
    title: "A watchdog that nobody hears, and one that outlives its owner",
    hazards: &[24, 25],
    naive: "watchdog",
    needs: &[Need::OwnRedis],
    rules: &[Rule::OneAtATime, Rule::Served { ttls: 5.0 }],
    fault: "The network of A is cut off; and the worker of C ends without giving the lock back.",
    harm: "The renewals of A do not arrive, and A does not hear of it: B goes in beside A. Later the worker of C has ended, but its watchdog renews for ever: D waits in vain.",
    instead: "A heard of the loss from its own clock, before B went in. C had said for how long it may hold at most (max_hold): the renewals stopped, and one ttl after the last of them D went in.",
};

impl Scene for Watchdog {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::own(world, Recipe::new());
        let network = Proxy::to(room.server().port(), 1);
        let far = address(world, network.port());
        let [mut a, mut b] = [world.client("A", &far), world.client("B", &room.address)];
        a.enters();
        b.asks();
        if world.has_fault() {
            network.stall();
            world.fault("A", "is cut off");
            b.is_in();
            world.pass(0.3);
            network.heal();
            a.leaves();
        } else {
            a.leaves();
            b.is_in();
        }
        b.leaves();
        drop((a, b));
        let [mut c, mut d] = [world.client("C", &room.address), world.client("D", &room.address)];
        c.enters();
        d.asks();
        world.pass(0.2);
        if world.has_fault() {
            c.forgets();
        } else {
            c.leaves();
        }
        if d.is_in_within(6 * world.ttl()) {
            world.pass(0.1);
            d.leaves();
        }
    }
}

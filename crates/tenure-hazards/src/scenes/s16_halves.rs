//! Scene 16: two halves of a quorum, again and again.

use std::time::Instant;

use tenure_testkit::{proxy::Proxy, redis::RedisServer};

use crate::{
    card::Card, judge::Rule, needs::Need, process::Process, rooms::Quorum, scene::Scene, world::World,
};

/// Nobody has a majority, and all try again in step.
pub(crate) struct Halves;

const CARD: Card = Card {
    number: 16,
    title: "Two halves of a quorum, again and again",
    hazards: &[45, 46],
    naive: "redlock",
    needs: &[Need::OwnRedis],
    rules: &[Rule::Served { ttls: 3.0 }],
    fault: "A and B keep step: both take two of the four servers that live, whenever they try.",
    harm: "One server of five is down. A gets two of the others, B gets two, and three are needed. Both give back and try again, in step, and nobody works.",
    instead: "After a split each client waits for a random time that grows, so sooner or later one of them is alone. Both had their turn.",
};

impl Scene for Halves {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = Quorum::open(world, 5);
        room.servers[4].kill();
        world.fault("node 5", "is down");
        let near = room.ports();
        let far: Vec<Proxy> = near.iter().map(|port| Proxy::to(*port, 1)).collect();
        let of_a = [near[0], near[1], far[2].port(), far[3].port(), near[4]];
        let of_b = [near[3], near[2], far[1].port(), far[0].port(), near[4]];
        let mut a = world.client("A", &room.address(world, &of_a));
        let mut b = world.client("B", &room.address(world, &of_b));
        if world.has_fault() {
            far.iter().for_each(Proxy::hold_requests);
        }
        a.asks_and_stops_if(world.has_fault());
        if world.has_fault() {
            b.asks_and_stops_if(true);
            let has_voted = |server: &RedisServer| server.command(&["EXISTS", world.lock()]).int() == 1;
            world.waits(2.0, || room.servers[..4].iter().all(has_voted));
            world.note("A", "and B have two servers each");
            far.iter().for_each(Proxy::release);
            let until = Instant::now() + 4 * world.ttl();
            // In step: each goes on when both stand.
            while Instant::now() < until {
                let [a_is_in, b_is_in] =
                    [&mut a, &mut b].map(|client| client.is_in_or_stands_within(world.ttl()));
                match (a_is_in, b_is_in) {
                    (Some(false), Some(false)) => {
                        world.pass(0.15);
                        a.goes_on();
                        b.goes_on();
                    }
                    (Some(true), _) => return one_after_the_other(world, a, b),
                    (_, Some(true)) => return one_after_the_other(world, b, a),
                    _ => {}
                }
            }
        } else {
            b.asks();
            one_after_the_other(world, a, b);
        }
    }
}

/// The first is in, or will be before the second.
fn one_after_the_other(world: &World<'_>, mut first: Process, mut second: Process) {
    world.pass(0.2);
    first.leaves();
    second.is_in();
    world.pass(0.2);
    second.leaves();
}

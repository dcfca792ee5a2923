//! Scene 15: an answer that comes late and is believed.

use tenure_testkit::{proxy::Proxy, redis::Recipe};

use crate::{
    card::Card,
    judge::Rule,
    needs::Need,
    rooms::{RedisRoom, address},
    scene::Scene,
    world::World,
};

/// The lock counts from the request, the client from the answer.
pub(crate) struct LateAnswer;

const CARD: Card = Card {
    number: 15,
    title: "An answer that comes late and is believed",
    hazards: &[12],
    naive: "set_nx",
    needs: &[Need::OwnRedis],
    rules: &[Rule::OneAtATime],
    fault: "The answer to A takes longer than the lock lasts.",
    harm: "The server grants the lock to A, and the answer is held up. The lock ends, and B goes in. Then A hears that it was granted.",
    instead: "A counts its lease from before it sent the request. When the answer came, the lease was over: A asked again and waited for B.",
};

impl Scene for LateAnswer {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::own(world, Recipe::new());
        let network = Proxy::to(room.server().port(), 1);
        let far = address(world, network.port());
        let mut a = world.client("A", &far);
        let mut b = world.client("B", &room.address);
        // Connected before the network fails.
        a.connects();
        if world.has_fault() {
            network.hold_replies();
            world.fault("A", "hears no answer");
        }
        a.asks();
        world.waits(20.0, || room.server().command(&["EXISTS", world.lock()]).int() == 1);
        b.asks();
        if world.has_fault() {
            b.is_in();
            world.pass(0.1);
            world.note("A", "hears the answer");
            network.release();
        }
        let is_in = a.is_in_within(world.ttl() / 3);
        world.pass(0.2);
        if world.has_fault() {
            b.leaves();
            if !is_in {
                a.is_in();
            }
            a.leaves();
        } else {
            a.leaves();
            b.is_in();
            b.leaves();
        }
    }
}

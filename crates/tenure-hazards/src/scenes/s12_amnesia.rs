//! Scene 12: a server of a quorum that restarts without its memory.

use tenure_testkit::proxy::Proxy;

use crate::{card::Card, judge::Rule, needs::Need, rooms::Quorum, scene::Scene, world::World};

/// The third server of Redlock makes two majorities out of one.
pub(crate) struct Amnesia;

const CARD: Card = Card {
    number: 12,
    title: "A server that restarts without its memory",
    hazards: &[21],
    naive: "redlock",
    needs: &[Need::OwnRedis],
    rules: &[Rule::OneAtATime],
    fault: "A does not reach node 3. Node 2 restarts and has forgotten all.",
    harm: "A has nodes 1 and 2 of three. Node 2 restarts empty. B gets nodes 2 and 3: two majorities at once.",
    instead: "A node that may have forgotten locks votes for nobody until each of them has ended. So B needed nodes 1 and 3, and waited until A had left node 1.",
};

impl Scene for Amnesia {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = Quorum::open(world, 3);
        let ports = room.ports();
        let cut = Proxy::to(ports[2], 1);
        cut.cut();
        let mut a = world.client("A", &room.address(world, &[ports[0], ports[1], cut.port()]));
        let mut b = world.client("B", &room.address(world, &ports));
        world.note("A", "does not reach node 3");
        a.enters();
        if world.has_fault() {
            room.servers[1].kill();
            room.servers[1].start_again();
            world.fault("node 2", "restarts empty");
        }
        b.asks();
        let is_in = b.is_in_within(world.ttl() / 3);
        world.pass(0.2);
        a.leaves();
        if !is_in {
            b.is_in();
        }
        world.pass(0.1);
        b.leaves();
    }
}

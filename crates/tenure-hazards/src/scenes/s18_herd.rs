//! Scene 18: a hundred pollers against a queue.

use crate::{
    card::Card, judge::Rule, needs::Need, process::Process, rooms::RedisRoom, scene::Scene, world::World,
};

/// Who comes first is served by chance.
pub(crate) struct Herd;

const CARD: Card = Card {
    number: 18,
    title: "A herd of pollers against a queue",
    hazards: &[46],
    naive: "set_nx",
    needs: &[Need::OwnRedis, Need::Machine],
    rules: &[Rule::InTurn { overtaken: OVERTAKEN }],
    fault: "A hundred clients come within a second, and want the lock at once.",
    harm: "Whoever asks at the right instant gets in. Some that came early are overtaken by dozens that came later.",
    instead: "The server keeps a queue: first come, first served. Nobody was passed over.",
};

impl Scene for Herd {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::unwatched(world);
        let names = (1..=CLIENTS).map(|n| format!("{n:03}"));
        let mut clients: Vec<Process> = names.map(|name| world.starts(&name, &room.address, &[])).collect();
        clients.iter_mut().for_each(Process::is_ready);
        let mut first = world.client("first", &room.address);
        first.enters();
        for client in &mut clients {
            client.turn(world.ttl() / 200);
            world.pass(0.005);
            if !world.has_fault() && client.name() == "001" {
                first.leaves();
            }
            if !world.has_fault() {
                client.has_had_its_turn();
            }
        }
        if world.has_fault() {
            first.leaves();
            clients.iter_mut().for_each(Process::has_had_its_turn);
        }
    }
}

const CLIENTS: usize = 100;
/// How many that came clearly later may be served before: arrivals of processes are not in an exact order.
const OVERTAKEN: usize = 20;

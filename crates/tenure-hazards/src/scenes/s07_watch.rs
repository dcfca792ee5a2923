//! Scene 7: WATCH, MULTI, EXEC, and what they cost when many want the lock.

use crate::{
    card::Card,
    judge::Rule,
    needs::Need,
    process::Process,
    rooms::{Count, RedisRoom},
    scene::Scene,
    world::World,
};

/// Whoever was not fastest begins anew, and asks again and again.
pub(crate) struct Watch;

const CARD: Card = Card {
    number: 7,
    title: "WATCH, MULTI, EXEC, and what they cost",
    hazards: &[7],
    naive: "watch",
    needs: &[Need::OwnRedis],
    rules: &[Rule::Requests { each: REQUESTS }],
    fault: "Ten clients come at once.",
    harm: "Each client needs five requests to look and take, and three to see that it came too late. One gets in at once; the nine others ask all the time.",
    instead: "One request takes the lock or a place in the queue. The server says whose turn it is; nobody polls.",
};

impl Scene for Watch {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::unwatched(world);
        let mut clients: Vec<Process> =
            (1..=CLIENTS).map(|n| world.client(&format!("C{n}"), &room.address)).collect();
        // Connected, so that only the work is counted.
        clients.iter_mut().for_each(Process::connects);
        let count = Count::begin(world, room.server());
        for client in &mut clients {
            client.turn(world.ttl() / 20);
            if !world.has_fault() {
                client.has_had_its_turn();
            }
        }
        if world.has_fault() {
            clients.iter_mut().for_each(Process::has_had_its_turn);
        }
        count.end(world);
    }
}

const CLIENTS: usize = 10;
/// What an entry may cost: WATCH and its company need ten requests if nobody else is there.
const REQUESTS: u64 = 16;

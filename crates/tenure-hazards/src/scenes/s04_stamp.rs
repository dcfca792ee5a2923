//! Scene 4: SETNX with a time stamp, GETSET, and clocks that are apart.

use tenure_testkit::clock::Clock;

use crate::{card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, world::World};

/// A client with a clock that is ahead takes a lock for one that is over.
pub(crate) struct Stamp;

const CARD: Card = Card {
    number: 4,
    title: "A time stamp as value, and clocks that are apart",
    hazards: &[2, 19],
    naive: "stamp",
    needs: &[Need::Redis, Need::Compiler],
    rules: &[Rule::OneAtATime],
    fault: "The clock of B is one hour ahead.",
    harm: "The value of the lock is the time at which it ends, by the clock of A. By the clock of B that was an hour ago. B takes the lock, and both work.",
    instead: "No time of day crosses from one machine to another. The server counts the ttl by itself, and each holder by its own clock.",
};

impl Scene for Stamp {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let room = RedisRoom::open(world);
        let clock = Clock::new();
        if world.has_fault() {
            clock.step(HOUR_MS);
            world.note("B", "has a clock that is one hour ahead");
        }
        let mut a = world.client("A", &room.address);
        let mut b = world.client_in("B", &room.address, &clock.env());
        a.enters();
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

const HOUR_MS: i64 = 3_600_000;

//! Scene 13: a clock of a server that steps forward.

use tenure_testkit::{clock::Clock, redis::Recipe};

use crate::{
    card::Card,
    judge::Rule,
    needs::Need,
    rooms::{LANE, RedisRoom},
    scene::Scene,
    world::World,
};

/// The lock ends early, and nobody tells its holder.
pub(crate) struct ClockSteps;

const CARD: Card = Card {
    number: 13,
    title: "A clock that steps forward",
    hazards: &[18],
    naive: "set_nx",
    needs: &[Need::OwnRedis, Need::Compiler],
    rules: &[Rule::NoLateWrite],
    fault: "The clock of the server steps forward by an hour.",
    harm: "The server ends the lock of A early, and B goes in and writes. A does not know, and overwrites what B wrote.",
    instead: "No lock can prevent that a lease ends early. A was told at its next renewal, but its write was on its way. B had been told when that lease was to end, and asked again then. Its grant had a larger token, so the resource refused the write of A.",
};

impl Scene for ClockSteps {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let clock = Clock::new();
        let room = RedisRoom::own(world, Recipe::new().clock(&clock));
        let mut a = world.client("A", &room.address);
        let mut b = world.client("B", &room.address);
        a.enters();
        world.pass(0.05);
        a.writes("first of A");
        world.pass(0.05);
        a.is_about_to_write("second of A", world.has_fault());
        b.asks();
        if world.has_fault() {
            world.pass(0.1);
            clock.step(HOUR_MS);
            world.fault(LANE, "has its clock stepped forward by 1 h");
            b.is_in();
            world.pass(0.05);
            b.writes("of B");
            world.pass(0.1);
            a.goes_on();
            a.has_written();
            world.pass(0.1);
            b.leaves();
        } else {
            a.has_written();
            a.leaves();
            b.is_in();
            b.writes("of B");
            b.leaves();
        }
    }
}

const HOUR_MS: i64 = 3_600_000;

//! Scene 4: SETNX with a time stamp, GETSET, and clocks that are apart.

use tenure_testkit::clock::Clock;

use crate::{card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, stage::Stage};

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

    fn play(&self, stage: &mut Stage<'_>) {
        let room = RedisRoom::open(stage);
        let clock = Clock::new();
        if stage.has_fault() {
            clock.step(HOUR_MS);
            stage.note("B", "has a clock that is one hour ahead");
        }
        let mut a = stage.client("A", &room.address);
        let mut b = stage.client_in("B", &room.address, &clock.env());
        a.enters();
        b.asks();
        let is_in = b.is_in_within(stage.ttl() / 3);
        stage.pass(0.2);
        a.leaves();
        if !is_in {
            b.is_in();
        }
        stage.pass(0.1);
        b.leaves();
    }
}

const HOUR_MS: i64 = 3_600_000;

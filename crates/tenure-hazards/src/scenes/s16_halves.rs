//! Scene 16: two halves of a quorum, again and again.

use std::time::Instant;

use crate::{
    card::Card, client::Client, judge::Rule, needs::Need, rooms::Quorum, scene::Scene, stage::Stage,
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

    fn play(&self, stage: &mut Stage<'_>) {
        let room = Quorum::open(stage, 5);
        room.servers[4].kill();
        stage.fault("node 5", "is down");
        let ports = room.ports();
        let near: Vec<u16> = ports.clone();
        let far: Vec<u16> = [3, 2, 1, 0, 4].map(|nth| ports[nth]).to_vec();
        let mut a = stage.client("A", &room.address(stage, &near));
        let mut b = stage.client("B", &room.address(stage, &far));
        a.asks_and_stops_if(stage.has_fault());
        if stage.has_fault() {
            b.asks_and_stops_if(true);
            let until = Instant::now() + 4 * stage.ttl();
            // In step: each goes on when both stand.
            while Instant::now() < until {
                let [a_is_in, b_is_in] =
                    [&mut a, &mut b].map(|client| client.is_in_or_stands_within(stage.ttl()));
                match (a_is_in, b_is_in) {
                    (Some(false), Some(false)) => {
                        stage.pass(0.15);
                        a.goes_on();
                        b.goes_on();
                    }
                    (Some(true), _) => return one_after_the_other(stage, a, b),
                    (_, Some(true)) => return one_after_the_other(stage, b, a),
                    _ => {}
                }
            }
        } else {
            b.asks();
            one_after_the_other(stage, a, b);
        }
    }
}

/// The first is in, or will be before the second.
fn one_after_the_other(stage: &Stage<'_>, mut first: Client, mut second: Client) {
    stage.pass(0.2);
    first.leaves();
    second.is_in();
    stage.pass(0.2);
    second.leaves();
}

//! Scene 15: an answer that comes late and is believed.

use tenure_testkit::{proxy::Proxy, redis::Recipe};

use crate::{
    card::Card,
    judge::Rule,
    needs::Need,
    rooms::{RedisRoom, address},
    scene::Scene,
    stage::Stage,
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

    fn play(&self, stage: &mut Stage<'_>) {
        let room = RedisRoom::own(stage, Recipe::new());
        let network = Proxy::to(room.server().port(), 1);
        let far = address(stage, network.port());
        let mut a = stage.client("A", &far);
        let mut b = stage.client("B", &room.address);
        // Connected before the network fails.
        a.connects();
        if stage.has_fault() {
            network.hold_replies();
            stage.fault("A", "hears no answer");
        }
        a.asks();
        stage.waits(20.0, || room.server().command(&["EXISTS", stage.lock()]).int() == 1);
        b.asks();
        if stage.has_fault() {
            b.is_in();
            stage.pass(0.1);
            stage.note("A", "hears the answer");
            network.release();
        }
        let is_in = a.is_in_within(stage.ttl() / 3);
        stage.pass(0.2);
        if stage.has_fault() {
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

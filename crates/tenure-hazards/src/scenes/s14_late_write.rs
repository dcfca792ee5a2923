//! Scene 14: a holder is stopped, and its write comes late.

use crate::{card::Card, judge::Rule, needs::Need, rooms::RedisRoom, scene::Scene, stage::Stage};

/// No lock can prevent this: only the resource can.
pub(crate) struct LateWrite;

const CARD: Card = Card {
    number: 14,
    title: "The late write of a holder that was stopped",
    hazards: &[11, 13],
    naive: "set_nx",
    needs: &[Need::Redis],
    rules: &[Rule::NoLateWrite],
    fault: "A is stopped after it has looked whether it holds, and before it writes.",
    harm: "A looks, and has the lock. Then it is stopped. Its lock ends, B goes in and writes. A resumes, and its write lands on that of B.",
    instead: "Each write carries the token of its grant. The resource had seen the token of B, which is larger, and refused that of A.",
};

impl Scene for LateWrite {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, stage: &mut Stage<'_>) {
        let room = RedisRoom::open(stage);
        let mut a = stage.client("A", &room.address);
        let mut b = stage.client("B", &room.address);
        a.enters();
        stage.pass(0.1);
        a.writes("first of A");
        stage.pass(0.1);
        a.is_about_to_write("second of A", stage.has_fault());
        b.asks();
        if stage.has_fault() {
            stage.pass(0.1);
            a.stops();
            b.is_in();
            stage.pass(0.1);
            b.writes("of B");
            stage.pass(0.2);
            a.goes_on();
            a.continues();
            a.has_written();
            stage.pass(0.2);
        } else {
            a.has_written();
            a.leaves();
            b.is_in();
            b.writes("of B");
        }
        b.leaves();
    }
}

//! What more than one scene plays.

use crate::{client::Client, stage::Stage};

/// A has entered, and dies if there is a fault. B comes, and waits for what A left behind.
pub(super) fn b_waits_for_the_dead(stage: &mut Stage<'_>, mut a: Client, mut b: Client) {
    b.asks();
    stage.pass(0.2);
    if stage.has_fault() {
        a.dies();
    } else {
        a.leaves();
    }
    if b.is_in_within(3 * stage.ttl()) {
        stage.pass(0.1);
        b.leaves();
    }
}

/// B is in, and C comes: beside B, if somebody has freed what is B's, or after it.
pub(super) fn c_comes_beside_b(stage: &mut Stage<'_>, mut b: Client, mut c: Client) {
    c.asks();
    let is_in = c.is_in_within(stage.ttl() / 3);
    stage.pass(0.1);
    b.leaves();
    if !is_in {
        c.is_in();
    }
    stage.pass(0.1);
    c.leaves();
}

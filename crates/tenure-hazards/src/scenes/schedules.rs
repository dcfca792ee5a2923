//! What more than one scene plays.

use crate::{process::Process, world::World};

/// A has entered, and dies if there is a fault. B comes, and waits for what A left behind.
pub(super) fn b_waits_for_the_dead(world: &mut World<'_>, mut a: Process, mut b: Process) {
    b.asks();
    world.pass(0.2);
    if world.has_fault() {
        a.dies();
    } else {
        a.leaves();
    }
    if b.is_in_within(3 * world.ttl()) {
        world.pass(0.1);
        b.leaves();
    }
}

/// B is in, and C comes: beside B, if somebody has freed what is B's, or after it.
pub(super) fn c_comes_beside_b(world: &mut World<'_>, mut b: Process, mut c: Process) {
    c.asks();
    let is_in = c.is_in_within(world.ttl() / 3);
    world.pass(0.1);
    b.leaves();
    if !is_in {
        c.is_in();
    }
    world.pass(0.1);
    c.leaves();
}

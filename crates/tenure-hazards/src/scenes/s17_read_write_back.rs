//! Scene 17: read, change, write back, without a version.

use std::time::Duration;

use crate::{card::Card, judge::Rule, rooms::Rows, scene::Scene, world::World};

/// Two read the same number, and both write one more.
pub(crate) struct ReadWriteBack;

const CARD: Card = Card {
    number: 17,
    title: "Read, change, write back",
    hazards: &[51],
    naive: "read_write_back",
    needs: &[],
    rules: &[Rule::NoLostUpdate],
    fault: "B reads and writes while A pauses between its SELECT and its UPDATE.",
    harm: "A and B both read 0, and both write 1. No transaction spanned the read and the write, and one update is lost.",
    instead: "B waited for the lock before it read. Each write carried the token as a version, and the row refuses an older one.",
};

impl Scene for ReadWriteBack {
    fn card(&self) -> &Card {
        &CARD
    }

    fn play(&self, world: &mut World<'_>) {
        let rows = Rows::open(world);
        let mut a = world.client("A", &rows.address);
        let mut b = world.client("B", &rows.address);
        a.adds_and_stops_if(world.has_fault());
        let stands = world.has_fault() && a.stands_within(PATIENCE);
        if !stands {
            a.has_added();
        }
        b.adds_and_stops_if(false);
        let has_added = b.has_added_within(world.ttl() / 3);
        world.pass(0.1);
        if stands {
            a.goes_on();
            a.has_added();
        }
        if !has_added {
            b.has_added();
        }
        rows.sum(world);
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

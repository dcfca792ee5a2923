//! `Half`: one scheme in one scene, played once.

use std::{
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use crate::{
    judge::{Harm, judge},
    record::Event,
    scenes::Scene,
    servers,
    setup::{Half, Setup},
    world::World,
};

/// What came of a half.
#[derive(Clone, Debug)]
pub struct Played {
    /// All that happened, by time.
    pub events: Vec<Event>,
    /// Who was hurt.
    pub harms: Vec<Harm>,
    /// How long a lock lasted.
    pub ttl: Duration,
    /// Why it could not be played to the end.
    pub trouble: Option<String>,
}

/// Plays one half of a scene.
pub fn play(scene: &Scene, half: Half, setup: &Setup) -> Played {
    let mut world = World::new((scene.number, scene.naive), half, setup);
    let ended = panic::catch_unwind(AssertUnwindSafe(|| (scene.schedule)(&mut world)));
    let (ttl, events) = (world.ttl(), world.events());
    if let Some(url) = &setup.url {
        // OK to ignore because whoever could not reach the server has heard so from the clients.
        let _ = servers::free(url, world.lock());
    }
    let trouble = ended.err().map(|cause| {
        let words = cause.downcast_ref::<String>().map(String::as_str);
        words.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
    });
    Played { harms: judge(scene.rules, &events, ttl), events, ttl, trouble }
}

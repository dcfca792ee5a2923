//! `Half`: one scheme in one scene, played once.

use std::{
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use crate::{
    cast::{Cast, Half},
    judge::{Harm, judge},
    record::Event,
    rooms,
    scene::Scene,
    stage::Stage,
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
pub fn play(scene: &dyn Scene, half: Half, cast: &Cast) -> Played {
    let mut stage = Stage::new(scene.card(), half, cast);
    let ended = panic::catch_unwind(AssertUnwindSafe(|| scene.play(&mut stage)));
    let (ttl, events) = (stage.ttl(), stage.events());
    if let Some(url) = &cast.url {
        // OK to ignore because whoever could not reach the server has heard so from the clients.
        let _ = rooms::free(url, stage.lock());
    }
    let trouble = ended.err().map(|cause| {
        let words = cause.downcast_ref::<String>().map(String::as_str);
        words.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
    });
    Played { harms: judge(scene.card().rules, &events, ttl), events, ttl, trouble }
}

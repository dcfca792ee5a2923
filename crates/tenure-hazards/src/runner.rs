//! Plays the scenes, some at the same time, and reports the result of each.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde::{Serialize, Serializer};

use crate::{
    judge::{Harm, judge},
    programs::Need,
    record::{Event, locked},
    scenes::Scene,
    servers,
    world::{Half, Setup, World},
};

/// Plays scenes.
#[derive(Debug)]
pub struct Runner {
    /// With what.
    pub setup: Setup,
    /// How many scenes at the same time.
    pub jobs: usize,
}

impl Runner {
    /// Plays these scenes. Calls `done` when a scene has ended, in the order in which they end.
    pub fn play(&self, scenes: &[&'static Scene], mut done: impl FnMut(&Report)) -> Vec<Report> {
        let (next, (tell, told)) = (AtomicUsize::new(0), mpsc::channel());
        // Scenes that need the machine for themselves run one after the other.
        let alone = Mutex::new(());
        thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                let (tell, next, alone) = (tell.clone(), &next, &alone);
                scope.spawn(move || {
                    while let Some(scene) = scenes.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let _turn = scene.needs.contains(&Need::Machine).then(|| locked(alone));
                        // OK to ignore because the receiver outlives the scope.
                        let _ = tell.send(self.report(scene));
                    }
                });
            }
            drop(tell);
            let mut all: Vec<Report> = told.iter().inspect(&mut done).collect();
            all.sort_by_key(|report| report.scene.number);
            all
        })
    }

    fn report(&self, scene: &'static Scene) -> Report {
        if let Some(missing) = scene.needs.iter().find_map(|need| self.missing(*need)) {
            let nothing = Outcome { verdict: Verdict::NotPlayed, what: missing.to_owned(), played: None };
            return Report { scene, naive: nothing.clone(), tenure: nothing };
        }
        let [naive, tenure] =
            [Half::Naive, Half::Tenure].map(|half| Outcome::of(scene, half, play(scene, half, &self.setup)));
        Report { scene, naive, tenure }
    }

    fn missing(&self, need: Need) -> Option<&'static str> {
        match need {
            Need::Redis if self.setup.url.is_some() => None,
            Need::Tenure if self.setup.tenure.is_none() => Some(Need::Tenure.install()),
            need => need.missing(),
        }
    }
}

/// The result of a scene.
#[derive(Clone, Debug)]
pub struct Report {
    /// What is known of it.
    pub scene: &'static Scene,
    /// With the usual recipe.
    pub naive: Outcome,
    /// With Tenure.
    pub tenure: Outcome,
}

impl Report {
    /// Both verdicts are the expected ones.
    pub fn is_as_expected(&self) -> bool {
        (self.naive.verdict, self.tenure.verdict) == (Verdict::Harmed, Verdict::Safe)
    }

    /// A program was missing: the scene was not even begun.
    pub fn was_not_begun(&self) -> bool {
        self.naive.played.is_none() && self.tenure.played.is_none()
    }

    /// Both halves.
    pub(crate) fn halves(&self) -> [(Half, &Outcome); 2] {
        [(Half::Naive, &self.naive), (Half::Tenure, &self.tenure)]
    }
}

/// The result of a half, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Whether harm was done.
    pub verdict: Verdict,
    /// In words.
    pub what: String,
    /// All that happened, if it was played.
    #[serde(skip)]
    pub played: Option<Played>,
}

impl Outcome {
    /// The result of a half.
    pub fn of(scene: &Scene, half: Half, played: Played) -> Self {
        let harms: Vec<&str> = played.harms.iter().map(|harm| harm.what.as_str()).collect();
        let (verdict, what) = match (&played.trouble, half) {
            (Some(trouble), _) => (Verdict::NotPlayed, trouble.clone()),
            (None, _) if !harms.is_empty() => (Verdict::Harmed, harms.join(" ")),
            (None, Half::Naive) => (Verdict::Safe, NO_HARM.to_owned()),
            (None, Half::Tenure) => (Verdict::Safe, format!("{NO_HARM} {}", scene.instead)),
        };
        Self { verdict, what, played: Some(played) }
    }
}

/// The result of one half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Harm was done.
    Harmed,
    /// No harm was done.
    Safe,
    /// It could not be played.
    NotPlayed,
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl Verdict {
    /// In one or two words.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Harmed => "harmed",
            Self::Safe => "safe",
            Self::NotPlayed => "not played",
        }
    }
}

/// What happened in a half.
#[derive(Clone, Debug)]
pub struct Played {
    /// All that happened, by time.
    pub events: Vec<Event>,
    /// The harm that was done.
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
    let (ttl, events) = (world.ttl, world.events());
    if let Some(url) = &setup.url {
        // OK to ignore because the clients have reported a server that cannot be reached.
        let _ = servers::free(url, &world.lock);
    }
    let trouble = ended.err().map(|cause| {
        let words = cause.downcast_ref::<String>().map(String::as_str);
        words.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
    });
    Played { harms: judge(scene.rules, &events, ttl), events, ttl, trouble }
}

/// The words for a half without harm.
pub(crate) const NO_HARM: &str = "No harm.";

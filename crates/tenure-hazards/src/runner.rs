//! `Runner`: plays all scenes, some at once, and says what became of each.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use crate::{
    half::{Played, play},
    needs::Need,
    record::locked,
    scenes::Scene,
    setup::{Half, Setup},
};

/// What became of one half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Somebody was hurt.
    Harmed,
    /// Nobody was.
    Safe,
    /// It could not be played.
    NotPlayed,
}

/// What is shown of a scene.
#[derive(Clone, Debug)]
pub struct Report {
    /// What is known of it.
    pub scene: &'static Scene,
    /// With the scheme as everybody writes it.
    pub naive: Outcome,
    /// With Tenure.
    pub tenure: Outcome,
}

/// A half, its verdict and why.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Who was hurt.
    pub verdict: Verdict,
    /// In words.
    pub what: String,
    /// All that happened, if it was played.
    pub played: Option<Played>,
}

/// Where scenes are played.
#[derive(Debug)]
pub struct Runner {
    /// Who plays.
    pub setup: Setup,
    /// How many at once.
    pub jobs: usize,
}

impl Runner {
    /// Plays these scenes; calls `done` as each is over, in the order in which they end.
    pub fn play(&self, scenes: &[&'static Scene], mut done: impl FnMut(&Report)) -> Vec<Report> {
        let (next, (tell, told)) = (AtomicUsize::new(0), mpsc::channel());
        // Those that need the machine for themselves, one after the other.
        let alone = Mutex::new(());
        thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                let (tell, next, alone) = (tell.clone(), &next, &alone);
                scope.spawn(move || {
                    while let Some(scene) = scenes.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let _turn = scene.needs.contains(&Need::Machine).then(|| locked(alone));
                        // OK to ignore because the receiver outlives the scope.
                        let _ = tell.send(self.show(scene));
                    }
                });
            }
            drop(tell);
            let mut all: Vec<Report> = told.iter().inspect(&mut done).collect();
            all.sort_by_key(|shown| shown.scene.number);
            all
        })
    }

    fn show(&self, scene: &'static Scene) -> Report {
        if let Some(missing) = scene.needs.iter().find_map(|need| self.missing(*need)) {
            let nothing = Outcome { verdict: Verdict::NotPlayed, what: missing.to_owned(), played: None };
            return Report { scene, naive: nothing.clone(), tenure: nothing };
        }
        let [naive, tenure] = [Half::Naive, Half::Tenure].map(|half| {
            let played = play(scene, half, &self.setup);
            Outcome::of(scene, half, played)
        });
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

impl Outcome {
    /// What became of a half.
    pub fn of(scene: &Scene, half: Half, played: Played) -> Self {
        let harms: Vec<&str> = played.harms.iter().map(|harm| harm.what.as_str()).collect();
        let (verdict, what) = match &played.trouble {
            Some(trouble) => (Verdict::NotPlayed, trouble.clone()),
            None if harms.is_empty() => (Verdict::Safe, safe(scene, half)),
            None => (Verdict::Harmed, harms.join(" ")),
        };
        Self { verdict, what, played: Some(played) }
    }
}

fn safe(scene: &Scene, half: Half) -> String {
    match half {
        Half::Naive => "Nobody was hurt.".to_owned(),
        Half::Tenure => format!("Nobody was hurt. {}", scene.instead),
    }
}

impl Report {
    /// Both verdicts are the expected ones.
    pub fn is_as_expected(&self) -> bool {
        (self.naive.verdict, self.tenure.verdict) == (Verdict::Harmed, Verdict::Safe)
    }

    /// A program was missing: it was not even begun.
    pub fn was_not_begun(&self) -> bool {
        self.naive.played.is_none() && self.tenure.played.is_none()
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

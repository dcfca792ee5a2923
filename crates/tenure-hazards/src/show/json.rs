//! A list for programs.

use serde::Serialize;

use crate::runner::{Outcome, Report};

#[derive(Serialize)]
struct Scene<'a> {
    scene: u8,
    title: &'a str,
    naive: Half<'a>,
    tenure: Half<'a>,
}

#[derive(Serialize)]
struct Half<'a> {
    verdict: &'static str,
    what: &'a str,
}

/// `[{"scene", "title", "naive": {"verdict", "what"}, "tenure": {"verdict", "what"}}]`
pub fn list(shown: &[Report]) -> String {
    let scenes: Vec<Scene<'_>> = shown.iter().map(Scene::of).collect();
    serde_json::to_string_pretty(&scenes).expect("BUG: words are JSON")
}

impl<'a> Scene<'a> {
    fn of(shown: &'a Report) -> Self {
        let Report { scene, naive, tenure } = shown;
        Self { scene: scene.number, title: scene.title, naive: Half::of(naive), tenure: Half::of(tenure) }
    }
}

impl<'a> Half<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        Self { verdict: outcome.verdict.word(), what: &outcome.what }
    }
}

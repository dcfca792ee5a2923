//! The page: one file, no script, nothing fetched.

use std::{collections::BTreeSet, time::Duration};

use askama::Template;

use crate::{
    pictures::picture,
    runner::{NO_HARM, Outcome, Report, Verdict},
    world::Half,
};

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    /// How long a lock lasted, in words; empty if no scene was played.
    ttl: String,
    scenes: Vec<Scene<'a>>,
}

struct Scene<'a> {
    number: u8,
    title: &'a str,
    fault: &'a str,
    sides: [Side<'a>; 2],
}

struct Side<'a> {
    name: &'static str,
    sentence: &'a str,
    verdict: &'static str,
    class: &'static str,
    finding: &'a str,
    picture: String,
    code: String,
    id: String,
}

/// The page of these scenes.
///
/// # Errors
/// If a text cannot be put into the page.
pub fn of(reports: &[Report]) -> Result<String, askama::Error> {
    Page { ttl: ttl(reports), scenes: reports.iter().map(Scene::of).collect() }.render()
}

/// `1 s`, or `1 s or 2 s` if the machine became busy during the run.
fn ttl(reports: &[Report]) -> String {
    let halves = reports.iter().flat_map(|report| [&report.naive, &report.tenure]);
    let ttls: BTreeSet<Duration> = halves.filter_map(|half| Some(half.played.as_ref()?.ttl)).collect();
    ttls.iter().map(|ttl| format!("{} s", ttl.as_secs_f64())).collect::<Vec<_>>().join(" or ")
}

impl<'a> Scene<'a> {
    fn of(report: &'a Report) -> Self {
        let (scene, [naive, tenure]) = (report.scene, report.scene.code());
        let sides = [
            Side::of(scene, Half::Naive, &report.naive, naive),
            Side::of(scene, Half::Tenure, &report.tenure, tenure),
        ];
        Self { number: scene.number, title: scene.title, fault: scene.fault, sides }
    }
}

impl<'a> Side<'a> {
    fn of(scene: &'static crate::scenes::Scene, half: Half, outcome: &'a Outcome, code: String) -> Self {
        let (name, sentence, short) = match half {
            Half::Naive => ("The usual recipe", scene.harm, "naive"),
            Half::Tenure => ("With Tenure", scene.instead, "tenure"),
        };
        let class = match outcome.verdict {
            Verdict::Harmed => "harmed",
            Verdict::Safe => "safe",
            Verdict::NotPlayed => "none",
        };
        let finding = if outcome.verdict == Verdict::Safe { NO_HARM } else { &outcome.what };
        let picture = outcome.played.as_ref().map(|played| picture(scene, half, played).svg());
        Self {
            name,
            sentence,
            verdict: outcome.verdict.word(),
            class,
            finding,
            picture: picture.unwrap_or_default(),
            code,
            id: format!("{}-{short}", scene.number),
        }
    }
}

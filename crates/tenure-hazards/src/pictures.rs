//! The picture of each half, from the referee's record: as a file, and compared with that of another run.

use std::{fs, io, path::Path, time::Duration};

use tenure_picture::{Bar, Lane, Look, Mark, Picture, Shade, Sign, story};

use crate::{
    judge::{Harm, Span, end, inside, stopped, waiting},
    record::{Event, Kind, What},
    runner::{Outcome, Played, Report},
    scenes::Scene,
    world::Half,
};

/// Writes them into a folder.
///
/// # Errors
/// If a file cannot be written.
pub fn write(folder: &Path, reports: &[Report]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    reports.iter().flat_map(files).try_for_each(|(file, text)| fs::write(folder.join(file), text))
}

/// What the pictures in a folder show and these do not, and the reverse, except for times: one line each.
pub fn compare(folder: &Path, reports: &[Report]) -> Vec<String> {
    let mut lines = Vec::new();
    for (file, text) in reports.iter().flat_map(files) {
        let Ok(old) = fs::read_to_string(folder.join(&file)) else {
            lines.push(format!("{file}: is not there"));
            continue;
        };
        let (old, new) = (story(&old), story(&text));
        lines.extend(old.difference(&new).map(|words| format!("{file}: was told, and is not: {words}")));
        lines.extend(new.difference(&old).map(|words| format!("{file}: is told, and was not: {words}")));
    }
    lines
}

/// The file and the text of each half that was played.
fn files(report: &Report) -> Vec<(String, String)> {
    let file = |(half, outcome): (Half, &Outcome)| {
        let picture = picture(report.scene, half, outcome.played.as_ref()?);
        Some((format!("{}.svg", picture.id), picture.svg() + "\n"))
    };
    report.halves().into_iter().filter_map(file).collect()
}

/// The picture of a half.
pub(crate) fn picture(scene: &Scene, half: Half, played: &Played) -> Picture {
    let events = &played.events;
    let lanes = [Kind::Client, Kind::Resource, Kind::Store];
    let mut lanes: Vec<Lane> = lanes.iter().flat_map(|kind| names(events, *kind)).map(lane).collect();
    for lane in &mut lanes {
        lane.bars = bars(&lane.name, events);
        lane.marks = marks(&lane.name, played);
    }
    if lanes.len() > FEW {
        // The bars show grants and releases already.
        lanes
            .iter_mut()
            .for_each(|lane| lane.marks.retain(|mark| ![ACQUIRES, RELEASES].contains(&mark.label.as_str())));
    }
    let (word, sentence) = match half {
        Half::Naive => ("the usual recipe", scene.harm),
        Half::Tenure => ("with Tenure", scene.instead),
    };
    Picture {
        id: id(scene, half),
        title: format!("{}. {}, {word}", scene.number, scene.title),
        description: sentence.to_owned(),
        span: end(events),
        lanes,
        shades: played.harms.iter().filter(|harm| harm.from < harm.until).map(shade).collect(),
        ..Picture::default()
    }
}

/// The name of a picture: `01-naive`.
fn id(scene: &Scene, half: Half) -> String {
    let word = match half {
        Half::Naive => "naive",
        Half::Tenure => "tenure",
    };
    format!("{:02}-{word}", scene.number)
}

fn names(events: &[Event], kind: Kind) -> Vec<&str> {
    let of_kind = events.iter().filter(|event| event.what == What::Opens(kind));
    let mut names: Vec<&str> = of_kind.map(|event| event.lane.as_str()).collect();
    names.dedup();
    names
}

fn lane(name: &str) -> Lane {
    Lane { name: name.to_owned(), ..Lane::default() }
}

fn shade(harm: &Harm) -> Shade {
    Shade { from: harm.from, until: harm.until, label: harm.label.to_owned() }
}

fn bars(lane: &str, events: &[Event]) -> Vec<Bar> {
    let of = |spans: Vec<Span>, look: Look, label: &'static str| {
        let own = spans.into_iter().filter(move |span| span.lane == lane);
        own.map(move |span| Bar { from: span.from, until: span.until, look, label: label.to_owned() })
    };
    let client = of(waiting(events), Look::Waits, "waits")
        .chain(of(inside(events), Look::Believes, "works"))
        .chain(of(stopped(events), Look::Stopped, ""));
    client.chain(held(lane, events)).collect()
}

/// Which client has the lock, as a store reports it.
fn held(lane: &str, events: &[Event]) -> Vec<Bar> {
    let words: Vec<(Duration, Option<&str>)> = events
        .iter()
        .filter(|event| event.lane == lane)
        .filter_map(|event| match &event.what {
            What::Holds(holder) => Some((event.at, holder.as_deref())),
            _ => None,
        })
        .collect();
    let ends = words.iter().skip(1).map(|(at, _)| *at).chain([end(events)]);
    let spans = words.iter().zip(ends);
    spans
        .filter_map(|((from, holder), until)| {
            Some(Bar { from: *from, until, look: Look::Holds, label: (*holder)?.to_owned() })
        })
        .collect()
}

fn marks(lane: &str, played: &Played) -> Vec<Mark> {
    let own = played.events.iter().filter(|event| event.lane == lane);
    own.filter_map(|event| {
        let (sign, label) = mark(event, played)?;
        Some(Mark { at: event.at, sign, label })
    })
    .collect()
}

fn mark(event: &Event, played: &Played) -> Option<(Sign, String)> {
    let is_harmful = played.harms.iter().any(|harm| harm.from == event.at && harm.until == event.at);
    let write = |is_taken| match (is_taken, is_harmful) {
        (_, true) => Sign::Harmful,
        (true, _) => Sign::Taken,
        (false, _) => Sign::Refused,
    };
    Some(match &event.what {
        What::Enters => (Sign::Note, ACQUIRES.to_owned()),
        // A client that has lost the lock has nothing to leave.
        What::Leaves if !was_inside(event, played) => return None,
        What::Leaves => (Sign::Note, RELEASES.to_owned()),
        What::Abandons => (Sign::Fault, "loses its worker, which does not release".to_owned()),
        What::Hears { by_clock: true } => (Sign::Note, "reaches its deadline, by its own clock".to_owned()),
        What::Hears { by_clock: false } => (Sign::Note, "is told that its lease has expired".to_owned()),
        What::Dies => (Sign::Fault, "dies".to_owned()),
        What::Stops => (Sign::Fault, "is stopped, and does not know it".to_owned()),
        What::GoesOn => (Sign::Note, "resumes".to_owned()),
        What::Writes { text, is_taken } => {
            let word = if *is_taken { "accepted" } else { "refused" };
            (write(*is_taken), format!("writes \"{text}\": {word}"))
        }
        What::Adds { is_taken } => {
            let word = if *is_taken { "adds one, and is told that it is done" } else { "is refused" };
            (write(*is_taken), word.to_owned())
        }
        What::Sum(sum) => {
            (if is_harmful { Sign::Harmful } else { Sign::Note }, format!("is {sum} in the end"))
        }
        What::Requests(0) => (Sign::Note, "has its requests counted from here".to_owned()),
        What::Requests(count) => (Sign::Note, format!("was sent {count} requests")),
        What::Fault(words) => (Sign::Fault, words.clone()),
        What::Note(words) => (Sign::Note, words.clone()),
        What::Opens(_) | What::Asks | What::Holds(_) | What::Ends => return None,
    })
}

fn was_inside(event: &Event, played: &Played) -> bool {
    inside(&played.events).iter().any(|span| span.lane == event.lane && span.until == event.at)
}

const ACQUIRES: &str = "acquires the lock";
const RELEASES: &str = "releases";
/// With more lanes there would be too many marks.
const FEW: usize = 9;

//! `bench`: how fast a store is, and how fair, measured as a program would use it.

mod course;
mod part;
mod report;
mod tally;

use std::{cell::Cell, time::Duration};

use tenure::{Host, Moment, TokioHost};

use crate::{
    args::{Bench, Global},
    bench::{
        course::{Course, Tasks},
        part::{Answer, Part},
    },
    exit::Stop,
    signals::Signals,
    view,
    waiting::{self, Trouble, announce, attended},
};

const CONNECTING: &str = "connecting";

pub(crate) async fn bench(global: &Global, args: &Bench) -> Result<u8, Stop> {
    let course = Course::new(global, args).await?;
    let mut signals = Signals::listen()?;
    let parts = Part::all(args.waiters);
    let (stand, mut tasks) = (Stand::new(parts.len(), args.duration), Tasks::new());
    let shown = waiting::fill(global.quiet, || stand.look(&course));
    let said = announce(global.quiet, || stand.trouble(&course), connecting);
    let running = run(&course, &parts, &stand, &mut tasks);
    let measured = attended(running, signals.asked_to_end(), shown, said).await;
    // A task that is stopped half way releases its lock.
    tasks.shutdown().await;
    course.clear(&mut signals).await;
    let answers = measured.map_err(Stop::signalled)??;
    if args.json {
        view::print_exactly(&view::json(&report::json(course.backend(), args.duration, &answers)))?;
    } else {
        view::print(&report::table(&answers))?;
    }
    Ok(0)
}

async fn run(course: &Course, parts: &[Part], stand: &Stand, tasks: &mut Tasks) -> Result<Vec<Answer>, Stop> {
    course.warm_up().await?;
    let mut answers = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        stand.begins(number, *part);
        answers.push(course.run(*part, tasks).await?);
    }
    Ok(answers)
}

fn connecting(trouble: &Trouble) -> String {
    format!("{CONNECTING}: {}", trouble.why)
}

/// Which part runs, since when.
struct Stand {
    parts: usize,
    lasts: Duration,
    running: Cell<Option<(usize, Part, Moment)>>,
}

impl Stand {
    fn new(parts: usize, lasts: Duration) -> Self {
        Self { parts, lasts, running: Cell::new(None) }
    }

    fn begins(&self, number: usize, part: Part) {
        self.running.set(Some((number, part, TokioHost.now())));
    }

    /// Why connecting takes so long.
    fn trouble(&self, course: &Course) -> Option<Trouble> {
        course.trouble().filter(|_| self.running.get().is_none())
    }

    /// How far the whole is, and what runs.
    fn look(&self, course: &Course) -> (f64, String) {
        let Some((number, part, began)) = self.running.get() else {
            let line =
                self.trouble(course).map_or_else(|| CONNECTING.to_owned(), |trouble| connecting(&trouble));
            return (0.0, line);
        };
        let here = began.elapsed(TokioHost.now()).as_secs_f64() / self.lasts.as_secs_f64();
        let share = (number as f64 + here.min(1.0)) / self.parts as f64;
        (share, format!("{} of {}: {}", number + 1, self.parts, part.title()))
    }
}

//! `bench`: the speed and the fairness of a store, measured as a program would use it.

mod tally;

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;
use tenure::{
    AcquireError, Lock, LockName, Locker, Progress, ReleaseError,
    backend::{Host, Moment, TokioHost},
};
use tokio::task::{JoinSet, yield_now};

use crate::{
    args::{Bench, Global, IS_UNOPTIMISED},
    bench::tally::TaskCounts,
    exit::{Stop, UNAVAILABLE, chain},
    signals::Signals,
    store, text, view,
    waiting::{self, LEAVE_PATIENCE, StoreTrouble, announce, attended, drained},
};

pub(crate) async fn bench(global: &Global, args: &Bench) -> Result<u8, Stop> {
    let course = Course::new(global, args).await?;
    let mut signals = Signals::listen()?;
    let parts = BenchPart::all(args.waiters);
    let (stand, mut tasks) = (Stand::new(parts.len(), args.duration), BenchTasks::new());
    let shown = waiting::fill(global.quiet, || stand.progress(&course));
    let said = announce(global.quiet, || stand.trouble(&course), connecting);
    let running = run(&course, &parts, &stand, &mut tasks);
    let measured = attended(running, signals.asked_to_end(), shown, said).await;
    // A task that is stopped half way releases its lock.
    tasks.shutdown().await;
    course.clear(&mut signals).await;
    let answers = measured.map_err(Stop::signalled)??;
    if args.json {
        view::print_exactly(&view::json(&json(course.backend(), args.duration, &answers)))?;
    } else {
        let build = if IS_UNOPTIMISED { UNOPTIMISED } else { "" };
        view::print(&format!("{}{build}", table(&answers)))?;
    }
    Ok(0)
}

async fn run(
    course: &Course,
    parts: &[BenchPart],
    stand: &Stand,
    tasks: &mut BenchTasks,
) -> Result<Vec<BenchResult>, Stop> {
    course.warm_up().await?;
    let mut answers = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        stand.begins(number, *part);
        answers.push(course.run(*part, tasks).await?);
    }
    Ok(answers)
}

fn connecting(trouble: &StoreTrouble) -> String {
    format!("{CONNECTING}: {}", trouble.why)
}

/// The part that runs, and since when.
struct Stand {
    parts: usize,
    lasts: Duration,
    running: Cell<Option<(usize, BenchPart, Moment)>>,
}

impl Stand {
    fn new(parts: usize, lasts: Duration) -> Self {
        Self { parts, lasts, running: Cell::new(None) }
    }

    fn begins(&self, number: usize, part: BenchPart) {
        self.running.set(Some((number, part, TokioHost.now())));
    }

    /// Why connecting takes long.
    fn trouble(&self, course: &Course) -> Option<StoreTrouble> {
        course.trouble().filter(|_| self.running.get().is_none())
    }

    /// The progress of the whole, and the part that runs.
    fn progress(&self, course: &Course) -> (f64, String) {
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

/// The tasks of the part that runs. They stop when it is dropped.
type BenchTasks = JoinSet<Result<TaskCounts, Stop>>;

/// Connections, and names that no other client can know.
struct Course {
    lockers: Vec<Locker>,
    prefix: String,
    lasts: Duration,
    waiting: Progress,
    /// Where the store is, for messages.
    place: String,
}

impl Course {
    /// One connection for each waiter. Acquires nothing yet.
    async fn new(global: &Global, args: &Bench) -> Result<Self, Stop> {
        let mut lockers = Vec::new();
        for _ in 0..args.waiters {
            lockers.push(store::connect(global).await?);
        }
        let mut bits = [0; 16];
        TokioHost.random(&mut bits);
        let prefix = format!("tenure-bench/{}-{:032x}", std::process::id(), u128::from_be_bytes(bits));
        Ok(Self {
            lockers,
            prefix,
            lasts: args.duration,
            waiting: Progress::new(),
            place: store::place(global),
        })
    }

    /// The kind of store.
    fn backend(&self) -> &'static str {
        self.lockers[0].promises().backend
    }

    fn name(&self, number: usize) -> String {
        format!("{}/{number}", self.prefix)
    }

    fn lock(&self, locker: usize, name: usize) -> Lock {
        self.lockers[locker].mutex(self.name(name)).patience(PATIENCE)
    }

    /// Uses every connection once, so that no part measures the opening of a connection.
    async fn warm_up(&self) -> Result<(), Stop> {
        for number in 0..self.lockers.len() {
            take(&self.lock(number, number).progress(&self.waiting)).await?;
        }
        Ok(())
    }

    /// Why connecting takes long: a server that has restarted may grant nothing for a while.
    fn trouble(&self) -> Option<StoreTrouble> {
        let end = format!("; giving up after {}", text::seconds(PATIENCE));
        Some(StoreTrouble::of(&self.waiting, &self.lockers[0], &self.place)?.until(&end))
    }

    /// Runs one part to its end; the first error ends it.
    async fn run(&self, part: BenchPart, tasks: &mut BenchTasks) -> Result<BenchResult, Stop> {
        let began = now();
        let over = began + self.lasts;
        for number in 0..part.tasks() {
            match part {
                BenchPart::RoundTrip => tasks.spawn(inspect(self.lockers[0].clone(), self.name(0), over)),
                BenchPart::Cycle(_) => tasks.spawn(cycle(self.lock(0, number), over)),
                BenchPart::Change(_) => tasks.spawn(share(self.lock(number, 0), Duration::ZERO, over)),
                BenchPart::Hold(_) => tasks.spawn(share(self.lock(number, 0), HOLD, over)),
            };
        }
        let mut tallies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            tallies.push(done.expect("BUG: a task of the bench panicked")?);
        }
        Ok(BenchResult::new(part, began, &tallies))
    }

    /// Waits until everything that was stopped half way has been released, but not for long. A signal ends it.
    async fn clear(&self, signals: &mut Signals) {
        let began = TokioHost.now();
        for locker in &self.lockers {
            let left = LEAVE_PATIENCE.saturating_sub(began.elapsed(TokioHost.now()));
            if !drained(locker, left, signals.asked_to_end()).await {
                return;
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it is measured in real time, and a suspend is no part of it")]
fn now() -> Instant {
    Instant::now()
}

async fn inspect(locks: Locker, name: String, over: Instant) -> Result<TaskCounts, Stop> {
    let name = LockName::new(&name).expect("BUG: the names of the bench are good");
    let mut tally = TaskCounts::new(over);
    loop {
        let asked = now();
        locks.inspect(&name).await.map_err(|error| Stop::store(&error))?;
        tally.add(asked, now());
        if is_over(over).await {
            return Ok(tally);
        }
    }
}

async fn cycle(lock: Lock, over: Instant) -> Result<TaskCounts, Stop> {
    let mut tally = TaskCounts::new(over);
    loop {
        let asked = now();
        take(&lock).await?;
        tally.add(asked, now());
        if is_over(over).await {
            return Ok(tally);
        }
    }
}

/// Measures how long it waits for its turns.
async fn share(lock: Lock, hold: Duration, over: Instant) -> Result<TaskCounts, Stop> {
    let mut tally = TaskCounts::new(over);
    loop {
        let asked = now();
        let guard = lock.acquire().await.map_err(|error| not_acquired(&error))?;
        tally.add(asked, now());
        if hold.is_zero() {
            // Otherwise a store that answers without waiting would release the lock before another task could ask
            // for it.
            yield_now().await;
        } else {
            waiting::pause(hold).await;
        }
        guard.release().await.map_err(|error| not_released(&error))?;
        if is_over(over).await {
            return Ok(tally);
        }
    }
}

/// Acquires and releases.
async fn take(lock: &Lock) -> Result<(), Stop> {
    let guard = lock.acquire().await.map_err(|error| not_acquired(&error))?;
    guard.release().await.map_err(|error| not_released(&error))
}

/// Lets the other tasks run as well, because some stores answer without ever waiting.
async fn is_over(over: Instant) -> bool {
    yield_now().await;
    now() >= over
}

fn not_acquired(error: &AcquireError) -> Stop {
    Stop::not_acquired(error, UNAVAILABLE, || chain(error))
}

fn not_released(error: &ReleaseError) -> Stop {
    match error {
        ReleaseError::Unknown(error) => Stop::store(error),
        error => Stop::new(UNAVAILABLE, chain(error)),
    }
}

/// The parts of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BenchPart {
    /// A read of a free lock.
    RoundTrip,
    /// This many tasks of one connection, each with its own lock, acquire and release.
    Cycle(usize),
    /// This many waiters, each with its own connection, pass one lock on immediately.
    Change(usize),
    /// The same, but each holds it for a moment.
    Hold(usize),
}

impl BenchPart {
    /// Every part, in order.
    fn all(waiters: usize) -> Vec<Self> {
        let mut parts = vec![Self::RoundTrip, Self::Cycle(1), Self::Cycle(64), Self::Change(2)];
        parts.extend([Self::Change(waiters), Self::Hold(waiters)]);
        parts.dedup();
        parts
    }

    fn tasks(self) -> usize {
        match self {
            Self::RoundTrip => 1,
            Self::Cycle(tasks) | Self::Change(tasks) | Self::Hold(tasks) => tasks,
        }
    }

    /// For people.
    fn title(self) -> String {
        match self {
            Self::RoundTrip => "round trip".into(),
            Self::Cycle(1) => "cycle".into(),
            Self::Cycle(tasks) => format!("cycle, {tasks} tasks"),
            Self::Change(waiters) => format!("change of owner, {waiters} waiters"),
            Self::Hold(waiters) => format!("{waiters} waiters hold {} ms", HOLD.as_millis()),
        }
    }

    /// For programs.
    fn key(self) -> &'static str {
        match self {
            Self::RoundTrip => "round_trip",
            Self::Cycle(_) => "cycle",
            Self::Change(_) => "change_of_owner",
            Self::Hold(_) => "hold",
        }
    }

    /// The times that are shown.
    fn timed(self) -> &'static str {
        match self {
            Self::RoundTrip => "request",
            Self::Cycle(_) => "cycle",
            Self::Change(_) | Self::Hold(_) => "wait",
        }
    }

    /// Whether tasks wait for each other.
    fn is_shared(self) -> bool {
        matches!(self, Self::Change(_) | Self::Hold(_))
    }
}

/// The result of a part.
struct BenchResult {
    part: BenchPart,
    per_second: f64,
    p50: Duration,
    p99: Duration,
    worst: Duration,
    /// For parts in which tasks wait for each other.
    sharing: Option<Fairness>,
}

/// How waiters shared one lock.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fairness {
    /// From one holder to the next.
    change: Duration,
    /// Jain's index of fairness: 1 if all had as many turns, 1/n if one had them all.
    jain: f64,
    /// The number of waiters without a turn while another one had two.
    starved: usize,
    /// There were too few turns to judge by.
    is_hasty: bool,
}

impl BenchResult {
    /// The results of the tasks since `began`.
    fn new(part: BenchPart, began: Instant, tallies: &[TaskCounts]) -> Self {
        let mut all = TaskCounts::new(began);
        for tally in tallies {
            all.merge(tally);
        }
        // A clock that does not move would make it infinite.
        let lasted = all.lasted(began).max(Duration::from_nanos(1));
        let turns: Vec<u64> = tallies.iter().map(TaskCounts::in_time).collect();
        let sharing = part.is_shared().then(|| Fairness {
            change: lasted.div_f64(all.count().max(1) as f64),
            jain: jain(&turns),
            starved: starved(&turns),
            is_hasty: all.in_time() < ENOUGH * turns.len() as u64,
        });
        Self {
            part,
            per_second: all.count() as f64 / lasted.as_secs_f64(),
            p50: all.percentile(50),
            p99: all.percentile(99),
            worst: all.worst(),
            sharing,
        }
    }
}

/// A round in which some waiters had no turn yet does not count as starving.
fn starved(turns: &[u64]) -> usize {
    let had_two = turns.iter().any(|turns| *turns > 1);
    if had_two { turns.iter().filter(|turns| **turns == 0).count() } else { 0 }
}

/// (Σx)² / (n Σx²); 0 if there was no turn.
fn jain(turns: &[u64]) -> f64 {
    let (sum, squares) = turns.iter().fold((0.0, 0.0), |(sum, squares), turns| {
        let turns = *turns as f64;
        (sum + turns, squares + turns * turns)
    });
    if squares == 0.0 { 0.0 } else { sum * sum / (turns.len() as f64 * squares) }
}

/// The report for programs: one object.
fn json(backend: &'static str, duration: Duration, answers: &[BenchResult]) -> ReportJson {
    let (unoptimised, parts) = (IS_UNOPTIMISED, answers.iter().map(part).collect());
    ReportJson { backend, unoptimised, duration_ms: duration.as_millis(), parts }
}

fn part(answer: &BenchResult) -> PartJson {
    let sharing = answer.sharing;
    PartJson {
        part: answer.part.key(),
        tasks: answer.part.tasks(),
        per_second: rounded(answer.per_second),
        timed: answer.part.timed(),
        p50_us: micros(answer.p50),
        p99_us: micros(answer.p99),
        worst_us: micros(answer.worst),
        us_per_change: sharing.map(|sharing| micros(sharing.change)),
        jain: sharing.map(|sharing| rounded(sharing.jain)),
        starved: sharing.map(|sharing| sharing.starved),
    }
}

/// All measurements.
#[derive(Serialize)]
struct ReportJson {
    backend: &'static str,
    unoptimised: bool,
    /// The duration of each part.
    duration_ms: u128,
    parts: Vec<PartJson>,
}

#[derive(Serialize)]
struct PartJson {
    part: &'static str,
    tasks: usize,
    per_second: f64,
    /// The meaning of `p50_us`, `p99_us` and `worst_us`: `request`, `cycle` or `wait`.
    timed: &'static str,
    p50_us: f64,
    p99_us: f64,
    worst_us: f64,
    /// These are `null` for parts without waiting.
    us_per_change: Option<f64>,
    jain: Option<f64>,
    starved: Option<usize>,
}

fn micros(d: Duration) -> f64 {
    rounded(d.as_secs_f64() * 1e6)
}

/// To three decimal places.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// The report for people: one table.
fn table(answers: &[BenchResult]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["PART", "PER SECOND", "P50", "P99", "WORST", "NOTES"]);
    for answer in answers {
        let [p50, p99, worst] = [answer.p50, answer.p99, answer.worst].map(text::brief);
        table.add_row([answer.part.title(), rate(answer.per_second), p50, p99, worst, notes(answer)]);
    }
    // All but the first and the last are numbers.
    for column in table.column_iter_mut().skip(1).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    view::lines(table)
}

fn rate(per_second: f64) -> String {
    if per_second < 100.0 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

fn notes(answer: &BenchResult) -> String {
    let timed = match answer.part {
        BenchPart::RoundTrip => "times of a request: to look at a free lock",
        BenchPart::Cycle(1) => "times of a cycle: acquire and release",
        BenchPart::Cycle(_) => "the same, each with a lock of its own, on one connection",
        BenchPart::Change(_) | BenchPart::Hold(_) => "times of a wait",
    };
    let Some(sharing) = answer.sharing else { return timed.to_owned() };
    let starved = match sharing.starved {
        0 => "nobody starved".to_owned(),
        starved => format!("{starved} starved"),
    };
    let hasty =
        if sharing.is_hasty { "; too few turns to judge fairness, use a longer --duration" } else { "" };
    let change = text::brief(sharing.change);
    format!("{timed}; {change} per change, Jain {:.3}, {starved}{hasty}", sharing.jain)
}

const CONNECTING: &str = "connecting";

const UNOPTIMISED: &str = "unoptimised build: a program that is built with --release is faster\n";

/// How long the store may fail without interruption before the bench stops.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a waiter of [`BenchPart::Hold`] holds; the timer may make it twice as long.
const HOLD: Duration = Duration::from_millis(1);

/// With fewer turns per waiter, an incomplete last round counts too much.
const ENOUGH: u64 = 10;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any moment will do")]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_if_all_had_as_many_turns() {
        let close =
            |turns: &[u64], expected: f64| assert!((jain(turns) - expected).abs() < 1e-9, "{turns:?}");
        close(&[7, 7, 7], 1.0);
        close(&[9, 0, 0], 1.0 / 3.0);
        close(&[1, 3], 0.8);
        close(&[0, 0], 0.0);
    }

    #[test]
    fn in_a_first_round_nobody_has_starved_yet() {
        assert_eq!((starved(&[1, 0, 1]), starved(&[2, 0, 1]), starved(&[2, 2])), (0, 1, 0));
    }

    #[test]
    fn two_waiters_are_asked_of_once() {
        assert_eq!(BenchPart::all(2).len(), 5);
        assert_eq!(BenchPart::all(3).len(), 6);
    }

    #[test]
    fn who_has_to_wait_until_the_time_is_over_has_starved() {
        let began = Instant::now();
        let (over, ms) = (began + Duration::from_millis(20), Duration::from_millis);
        let mut tallies = [TaskCounts::new(over), TaskCounts::new(over)];
        for at in 1..=20 {
            tallies[0].add(began, began + ms(at));
        }
        tallies[1].add(began, began + ms(21));
        let answer = BenchResult::new(BenchPart::Change(2), began, &tallies);
        let expected = Fairness { change: ms(1), jain: 0.5, starved: 1, is_hasty: false };
        assert_eq!(answer.sharing, Some(expected));
        assert!((answer.per_second - 1000.0).abs() < 1e-6 && answer.worst == ms(21));
        assert!(BenchResult::new(BenchPart::Cycle(2), began, &tallies).sharing.is_none());
    }
}

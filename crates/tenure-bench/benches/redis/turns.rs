//! Many tasks of few processes at one lock, with no hold time: local turns.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tenure::{
    Lock,
    backend::{Host, TokioHost},
};
use tenure_bench::jain;
use tokio::task::JoinSet;

use crate::{
    meter::{Cost, Meter},
    runtime,
    server::Server,
};

/// For places, connections and keepers to be there.
const RUN_UP: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(2);

/// What was seen of all processes.
pub(crate) struct Seen {
    pub(crate) per_second: f64,
    /// For each acquisition.
    pub(crate) commands: f64,
    pub(crate) cost: Cost,
    /// Among processes.
    pub(crate) jain: f64,
    /// The longest wait in each process.
    pub(crate) longest: Vec<Duration>,
    /// The most tokens that were out of order: each is larger than the one before.
    pub(crate) unordered: u64,
}

/// What one process writes down.
#[derive(Default)]
struct Diary {
    served: AtomicU64,
    longest_us: AtomicU64,
}

struct Course {
    stop: AtomicBool,
    last_token: AtomicU64,
    unordered: AtomicU64,
    diaries: Vec<Diary>,
}

/// Lets processes with so many tasks each compete for one lock, each process on a thread and a connection of its own.
pub(crate) fn measure(server: &Server, tasks: &[usize], strict: bool) -> Seen {
    let diaries = tasks.iter().map(|_| Diary::default()).collect();
    let [last_token, unordered] = [0, 0].map(AtomicU64::new);
    let course = Arc::new(Course { stop: AtomicBool::new(false), last_token, unordered, diaries });
    let ready = Barrier::new(tasks.len() + 1);
    thread::scope(|scope| {
        for (process, tasks) in tasks.iter().enumerate() {
            let (course, ready, url) = (course.clone(), &ready, server.tenure_url());
            scope.spawn(move || compete(&url, process, *tasks, strict, &course, ready));
        }
        ready.wait();
        let runtime = runtime();
        let sleep = |d: Duration| runtime.block_on(TokioHost.sleep_until(TokioHost.now() + d));
        sleep(RUN_UP);
        let counts = || course.diaries.iter().map(|d| d.served.load(Ordering::Relaxed)).collect::<Vec<_>>();
        course.diaries.iter().for_each(|diary| diary.longest_us.store(0, Ordering::Relaxed));
        let (before, calls, meter) = (counts(), server.calls(), Meter::start(server));
        sleep(WINDOW);
        let (now, called) = (counts(), server.calls());
        let served: Vec<u64> = now.iter().zip(before).map(|(now, then)| now - then).collect();
        let all = served.iter().sum::<u64>().max(1);
        let seconds = meter.begun().elapsed(TokioHost.now()).as_secs_f64();
        let cost = meter.stop(all);
        course.stop.store(true, Ordering::Relaxed);
        let longest = |diary: &Diary| Duration::from_micros(diary.longest_us.load(Ordering::Relaxed));
        Seen {
            per_second: all as f64 / seconds,
            commands: called.since(&calls) as f64 / all as f64,
            cost,
            jain: jain(&served),
            longest: course.diaries.iter().map(longest).collect(),
            unordered: course.unordered.load(Ordering::Relaxed),
        }
    })
}

fn compete(url: &str, process: usize, tasks: usize, strict: bool, course: &Arc<Course>, ready: &Barrier) {
    let runtime = runtime();
    runtime.block_on(async {
        let locks = tenure::connect(url).await.expect("a URL");
        let lock = locks.mutex("tenure/turns of processes");
        let lock = if strict { lock.fifo() } else { lock };
        ready.wait();
        let mut running = JoinSet::new();
        for _ in 0..tasks {
            running.spawn(take_turns(lock.clone(), process, course.clone()));
        }
        running.join_all().await;
    });
}

async fn take_turns(lock: Lock, process: usize, course: Arc<Course>) {
    let diary = &course.diaries[process];
    while !course.stop.load(Ordering::Relaxed) {
        let since = TokioHost.now();
        let guard = lock.acquire().await.expect("the server answers");
        let waited = since.elapsed(TokioHost.now());
        // Under the lock: the order of these is that of holding.
        let token = guard.token().get();
        if course.last_token.swap(token, Ordering::Relaxed) >= token {
            course.unordered.fetch_add(1, Ordering::Relaxed);
        }
        diary.served.fetch_add(1, Ordering::Relaxed);
        diary.longest_us.fetch_max(waited.as_micros() as u64, Ordering::Relaxed);
        guard.release().await.expect("held");
    }
}

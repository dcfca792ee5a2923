//! A lease that is kept idle: taking it again, and how long who waits elsewhere waits for it.

use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use redis::aio::MultiplexedConnection;
use tenure::{
    Lock,
    backend::{Host, TokioHost},
};

use crate::{
    cycles::{TTL, patient},
    runtime,
    server::{tenure_url, url},
};

/// Of one round.
const CYCLES: usize = 20_000;
const VISITS: usize = 100;
/// A round trip is a fraction of what is noise in a single one.
const PINGS: usize = 5;
/// For the stream of hints, without which nothing is kept.
const RUN_UP: Duration = Duration::from_millis(500);

/// What was seen in one round, in µs; medians but for the mean.
pub(crate) struct Seen {
    pub(crate) taken: f64,
    pub(crate) released: f64,
    /// Of a whole cycle, with those for which the store had to be asked.
    pub(crate) mean: f64,
    /// For how long somebody elsewhere waits.
    pub(crate) elsewhere: f64,
    /// A PING by the same thread at the same time.
    pub(crate) round_trip: f64,
}

/// One process keeps its lease, another one wants it again and again. Both ask the server at this port.
pub(crate) fn measure(port: u16) -> Seen {
    let ((ask, asked), (say, said)) = (sync_channel(0), sync_channel(0));
    thread::scope(|scope| {
        let keeper = scope.spawn(move || keep(&tenure_url(port), &asked, &say));
        let (elsewhere, round_trip) = visit(port, ask, &said);
        let Kept { mut taken, mut released, mean } = keeper.join().expect("no panic");
        Seen { taken: median(&mut taken), released: median(&mut released), mean, elsewhere, round_trip }
    })
}

struct Kept {
    taken: Vec<f64>,
    released: Vec<f64>,
    mean: f64,
}

/// Measures its own cycles, then takes the lock and keeps it idle whenever it is asked to.
fn keep(url: &str, asked: &Receiver<()>, say: &SyncSender<()>) -> Kept {
    // Hints are heard while this one waits to be asked.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let locks = tenure::connect(url).await.expect("a URL");
        let lock = locks.mutex("tenure/idle").ttl(TTL).keep_idle(TTL);
        take(&lock).await;
        TokioHost.sleep_until(TokioHost.now() + RUN_UP).await;
        let (mut taken, mut released) = (Vec::new(), Vec::new());
        let begun = TokioHost.now();
        for _ in 0..CYCLES {
            let before = TokioHost.now();
            let guard = lock.acquire().await.expect("no contention");
            let held = TokioHost.now();
            guard.release().await.expect("held");
            taken.push(us(before.elapsed(held)));
            released.push(us(held.elapsed(TokioHost.now())));
        }
        let mean = us(begun.elapsed(TokioHost.now())) / CYCLES as f64;
        while asked.recv().is_ok() {
            take(&lock).await;
            say.send(()).expect("somebody listens");
        }
        Kept { taken, released, mean }
    })
}

async fn take(lock: &Lock) {
    lock.acquire().await.expect("the server answers").release().await.expect("held");
}

/// How long the lock takes, and a question to the server.
fn visit(port: u16, ask: SyncSender<()>, said: &Receiver<()>) -> (f64, f64) {
    let runtime = runtime();
    let locks = runtime.block_on(tenure::connect(&tenure_url(port))).expect("a URL");
    let lock = locks.mutex("tenure/idle").ttl(TTL);
    let client = redis::Client::open(url(port)).expect("a URL");
    let connection = runtime.block_on(client.get_multiplexed_async_connection_with_config(&patient()));
    let mut connection = connection.expect("a connection");
    let (mut waits, mut trips) = (Vec::new(), Vec::new());
    for _ in 0..VISITS {
        ask.send(()).expect("the other one listens");
        said.recv().expect("it keeps its lease");
        runtime.block_on(async {
            trips.push(ping(&mut connection).await);
            let before = TokioHost.now();
            let guard = lock.acquire().await.expect("it is given back");
            waits.push(us(before.elapsed(TokioHost.now())));
            guard.release().await.expect("held");
        });
    }
    (median(&mut waits), median(&mut trips))
}

async fn ping(connection: &mut MultiplexedConnection) -> f64 {
    let before = TokioHost.now();
    for _ in 0..PINGS {
        redis::cmd("PING").exec_async(connection).await.expect("the server answers");
    }
    us(before.elapsed(TokioHost.now())) / PINGS as f64
}

fn us(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

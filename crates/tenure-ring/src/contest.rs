//! One run: three clients of another library and three of Tenure want one lock.

use std::{
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::Child,
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{AsyncCommands, AsyncConnectionConfig};
use tenure::Locker;
use tenure_testkit::redis::RedisServer;
use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout_at},
};

use crate::{clients::Client, counter::RequestCounter, table::Run};

/// Of each side.
const CONTENDERS: usize = 3;
/// The lock that all want.
const NAME: &str = "orders";
/// Where the referee counts.
const INSIDE: &str = "ring:inside";

/// How long they contend, and how long the clients of the other library pause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) time: Duration,
    pub(crate) pause: Duration,
}

/// What one client of Tenure has seen.
#[derive(Debug, Default)]
struct Seen {
    entries: Vec<Duration>,
    violations: u64,
    longest: Duration,
    requests: u64,
}

/// # Errors
/// In one line: which program does not do its part.
pub(crate) fn run(client: &Client, terms: Terms, installed: &Path) -> Result<Run, String> {
    let server = RedisServer::start();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    let failed =
        |error: io::Error| format!("{}: {error}; is it installed? `cargo xtask ring` does it", client.name);
    let start = |_| Program::start(client, terms, server.port(), installed);
    let mut theirs = (0..CONTENDERS).map(start).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let ours = (0..CONTENDERS).map(|_| runtime.block_on(Contender::connect(client, server.port())));
    let ours = ours.collect::<Result<Vec<_>, _>>()?;
    for program in &mut theirs {
        program.go().map_err(failed)?;
    }
    let seen = contend(&runtime, ours, terms.time)?;
    let mut run = sum_up(seen, terms.time);
    for program in &mut theirs {
        let (entries, violations) = program.result().map_err(failed)?;
        run.theirs += entries;
        run.overlaps += violations;
    }
    Ok(run)
}

fn contend(runtime: &Runtime, ours: Vec<Contender>, time: Duration) -> Result<Vec<Seen>, String> {
    let tasks: Vec<_> = ours.into_iter().map(|one| runtime.spawn(one.contend(time))).collect();
    let ended = tasks.into_iter().map(|task| runtime.block_on(task).map_err(|error| error.to_string())?);
    ended.collect()
}

fn sum_up(seen: Vec<Seen>, time: Duration) -> Run {
    let mut entries: Vec<Duration> = seen.iter().flat_map(|one| one.entries.clone()).collect();
    entries.sort_unstable();
    let ends = entries.iter().copied().chain([time]);
    let begins = [Duration::ZERO].into_iter().chain(entries.iter().copied());
    let gaps = begins.zip(ends).map(|(begin, end)| end.saturating_sub(begin));
    let requests: u64 = seen.iter().map(|one| one.requests).sum();
    Run {
        ours: entries.len() as u64,
        none_entered: millis(gaps.max()),
        one_waited: millis(seen.iter().map(|one| one.longest).max()),
        requests: requests / time.as_secs().max(1),
        overlaps: seen.iter().map(|one| one.violations).sum(),
        ..Run::default()
    }
}

fn millis(time: Option<Duration>) -> u64 {
    u64::try_from(time.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// One client of Tenure, with its own connections, whose requests are counted.
struct Contender {
    locks: Locker,
    counter: Arc<RequestCounter>,
    referee: redis::aio::MultiplexedConnection,
}

impl Contender {
    async fn connect(client: &Client, server: u16) -> Result<Self, String> {
        let (port, counter) = RequestCounter::before(server).await.map_err(|error| error.to_string())?;
        let setting = client.setting().replace('%', "%25");
        // Without the guard, because no server restarts here.
        let url = format!("redis://127.0.0.1:{port}?guard=off&{setting}");
        let locks = tenure::connect(url.trim_end_matches('&')).await.map_err(|error| error.to_string())?;
        let referee = redis::Client::open(format!("redis://127.0.0.1:{server}"));
        // A machine that is busy for a moment does not end a contest.
        let patient = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let referee = async { referee?.get_multiplexed_async_connection_with_config(&patient).await }.await;
        let referee = referee.map_err(|error| error.to_string())?;
        Ok(Self { locks, counter, referee })
    }

    async fn contend(mut self, time: Duration) -> Result<Seen, String> {
        let (lock, began, mut seen) = (self.locks.mutex(NAME), Instant::now(), Seen::default());
        let over = began + time;
        while Instant::now() < over {
            let wanted = Instant::now();
            self.counter.set_waiting(true);
            let entered = timeout_at(over.into(), lock.acquire()).await;
            self.counter.set_waiting(false);
            seen.longest = seen.longest.max(wanted.elapsed());
            let Ok(guard) = entered else { break };
            let guard = guard.map_err(|error| error.to_string())?;
            seen.entries.push(began.elapsed());
            let count = seen.entries.len() as u64;
            seen.violations +=
                self.visit(Duration::from_millis(1 + count % 5)).await.map_err(|error| error.to_string())?;
            guard.release().await.map_err(|error| error.to_string())?;
            // Its own work, 0 to 20 ms. Without it the queue of Tenure would never be empty, and the other clients would not
            // acquire.
            sleep(Duration::from_millis(count * 7 % 21)).await;
        }
        seen.requests = self.counter.requests();
        Ok(seen)
    }

    /// Holds the lock for this long. The referee counts the holders.
    async fn visit(&mut self, time: Duration) -> redis::RedisResult<u64> {
        let inside: i64 = self.referee.incr(INSIDE, 1).await?;
        sleep(time).await;
        let left: i64 = self.referee.decr(INSIDE, 1).await?;
        Ok(u64::from(inside != 1) + u64::from(left != 0))
    }
}

/// One client of the other library. It ends with this value.
struct Program {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn start(client: &Client, terms: Terms, port: u16, installed: &Path) -> io::Result<Self> {
        let mut command = client.command(installed);
        command.args([port.to_string(), NAME.to_owned()]);
        command.args([terms.time, terms.pause].map(|time| time.as_millis().to_string())).arg(INSIDE);
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut program = Self { child, lines };
        match program.line()?.as_str() {
            "ready" => Ok(program),
            other => Err(io::Error::other(format!("it said {other:?}"))),
        }
    }

    fn go(&mut self) -> io::Result<()> {
        let mut input = self.child.stdin.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "go")
    }

    /// Its entries and the violations that it saw.
    fn result(&mut self) -> io::Result<(u64, u64)> {
        let line = self.line()?;
        let numbers = line.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        numbers.ok_or_else(|| io::Error::other(format!("it said {line:?}")))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // OK to ignore because a process that has ended cannot be killed, and the wait reaps it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_without_an_entry_counts_from_the_start_and_to_the_end() {
        let ms = Duration::from_millis;
        let seen = |entries: &[u64], longest| Seen {
            entries: entries.iter().copied().map(ms).collect(),
            longest: ms(longest),
            requests: 30,
            ..Seen::default()
        };
        let run = sum_up(vec![seen(&[100, 900], 800), seen(&[300], 9_700)], ms(10_000));
        assert_eq!((run.ours, run.none_entered, run.one_waited, run.requests), (3, 9_100, 9_700, 6));
        assert_eq!(sum_up(vec![seen(&[], 0)], ms(10_000)).none_entered, 10_000);
    }
}

//! One process of waiters, and what it tells of them.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::Child,
    time::{Duration, Instant},
};

use tenure::{AcquireError, Locker};
use tokio::{runtime::Builder, task::JoinSet};

/// The first word for such a process.
pub(crate) const ROLE: &str = "waiter";
/// The lock.
pub(crate) const NAME: &str = "many";
pub(crate) const TTL: Duration = Duration::from_secs(10);
/// How long one waits.
const PATIENCE: Duration = Duration::from_secs(240);

/// What became of waiters.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) served: usize,
    /// They were told that there is no room in the queue.
    pub(crate) full: usize,
    pub(crate) longest: Duration,
    /// When the last of them was let in, from when all began.
    pub(crate) last: Duration,
    /// Anything else, and how often.
    pub(crate) others: Vec<(String, usize)>,
}

/// Waits with so many tasks, once all others are ready.
pub(crate) fn run(url: &str, name: &str, count: usize) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let locks = runtime.block_on(tenure::connect(url)).expect("a URL");
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    let begun = Instant::now();
    let ends = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            tasks.spawn(wait(locks.clone(), name.to_owned(), begun));
        }
        tasks.join_all().await
    });
    let mut out = std::io::stdout().lock();
    for end in ends {
        match end {
            Ok(waited) => writeln!(out, "served {}", waited.as_millis()),
            Err(what) => writeln!(out, "{what}"),
        }
        .expect("somebody reads");
    }
}

async fn wait(locks: Locker, name: String, begun: Instant) -> Result<Duration, String> {
    match locks.mutex(name).ttl(TTL).within(PATIENCE).acquire().await {
        Ok(guard) => {
            let waited = begun.elapsed();
            guard.release().await.map(|()| waited).map_err(|error| format!("release: {error}"))
        }
        Err(AcquireError::Store(error)) if error.to_string().contains("the queue of this lock is full") => {
            Err("full".into())
        }
        Err(AcquireError::Store(error)) => Err(format!("error: {}", without_numbers(&error.to_string()))),
        Err(error) => Err(without_numbers(&error.to_string()).chars().take(40).collect()),
    }
}

/// Alike where only numbers differ.
fn without_numbers(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit() && *c != '.').collect()
}

impl Report {
    /// What a process says until it ends.
    pub(crate) fn read(mut child: Child) -> Self {
        let (mut report, mut others) = (Self::default(), BTreeMap::<String, usize>::new());
        for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
            let line = line.expect("text");
            if let Some(ms) = line.strip_prefix("served ") {
                let waited = Duration::from_millis(ms.parse().expect("a number"));
                report.served += 1;
                report.longest = report.longest.max(waited);
                report.last = report.last.max(waited);
            } else if line == "full" {
                report.full += 1;
            } else {
                *others.entry(line).or_default() += 1;
            }
        }
        let status = child.wait().expect("our own child");
        if !status.success() {
            *others.entry(format!("{status}")).or_default() += 1;
        }
        report.others = others.into_iter().collect();
        report
    }

    pub(crate) fn and(mut self, other: Self) -> Self {
        for (what, count) in other.others {
            match self.others.iter_mut().find(|(known, _)| *known == what) {
                Some((_, known)) => *known += count,
                None => self.others.push((what, count)),
            }
        }
        Self {
            served: self.served + other.served,
            full: self.full + other.full,
            longest: self.longest.max(other.longest),
            last: self.last.max(other.last),
            others: self.others,
        }
    }
}

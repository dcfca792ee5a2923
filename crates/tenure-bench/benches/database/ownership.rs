//! What ownership costs a transaction and a lease; and how many transactions are committed at the first try, beside waiters.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure::{Locker, ownership::SqlOwnership};
use tenure_bench::{Rounds, Spread};
use tokio::runtime::{Builder, Runtime};

use super::Database;

const ROUNDS: usize = 11;
/// How long one program runs in one round.
const WINDOW: Duration = Duration::from_millis(250);
/// How many statements a transaction has.
const LENGTHS: [usize; 3] = [1, 3, 10];

/// A program that has data in the database of the locks.
pub(crate) trait Program: Sized {
    /// On a connection of its own.
    async fn connect(url: &str) -> Self;

    /// Runs it without an answer. True if it was done.
    async fn run(&mut self, sql: &str) -> bool;

    /// The check. True if it found the owner.
    async fn owns(&mut self, sql: &SqlOwnership) -> bool;

    /// Changes this row of its data.
    async fn change(&mut self, row: u32);

    /// A transaction that changes this row in some statements, and rests before COMMIT. True if it was committed.
    async fn transaction(
        &mut self,
        owns: Option<&SqlOwnership>,
        (row, statements): (u32, usize),
        rest: Duration,
    ) -> bool {
        assert!(self.run("BEGIN").await, "a transaction");
        if let Some(sql) = owns
            && !self.owns(sql).await
        {
            assert!(self.run("ROLLBACK").await, "an answer");
            return false;
        }
        for _ in 0..statements {
            self.change(row).await;
        }
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
        self.run("COMMIT").await
    }
}

/// Milliseconds of one call, on average over a window.
fn millis(runtime: &Runtime, mut call: impl AsyncFnMut()) -> f64 {
    let (begun, mut count) = (Instant::now(), 0);
    runtime.block_on(async {
        while begun.elapsed() < WINDOW {
            call().await;
            count += 1;
        }
    });
    begun.elapsed().as_secs_f64() * 1e3 / f64::from(count)
}

/// Prints what a transaction costs with the check and without it, and a lease that asks for its ownership.
pub(crate) fn measure<P: Program>(server: &impl Database) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (lock, mut program) = runtime.block_on(async {
        let locks = tenure::connect(&server.url("")).await.expect("a URL");
        (locks.mutex("cost"), P::connect(&server.url("")).await)
    });
    let guard = runtime.block_on(lock.acquire()).expect("free");
    let ownership = runtime.block_on(guard.ownership()).expect("held");
    let sql = ownership.sql().expect("a database");
    let of = |which: usize| (LENGTHS[which / 2], (which % 2 == 1).then_some(sql));
    let trips = LENGTHS.len() * 2;
    let rounds = Rounds::measure(ROUNDS, trips + 1, |which| match which == trips {
        true => millis(&runtime, async || assert!(program.run("SELECT 1").await, "an answer")),
        false => {
            let (statements, owns) = of(which);
            millis(&runtime, async || {
                assert!(program.transaction(owns, (0, statements), Duration::ZERO).await, "it is held");
            })
        }
    });
    let Spread { least, median, most } = rounds.spread(|round| round[trips]);
    println!("\nOwnership. A statement that does nothing: {median:.2} ms ({least:.2} to {most:.2}).\n");
    println!("| statements of the transaction | without, ms | with the check, ms | more, ms | spread |");
    println!("|--:|--:|--:|--:|--:|");
    for (at, statements) in LENGTHS.into_iter().enumerate() {
        let (without, with) = (at * 2, at * 2 + 1);
        let of = |which: usize| rounds.spread(|round| round[which]).median;
        let Spread { least, median, most } = rounds.spread(|round| round[with] - round[without]);
        println!(
            "| {statements} | {:.2} | {:.2} | **{median:.2}** | {least:.2} to {most:.2} |",
            of(without),
            of(with)
        );
    }
    runtime.block_on(guard.release()).expect("held");
    let rounds = Rounds::measure(ROUNDS, 2, |which| {
        millis(&runtime, async || {
            let guard = lock.acquire().await.expect("free");
            if which == 1 {
                guard.ownership().await.expect("held");
            }
            guard.release().await.expect("held");
        })
    });
    println!("\n| a lease, acquired and released | ms | spread |");
    println!("|---|--:|--:|");
    for (at, what) in ["that does not ask", "that asks for its ownership"].into_iter().enumerate() {
        let Spread { least, median, most } = rounds.spread(|round| round[at]);
        println!("| {what} | {median:.2} | {least:.2} to {most:.2} |");
    }
}

const TTL: Duration = Duration::from_secs(3);
/// How long each kind of holder writes.
const TRIAL: Duration = Duration::from_secs(40);

/// Prints how many transactions of a holder are committed at the first try, by their length and by the waiters beside it. All
/// kinds run at the same time, each with a lock of its own.
pub(crate) fn first_tries<P: Program>(server: &impl Database) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let url = server.url("");
    let lengths = [TTL / 30, TTL / 3, TTL * 2 / 3];
    let waiters = [0, 1, 8];
    let kinds = lengths.iter().flat_map(|rest| waiters.iter().map(|number| (*rest, *number)));
    let trials = kinds.zip(0..).map(|((rest, number), row)| holder::<P>(&url, row, rest, number));
    let seen = runtime.block_on(join_all(trials));
    println!("\nTransactions of a holder that is renewed, ttl {} s.\n", TTL.as_secs());
    println!("| length of a transaction | no waiter | 1 waiter | 8 waiters |");
    println!("|--:|--:|--:|--:|");
    for (rest, seen) in lengths.iter().zip(seen.chunks(waiters.len())) {
        let cells: Vec<String> =
            seen.iter().map(|(committed, begun)| format!("{committed} of {begun}")).collect();
        println!("| {:.1} s | {} |", rest.as_secs_f64(), cells.join(" | "));
    }
}

/// How many of its transactions are committed, and how many it begins.
async fn holder<P: Program>(url: &str, row: u32, rest: Duration, waiters: usize) -> (u32, u32) {
    let locks = tenure::connect(url).await.expect("a URL");
    let guard = locks.mutex(format!("first/{row}")).ttl(TTL).acquire().await.expect("free");
    let ownership = guard.ownership().await.expect("held");
    let mut waiting = Vec::new();
    for _ in 0..waiters {
        let others: Locker = tenure::connect(url).await.expect("a URL");
        let lock = others.mutex(format!("first/{row}")).within(TRIAL * 2);
        waiting.push(tokio::spawn(async move { lock.acquire().await.map(drop) }));
    }
    let mut program = P::connect(url).await;
    let (began, mut committed, mut begun) = (Instant::now(), 0, 0);
    while began.elapsed() < TRIAL && guard.check().is_ok() {
        begun += 1;
        committed += u32::from(program.transaction(ownership.sql(), (row, 3), rest).await);
    }
    guard.check().expect("a holder that writes loses no lease");
    guard.release().await.expect("held");
    for waiter in waiting {
        waiter.await.expect("no panic").expect("its turn comes");
    }
    (committed, begun)
}

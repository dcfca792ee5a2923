//! Changes of owner between processes: this program starts itself so many times, and each copy says when it held.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use tenure::backend::{Host, TokioHost};
use tenure_bench::{Rounds, Spread};

/// In the environment of a copy: the file, and how long it holds, in ms.
const COPY: &str = "TENURE_BENCH_FILE";
const HOLD: &str = "TENURE_BENCH_HOLD";
const WINDOW: Duration = Duration::from_secs(3);
const ROUNDS: usize = 5;

fn now_us() -> u128 {
    TokioHost.now().boot.as_micros()
}

/// True if this is a copy: it has done its part.
pub(crate) fn is_copy() -> bool {
    let Some(file) = std::env::var_os(COPY) else { return false };
    let hold = std::env::var(HOLD).expect("a hold").parse().expect("digits");
    let hold = Duration::from_millis(hold);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let holds = runtime.block_on(async {
        let url = format!("sqlite:{}", Path::new(&file).display());
        let lock = tenure::connect(&url).await.expect("a URL").mutex("bench");
        let (begun, mut holds) = (now_us(), Vec::new());
        while now_us() - begun < WINDOW.as_micros() {
            let guard = lock.acquire().await.expect("in turn");
            let entered = now_us();
            let token = guard.token().get();
            if !hold.is_zero() {
                TokioHost.sleep_until(TokioHost.now() + hold).await;
            }
            let left = now_us();
            guard.release().await.expect("held");
            holds.push((token, entered, left));
        }
        holds
    });
    let mut out = std::io::stdout().lock();
    for (token, entered, left) in holds {
        writeln!(out, "{token} {entered} {left}").expect("a pipe");
    }
    true
}

/// From the beginning of a release to the entry of another process in ms, in the middle and at most; and changes a second.
type Round = [f64; 3];

fn round(file: &Path, (processes, hold): (usize, u64)) -> Round {
    let this = std::env::current_exe().expect("a program");
    let start = |_| {
        let mut copy = Command::new(&this);
        copy.env(COPY, file).env(HOLD, hold.to_string()).stdout(Stdio::piped()).spawn().expect("a copy")
    };
    let copies: Vec<_> = (0..processes).map(start).collect();
    let mut holds = Vec::new();
    for (who, copy) in copies.into_iter().enumerate() {
        let said = copy.wait_with_output().expect("a copy");
        assert!(said.status.success());
        for line in String::from_utf8(said.stdout).expect("digits").lines() {
            let mut words = line.split(' ').map(|word| word.parse::<u128>().expect("digits"));
            let mut next = || words.next().expect("three of them");
            holds.push((next(), next(), next(), who));
        }
    }
    holds.sort_unstable();
    let mut gaps: Vec<f64> = Vec::new();
    for pair in holds.windows(2) {
        let ((.., left, before), (_, entered, _, who)) = (pair[0], pair[1]);
        assert!(left <= entered, "two at once");
        if before != who {
            gaps.push((entered - left) as f64 / 1e3);
        }
    }
    gaps.sort_by(f64::total_cmp);
    let last = gaps.len().checked_sub(1).expect("more than one process was let in");
    let took = (holds[holds.len() - 1].1 - holds[0].1) as f64 / 1e6;
    [gaps[last / 2], gaps[last], gaps.len() as f64 / took]
}

pub(crate) fn measure(file: &Path) {
    /// How many, and how long each holds, in ms.
    const PROGRAMS: [(usize, u64); 4] = [(2, 0), (16, 0), (64, 0), (2, 50)];
    let rounds = Rounds::measure(ROUNDS, PROGRAMS.len(), |which| round(file, PROGRAMS[which]));
    println!("\n| change of owner between processes | median | spread of {ROUNDS} rounds |");
    println!("|---|--:|--:|");
    for (at, (processes, hold)) in PROGRAMS.iter().enumerate() {
        for (which, what) in ["ms", "the longest, ms", "changes a second"].into_iter().enumerate() {
            let Spread { least, median, most } = rounds.spread(|round| round[at][which]);
            println!(
                "| {processes} processes, hold {hold} ms: {what} | {median:.2} | {least:.2} to {most:.2} |"
            );
        }
    }
}

//! The tables of promises in README and docs/choosing.md say what the backends promise; the README's program compiles.

#![cfg(all(feature = "memory", feature = "sqlite", feature = "redis", feature = "redlock"))]
#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

use std::{fs, path::Path};

use tenure::core::{EndOfGrant, Order, Promises, Restart, Sharing, WakeUp};

const QUORUM: &str = "redlock:redis://a,redis://b,redis://c";

fn row(promises: &Promises) -> Vec<String> {
    let modes = match promises.sharing {
        Sharing::Counted => "mutex, read-write, semaphore",
        Sharing::Slots => "mutex, semaphore as slots",
        _ => "mutex",
    };
    let order = match promises.order {
        Order::Fifo => "FIFO",
        _ => "any",
    };
    let restart = match promises.restart {
        Restart::Lost => "lost",
        Restart::WaitedFor => "waited for",
        Restart::Survives => "survives",
        _ => unreachable!("a new fate needs a word here"),
    };
    let end = match promises.end {
        EndOfGrant::Ttl => "ttl",
        _ => "session",
    };
    let wake = match promises.wake {
        WakeUp::Pushed => "pushed".to_owned(),
        WakeUp::Polled(pause) => format!("polled, {} ms", pause.as_millis()),
        _ => unreachable!("a new way to wake needs a word here"),
    };
    let grain = format!("{:?}", promises.ttl_grain).replace("µs", " µs").replace("ms", " ms");
    [promises.backend, modes, order, "grows with every grant", restart, end, &grain, &wake, promises.reach]
        .map(str::to_owned)
        .to_vec()
}

fn rows_of(file: &str, backend: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)).unwrap();
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = text.lines().filter(|line| line.starts_with('|')).map(cells);
    rows.filter(|row| row.len() == 9 && row[0] == backend).collect()
}

#[tokio::test]
async fn the_tables_say_what_the_backends_promise() {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", folder.path().join("locks.db").display());
    for url in ["memory:", &sqlite, "redis://localhost", "redis-cluster://localhost", QUORUM] {
        let promises = tenure::connect(url).await.unwrap().promises();
        for file in ["README.md", "docs/choosing.md"] {
            assert_eq!(rows_of(file, promises.backend), [row(&promises)], "{} in {file}", promises.backend);
        }
    }
}

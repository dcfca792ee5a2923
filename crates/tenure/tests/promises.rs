//! The tables of promises in README and the guide to stores say what the backends promise; the program of README compiles.

use std::{fs, path::Path};

use tenure::backend::{Absent, EndOfGrant, Minting, Order, Promises, Restart, Sharing, WakeSupport};

/// The page with both tables.
const PAGE: &str = "docs/guides/choose-a-store.md";

const QUORUM: &str = "redlock:redis://a,redis://b,redis://c";

fn modes(promises: &Promises) -> &'static str {
    match promises.sharing {
        Sharing::Counted => "mutex, read-write, semaphore",
        Sharing::Slots { .. } => "mutex, semaphore as slots",
        _ => "mutex",
    }
}

fn order(promises: &Promises) -> &'static str {
    match (promises.order, promises.absent) {
        (Order::Fifo, Absent::Passed) => "FIFO; a dead waiter costs 0.5 s",
        (Order::Fifo, _) => "FIFO; a dead waiter costs its ttl",
        _ => "any",
    }
}

fn token(promises: &Promises) -> &'static str {
    match promises.minting {
        Minting::Entry => "grows with every grant",
        _ => "grows with every place",
    }
}

fn fate(restart: Restart) -> &'static str {
    match restart {
        Restart::Lost => "lost",
        Restart::WaitedFor => "waited for",
        Restart::Survives => "survives",
        _ => unreachable!("a new fate needs a word here"),
    }
}

/// What README says of held locks.
fn in_short(restart: Restart) -> &'static str {
    match restart {
        Restart::Lost => "lost",
        Restart::WaitedFor => "pause",
        Restart::Survives => "kept",
        _ => unreachable!("a new fate needs a word here"),
    }
}

/// The row of README, but for the URL.
fn short(promises: &Promises) -> [String; 5] {
    let order = if promises.order == Order::Fifo { "FIFO" } else { "any" };
    let fail_over = promises.fail_over.map_or("-", in_short);
    [promises.backend, order, in_short(promises.restart), fail_over, &wake(promises)].map(str::to_owned)
}

fn end(promises: &Promises) -> &'static str {
    match promises.end {
        EndOfGrant::Ttl => "ttl",
        _ => "session",
    }
}

fn wake(promises: &Promises) -> String {
    match promises.wake {
        WakeSupport::Pushed => "pushed".to_owned(),
        WakeSupport::Polled(pause) => format!("polled, {} ms", pause.as_millis()),
        WakeSupport::Asked(pause) => format!("asked, {} ms", pause.as_millis()),
        _ => unreachable!("a new way to wake needs a word here"),
    }
}

/// All that the tables say of a backend, but what it cannot do.
fn row(promises: &Promises) -> Vec<String> {
    let grain = format!("{:?}", promises.ttl_grain).replace("µs", " µs").replace("ms", " ms");
    // A space before the unit of whole seconds, where there is none yet.
    let grain = if grain.contains(' ') { grain } else { grain.replace('s', " s") };
    let fail_over = promises.fail_over.map_or("-", fate);
    let cells: [&str; 10] = [
        promises.backend,
        modes(promises),
        order(promises),
        token(promises),
        fate(promises.restart),
        fail_over,
        &grain,
        end(promises),
        &wake(promises),
        promises.reach,
    ];
    cells.map(str::to_owned).to_vec()
}

/// Some cells of it.
fn cells(promises: &Promises, which: &[usize]) -> Vec<String> {
    which.iter().map(|cell| row(promises)[*cell].clone()).collect()
}

/// The rows of a backend in the tables of so many columns.
fn rows_of(file: &str, backend: &str, columns: usize) -> Vec<Vec<String>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)).unwrap();
    // The name of a backend may be a link.
    let cells = |line: &str| {
        let cells =
            line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches(['[', ']']).to_owned());
        cells.collect::<Vec<_>>()
    };
    let rows = text.lines().filter(|line| line.starts_with('|')).map(cells);
    rows.filter(|row| row.len() == columns && row[0] == backend).collect()
}

/// What the last cell must name, because the promises leave it out.
fn cannot(promises: &Promises) -> Vec<&'static str> {
    let cases = [
        (promises.sharing != Sharing::Counted, "read locks"),
        (promises.order != Order::Fifo, "order"),
        (promises.end == EndOfGrant::Session, "leases for scripts"),
        (!promises.chosen_owner, "a chosen owner"),
        (promises.restart == Restart::Lost, "restart"),
        (promises.fail_over == Some(Restart::Lost), "failover"),
        (promises.restart == Restart::WaitedFor, "immediately"),
        (promises.fail_over.is_none(), "host"),
    ];
    cases.into_iter().filter(|(applies, _)| *applies).map(|(_, word)| word).collect()
}

async fn promises(url: &str) -> Promises {
    tenure::connect(url).await.unwrap().promises()
}

#[tokio::test]
async fn the_tables_say_what_the_backends_promise() {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut urls = vec!["memory:", &sqlite, "redis://localhost", "redis-cluster://localhost", QUORUM];
    urls.extend(["postgres://localhost/app", "zookeeper://localhost"]);
    if cfg!(feature = "mysql") {
        urls.push("mysql://localhost/app");
    }
    if cfg!(feature = "etcd") {
        urls.push("etcd://localhost");
    }
    for url in urls {
        let promises = promises(url).await;
        let backend = promises.backend;
        let [shown] = &rows_of("README.md", backend, 6)[..] else {
            panic!("{backend} has one row in README.md")
        };
        let scheme = url.split(':').next().unwrap();
        assert!(shown[1].starts_with(&format!("`{scheme}:")), "{backend} in README.md: {}", shown[1]);
        assert_eq!([&shown[..1], &shown[2..]].concat(), short(&promises), "{backend} in README.md");
        let of_locks = cells(&promises, &[0, 1, 2, 3, 7]);
        assert_eq!(rows_of(PAGE, backend, 5), [of_locks], "{backend} in {PAGE}");
        let [found] = &rows_of(PAGE, backend, 7)[..] else {
            panic!("{backend} has one row of what it survives in {PAGE}")
        };
        assert_eq!(found[..6], cells(&promises, &[0, 4, 5, 6, 8, 9]), "{backend} in {PAGE}");
        for word in cannot(&promises) {
            assert!(found[6].contains(word), "{backend} cannot: {word}, which its row does not say");
        }
    }
}

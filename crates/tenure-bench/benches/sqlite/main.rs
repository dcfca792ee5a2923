//! Uncontended acquire and release on SQLite, next to the same cycle written directly against `rusqlite`; and changes of owner
//! between processes.
//!
//! `cargo bench -p tenure-bench --bench sqlite`

mod changes;

use std::{path::Path, sync::Arc, time::Duration};

use criterion::Criterion;
use rusqlite::{Connection, OptionalExtension};
use tenure::backend::{Host, TokioHost};
use tenure_bench::{Ratio, per_call};
use tokio::runtime::Runtime;

const ROUNDS: u32 = 31;
const CYCLES: u32 = 1000;

/// What someone would write who needs one lock and no more: owner, fence and end in a row.
struct Raw(Connection);

impl Raw {
    fn open(path: &Path) -> Self {
        let conn = Connection::open(path).expect("a database");
        conn.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
             CREATE TABLE lock (name TEXT PRIMARY KEY, owner TEXT, fence INTEGER, ends_us INTEGER) WITHOUT ROWID",
        )
        .expect("a table");
        Self(conn)
    }

    fn run(&self, statement: &str) {
        self.0.prepare_cached(statement).expect("a statement").execute([]).expect("no contention");
    }

    fn step(
        &self,
        decide: impl FnOnce(Option<(Option<String>, i64, i64)>) -> (Option<&'static str>, i64, i64),
    ) {
        self.run("BEGIN IMMEDIATE");
        let row = self
            .0
            .prepare_cached("SELECT owner, fence, ends_us FROM lock WHERE name = ?1")
            .expect("a statement")
            .query_row(["bench"], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()
            .expect("a row or none");
        let (owner, fence, ends_us) = decide(row);
        self.0
            .prepare_cached(
                "INSERT INTO lock VALUES (?1, ?2, ?3, ?4) ON CONFLICT (name) DO UPDATE
                 SET owner = excluded.owner, fence = excluded.fence, ends_us = excluded.ends_us",
            )
            .expect("a statement")
            .execute(("bench", owner, fence, ends_us))
            .expect("no contention");
        self.run("COMMIT");
    }

    fn cycle(&self) {
        const OWNER: &str = "00112233445566778899aabbccddeeff";
        let now = TokioHost.now().boot.as_micros() as i64;
        self.step(|row| {
            let (owner, fence, ends_us) = row.unwrap_or((None, 0, 0));
            assert!(owner.is_none() || ends_us <= now, "somebody holds it");
            (Some(OWNER), fence + 1, now + 10_000_000)
        });
        self.step(|row| {
            let (owner, fence, _) = row.expect("the row is there");
            assert_eq!(owner.as_deref(), Some(OWNER));
            (None, fence, 0)
        });
    }
}

struct Ours {
    runtime: Runtime,
    lock: tenure::Lock,
}

impl Ours {
    fn open(path: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let url = format!("sqlite:{}", path.display());
        let locks = runtime.block_on(tenure::connect(&url)).expect("a URL");
        Self { runtime, lock: locks.mutex("bench") }
    }

    fn round(&self, count: u32) -> Duration {
        self.runtime.block_on(async {
            let start = TokioHost.now();
            for _ in 0..count {
                let guard = self.lock.acquire().await.expect("no contention");
                guard.release().await.expect("held");
            }
            start.elapsed(TokioHost.now()) / count
        })
    }
}

fn main() {
    if changes::is_copy() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let raw = Raw::open(&folder.path().join("raw.db"));
    let ours = Arc::new(Ours::open(&folder.path().join("locks.db")));
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("sqlite, acquire and release, one task");
    group.bench_function("raw rusqlite", |b| b.iter(|| raw.cycle()));
    group.bench_function("tenure", |b| {
        b.iter_custom(|n| ours.round(u32::try_from(n).expect("few")) * n as u32)
    });
    group.finish();
    let ratio = Ratio::measure(ROUNDS, || per_call(CYCLES, || raw.cycle()), || ours.round(CYCLES));
    println!("\n| cycle | raw, µs | tenure, µs | raw / tenure | spread of {ROUNDS} rounds |");
    println!("|---|--:|--:|--:|--:|");
    println!("{}", ratio.row("sqlite, uncontended acquire + release, one task"));
    changes::measure(&folder.path().join("changes.db"));
}

//! One process is stopped before each of its file system calls in turn, while another one uses the same file.
//!
//! `TENURE_DELAYED_CALLS=all cargo test -p tenure-sqlite --test delayed_calls -- --nocapture` goes through every call of
//! every scene. Without it every call is gone through in the scene of a new file, and each fourth one in the others.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and real processes live in real time"
)]

mod actor;
mod scene;

use std::{collections::BTreeMap, env, path::Path, sync::Mutex, thread, time::Instant};

use scene::{Pair, Scene};
use tenure_core::ClaimAnswer;
use tenure_testkit::{conformance::player::Player, shim::library};

/// So many pairs at once: they wait most of the time.
const BESIDE: usize = 20;
/// Of a memo.
const FLUSHES: usize = 3;

/// L1, L2, L6: the first user of a new file was stopped where it deletes what an older file left behind; a second one
/// built the tables and was granted; the first went on and deleted the log of the second. Here every call is such a place.
#[test]
fn no_delayed_call_lets_two_in() {
    if actor::played() {
        return;
    }
    let (began, shim) = (Instant::now(), library("delay", SHIM));
    let is_all = env::var("TENURE_DELAYED_CALLS").is_ok_and(|what| what == "all");
    let mut pairs = Vec::new();
    for scene in Scene::ALL {
        let calls = Pair { scene, at: 0 }.calls(&shim);
        println!("{scene:?}: {} calls, {:?}", calls.len(), tally(&calls));
        assert!(calls.len() > 30, "{scene:?}: the library sees too little: {calls:?}");
        let step = if is_all || scene == Scene::Fresh { 1 } else { 4 };
        pairs.extend((1..=calls.len()).step_by(step).map(|at| Pair { scene, at }));
    }
    let (count, findings) = (pairs.len(), search(pairs, &shim));
    println!("{count} pairs, {} findings, {:?}", findings.len(), began.elapsed());
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// L9: exit 0 of `--once-per` came without one flush while another process had the file open: after a power cut the job ran again.
#[test]
fn a_memo_is_on_the_disk_before_its_ok_and_a_lease_costs_no_flush() {
    let shim = library("delay", SHIM);
    let flushes =
        [false, true].map(|leaves_memo| flushes(&Pair::beside_another(&shim, leaves_memo, 0, |_| ())).len());
    assert!(flushes[0] == 0 && flushes[1] > 0, "without a memo and with one: {flushes:?}");
}

/// L6: the flushes of a memo were made under the lock that all holders need, and where they took 1.5 s a lease of 2 s ended.
#[test]
fn nobody_waits_for_the_flushes_of_a_memo() {
    let shim = library("delay", SHIM);
    let calls = Pair::beside_another(&shim, true, 0, |_| ());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // That of the log, and those of its move; the next commit flushes the head of the log that it begins.
    let flushes = flushes(&calls);
    for at in flushes.into_iter().take(FLUSHES) {
        Pair::beside_another(&shim, true, at, |other| {
            let player = Player::new(other, "other");
            let answer = runtime.block_on(player.backend.claim(&player.claim));
            assert!(matches!(answer, Ok(ClaimAnswer::Granted(_))), "before call {at}: {answer:?}");
        });
    }
}

/// Which calls flush.
fn flushes(calls: &[String]) -> Vec<usize> {
    let numbered = calls.iter().zip(1..);
    numbered.filter(|(call, _)| ["fsync", "fdatasync"].contains(&call.as_str())).map(|(_, at)| at).collect()
}

/// Plays all pairs; answers what was wrong.
fn search(mut pairs: Vec<Pair>, shim: &Path) -> Vec<String> {
    pairs.reverse();
    let (left, findings) = (Mutex::new(pairs), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..BESIDE {
            scope.spawn(|| {
                loop {
                    let Some(pair) = left.lock().unwrap().pop() else { return };
                    if let Err(what) = pair.play(shim) {
                        findings.lock().unwrap().push(format!("{pair:?}: {what}"));
                    }
                }
            });
        }
    });
    findings.into_inner().unwrap()
}

fn tally(calls: &[String]) -> BTreeMap<&str, usize> {
    calls.iter().fold(BTreeMap::new(), |mut tally, call| {
        *tally.entry(call.as_str()).or_default() += 1;
        tally
    })
}

/// The library that stops a process.
const SHIM: &str = include_str!("shim.c");

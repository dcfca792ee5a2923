//! Time, stops and kills, without a world around them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn world() -> (Arc<Clockwork>, Pid, Arc<AtomicU64>) {
    let clockwork = Clockwork::new(Chance::new(1));
    let process = clockwork.process();
    (clockwork, process, Arc::default())
}

fn note(clockwork: &Arc<Clockwork>, process: Pid, at: Micros, noted: &Arc<AtomicU64>) {
    let (clock, noted) = (clockwork.clone(), noted.clone());
    clockwork.spawn(
        process,
        Box::pin(async move {
            clock.until(at).await;
            noted.store(clock.now(), Ordering::Relaxed);
        }),
    );
}

#[test]
fn time_passes_from_event_to_event() {
    let (clockwork, process, noted) = world();
    note(&clockwork, process, 5_000_000, &noted);
    clockwork.run_until(4_999_999, |_| {});
    assert_eq!(noted.load(Ordering::Relaxed), 0);
    clockwork.run_until(9_000_000, |_| {});
    assert_eq!(noted.load(Ordering::Relaxed), 5_000_000);
    assert_eq!(clockwork.now(), 9_000_000);
}

#[test]
fn a_stopped_process_does_nothing_until_it_goes_on() {
    let (clockwork, process, noted) = world();
    note(&clockwork, process, 1000, &noted);
    clockwork.stop(process, 7000);
    clockwork.run_until(6999, |_| {});
    assert_eq!(noted.load(Ordering::Relaxed), 0);
    clockwork.run_until(9000, |_| {});
    assert_eq!(noted.load(Ordering::Relaxed), 7000);
}

#[test]
fn a_killed_process_is_gone() {
    let (clockwork, process, noted) = world();
    note(&clockwork, process, 1000, &noted);
    clockwork.run_until(500, |_| {});
    clockwork.kill(process);
    note(&clockwork, process, 2000, &noted);
    clockwork.run_until(5000, |_| {});
    assert_eq!(noted.load(Ordering::Relaxed), 0);
}

//! The real host in a test that has paused tokio's clock: real waits, one warning, no processor.

#![allow(clippy::disallowed_methods, reason = "this test is about real time")]

use std::{
    env,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use tenure::{AcquireError, Locker, backend::TokioHost};
use tenure_memory::Memory;
use tenure_testkit::patience::slowness;

use crate::heard::Heard;

const WAIT: Duration = Duration::from_secs(2);
/// Tells a process of this program that it is to wait.
const IS_CHILD: &str = "PAUSED_CLOCK_TEST";
const TEST: &str = "a_wait_under_tokios_paused_clock_is_real_is_warned_of_once_and_costs_no_processor";

/// A wait of 3 s kept a processor busy for 3 s: tokio's timer came back early again and again. A process of its own, for the
/// warning and the processor time are those of a process.
#[test]
fn a_wait_under_tokios_paused_clock_is_real_is_warned_of_once_and_costs_no_processor() {
    if env::var_os(IS_CHILD).is_some() {
        return wait_under_a_paused_clock();
    }
    let (_, ours) = module_path!().split_once("::").unwrap();
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", &format!("{ours}::{TEST}"), "--nocapture"]).env(IS_CHILD, "1");
    let ended = child.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn wait_under_a_paused_clock() {
    let (heard, _listening) = Heard::listen();
    let locks = Locker::new(Arc::new(Memory::new(Arc::new(TokioHost))), Arc::new(TokioHost));
    let guard = locks.mutex("x").acquire().await.unwrap();
    for _ in 0..2 {
        let (began, busy) = (Instant::now(), processor_time());
        // Two at the same time, and a task of the test that goes by tokio's clock: it is not kept from going on.
        let lock = locks.mutex("x").fifo().within(WAIT);
        let (one, other, _) =
            tokio::join!(lock.acquire(), lock.acquire(), tokio::time::sleep(Duration::from_secs(3600)));
        let (waited, busy) = (began.elapsed(), processor_time() - busy);
        for busy in [one, other] {
            assert!(matches!(busy, Err(AcquireError::TimedOut { .. })), "{busy:?}");
        }
        assert!(waited >= WAIT && waited < WAIT * 3 / 2 * slowness(), "{waited:?}");
        // 1 % of the wait, and what two acquisitions of an unoptimised program cost.
        assert!(busy < WAIT / 100 + Duration::from_millis(50) * slowness(), "{busy:?} of {waited:?}");
    }
    assert_eq!(guard.check(), Ok(()), "it was renewed meanwhile");
    let lines = heard.lines();
    let warnings = lines.iter().filter(|line| line.contains("WARN") && line.contains("tenure::testing"));
    assert_eq!(warnings.count(), 1, "{lines:#?}");
}

/// Of all threads of this process.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

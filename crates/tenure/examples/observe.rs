//! What is logged and exported in a run with a wait, a hold, a failed renewal and a loss.
//!
//! ```sh
//! cargo run -p tenure --example observe --features metrics,testing
//! ```

#![allow(clippy::disallowed_methods, reason = "a program for people to look at runs in real time")]

use std::{error::Error, time::Duration};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tenure::testing::{Fault, Operation, TestStore};
use tokio::time::sleep;
use tracing::Level;
use tracing_subscriber::fmt::format::FmtSpan;

const TTL: Duration = Duration::from_millis(1500);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Before the store is connected: the metrics of a `Locker` go to the recorder that is installed then.
    let recorder = PrometheusBuilder::new()
        .set_buckets(&[0.1, 1.0, 10.0])?
        .set_buckets_for_metric(Matcher::Full("tenure_queue_ahead".into()), &[0.0, 1.0, 10.0])?
        .install_recorder()?;
    let logs = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_ansi(false);
    logs.with_span_events(FmtSpan::CLOSE).with_target(false).init();

    // A store in memory that fails when it is told to.
    let store = TestStore::new();
    let locks = store.locker();
    let lock = locks.mutex("reports").ttl(TTL);

    println!("--- a wait: the lock is held for 300 ms");
    let guard = lock.acquire().await?;
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    sleep(Duration::from_millis(300)).await;
    guard.release().await?;
    let guard = waiting.await??;

    println!("--- a hold, in which one renewal fails");
    store.fail_next_of(Operation::Renew, 1, Fault::unavailable());
    sleep(TTL).await;
    guard.release().await?;

    println!("--- a loss: no renewal succeeds");
    store.fail_operation(Operation::Renew, Fault::LoseAnswer);
    let guard = lock.acquire().await?;
    println!("--- {}", guard.lost().await);
    drop(guard);
    locks.flush(TTL).await;

    println!("--- what is exported");
    print!("{}", recorder.render());
    Ok(())
}

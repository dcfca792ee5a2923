//! How many leases of one process are renewed.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use tenure_testkit::{gate::Verb, host::pass};

use crate::stage::{Stage, TTL, ms};

/// L1: leases that are due soon after one another are renewed in one request; those that are not, when they are due.
#[tokio::test(start_paused = true)]
async fn leases_that_are_due_soon_after_one_another_are_renewed_together() {
    let stage = Stage::new();
    let actor = stage.actor();
    let mut guards = vec![actor.acquire().await];
    pass(TTL / 6).await;
    for number in 0..30 {
        guards.push(actor.locks.mutex(format!("near/{number}")).ttl(TTL).acquire().await.unwrap());
        pass(ms(1)).await;
    }
    pass(20 * TTL).await;
    assert!(guards.iter().all(|guard| guard.check().is_ok() && !guard.is_renewal_failing()));
    // Three times a ttl: once for the first one, and once for all others.
    let asked = actor.gates.asked(Verb::Renew);
    assert!((116..=126).contains(&asked), "{asked}");
}

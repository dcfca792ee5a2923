//! Spans: one for each acquisition, hold and renewal, with the same four fields.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
};

use crate::heard::Heard;
use crate::stage::{Stage, TTL, ms};

/// The spans of this name that were closed, as they were then.
fn closed(heard: &Heard, name: &str) -> Vec<String> {
    let is_close = |line: &String| line.contains(&format!(" {name}{{")) && line.contains(": close ");
    heard.lines().into_iter().filter(is_close).collect()
}

/// Somebody who looks at a trace finds each lease by the same four fields.
#[tokio::test(start_paused = true)]
async fn acquisitions_holds_and_renewals_are_spans_of_lock_owner_token_and_backend() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    let guard = actor.acquire().await;
    let (owner, token) = (guard.owner(), guard.token());
    let fields = [
        "lock=stage".into(),
        format!("owner={owner}"),
        format!("token={token}"),
        "backend=\"memory\"".into(),
    ];
    pass(TTL / 2).await;
    assert_eq!(closed(&heard, "hold"), [""; 0], "the hold goes on");
    let lease = guard.lease();
    guard.release().await.unwrap();
    for name in ["acquire", "renewal", "hold"] {
        let spans = closed(&heard, name);
        let [span] = &spans[..] else { panic!("{name}: {:#?}", heard.lines()) };
        for field in &fields {
            assert!(span.contains(field), "{field} is missing in {span}");
        }
    }
    assert!(lease.check().is_err(), "a lease that lives on keeps no span open");
}

/// What is said of a lease is said in its span.
#[tokio::test(start_paused = true)]
async fn what_is_logged_about_a_lease_stands_in_its_span() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let actor = stage.actor();
    actor.lock().hold(async |_| tracing::info!("the work says so")).await.unwrap();
    let guard = actor.acquire().await;
    actor.set(Verb::Renew, Gate::Hang);
    pass(TTL * 2 / 3).await;
    guard.renewal_failing().await;
    for (text, span) in [("the work says so", "hold{lock=stage"), ("a renewal failed", "renewal{lock=stage")]
    {
        let lines = heard.lines();
        let line = lines.iter().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{lines:#?}"));
        assert!(line.contains(span), "{line}");
    }
}

/// An acquisition that is given up has an owner and no token.
#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_given_up_has_no_token() {
    let (heard, _listening) = Heard::listen();
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let _guard = other.acquire().await;
    assert!(actor.lock().within(ms(300)).acquire().await.is_err());
    let spans = closed(&heard, "acquire");
    assert!(spans.len() == 2 && spans[1].contains("owner=") && !spans[1].contains("token="), "{spans:#?}");
}

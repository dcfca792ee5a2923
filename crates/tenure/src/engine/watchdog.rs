//! The renewing loop: the only one there is. Drives every `Hold` of the process on a thread of its own (H2.5).

use std::{sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_core::{
    Audience, BoxFuture, ErrorKind, Grant, Host, Moment, ProcessId, Renewal, Timing, Wake, Wakes,
};
use tracing::{Instrument, Span};

use crate::engine::{cell::HoldCell, link::Link, reaper::Reaper, request::request, roster::Roster};

/// Pause between attempts to reach the store.
const RECONNECT: Duration = Duration::from_millis(250);

enum Finished {
    /// The stream of hints for the robbed, if the store could be reached.
    Connected(Option<Box<dyn Wakes>>),
    Renewed(Vec<(Arc<HoldCell>, Option<Renewal>)>),
}

/// Renews until the roster is closed. A renewal that hangs delays no other: all are under way at once, and the clock
/// is looked at meanwhile. What nobody has taken goes to the reaper.
pub(crate) async fn run(
    (roster, reaper): (Arc<Roster>, Arc<Reaper>),
    link: Arc<Link>,
    host: Arc<dyn Host>,
    process: ProcessId,
) {
    let mut under_way: FuturesUnordered<BoxFuture<'_, Finished>> = FuturesUnordered::new();
    let mut robbed: Option<Box<dyn Wakes>> = None;
    let mut connecting = false;
    roster.take_over(host.now());
    while !roster.is_closed() {
        let now = host.now();
        let plan = roster.plan(now);
        plan.give_back.iter().for_each(|cell| give_back(&reaper, now, cell));
        for batch in plan.renew {
            under_way.push(Box::pin(renew(&link, &*host, batch)));
        }
        // A lease that is added before the next look rings no bell.
        let listens = plan.next.is_some();
        if listens && robbed.is_none() && !connecting {
            connecting = true;
            under_way.push(Box::pin(connect(&link, &*host, process)));
        }
        tokio::select! {
            biased;
            () = roster.bell.notified() => {}
            Some(finished) = under_way.next() => match finished {
                Finished::Connected(stream) => {
                    (robbed, connecting) = (stream, false);
                    if robbed.is_some() {
                        roster.on_connected(host.now());
                    }
                }
                Finished::Renewed(answers) => settle(&roster, &*host, answers),
            },
            wake = hint(robbed.as_mut().filter(|_| listens)) => roster.on_wake(host.now(), wake),
            () = async { match plan.next { Some(next) => host.sleep_until(next).await, None => std::future::pending().await } } => {}
        }
    }
    let now = host.now();
    for cell in roster.take_all() {
        if cell.release(now).is_ok() {
            give_back(&reaper, now, &cell);
        }
    }
    reaper.close();
}

async fn hint(stream: Option<&mut Box<dyn Wakes>>) -> Wake {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

async fn connect(link: &Link, host: &dyn Host, process: ProcessId) -> Finished {
    match request(host, host.now(), Timing::default().request_timeout(), || link.backend()).await {
        Ok(backend) => Finished::Connected(Some(backend.wakes(process, Audience::Holders))),
        Err(error) => {
            tracing::warn!(%error, "the store cannot be reached to renew leases");
            host.sleep_until(host.now() + RECONNECT).await;
            Finished::Connected(None)
        }
    }
}

fn give_back(reaper: &Reaper, now: Moment, cell: &HoldCell) {
    let Grant { name, owner, ttl, .. } = cell.grant();
    reaper.order(name.clone(), *owner, now + *ttl);
}

async fn renew(link: &Link, host: &dyn Host, batch: Vec<Arc<HoldCell>>) -> Finished {
    let grants: Vec<Grant> = batch.iter().map(|cell| cell.grant().clone()).collect();
    let timeout = batch.iter().map(|cell| cell.timing().renewal_timeout()).min().unwrap_or_default();
    let ask = || async {
        let answers = link.backend().await?.renew(&grants).await;
        match answers.first() {
            Some(Err(busy)) if busy.kind() == ErrorKind::Throttled => Err(busy.clone()),
            _ => Ok(answers),
        }
    };
    let made = link.spans();
    let spans: Vec<Span> = grants.iter().map(|grant| made.renewal(grant)).collect();
    let around = if let [only] = &spans[..] { only.clone() } else { Span::none() };
    let answers = match request(host, host.now(), timeout, ask).instrument(around).await {
        Ok(answers) => answers,
        Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
    };
    let settled = batch.into_iter().zip(spans).zip(answers).map(|((cell, span), answer)| {
        if let Err(error) = &answer {
            span.in_scope(|| tracing::warn!(lock = %cell.grant().name, %error, "a renewal failed"));
        }
        (cell, answer.ok())
    });
    Finished::Renewed(settled.collect())
}

fn settle(roster: &Roster, host: &dyn Host, answers: Vec<(Arc<HoldCell>, Option<Renewal>)>) {
    let now = host.now();
    for (cell, answer) in answers {
        cell.on_renewal(now, answer);
        roster.replan(now, &cell);
    }
}

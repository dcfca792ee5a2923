//! Hints: they arrive, and not at every waiter.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use tenure_core::{
    Audience, BackendHandle, BreakScope, Claim, ClaimAnswer, Label, Minting, OwnerId, WakeEvent, WakeStream,
    WakeSupport,
};

use super::{Arena, player::Player};
use crate::patience::slowness;

/// How long a hint may take: far longer than any does.
const PATIENCE: Duration = Duration::from_secs(5);

fn listen(player: &Player, audience: Audience) -> Box<dyn WakeStream> {
    player.backend.wakes(player.claim.owner.process(), audience)
}

async fn is_woken(stream: &mut Box<dyn WakeStream>, player: &Player) {
    let woken = async {
        loop {
            match stream.next().await {
                WakeEvent::Owner(owner) if owner == player.claim.owner => return,
                WakeEvent::Owner(_) => {}
                WakeEvent::All => return,
            }
        }
    };
    tokio::time::timeout(PATIENCE * slowness(), woken).await.expect("no hint came");
}

async fn a_release_is_heard(holder: Player, waiter: Player) {
    let mut stream = listen(&waiter, Audience::Waiters);
    holder.enter().await;
    waiter.queue_behind(0).await;
    holder.leave().await;
    is_woken(&mut stream, &waiter).await;
    waiter.enter().await;
}

/// The next waiter in the same process receives a hint.
pub async fn a_release_wakes_the_next_waiter(arena: &impl Arena) {
    a_release_is_heard(arena.player("one"), arena.player("one")).await;
}

/// So does a waiter in another process. A store without such hints returns a wait so short that no hint is missed.
pub async fn a_release_elsewhere_wakes_the_next_waiter(arena: &impl Arena) {
    let (holder, waiter) = (arena.player_elsewhere("one").await, arena.player("one"));
    let WakeSupport::Asked(period) = waiter.backend.promises().wake else {
        return a_release_is_heard(holder, waiter).await;
    };
    holder.enter().await;
    let ClaimAnswer::Queued { retry_after, .. } = waiter.ask().await else { panic!("it is held") };
    assert!(retry_after <= period, "{retry_after:?}");
    holder.leave().await;
    waiter.enter().await;
}

/// A holder whose lock is broken receives a hint.
pub async fn a_break_elsewhere_wakes_the_robbed(arena: &impl Arena) {
    let holder = arena.player("one");
    let mut stream = listen(&holder, Audience::Holders);
    holder.enter().await;
    let robbed = arena
        .elsewhere()
        .await
        .break_lock(&holder.claim.name, BreakScope::Leases)
        .await
        .expect("the store answers");
    assert_eq!(robbed.len(), 1);
    is_woken(&mut stream, &holder).await;
}

/// L6: a waiter sees that a holder may keep its lease while it is idle, and the holder is notified that another
/// process waits.
pub async fn a_holder_is_told_that_somebody_waits(arena: &impl Arena) {
    let mut holder = arena.player("one");
    if holder.backend.promises().minting != Minting::Entry {
        return;
    }
    holder.claim.label = Arc::new(Label::new("host", 1, "user", "idle").idling(true));
    let mut stream = listen(&holder, Audience::Holders);
    holder.enter().await;
    let waiter = arena.player_elsewhere("one").await;
    let (ClaimAnswer::Queued { holder: Some(seen), .. } | ClaimAnswer::Split { holder: Some(seen), .. }) =
        waiter.ask().await
    else {
        panic!("nobody is said to hold it");
    };
    assert_eq!(seen.owner, holder.claim.owner.to_string());
    assert!(seen.label.is_some_and(|label| label.idles));
    let Claim { name, owner, .. } = &holder.claim;
    waiter.backend.tell(name, Audience::Holders, *owner).await.expect("the store answers");
    is_woken(&mut stream, &holder).await;
}

/// Observers receive hints in each process.
pub async fn observers_are_told_wherever_they_are(arena: &impl Arena) {
    let one = arena.player("one");
    if one.backend.promises().minting != Minting::Entry {
        return;
    }
    // Makes a lock that can be observed.
    one.enter().await;
    let name = &one.claim.name;
    let address = OwnerId::of_observers(name);
    let elsewhere = arena.elsewhere().await;
    let listen = |at: &BackendHandle| at.wakes(address.process(), Audience::Observers);
    let (mut here, mut there) = (listen(&one.backend), listen(&elsewhere));
    let hears =
        async |stream: &mut Box<dyn WakeStream>| while stream.next().await != WakeEvent::Owner(address) {};
    let heard = async { tokio::join!(hears(&mut here), hears(&mut there)) };
    let telling = async {
        loop {
            one.backend.tell(name, Audience::Observers, address).await.expect("the store answers");
            // A hint that no process listens to yet is lost.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let both = async {
        tokio::select! { _ = heard => {}, () = telling => {} }
    };
    tokio::time::timeout(PATIENCE * slowness(), both).await.expect("no hint came");
}

/// One change of owner costs a constant number of hints, however many processes wait.
pub async fn one_change_of_owner_wakes_few(arena: &impl Arena) {
    let holder = arena.player("one");
    holder.enter().await;
    let mut waiters = Vec::new();
    for n in 0..12 {
        let waiter = arena.player("one");
        let stream = listen(&waiter, Audience::Waiters);
        waiter.queue_behind(n).await;
        waiters.push((waiter, stream));
    }
    holder.leave().await;
    let (first, stream) = &mut waiters[0];
    is_woken(stream, first).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut told = 0;
    for (_, stream) in &mut waiters[1..] {
        let mut next = stream.next();
        let ready = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_ready())).await;
        told += usize::from(ready);
    }
    assert!(told <= 2, "{told} waiters were told besides the one who is next");
}

//! Where no thread can be started, or one ends: nothing is held that is not kept, and it is said.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    error::Error,
    fmt, io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tenure::backend::{Backend, TokioHost};
use tenure::{AcquireError, Locker};
use tenure_memory::Memory;
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
};
use tracing::{Event, Metadata, Subscriber, field::Field, span};

use crate::stage::{Deaf, Stage, TTL, in_time, ms, name};

/// H2.5, L8: in a container whose number of processes was at its bound the thread that renews could not be started. Only a
/// log line said so; the lock was granted, never renewed, and never given back.
#[tokio::test(start_paused = true)]
async fn without_a_thread_that_renews_nothing_is_granted() {
    let (stage, left) = (Stage::new(), Arc::new(AtomicUsize::new(0)));
    let there = left.clone();
    let actor = stage.actor_with(move |start| {
        let fewer = |left: usize| left.checked_sub(1);
        match there.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer) {
            Ok(_) => drop(tokio::spawn(start())),
            Err(_) => return Err(io::Error::other("no thread is left")),
        }
        Ok(())
    });
    let lock = actor.lock();
    let began = stage.clock();
    let refused = [
        in_time(lock.acquire()).await.map(drop).unwrap_err(),
        in_time(lock.clone().within(ms(500)).acquire()).await.map(drop).unwrap_err(),
        in_time(lock.try_acquire()).await.map(drop).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, AcquireError::NoKeeper(_)), "{error:?}");
        assert_eq!(error.source().unwrap().to_string(), "no thread is left");
    }
    assert_eq!(stage.clock(), began, "at once");
    assert!(stage.is_free().await, "nothing was left behind");
    assert_eq!(stage.store.inspect(&name()).await.unwrap().fence.get(), 0, "nothing was even asked for");
    // It is no matter for ever.
    left.store(1, Ordering::SeqCst);
    let guard = in_time(lock.acquire()).await.unwrap();
    guard.release().await.unwrap();
}

/// L6: a panic in a driver ended the thread that renews. From then on the process was refused every lock, for as long as it
/// lived, and what it held ran out.
#[tokio::test(start_paused = true)]
async fn after_a_panic_another_thread_keeps_what_is_held_and_what_comes() {
    let (stage, threads) = (Stage::new(), Arc::new(Mutex::new(Vec::new())));
    let there = threads.clone();
    let actor = stage.actor_with(move |start| {
        there.lock().unwrap().push(tokio::spawn(start()));
        Ok(())
    });
    let held = actor.acquire().await;
    actor.gates.plan(Verb::Renew, &[Gate::Open, Gate::Hang], Gate::Open);
    while actor.gates.asked(Verb::Renew) < 2 {
        pass(ms(10)).await;
    }
    // As a panic does, it drops the task in the middle of a renewal.
    let first = threads.lock().unwrap().pop().unwrap();
    first.abort();
    assert!(in_time(first).await.unwrap_err().is_cancelled());
    let other = in_time(actor.locks.mutex("other").ttl(TTL).acquire()).await.unwrap();
    pass(3 * TTL).await;
    held.check().unwrap();
    other.check().unwrap();
    drop(held);
    assert!(actor.locks.flush(TTL).await);
    assert!(stage.is_free().await, "what is dropped is released");
    other.release().await.unwrap();
    assert_eq!(threads.lock().unwrap().len(), 1, "one other thread");
}

/// A subscriber that cannot write, and panics: as one does that writes to an error output which is closed.
struct Full(Arc<AtomicUsize>);

impl Subscriber for Full {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut |_: &Field, value: &dyn fmt::Debug| text += &format!("{value:?} "));
        if text.contains("a renewal failed") || text.contains("not released") {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("the subscriber cannot write: {text}");
        }
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// L6: a panic of the program's subscriber ended the thread that renews, when a renewal had failed once. All leases of the process
/// ran out, and nothing that it dropped was released, unless it acquired another lock.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_costs_no_lease() {
    let (stage, panics) = (Stage::new(), Arc::new(AtomicUsize::new(0)));
    let actor = stage.actor();
    let guards = [actor.acquire().await, actor.locks.mutex("other").ttl(TTL).acquire().await.unwrap()];
    let listening = tracing::subscriber::set_default(Full(panics.clone()));
    actor.gates.plan(Verb::Renew, &[Gate::Refuse, Gate::Open, Gate::Refuse], Gate::Open);
    pass(10 * TTL).await;
    assert_eq!(panics.load(Ordering::SeqCst), 1, "from then on it is told nothing");
    guards.iter().for_each(|guard| guard.check().unwrap());
    // One release that ends so is no other's business.
    let panicking = actor.locks.mutex("panics").ttl(TTL).acquire().await.unwrap();
    actor.set(Verb::Release, Gate::Refuse);
    drop(panicking);
    pass(2 * TTL).await;
    assert_eq!(panics.load(Ordering::SeqCst), 2);
    // The next one has a minute without it.
    drop(actor.locks.mutex("quiet").ttl(TTL).acquire().await.unwrap());
    pass(TTL * 3 / 2).await;
    assert_eq!(panics.load(Ordering::SeqCst), 2);
    actor.set(Verb::Release, Gate::Open);
    // Then it is told again, and may have recovered.
    pass(6 * TTL).await;
    actor.gates.plan(Verb::Renew, &[Gate::Refuse], Gate::Open);
    pass(TTL).await;
    assert_eq!(panics.load(Ordering::SeqCst), 3);
    guards.iter().for_each(|guard| guard.check().unwrap());
    drop(guards);
    assert!(actor.locks.flush(TTL).await && stage.is_free().await);
    drop(listening);
}

/// L6: what a leader says was told and repeated by the thread that renews, through the handle of the program. Where a store
/// blocks its caller, as SQLite does while another task has the file, nothing was renewed meanwhile.
#[tokio::test]
async fn a_store_that_blocks_the_one_that_tells_delays_no_renewal() {
    let host = Arc::new(TokioHost);
    let store = Deaf::new(&Memory::new(host.clone()));
    let locks = Locker::new(Arc::new(store.clone()), host);
    let held = locks.mutex("held").ttl(ms(600)).acquire().await.unwrap();
    let lead = locks.election("web").campaign().await.unwrap();
    store.blocks.store(true, Ordering::SeqCst);
    lead.term().announce().await;
    let before = held.renewals().succeeded;
    while held.renewals().succeeded < before + 2 {
        held.check().unwrap();
        tokio::time::sleep(ms(10)).await;
    }
    store.blocks.store(false, Ordering::SeqCst);
}

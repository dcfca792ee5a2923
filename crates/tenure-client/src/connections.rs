//! `Connections`: the connection of one handle, and its successor when it is broken.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use tenure_core::{BackendError, BoxFuture, Host, locked};
use tokio::sync::Notify;

use crate::single_flight::SingleFlight;

/// One connection of a store.
pub trait Link: Send + Sync + 'static {
    /// True as long as a request may use it.
    fn is_usable(&self) -> bool;

    /// It is replaced by another one; notifies the callers that still wait for its answers.
    fn on_left(&self);
}

/// The connection of one handle to its store. It is opened for the first request, and a new one is opened when it
/// is not usable any more. At most one is being opened at a time.
pub struct Connections<L, E = BackendError> {
    open: Arc<dyn Fn() -> Opening<L, E> + Send + Sync>,
    current: Arc<Mutex<Option<Arc<L>>>>,
    /// What becomes of an error once there was a connection.
    eased: fn(E) -> E,
    was_open: Arc<AtomicBool>,
    opening: SingleFlight<Result<Arc<L>, E>>,
}

/// A connection that is being opened.
pub type Opening<L, E = BackendError> = BoxFuture<'static, Result<L, E>>;

impl<L: Link, E: Clone + Send + Sync + 'static> Connections<L, E> {
    /// `open` opens one, in the runtime of the first caller that asks for it. For servers that keep what their clients
    /// have closed it takes one of its [`Slots`](crate::Slots).
    pub fn new(host: Arc<dyn Host>, open: impl Fn() -> Opening<L, E> + Send + Sync + 'static) -> Self {
        Self {
            open: Arc::new(open),
            current: Arc::default(),
            eased: |error| error,
            was_open: Arc::default(),
            opening: SingleFlight::new(host),
        }
    }

    /// What becomes of the error of a connection that is refused after one was made, as [`BackendError::after_success`].
    #[must_use]
    pub fn easing(self, eased: fn(E) -> E) -> Self {
        Self { eased, ..self }
    }

    /// The connection; a new one if there is none, or the present one is not usable.
    ///
    /// # Errors
    /// Why no connection could be opened.
    ///
    /// # Cancel safety
    /// The connection is opened without this caller, for the next one.
    pub async fn get(&self) -> Result<Arc<L>, E> {
        if let Some(link) = self.usable() {
            return Ok(link);
        }
        // Rare cases are in a box, so that the futures of most requests stay small.
        let open = || {
            let (open, eased) = (self.open.clone(), self.eased);
            let (current, was_open) = (self.current.clone(), self.was_open.clone());
            Box::pin(async move {
                let ease = |error| if was_open.load(Ordering::Acquire) { eased(error) } else { error };
                let link = Arc::new(open().await.map_err(ease)?);
                was_open.store(true, Ordering::Release);
                *locked(&current) = Some(link.clone());
                Ok(link)
            }) as BoxFuture<'static, _>
        };
        Box::pin(self.opening.join(open)).await
    }

    /// The connection, if there is one.
    pub fn current(&self) -> Option<Arc<L>> {
        locked(&self.current).clone()
    }

    fn usable(&self) -> Option<Arc<L>> {
        let mut current = locked(&self.current);
        let link = current.as_ref()?;
        if link.is_usable() {
            return Some(link.clone());
        }
        link.on_left();
        *current = None;
        None
    }
}

/// A signal that a connection has ended, or was replaced.
#[derive(Default)]
pub struct End {
    is_over: AtomicBool,
    over: Notify,
}

impl End {
    /// True once it has ended.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Sets the signal. True the first time.
    pub fn set(&self) -> bool {
        let is_first = !self.is_over.swap(true, Ordering::AcqRel);
        self.over.notify_waiters();
        is_first
    }

    /// Waits until it has ended.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn wait(&self) {
        let over = self.over.notified();
        tokio::pin!(over);
        // From here on the end is not missed.
        over.as_mut().enable();
        if !self.is_over() {
            over.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::atomic::AtomicUsize,
        time::Duration,
    };

    use tenure_core::{ErrorKind, Outcome};
    use tenure_testkit::{
        host::{PausedHost, pass},
        polls::{dropped_after, is_pending},
    };

    use super::*;
    use crate::slot::{ServerSlots, Slot, Slots, WAIT};

    const PATIENCE: Duration = Duration::from_secs(1);

    #[derive(Default)]
    struct Wire {
        end: End,
        left: AtomicUsize,
    }

    impl Link for Wire {
        fn is_usable(&self) -> bool {
            !self.end.is_over()
        }

        fn on_left(&self) {
            self.left.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Each takes 500 ms to open; the first `failures` fail. Counts how many were begun.
    fn connections(failures: usize) -> (Arc<Connections<Wire>>, Arc<AtomicUsize>) {
        let begun = Arc::<AtomicUsize>::default();
        let count = begun.clone();
        let open = move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let opening = async move {
                pass(PATIENCE / 2).await;
                let refused = BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "down");
                if number < failures { Err(refused) } else { Ok(Wire::default()) }
            };
            Box::pin(opening) as Opening<Wire>
        };
        (Arc::new(Connections::new(PausedHost::new(1), open)), begun)
    }

    fn count(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_ask_at_once_get_the_one_connection() {
        let (connections, begun) = connections(0);
        let (one, other) = tokio::join!(connections.get(), connections.get());
        assert!(Arc::ptr_eq(&one.unwrap(), &other.unwrap()));
        assert_eq!(count(&begun), 1);
    }

    /// Callers with less patience than a connection takes to open never had a connection, however often they asked.
    #[tokio::test(start_paused = true)]
    async fn what_one_caller_began_the_next_one_goes_on_with() {
        let (connections, begun) = connections(0);
        for _ in 0..2 {
            assert!(dropped_after(1, connections.get()).await.is_none());
            pass(PATIENCE / 5).await;
        }
        assert!(connections.get().await.is_ok());
        assert_eq!(count(&begun), 1);
    }

    /// It was opened only while a caller polled, and a caller that was not polled kept it from all others.
    #[tokio::test(start_paused = true)]
    async fn a_connection_is_made_even_if_its_caller_rests_or_is_dropped() {
        let (connections, begun) = connections(0);
        let mut rests = Box::pin(connections.get());
        assert!(is_pending(&mut rests).await);
        assert!(dropped_after(1, connections.get()).await.is_none());
        pass(PATIENCE).await;
        assert!(connections.current().is_some());
        connections.get().await.unwrap();
        assert_eq!(count(&begun), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_ended_is_left_once_and_has_a_successor() {
        let (connections, begun) = connections(1);
        assert!(connections.get().await.is_err());
        let first = connections.get().await.unwrap();
        assert!(first.end.set() && !first.end.set());
        let second = connections.get().await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!((count(&first.left), count(&second.left), count(&begun)), (1, 0, 3));
    }

    /// A password that is being replaced is refused for a moment: before the first connection that is final, later it is not.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_final_only_before_the_first_connection() {
        let begun = AtomicUsize::new(0);
        let open = move || {
            let opens = begun.fetch_add(1, Ordering::Relaxed) == 1;
            let refused = || BackendError::new(ErrorKind::Denied, Outcome::NotApplied, "wrong password");
            Box::pin(async move { if opens { Ok(Wire::default()) } else { Err(refused()) } }) as Opening<Wire>
        };
        let connections = Connections::new(PausedHost::new(1), open).easing(BackendError::after_success);
        let kind = |answer: Result<Arc<Wire>, BackendError>| answer.err().unwrap().kind();
        assert_eq!(kind(connections.get().await), ErrorKind::Denied);
        connections.get().await.unwrap().end.set();
        assert_eq!(kind(connections.get().await), ErrorKind::Unavailable);
    }

    /// A server that waits for a lock does not notice that its client has left. Each successor was stuck as well: eight
    /// elections filled a server of 151 connections in half a minute.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_keeps_what_was_left_is_not_filled() {
        let held = Arc::new(Mutex::new(Vec::new()));
        let (keeps, most) = (held.clone(), Arc::<AtomicUsize>::default());
        let slots = Slots::new(PausedHost::new(1));
        let refused = |_: &&str| BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "it is kept");
        let open = move || {
            let (keeps, host, slots) = (keeps.clone(), PausedHost::new(2), slots.clone());
            Box::pin(async move {
                let keep = |slot: Slot| {
                    let wire = Wire::default();
                    wire.end.set();
                    let slot = Arc::new(slot);
                    locked(&keeps).push(Arc::downgrade(&slot));
                    // It is left, and its statement is not answered.
                    host.spawn(Box::pin(async move { slot.overdue().await }));
                    Ok(wire)
                };
                let open = |_, slot: Slot| Box::pin(ready(keep(slot))) as BoxFuture<'_, _>;
                slots.first(&["db"], open, refused).await
            }) as Opening<Wire>
        };
        let connections = Connections::new(PausedHost::new(1), open);
        let begun = tokio::time::Instant::now();
        let mut refusals = 0;
        while begun.elapsed() < Duration::from_secs(600) {
            let answer = tokio::time::timeout(Duration::from_secs(3), connections.get()).await;
            refusals += usize::from(answer.expect("a caller is answered").is_err());
            let open = locked(&held).iter().filter(|slot| slot.strong_count() > 0).count();
            most.fetch_max(open, Ordering::Relaxed);
            pass(PATIENCE / 10).await;
        }
        let opened = locked(&held).len();
        assert!(
            count(&most) == 1 && opened <= 34 && refusals > 200,
            "{opened} in 10 minutes, {refusals} refused"
        );
    }

    /// A server that asked another service who its client is kept each login that was given up: eleven of one process.
    #[tokio::test(start_paused = true)]
    async fn a_login_that_is_given_up_counts_as_there() {
        let slots = ServerSlots::new(PausedHost::new(1));
        let begun = tokio::time::Instant::now();
        let (mut logins, mut most) = (Vec::new(), 0);
        while begun.elapsed() < Duration::from_secs(120) {
            if slots.is_vacated_within(WAIT).await {
                // Its server answers nothing for a minute, even to a client that has left.
                logins.push(tokio::time::Instant::now());
                let slot = Arc::new(slots.take());
                let _ = tokio::time::timeout(PATIENCE, slot.log_in(pending::<()>())).await;
            }
            let is_there = |since: &&tokio::time::Instant| since.elapsed() < Duration::from_secs(60);
            most = most.max(logins.iter().filter(is_there).count());
        }
        assert!(most <= 6, "{most} at a time");
        // One that is answered is not waited for.
        let slot = Arc::new(slots.take());
        assert_eq!(slot.log_in(async { 7 }).await, Some(7));
        drop(slot);
        let answered = tokio::time::Instant::now();
        assert!(slots.is_vacated_within(WAIT).await && answered.elapsed() < PATIENCE);
    }

    /// L6: a server that accepted connections and did not answer kept the client from a healthy one for 20 s, and a lease
    /// was lost.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_keeps_no_client_from_another_one() {
        let (slots, is_promoted) = (Slots::new(PausedHost::new(1)), AtomicBool::new(false));
        let hung = Arc::new(Mutex::new(Vec::new()));
        let begun = tokio::time::Instant::now();
        let mut asked_at = Vec::new();
        let answer = loop {
            let open = |server: &'static &'static str, slot: Slot| {
                let (server, slot) = (*server, Arc::new(slot));
                let (hung, is_promoted) = (hung.clone(), is_promoted.load(Ordering::Relaxed));
                Box::pin(async move {
                    if server == "hangs" {
                        locked(&hung).push(Arc::downgrade(&slot));
                        let login = slot.log_in(pending::<()>());
                        let _ = tokio::time::timeout(PATIENCE * 2, login).await;
                        return Err("no answer".to_owned());
                    }
                    if is_promoted { Ok(server) } else { Err("no writes".to_owned()) }
                }) as BoxFuture<'_, _>
            };
            asked_at.push(begun.elapsed());
            let opened = slots.first(&["hangs", "well"], open, |it| format!("{it} is occupied")).await;
            let there = locked(&hung).iter().filter(|slot| slot.strong_count() > 0).count();
            assert!(there <= 1, "{there} connections at the server that hangs");
            match opened {
                Ok(server) => break (server, begun.elapsed()),
                Err(error) if asked_at.len() > 2 => assert_eq!(error, "hangs is occupied"),
                Err(_) => {}
            }
            is_promoted.store(begun.elapsed() > PATIENCE * 8, Ordering::Relaxed);
        };
        assert!(answer.0 == "well" && answer.1 < PATIENCE * 12, "{answer:?} {asked_at:?}");
    }

    /// The answer to what was under way frees the place, however long that took.
    #[tokio::test(start_paused = true)]
    async fn a_successor_is_opened_as_soon_as_what_was_left_is_answered() {
        let slots = ServerSlots::new(PausedHost::new(1));
        for (unanswered, wait) in [(true, 1000), (false, 700), (true, 10_000 - 700)] {
            let slot = slots.take();
            let answered = async {
                tokio::select! {
                    () = slot.overdue() => {}
                    () = pass(Duration::from_millis(if unanswered { u64::MAX / 2 } else { 700 })) => {}
                }
            };
            let begun = tokio::time::Instant::now();
            answered.await;
            drop(slot);
            assert!(slots.is_vacated_within(WAIT).await);
            let took = begun.elapsed().as_millis();
            assert!((wait..wait + 50).contains(&u64::try_from(took).unwrap()), "{took} ms instead of {wait}");
        }
    }

    /// A task that does not run, because its runtime is blocked, keeps its socket; the others do not wait for it.
    #[tokio::test(start_paused = true)]
    async fn a_slot_in_a_runtime_that_stands_still_is_waited_for_once() {
        let slots = ServerSlots::new(PausedHost::new(1));
        let (_blocked, begun) = (slots.take(), tokio::time::Instant::now());
        assert!(slots.is_vacated_within(WAIT).await);
        assert!(begun.elapsed() < PATIENCE * 2, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn an_end_is_heard_by_those_who_wait_and_by_those_who_come_later() {
        let end = End::default();
        let mut waiting = Box::pin(end.wait());
        assert!(is_pending(&mut waiting).await);
        end.set();
        waiting.await;
        end.wait().await;
    }
}

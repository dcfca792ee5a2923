//! Hints that another attempt may succeed, and `Notifier`, which delivers them to the owners of this process.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    host::{BoxFuture, Host},
    locked,
    moment::Moment,
    owner::{OwnerId, ProcessId},
};

/// The kind of owner to which a hint is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Audience {
    /// Waiters.
    Waiters,
    /// Holders, whose lock may have been broken, or is wanted by a waiter.
    Holders,
    /// Observers: see [`OwnerId::of_observers`].
    Observers,
}

/// A hint. It saves time, and nothing else depends on it: it may be lost, late, doubled or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WakeEvent {
    /// This owner should repeat its request.
    Owner(OwnerId),
    /// Every owner should repeat its request: hints may have been lost.
    All,
}

/// A hint to an owner, as a store sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The role in which the owner is notified.
    pub audience: Audience,
    /// The owner.
    pub owner: OwnerId,
    /// The owner is behind a waiter that has a turn. The hint covers the case that this waiter is dead. The owner
    /// need not ask before that turn has passed, because it would only race with the waiter.
    pub is_behind: bool,
}

/// Receives hints as they come, from any task.
pub type Forward = Arc<dyn Fn(WakeEvent) + Send + Sync>;

/// The stream of hints for one process and audience.
#[async_trait]
pub trait WakeStream: Send + 'static {
    /// Waits for the next hint; never ends.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint.
    async fn next(&mut self) -> WakeEvent;

    /// From now on, the task that receives a hint passes it directly to `to`, where the store supports that. Still
    /// poll [`next`](Self::next): it returns the other hints, and does the work of receiving them.
    fn forward(&mut self, _to: Forward) {}
}

/// Delivers hints to the streams of this process: immediately, or when the turn ahead has passed. Clones share the
/// streams.
#[derive(Clone, Default)]
pub struct Notifier(Arc<Delivery>);

#[derive(Default)]
struct Delivery {
    streams: Mutex<HashMap<StreamKey, Vec<Weak<Mutex<HintStream>>>>>,
    turns: Option<PendingTurns>,
}

type StreamKey = (ProcessId, Audience);

#[derive(Default)]
struct HintStream {
    hints: VecDeque<WakeEvent>,
    listener: Option<Waker>,
    forward: Option<Forward>,
}

/// Hints to owners behind a waiter that has a turn.
struct PendingTurns {
    host: Arc<dyn Host>,
    /// How long a turn lasts.
    turn: Duration,
    /// When each owner is notified. All turns have the same length, so this is the order of time.
    due: Mutex<VecDeque<(Moment, OwnerId)>>,
}

/// A stream made by [`Notifier::subscribe`].
pub struct Notifications {
    stream: Arc<Mutex<HintStream>>,
    /// For waiters: the task that polls the stream also delivers delayed hints when they are due.
    notifier: Option<Notifier>,
}

impl Notifier {
    /// For a store in whose queues a turn lasts for `turn` unless it is taken. Without turns, a hint to an owner
    /// that [is behind](Hint::is_behind) is dropped.
    pub fn with_turns(host: Arc<dyn Host>, turn: Duration) -> Self {
        let turns = Some(PendingTurns { host, turn, due: Mutex::default() });
        Self(Arc::new(Delivery { streams: Mutex::default(), turns }))
    }

    /// A new stream of hints for this process and audience.
    pub fn subscribe(&self, process: ProcessId, audience: Audience) -> Notifications {
        let stream = Arc::<Mutex<HintStream>>::default();
        locked(&self.0.streams).entry((process, audience)).or_default().push(Arc::downgrade(&stream));
        Notifications { stream, notifier: (audience == Audience::Waiters).then(|| self.clone()) }
    }

    /// True if hints to this owner arrive in this process: then no server needs to deliver them.
    pub fn reaches(&self, audience: Audience, owner: OwnerId) -> bool {
        let streams = locked(&self.0.streams);
        let streams = streams.get(&(owner.process(), audience));
        streams.is_some_and(|streams| streams.iter().any(|stream| stream.strong_count() > 0))
    }

    /// Delivers a hint to its owner, if that is in this process: immediately, or after the turn ahead.
    pub fn deliver(&self, hint: Hint) {
        let Hint { audience, owner, is_behind } = hint;
        let Some(turns) = &self.0.turns else {
            if !is_behind {
                self.notify(audience, owner);
            }
            return;
        };
        if !is_behind {
            turns.cancel(owner);
            self.notify(audience, owner);
        } else if self.reaches(audience, owner) {
            turns.add(owner);
            let streams = self.live_streams((owner.process(), audience));
            streams.iter().filter_map(|stream| locked(stream).listener.take()).for_each(Waker::wake);
        }
    }

    /// Notifies an owner; false if no stream of this process is for it.
    pub fn notify(&self, audience: Audience, owner: OwnerId) -> bool {
        self.push((owner.process(), audience), WakeEvent::Owner(owner))
    }

    /// Notifies every owner of this process and audience: hints may have been lost.
    pub fn notify_all(&self, process: ProcessId, audience: Audience) {
        self.push((process, audience), WakeEvent::All);
    }

    fn push(&self, address: StreamKey, wake: WakeEvent) -> bool {
        let live = self.live_streams(address);
        live.iter().for_each(|stream| push(stream, wake));
        !live.is_empty()
    }

    /// The receiver of a hint may lock its own mutexes, so none of this type's is locked then.
    fn live_streams(&self, address: StreamKey) -> Vec<Arc<Mutex<HintStream>>> {
        let mut all = locked(&self.0.streams);
        let Some(streams) = all.get_mut(&address) else { return Vec::new() };
        streams.retain(|stream| stream.strong_count() > 0);
        let live: Vec<_> = streams.iter().filter_map(Weak::upgrade).collect();
        if live.is_empty() {
            all.remove(&address);
        }
        live
    }

    /// Notifies the owners behind the next turn that passes; pending until then.
    fn poll_turns(&self, context: &mut Context<'_>, timer: &mut Timer) -> Poll<()> {
        let Some(turns) = &self.0.turns else { return Poll::Pending };
        let Some(due) = turns.first() else { return Poll::Pending };
        if timer.as_ref().is_none_or(|(at, _)| *at != due) {
            *timer = None;
        }
        let (_, sleep) = timer.get_or_insert_with(|| (due, turns.host.sleep_until(due)));
        ready!(sleep.as_mut().poll(context));
        *timer = None;
        for owner in turns.take_due() {
            self.notify(Audience::Waiters, owner);
        }
        Poll::Ready(())
    }
}

/// Until the next turn passes.
type Timer = Option<(Moment, BoxFuture<'static, ()>)>;

fn push(stream: &Mutex<HintStream>, wake: WakeEvent) {
    let mut stream = locked(stream);
    if let Some(forward) = stream.forward.clone() {
        drop(stream);
        return forward(wake);
    }
    if stream.hints.len() < KEPT {
        stream.hints.push_back(wake);
    }
    if let Some(listener) = stream.listener.take() {
        listener.wake();
    }
}

impl PendingTurns {
    fn add(&self, owner: OwnerId) {
        let mut due = locked(&self.due);
        if due.iter().any(|(_, known)| *known == owner) {
            return;
        }
        if due.len() == KEPT {
            due.pop_front();
        }
        due.push_back((self.host.now() + self.turn, owner));
    }

    /// The owner's own turn has come.
    fn cancel(&self, owner: OwnerId) {
        locked(&self.due).retain(|(_, known)| *known != owner);
    }

    fn first(&self) -> Option<Moment> {
        locked(&self.due).front().map(|(due, _)| *due)
    }

    fn take_due(&self) -> Vec<OwnerId> {
        let now = self.host.now();
        let mut due = locked(&self.due);
        let count = due.iter().take_while(|(due, _)| due.is_over(now)).count();
        due.drain(..count).map(|(_, owner)| owner).collect()
    }
}

#[async_trait]
impl WakeStream for Notifications {
    async fn next(&mut self) -> WakeEvent {
        // Not kept between calls, because it belongs to the runtime that polls.
        let mut timer = None;
        poll_fn(|context| {
            loop {
                let mut stream = locked(&self.stream);
                if let Some(wake) = stream.hints.pop_front() {
                    return Poll::Ready(wake);
                }
                stream.listener = Some(context.waker().clone());
                drop(stream);
                let Some(notifier) = &self.notifier else { return Poll::Pending };
                ready!(notifier.poll_turns(context, &mut timer));
            }
        })
        .await
    }

    fn forward(&mut self, to: Forward) {
        locked(&self.stream).forward = Some(to);
    }
}

/// How many hints a stream keeps while no task polls it, and how many hints wait for turns. More are dropped,
/// because a hint may always be lost.
const KEPT: usize = 1024;

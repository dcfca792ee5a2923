//! Hints that another attempt may succeed, and `Bells`, which deliver them to the streams made in this process.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::{Arc, Mutex, Weak},
    task::{Poll, Waker},
};

use async_trait::async_trait;

use crate::{
    locked,
    owner::{OwnerId, ProcessId},
};

/// To whom a hint is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Audience {
    /// Waiters.
    Waiters,
    /// Holders, whose lock may have been broken, or is wanted by somebody.
    Holders,
    /// Those who look on: see [`OwnerId::of_observers`].
    Observers,
}

/// A hint. It saves time, and nothing else depends on it: it may be lost, late, doubled or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// This owner should repeat its request.
    Owner(OwnerId),
    /// Every owner should repeat its request: hints may have been lost.
    All,
}

/// Word to an owner that asking again may help, as a store brings it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// As what it is told.
    pub audience: Audience,
    /// Who.
    pub owner: OwnerId,
    /// It stands behind the one that was let in, in case that one is dead: it need not ask before that one's turn is over, and
    /// would only race it.
    pub is_behind: bool,
}

/// Takes hints as they come, from any task.
pub type Forward = Arc<dyn Fn(Wake) + Send + Sync>;

/// The stream of hints for one process and audience.
#[async_trait]
pub trait Wakes: Send + 'static {
    /// Waits for the next hint; never ends.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint.
    async fn next(&mut self) -> Wake;

    /// From here on the task that receives a hint brings it to `to`, where the store can do that. [`next`](Self::next) is to be
    /// polled all the same: it has the other hints, and does what brings them.
    fn forward(&mut self, _to: Forward) {}
}

/// The streams of hints made in one process, and the way to ring them. Clones share them.
#[derive(Clone, Default)]
pub struct Bells(Arc<Mutex<HashMap<Address, Streams>>>);

type Address = (ProcessId, Audience);
type Streams = Vec<Weak<Mutex<Stream>>>;

#[derive(Default)]
struct Stream {
    hints: VecDeque<Wake>,
    listener: Option<Waker>,
    forward: Option<Forward>,
}

/// A stream made by [`Bells::listen`].
pub struct Ringing(Arc<Mutex<Stream>>);

impl Bells {
    /// A new stream of hints for this process and audience.
    pub fn listen(&self, process: ProcessId, audience: Audience) -> Ringing {
        let stream = Arc::<Mutex<Stream>>::default();
        locked(&self.0).entry((process, audience)).or_default().push(Arc::downgrade(&stream));
        Ringing(stream)
    }

    /// True if somebody in this process listens for hints to this owner.
    pub fn reach(&self, audience: Audience, owner: OwnerId) -> bool {
        let bells = locked(&self.0);
        let streams = bells.get(&(owner.process(), audience));
        streams.is_some_and(|streams| streams.iter().any(|stream| stream.strong_count() > 0))
    }

    /// Tells every stream of this process and audience that hints may have been missed.
    pub fn ring_all(&self, process: ProcessId, audience: Audience) {
        self.bring((process, audience), Wake::All);
    }

    /// Gives a hint to an owner; false if nobody in this process listens for it.
    pub fn ring(&self, audience: Audience, owner: OwnerId) -> bool {
        self.bring((owner.process(), audience), Wake::Owner(owner))
    }

    fn bring(&self, address: Address, wake: Wake) -> bool {
        let mut bells = locked(&self.0);
        let Some(streams) = bells.get_mut(&address) else { return false };
        streams.retain(|stream| stream.strong_count() > 0);
        let live: Vec<_> = streams.iter().filter_map(Weak::upgrade).collect();
        if live.is_empty() {
            bells.remove(&address);
        }
        // What takes a hint may have locks of its own.
        drop(bells);
        live.iter().for_each(|stream| push(stream, wake));
        !live.is_empty()
    }
}

fn push(stream: &Mutex<Stream>, wake: Wake) {
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

#[async_trait]
impl Wakes for Ringing {
    async fn next(&mut self) -> Wake {
        poll_fn(|cx| {
            let mut stream = locked(&self.0);
            match stream.hints.pop_front() {
                Some(wake) => Poll::Ready(wake),
                None => {
                    stream.listener = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn forward(&mut self, to: Forward) {
        locked(&self.0).forward = Some(to);
    }
}

/// Hints a stream keeps while nobody listens; more are dropped, for a hint may always be lost.
const KEPT: usize = 1024;

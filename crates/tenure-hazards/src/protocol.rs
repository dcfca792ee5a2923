//! What a scene and a client's process send each other, one line of JSON each, and the client's end of it.

use std::{
    error::Error,
    io::{self, BufRead, Write},
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// What a client must do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Take the lock; stop in the gap of the scheme, if it has one.
    Lock { pauses: bool },
    /// Release it; the same.
    Unlock { pauses: bool },
    /// Check whether the lock is treated as held, and if so write; stop between the two.
    Write { text: String, pauses: bool },
    /// Read a number, add one, write it back; stop in between.
    Add { pauses: bool },
    /// Take the lock and release it without a report, so that the connection is made.
    Connect,
    /// Take the lock, work for `work`, release the lock.
    Turn { work: Duration },
    /// Work no more, and do not release the lock.
    Forget,
    /// Go on after a stop in a gap.
    GoOn,
}

/// What a client sends, and when it happened by the clock that all processes share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stamped {
    pub(crate) at: Duration,
    pub(crate) what: Message,
}

/// What a client sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// It is connected, and waits for orders.
    Ready,
    /// It is in a gap of the scheme.
    Gap(String),
    /// It has the lock, under this name in the store, with this token.
    Locked { alias: String, token: Option<u64> },
    /// It is about to release the lock: it works no more.
    Leaves,
    /// Its worker has ended and released nothing.
    Abandons,
    /// It has released the lock.
    Unlocked,
    /// It has noticed that it lost the lock, and works no more: by its own clock, or by a report.
    Lost { by_clock: bool },
    /// It no longer treats the lock as held, and so does not write.
    HeldBack,
    /// This write is on its way.
    Writes { text: String, token: Option<u64> },
    /// The number was written back, or refused.
    Added(bool),
    /// Something worth a mark on its lane.
    Notes(String),
    /// It cannot carry out its order.
    Fails(String),
}

/// What a step of a scheme comes to.
pub(crate) type Step<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// A client's process.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Its name.
    pub(crate) name: String,
    /// The name of the lock.
    pub(crate) lock: String,
    /// Where locks are kept.
    pub(crate) url: String,
    /// How long a lock lasts.
    pub(crate) ttl: Duration,
    /// It stops in gaps.
    pub(crate) pauses: bool,
}

impl Client {
    /// Here the scheme can be interrupted: between two requests that should be one.
    pub(crate) fn gap(&self, gap: &str) -> Step {
        if self.pauses {
            send(Message::Gap(gap.to_owned()));
            order()?;
        }
        Ok(())
    }
}

/// Sends something to the scene.
pub(crate) fn send(what: Message) {
    send_at(now(), what);
}

/// Sends something that happened at another time.
pub(crate) fn send_at(at: Duration, what: Message) {
    let line = serde_json::to_string(&Stamped { at, what }).expect("BUG: a message is JSON");
    // OK to ignore because a scene that has ended receives no more messages.
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// The next order; `None` if no more orders come.
pub(crate) fn order() -> Step<Option<Order>> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

/// Since the machine was started; the same in every process.
pub(crate) fn now() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).expect("BUG: this clock is always there"))
}

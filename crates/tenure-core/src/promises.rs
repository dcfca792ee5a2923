//! `Promises`: what a backend promises, as data.

use std::time::Duration;

use crate::timing::Timing;

/// What ends a grant that nobody releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndOfGrant {
    /// The ttl we asked for, on the server's clock.
    Ttl,
    /// The end of our session with the server: with the process, or the ttl after the server last heard of it. A lease
    /// that one process leaves to the next, as `tenure lock` does, is not possible.
    Session,
}

/// Which locks several owners can hold at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// Read-write locks and semaphores: the store counts the holders.
    Counted,
    /// Semaphores only, each as so many mutexes, its slots `name#1`, `name#2` …: nobody counts (H6.1).
    Slots {
        /// How many of them at most: each costs a request of its own.
        most: u32,
    },
    /// None.
    No,
}

/// In which order waiters are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// As they came.
    Fifo,
    /// As luck has it.
    Any,
}

/// What becomes of a turn that its owner does not take, because it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Absent {
    /// The turn is handed over for a claim ttl, half a second, and then to the next one.
    Passed,
    /// It stays first until its place ends, as long as a lease lives that nobody renews.
    WaitedFor,
}

/// In which step a token is minted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Minting {
    /// Letting in: whoever asks again while it holds has a larger one.
    Entry,
    /// Taking a place in the line, in whose order all enter: whoever asks again has the same.
    Place,
}

/// What becomes of leases and tokens when the server restarts, or when another one takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restart {
    /// They may be forgotten, and granted again at once: only the token protects then.
    Lost,
    /// They may be forgotten, but nothing is granted before all that may have been are over.
    WaitedFor,
    /// They are still there.
    Survives,
}

/// How a waiter learns that asking again helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WakeUp {
    /// Told at once.
    Pushed,
    /// Found by a cheap poll of this period at most.
    Polled(Duration),
}

/// What a backend promises. The table in the README is checked against it by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Promises {
    /// The scheme of its URL.
    pub backend: &'static str,
    /// Whether there is more than mutexes.
    pub sharing: Sharing,
    /// In which order waiters are let in.
    pub order: Order,
    /// What becomes of a turn that its owner does not take.
    pub absent: Absent,
    /// In which step a token is minted.
    pub minting: Minting,
    /// What becomes of leases when the server restarts.
    pub restart: Restart,
    /// What becomes of leases when another server takes the place of one that fails; `None` where there is no other.
    pub fail_over: Option<Restart>,
    /// Other processes and machines see the same locks.
    pub reach: &'static str,
    /// What ends a grant that nobody releases.
    pub end: EndOfGrant,
    /// How a waiter learns of its turn.
    pub wake: WakeUp,
    /// Of the waiters of one process for one lock, so many have places in the store's queue at a time. The others stand in line in
    /// their process, and the store hears of them in the order in which they came. `None`: all have places.
    pub places: Option<usize>,
    /// The longest ttl it accepts.
    pub max_ttl: Duration,
    /// The parameter by which that is raised, if there is one.
    pub max_ttl_parameter: Option<&'static str>,
    /// The step in which it counts a ttl.
    pub ttl_grain: Duration,
}

impl Promises {
    /// The ttl of who names none: [10 s](Timing::DEFAULT_TTL), or the longest that the store accepts where that is less.
    pub fn default_ttl(&self) -> Duration {
        Timing::DEFAULT_TTL.min(self.max_ttl)
    }

    /// For a backend: the least that can be promised, for it to raise what it promises besides.
    pub fn least(backend: &'static str) -> Self {
        Self {
            backend,
            sharing: Sharing::No,
            order: Order::Any,
            absent: Absent::WaitedFor,
            minting: Minting::Place,
            restart: Restart::Lost,
            fail_over: None,
            reach: "one process",
            end: EndOfGrant::Session,
            wake: WakeUp::Polled(Duration::from_secs(2)),
            places: None,
            max_ttl: Timing::MAX_TTL,
            max_ttl_parameter: None,
            ttl_grain: Duration::from_secs(2),
        }
    }
}

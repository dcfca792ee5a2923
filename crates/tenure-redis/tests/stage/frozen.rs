//! `Frozen`: a server whose time stands, with clients of both kinds: naive ones and ours.

use std::time::Duration;

use tenure_core::Grant;
use tenure_testkit::{conformance::player::Player, redis::RedisServer};

use super::{Clocked, entry, naive::Naive};

/// The name of our lock, beside [`NAIVE`](super::naive::NAIVE).
pub(crate) const OURS: &str = "ours";

/// The ttl of ours, and that of the naive.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// No lease ends there unless the test says so.
pub(crate) struct Frozen(Clocked);

impl Frozen {
    pub(crate) fn new() -> Self {
        let clocked = Clocked::new();
        clocked.clock.freeze();
        Self(clocked)
    }

    pub(crate) fn server(&self) -> &RedisServer {
        &self.0.server
    }

    /// Every lease that was taken before is over. Redis keeps a key for a millisecond more.
    pub(crate) fn end_leases(&self) {
        self.0.clock.advance(MINUTE + Duration::from_millis(1));
    }

    /// Three connections of clients that know no better.
    pub(crate) fn naive(&self) -> [Naive; 3] {
        [(); 3].map(|()| Naive::of(self.server()))
    }

    /// A process of ours that wants a lock of this name, and does not wait.
    pub(crate) fn player(&self, name: &str) -> Player {
        let mut player = entry::claimant(&self.server().url("?guard=off"), name);
        player.claim.ttl = MINUTE;
        player
    }

    /// Three that want our lock.
    pub(crate) fn ours(&self) -> [Player; 3] {
        [(); 3].map(|()| self.player(OURS))
    }

    /// The first one's lease is over, the second one holds, and the first does not know it.
    pub(crate) async fn overtaken(&self, first: &Player, second: &Player) -> Grant {
        let lost = first.enter().await;
        assert_eq!(entry::look(first).await.holders.len(), 1, "it has looked, and holds");
        self.end_leases();
        second.enter().await;
        lost
    }
}

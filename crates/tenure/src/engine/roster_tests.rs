//! When a `Roster` has the clock looked at.

use std::{sync::Arc, time::Duration};

use tenure_core::{FencingToken, Grant, Host, LockName, OwnerId, ProcessId, Timing};
use tenure_testkit::host::PausedHost;

use crate::engine::{cell::HoldCell, roster::Roster};

fn lease(host: &Arc<PausedHost>, number: u8, ttl: Duration) -> Arc<HoldCell> {
    let owner = OwnerId::from_random(ProcessId::from_random([0; 8]), [number; 16]);
    let (name, token) = (LockName::new("x").unwrap(), FencingToken::new(1));
    let (grant, timing) = (Grant { name, owner, token, block: 1, ttl }, Timing::new(ttl).unwrap());
    let until = timing.believed_until(host.now(), ttl);
    Arc::new(HoldCell::new(grant, until, timing, None, host.clone()))
}

/// H2.1: whatever is planned, the clock is looked at again within the look of the shortest lease that is held.
#[tokio::test(start_paused = true)]
async fn the_clock_is_looked_at_as_often_as_the_shortest_lease_wants() {
    let (host, roster) = (PausedHost::new(1), Roster::default());
    let next = |now| roster.plan(now).next.map(|next| next.boot - now.boot);
    let (ms, now) = (Duration::from_millis, host.now());
    assert_eq!(next(now), None);
    let leases = [60, 2, 1].map(|seconds| lease(&host, seconds, Duration::from_secs(seconds.into())));
    for (lease, look) in leases.iter().zip([1000, 200, 100]) {
        roster.add(now, lease.clone());
        assert_eq!(next(now), Some(ms(look)));
    }
    // A look that was planned stays planned; the next one is for who is left.
    for (lease, look) in leases.iter().rev().zip([100, 200, 1000]) {
        let later = now + ms(look);
        assert_eq!(next(later).filter(|next| *next <= ms(look)), Some(ms(look)));
        assert!(roster.remove(lease));
    }
    assert_eq!(next(now + ms(3000)), None);
}

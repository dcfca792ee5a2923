//! Many leases that one process holds: what keeping them costs.

use std::time::Duration;

use tenure::{
    Guard,
    backend::{Host, TokioHost},
};
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{meter::Meter, server::Server};

const LENGTH: Duration = Duration::from_secs(10);
const TASKS: usize = 64;

/// What keeping them costs.
pub(crate) struct Keeping {
    /// Of one core.
    pub(crate) client_percent: f64,
    /// Of one core.
    pub(crate) server_percent: f64,
    pub(crate) calls_per_second: f64,
    pub(crate) leases_per_call: f64,
    pub(crate) renewed: u64,
    pub(crate) lost: usize,
    pub(crate) at_risk: usize,
}

/// Holds so many for ten seconds.
pub(crate) fn measure(runtime: &Runtime, server: &Server, leases: usize) -> Keeping {
    runtime.block_on(async {
        let locks = tenure::connect(&server.tenure_url()).await.expect("a URL");
        let mut acquiring = JoinSet::new();
        for task in 0..TASKS {
            let locks = locks.clone();
            acquiring.spawn(async move {
                let mut guards = Vec::new();
                for number in (task..leases).step_by(TASKS) {
                    let lock = locks.mutex(format!("tenure/held/{number}"));
                    guards.push(lock.acquire().await.expect("no contention"));
                }
                guards
            });
        }
        let guards: Vec<Guard> = acquiring.join_all().await.into_iter().flatten().collect();
        let (calls, meter) = (server.calls(), Meter::start(server));
        TokioHost.sleep_until(TokioHost.now() + LENGTH).await;
        let (cost, now) = (meter.stop(1), server.calls());
        let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
        let at_risk = guards.iter().filter(|guard| guard.is_renewal_failing()).count();
        let (renewed, asked) =
            (now.of("pexpire") - calls.of("pexpire"), now.of("evalsha") - calls.of("evalsha"));
        let mut releasing = JoinSet::new();
        let mut guards = guards.into_iter();
        while guards.len() > 0 {
            let share: Vec<Guard> = guards.by_ref().take(leases.div_ceil(TASKS)).collect();
            releasing.spawn(async move {
                for guard in share {
                    guard.release().await.expect("held");
                }
            });
        }
        releasing.join_all().await;
        Keeping {
            client_percent: cost.client / cost.wall * 100.0,
            server_percent: cost.server / cost.wall * 100.0,
            calls_per_second: asked as f64 / LENGTH.as_secs_f64(),
            leases_per_call: renewed as f64 / asked.max(1) as f64,
            renewed,
            lost,
            at_risk,
        }
    })
}

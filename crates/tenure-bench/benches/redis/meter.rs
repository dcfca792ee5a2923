//! `Meter`: wall time and the processor time of both sides, from one reading to the next; and cores.

use std::time::Duration;

use nix::{
    sched::{CpuSet, sched_setaffinity},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use tenure::backend::{Host, Moment, TokioHost};

use crate::server::Server;

/// Where the server runs.
pub(crate) const SERVER_CORE: usize = 0;
/// Where the client runs if it has a core of its own.
pub(crate) const CLIENT_CORE: usize = 1;

/// Binds this thread, and all that it starts from now on, to a core.
pub(crate) fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core).expect("a core");
    sched_setaffinity(Pid::from_raw(0), &set).expect("two cores that we may use");
}

/// A reading of all clocks.
pub(crate) struct Meter<'a> {
    server: &'a Server,
    begun: Moment,
    client_cpu: Duration,
    server_cpu: Duration,
}

/// What something took, per piece, in µs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) wall: f64,
    pub(crate) client: f64,
    pub(crate) server: f64,
}

impl<'a> Meter<'a> {
    pub(crate) fn start(server: &'a Server) -> Self {
        let server_cpu = server.cpu();
        Self { server, server_cpu, client_cpu: client_cpu(), begun: TokioHost.now() }
    }

    pub(crate) fn begun(&self) -> Moment {
        self.begun
    }

    /// What has passed since the start, divided by `pieces`.
    pub(crate) fn stop(&self, pieces: u64) -> Cost {
        let wall = self.begun.elapsed(TokioHost.now());
        let client = client_cpu() - self.client_cpu;
        let server = self.server.cpu() - self.server_cpu;
        let each = |d: Duration| d.as_secs_f64() * 1e6 / pieces as f64;
        Cost { wall: each(wall), client: each(client), server: each(server) }
    }
}

impl Cost {
    /// Of both sides together: on one core, what a cycle costs on a quiet machine.
    pub(crate) fn both(&self) -> f64 {
        self.client + self.server
    }
}

/// Of all threads of this process.
fn client_cpu() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("a clock of every Linux"))
}

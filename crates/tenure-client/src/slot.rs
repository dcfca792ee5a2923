//! `Slot`: the one place that a handle has among the connections of a server; `Slots`: one for each server of a URL.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{BoxFuture, Host, Moment, locked};
use tokio::sync::oneshot;

use crate::End;

/// The one place that a handle has among the connections of a server.
///
/// The task that has the socket owns it, from before the socket is opened until it is closed. A server that waits for a
/// lock does not notice that its client has closed the socket. So a connection that is left stays until its statement is
/// answered, and has no successor at that server before. [`overdue`](Self::overdue) bounds that.
///
/// # Dropping
/// The place is free: the next connection may be opened.
pub struct Slot {
    server: Arc<ServerSlots>,
    closed: Arc<End>,
}

/// The slots of a handle: one for each server of its URL, so that one that hangs does not keep the handle from the others.
pub struct Slots {
    host: Arc<dyn Host>,
    servers: Mutex<HashMap<String, Arc<ServerSlots>>>,
}

/// The slots that a handle has had at one server, one after the other.
pub(crate) struct ServerSlots {
    host: Arc<dyn Host>,
    /// Of the slot that was taken last.
    last: Mutex<Option<Arc<End>>>,
    stray: Mutex<Option<Stray>>,
}

/// A connection that was closed while a statement was under way: the server may still have it.
#[derive(Clone, Copy)]
struct Stray {
    since: Moment,
    /// How long it counts as there.
    counts: Duration,
}

impl Slot {
    /// For a connection that is no handle's.
    pub fn alone(host: Arc<dyn Host>) -> Self {
        ServerSlots::new(host).take()
    }

    /// Runs a login in a task of its own. A server may go on with one that is given up: until another service has told it
    /// who that is, for example. So the task keeps the place until it is answered, or [`overdue`](Self::overdue).
    ///
    /// `None`: the task was ended with its runtime.
    ///
    /// # Cancel safety
    /// The login is given up.
    pub async fn log_in<T: Send + 'static>(
        self: &Arc<Self>,
        login: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (mut reply, answer) = oneshot::channel();
        let slot = self.clone();
        self.server.host.spawn(Box::pin(async move {
            let given_up = async {
                reply.closed().await;
                slot.overdue().await;
            };
            let answer = tokio::select! {
                biased;
                answer = login => Some(answer),
                () = given_up => None,
            };
            // OK to ignore because a caller that has given up needs no answer.
            let _ = answer.map(|answer| reply.send(answer));
        }));
        answer.await.ok()
    }

    /// Waits as long as the answer may take that a connection which was left still waits for. Then its owner must close
    /// the socket.
    ///
    /// # Timing
    /// A second. But a server that keeps what its clients have closed is not filled: within 10 s after such an end the
    /// next one waits, and each in a row twice as long, 20 s at most.
    ///
    /// # Cancel safety
    /// It was answered in time: nothing is counted.
    pub async fn overdue(&self) {
        let host = &self.server.host;
        host.sleep_until(host.now() + self.server.patience()).await;
        self.server.count_stray();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.closed.set();
    }
}

impl Slots {
    /// No slot is taken.
    pub fn new(host: Arc<dyn Host>) -> Arc<Self> {
        Arc::new(Self { host, servers: Mutex::default() })
    }

    /// Opens a connection to the first of these servers for which `open` succeeds. One that still has an earlier connection
    /// of this handle is passed over, and asked after the others.
    ///
    /// # Errors
    /// The error of the last server. `occupied` is the error of a server that still has the earlier connection.
    ///
    /// # Panics
    /// If there is no server: a bug.
    ///
    /// # Cancel safety
    /// What is being opened is dropped.
    pub async fn first<'a, S: ToString, L, E>(
        &self,
        servers: &'a [S],
        open: impl Fn(&'a S, Slot) -> BoxFuture<'a, Result<L, E>>,
        occupied: impl Fn(&S) -> E,
    ) -> Result<L, E> {
        let (mut later, mut last) = (Vec::new(), None);
        for server in servers {
            let slots = self.of(&server.to_string());
            // With one server there is no other to ask.
            if servers.len() == 1 || !slots.is_vacated_within(SOON).await {
                later.push((server, slots));
                continue;
            }
            match open(server, slots.take()).await {
                Ok(link) => return Ok(link),
                Err(error) => last = Some(error),
            }
        }
        let until = self.host.now() + WAIT;
        for (server, slots) in later {
            let left = self.host.now().elapsed(until);
            last = Some(if slots.is_vacated_within(left).await {
                match open(server, slots.take()).await {
                    Ok(link) => return Ok(link),
                    Err(error) => error,
                }
            } else {
                occupied(server)
            });
        }
        Err(last.expect("BUG: a configuration names a server"))
    }

    fn of(&self, server: &str) -> Arc<ServerSlots> {
        let mut servers = locked(&self.servers);
        servers.entry(server.to_owned()).or_insert_with(|| ServerSlots::new(self.host.clone())).clone()
    }
}

impl ServerSlots {
    pub(crate) fn new(host: Arc<dyn Host>) -> Arc<Self> {
        Arc::new(Self { host, last: Mutex::default(), stray: Mutex::default() })
    }

    /// The next slot. Call [`is_vacated_within`](Self::is_vacated_within) before.
    pub(crate) fn take(self: &Arc<Self>) -> Slot {
        let closed = Arc::<End>::default();
        *locked(&self.last) = Some(closed.clone());
        Slot { server: self.clone(), closed }
    }

    /// Waits until the last connection is closed. False if its server still has it, and may not get another one yet.
    pub(crate) async fn is_vacated_within(&self, wait: Duration) -> bool {
        let Some(closed) = locked(&self.last).clone() else { return true };
        let patience = self.patience() + BLOCKED;
        tokio::select! {
            biased;
            () = closed.wait() => true,
            // If it has passed, the runtime that has the socket is blocked: that one has no second connection.
            () = self.host.sleep_until(self.host.now() + patience.min(wait)) => patience <= wait,
        }
    }

    fn patience(&self) -> Duration {
        let counts_still = |stray: &Stray| stray.counts.saturating_sub(stray.since.elapsed(self.host.now()));
        locked(&self.stray).as_ref().map(counts_still).unwrap_or_default().max(ANSWER)
    }

    fn count_stray(&self) {
        let mut stray = locked(&self.stray);
        let now = self.host.now();
        let in_a_row = stray.filter(|stray| stray.since.elapsed(now) < stray.counts * 2);
        let counts = in_a_row.map_or(STRAY, |stray| (stray.counts * 2).min(LONGEST));
        *stray = Some(Stray { since: now, counts });
    }
}

/// How long the answer may take that a left connection still waits for: a second is how long a statement waits for a lock.
const ANSWER: Duration = Duration::from_secs(1);
/// How long the first connection that was closed without an answer counts as there.
const STRAY: Duration = Duration::from_secs(10);
/// The same of any: a server that is well again is asked this late at most.
const LONGEST: Duration = Duration::from_secs(20);
/// A task that has not closed its socket this long after its time does not run.
const BLOCKED: Duration = Duration::from_millis(100);
/// A connection without a statement under way is closed in this time.
const SOON: Duration = Duration::from_millis(200);
/// After this a caller is told that no other connection is opened.
pub(crate) const WAIT: Duration = Duration::from_secs(2);

//! `Session`: one session with the ensemble, what it has proven, and its nodes.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tenure_core::{Audience, BackendError, Bells, Host, Moment, OwnerId, locked};
use tokio::sync::{Notify, mpsc, oneshot};
use zookeeper_client::{Acls, Client, OneshotWatcher, SessionState};

use crate::{
    config::{Access, Config},
    doubts::Doubts,
    error,
    own_nodes::{Entry, OwnNodes},
    pulse::Pulse,
};

/// A session and its nodes, which vanish with it. Its time-out is what lets leases end when their process is gone.
///
/// # Timing
/// It is asked for with the ttl and some slack (1½ ticks). A quorum write, together with what the [`Pulse`] proved
/// before
/// it, makes belief true: see [`proven`](Self::proven). Its thread beats four times per tick as long as it lives, so
/// that
/// it needs nobody else's runtime (H2.5), and deletes the nodes that nobody renews any more: the ensemble would not.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) bells: Bells,
    /// The time-out that the ensemble gave it.
    span: Duration,
    pulse: Mutex<Pulse>,
    own_nodes: Mutex<OwnNodes>,
    doubts: Mutex<Doubts>,
    used: Mutex<Moment>,
    is_over: AtomicBool,
    /// The pulse or the state changed.
    changed: Notify,
    orders: mpsc::Sender<Order>,
}

/// A message to its thread.
pub(crate) enum Order {
    /// Rings for an owner when something happens to a node.
    Watch(Watch),
    /// Ends it.
    End,
}

/// A waiter watches a node.
pub(crate) struct Watch {
    pub(crate) owner: OwnerId,
    pub(crate) audience: Audience,
    pub(crate) watcher: OneshotWatcher,
    /// Ends the watch.
    pub(crate) end: oneshot::Receiver<()>,
}

/// The settings of a session.
pub(crate) struct Birth {
    pub(crate) client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) bells: Bells,
    /// When it began to connect.
    pub(crate) opened: Moment,
}

impl Session {
    /// With the orders that its thread is to carry out.
    pub(crate) fn new(birth: Birth) -> (Arc<Self>, mpsc::Receiver<Order>) {
        let Birth { client, config, host, bells, opened } = birth;
        let (orders, inbox) = mpsc::channel(ORDERS);
        let session = Self {
            span: client.session_timeout(),
            pulse: Mutex::new(Pulse::new(opened, config.tick)),
            client,
            config,
            bells,
            own_nodes: Mutex::default(),
            doubts: Mutex::default(),
            used: Mutex::new(host.now()),
            host,
            is_over: AtomicBool::new(false),
            changed: Notify::new(),
            orders,
        };
        (Arc::new(session), inbox)
    }

    /// For errors: which servers.
    pub(crate) fn place(&self) -> String {
        self.config.place_name()
    }

    /// The longest ttl for which it can vouch.
    pub(crate) fn longest(&self) -> Duration {
        self.span.saturating_sub(self.config.slack())
    }

    /// Refuses a ttl that is too long for it.
    pub(crate) fn vouches_for(&self, ttl: Duration) -> Result<(), BackendError> {
        if ttl <= self.longest() {
            return Ok(());
        }
        Err(error::too_long(&self.place(), ttl, self.longest(), self.span))
    }

    /// Waits until a quorum write that is sent from now on, and succeeds, shows that the ensemble keeps this session
    /// for the
    /// ttl from `started` at least. Usually that is so at once.
    ///
    /// OK because the write is carried out by a leader that has heard of us at [`Pulse::heard`] or later, and keeps us
    /// for
    /// the span from then: `heard + span ≥ started + ttl` (L1, hazard 58).
    pub(crate) async fn proven(&self, started: Moment, ttl: Duration) -> Result<(), BackendError> {
        self.vouches_for(ttl)?;
        let spare = self.span.saturating_sub(ttl);
        self.until(|session| started.boot <= locked(&session.pulse).heard().boot + spare).await
    }

    /// Waits until it can be asked something.
    pub(crate) async fn connected(&self) -> Result<(), BackendError> {
        self.until(|_| true).await
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) -> Result<(), BackendError> {
        *locked(&self.used) = self.host.now();
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            if self.is_over() {
                return Err(error::over(&self.place()));
            }
            if self.client.state() == SessionState::SyncConnected && is_so(self) {
                return Ok(());
            }
            changed.await;
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        // OK to ignore because a thread that has ended, or has too much to do, finds it out from the flag.
        self.is_over.store(true, Ordering::Release);
        let _ = self.orders.try_send(Order::End);
        self.changed.notify_waiters();
    }

    pub(crate) fn own_nodes(&self) -> MutexGuard<'_, OwnNodes> {
        locked(&self.own_nodes)
    }

    pub(crate) fn doubts(&self) -> MutexGuard<'_, Doubts> {
        locked(&self.doubts)
    }

    /// Does something with an owner's entry, if it is still there.
    pub(crate) fn with_entry<T>(&self, owner: OwnerId, act: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.own_nodes().get(owner).map(act)
    }

    /// Whether it has no nodes and was not used for so long.
    pub(crate) fn is_idle(&self, now: Moment) -> bool {
        self.own_nodes().is_empty() && locked(&self.used).elapsed(now) > IDLE
    }

    pub(crate) fn on_beat(&self, sent: Moment, answered: Moment) {
        locked(&self.pulse).on_beat(sent, answered);
        self.changed.notify_waiters();
    }

    pub(crate) fn on_change(&self) {
        self.changed.notify_waiters();
    }

    /// Tells everybody here to look again: hints may have been missed.
    pub(crate) fn ring_all(&self) {
        let everybody = self.own_nodes().everybody();
        for (audience, owner) in everybody {
            self.bells.ring(audience, owner);
        }
    }

    /// Has the thread wait for what is watched. False if it has too much to do: then nobody waits for it.
    pub(crate) fn watch(&self, watch: Watch) -> bool {
        self.orders.try_send(Order::Watch(watch)).is_ok()
    }

    /// The access rights of the nodes that we make.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.config.access {
            Access::Open => Acls::anyone_all(),
            Access::Creator => Acls::creator_all(),
        }
    }
}

/// Watches that wait to be taken by the thread.
const ORDERS: usize = 1024;
/// After which a session that has no nodes ends. The next claim begins another one.
const IDLE: Duration = Duration::from_secs(60);

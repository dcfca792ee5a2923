//! `SessionPool`: one session for each ttl, but not for too many ttls. A session begins when it is first needed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{Either, join, select},
    stream::FuturesUnordered,
};
use tenure_client::url::shown;
use tenure_core::{BackendError, BoxFuture, Host, Moment, Notifier, OwnerId, Timing, locked};
use tokio::sync::watch;
use zookeeper_client::{Client, Error};

#[cfg(feature = "tls")]
use crate::wire;
use crate::{
    config::Config,
    credentials::Credentials,
    error,
    session::{self, EnsembleSession, NewSession},
    words::{self, NotOne},
};

/// The sessions of one [`ZooKeeper`](crate::ZooKeeper). All its handles share them: a session is what holds
/// the locks.
pub(crate) struct SessionPool {
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) notifier: Notifier,
    slots: Mutex<HashMap<Duration, Slot>>,
}

/// A session that was begun; `None` until it is open or has failed. Its thread keeps it alive.
type Slot = watch::Receiver<Option<Result<Weak<EnsembleSession>, BackendError>>>;

impl SessionPool {
    pub(crate) fn new(config: Config, host: Arc<dyn Host>) -> Self {
        Self { config: Arc::new(config), host, notifier: Notifier::default(), slots: Mutex::default() }
    }

    /// The session for leases of this ttl; for an owner that already has a node, the session of that node.
    ///
    /// # Cancel safety
    /// The session is opened anyway, and the next request uses it.
    pub(crate) async fn of(
        &self,
        ttl: Duration,
        owner: OwnerId,
    ) -> Result<Arc<EnsembleSession>, BackendError> {
        if let Some(session) = self.with(owner).filter(|session| ttl <= session.longest()) {
            return Ok(session);
        }
        let session = self.begun(ttl).await?;
        session.vouches_for(ttl)?;
        Ok(session)
    }

    /// Any session, for a request without a ttl: the longest, which is the last to leave a server that does not answer.
    pub(crate) async fn any(&self) -> Result<Arc<EnsembleSession>, BackendError> {
        match self.living().into_iter().max_by_key(|session| session.longest()) {
            Some(session) => Ok(session),
            None => self.begun(Timing::DEFAULT_TTL).await,
        }
    }

    /// The session that has this owner's node.
    pub(crate) fn with(&self, owner: OwnerId) -> Option<Arc<EnsembleSession>> {
        self.living().into_iter().find(|session| session.with_entry(owner, |_| ()).is_some())
    }

    /// The sessions that exist now.
    pub(crate) fn living(&self) -> Vec<Arc<EnsembleSession>> {
        let slots = locked(&self.slots);
        let begun = slots.values().filter_map(|slot| slot.borrow().as_ref()?.as_ref().ok()?.upgrade());
        begun.filter(|session| !session.is_over()).collect()
    }

    async fn begun(&self, ttl: Duration) -> Result<Arc<EnsembleSession>, BackendError> {
        let mut slot = self.slot(ttl);
        let known = slot.wait_for(Option::is_some).await.ok().and_then(|known| known.clone());
        // Its thread has ended without a result, so no more is known.
        let over = || error::over(&self.config.place_name());
        known.unwrap_or_else(|| Err(over()))?.upgrade().ok_or_else(over)
    }

    fn slot(&self, ttl: Duration) -> Slot {
        let mut slots = locked(&self.slots);
        slots.retain(|_, slot| is_of_use(slot));
        let ttl = served_as(ttl, slots.keys());
        slots.entry(ttl).or_insert_with(|| self.start(ttl)).clone()
    }

    fn start(&self, ttl: Duration) -> Slot {
        let (result, slot) = watch::channel(None);
        let (failed, place) = (result.clone(), self.config.place_name());
        let (config, host, notifier) = (self.config.clone(), self.host.clone(), self.notifier.clone());
        let start = move || -> BoxFuture<'static, ()> {
            Box::pin(async move {
                let credentials = match Credentials::read(&config) {
                    Ok(credentials) => credentials,
                    Err(error) => return drop(result.send(Some(Err(error)))),
                };
                match open(&config, &credentials, &*host, ttl).await {
                    Ok((client, opened)) => {
                        let (session, orders) =
                            EnsembleSession::new(NewSession { client, config, host, notifier, opened });
                        if result.send(Some(Ok(Arc::downgrade(&session)))).is_err() {
                            session.end();
                        }
                        session::live(session, orders).await;
                    }
                    Err(error) => drop(result.send(Some(Err(error)))),
                }
            })
        };
        if let Err(error) = self.host.spawn_apart("tenure-zookeeper", Box::new(start)) {
            let _ = failed.send(Some(Err(error::no_thread(&place, error))));
        }
        slot
    }
}

impl Drop for SessionPool {
    fn drop(&mut self) {
        for session in self.living() {
            session.end();
        }
    }
}

/// Begins a session, and checks at the same time whether the servers of the URL are one ensemble. A server that
/// replaces another one is asked when the next session begins.
///
/// # Errors
/// If one of several servers runs alone, two of them lead, none reports its role, or no session can be opened.
async fn open(
    config: &Config,
    credentials: &Credentials,
    host: &dyn Host,
    ttl: Duration,
) -> Result<(Client, Moment), BackendError> {
    let looking = async {
        match config.hosts.len() {
            1 => Ok(true),
            _ => words::are_one(config, host).await,
        }
    };
    let (begun, is_one) = join(begin(config, credentials, host, ttl), looking).await;
    match (is_one, begun) {
        (Err(NotOne::Alone(server)), _) => Err(error::alone(&config.place_name(), &shown(server))),
        (Err(NotOne::Leaders(one, other)), _) => {
            Err(error::two_lead(&config.place_name(), [one, other].map(shown)))
        }
        (_, Err(error)) => Err(refused(config, host, error).await),
        (Ok(false), Ok(_)) => Err(error::untold(&config.place_name())),
        (Ok(true), Ok(begun)) => Ok(begun),
    }
}

/// Connects, and returns when the attempt began: the first of several attempts that succeeds.
///
/// The driver tries the servers in an order that it chooses, and waits long for one that hangs. A program that has
/// just been started need not: if no answer arrives, another attempt begins next to the first.
async fn begin(
    config: &Config,
    credentials: &Credentials,
    host: &dyn Host,
    ttl: Duration,
) -> Result<(Client, Moment), Error> {
    let attempt =
        |began: Moment| async move { connect(config, credentials, ttl).await.map(|client| (client, began)) };
    let mut tries = FuturesUnordered::from_iter([attempt(host.now())]);
    // Each attempt draws its order: of so many, one begins with a server that answers.
    let mut left = if config.hosts.len() == 1 { 1 } else { 4 * config.hosts.len() };
    loop {
        let silence = host.sleep_until(host.now() + SILENCE);
        let ended = match select(tries.next(), silence).await {
            Either::Left((ended, _)) => ended,
            Either::Right(_) => None,
        };
        match ended {
            Some(Ok(begun)) => return Ok(begun),
            Some(Err(error)) if tries.is_empty() => return Err(error),
            None if left > 1 => {
                left -= 1;
                tries.push(attempt(host.now()));
            }
            Some(Err(_)) | None => {}
        }
    }
}

/// Why no session was opened.
#[cfg_attr(
    not(feature = "tls"),
    allow(clippy::unused_async, unused_variables, reason = "only TLS is asked about")
)]
async fn refused(config: &Config, host: &dyn Host, error: Error) -> BackendError {
    #[cfg(feature = "tls")]
    if matches!(error, Error::NoHosts | Error::Timeout | Error::ConnectionLoss)
        && let Some(refusal) = wire::refusal(config, host).await
    {
        return refusal;
    }
    error::opening(&config.place_name(), error)
}

/// One round through all servers.
async fn connect(config: &Config, credentials: &Credentials, ttl: Duration) -> Result<Client, Error> {
    // A server that is silent for this long is left for another one, early enough to try a renewal again.
    let patience = (ttl / 4).clamp(LEAST_PATIENCE, config.connect_timeout);
    let connector = Client::connector()
        .with_session_timeout(ttl + config.slack())
        .with_connection_timeout(patience)
        .with_fail_eagerly();
    credentials.connect(connector, &config.place_name()).await
}

/// The ttl whose session serves this ttl, next to those that there are. A session costs a thread, and one of the 60
/// connections that a server allows each machine (`maxClientCnxns`). So ttls that few programs use share sessions.
fn served_as<'a>(ttl: Duration, begun: impl Iterator<Item = &'a Duration>) -> Duration {
    let (mut odd, mut is_begun) = (0, false);
    for &other in begun {
        odd += usize::from(rounded(other) != other);
        is_begun |= other == ttl;
    }
    if is_begun || odd < ODD { ttl } else { rounded(ttl) }
}

/// The shortest common ttl that is no shorter. It is less than twice as long, from a second to a minute. A server
/// that does not allow a session of that length grants the longest that it allows, which is enough if the ttl itself
/// is allowed.
fn rounded(ttl: Duration) -> Duration {
    let common = COMMON_MS.iter().map(|&ms| Duration::from_millis(ms));
    common.into_iter().find(|common| ttl <= *common).unwrap_or(ttl)
}

/// True if it is being opened, or is alive.
fn is_of_use(slot: &Slot) -> bool {
    match slot.borrow().as_ref() {
        None => slot.has_changed().is_ok(),
        Some(Ok(session)) => session.upgrade().is_some_and(|session| !session.is_over()),
        Some(Err(_)) => false,
    }
}

/// Ttls that always have a separate session: up to a minute, an hour, a day.
const COMMON_MS: [u64; 23] = [
    250, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 15_000, 20_000, 30_000, 60_000, 120_000, 180_000, 300_000,
    600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000,
];
/// How many other ttls have a separate session at the same time, before further ones are rounded up.
const ODD: usize = 4;
/// How long to wait for an answer before another attempt to connect starts next to the others.
const SILENCE: Duration = Duration::from_millis(150);
const LEAST_PATIENCE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use tenure::backend::TokioHost;
    use tenure_core::{ErrorKind, Outcome, ProcessId};
    use tenure_testkit::zookeeper::ZooKeeperServer;

    use super::*;

    fn secs(secs: &[f64]) -> Vec<Duration> {
        secs.iter().map(|secs| Duration::from_secs_f64(*secs)).collect()
    }

    /// Common ttls and the first few others have sessions of exactly their length: sharing does not delay the notice
    /// of a crash.
    #[test]
    fn few_ttls_are_served_exactly_and_many_share() {
        let mut begun = Vec::new();
        for ttl in secs(&[1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 6.0, 7.0, 8.5, 9.0]) {
            assert_eq!(served_as(ttl, begun.iter()), ttl);
            begun.push(ttl);
        }
        let [common, known, odd, longer] = secs(&[1800.0, 7.0, 7.5, 33.0])[..] else { unreachable!() };
        assert_eq!(served_as(common, begun.iter()), common);
        assert_eq!(served_as(known, begun.iter()), known, "it has one");
        assert_eq!(served_as(odd, begun.iter()), Duration::from_secs(10));
        assert_eq!(served_as(longer, begun.iter()), Duration::from_secs(60));
    }

    /// Otherwise chance would choose the session, and so how long a request waits for a slow server.
    #[tokio::test]
    async fn a_request_without_a_ttl_takes_the_longest() {
        let server = ZooKeeperServer::start();
        for _ in 0..5 {
            let sessions = SessionPool::new(Config::from_url(&server.url("")).unwrap(), Arc::new(TokioHost));
            for ttl in secs(&[2.0, 30.0, 5.0, 10.0]) {
                let owner = OwnerId::from_random(ProcessId::from_random([0; 8]), [1; 16]);
                sessions.of(ttl, owner).await.unwrap();
            }
            assert!(sessions.any().await.unwrap().longest() >= Duration::from_secs(30));
        }
    }

    /// L1: two servers that were started without the lines of an ensemble would each grant the lock to another
    /// client.
    #[tokio::test]
    async fn servers_that_run_alone_are_refused_where_the_url_names_several() {
        let servers = [ZooKeeperServer::start(), ZooKeeperServer::start()];
        let [one, other] = servers.each_ref().map(|server| server.address());
        let url = format!("zookeeper://{one},{other}/tenure");
        let sessions = SessionPool::new(Config::from_url(&url).unwrap(), Arc::new(TokioHost));
        let Err(refused) = sessions.any().await else { panic!("two that are not one") };
        assert_eq!((refused.kind(), refused.outcome()), (ErrorKind::Invalid, Outcome::NotApplied));
        assert!(refused.to_string().contains("runs alone"), "{refused}");
        // One of them is down: the other one is still no ensemble.
        drop(servers);
        let server = ZooKeeperServer::start();
        let url = format!("zookeeper://{},{other}/tenure", server.address());
        let sessions = SessionPool::new(Config::from_url(&url).unwrap(), Arc::new(TokioHost));
        assert_eq!(sessions.any().await.err().map(|refused| refused.kind()), Some(ErrorKind::Invalid));
    }

    #[test]
    fn a_ttl_is_rounded_up_to_no_more_than_twice_itself() {
        assert!(COMMON_MS.is_sorted());
        for ms in (250..=86_400_000).step_by(977) {
            let (ttl, rounded) = (Duration::from_millis(ms), rounded(Duration::from_millis(ms)));
            assert!(ttl <= rounded && rounded <= ttl * 2, "{ttl:?} as {rounded:?}");
        }
        assert_eq!(rounded(Timing::MAX_TTL), Timing::MAX_TTL);
    }
}

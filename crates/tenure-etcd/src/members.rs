//! `Members`: the requests to etcd, one connection to each member, and which member is asked.
//!
//! The failover is done here, because the driver has none (hazard 58). So each request may be carried out twice, and
//! late: `backend` shows why that does no harm.

use std::{
    fs,
    future::Future,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, Identity, LeaseGrantOptions,
    PutOptions, ResponseHeader, SortOrder, SortTarget, TlsOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_client::{
    Connections, End, Link, tls,
    url::{HostPort, shown},
};
use tenure_core::{BackendError, ErrorKind, Host, Moment, Outcome, locked};
use tokio::sync::watch;

use crate::{
    config::Config,
    error::{self, MemberRetry},
    queue::KeyQueue,
};

/// The members of the cluster as one handle sees them.
pub(crate) struct Members {
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    watermark: Arc<Watermark>,
    members: Vec<MemberChannel>,
    /// Which one is asked first: the one that answered last.
    current: Arc<watch::Sender<usize>>,
    /// A member has answered.
    is_known: AtomicBool,
}

impl Members {
    pub(crate) fn new(config: Arc<Config>, host: Arc<dyn Host>, watermark: Arc<Watermark>) -> Self {
        Self::asking(config, host, watermark, Arc::new(watch::Sender::new(0)))
    }

    /// The same members over separate connections. Both ask the same member first.
    pub(crate) fn beside(&self) -> Self {
        Self::asking(self.config.clone(), self.host.clone(), self.watermark.clone(), self.current.clone())
    }

    fn asking(
        config: Arc<Config>,
        host: Arc<dyn Host>,
        watermark: Arc<Watermark>,
        current: Arc<watch::Sender<usize>>,
    ) -> Self {
        let patience = LOGIN * config.connect_timeout.max(config.response_timeout);
        let member = |member: &HostPort| {
            let address = shown(member);
            let (for_config, to, clock) = (config.clone(), address.clone(), host.clone());
            let open =
                move || Box::pin(in_time(open(for_config.clone(), to.clone()), clock.clone(), patience)) as _;
            MemberChannel {
                address,
                channels: Connections::new(host.clone(), open)
                    .easing(|(retry, error)| (retry, error.after_success())),
            }
        };
        let members = config.members.iter().map(member).collect();
        let is_known = AtomicBool::new(false);
        Self { config, host, watermark, members, current, is_known }
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn place(&self) -> String {
        self.config.place_name()
    }

    pub(crate) fn address(&self, index: usize) -> &str {
        &self.members[index].address
    }

    /// Follows which member is asked first.
    pub(crate) fn follow(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// Passes over a member that does not serve, unless another one is the current one by now.
    pub(crate) fn pass_over(&self, index: usize) {
        let next = (index + 1) % self.len();
        self.current.send_if_modified(|current| {
            let is_it = *current == index && next != index;
            if is_it {
                *current = next;
            }
            is_it
        });
    }

    fn choose(&self, index: usize) {
        self.is_known.store(true, Ordering::Relaxed);
        self.current.send_if_modified(|current| std::mem::replace(current, index) != index);
    }

    /// How long a member may be silent before the next one is asked too. The engine gives the verb up after a sixth
    /// of this ttl: all members must get their chance in that time.
    pub(crate) fn patience(&self, ttl: Duration) -> Duration {
        let share = ttl / 6 / u32::try_from(self.len()).unwrap_or(u32::MAX).max(1);
        self.config.response_timeout.min(share.max(Duration::from_millis(50)))
    }

    /// An id that no lease has had.
    pub(crate) fn fresh_id(&self) -> i64 {
        let mut bits = [0; 8];
        self.host.random(&mut bits);
        (i64::from_ne_bytes(bits) & i64::MAX).max(1)
    }

    /// Requests a lease of this id, which no lease has had before, through the quorum. Returns its length in seconds
    /// from now.
    pub(crate) async fn grant_lease(
        &self,
        id: i64,
        seconds: i64,
        patience: Duration,
    ) -> Result<i64, BackendError> {
        let request = async |mut client: Client| {
            let options = LeaseGrantOptions::new().with_id(id);
            match client.lease_grant(seconds, Some(options)).await {
                Ok(granted) => Ok(granted.ttl()),
                // OK because no other request has this id: another member has granted the lease to the same request
                // before.
                Err(error) if error::is_known_lease(&error) => Ok(seconds),
                Err(error) => Err(error),
            }
        };
        Ok(self.ask(patience, request).await?.value)
    }

    /// Keeps a lease alive; `None` if there is no such lease. The leader does that alone: a caller that must be
    /// certain compares the term with that of a later linearizable read.
    ///
    /// It is kept alive twice, because the driver does not pass on the first answer.
    pub(crate) async fn keep_alive(&self, id: i64, patience: Duration) -> Result<Option<Kept>, BackendError> {
        let request = async |mut client: Client| {
            let (mut keeper, mut stream) = match client.lease_keep_alive(id).await {
                Ok(both) => both,
                Err(error) if error::is_no_lease(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            keeper.keep_alive().await?;
            let kept = stream.message().await?;
            let kept = kept.ok_or_else(|| Error::LeaseKeepAliveError("the stream ended".into()))?;
            let (_, term) = header(kept.header());
            Ok((kept.ttl() > 0).then_some(Kept { seconds: kept.ttl(), term }))
        };
        Ok(self.ask(patience, request).await?.value)
    }

    /// Keeps a place alive, of which no caller has to be certain; false if there is no such lease.
    pub(crate) async fn keep_place(&self, id: i64, patience: Duration) -> Result<bool, BackendError> {
        let request = async |mut client: Client| match client.lease_keep_alive(id).await {
            Ok(_) => Ok(true),
            Err(error) if error::is_no_lease(&error) => Ok(false),
            Err(error) => Err(error),
        };
        Ok(self.ask(patience, request).await?.value)
    }

    /// Ends a lease, and with it the keys that are on it; false if there is no such lease.
    pub(crate) async fn revoke(
        &self,
        id: i64,
        patience: Duration,
    ) -> Result<MemberAnswer<bool>, BackendError> {
        let request = async |mut client: Client| match client.lease_revoke(id).await {
            Ok(_) => Ok(true),
            Err(error) if error::is_no_lease(&error) => Ok(false),
            Err(error) => Err(error),
        };
        self.ask(patience, request).await
    }

    /// The queue of a lock, linearizable.
    pub(crate) async fn queue(&self, folder: &str, patience: Duration) -> Result<KeyQueue, BackendError> {
        let request = async |mut client: Client| client.get(folder, Some(in_order())).await;
        let before = self.watermark.now();
        let read = self.ask(patience, request).await?.value;
        self.watermark.judge(before, read.header())?;
        KeyQueue::read(folder, read.kvs(), header(read.header()).0)
    }

    /// Writes the key on a lease, if it was not written since it was read, and reads the queue in the same step. The
    /// write was done, by this request or its copy at another member, if the key is on that lease now. `None` if
    /// there is no such lease.
    pub(crate) async fn change(
        &self,
        change: &KeyChange<'_>,
        patience: Duration,
    ) -> Result<Option<KeyQueue>, BackendError> {
        let request = async |mut client: Client| {
            let as_expected = Compare::mod_revision(change.key, CompareOp::Equal, change.modified);
            let put = PutOptions::new().with_lease(change.lease);
            let queue = || TxnOp::get(change.folder, Some(in_order()));
            let txn = Txn::new()
                .when([as_expected])
                .and_then([TxnOp::put(change.key, change.value, Some(put)), queue()])
                .or_else([queue()]);
            match client.txn(txn).await {
                Ok(done) => Ok(Some(done)),
                Err(error) if error::is_no_lease(&error) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let before = self.watermark.now();
        let Some(done) = self.ask(patience, request).await?.value else { return Ok(None) };
        self.watermark.judge(before, done.header())?;
        queue_of(change.folder, &done).map(Some)
    }

    /// Deletes the key if it is still the one of this create revision.
    pub(crate) async fn delete(
        &self,
        key: &[u8],
        created: i64,
        patience: Duration,
    ) -> Result<(), BackendError> {
        let request = async |mut client: Client| {
            let same = Compare::create_revision(key, CompareOp::Equal, created);
            client.txn(Txn::new().when([same]).and_then([TxnOp::delete(key, None)])).await
        };
        self.ask(patience, request).await.map(drop)
    }

    /// Seconds that a lease has left, rounded down; `None` if there is no such lease.
    pub(crate) async fn time_left(
        &self,
        lease: i64,
        patience: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        let request = async |mut client: Client| client.lease_time_to_live(lease, None).await;
        let left = self.ask(patience, request).await?.value.ttl();
        Ok(u64::try_from(left).ok().map(Duration::from_secs))
    }

    /// Asks the current member; the next one too if it fails or is silent for `patience`; and so on. Each is asked
    /// once, and again only while others are silent. The first answer counts. Asking twice must do no harm: `backend`
    /// shows why it does none.
    ///
    /// # Errors
    /// The last refusal; of unknown outcome if any request may have been carried out (L9).
    ///
    /// # Cancel safety
    /// A member that was silent for too long is passed over by the next request.
    pub(crate) async fn ask<T, F>(
        &self,
        patience: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<MemberAnswer<T>, BackendError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut round = AskRound::begin(self, patience);
        // Requests that a member may have. One that still connects has sent nothing yet.
        let sent = AtomicUsize::new(0);
        let mut pending = FuturesUnordered::new();
        let mut refused: Option<BackendError> = None;
        let mut may_be_done = false;
        if let Some(index) = round.next() {
            pending.push(self.ask_one(index, &request, &sent));
        }
        loop {
            let mut silence = self.host.sleep_until(self.host.now() + round.patience());
            let index = tokio::select! {
                biased;
                Some(result) = pending.next() => match result {
                    Ok((index, value)) => {
                        round.has_answered(index);
                        self.choose(index);
                        return Ok(MemberAnswer { value, was_repeated: round.asked() > 1 });
                    }
                    Err(MemberRefusal { index, retry, error }) => {
                        round.has_answered(index);
                        let is_open = may_be_done || sent.load(Ordering::Relaxed) > 0;
                        // A user that is denied at the second try is denied at all members.
                        let is_denied = retry == MemberRetry::Same && error.kind() == ErrorKind::Denied;
                        if retry == MemberRetry::No || is_denied {
                            return Err(if is_open { error.of_unknown_outcome() } else { error });
                        }
                        may_be_done |= error.outcome() == Outcome::Unknown;
                        self.pass_over(index);
                        refused = Some(error);
                        round.next()
                    }
                },
                () = &mut silence => match round.again() {
                    None => return Err(error::no_answer(&self.place(), round.waited())),
                    next => next,
                },
            };
            match index {
                Some(index) => pending.push(self.ask_one(index, &request, &sent)),
                None if pending.is_empty() => {
                    let error = refused.unwrap_or_else(|| error::no_answer(&self.place(), patience));
                    return Err(if may_be_done { error.of_unknown_outcome() } else { error });
                }
                None => {}
            }
        }
    }

    /// Asks one member; twice if its error shows that this may help.
    async fn ask_one<T, F>(
        &self,
        index: usize,
        request: &impl Fn(Client) -> F,
        sent: &AtomicUsize,
    ) -> Result<(usize, T), MemberRefusal>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut is_first = true;
        loop {
            let channel = self.members[index].channels.get().await;
            let channel = channel.map_err(|(retry, error)| MemberRefusal { index, retry, error })?;
            sent.fetch_add(1, Ordering::Relaxed);
            let answer = request(channel.client.clone()).await;
            sent.fetch_sub(1, Ordering::Relaxed);
            let error = match answer {
                Ok(value) => return Ok((index, value)),
                Err(error) => error,
            };
            let (retry, error) = error::asked(&self.config, self.address(index), error);
            if retry == MemberRetry::OtherConnection {
                channel.end.set();
            }
            if retry != MemberRetry::Same || !is_first {
                return Err(MemberRefusal { index, retry, error });
            }
            channel.end.set();
            is_first = false;
        }
    }

    /// Asks this member and no other.
    pub(crate) async fn ask_only<T, F>(
        &self,
        index: usize,
        request: impl Fn(Client) -> F,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let patience = self.config.response_timeout.max(self.config.connect_timeout);
        let sent = AtomicUsize::new(0);
        tokio::select! {
            biased;
            answer = self.ask_one(index, &request, &sent) => match answer {
                Ok((_, value)) => Ok(value),
                Err(refusal) => Err(refusal.error),
            },
            () = self.host.sleep_until(self.host.now() + patience) => {
                Err(error::no_answer(self.address(index), patience))
            }
        }
    }

    /// A channel to this member; the driver connects when it is first used, but authenticates immediately.
    pub(crate) async fn client(&self, index: usize) -> Result<Client, BackendError> {
        let channel = self.members[index].channels.get().await;
        channel.map(|channel| channel.client.clone()).map_err(|(_, error)| error)
    }

    /// Gives the channel up: the next request opens a new one.
    pub(crate) fn leave(&self, index: usize) {
        if let Some(channel) = self.members[index].channels.current() {
            channel.end.set();
        }
    }
}

/// The answer of the first member that answered.
pub(crate) struct MemberAnswer<T> {
    pub(crate) value: T,
    /// It was sent more than once: the effect may be that of an earlier request.
    pub(crate) was_repeated: bool,
}

/// A lease that was kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// How long it lasts from when the request was sent.
    pub(crate) seconds: i64,
    /// The term of the member that was asked, from before it kept the lease alive or asked its leader to.
    pub(crate) term: u64,
}

/// A change of a lock's queue: the condition, the write, and the queue to read in the same transaction.
pub(crate) struct KeyChange<'a> {
    pub(crate) folder: &'a str,
    pub(crate) key: &'a [u8],
    /// The modify revision that the key must have; 0: it must not be there.
    pub(crate) modified: i64,
    pub(crate) value: &'a [u8],
    pub(crate) lease: i64,
}

fn header(header: Option<&ResponseHeader>) -> (i64, u64) {
    header.map_or((0, 0), |header| (header.revision(), header.raft_term()))
}

fn in_order() -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend)
}

/// The queue is in the last answer of the transaction.
fn queue_of(folder: &str, done: &TxnResponse) -> Result<KeyQueue, BackendError> {
    let (revision, _) = header(done.header());
    let answers = done.op_responses();
    let Some(TxnOpResponse::Get(read)) = answers.last() else {
        return KeyQueue::read(folder, &[], revision);
    };
    KeyQueue::read(folder, read.kvs(), revision)
}

/// At least 1: etcd counts in seconds.
pub(crate) fn whole_seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX).max(1)
}

/// A member that did not carry out the request.
struct MemberRefusal {
    index: usize,
    retry: MemberRetry,
    error: BackendError,
}

/// One request on its way from member to member. When dropped, it passes over the members that were silent for too
/// long.
struct AskRound<'a> {
    members: &'a Members,
    patience: Duration,
    first: usize,
    began: Moment,
    /// The members that were asked and have not answered, and since when.
    silent: Vec<(usize, Moment)>,
    asked: usize,
}

impl<'a> AskRound<'a> {
    fn begin(members: &'a Members, patience: Duration) -> Self {
        let first = *members.current.borrow();
        let began = members.host.now();
        let is_known = members.is_known.load(Ordering::Relaxed);
        let waits = is_known || members.len() == 1;
        let patience = if waits { patience } else { patience.min(FIRST_PATIENCE) };
        Self { members, patience, first, began, silent: Vec::new(), asked: 0 }
    }

    /// The member to ask next because another one refused; none twice.
    fn next(&mut self) -> Option<usize> {
        if self.asked < self.members.len() { self.again() } else { None }
    }

    /// The member to ask next after all were silent. A leader that died loses its requests, and the members that
    /// passed them on get no answer. So all are asked again, more slowly each time.
    fn again(&mut self) -> Option<usize> {
        if self.asked >= self.members.len() * ROUNDS {
            return None;
        }
        let index = (self.first + self.asked) % self.members.len();
        self.asked += 1;
        self.silent.push((index, self.members.host.now()));
        Some(index)
    }

    fn asked(&self) -> usize {
        self.asked
    }

    /// How long until the next one is asked; the last one may take longer.
    fn patience(&self) -> Duration {
        let rounds = self.asked.saturating_sub(1) / self.members.len();
        match self.asked < self.members.len() * ROUNDS {
            true => self.patience * (1 << rounds),
            false => PATIENCE_MAX.max(self.patience),
        }
    }

    fn waited(&self) -> Duration {
        self.began.elapsed(self.members.host.now())
    }

    fn has_answered(&mut self, index: usize) {
        self.silent.retain(|(silent, _)| *silent != index);
    }
}

impl Drop for AskRound<'_> {
    fn drop(&mut self) {
        let now = self.members.host.now();
        for (index, since) in &self.silent {
            if since.elapsed(now) >= self.patience {
                // If this member hangs, the next request does not hang with it.
                self.members.leave(*index);
                self.members.pass_over(*index);
            }
        }
    }
}

/// The latest revision that any handle of this process has seen.
#[derive(Debug, Default)]
pub(crate) struct Watermark(Mutex<Option<ClusterRevision>>);

impl Watermark {
    /// The watermark before a request is sent: no answer through the quorum may be older.
    fn now(&self) -> Option<ClusterRevision> {
        *self.latest()
    }

    /// Judges an answer through the quorum to a request that was sent when this was known.
    ///
    /// # Errors
    /// `Corrupt` if the cluster was restored to an earlier state, where tokens would repeat (L2), or is another one,
    /// which does not know the holder (L1).
    fn judge(
        &self,
        before: Option<ClusterRevision>,
        header: Option<&ResponseHeader>,
    ) -> Result<(), BackendError> {
        let Some(header) = header else { return Ok(()) };
        let seen = ClusterRevision { cluster: header.cluster_id(), revision: header.revision() };
        match before {
            Some(before) if before.cluster != seen.cluster => return Err(error::another_cluster()),
            Some(before) if before.revision > seen.revision => return Err(error::put_back()),
            _ => {}
        }
        let mut latest = self.latest();
        let is_later = |latest: ClusterRevision| latest.revision < seen.revision;
        if latest.is_none_or(is_later) {
            *latest = Some(seen);
        }
        Ok(())
    }

    fn latest(&self) -> MutexGuard<'_, Option<ClusterRevision>> {
        // OK because no code that can panic runs while it is locked.
        locked(&self.0)
    }
}

/// A cluster at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClusterRevision {
    cluster: u64,
    revision: i64,
}

struct MemberChannel {
    address: String,
    channels: Connections<Channel, (MemberRetry, BackendError)>,
}

/// A driver's channel, which reconnects by itself until it is left.
struct Channel {
    client: Client,
    end: End,
}

impl Link for Channel {
    fn is_usable(&self) -> bool {
        !self.end.is_over()
    }

    fn on_left(&self) {}
}

async fn open(config: Arc<Config>, address: String) -> Result<Channel, (MemberRetry, BackendError)> {
    let options = options(&config).map_err(|error| (MemberRetry::No, error))?;
    let scheme = if config.tls { "https" } else { "http" };
    let client = Client::connect([format!("{scheme}://{address}")], Some(options)).await;
    let client = client.map_err(|error| error::connecting(&config, &address, error))?;
    Ok(Channel { client, end: End::default() })
}

fn options(config: &Config) -> Result<ConnectOptions, BackendError> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(config.connect_timeout)
        .with_keep_alive(PING.0, PING.1)
        .with_keep_alive_while_idle(true)
        .with_auto_token_refresh(true);
    if let Some((user, password)) = config.login.as_ref().and_then(|login| login.whole().ok()) {
        options = options.with_user(user, password.now()?);
    }
    match &config.ca {
        Some(ca) if config.tls => Ok(options.with_tls(tls_options(ca, config)?)),
        _ => Ok(options),
    }
}

fn tls_options(path: &Path, config: &Config) -> Result<TlsOptions, BackendError> {
    let (read, identity) =
        (|path| fs::read(path).map_err(|error| error::unreadable(path, error)), config.identity()?);
    // The driver does not report which file is wrong.
    tls::believing(Some(path), "ca", identity)?;
    let options = TlsOptions::new().ca_certificate(Certificate::from_pem(read(path)?));
    let Some((cert, key)) = identity else { return Ok(options) };
    Ok(options.identity(Identity::from_pem(read(cert)?, read(key)?)))
}

/// Gives up a login that is not answered in time, so that it delays no request. No request was sent.
async fn in_time<T>(
    opening: impl Future<Output = Result<T, (MemberRetry, BackendError)>>,
    host: Arc<dyn Host>,
    patience: Duration,
) -> Result<T, (MemberRetry, BackendError)> {
    tokio::select! {
        biased;
        opened = opening => opened,
        () = host.sleep_until(host.now() + patience) => Err((MemberRetry::Other, error::no_login(patience))),
    }
}

/// How long the last member that can be asked may take: by then a cluster has a new leader, or reports that it has
/// none.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// How long a member may be silent before any member has answered: a program that has just been started need not wait
/// for one that hangs while the others serve.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);

/// How often all members are asked while they are silent.
const ROUNDS: usize = 3;

/// How many timeouts a login may take: etcd hashes a password slowly on purpose.
const LOGIN: u32 = 4;

/// The driver pings a connection this long after the last message, and gives it up this long after the ping. A member
/// refuses pings more often than every 5 s.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(3));

//! How plain claims and releases are sent over one connection: alone while few are in flight, else in one script with those
//! that are ready at the same time.
//!
//! The call of a script costs a server more than what the script does for one lock: with many requests in flight, that is
//! most of the server's work. A batch leaves when all requests that are ready have joined; no request waits for others to
//! become ready (`docs/decisions/redis-scripts.md`).
//!
//! In the order in which a request passes them: [`Batcher::claim`], the queue of what is ready, the task that empties it,
//! one batch.

use std::{
    future::poll_fn,
    mem,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tenure_core::{Asker, BackendError, Host, Moment, Outcome, locked};
use tokio::sync::{Notify, oneshot};

use crate::{
    connection::Connection,
    error,
    gate::GateName,
    keys::{Counting, Keys},
    script::{ClaimReply, Reply, Script, number},
    shared::RedisShared,
};

/// Up to this many requests in flight are sent one by one: a batch would cost them more than it saves.
const FEW: usize = 4;

/// The most requests in one script: the server does nothing else while it runs.
const MOST: usize = 32;

/// Sends plain claims and releases over one connection; nothing more once it is dropped.
pub(crate) struct Batcher {
    connection: Arc<Connection>,
    shared: Arc<RedisShared>,
    queue: Arc<BatchQueue>,
}

/// A request of the plain path.
pub(crate) enum PlainRequest {
    Claim(ClaimRequest),
    Release(ReleaseRequest),
}

/// The reply of a script to a plain request.
pub(crate) enum PlainReply {
    Claim(ClaimReply),
    Release { is_released: bool },
}

/// A claim in exclusive mode.
pub(crate) struct ClaimRequest {
    pub(crate) asker: Asker,
    pub(crate) keys: Keys,
    pub(crate) gate: Arc<GateName>,
    pub(crate) owner: OwnerText,
    /// `:since:label`
    pub(crate) tail: String,
    pub(crate) ttl_ms: u64,
    /// How many tokens at most.
    pub(crate) block: u32,
}

/// A release of a lock that is held alone.
pub(crate) struct ReleaseRequest {
    pub(crate) lock: String,
    pub(crate) owner: OwnerText,
}

/// An owner, as 48 hex digits.
type OwnerText = [u8; 48];

impl Batcher {
    /// Its task runs in the runtime that has begun the driver of this connection: no caller's runtime delays
    /// a request.
    pub(crate) fn new(connection: Arc<Connection>, shared: Arc<RedisShared>) -> Self {
        // The keys of a Cluster's locks are on several nodes.
        let queue = Arc::new(BatchQueue::new(!shared.config.is_cluster()));
        if !shared.config.is_cluster() {
            let (connection, shared) = (connection.clone(), shared.clone());
            let sender = BatchSender { connection, shared, queue: queue.clone() };
            sender.shared.host.clone().spawn(Box::pin(sender.run()));
        }
        Self { connection, shared, queue }
    }

    pub(crate) async fn claim(&self, request: ClaimRequest) -> Result<ClaimReply, BackendError> {
        match self.send(PlainRequest::Claim(request)).await? {
            PlainReply::Claim(reply) => Ok(reply),
            PlainReply::Release { .. } => unreachable!("BUG: a claim was answered as a release"),
        }
    }

    /// False if the plain path does not suffice, and then nothing was changed.
    pub(crate) async fn release(&self, request: ReleaseRequest) -> Result<bool, BackendError> {
        match self.send(PlainRequest::Release(request)).await? {
            PlainReply::Release { is_released } => Ok(is_released),
            PlainReply::Claim(_) => unreachable!("BUG: a release was answered as a claim"),
        }
    }

    /// Alone while few are in flight, else with those that are ready at the same time.
    async fn send(&self, request: PlainRequest) -> Result<PlainReply, BackendError> {
        let Self { connection, shared, queue } = self;
        if let Some(_in_flight) = queue.start_alone() {
            return request.send_alone(connection, shared).await;
        }
        if queue.is_stuck(&*shared.host, shared.config.response_timeout) {
            self.end();
        }
        let replied = queue.join(request, &*shared.host);
        replied.await.unwrap_or_else(|_| {
            self.end();
            Err(error::unsent(&connection.place))
        })
    }

    /// The connection is not used any more: callers whose requests wait here ask again over the next one.
    pub(crate) fn end(&self) {
        self.connection.on_left();
        self.queue.end();
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.queue.end();
    }
}

impl PlainRequest {
    async fn send_alone(
        &self,
        connection: &Connection,
        shared: &RedisShared,
    ) -> Result<PlainReply, BackendError> {
        let (script, call) = match self {
            Self::Claim(request) => {
                let script = &shared.scripts.acquire;
                let mut call = request.keys.plain(|keys| script.call(keys));
                call.arg(request.gate.as_str())
                    .arg(&request.owner[..])
                    .arg(&request.tail)
                    .arg(request.ttl_ms);
                call.arg(shared.known_through(&request.gate));
                if request.block > 1 {
                    call.arg(request.block);
                }
                (script, call)
            }
            Self::Release(request) => {
                let script = &shared.scripts.release;
                let mut call = script.call(&[&request.lock]);
                call.arg(&request.owner[..]);
                (script, call)
            }
        };
        let answer = connection.ask(script, &call).await?;
        let reply = match self {
            Self::Claim(_) => ClaimReply::of_plain(answer).map(PlainReply::Claim),
            Self::Release(_) => number(&answer).map(PlainReply::release),
        };
        reply.ok_or_else(|| error::unreadable(&connection.place, self.what()))
    }

    /// For messages.
    fn what(&self) -> &'static str {
        match self {
            Self::Claim(_) => "a claim",
            Self::Release(_) => "a release",
        }
    }
}

impl PlainReply {
    fn release(number: i64) -> Self {
        Self::Release { is_released: number == 1 }
    }
}

/// A request that waits for the next batch, and where its reply goes.
struct ReadyRequest {
    request: PlainRequest,
    reply_to: oneshot::Sender<Result<PlainReply, BackendError>>,
}

impl ReadyRequest {
    fn claim(&self) -> Option<&ClaimRequest> {
        if let PlainRequest::Claim(claim) = &self.request { Some(claim) } else { None }
    }

    fn release(&self) -> Option<&ReleaseRequest> {
        if let PlainRequest::Release(release) = &self.request { Some(release) } else { None }
    }

    fn gate(&self) -> Option<&GateName> {
        self.claim().map(|claim| &*claim.gate)
    }

    /// Fails for a claim that was cancelled.
    fn must_be_wanted(&self) -> Result<(), BackendError> {
        self.claim().map_or(Ok(()), |claim| claim.asker.must_be_there())
    }

    /// Sends what a batch left undone, unless the caller was dropped in the meantime.
    async fn send_alone(self, connection: &Connection, shared: &RedisShared) {
        if self.reply_to.is_closed() {
            return;
        }
        let reply = match self.must_be_wanted() {
            Ok(()) => self.request.send_alone(connection, shared).await,
            Err(cancelled) => Err(cancelled),
        };
        self.answer(reply);
    }

    fn answer(self, reply: Result<PlainReply, BackendError>) {
        // OK to ignore: a caller that was dropped needs no reply. The engine drops none that may be granted
        // something.
        let _ = self.reply_to.send(reply);
    }
}

/// Requests that wait for the next batch, and how many are in flight.
struct BatchQueue {
    state: Mutex<QueueState>,
    /// A request is ready, or nothing is sent any more.
    changed: Notify,
}

struct QueueState {
    /// In the order in which they came.
    claims: Vec<ReadyRequest>,
    releases: Vec<ReadyRequest>,
    /// Since when a request waits for a batch.
    since: Option<Moment>,
    in_flight: usize,
    /// Each request is sent alone.
    is_refused: bool,
    is_over: bool,
}

impl QueueState {
    fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.releases.is_empty()
    }
}

/// Requests that are counted for as long as it lives.
struct InFlightCount<'a>(&'a BatchQueue, usize);

impl Drop for InFlightCount<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).in_flight -= self.1;
    }
}

impl BatchQueue {
    /// For a server that can run many requests in one script, or not.
    fn new(can_do_many: bool) -> Self {
        let state = QueueState {
            claims: Vec::new(),
            releases: Vec::new(),
            since: None,
            in_flight: 0,
            is_refused: !can_do_many,
            is_over: false,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Counts a request that may be sent by itself; none if it has to join a batch.
    fn start_alone(&self) -> Option<InFlightCount<'_>> {
        let mut state = locked(&self.state);
        let is_alone = state.is_refused || state.is_over || state.is_empty() && state.in_flight < FEW;
        is_alone.then(|| {
            state.in_flight += 1;
            InFlightCount(self, 1)
        })
    }

    fn start_batch(&self, count: usize) -> InFlightCount<'_> {
        locked(&self.state).in_flight += count;
        InFlightCount(self, count)
    }

    /// From here on each request is sent alone.
    fn refuse(&self) {
        locked(&self.state).is_refused = true;
    }

    /// A request has waited for longer than `limit`: the runtime of the sender is stuck.
    fn is_stuck(&self, clock: &dyn Host, limit: Duration) -> bool {
        locked(&self.state).since.is_some_and(|since| since.elapsed(clock.now()) > limit)
    }

    /// Adds a request to the next batch; the caller waits for its reply, with its own timeout.
    fn join(
        &self,
        request: PlainRequest,
        clock: &dyn Host,
    ) -> oneshot::Receiver<Result<PlainReply, BackendError>> {
        let (reply_to, replied) = oneshot::channel();
        let mut state = locked(&self.state);
        // After the end the receiver reports immediately that nothing was sent.
        if !state.is_over {
            if state.is_empty() {
                self.changed.notify_one();
            }
            let queue = match request {
                PlainRequest::Claim(_) => &mut state.claims,
                PlainRequest::Release(_) => &mut state.releases,
            };
            queue.push(ReadyRequest { request, reply_to });
            state.since.get_or_insert_with(|| clock.now());
        }
        replied
    }

    /// Sends nothing more; every receiver that waits is notified.
    fn end(&self) {
        let mut state = locked(&self.state);
        state.is_over = true;
        state.since = None;
        let ready = (mem::take(&mut state.claims), mem::take(&mut state.releases));
        drop(state);
        drop(ready);
        self.changed.notify_one();
    }

    /// Waits until a request is ready; false after the end.
    async fn is_ready(&self) -> bool {
        while !self.has_changed() {
            self.changed.notified().await;
        }
        !locked(&self.state).is_over
    }

    fn has_changed(&self) -> bool {
        let state = locked(&self.state);
        state.is_over || !state.is_empty()
    }

    /// Takes the requests that are ready, as many as one script of each kind holds; each batch is one script.
    /// Releases first: a claim may wait for one. A claim that was cancelled is not sent.
    fn next(&self) -> Vec<Vec<ReadyRequest>> {
        let mut state = locked(&self.state);
        let (claims, releases) = (first(&mut state.claims), first(&mut state.releases));
        state.since = None;
        drop(state);
        let mut batches = Vec::new();
        if !releases.is_empty() {
            batches.push(releases);
        }
        for claim in claims {
            if let Err(cancelled) = claim.must_be_wanted() {
                claim.answer(Err(cancelled));
                continue;
            }
            match batches.last_mut() {
                Some(batch) if batch[0].gate() == claim.gate() => batch.push(claim),
                _ => batches.push(vec![claim]),
            }
        }
        batches
    }
}

/// Takes as many as one script holds.
fn first<T>(all: &mut Vec<T>) -> Vec<T> {
    let most = all.len().min(MOST);
    let rest = all.split_off(most);
    mem::replace(all, rest)
}

/// Empties the queue.
struct BatchSender {
    connection: Arc<Connection>,
    shared: Arc<RedisShared>,
    queue: Arc<BatchQueue>,
}

impl Drop for BatchSender {
    /// Even if its runtime ends before its first poll.
    fn drop(&mut self) {
        self.queue.end();
    }
}

impl BatchSender {
    /// Runs until the connection ends, or has no user any more.
    async fn run(self) {
        let Self { connection, shared, queue } = &self;
        loop {
            let is_ready = tokio::select! {
                biased;
                is_ready = queue.is_ready() => is_ready,
                () = connection.end.wait() => false,
            };
            if !is_ready {
                return;
            }
            // All requests that are ready now join, while the server works on the last batch.
            yield_to_others().await;
            for batch in queue.next() {
                let mut sending = Box::pin(send(batch, connection.clone(), shared.clone(), queue.clone()));
                let is_answered = poll_fn(|task| Poll::Ready(sending.as_mut().poll(task).is_ready())).await;
                // A separate task reads the answer, even while more requests come.
                if !is_answered {
                    shared.host.spawn(sending);
                }
            }
        }
    }
}

/// Lets the tasks run that are ready now, such as the driver. (tokio's `yield_now` would wait until no task
/// is ready.)
async fn yield_to_others() {
    let mut is_behind = false;
    poll_fn(|task| {
        if mem::replace(&mut is_behind, true) {
            return Poll::Ready(());
        }
        task.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Sends one batch and answers each of its requests.
async fn send(
    mut batch: Vec<ReadyRequest>,
    connection: Arc<Connection>,
    shared: Arc<RedisShared>,
    queue: Arc<BatchQueue>,
) {
    let _in_flight = queue.start_batch(batch.len());
    if batch.len() == 1 {
        let Some(only) = batch.pop() else { return };
        let reply = only.request.send_alone(&connection, &shared).await;
        return only.answer(reply);
    }
    let (script, call) = call_for_many(&batch, &shared);
    let replies = match connection.ask(script, &call).await {
        Ok(answer) => replies_of_many(&batch, answer)
            .ok_or_else(|| error::unreadable(&connection.place, batch[0].request.what())),
        // The cause may be one of them, or a missing right that only the script for many needs.
        Err(error) if error.outcome() == Outcome::NotApplied => {
            if !error.kind().is_transient() {
                tracing::debug!(place = connection.place, %error, "from here on each request goes alone");
                queue.refuse();
            }
            Ok(batch.iter().map(|_| None).collect())
        }
        Err(error) => Err(error),
    };
    let replies = match replies {
        Ok(replies) => replies,
        Err(error) => return batch.into_iter().for_each(|ready| ready.answer(Err(error.clone()))),
    };
    let mut rest = Vec::new();
    for (ready, reply) in batch.into_iter().zip(replies) {
        match reply {
            Some(reply) => ready.answer(Ok(reply)),
            None => rest.push(ready),
        }
    }
    join_all(rest.into_iter().map(|ready| ready.send_alone(&connection, &shared))).await;
}

/// For claims of one gate, or for releases.
fn call_for_many<'a>(batch: &[ReadyRequest], shared: &'a RedisShared) -> (&'a Script, Cmd) {
    match &batch[0].request {
        PlainRequest::Claim(ClaimRequest { gate, .. }) => {
            let script = &shared.scripts.acquire_many;
            let claims = || batch.iter().filter_map(ReadyRequest::claim);
            let has_counters = shared.config.counting() == Counting::Quorum;
            let keys_each = if has_counters { 3 } else { 2 };
            let mut call = script.begin(1 + keys_each * batch.len(), 4 * batch.len() + 2);
            call.arg(shared.config.record());
            for claim in claims() {
                call.arg(&claim.keys.lock).arg(claim.keys.queue());
                if has_counters {
                    call.arg(&*claim.keys.counter());
                }
            }
            call.arg(gate.as_str()).arg(shared.known_through(gate));
            for claim in claims() {
                call.arg(&claim.owner[..]).arg(&claim.tail).arg(claim.ttl_ms).arg(claim.block.max(1));
            }
            (script, call)
        }
        PlainRequest::Release(_) => {
            let script = &shared.scripts.release_many;
            let releases = || batch.iter().filter_map(ReadyRequest::release);
            let mut call = script.begin(batch.len(), batch.len());
            for release in releases() {
                call.arg(&release.lock);
            }
            for release in releases() {
                call.arg(&release.owner[..]);
            }
            (script, call)
        }
    }
}

/// In the order of the batch; `None` for each that has to be sent alone.
fn replies_of_many(batch: &[ReadyRequest], answer: Value) -> Option<Vec<Option<PlainReply>>> {
    match &batch[0].request {
        PlainRequest::Claim(_) => {
            if let Some(instead @ (-2 | -1)) = number(&answer) {
                let reply = || PlainReply::Claim(ClaimReply::plain(instead, 0));
                return Some(batch.iter().map(|_| Some(reply())).collect());
            }
            let mut reply = Reply::new(answer)?;
            let mut next = || Some(PlainReply::Claim(ClaimReply::plain(reply.number()?, reply.count()?)));
            batch.iter().map(|_| Some(Some(next()?))).collect()
        }
        PlainRequest::Release(_) => {
            let mut reply = Reply::new(answer)?;
            let mut next = || reply.number().map(|it| (it >= 0).then(|| PlainReply::release(it)));
            batch.iter().map(|_| next()).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::LockName;
    use tenure_testkit::{
        host::{PausedHost, pass},
        polls::is_pending,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    fn queue() -> BatchQueue {
        BatchQueue::new(true)
    }

    fn clock() -> Arc<PausedHost> {
        PausedHost::new(1)
    }

    fn claim(name: &str, gate: &str, asker: &Asker) -> PlainRequest {
        let name = LockName::new(name).unwrap();
        let keys = Keys::new("%s", &name, Counting::One).unwrap();
        let (asker, gate, owner) = (asker.clone(), Arc::new(GateName::bare(gate)), [b'0'; 48]);
        PlainRequest::Claim(ClaimRequest {
            asker,
            keys,
            gate,
            owner,
            tail: String::new(),
            ttl_ms: 1,
            block: 1,
        })
    }

    fn take(name: &str, gate: &str) -> PlainRequest {
        claim(name, gate, &Asker::default())
    }

    fn free(name: &str) -> PlainRequest {
        PlainRequest::Release(ReleaseRequest { lock: name.to_owned(), owner: [b'0'; 48] })
    }

    fn shown(batches: &[Vec<ReadyRequest>]) -> Vec<String> {
        let name = |ready: &ReadyRequest| match &ready.request {
            PlainRequest::Claim(claim) => claim.keys.lock.clone(),
            PlainRequest::Release(release) => format!("-{}", release.lock),
        };
        batches.iter().map(|batch| batch.iter().map(name).collect::<Vec<_>>().join(" ")).collect()
    }

    /// One gate for each script; a claim that was cancelled is not sent, and gets that as its reply.
    #[tokio::test]
    async fn those_that_are_ready_leave_together() {
        let queue = queue();
        let _a = queue.join(take("a", "g"), &*clock());
        let asker = Asker::new();
        let b = queue.join(claim("b", "g", &asker), &*clock());
        let _c = queue.join(take("c", "g"), &*clock());
        let _d = queue.join(take("d", "h"), &*clock());
        let _f = queue.join(free("f"), &*clock());
        asker.leave();
        assert!(queue.is_ready().await);
        assert_eq!(shown(&queue.next()), ["-f", "a c", "d"]);
        let Ok(Err(gone)) = b.await else { panic!("it was sent") };
        assert_eq!(gone.outcome(), Outcome::NotApplied);
        assert!(is_pending(&mut Box::pin(queue.is_ready())).await);
        assert!(queue.next().is_empty());
    }

    /// No more are sent at a time than one script takes, and all are sent in the end.
    #[tokio::test]
    async fn a_script_takes_so_many() {
        let queue = queue();
        let _told: Vec<_> = (0..=MOST).map(|n| queue.join(free(&n.to_string()), &*clock())).collect();
        let first = queue.next();
        assert!(matches!(&first[..], [batch] if batch.len() == MOST && batch[0].release().is_some()));
        assert!(queue.is_ready().await);
        assert_eq!(shown(&queue.next()), [format!("-{MOST}")]);
    }

    /// The sender is woken by the first request that is ready, and by the end.
    #[tokio::test]
    async fn the_first_one_and_the_end_wake_the_sender() {
        let queue = queue();
        let mut ready = Box::pin(queue.is_ready());
        assert!(is_pending(&mut ready).await);
        let _told = queue.join(free("a"), &*clock());
        assert!(ready.await);
        queue.next();
        let mut ready = Box::pin(queue.is_ready());
        assert!(is_pending(&mut ready).await);
        queue.end();
        assert!(!ready.await);
    }

    /// L8: a request that waits when the queue ends is answered, and the next one is not held up.
    #[tokio::test]
    async fn if_nobody_sends_them_they_hear_of_it() {
        let queue = queue();
        let told = queue.join(free("a"), &*clock());
        queue.end();
        assert!(told.await.is_err());
        assert!(queue.join(take("b", "g"), &*clock()).await.is_err());
        let alone: Vec<_> = (0..=FEW).map(|_| queue.start_alone().is_some()).collect();
        assert_eq!(alone, [true; FEW + 1]);
    }

    /// L6: a later request detects a sender that is stuck; a sender that works is not reported as stuck.
    #[tokio::test(start_paused = true)]
    async fn a_sender_that_stands_still_is_found() {
        let (queue, clock) = (queue(), clock());
        let is_stuck = async |after| {
            pass(Duration::from_millis(after)).await;
            queue.is_stuck(&*clock, LIMIT)
        };
        assert!(!is_stuck(5000).await, "nobody waits");
        let _first = queue.join(free("a"), &*clock);
        assert!(!is_stuck(900).await);
        let _second = queue.join(free("b"), &*clock);
        assert!(!is_stuck(100).await && is_stuck(1).await);
        queue.next();
        assert!(!is_stuck(5000).await, "they have left");
        let _third = queue.join(free("c"), &*clock);
        assert!(!is_stuck(1000).await && is_stuck(1).await);
        queue.end();
        assert!(!is_stuck(5000).await, "it is over");
    }

    #[tokio::test]
    async fn few_go_alone_and_all_where_the_server_can_do_no_more() {
        let queue = queue();
        let few: Vec<_> = (0..FEW).map(|_| queue.start_alone().unwrap()).collect();
        assert!(queue.start_alone().is_none());
        drop(few);
        let many = queue.start_batch(MOST);
        assert!(queue.start_alone().is_none());
        drop(many);
        let _waits = queue.join(free("a"), &*clock());
        assert!(queue.start_alone().is_none(), "nobody passes those who wait to leave");
        queue.refuse();
        assert!(queue.start_alone().is_some());
        assert!(BatchQueue::new(false).start_alone().is_some());
    }
}

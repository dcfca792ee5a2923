//! `Connection`: the driver's connection with its place, what a failure on it means for all who use it, and how plain claims and
//! releases go over it: alone while few are under way, else those that are ready at the same time in one script.
//!
//! A script costs a server more than what it does for one lock: with many requests under way, that is most of its work. A request
//! leaves when all that was ready beside it has joined; none waits for others to become ready (decision 0073).

use std::{
    future::poll_fn,
    mem,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use redis::{Cmd, RedisError, Value};
use tenure_client::{End, HintRouter};
use tenure_core::{Asker, BackendError, ErrorKind, Host, Moment, Outcome, locked};
use tokio::sync::{Notify, oneshot};

use crate::{
    error::{self, Fate},
    keys::{Counting, Keys},
    script::{Reply, Script, Scripts, number},
    shared::Shared,
    wire::Wire,
};

/// What requests go over.
pub(crate) struct Connection {
    pub(crate) wire: Wire,
    pub(crate) place: String,
    pub(crate) router: Arc<HintRouter>,
    pub(crate) end: Arc<End>,
    /// What goes over it together.
    pub(crate) batcher: Arc<Batcher>,
}

impl Connection {
    pub(crate) fn is_usable(&self) -> bool {
        !self.end.is_over() && !self.wire.is_stalled()
    }

    /// The next request makes a new connection; those who listen to this one, or wait to be sent over it, ask again.
    pub(crate) fn on_left(&self) {
        if self.end.set() {
            self.router.ring_all();
        }
        self.batcher.end();
    }

    /// Asks on the plain path: alone while few are under way, else with those that are ready at the same time.
    pub(crate) async fn send_plain<R: PlainRequest>(
        &self,
        shared: &Shared,
        request: R,
    ) -> Result<R::Answer, BackendError> {
        let batcher = &self.batcher;
        if let Some(_under_way) = batcher.start_alone() {
            return send_alone(self, shared, &request).await;
        }
        if batcher.is_stuck(&*shared.host, shared.config.response_timeout) {
            self.on_left();
        }
        match batcher.join(request, &*shared.host).await {
            Ok(BatchReply::Answer(answer)) => answer,
            Ok(BatchReply::Alone(request)) => send_alone(self, shared, &request).await,
            Err(_) => {
                self.on_left();
                Err(error::unsent(&self.place))
            }
        }
    }

    /// Asks, by hash first.
    pub(crate) async fn ask(&self, script: &Script, call: &Cmd) -> Result<Value, BackendError> {
        self.wire.eval(script, call).await.map_err(|error| self.failed(error))
    }

    /// Sends a command that is no script.
    pub(crate) async fn command(&self, cmd: &Cmd) -> Result<Value, BackendError> {
        self.wire.ask(cmd).await.map_err(|error| self.failed(error))
    }

    pub(crate) fn failed(&self, error: RedisError) -> BackendError {
        let (fate, error) = error::asked(&self.place, error);
        if fate == Fate::Drop {
            self.on_left();
        }
        error
    }
}

/// Asks for one.
async fn send_alone<R: PlainRequest>(
    connection: &Connection,
    shared: &Shared,
    request: &R,
) -> Result<R::Answer, BackendError> {
    let answer = connection.ask(R::script(&shared.scripts), &request.call(shared)).await?;
    R::read(answer).ok_or_else(|| error::unreadable(&connection.place, R::WHAT))
}

/// A request of the plain path. How a script is called stands in the script.
pub(crate) trait PlainRequest: Sized + Send + Sync + 'static {
    type Answer: Send;

    /// For messages.
    const WHAT: &'static str;

    /// The requests of this kind that wait.
    fn waiting(ready: &mut Ready) -> &mut Vec<Pending<Self>>;

    fn script(scripts: &Scripts) -> &Script;

    fn call(&self, shared: &Shared) -> Cmd;

    fn read(answer: Value) -> Option<Self::Answer>;

    fn script_for_many(scripts: &Scripts) -> &Script;

    fn call_for_many(all: &[Self], shared: &Shared) -> Cmd;

    /// `None` for each that has to be sent alone.
    fn read_many(answer: Value, count: usize) -> Option<Vec<Option<Self::Answer>>>;
}

/// The reply to a request that was sent in a batch.
pub(crate) enum BatchReply<R: PlainRequest> {
    Answer(Result<R::Answer, BackendError>),
    /// The batch did nothing; the request has to be sent alone.
    Alone(R),
}

/// A request, and where its answer goes.
pub(crate) type Pending<R> = (R, oneshot::Sender<BatchReply<R>>);

/// An owner, as it stands in a key.
type Owner = [u8; 48];

/// Requests that travel in one script.
enum Batch {
    Claims(Vec<Pending<ClaimRequest>>),
    Releases(Vec<Pending<ReleaseRequest>>),
}

/// Requests that wait for the next batch, in the order in which they came.
#[derive(Default)]
pub(crate) struct Ready {
    claims: Vec<Pending<ClaimRequest>>,
    releases: Vec<Pending<ReleaseRequest>>,
}

impl Ready {
    fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.releases.is_empty()
    }
}

/// A claim.
pub(crate) struct ClaimRequest {
    pub(crate) asker: Asker,
    pub(crate) keys: Keys,
    pub(crate) gate: Arc<str>,
    pub(crate) owner: Owner,
    /// `:since:label`
    pub(crate) tail: String,
    pub(crate) ttl_ms: u64,
    /// How many tokens at most.
    pub(crate) block: u32,
}

/// The last token and their count; or what the script says instead, and 0.
pub(crate) type ClaimReply = (i64, u64);

impl PlainRequest for ClaimRequest {
    type Answer = ClaimReply;

    const WHAT: &'static str = "a claim";

    fn waiting(ready: &mut Ready) -> &mut Vec<Pending<Self>> {
        &mut ready.claims
    }

    fn script(scripts: &Scripts) -> &Script {
        &scripts.acquire
    }

    fn call(&self, shared: &Shared) -> Cmd {
        let mut call = self.keys.plain(|keys| Self::script(&shared.scripts).call(keys));
        call.arg(&*self.gate).arg(&self.owner[..]).arg(&self.tail).arg(self.ttl_ms);
        call.arg(shared.known_through(&self.gate));
        if self.block > 1 {
            call.arg(self.block);
        }
        call
    }

    fn read(answer: Value) -> Option<ClaimReply> {
        match number(&answer) {
            Some(token) => Some((token, 1)),
            None => Reply::new(answer).and_then(|mut reply| Some((reply.number()?, reply.count()?))),
        }
    }

    fn script_for_many(scripts: &Scripts) -> &Script {
        &scripts.acquire_many
    }

    fn call_for_many(all: &[Self], shared: &Shared) -> Cmd {
        let config = &shared.config;
        let keys_each = if config.counting() == Counting::Quorum { 3 } else { 2 };
        let mut call =
            Self::script_for_many(&shared.scripts).begin(1 + keys_each * all.len(), 4 * all.len() + 2);
        call.arg(config.record());
        for one in all {
            call.arg(&one.keys.lock).arg(one.keys.queue());
            if keys_each == 3 {
                call.arg(&*one.keys.counter());
            }
        }
        let gate = all.first().map_or("", |one| &*one.gate);
        call.arg(gate).arg(shared.known_through(gate));
        for one in all {
            call.arg(&one.owner[..]).arg(&one.tail).arg(one.ttl_ms).arg(one.block.max(1));
        }
        call
    }

    fn read_many(answer: Value, count: usize) -> Option<Vec<Option<ClaimReply>>> {
        if let Some(instead @ (-2 | -1)) = number(&answer) {
            return Some(vec![Some((instead, 0)); count]);
        }
        let mut reply = Reply::new(answer)?;
        (0..count).map(|_| Some(Some((reply.number()?, reply.count()?)))).collect()
    }
}

/// A release.
pub(crate) struct ReleaseRequest {
    pub(crate) lock: String,
    pub(crate) owner: Owner,
}

impl PlainRequest for ReleaseRequest {
    /// Whether it was as plain as that.
    type Answer = bool;

    const WHAT: &'static str = "a release";

    fn waiting(ready: &mut Ready) -> &mut Vec<Pending<Self>> {
        &mut ready.releases
    }

    fn script(scripts: &Scripts) -> &Script {
        &scripts.release
    }

    fn call(&self, shared: &Shared) -> Cmd {
        let mut call = Self::script(&shared.scripts).call(&[&self.lock]);
        call.arg(&self.owner[..]);
        call
    }

    fn read(answer: Value) -> Option<bool> {
        Some(number(&answer)? == 1)
    }

    fn script_for_many(scripts: &Scripts) -> &Script {
        &scripts.release_many
    }

    fn call_for_many(all: &[Self], shared: &Shared) -> Cmd {
        let mut call = Self::script_for_many(&shared.scripts).begin(all.len(), all.len());
        for one in all {
            call.arg(&one.lock);
        }
        for one in all {
            call.arg(&one.owner[..]);
        }
        call
    }

    fn read_many(answer: Value, count: usize) -> Option<Vec<Option<bool>>> {
        let mut reply = Reply::new(answer)?;
        let mut read = || reply.number().map(|number| (number >= 0).then_some(number == 1));
        (0..count).map(|_| read()).collect()
    }
}

/// Sends plain claims and releases that are ready at the same time in one script.
pub(crate) struct Batcher {
    state: Mutex<State>,
    /// A request is ready, or nothing is sent any more.
    rings: Notify,
}

/// Held by the session; when it is dropped, nothing is sent any more.
pub(crate) struct BatcherHandle(pub(crate) Arc<Batcher>);

impl Drop for BatcherHandle {
    fn drop(&mut self) {
        self.0.end();
    }
}

struct State {
    ready: Ready,
    /// Since when a request waits for a batch.
    since: Option<Moment>,
    under_way: usize,
    /// Each request is sent alone.
    is_refused: bool,
    is_over: bool,
}

/// Requests that are counted for as long as it lives.
struct UnderWay<'a>(&'a Batcher, usize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).under_way -= self.1;
    }
}

impl Batcher {
    /// For a server that can do many at once, or not.
    pub(crate) fn new(can_do_many: bool) -> Self {
        let state = State {
            ready: Ready::default(),
            since: None,
            under_way: 0,
            is_refused: !can_do_many,
            is_over: false,
        };
        Self { state: Mutex::new(state), rings: Notify::new() }
    }

    /// Counts a request that may be sent by itself; none if it has to join a batch.
    fn start_alone(&self) -> Option<UnderWay<'_>> {
        let mut state = locked(&self.state);
        let is_alone = state.is_refused || state.is_over || state.ready.is_empty() && state.under_way < FEW;
        is_alone.then(|| {
            state.under_way += 1;
            UnderWay(self, 1)
        })
    }

    fn enter(&self, count: usize) -> UnderWay<'_> {
        locked(&self.state).under_way += count;
        UnderWay(self, count)
    }

    /// From here on each request is sent alone.
    fn refuse(&self) {
        locked(&self.state).is_refused = true;
    }

    /// A request has waited for longer than `limit`: the runtime of the sender stands still.
    fn is_stuck(&self, clock: &dyn Host, limit: Duration) -> bool {
        locked(&self.state).since.is_some_and(|since| since.elapsed(clock.now()) > limit)
    }

    /// Adds a request to the next batch; the receiver waits for its reply, with the time-out of the caller.
    fn join<R: PlainRequest>(&self, request: R, clock: &dyn Host) -> oneshot::Receiver<BatchReply<R>> {
        let (tell, told) = oneshot::channel();
        let mut state = locked(&self.state);
        // After the end the receiver says immediately that nothing was sent.
        if !state.is_over {
            if state.ready.is_empty() {
                self.rings.notify_one();
            }
            R::waiting(&mut state.ready).push((request, tell));
            state.since.get_or_insert_with(|| clock.now());
        }
        told
    }

    /// Sends nothing more; every receiver that waits is told.
    fn end(&self) {
        let mut state = locked(&self.state);
        state.is_over = true;
        state.since = None;
        let ready = mem::take(&mut state.ready);
        drop(state);
        drop(ready);
        self.rings.notify_one();
    }

    /// Waits until a request is ready; false after the end.
    async fn is_ready(&self) -> bool {
        while !self.has_news() {
            self.rings.notified().await;
        }
        !locked(&self.state).is_over
    }

    fn has_news(&self) -> bool {
        let state = locked(&self.state);
        state.is_over || !state.ready.is_empty()
    }

    /// Takes the requests that are ready, as many as one script of each kind holds.
    fn next(&self) -> Vec<Batch> {
        let mut state = locked(&self.state);
        let Ready { claims, releases } = &mut state.ready;
        let ready = Ready { claims: first(claims), releases: first(releases) };
        state.since = None;
        drop(state);
        batches(ready)
    }
}

/// Takes as many as one script holds.
fn first<T>(all: &mut Vec<T>) -> Vec<T> {
    let most = all.len().min(MOST);
    let rest = all.split_off(most);
    mem::replace(all, rest)
}

/// Releases first: a claim of the same batch may wait for one. A claim that was cancelled is not sent.
fn batches(Ready { claims, releases }: Ready) -> Vec<Batch> {
    let mut batches = Vec::new();
    if !releases.is_empty() {
        batches.push(Batch::Releases(releases));
    }
    for (take, tell) in claims {
        if let Err(gone) = take.asker.must_be_there() {
            // OK to ignore: it may have gone altogether.
            let _ = tell.send(BatchReply::Answer(Err(gone)));
            continue;
        }
        match batches.last_mut() {
            Some(Batch::Claims(run)) if run[0].0.gate == take.gate => run.push((take, tell)),
            _ => batches.push(Batch::Claims(vec![(take, tell)])),
        }
    }
    batches
}

/// Sends the batches. It runs on the runtime of the connection's driver, so that no caller's runtime delays a request.
pub(crate) struct Sender {
    pub(crate) connection: Arc<Connection>,
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Sender {
    /// Even if its runtime ends before its first poll.
    fn drop(&mut self) {
        self.connection.batcher.end();
    }
}

impl Sender {
    /// Runs until the connection has no user any more.
    pub(crate) async fn run(self) {
        while self.connection.batcher.is_ready().await {
            // All requests that are ready now join, and the server works on the last batch meanwhile.
            yield_to_others().await;
            for run in self.connection.batcher.next() {
                match run {
                    Batch::Claims(run) => self.begin(run).await,
                    Batch::Releases(run) => self.begin(run).await,
                }
            }
        }
    }

    /// Sends a batch; a task of its own reads the answer, even while more requests come.
    async fn begin<R: PlainRequest>(&self, run: Vec<Pending<R>>) {
        let Self { connection, shared } = self;
        let mut asking = Box::pin(send_batch(connection.clone(), shared.clone(), run));
        let is_answered = poll_fn(|task| Poll::Ready(asking.as_mut().poll(task).is_ready())).await;
        if !is_answered {
            shared.host.spawn(asking);
        }
    }
}

/// Lets the tasks run that are ready now, such as the driver. (tokio's `yield_now` would wait until no task is ready.)
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

async fn send_batch<R: PlainRequest>(connection: Arc<Connection>, shared: Arc<Shared>, run: Vec<Pending<R>>) {
    let _under_way = connection.batcher.enter(run.len());
    let (requests, askers): (Vec<R>, Vec<_>) = run.into_iter().unzip();
    let told: Vec<BatchReply<R>> = if let [request] = &requests[..] {
        vec![BatchReply::Answer(send_alone(&connection, &shared, request).await)]
    } else {
        ask_for_many(&connection, &shared, requests).await
    };
    for (asker, told) in askers.into_iter().zip(told) {
        // OK to ignore: an asker that has gone needs no answer. The engine has none go that may be granted something.
        let _ = asker.send(told);
    }
}

async fn ask_for_many<R: PlainRequest>(
    connection: &Connection,
    shared: &Shared,
    requests: Vec<R>,
) -> Vec<BatchReply<R>> {
    let (call, count) = (R::call_for_many(&requests, shared), requests.len());
    match connection.ask(R::script_for_many(&shared.scripts), &call).await {
        Ok(answer) => match R::read_many(answer, count) {
            Some(answers) => {
                let told = |(answer, request)| match answer {
                    Some(answer) => BatchReply::Answer(Ok(answer)),
                    None => BatchReply::Alone(request),
                };
                answers.into_iter().zip(requests).map(told).collect()
            }
            None => to_all(count, &error::unreadable(&connection.place, R::WHAT)),
        },
        // One of them may be to blame, or a right that only the script for many needs.
        Err(error) if error.outcome() == Outcome::NotApplied => {
            if error.kind() != ErrorKind::Unavailable {
                tracing::debug!(place = connection.place, %error, "from here on each request goes alone");
                connection.batcher.refuse();
            }
            requests.into_iter().map(BatchReply::Alone).collect()
        }
        Err(error) => to_all(count, &error),
    }
}

fn to_all<R: PlainRequest>(count: usize, error: &BackendError) -> Vec<BatchReply<R>> {
    (0..count).map(|_| BatchReply::Answer(Err(error.clone()))).collect()
}

/// So many requests in flight are sent one by one: a batch would cost them more than it saves.
const FEW: usize = 4;

/// In one script at most: the server does nothing else meanwhile.
const MOST: usize = 32;

#[cfg(test)]
mod tests {
    use tenure_core::LockName;
    use tenure_testkit::{
        host::{PausedHost, pass},
        polls::is_pending,
    };

    use super::*;
    const LIMIT: Duration = Duration::from_secs(1);

    fn batcher() -> Batcher {
        Batcher::new(true)
    }

    fn clock() -> Arc<PausedHost> {
        PausedHost::new(1)
    }

    fn take(name: &str, gate: &str) -> ClaimRequest {
        let name = LockName::new(name).unwrap();
        let keys = Keys::new("%s", &name, Counting::One).unwrap();
        let (gate, owner) = (Arc::from(gate), [b'0'; 48]);
        ClaimRequest { asker: Asker::default(), keys, gate, owner, tail: String::new(), ttl_ms: 1, block: 1 }
    }

    fn free(name: &str) -> ReleaseRequest {
        ReleaseRequest { lock: name.to_owned(), owner: [b'0'; 48] }
    }

    fn shown(batches: &[Batch]) -> Vec<String> {
        let names = |run: &Batch| match run {
            Batch::Claims(run) => run.iter().map(|one| one.0.keys.lock.clone()).collect::<Vec<_>>(),
            Batch::Releases(run) => run.iter().map(|one| format!("-{}", one.0.lock)).collect(),
        };
        batches.iter().map(|run| names(run).join(" ")).collect()
    }

    /// One gate for each script; a claim that was cancelled is not sent, and is told so.
    #[tokio::test]
    async fn those_that_are_ready_leave_together() {
        let batcher = batcher();
        let _a = batcher.join(take("a", "g"), &*clock());
        let cancelled = take("b", "g");
        let asker = Asker::new();
        let b = batcher.join(ClaimRequest { asker: asker.clone(), ..cancelled }, &*clock());
        let _c = batcher.join(take("c", "g"), &*clock());
        let _d = batcher.join(take("d", "h"), &*clock());
        let _f = batcher.join(free("f"), &*clock());
        asker.leave();
        assert!(batcher.is_ready().await);
        assert_eq!(shown(&batcher.next()), ["-f", "a c", "d"]);
        let Ok(BatchReply::Answer(Err(gone))) = b.await else { panic!("it was sent") };
        assert_eq!(gone.outcome(), Outcome::NotApplied);
        assert!(is_pending(&mut Box::pin(batcher.is_ready())).await);
        assert!(batcher.next().is_empty());
    }

    /// No more leave at a time than one script takes, and all in the end.
    #[tokio::test]
    async fn a_script_takes_so_many() {
        let batcher = batcher();
        let _told: Vec<_> = (0..=MOST).map(|n| batcher.join(free(&n.to_string()), &*clock())).collect();
        let first = batcher.next();
        assert!(matches!(&first[..], [Batch::Releases(run)] if run.len() == MOST));
        assert!(batcher.is_ready().await);
        assert_eq!(shown(&batcher.next()), [format!("-{MOST}")]);
    }

    /// Who waits to be woken is: by the first one that is ready, and by the end.
    #[tokio::test]
    async fn the_first_one_and_the_end_wake_the_sender() {
        let batcher = batcher();
        let mut ready = Box::pin(batcher.is_ready());
        assert!(is_pending(&mut ready).await);
        let _told = batcher.join(free("a"), &*clock());
        assert!(ready.await);
        batcher.next();
        let mut ready = Box::pin(batcher.is_ready());
        assert!(is_pending(&mut ready).await);
        batcher.end();
        assert!(!ready.await);
    }

    /// L8: whoever waits to leave when it is over hears of it, and the next one is not held up.
    #[tokio::test]
    async fn if_nobody_sends_them_they_hear_of_it() {
        let batcher = batcher();
        let told = batcher.join(free("a"), &*clock());
        batcher.end();
        assert!(told.await.is_err());
        assert!(batcher.join(take("b", "g"), &*clock()).await.is_err());
        let alone: Vec<_> = (0..=FEW).map(|_| batcher.start_alone().is_some()).collect();
        assert_eq!(alone, [true; FEW + 1]);
    }

    /// L6: a sender that stands still is found by whoever asks later; one that gets on is not.
    #[tokio::test(start_paused = true)]
    async fn a_sender_that_stands_still_is_found() {
        let (batcher, clock) = (batcher(), clock());
        let is_stuck = async |after| {
            pass(Duration::from_millis(after)).await;
            batcher.is_stuck(&*clock, LIMIT)
        };
        assert!(!is_stuck(5000).await, "nobody waits");
        let _first = batcher.join(free("a"), &*clock);
        assert!(!is_stuck(900).await);
        let _second = batcher.join(free("b"), &*clock);
        assert!(!is_stuck(100).await && is_stuck(1).await);
        batcher.next();
        assert!(!is_stuck(5000).await, "they have left");
        let _third = batcher.join(free("c"), &*clock);
        assert!(!is_stuck(1000).await && is_stuck(1).await);
        batcher.end();
        assert!(!is_stuck(5000).await, "it is over");
    }

    #[tokio::test]
    async fn few_go_alone_and_all_where_the_server_can_do_no_more() {
        let batcher = batcher();
        let few: Vec<_> = (0..FEW).map(|_| batcher.start_alone().unwrap()).collect();
        assert!(batcher.start_alone().is_none());
        drop(few);
        let many = batcher.enter(MOST);
        assert!(batcher.start_alone().is_none());
        drop(many);
        let _waits = batcher.join(free("a"), &*clock());
        assert!(batcher.start_alone().is_none(), "nobody passes those who wait to leave");
        batcher.refuse();
        assert!(batcher.start_alone().is_some());
        assert!(Batcher::new(false).start_alone().is_some());
    }
}

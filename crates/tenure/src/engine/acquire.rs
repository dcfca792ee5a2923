//! The only loop that waits for a store: it drives one `Acquisition`, from the first claim until a lease is held or
//! the wait ends. Before it, the queue of this process (`queue.rs`) admits the waiter.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tenure_core::{
    Asker, Audience, BoxFuture, Claim, ClaimAnswer, ErrorKind, LockName, Mode, Moment, OwnerId, Timing,
    WaitMode,
};
use tracing::{Instrument, field};

use crate::{
    engine::{
        Engine,
        hold::HoldCell,
        in_flight::{ClaimResult, is_unknown, life_of},
        queue::{Admission, LocalWaiter},
        report::Reporter,
        request::{self, forked},
        telemetry::AcquireRecord,
        waiters::Subscription,
        wishes::AskedAs,
    },
    error::AcquireError,
    machine::acquisition::{AcquireAction, AcquireEnd, AcquireFailure, Acquisition, Position},
    options::{Options, PATIENCE},
};

/// The lock to acquire, and the options.
#[derive(Clone)]
pub(crate) struct AcquireRequest<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) mode: Mode,
    pub(crate) timing: Timing,
    /// How long to wait: zero asks once, `None` waits indefinitely.
    pub(crate) budget: Option<Duration>,
    /// Asks once within the budget.
    pub(crate) asks_once: bool,
    pub(crate) options: &'a Options,
    /// For a wait of several claims: whether one of them has met another owner.
    pub(crate) was_busy: Option<&'a AtomicBool>,
    /// For a wait that a newer client ends: receives the owner of each claim, and notes the answers.
    pub(crate) asked_as: Option<&'a AskedAs>,
}

impl AcquireRequest<'_> {
    pub(crate) fn asks_once(&self) -> bool {
        self.asks_once || self.budget.is_some_and(|budget| budget.is_zero())
    }

    fn was_busy(&self) -> bool {
        self.was_busy.is_some_and(|was_busy| was_busy.load(Ordering::Relaxed))
    }

    /// The same with the longest ttl that the store grants, if the default one was longer and the store refused it.
    /// While a larger `max_ttl` is rolled out, only an answer of the store tells how long that is. Not for a chosen
    /// owner: what the first try may have left is released under it.
    pub(crate) fn shortened(&self, engine: &Engine, began: Moment, error: &AcquireError) -> Option<Self> {
        let is_refused = matches!(error, AcquireError::Store(error) if error.kind() == ErrorKind::Invalid);
        let ttl = engine.backend.promises().default_ttl();
        let is_named = self.options.ttl.is_some() || self.options.owner.is_some();
        if !is_refused || is_named || ttl >= self.timing.ttl() {
            return None;
        }
        let left = |budget: Duration| budget.saturating_sub(began.elapsed(engine.host.now()));
        Some(Self { timing: Timing::new(ttl).ok()?, budget: self.budget.map(left), ..self.clone() })
    }
}

/// Waits for a lock. When the future is dropped, everything it left in the store is released in the background
/// (H1.8).
pub(crate) async fn acquire(
    engine: &Engine,
    request: AcquireRequest<'_>,
) -> Result<Arc<HoldCell>, AcquireError> {
    let is_forked = || Err(AcquireError::Store(forked()));
    let record = engine.telemetry().acquire(request.name, request.mode, &*engine.host);
    let span = record.span.clone();
    let acquiring = async move {
        let began = engine.host.now();
        let mut answer = drive(engine, request.clone(), &record).await;
        if let Err(error) = &answer
            && let Some(shorter) = request.shortened(engine, began, error)
        {
            answer = Box::pin(drive(engine, shorter, &record)).await;
        }
        record.end(&answer);
        answer
    };
    if span.is_disabled() {
        return engine.unless_forked(is_forked, acquiring).await;
    }
    engine.unless_forked(is_forked, acquiring.instrument(span)).await
}

async fn drive(
    engine: &Engine,
    request: AcquireRequest<'_>,
    record: &AcquireRecord<'_>,
) -> Result<Arc<HoldCell>, AcquireError> {
    // A store that always answers immediately must not keep the caller's other tasks from running.
    tokio::task::coop::consume_budget().await;
    // First, because a lease that could not be renewed or released must not be requested.
    engine.start_keeper().map_err(|error| AcquireError::NoKeeper(Arc::new(error)))?;
    let AcquireRequest { name, timing, budget, options, .. } = request;
    let (began, progress) = (engine.host.now(), options.progress.as_ref());
    record.began(began);
    let mut now = began;
    progress.iter().for_each(|progress| progress.begin(name));
    let release = |cell: &HoldCell| engine.pass_on_or_release(cell);
    // A claim that does not wait may find a lease that is kept idle here.
    let may_join = !request.asks_once() && options.newest.is_none() || options.idle.is_some();
    let join = || engine.local_queues.join(name, options, timing, &release);
    let queued = may_join.then(join).flatten();
    let wait = if request.asks_once() { Some(Duration::ZERO) } else { budget };
    let mut is_behind = request.was_busy();
    if let Some(queued) = &queued {
        record.on_queue(|| queued.ahead());
        match queued.admit(&*engine.host, began, (wait, patience(&request)), progress).await? {
            Admission::AskStore { at, was_busy } => {
                (now, is_behind) = (at, is_behind || was_busy);
            }
            Admission::Lease(cell) => {
                record.span.record("owner", field::display(cell.owner()));
                record.span.record("token", field::display(cell.grant().token));
                return Ok(cell);
            }
        }
    }
    if let Some(owner) = options.owner {
        let limit = wait.unwrap_or(Duration::MAX).min(patience(&request));
        engine.until_released(owner, limit).await?;
        now = engine.host.now();
    }
    // For an owner that was chosen: an earlier lost lease of it must not end this one.
    let _reservation = options.owner.map(|owner| engine.reserve(owner));
    let mut attempt =
        AcquireAttempt::new(engine, &request, began, Reporter::new(name, record, progress, queued));
    if is_behind {
        attempt.machine.on_busy();
    }
    loop {
        now = match attempt.machine.poll(now) {
            AcquireAction::Ask { fresh_owner } => attempt.ask(now, fresh_owner).await,
            AcquireAction::Wait { until } => attempt.wait(until).await,
            AcquireAction::Release => attempt.release(now).await,
            AcquireAction::Finish(end) => return attempt.settle(now, end),
        };
    }
}

/// How long the store may fail in a row.
fn patience(request: &AcquireRequest<'_>) -> Duration {
    request.options.patience.or(request.budget).unwrap_or(PATIENCE)
}

/// One acquisition that asks the store. Every step ends with a reading of the clocks, with which the next one
/// begins.
struct AcquireAttempt<'a> {
    engine: &'a Engine,
    request: &'a AcquireRequest<'a>,
    machine: Acquisition,
    claim: Claim,
    /// The hints; a claim that does not wait needs none.
    hints: Option<Subscription<'a>>,
    reporter: Reporter<'a>,
    /// The name under which the owner is released if this is dropped: that of the claim, or of the last grant,
    /// which may be a slot of a semaphore. `None` once the lease has a holder.
    release_as: Option<LockName>,
}

impl<'a> AcquireAttempt<'a> {
    fn new(
        engine: &'a Engine,
        request: &'a AcquireRequest<'a>,
        began: Moment,
        reporter: Reporter<'a>,
    ) -> Self {
        let (fresh, seed) = engine.new_owner_and_seed();
        let AcquireRequest { name, mode, timing, budget, options, .. } = request;
        let machine = Acquisition::new(began, *timing, *budget, patience(request), seed);
        let machine = if options.owner.is_some() { machine.keeping_owner() } else { machine };
        let machine = if request.asks_once() { machine.asking_once() } else { machine };
        let ends_with_process = options.ends_with_process() && engine.backend.promises().free_at_death;
        let claim = Claim::new((*name).clone(), options.owner.unwrap_or(fresh), *mode, timing.ttl())
            .with_label(options.label.clone())
            .with_wait(machine.wait())
            .with_priority(options.priority)
            .ending_with_process(ends_with_process);
        reporter.on_owner(claim.owner);
        request.asked_as.iter().for_each(|asked_as| asked_as.on_owner(claim.owner));
        let hints = (claim.wait != WaitMode::No).then(|| engine.waiters.subscribe(claim.owner));
        let release_as = Some(claim.name.clone());
        Self { engine, request, machine, claim, hints, reporter, release_as }
    }

    async fn ask(&mut self, sent_at: Moment, fresh_owner: bool) -> Moment {
        if fresh_owner {
            self.change_owner();
        }
        let timeout = self.machine.request_timeout(sent_at);
        self.claim.block = self.reporter.queued.as_ref().map_or(1, LocalWaiter::block);
        self.machine.on_sent(sent_at);
        self.reporter.on_sent(sent_at, timeout);
        let answer = self.claim(sent_at, timeout).await;
        let now = self.engine.host.now();
        let (is_granted, failure) =
            (matches!(answer, Ok(ClaimAnswer::Granted(_))), answer.as_ref().err().cloned());
        let is_cut_short =
            failure.as_ref().is_some_and(|error| self.machine.cut_short_until(now, error).is_some());
        self.machine.on_answer(now, answer);
        if let Some(was_busy) = self.request.was_busy {
            was_busy.fetch_or(self.machine.was_busy(), Ordering::Relaxed);
        }
        let position = self.machine.position();
        match &failure {
            Some(error) => self.reporter.on_failure(now, error, is_cut_short, position),
            None => {
                self.reporter.on_answer(now, is_granted, position);
                self.request.asked_as.iter().for_each(|asked_as| asked_as.on_answer());
            }
        }
        let idle_holder = idle_holder(position).filter(|_| failure.is_none() && !is_granted);
        let Some(holder) = idle_holder else { return now };
        // Rare cases are in a box, because the future of every acquisition would have room for them.
        Box::pin(self.notify_holder(now, holder)).await;
        self.engine.host.now()
    }

    /// A late answer of an earlier claim must not be taken for the next one (H3.4).
    fn change_owner(&mut self) {
        self.release_in_background();
        self.claim.owner = self.engine.new_owner();
        self.hints = self.hints.take().map(|_| self.engine.waiters.subscribe(self.claim.owner));
        self.reporter.on_owner(self.claim.owner);
        self.request.asked_as.iter().for_each(|asked_as| asked_as.on_owner(self.claim.owner));
    }

    /// Sends the claim, and repeats it while the store reports a transient overload. The answer includes whether
    /// the holder is this process.
    async fn claim(&mut self, sent_at: Moment, timeout: Duration) -> ClaimResult {
        let ask = || async {
            let claim = SentClaim::new(self.engine, &self.claim, self.request.options.owner.is_some());
            claim.await.inspect_err(|error| self.reporter.on_retry(error))
        };
        let mut answer = request::request(&*self.engine.host, sent_at, timeout, ask).await?;
        match &mut answer {
            ClaimAnswer::Queued { holder, .. }
            | ClaimAnswer::Split { holder, .. }
            | ClaimAnswer::Busy { holder, .. } => {
                holder.iter_mut().for_each(|holder| self.engine.recognise(holder));
            }
            ClaimAnswer::Granted(grant) => self.release_as = Some(grant.name.clone()),
        }
        Ok(answer)
    }

    /// Notifies an idle holder, unless a hint arrives first: the store may have notified it too, and it has
    /// released the lock.
    async fn notify_holder(&mut self, now: Moment, owner: OwnerId) {
        let (engine, name, timeout) =
            (self.engine, self.claim.name.clone(), self.machine.request_timeout(now));
        let notified = async move {
            let tell = || engine.backend.tell(&name, Audience::Holders, owner);
            if let Err(error) = engine.request(now, timeout, tell).await {
                tracing::debug!(lock = %name, %error, "the holder was not told that somebody waits");
            }
        };
        self.unless_woken(notified).await;
    }

    async fn wait(&mut self, until: Moment) -> Moment {
        self.reporter.on_wait(until);
        let timer = self.engine.host.sleep_until(until);
        self.unless_woken(timer).await;
        self.engine.host.now()
    }

    /// Waits until the future is done, or a hint has arrived.
    async fn unless_woken(&mut self, over: impl Future<Output = ()>) {
        match &self.hints {
            None => over.await,
            Some(hints) => tokio::select! {
                biased;
                () = hints.woken() => self.machine.on_wake(),
                () = over => {}
            },
        }
    }

    /// Releases everything that the owner has in the store, or may have.
    async fn release(&mut self, now: Moment) -> Moment {
        let Claim { name, owner, ttl, .. } = &self.claim;
        let granted = self.release_as.as_ref().unwrap_or(name);
        let timeout = self.machine.request_timeout(now);
        let release = || self.engine.backend.release(granted, *owner);
        let answer = request::request(&*self.engine.host, now, timeout, release).await;
        // A claim that is still under way may be granted after the release.
        if answer.is_err() || self.engine.in_flight().is_open(*owner) {
            self.engine.reap_claim(granted.clone(), *owner, *ttl);
        }
        self.release_as = Some(name.clone());
        self.machine.on_released();
        self.engine.host.now()
    }

    fn settle(mut self, now: Moment, end: AcquireEnd) -> Result<Arc<HoldCell>, AcquireError> {
        match end {
            AcquireEnd::Granted { grant, until } => {
                self.release_as = None;
                let (engine, options) = (self.engine, self.request.options);
                let seen = (engine.host.clone(), engine.telemetry().hold(&grant.name));
                let cap = options.max_hold.map(|max_hold| now + max_hold);
                let cell = Arc::new(HoldCell::new(grant, until, self.request.timing, cap, seen));
                if options.owner.is_some() {
                    cell.expose_owner();
                }
                self.reporter.on_granted(now, &cell, &self.claim);
                self.engine.keep(now, cell.clone());
                Ok(cell)
            }
            AcquireEnd::TimedOut { waited, ahead, holder } => {
                let queued = self.reporter.queued.as_ref();
                let holder = holder.or_else(|| queued.and_then(LocalWaiter::holder));
                Err(AcquireError::TimedOut { waited, ahead, holder: holder.map(Box::new) })
            }
            AcquireEnd::Failed(AcquireFailure(error)) => Err(AcquireError::Store(error)),
        }
    }

    /// Releases in the background everything that this owner has, or may yet be granted, unless a holder has it.
    fn release_in_background(&mut self) {
        let Some(name) = &mut self.release_as else { return };
        let Claim { name: asked_for, owner, ttl, .. } = &self.claim;
        if self.machine.may_be_there() || self.engine.in_flight().is_open(*owner) {
            self.engine.reap_claim(mem::replace(name, asked_for.clone()), *owner, *ttl);
        }
    }
}

impl Drop for AcquireAttempt<'_> {
    fn drop(&mut self) {
        if self.release_as.is_some() && self.engine.is_ours() {
            self.release_in_background();
        }
    }
}

/// A holder that may be idle, if no other waiter is ahead, which would notify it.
fn idle_holder(Position { ahead, holder }: Position<'_>) -> Option<OwnerId> {
    let is_idle = holder?.label.as_ref().is_some_and(|label| label.idles);
    let is_next = ahead.is_none_or(|ahead| ahead == 0);
    holder.filter(|_| is_idle && is_next)?.owner.parse().ok()
}

/// A claim on its way, owned by its caller. If it is dropped before its answer, it is left to a task: see
/// `in_flight`.
struct SentClaim<'a> {
    engine: &'a Engine,
    owner: OwnerId,
    /// How long a grant of it may last.
    life: Duration,
    asker: Asker,
    asking: Option<BoxFuture<'static, ClaimResult>>,
    /// A future that was never polled was not sent.
    is_sent: bool,
    /// The program chose the owner, and may repeat the claim elsewhere: one answered release is the last one.
    is_chosen: bool,
}

impl<'a> SentClaim<'a> {
    /// Nothing is sent before it is polled.
    fn new(engine: &'a Engine, claim: &Claim, is_chosen: bool) -> Self {
        let backend = engine.backend.clone();
        let asker = Asker::new();
        let sent = claim.clone().with_asker(asker.clone());
        let asking =
            Some(Box::pin(async move { backend.claim(&sent).await }) as BoxFuture<'static, ClaimResult>);
        Self {
            engine,
            owner: claim.owner,
            life: life_of(claim.ttl),
            asker,
            asking,
            is_sent: false,
            is_chosen,
        }
    }
}

impl Future for SentClaim<'_> {
    type Output = ClaimResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ClaimResult> {
        self.is_sent = true;
        let asking = self.asking.as_mut().expect("BUG: polled after its answer");
        let answer = std::task::ready!(asking.as_mut().poll(context));
        self.asking = None;
        if is_unknown(&answer) && !self.is_chosen {
            self.engine.in_flight().set_unknown(self.owner, self.engine.host.now(), self.life);
        }
        Poll::Ready(answer)
    }
}

impl Drop for SentClaim<'_> {
    fn drop(&mut self) {
        let Some(asking) = self.asking.take().filter(|_| self.is_sent) else { return };
        self.asker.leave();
        if self.engine.is_ours() {
            let host = self.engine.host.clone();
            let (owner, life, is_chosen) = (self.owner, self.life, self.is_chosen);
            let left = self.engine.in_flight().leave(owner, life, is_chosen, host.clone(), asking);
            // It continues in its own runtime, where its timers are. Outside a runtime its outcome stays unknown.
            drop(host.try_spawn(Box::pin(left.finish())));
        } else {
            // It contains mutexes that another thread of the parent may have held.
            mem::forget(asking);
        }
    }
}

//! The waiting loop: the only one there is. Drives one `Acquisition`, from the request until a lease is held or given up.

use std::{
    future::{Future, pending},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tenure_core::{
    Asker, Audience, BoxFuture, Claim, ClaimAnswer, HolderView, LockName, Mode, Moment, OwnerId, Timing, Wait,
};
use tracing::{Instrument, Span, field};

use crate::{
    engine::{
        Engine,
        hold::{Expected, HoldCell},
        in_flight::{Answer, is_unknown, life_of},
        queue::{LocalWaiter, Turn},
        report::SelfWait,
        request::{self, forked},
        waiters::Subscription,
    },
    error::AcquireError,
    machine::acquisition::{Acquisition, Action, Failure, Verdict},
    options::{Options, PATIENCE, Waiting},
};

/// What is to be acquired, and how.
pub(crate) struct Request<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) mode: Mode,
    pub(crate) timing: Timing,
    /// How long to wait: zero asks once, `None` waits for ever.
    pub(crate) budget: Option<Duration>,
    pub(crate) options: &'a Options,
}

/// Waits for a lock. When the future is dropped, whatever it left in the store is released in the background (H1.8).
pub(crate) async fn acquire(engine: &Engine, request: Request<'_>) -> Result<Arc<HoldCell>, AcquireError> {
    let is_forked = || Err(AcquireError::Backend(forked()));
    let span = engine.spans().acquire(request.name);
    let acquiring = drive(engine, request, &span);
    if span.is_disabled() {
        return engine.unless_forked(is_forked, acquiring).await;
    }
    engine.unless_forked(is_forked, acquiring.instrument(span.clone())).await
}

async fn drive(engine: &Engine, request: Request<'_>, span: &Span) -> Result<Arc<HoldCell>, AcquireError> {
    // A store that always answers at once must not keep the caller's other tasks from running.
    tokio::task::coop::consume_budget().await;
    // First: what is granted and not renewed, or cannot be given back, is not to be asked for.
    engine.start_keeper().map_err(|error| AcquireError::NoKeeper(Arc::new(error)))?;
    let began = engine.host.now();
    let mut now = began;
    request.options.progress.iter().for_each(|progress| progress.begin(request.name));
    let waits = request.budget.is_none_or(|budget| !budget.is_zero());
    // Who does not wait may find a lease that is kept idle here.
    let looks = waits || request.options.idle.is_some();
    let give_away = |cell: &HoldCell| engine.give_away(cell);
    let join = || engine.local_queues.join(request.name, request.options, request.timing, &give_away);
    let queued = looks.then(join).flatten();
    if let Some(queued) = &queued {
        match wait_locally(engine, queued, &request, began).await? {
            Entry::Passed(cell) => {
                span.record("owner", field::display(cell.owner()));
                span.record("token", field::display(cell.grant().token));
                return Ok(cell);
            }
            Entry::Store(at) => now = at,
        }
    }
    let mut attempt = Attempt::new(engine, began, &request, queued);
    span.record("owner", field::display(attempt.claim.owner));
    loop {
        now = match attempt.machine.poll(now) {
            Action::Ask { fresh_owner } => {
                if fresh_owner {
                    attempt.renew_owner(span);
                }
                attempt.ask(now).await
            }
            Action::Wait { until } => attempt.wait(until).await,
            Action::Return => attempt.give_back(now).await,
            Action::Finish(verdict) => {
                if let Verdict::Granted { grant, .. } = &verdict {
                    span.record("token", field::display(grant.token));
                }
                return attempt.finish(now, verdict, &request);
            }
        };
    }
}

/// How a wait behind others of this process ends.
enum Entry {
    /// With the lease that one of them passed on.
    Passed(Arc<HoldCell>),
    /// The store is to be asked, from then on.
    Store(Moment),
}

/// Waits behind other waiters of this process, of which the store is to hear first.
async fn wait_locally(
    engine: &Engine,
    queued: &LocalWaiter<'_>,
    request: &Request<'_>,
    began: Moment,
) -> Result<Entry, AcquireError> {
    let (host, mut now) = (&engine.host, began);
    let patience = patience(request);
    let over = async {
        match request.budget {
            Some(budget) => host.sleep_until(began + budget).await,
            None => pending().await,
        }
    };
    tokio::pin!(over);
    loop {
        let turn;
        (turn, now) = match queued.turn_now(now) {
            Some(turn) => (Some(turn), now),
            None => {
                if let Some(progress) = &request.options.progress {
                    let (ahead, holder) = (Some(queued.ahead()), queued.holder());
                    progress.show(Waiting { ahead, holder, failing: None });
                }
                tokio::select! {
                    biased;
                    (turn, at) = queued.turn(&**host, now) => (Some(turn), at),
                    () = &mut over => (None, host.now()),
                }
            }
        };
        match turn {
            // It came too late to be believed: the store may still count us in, until the ttl ends.
            Some(Turn::Passed(cell)) if cell.take(now).is_err() => engine.give_away(&cell),
            Some(Turn::Passed(cell)) => return Ok(Entry::Passed(cell)),
            Some(Turn::Store) => match queued.failed(now, patience) {
                Some(error) => return Err(AcquireError::Backend(error)),
                None => return Ok(Entry::Store(now)),
            },
            None => {
                return Err(queued.failed(now, Duration::ZERO).map_or_else(
                    || AcquireError::TimedOut {
                        waited: began.elapsed(now),
                        ahead: Some(queued.ahead()),
                        holder: queued.holder().map(Box::new),
                    },
                    AcquireError::Backend,
                ));
            }
        }
    }
}

/// How long the store may fail in a row.
fn patience(request: &Request<'_>) -> Duration {
    request.options.patience.or(request.budget).unwrap_or(PATIENCE)
}

/// One acquisition under way. Every step ends with a reading of the clocks, with which the next one begins.
struct Attempt<'a> {
    engine: &'a Engine,
    machine: Acquisition,
    claim: Claim,
    options: &'a Options,
    /// Where hints arrive; a claim that does not wait needs none.
    hints: Option<Subscription<'a>>,
    /// In the queue of this process, where the store takes only a few waiters of one.
    queued: Option<LocalWaiter<'a>>,
    self_wait: SelfWait,
    granted: bool,
    /// What was granted last, which may be a part of what was asked for: a slot of a semaphore.
    granted_as: Option<LockName>,
    /// Of an owner that was chosen: a lease of it that was lost before is not to end this one.
    _expected: Option<Expected<'a>>,
}

impl<'a> Attempt<'a> {
    fn new(engine: &'a Engine, now: Moment, request: &Request<'a>, queued: Option<LocalWaiter<'a>>) -> Self {
        let (fresh, seed) = engine.new_owner_and_seed();
        let options = request.options;
        let owner = options.owner.unwrap_or(fresh);
        let machine = Acquisition::new(now, request.timing, request.budget, patience(request), seed);
        let machine = if options.owner.is_some() { machine.keeping_owner() } else { machine };
        let claim = Claim {
            name: request.name.clone(),
            owner,
            mode: request.mode,
            ttl: request.timing.ttl(),
            label: options.label.clone(),
            block: 1,
            wait: machine.wait(),
            asker: Default::default(),
        };
        let hints = (claim.wait != Wait::No).then(|| engine.waiters.subscribe(claim.owner));
        let (self_wait, granted, granted_as) = (SelfWait::default(), false, None);
        let _expected = options.owner.map(|owner| engine.expect(owner));
        Self { engine, machine, claim, options, hints, queued, self_wait, granted, granted_as, _expected }
    }

    /// What was given back late must not be taken for what is asked for next (H3.4).
    fn renew_owner(&mut self, span: &Span) {
        self.leave_what_may_come();
        self.claim.owner = self.engine.new_owner();
        self.hints = self.hints.take().map(|_| self.engine.waiters.subscribe(self.claim.owner));
        span.record("owner", field::display(self.claim.owner));
    }

    async fn ask(&mut self, sent_at: Moment) -> Moment {
        let timeout = self.machine.request_timeout(sent_at);
        self.claim.block = self.queued.as_ref().map_or(1, LocalWaiter::block);
        self.machine.on_sent(sent_at);
        self.queued.iter().for_each(|queued| queued.on_due(sent_at + timeout));
        let progress = self.options.progress.as_ref();
        progress.iter().for_each(|progress| progress.on_sent(sent_at));
        // A store that is busy for a moment is asked again in there, and may be busy for long.
        let asked = || async {
            let answer = Asked::new(self.engine, &self.claim, self.options.owner.is_some()).await;
            if let (Err(error), Some(progress)) = (&answer, progress) {
                progress.on_trouble(error);
            }
            answer
        };
        let answer = request::request(&*self.engine.host, sent_at, timeout, asked).await;
        if let Err(error) = &answer {
            tracing::debug!(lock = %self.claim.name, %error, "a claim failed");
        }
        if let Ok(ClaimAnswer::Granted(grant)) = &answer {
            self.granted_as = Some(grant.name.clone());
        }
        let (failing, is_granted) =
            (answer.as_ref().err().cloned(), matches!(answer, Ok(ClaimAnswer::Granted(_))));
        let now = self.engine.host.now();
        let answer = answer.map(|answer| self.recognised(answer));
        self.machine.on_answer(now, answer);
        if failing.is_none() && !is_granted {
            self.self_wait.on_holder(now, &self.claim.name, self.machine.standing().1);
        }
        if let Some(queued) = &self.queued {
            match &failing {
                Some(error) => queued.on_failure(now, error),
                None => queued.on_answer(self.machine.standing()),
            }
        }
        if let Some(progress) = &self.options.progress {
            let (ahead, holder) = self.machine.standing();
            progress.show(Waiting { ahead, holder: holder.cloned(), failing: failing.clone() });
        }
        if failing.is_some() || is_granted {
            return now;
        }
        if let Some(owner) = self.idle_holder() {
            // In a box what is rare: the future of every acquisition would have room for it.
            Box::pin(self.tell_holder(now, owner)).await;
        }
        self.engine.host.now()
    }

    /// A holder that may have nothing to do, if nobody is ahead who tells it that somebody waits.
    fn idle_holder(&self) -> Option<OwnerId> {
        let (ahead, holder) = self.machine.standing();
        let is_idle = |holder: &&HolderView| holder.label.as_ref().is_some_and(|label| label.idles);
        let holder = holder.filter(is_idle).filter(|_| ahead.is_none_or(|ahead| ahead == 0));
        holder.and_then(|holder| holder.owner.parse().ok())
    }

    /// Tells it, unless a hint comes meanwhile: the store may have told it as well, and it has given the lock back.
    async fn tell_holder(&mut self, now: Moment, owner: OwnerId) {
        let (engine, name, timeout) =
            (self.engine, self.claim.name.clone(), self.machine.request_timeout(now));
        let told = async move {
            let tell = || engine.backend.tell(&name, Audience::Holders, owner);
            if let Err(error) = engine.request(now, timeout, tell).await {
                tracing::debug!(lock = %name, %error, "the holder was not told that somebody waits");
            }
        };
        self.unless_woken(told).await;
    }

    /// The answer, with a word about whether the holder is this process.
    fn recognised(&self, mut answer: ClaimAnswer) -> ClaimAnswer {
        match &mut answer {
            ClaimAnswer::Queued { holder, .. }
            | ClaimAnswer::Split { holder, .. }
            | ClaimAnswer::Busy { holder, .. } => {
                holder.iter_mut().for_each(|holder| self.engine.recognise(holder));
            }
            ClaimAnswer::Granted(_) => {}
        }
        answer
    }

    async fn wait(&mut self, until: Moment) -> Moment {
        self.queued.iter().for_each(|queued| queued.on_due(until));
        let timer = self.engine.host.sleep_until(until);
        self.unless_woken(timer).await;
        self.engine.host.now()
    }

    /// Until this is over, or a hint has come.
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

    async fn give_back(&mut self, now: Moment) -> Moment {
        let Claim { name, owner, ttl, .. } = &self.claim;
        let name = self.granted_as.as_ref().unwrap_or(name);
        let timeout = self.machine.request_timeout(now);
        let release = || self.engine.backend.release(name, *owner);
        let answer = request::request(&*self.engine.host, now, timeout, release).await;
        // A claim that is still under way may be granted behind it.
        if answer.is_err() || self.engine.in_flight().is_open(*owner) {
            self.engine.reap_claim(name.clone(), *owner, *ttl);
        }
        self.granted_as = None;
        self.machine.on_returned();
        self.engine.host.now()
    }

    fn finish(
        mut self,
        now: Moment,
        verdict: Verdict,
        request: &Request<'_>,
    ) -> Result<Arc<HoldCell>, AcquireError> {
        match verdict {
            Verdict::Granted { grant, until } => {
                self.granted = true;
                let host = &self.engine.host;
                let cap = self.options.max_hold.map(|max_hold| now + max_hold);
                let cell = Arc::new(HoldCell::new(grant, until, request.timing, cap, host.clone()));
                if self.options.owner.is_some() {
                    cell.tell_owner();
                }
                self.queued.iter().for_each(|queued| queued.on_granted(now, &cell, &self.claim));
                self.engine.keep(now, cell.clone());
                Ok(cell)
            }
            Verdict::TimedOut { waited, ahead, holder } => {
                Err(AcquireError::TimedOut { waited, ahead, holder: holder.map(Box::new) })
            }
            Verdict::Failed(Failure(error)) => Err(AcquireError::Backend(error)),
        }
    }
}

impl Attempt<'_> {
    /// What this owner has, or may yet be granted, is released in the background.
    fn leave_what_may_come(&mut self) {
        let Claim { name, owner, ttl, .. } = &self.claim;
        if self.machine.may_be_there() || self.engine.in_flight().is_open(*owner) {
            let name = self.granted_as.take().unwrap_or_else(|| name.clone());
            self.engine.reap_claim(name, *owner, *ttl);
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.granted && self.engine.is_ours() {
            self.leave_what_may_come();
        }
    }
}

/// A claim on its way, in the hands of its asker. Dropped before its answer, it is left to a task: see `in_flight`.
struct Asked<'a> {
    engine: &'a Engine,
    owner: OwnerId,
    /// How long it may last, whatever it is granted.
    life: Duration,
    asker: Asker,
    asking: Option<BoxFuture<'static, Answer>>,
    /// What was never polled was not sent.
    is_sent: bool,
    /// The program chose the owner, and may repeat the claim elsewhere: one answered release is the last one.
    is_chosen: bool,
}

impl<'a> Asked<'a> {
    /// Nothing is sent before it is polled.
    fn new(engine: &'a Engine, claim: &Claim, is_chosen: bool) -> Self {
        let (backend, owner, life) = (engine.backend.clone(), claim.owner, life_of(claim.ttl));
        let asker = Asker::new();
        let claim = Claim { asker: asker.clone(), ..claim.clone() };
        let asking = Some(Box::pin(async move { backend.claim(&claim).await }) as BoxFuture<'static, Answer>);
        Self { engine, owner, life, asker, asking, is_sent: false, is_chosen }
    }
}

impl Future for Asked<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        self.is_sent = true;
        let asking = self.asking.as_mut().expect("BUG: polled after its answer");
        let answer = std::task::ready!(asking.as_mut().poll(context));
        self.asking = None;
        if is_unknown(&answer) && !self.is_chosen {
            let until = self.engine.host.now() + self.life;
            self.engine.in_flight().set_unknown(self.owner, until);
        }
        Poll::Ready(answer)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Some(asking) = self.asking.take().filter(|_| self.is_sent) else { return };
        self.asker.leave();
        if self.engine.is_ours() {
            let host = self.engine.host.clone();
            let (owner, life, is_chosen) = (self.owner, self.life, self.is_chosen);
            let left = self.engine.in_flight().leave(owner, life, is_chosen, host.clone(), asking);
            // It goes on in its own runtime, where its timers are. Outside of any its outcome stays unknown.
            drop(host.try_spawn(Box::pin(left.finish())));
        } else {
            // It has locks in it that another thread of the parent may have held.
            mem::forget(asking);
        }
    }
}

//! Programs: each asks for locks, writes to what they protect and releases them, or does not.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use futures_util::future::{Either, join, select};
use tenure::{AcquireError, ConfigError, Guard, Lock, Locker, ReleaseError, ownership::Ownership};
use tenure_core::{ErrorKind, Mode, Outcome, OwnerId, Priority, Sharing};

use crate::{
    chance::Chance,
    clockwork::{Micros, Pid},
    history::{AskId, GrantId, Leaving, LockId, NotEntered, Patience, ReleaseAnswer, What, lock_id},
    host::Clock,
    owned::Transaction,
    world::World,
};

const TWO: NonZeroU32 = NonZeroU32::new(2).expect("BUG: it is not zero");
const THREE: NonZeroU32 = NonZeroU32::new(3).expect("BUG: it is not zero");

/// A lock of the world, and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Mutex,
    /// Only write locks: each waiter has its own place in the store's queue.
    Write,
    /// Read locks and write locks.
    ReadWrite,
    /// Two slots.
    Semaphore,
}

/// How a program behaves.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    pub(crate) locks: Vec<Use>,
    /// How long a name is used. Then another one takes its place, so that locks are repeatedly taken for the first time.
    pub(crate) renamed_every: Option<Micros>,
    pub(crate) ttl: Duration,
    /// Between two acquisitions, in ms.
    pub(crate) rest: (u64, u64),
    /// All programs of the process ask at the same time, once per interval of this length, and hold for an instant.
    pub(crate) crowds_every: Option<Micros>,
    /// How often it asks before it rests.
    pub(crate) asks: usize,
    /// How long the process keeps the lease of a mutex without work.
    pub(crate) idle: Option<Duration>,
    /// Asks for several locks together, or for one of several.
    pub(crate) several: bool,
    /// Leaves some leases to another process, which works under them until they expire.
    pub(crate) detaches: bool,
    /// Writes in transactions of the store that rely on the owner, and chooses some owners.
    pub(crate) transacts: bool,
    /// Asks in classes, where the store has some.
    pub(crate) classes: bool,
    /// So many holds in a thousand may last longer than the ttl.
    pub(crate) long: u64,
    /// How many acquisitions in a thousand the program gives up half-way.
    pub(crate) fickle: u64,
}

pub(crate) struct Program {
    pub(crate) world: Arc<World>,
    pub(crate) process: Pid,
    pub(crate) clock: Arc<Clock>,
    pub(crate) locker: Locker,
    pub(crate) habits: Habits,
    pub(crate) chance: Chance,
    /// An owner that was released, and that the program may choose again.
    pub(crate) former: Option<OwnerId>,
    /// What it showed of a lease that it has released.
    pub(crate) stale: Option<(Ownership, GrantId, LockId, u64)>,
}

/// An acquisition under way. Without another result it is noted as given up.
struct Asking<'a> {
    world: &'a World,
    ask: AskId,
    is_over: bool,
}

impl Asking<'_> {
    fn failed(mut self, why: NotEntered) {
        self.is_over = true;
        self.world.note(What::NotEntered { ask: self.ask, why });
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.world.note(What::NotEntered { ask: self.ask, why: NotEntered::GaveUp });
        }
    }
}

/// What a program holds. When it is dropped, it first ends the tenure, and then drops the guard.
struct Tenure {
    world: Arc<World>,
    grant: GrantId,
    guard: Option<Arc<Guard>>,
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.world.disbelieve(self.grant, Leaving::Dropped);
        }
    }
}

pub(crate) fn micros(d: Duration) -> Micros {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

impl Program {
    pub(crate) async fn run(mut self) {
        loop {
            let rest = self.rest();
            self.pause(rest).await;
            for _ in 0..self.habits.asks {
                match self.habits.several {
                    true => self.several().await,
                    false => self.once().await,
                }
            }
        }
    }

    fn rest(&mut self) -> Duration {
        let (low, high) = self.habits.rest;
        let Some(every) = self.habits.crowds_every else { return self.chance.millis(low, high) };
        let until_next = every - self.world.now() % every;
        Duration::from_micros(until_next) + self.chance.millis(0, 2)
    }

    pub(crate) async fn pause(&self, d: Duration) {
        self.world.clockwork.until(self.world.now() + micros(d)).await;
    }

    fn choose(&mut self) -> (LockId, Lock, Mode, bool, bool) {
        let at = self.chance.index(self.habits.locks.len());
        let times = self.habits.renamed_every.map_or(0, |every| (self.world.now() / every).min(11));
        let letter = u8::try_from(times).expect("BUG: a few") * 2
            + u8::try_from(at).expect("BUG: a world has few locks");
        let (id, name) = (u16::from(letter) * 256, char::from(b'a' + letter).to_string());
        let mut keeps = false;
        let (lock, mode) = match self.habits.locks[at] {
            Use::Mutex if self.chance.per_mille(100) => (self.locker.mutex(name).fifo(), Mode::Exclusive),
            Use::Mutex => {
                keeps = self.habits.idle.is_some();
                // Zero means not at all.
                (self.locker.mutex(name).keep_idle(self.habits.idle.unwrap_or_default()), Mode::Exclusive)
            }
            Use::Write => (self.locker.rwlock(name).write(), Mode::Exclusive),
            Use::ReadWrite if self.chance.per_mille(400) => {
                (self.locker.rwlock(name).write(), Mode::Exclusive)
            }
            Use::ReadWrite => (self.locker.rwlock(name).read(), Mode::READ),
            Use::Semaphore => {
                let is_counted = self.locker.promises().sharing == Sharing::Counted;
                let slots = if is_counted { THREE } else { TWO };
                let permits = if is_counted && self.chance.per_mille(400) { TWO } else { NonZeroU32::MIN };
                let lock = self.locker.semaphore(name, slots.get()).take(permits.get());
                (lock, Mode::several(slots, permits).expect("BUG: no more than there are"))
            }
        };
        let lock = match self.former.take() {
            Some(owner) if mode == Mode::Exclusive && !keeps => lock.owner(owner),
            _ => lock,
        };
        let priority = self.priority();
        let lock = if keeps { lock } else { lock.priority(priority) };
        let is_queue = self.habits.locks[at] == Use::Mutex && (keeps || priority == Priority::Normal);
        (id, lock.ttl(self.habits.ttl), mode, is_queue, keeps)
    }

    /// The class of the next claim.
    fn priority(&mut self) -> Priority {
        if !self.habits.classes || !self.locker.promises().classes {
            return Priority::Normal;
        }
        self.chance.pick(&[
            Priority::Normal,
            Priority::Low,
            Priority::High,
            Priority::Urgent,
            Priority::Urgent,
        ])
    }

    async fn once(&mut self) {
        let (id, lock, mode, is_queue, keeps) = self.choose();
        let is_healed = self.world.is_healed();
        let fate = if is_healed { 999 } else { self.chance.below(1000) };
        let patience = match fate {
            0..200 => Patience::None,
            200..400 => Patience::Some(self.chance.between(50_000, 8_000_000)),
            _ => Patience::Endless,
        };
        let gives_up = self.chance.per_mille(self.habits.fickle) && !is_healed;
        let gives_up_after = gives_up.then(|| self.chance.millis(0, 900));
        let world = self.world.clone();
        let ask = world.next_ask();
        let (process, limit) = (self.process, mode.limit());
        world.note(What::Asked { ask, process, lock: id, patience, limit, is_queue, keeps });
        let asking = Asking { world: &world, ask, is_over: false };
        let acquiring = Box::pin(async move {
            match patience {
                Patience::None => lock.try_acquire().await,
                Patience::Endless => lock.acquire().await.map(Some),
                Patience::Some(us) => lock.within(Duration::from_micros(us)).acquire().await.map(Some),
            }
        });
        let answer = match gives_up_after {
            None => acquiring.await,
            Some(after) => match select(acquiring, Box::pin(self.pause(after))).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => return,
            },
        };
        match answer {
            Ok(Some(guard)) => self.hold(mode, guard, asking, is_healed).await,
            Ok(None) | Err(AcquireError::TimedOut { .. }) => asking.failed(NotEntered::Busy),
            // It asked for a longer lease than the server's record allows.
            Err(AcquireError::Store(error)) if error.kind() == ErrorKind::Invalid => {
                asking.failed(NotEntered::GaveUp)
            }
            Err(AcquireError::Store(error)) => {
                asking.failed(NotEntered::Failed(error.outcome() == Outcome::NotApplied));
            }
            // The owner that it has chosen again is still being released.
            Err(AcquireError::Config(ConfigError::OwnerInUse { .. })) => asking.failed(NotEntered::GaveUp),
            Err(error) => unreachable!("BUG: a program asks in vain: {error}"),
        }
    }

    async fn hold(&mut self, mode: Mode, guard: Guard, mut asking: Asking<'_>, is_healed: bool) {
        let world = self.world.clone();
        let (lock, guard) = (lock_id(guard.name()), Arc::new(guard));
        let (token, process) = (guard.token().get(), self.process);
        let owner = world.owner_of(lock, token);
        let grant = world.believe(process, &guard, &self.clock);
        let (ask, limit, permits) = (asking.ask, mode.limit(), mode.permits());
        asking.is_over = true;
        world.note(What::Entered { ask, grant, process, lock, owner, token, last: token, limit, permits });
        let mut tenure = Tenure { world: world.clone(), grant, guard: Some(guard) };
        let ttl = micros(self.habits.ttl) / 1000;
        let length = match self.chance.below(1000) {
            0..900 if self.habits.crowds_every.is_some() => Duration::from_micros(self.chance.below(800)),
            _ if is_healed => self.chance.millis(5, 500),
            fate if fate < self.habits.long => self.chance.millis(ttl / 2, ttl * 5 / 2),
            // Short enough for waiters of the same process to have turns.
            0..400 => self.chance.millis(0, 4),
            400..800 => self.chance.millis(5, 600),
            _ => self.chance.millis(5, 2000),
        };
        let mut late = None;
        if self.habits.transacts && mode == Mode::Exclusive && self.chance.per_mille(700) {
            late = self.transact(&tenure, (lock, token)).await;
        } else {
            self.work(&tenure, lock, mode, token, length).await;
        }
        // A lease that was not shown may have been passed on with its owner.
        let shown = late.clone();
        let mut ownership = late.filter(|_| self.chance.per_mille(300));
        if self.chance.per_mille(300) {
            return;
        }
        let guard = tenure.guard.take().expect("BUG: it was there");
        let races = self.habits.transacts && mode == Mode::Exclusive && self.chance.per_mille(300);
        let clone = races.then(|| guard.lease());
        if self.habits.detaches && !is_healed && self.chance.per_mille(100) {
            return self.detach(grant, guard).await;
        }
        world.disbelieve(grant, Leaving::Released);
        let guard = Arc::try_unwrap(guard).expect("BUG: the program has the only guard");
        let released = match clone {
            Some(clone) => {
                // A clone of the lease asks for ownership while the guard releases it.
                let (asked, released) = join(Box::pin(clone.ownership()), Box::pin(guard.release())).await;
                ownership = asked.ok().or(ownership);
                released
            }
            None => guard.release().await,
        };
        let answer = match released {
            Ok(()) => ReleaseAnswer::Released,
            Err(ReleaseError::AlreadyLost(_)) => ReleaseAnswer::AlreadyLost,
            Err(_) => ReleaseAnswer::Unknown,
        };
        if answer == ReleaseAnswer::Released && shown.is_some() && self.chance.per_mille(300) {
            self.former = Some(owner);
            self.stale = shown.map(|ownership| (ownership, grant, lock, token));
        }
        world.note(What::Answered { grant, answer });
        // A client that was told that it holds no more, and writes nevertheless.
        if let Some(ownership) = ownership {
            let transaction = Transaction::begin(&world, self.habits.ttl, false);
            let rest = self.chance.millis(0, 900);
            self.pause(rest).await;
            if transaction.rely(&ownership, (grant, lock, token)) {
                transaction.commit(grant, lock, token);
            }
        }
    }

    /// Writes in a few transactions, and rests before each step, at times for longer than the ttl. Returns what it showed.
    async fn transact(&mut self, tenure: &Tenure, (lock, token): (LockId, u64)) -> Option<Ownership> {
        let guard = tenure.guard.as_ref().expect("BUG: it is there");
        let ownership = guard.ownership().await.ok()?;
        // A late transaction of the former lease, perhaps under the same owner.
        if let Some((stale, grant, of, former)) = self.stale.take() {
            let transaction = Transaction::begin(&self.world, self.habits.ttl, false);
            if transaction.rely(&stale, (grant, of, former)) {
                transaction.commit(grant, of, former);
            }
        }
        for _ in 0..1 + self.chance.index(3) {
            let is_cut_off = self.chance.per_mille(300) && !self.world.is_healed();
            let transaction = Transaction::begin(&self.world, self.habits.ttl, is_cut_off);
            self.rest_in_transaction().await;
            if !transaction.rely(&ownership, (tenure.grant, lock, token)) {
                break;
            }
            self.rest_in_transaction().await;
            transaction.commit(tenure.grant, lock, token);
        }
        Some(ownership)
    }

    /// One that began before the faults have ended lasts no longer than other holds (S7.4).
    async fn rest_in_transaction(&mut self) {
        let ttl = micros(self.habits.ttl) / 1000;
        let is_long = self.chance.per_mille(250) && !self.world.is_healed();
        let rest = if is_long { self.chance.millis(0, ttl * 5 / 2) } else { self.chance.millis(0, 60) };
        self.pause(rest).await;
    }

    /// Another process works under the lease from then on, for as long as this one has known that it lasts. Until the answer
    /// it is this process that treats it as held.
    async fn detach(&mut self, grant: GrantId, guard: Arc<Guard>) {
        let guard = Arc::try_unwrap(guard).expect("BUG: the program has the only guard");
        match guard.detach().await {
            Ok(_) => self.world.pass_to_another(grant),
            Err(_) => self.world.disbelieve(grant, Leaving::Dropped),
        }
    }

    /// Checks the guard now and then, and writes if it is held, until the time has passed or the lease is lost.
    async fn work(&mut self, tenure: &Tenure, lock: LockId, mode: Mode, token: u64, length: Duration) {
        let guard = tenure.guard.as_ref().expect("BUG: it is there");
        let over = self.world.now() + micros(length);
        let is_listening = self.chance.per_mille(300);
        loop {
            if self.world.check(tenure.grant, &**guard) && mode == Mode::Exclusive {
                let is_late = self.chance.per_mille(50);
                let after = if is_late { self.chance.millis(100, 8000) } else { self.chance.millis(0, 5) };
                self.world.write(tenure.grant, lock, token, after);
            }
            let step = self.chance.millis(50, 1500);
            let next = (self.world.now() + micros(step)).min(over);
            if is_listening {
                let sleep = self.world.clockwork.until(next);
                if let Either::Left(_) = select(Box::pin(guard.lost()), sleep).await {
                    self.world.check(tenure.grant, &**guard);
                    return;
                }
            } else {
                self.world.clockwork.until(next).await;
            }
            if self.world.now() >= over {
                self.world.check(tenure.grant, &**guard);
                return;
            }
        }
    }
}

//! `RemoteCells`: a client's handle to a server of cells. The locks in them are those of `tenure-cas`.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tenure_cas::{
    Cell, Failure, Listed, Look, Made, NewPlace, Newcomer, OldPlace, Patience, Purpose, Reading, Stored,
    TOLERANCE, Trouble, Write,
};
use tenure_core::{
    Absent, Audience, BackendError, EndOfGrant, ErrorKind, Finding, Hint, Host, LockName, Memos, Minting,
    Order, Outcome, ProcessId, Promises, Restart, Sharing, WakeUp, Wakes, locked,
};
use tenure_testkit::cells::words;

use crate::{
    history::Machine,
    server::{Ask, EnqueueAsk, Reply, Request, Told, WriteAsk},
    world::{NoAnswer, World},
};

/// The server of a world of cells.
const SERVER: usize = 0;

/// A handle to it.
pub(crate) struct RemoteCells {
    world: Arc<World>,
    host: Arc<dyn Host>,
    machine: Machine,
    max_ttl: Duration,
    listeners: Arc<Mutex<Vec<ProcessId>>>,
    /// The epoch of the server in which the connection was made.
    connection: Mutex<Option<u64>>,
}

impl RemoteCells {
    pub(crate) fn new(world: Arc<World>, host: Arc<dyn Host>, machine: Machine, max_ttl: Duration) -> Self {
        Self { world, host, machine, max_ttl, listeners: Arc::default(), connection: Mutex::default() }
    }

    async fn send(&self, over: Option<u64>, ask: Ask) -> Result<Told, NoAnswer> {
        let request = Request::Cells { from: self.machine, ask };
        let told =
            self.world.send(self.machine, SERVER, over, request).await.unwrap_or(Err(NoAnswer::Silent));
        if told.is_err() && locked(&self.connection).take_if(|known| Some(*known) == over).is_some() {
            // Hints may have been missed.
            for listener in locked(&self.listeners).iter() {
                self.world.bells[SERVER].ring_all(*listener, Audience::Waiters);
            }
        }
        match told? {
            Reply::Cells(told) => Ok(told),
            other => unreachable!("BUG: {other:?} from a server of cells"),
        }
    }

    async fn ask(&self, over: u64, ask: Ask) -> Result<Told, Failure> {
        self.send(Some(over), ask).await.map_err(|failure| Failure::Broken(unanswered(failure)))
    }
}

fn unanswered(failure: NoAnswer) -> BackendError {
    let (kind, message) = match failure {
        NoAnswer::Refused => (ErrorKind::Unavailable, "nobody listens there"),
        NoAnswer::Reset => (ErrorKind::Unavailable, "the connection was cut"),
        NoAnswer::Silent => (ErrorKind::TimedOut, "no answer"),
    };
    BackendError::new(kind, Outcome::NotApplied, message)
}

/// What no program of a world asks for.
fn unsupported() -> Failure {
    let message = "not in a simulated world";
    Failure::Refused(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message))
}

fn written(told: Told) -> Vec<Option<Stored>> {
    let Told::Written(stored) = told else { unreachable!("BUG: {told:?} to a write") };
    stored
}

fn read(told: Told) -> Vec<Reading> {
    let Told::Read(readings) = told else { unreachable!("BUG: {told:?} to a reading") };
    readings
}

#[async_trait]
impl Cell for RemoteCells {
    type Connection = u64;

    fn promises(&self) -> Promises {
        let mut promises = Promises::least("cells");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        promises.restart = Restart::Survives;
        promises.fail_over = Some(Restart::Lost);
        promises.reach = "one world";
        promises.end = EndOfGrant::Ttl;
        promises.wake = WakeUp::Pushed;
        promises.memo = Memos::Kept;
        promises.max_ttl = self.max_ttl;
        promises.ttl_grain = TOLERANCE;
        promises
    }

    async fn another(&self) -> Result<Self, BackendError> {
        let handle = Self {
            world: self.world.clone(),
            host: self.host.clone(),
            listeners: self.listeners.clone(),
            connection: Mutex::default(),
            ..*self
        };
        handle.connect(Purpose::Keep).await?;
        Ok(handle)
    }

    async fn connect(&self, _purpose: Purpose) -> Result<u64, BackendError> {
        if let Some(known) = *locked(&self.connection) {
            return Ok(known);
        }
        match self.send(None, Ask::Connect).await.map_err(unanswered)? {
            Told::Connected(epoch) => Ok(*locked(&self.connection).insert(epoch)),
            other => unreachable!("BUG: {other:?} to a connection"),
        }
    }

    async fn read(&self, over: &u64, name: &LockName, look: &Look) -> Result<Reading, Failure> {
        let ask = Ask::Read(vec![name.clone()], look.clone());
        read(self.ask(*over, ask).await?).pop().ok_or(Failure::Overtaken)
    }

    async fn read_many(&self, over: &u64, names: &[&LockName]) -> Result<Vec<Option<Reading>>, Failure> {
        let names = names.iter().copied().cloned().collect();
        let readings = read(self.ask(*over, Ask::Read(names, Look::default())).await?);
        Ok(readings.into_iter().map(|reading| (reading.version != 0).then_some(reading)).collect())
    }

    async fn make(&self, over: &u64, name: &LockName, state: &str) -> Result<Option<Made>, Failure> {
        match self.ask(*over, Ask::Make(name.clone(), state.to_owned())).await? {
            Told::Made(made) => Ok(made),
            other => unreachable!("BUG: {other:?} to a new cell"),
        }
    }

    async fn write(&self, over: &u64, name: &LockName, write: &Write<'_>) -> Result<Option<Stored>, Failure> {
        loop {
            let ask = Ask::Write(vec![(name.clone(), WriteAsk::of(write))]);
            match self.ask(*over, ask).await? {
                Told::Locked(wait) if write.patience == Patience::Any => {
                    self.host.sleep_until(self.host.now() + wait).await;
                }
                Told::Locked(_) => return Err(Failure::Locked),
                told => return Ok(written(told).pop().flatten()),
            }
        }
    }

    async fn enqueue(
        &self,
        over: &u64,
        name: &LockName,
        place: &Newcomer<'_>,
    ) -> Result<Option<Reading>, Failure> {
        match self.ask(*over, Ask::Enqueue(name.clone(), EnqueueAsk::of(place))).await? {
            Told::Enqueued(reading) => Ok(reading),
            Told::Locked(_) => Err(Failure::Locked),
            other => unreachable!("BUG: {other:?} to a newcomer"),
        }
    }

    fn batch(&self) -> usize {
        128
    }

    async fn write_many(
        &self,
        over: &u64,
        writes: &[(&LockName, Write<'_>)],
    ) -> Result<Vec<Option<Stored>>, Failure> {
        let writes = writes.iter().map(|(name, write)| ((*name).clone(), WriteAsk::of(write)));
        Ok(written(self.ask(*over, Ask::Write(writes.collect())).await?))
    }

    async fn append_place(
        &self,
        over: &u64,
        name: &LockName,
        place: &NewPlace<'_>,
    ) -> Result<Option<String>, Failure> {
        let NewPlace { owner, state, may_be_there, behind } = *place;
        let (name, state, behind) = (name.clone(), state.to_owned(), behind.to_owned());
        match self.ask(*over, Ask::Append { name, owner, state, may_be_there, behind }).await? {
            Told::Appended(key) => Ok(key),
            other => unreachable!("BUG: {other:?} to a place"),
        }
    }

    async fn keep_place(&self, over: &u64, key: &str, state: &str) -> Result<bool, Failure> {
        let told = self.ask(*over, Ask::Keep { key: key.to_owned(), state: state.to_owned() }).await?;
        Ok(matches!(told, Told::Done(true)))
    }

    async fn remove_place(&self, over: &u64, name: &LockName, place: &OldPlace<'_>) -> Result<bool, Failure> {
        let OldPlace { owner, key, may_have_another } = *place;
        let ask = Ask::Remove { name: name.clone(), owner, key: key.to_owned(), may_have_another };
        Ok(matches!(self.ask(*over, ask).await?, Told::Done(true)))
    }

    async fn list(&self, _over: &u64, _prefix: &str) -> Result<Vec<Listed>, Failure> {
        Err(unsupported())
    }

    fn error(&self, trouble: Trouble) -> BackendError {
        words(&trouble)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        Ok(Vec::new())
    }

    async fn tell(&self, over: &u64, hint: Hint) -> Result<(), Failure> {
        self.ask(*over, Ask::Tell(hint)).await.map(drop)
    }

    fn reaches(&self, hint: Hint) -> bool {
        locked(&self.listeners).contains(&hint.owner.process())
    }

    fn ring(&self, hint: Hint) {
        if self.reaches(hint) {
            self.world.bells[SERVER].ring(hint.audience, hint.owner);
        }
    }

    fn wakes(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        let mut listeners = locked(&self.listeners);
        if !listeners.contains(&process) {
            listeners.push(process);
        }
        Box::new(self.world.bells[SERVER].listen(process, audience))
    }
}

//! `RemoteCells`: a client's handle to a server of cells. The locks in them are those of `tenure-cas`.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tenure_cas::{
    Cell, CellError, CellReading, CellWrite, Connected, ConnectionPurpose, Listed, NewCell, NewPlace,
    Newcomer, OldPlace, Patience, PlacesBeside, ReadRequest, VerbError, WriteAnswer, promises,
};
use tenure_core::{
    Audience, BackendError, ErrorKind, Hint, Host, LockName, Outcome, Ownership, ProcessId, Promises,
    Restart, SqlOwnership, WakeStream, WakeSupport, locked,
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
    /// Its user may delete places.
    may_delete: bool,
    listeners: Arc<Mutex<Vec<ProcessId>>>,
    /// The epoch of the server in which the connection was made.
    connection: Mutex<Option<u64>>,
}

impl RemoteCells {
    pub(crate) fn new(
        world: Arc<World>,
        host: Arc<dyn Host>,
        machine: Machine,
        (max_ttl, may_delete): (Duration, bool),
    ) -> Self {
        Self {
            world,
            host,
            machine,
            max_ttl,
            may_delete,
            listeners: Arc::default(),
            connection: Mutex::default(),
        }
    }

    async fn send(&self, over: Option<u64>, ask: Ask) -> Result<Told, NoAnswer> {
        let request = Request::Cells { from: self.machine, ask };
        let told =
            self.world.send(self.machine, SERVER, over, request).await.unwrap_or(Err(NoAnswer::Silent));
        if told.is_err() && locked(&self.connection).take_if(|known| Some(*known) == over).is_some() {
            // Hints may have been missed.
            for listener in locked(&self.listeners).iter() {
                self.world.notifier[SERVER].notify_all(*listener, Audience::Waiters);
            }
        }
        match told? {
            Reply::Cells(told) => Ok(told),
            other => unreachable!("BUG: {other:?} from a server of cells"),
        }
    }

    async fn ask(&self, over: u64, ask: Ask) -> Result<Told, CellError> {
        self.send(Some(over), ask).await.map_err(|failure| CellError::Broken(unanswered(failure)))
    }
}

#[async_trait]
impl PlacesBeside<u64> for RemoteCells {
    async fn put(
        &self,
        over: &u64,
        name: &LockName,
        place: &NewPlace<'_>,
    ) -> Result<Option<String>, CellError> {
        let NewPlace { key, owner, class, state, may_be_there, behind, within } = *place;
        if let Some(key) = key {
            let ask = Ask::Keep { key: key.to_owned(), state: state.to_owned(), within };
            let told = self.ask(*over, ask).await?;
            return Ok(matches!(told, Told::Done(true)).then(|| key.to_owned()));
        }
        let (name, state, behind) = (name.clone(), state.to_owned(), behind.to_owned());
        match self.ask(*over, Ask::Append { name, owner, class, state, may_be_there, behind, within }).await?
        {
            Told::Appended(key) => Ok(key),
            other => unreachable!("BUG: {other:?} to a place"),
        }
    }

    async fn remove(&self, over: &u64, name: &LockName, place: &OldPlace<'_>) -> Result<bool, CellError> {
        let OldPlace { owner, key, may_have_another } = *place;
        let ask = Ask::Remove { name: name.clone(), owner, key: key.to_owned(), may_have_another };
        Ok(matches!(self.ask(*over, ask).await?, Told::Done(true)))
    }

    async fn all(&self, _over: &u64, _name: &LockName) -> Result<Vec<String>, CellError> {
        Err(unsupported())
    }
}

impl Clone for RemoteCells {
    fn clone(&self) -> Self {
        let (world, host, listeners) = (self.world.clone(), self.host.clone(), self.listeners.clone());
        Self { world, host, listeners, connection: Mutex::default(), ..*self }
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
fn unsupported() -> CellError {
    let message = "not in a simulated world";
    CellError::Refused(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message))
}

fn written(told: Told) -> Vec<WriteAnswer> {
    let Told::Written(stored) = told else { unreachable!("BUG: {told:?} to a write") };
    stored
}

fn read(told: Told) -> Vec<CellReading> {
    let Told::Read(readings) = told else { unreachable!("BUG: {told:?} to a reading") };
    readings
}

#[async_trait]
impl Cell for RemoteCells {
    type Connection = u64;

    fn promises(&self) -> Promises {
        let mut promises = promises("cells");
        promises.restart = Restart::Survives;
        promises.fail_over = Some(Restart::Lost);
        promises.reach = "one world";
        promises.chosen_owner = true;
        promises.wake = WakeSupport::Pushed;
        promises.max_ttl = self.max_ttl;
        promises
    }

    async fn connect(&self, _purpose: ConnectionPurpose) -> Result<Connected<u64>, BackendError> {
        let known = *locked(&self.connection);
        let over = match known {
            Some(known) => known,
            None => match self.send(None, Ask::Connect).await.map_err(unanswered)? {
                Told::Connected(epoch) => *locked(&self.connection).insert(epoch),
                other => unreachable!("BUG: {other:?} to a connection"),
            },
        };
        Ok(Connected { over, is_notified: true })
    }

    async fn read(&self, over: &u64, name: &LockName, look: &ReadRequest) -> Result<CellReading, CellError> {
        let ask = Ask::Read(vec![name.clone()], look.clone());
        let mut reading = read(self.ask(*over, ask).await?).pop().ok_or(CellError::Overtaken)?;
        reading.overflow.iter_mut().for_each(|overflow| overflow.may_begin = self.may_delete);
        Ok(reading)
    }

    async fn read_many(
        &self,
        over: &u64,
        names: &[&LockName],
    ) -> Result<Vec<Option<CellReading>>, CellError> {
        let names = names.iter().copied().cloned().collect();
        let readings = read(self.ask(*over, Ask::Read(names, ReadRequest::default())).await?);
        Ok(readings.into_iter().map(|reading| (reading.version != 0).then_some(reading)).collect())
    }

    async fn make(&self, over: &u64, name: &LockName, state: &str) -> Result<Option<NewCell>, CellError> {
        match self.ask(*over, Ask::Make(name.clone(), state.to_owned())).await? {
            Told::Made(made) => Ok(made),
            other => unreachable!("BUG: {other:?} to a new cell"),
        }
    }

    async fn write(
        &self,
        over: &u64,
        name: &LockName,
        write: &CellWrite<'_>,
    ) -> Result<WriteAnswer, CellError> {
        loop {
            let ask = Ask::Write(vec![(name.clone(), WriteAsk::of(write))]);
            match self.ask(*over, ask).await? {
                Told::Locked(wait) if write.patience == Patience::Any => {
                    self.host.sleep_until(self.host.now() + wait).await;
                }
                Told::Locked(_) => return Err(CellError::Locked),
                told => return written(told).pop().ok_or(CellError::Overtaken),
            }
        }
    }

    async fn enqueue(
        &self,
        over: &u64,
        name: &LockName,
        place: &Newcomer<'_>,
    ) -> Result<Option<CellReading>, CellError> {
        match self.ask(*over, Ask::Enqueue(name.clone(), EnqueueAsk::of(place))).await? {
            Told::Enqueued(reading) => Ok(reading),
            Told::Locked(_) => Err(CellError::Locked),
            other => unreachable!("BUG: {other:?} to a newcomer"),
        }
    }

    async fn write_many(
        &self,
        over: &u64,
        writes: &[(&LockName, CellWrite<'_>)],
    ) -> Result<Vec<WriteAnswer>, CellError> {
        let writes = writes.iter().map(|(name, write)| ((*name).clone(), WriteAsk::of(write)));
        Ok(written(self.ask(*over, Ask::Write(writes.collect())).await?))
    }

    async fn ownership(
        &self,
        _over: &u64,
        row: &str,
        proof: &str,
        _rest: Duration,
    ) -> Result<Ownership, CellError> {
        Ok(Ownership::Sql(SqlOwnership::new("rely", (row, proof), "rely")))
    }

    async fn stop_relying(
        &self,
        over: &u64,
        name: &LockName,
        write: &CellWrite<'_>,
        text: &str,
    ) -> Result<(), CellError> {
        let stop = Ask::StopRelying(name.clone(), WriteAsk::of(write), text.to_owned());
        self.ask(*over, stop).await.map(drop)
    }

    async fn list(&self, _over: &u64, _prefix: &str) -> Result<Vec<Listed>, CellError> {
        Err(unsupported())
    }

    fn beside(&self) -> Option<&dyn PlacesBeside<u64>> {
        Some(self)
    }

    fn error(&self, trouble: VerbError) -> BackendError {
        words(&trouble)
    }

    async fn notify(&self, over: &u64, hint: Hint) -> Result<(), CellError> {
        self.ask(*over, Ask::Tell(hint)).await.map(drop)
    }

    fn reaches(&self, hint: Hint) -> bool {
        locked(&self.listeners).contains(&hint.owner.process())
    }

    fn deliver(&self, hint: Hint) {
        if self.reaches(hint) {
            self.world.notifier[SERVER].notify(hint.audience, hint.owner);
        }
    }

    fn listen(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        let mut listeners = locked(&self.listeners);
        if !listeners.contains(&process) {
            listeners.push(process);
        }
        Box::new(self.world.notifier[SERVER].subscribe(process, audience))
    }
}

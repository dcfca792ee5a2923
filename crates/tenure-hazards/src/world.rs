//! What the two halves of a scene are played in: clients, servers, time, and the referee.

use std::{
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tenure_testkit::patience::{slowness, stretch};

use crate::{
    client::{CLIENT, URL},
    process::Process,
    record::{Event, Kind, Referee, What},
    schemes,
};

/// What scenes are played with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The program that is a client when its first word is `__client`.
    pub program: PathBuf,
    /// The command `tenure`, where it was found.
    pub tenure: Option<PathBuf>,
    /// The Redis of `--url`: scenes that use nothing but keys are played on it.
    pub url: Option<String>,
    /// The fault comes as in the scene. Otherwise nothing goes wrong, and no harm may be done.
    pub has_fault: bool,
    /// In Tenure's half, the usual recipe plays its part: the half must notice.
    pub has_impostor: bool,
}

impl Setup {
    /// As the scenes say, with clients in this program.
    pub fn of(program: PathBuf) -> Self {
        Self { program, tenure: None, url: None, has_fault: true, has_impostor: false }
    }
}

/// Whose scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The usual recipe.
    Naive,
    /// With Tenure.
    Tenure,
}

/// Where locks are, in the form that each of the schemes takes.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) naive: String,
    pub(crate) tenure: String,
}

/// One half of a scene, while it is played.
pub(crate) struct World {
    naive: &'static str,
    half: Half,
    pub(crate) setup: Setup,
    pub(crate) referee: Arc<Referee>,
    /// How long a lock lasts without a renewal.
    pub(crate) ttl: Duration,
    /// The name of the lock.
    pub(crate) lock: String,
    watches: Vec<Watch>,
}

impl World {
    /// Of the scene with this number and this naive scheme.
    pub(crate) fn new((number, naive): (u8, &'static str), half: Half, setup: &Setup) -> Self {
        // On a given server each half has its own lock: several are played at the same time.
        let lock = setup.url.as_ref().map(|_| format!("{GIVEN}{number}-{half:?}"));
        Self {
            naive,
            half,
            setup: setup.clone(),
            referee: Arc::new(Referee::new()),
            ttl: TTL * stretch(),
            lock: lock.unwrap_or_else(|| "job".into()),
            watches: Vec::new(),
        }
    }

    /// A client in its own process, connected.
    pub(crate) fn client(&self, name: &str, address: &Address) -> Process {
        self.client_in(name, address, &[])
    }

    /// The same with these variables in its environment.
    pub(crate) fn client_in(&self, name: &str, address: &Address, env: &[(String, String)]) -> Process {
        let mut client = self.starts(name, address, env);
        client.is_ready();
        client
    }

    /// The same, without a wait until it is ready.
    pub(crate) fn starts(&self, name: &str, address: &Address, env: &[(String, String)]) -> Process {
        let (scheme, url) = match self.is_tenure() {
            true => (schemes::ours(self.naive), &address.tenure),
            false => (self.naive, &address.naive),
        };
        let mut command = Command::new(&self.setup.program);
        let ttl = self.ttl.as_millis().to_string();
        command.args([CLIENT, scheme, name, &self.lock, &ttl]).env(URL, url);
        command.envs(env.iter().map(|(name, value)| (name, value)));
        if !self.is_tenure() {
            self.referee.knows(name, name);
        }
        Process::start(name, &mut command, &self.referee)
    }

    /// The ttl in whole seconds, as a setting of a server.
    pub(crate) fn seconds(&self) -> String {
        format!("{}s", self.ttl.as_secs())
    }

    /// The fault comes.
    pub(crate) fn has_fault(&self) -> bool {
        self.setup.has_fault
    }

    /// The scheme is Tenure.
    pub(crate) fn is_tenure(&self) -> bool {
        self.half == Half::Tenure && !self.setup.has_impostor
    }

    /// Writes down a fault that the scene makes.
    pub(crate) fn fault(&self, lane: &str, words: &str) {
        self.referee.note(lane, What::Fault(words.to_owned()));
    }

    /// Writes down a remark.
    pub(crate) fn note(&self, lane: &str, words: &str) {
        self.referee.note(lane, What::Note(words.to_owned()));
    }

    /// Makes the ttl longer than a busy machine takes for a scene in which no process renews the lock or waits for its end.
    pub(crate) fn outlasts_a_busy_machine(&mut self) {
        self.ttl = TTL * slowness();
    }

    /// So many ttls pass.
    pub(crate) fn pass(&self, ttls: f64) {
        thread::sleep(self.ttl.mul_f64(ttls));
    }

    /// Waits until `is_so` returns true, for `ttls` ttls at most. Returns its last answer.
    pub(crate) fn waits(&self, ttls: f64, mut is_so: impl FnMut() -> bool) -> bool {
        let until = Instant::now() + self.ttl.mul_f64(ttls);
        loop {
            if is_so() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(LOOK);
        }
    }

    /// Reads a store all the time, and writes down each change of the holder.
    pub(crate) fn watches(&mut self, lane: &str, mut look: impl FnMut() -> Option<String> + Send + 'static) {
        self.referee.note(lane, What::Opens(Kind::Store));
        let (referee, lane, is_over) =
            (Arc::clone(&self.referee), lane.to_owned(), Arc::<AtomicBool>::default());
        let ends = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut last = None;
            while !ends.load(Ordering::Relaxed) {
                let holder = look();
                if holder != last {
                    referee.note(&lane, What::Holds(holder.clone()));
                    last = holder;
                }
                thread::sleep(LOOK);
            }
        });
        self.watches.push(Watch { is_over, thread: Some(thread) });
    }

    /// All that happened.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        self.watches.clear();
        self.referee.note("", What::Ends);
        self.referee.take()
    }
}

/// A thread that watches a store. It ends with this value.
struct Watch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // OK to ignore because a thread that panicked has already reported it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What the locks on a given server begin with.
const GIVEN: &str = "tenure-hazards:";
/// How long a lock lasts on a quiet machine.
const TTL: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

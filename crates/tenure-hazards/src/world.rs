//! `World`: what a scene has for one half: clients, servers, time, and the referee.

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tenure_testkit::patience::stretch;

use crate::{
    client::{CLIENT, URL},
    process::Process,
    record::{Event, Kind, Referee, What},
    schemes::TENURE,
    setup::{Fault, Half, Setup},
};

/// Where locks are, as each of the schemes is told.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) naive: String,
    pub(crate) tenure: String,
}

/// One half of a scene, while it is played.
pub struct World {
    naive: &'static str,
    half: Half,
    setup: Setup,
    referee: Arc<Referee>,
    ttl: Duration,
    watches: Vec<Watch>,
    lock: String,
}

impl World {
    /// Of the scene with this number and this naive scheme.
    pub(crate) fn new((number, naive): (u8, &'static str), half: Half, setup: &Setup) -> Self {
        let ttl = TTL * stretch();
        // On a given server each half has a lock of its own: several are played at once.
        let lock = setup.url.as_ref().map(|_| format!("{GIVEN}{}-{half:?}", number));
        let lock = lock.unwrap_or_else(|| "job".into());
        Self {
            naive,
            half,
            setup: setup.clone(),
            lock,
            referee: Arc::new(Referee::new()),
            ttl,
            watches: Vec::new(),
        }
    }

    /// A client of its own process, connected.
    pub(crate) fn client(&self, name: &str, address: &Address) -> Process {
        self.client_in(name, address, &[])
    }

    /// The same with these variables in its environment.
    pub(crate) fn client_in(&self, name: &str, address: &Address, env: &[(String, String)]) -> Process {
        let mut client = self.starts(name, address, env);
        client.is_ready();
        client
    }

    /// The same, not waited for.
    pub(crate) fn starts(&self, name: &str, address: &Address, env: &[(String, String)]) -> Process {
        let (scheme, url) =
            if self.is_tenure() { (TENURE, &address.tenure) } else { (self.naive, &address.naive) };
        let mut command = Command::new(&self.setup.program);
        let ttl = self.ttl.as_millis().to_string();
        command.args([CLIENT, scheme, name, self.lock(), &ttl]).env(URL, url);
        command.envs(env.iter().map(|(name, value)| (name, value)));
        if !self.is_tenure() {
            self.referee.knows(name, name);
        }
        Process::start(name, &mut command, &self.referee)
    }

    /// The name of the lock.
    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    /// How long a lock lasts, unless somebody renews it.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The same in whole seconds, as a setting of a server.
    pub(crate) fn seconds(&self) -> String {
        format!("{}s", self.ttl.as_secs())
    }

    /// The fault comes.
    pub(crate) fn has_fault(&self) -> bool {
        self.setup.fault == Fault::Comes
    }

    /// The scheme is Tenure.
    pub(crate) fn is_tenure(&self) -> bool {
        self.half == Half::Tenure && !self.setup.has_impostor
    }

    /// The server of `--url`.
    pub(crate) fn given(&self) -> Option<&str> {
        self.setup.url.as_deref()
    }

    /// The program that is a client.
    pub(crate) fn program(&self) -> &Path {
        &self.setup.program
    }

    /// The command `tenure`.
    pub(crate) fn command(&self) -> &Path {
        self.setup.tenure.as_deref().unwrap_or_else(|| "tenure".as_ref())
    }

    /// Writes down a fault of the scene's making.
    pub(crate) fn fault(&self, lane: &str, words: &str) {
        self.referee.note(lane, What::Fault(words.to_owned()));
    }

    /// Writes down a remark.
    pub(crate) fn note(&self, lane: &str, words: &str) {
        self.referee.note(lane, What::Note(words.to_owned()));
    }

    /// Writes down anything else.
    pub(crate) fn writes_down(&self, lane: &str, what: What) {
        self.referee.note(lane, what);
    }

    /// Who writes down.
    pub(crate) fn referee(&self) -> &Arc<Referee> {
        &self.referee
    }

    /// So many ttls pass.
    pub(crate) fn pass(&self, ttls: f64) {
        thread::sleep(self.ttl.mul_f64(ttls));
    }

    /// Waits until something is so, at most for so many ttls. Whether it is.
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

    /// Looks at a store all the time, and writes down whenever another one holds.
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
                    referee.holds(&lane, holder.clone());
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

/// A thread that looks at a store. It ends with this value.
struct Watch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // OK to ignore because a look that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What the locks on a given server begin with.
const GIVEN: &str = "tenure-hazards:";
/// How long a lock lasts on a quiet machine.
const TTL: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

//! A foreign client, whatever it is written in, through what all have: one attempt, extend, unlock.

use std::time::Duration;

use rslock::LockManager;

use crate::{
    program::{NODE, PYTHON, Program},
    stage::{NAME, Stage},
};

/// Which lock library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    RedisPy,
    Rslock,
    Redlock,
}

/// One client of it, which holds at most one lock.
pub(crate) struct Client<'a> {
    stage: &'a Stage,
    kind: Kind,
}

enum Kind {
    Program(Program),
    Rslock(LockManager, Option<rslock::Lock>),
}

impl<'a> Client<'a> {
    pub(crate) fn new(stage: &'a Stage, library: Library) -> Self {
        let program = |language| Kind::Program(Program::start(language, stage.server.port()));
        let kind = match library {
            Library::RedisPy => program(&PYTHON),
            Library::Redlock => program(&NODE),
            Library::Rslock => Kind::Rslock(manager(&stage.server.url("")), None),
        };
        Self { stage, kind }
    }

    /// One attempt; `None` is a lock without an end.
    pub(crate) fn try_lock(&mut self, ttl: Option<Duration>) -> bool {
        match &mut self.kind {
            Kind::Program(program) => {
                let ttl = ttl.map_or(0, |ttl| ttl.as_millis());
                match program.ask(&format!("lock {NAME} {ttl}")).as_str() {
                    "held" => true,
                    "busy" => false,
                    other => panic!("{other}"),
                }
            }
            Kind::Rslock(manager, held) => {
                let ttl = ttl.expect("BUG: rslock has no lock without an end");
                let Ok(lock) = self.stage.wait(manager.lock(NAME, ttl)) else { return false };
                *held = Some(lock);
                true
            }
        }
    }

    /// Makes the lock that it holds last so long from now on.
    pub(crate) fn extend(&mut self, ttl: Duration) {
        match &mut self.kind {
            Kind::Program(program) => {
                assert_eq!(program.ask(&format!("extend {}", ttl.as_millis())), "done");
            }
            Kind::Rslock(manager, held) => {
                *held = Some(self.stage.wait(manager.extend(held.as_ref().unwrap(), ttl)).unwrap());
            }
        }
    }

    /// Gives back the lock that it holds.
    pub(crate) fn unlock(&mut self) {
        self.give_back("done");
    }

    /// Gives back a lock that ended before.
    pub(crate) fn unlock_late(&mut self) {
        self.give_back("gone");
    }

    fn give_back(&mut self, answer: &str) {
        match &mut self.kind {
            Kind::Program(program) => assert_eq!(program.ask("unlock"), answer),
            // It does not say whether there was something to give back.
            Kind::Rslock(manager, held) => self.stage.wait(manager.unlock(&held.take().unwrap())),
        }
    }
}

/// One attempt per call, without retries of its own.
pub(crate) fn manager(url: &str) -> LockManager {
    let mut manager = LockManager::new(vec![url]);
    manager.set_retry(1, Duration::from_millis(1));
    manager
}

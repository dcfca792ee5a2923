//! `Count`: how many requests a server is sent.

use std::thread::{self, JoinHandle};

use tenure_testkit::redis::{Raw, RedisServer};

use crate::{record::What, rooms::LANE, world::World};

/// Counts from its beginning. What a script does inside the server is not counted.
pub(crate) struct Count {
    thread: JoinHandle<u64>,
    other: Raw,
}

impl Count {
    /// From now on.
    pub(crate) fn begin(world: &World, server: &RedisServer) -> Self {
        let (mut ear, other) = (server.raw(), server.raw());
        ear.command(&["MONITOR"]);
        world.writes_down(LANE, What::Requests(0));
        let thread = thread::spawn(move || {
            let requests = std::iter::from_fn(|| ear.read().ok()).map(|line| line.text());
            let until_the_end = requests.take_while(|line| !line.contains(END));
            let count = until_the_end.filter(|line| !line.contains(" lua] ")).count();
            u64::try_from(count).expect("BUG: a small number")
        });
        Self { thread, other }
    }

    /// Until now.
    pub(crate) fn end(mut self, world: &World) {
        self.other.command(&["ECHO", END]);
        let count = self.thread.join().expect("BUG: counting does not panic");
        world.writes_down(LANE, What::Requests(count));
    }
}

const END: &str = "the count ends";

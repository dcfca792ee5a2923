//! Redlock as its description has it: most of the servers, one after the other, and the same pause after each failure.

use std::time::Instant;

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// Locks on most of several servers.
pub(crate) struct Redlock {
    servers: Vec<Redis>,
}

impl Redlock {
    /// The servers in the order of the URL: the near ones first.
    pub(crate) fn new(me: &Client) -> Self {
        Self { servers: me.url.split(',').map(|url| Redis::to(me, url)).collect() }
    }
}

impl Scheme for Redlock {
    fn lock(&mut self, me: &Client) -> Step {
        loop {
            let began = Instant::now();
            let mut votes = 0;
            for (nth, server) in self.servers.iter_mut().enumerate() {
                if nth == 2 {
                    me.gap("after its near servers")?;
                }
                let vote = server.try_ask("SET job me NX PX ttl");
                votes += usize::from(matches!(vote, Ok(Some(_))));
            }
            if votes > self.servers.len() / 2 && began.elapsed() < me.ttl {
                return Ok(());
            }
            me.gap("before it gives back what it has")?;
            self.unlock(me)?;
            self.servers[0].pause();
        }
    }

    fn unlock(&mut self, _: &Client) -> Step {
        for server in &mut self.servers {
            let _ = server.try_delete_if_mine();
        }
        Ok(())
    }
}

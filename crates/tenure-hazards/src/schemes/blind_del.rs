//! SET NX PX with a fixed value, and a DEL that looks at nothing.

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// Frees whatever is there.
pub(crate) struct BlindDel(Redis);

impl BlindDel {
    pub(crate) fn new(me: &Client) -> Self {
        Self(Redis::new(me))
    }
}

impl Scheme for BlindDel {
    fn lock(&mut self, _: &Client) -> Step {
        while !self.0.is_yes("SET job locked NX PX ttl")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.ask("DEL job")?;
        Ok(())
    }
}

//! SET NX PX with a name; GET, compare, DEL.

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// Looks, then frees.
pub(crate) struct GetDel(Redis);

impl GetDel {
    pub(crate) fn new(me: &Client) -> Self {
        Self(Redis::new(me))
    }
}

impl Scheme for GetDel {
    fn lock(&mut self, _: &Client) -> Step {
        while !self.0.is_yes("SET job me NX PX ttl")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, me: &Client) -> Step {
        if self.0.ask("GET job")? == self.0.me() {
            me.gap("between GET and DEL")?;
            self.0.ask("DEL job")?;
        }
        Ok(())
    }
}

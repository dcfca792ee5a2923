//! GET, and if nobody is there, SET.

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// Looks, then takes.
pub(crate) struct GetSet(Redis);

impl GetSet {
    pub(crate) fn new(me: &Client) -> Self {
        Self(Redis::new(me))
    }
}

impl Scheme for GetSet {
    fn lock(&mut self, me: &Client) -> Step {
        while self.0.ask("GET job")?.is_some() {
            self.0.pause();
        }
        me.gap("between GET and SET")?;
        self.0.ask("SET job me PX ttl")?;
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        if self.0.ask("GET job")? == self.0.me() {
            self.0.ask("DEL job")?;
        }
        Ok(())
    }
}

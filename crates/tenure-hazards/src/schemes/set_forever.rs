//! SETNX without an end.

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// A lock that only its holder takes away.
pub(crate) struct SetForever(Redis);

impl SetForever {
    pub(crate) fn new(me: &Client) -> Self {
        Self(Redis::new(me))
    }
}

impl Scheme for SetForever {
    fn lock(&mut self, _: &Client) -> Step {
        while !self.0.is_yes("SETNX job me")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.ask("DEL job")?;
        Ok(())
    }
}

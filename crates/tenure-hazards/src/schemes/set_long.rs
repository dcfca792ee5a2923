//! SET NX EX with an hour, to be on the safe side.

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// Lasts longer than any work.
pub(crate) struct SetLong(Redis);

impl SetLong {
    pub(crate) fn new(me: &Client) -> Self {
        Self(Redis::new(me))
    }
}

impl Scheme for SetLong {
    fn lock(&mut self, _: &Client) -> Step {
        while !self.0.is_yes("SET job me NX EX 3600")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.delete_if_mine()
    }
}

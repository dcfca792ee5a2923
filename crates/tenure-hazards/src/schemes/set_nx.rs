//! SET NX PX with a name of its own, and a release that compares: the recipe of the manual.

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// The recipe of the manual.
pub(crate) struct SetNx(Redis);

impl SetNx {
    pub(crate) fn new(me: &Client) -> Self {
        Self(Redis::new(me))
    }
}

impl Scheme for SetNx {
    fn lock(&mut self, _: &Client) -> Step {
        while !self.0.is_yes("SET job me NX PX ttl")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.delete_if_mine()
    }
}

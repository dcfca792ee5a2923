//! SET NX EX with an hour, to be on the safe side.

use crate::{
    process::{Player, Step},
    schemes::{Scheme, redis::Redis},
};

/// Lasts longer than any work.
pub(crate) struct SetLong(Redis);

impl SetLong {
    pub(crate) fn new(me: &Player) -> Self {
        Self(Redis::new(me))
    }
}

impl Scheme for SetLong {
    fn lock(&mut self, _: &Player) -> Step {
        while !self.0.is_yes("SET job me NX EX 3600")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, _: &Player) -> Step {
        self.0.delete_if_mine()
    }
}

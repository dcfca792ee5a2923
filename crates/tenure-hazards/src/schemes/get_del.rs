//! SET NX PX with a name; GET, compare, DEL.

use crate::{
    process::{Player, Step},
    schemes::{Scheme, redis::Redis},
};

/// Looks, then frees.
pub(crate) struct GetDel(Redis);

impl GetDel {
    pub(crate) fn new(me: &Player) -> Self {
        Self(Redis::new(me))
    }
}

impl Scheme for GetDel {
    fn lock(&mut self, _: &Player) -> Step {
        while !self.0.is_yes("SET job me NX PX ttl")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, me: &Player) -> Step {
        if self.0.ask("GET job")? == self.0.me() {
            me.gap("between GET and DEL")?;
            self.0.ask("DEL job")?;
        }
        Ok(())
    }
}

//! SETNX, and then EXPIRE.

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// Takes, then says until when.
pub(crate) struct SetnxExpire(Redis);

impl SetnxExpire {
    pub(crate) fn new(me: &Client) -> Self {
        Self(Redis::new(me))
    }
}

impl Scheme for SetnxExpire {
    fn lock(&mut self, me: &Client) -> Step {
        while !self.0.is_yes("SETNX job me")? {
            self.0.pause();
        }
        me.gap("between SETNX and EXPIRE")?;
        self.0.ask("EXPIRE job seconds")?;
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.ask("DEL job")?;
        Ok(())
    }
}

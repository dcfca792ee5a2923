//! WATCH, MULTI, EXEC.

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// Asks again whenever somebody else was faster.
pub(crate) struct Watch(Redis);

impl Watch {
    pub(crate) fn new(me: &Client) -> Self {
        Self(Redis::new(me))
    }
}

impl Scheme for Watch {
    fn lock(&mut self, _: &Client) -> Step {
        loop {
            self.0.ask("WATCH job")?;
            if self.0.ask("GET job")?.is_some() {
                self.0.ask("UNWATCH")?;
            } else {
                self.0.ask("MULTI")?;
                self.0.ask("SET job me PX ttl")?;
                if self.0.ask("EXEC")?.is_some() {
                    return Ok(());
                }
            }
            self.0.pause();
        }
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.ask("WATCH job")?;
        if self.0.ask("GET job")? == self.0.me() {
            self.0.ask("MULTI")?;
            self.0.ask("DEL job")?;
            self.0.ask("EXEC")?;
        } else {
            self.0.ask("UNWATCH")?;
        }
        Ok(())
    }
}

//! `Connection`: the driver's connection with its place, and what a failure on it means for all who use it.

use std::sync::Arc;

use redis::{Cmd, RedisError, Value};
use tenure_client::{End, HintRouter};
use tenure_core::BackendError;

use crate::{
    error::{self, Fate},
    gathering::Gathering,
    script::Script,
    wire::Wire,
};

/// What requests go over.
pub(crate) struct Connection {
    pub(crate) wire: Wire,
    pub(crate) place: String,
    pub(crate) router: Arc<HintRouter>,
    pub(crate) end: Arc<End>,
    /// What goes over it together.
    pub(crate) gathering: Arc<Gathering>,
}

impl Connection {
    pub(crate) fn is_usable(&self) -> bool {
        !self.end.is_over() && !self.wire.is_stalled()
    }

    /// The next request makes a new connection; those who listen to this one, or wait to be sent over it, ask again.
    pub(crate) fn on_left(&self) {
        if self.end.set() {
            self.router.ring_all();
        }
        self.gathering.end();
    }

    /// Asks, by hash first.
    pub(crate) async fn ask(&self, script: &Script, call: &Cmd) -> Result<Value, BackendError> {
        self.wire.eval(script, call).await.map_err(|error| self.failed(error))
    }

    /// Sends a command that is no script.
    pub(crate) async fn command(&self, cmd: &Cmd) -> Result<Value, BackendError> {
        self.wire.ask(cmd).await.map_err(|error| self.failed(error))
    }

    pub(crate) fn failed(&self, error: RedisError) -> BackendError {
        let (fate, error) = error::asked(&self.place, error);
        if fate == Fate::Drop {
            self.on_left();
        }
        error
    }
}

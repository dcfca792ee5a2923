//! Requests of the plain path: to take a lock that nobody holds and nobody waits for, and to free one that nobody waits for.
//! Each has a script for one lock, and one for many.

use std::sync::Arc;

use redis::{Cmd, Value};
use tenure_core::{Asker, BackendError};
use tokio::sync::oneshot;

use crate::{
    keys::{Counting, Keys},
    script::{Reply, Script, Scripts, number},
    shared::Shared,
};

/// One of them. How a script is called stands in the script.
pub(crate) trait Plain: Sized + Send + Sync + 'static {
    type Answer: Send;

    /// For messages.
    const WHAT: &'static str;

    /// Where those of this kind wait to leave.
    fn waiting(ready: &mut Ready) -> &mut Vec<Asked<Self>>;

    fn script(scripts: &Scripts) -> &Script;

    fn call(&self, shared: &Shared) -> Cmd;

    fn read(answer: Value) -> Option<Self::Answer>;

    fn script_for_many(scripts: &Scripts) -> &Script;

    fn call_for_many(all: &[Self], shared: &Shared) -> Cmd;

    /// Nothing for those that have to be asked alone.
    fn read_many(answer: Value, count: usize) -> Option<Vec<Option<Self::Answer>>>;
}

/// What became of a request that left with others.
pub(crate) enum Told<R: Plain> {
    Answer(Result<R::Answer, BackendError>),
    /// Nothing was done for anybody; it has to be asked alone.
    Alone(R),
}

/// A request, and where its answer goes.
pub(crate) type Asked<R> = (R, oneshot::Sender<Told<R>>);

/// An owner, as it stands in a key.
pub(crate) type Owner = [u8; 48];

/// Those that leave in one script.
pub(crate) enum Run {
    Take(Vec<Asked<Taking>>),
    Free(Vec<Asked<Freeing>>),
}

/// Requests that wait to leave, in the order in which they came.
#[derive(Default)]
pub(crate) struct Ready {
    pub(crate) takes: Vec<Asked<Taking>>,
    pub(crate) frees: Vec<Asked<Freeing>>,
}

impl Ready {
    pub(crate) fn is_empty(&self) -> bool {
        self.takes.is_empty() && self.frees.is_empty()
    }
}

/// A claim.
pub(crate) struct Taking {
    pub(crate) asker: Asker,
    pub(crate) keys: Keys,
    pub(crate) gate: Arc<str>,
    pub(crate) owner: Owner,
    /// `:since:label`
    pub(crate) tail: String,
    pub(crate) ttl_ms: u64,
    /// How many tokens at most.
    pub(crate) block: u32,
}

/// The last token and their count; or what the script says instead, and 0.
pub(crate) type Taken = (i64, u64);

impl Plain for Taking {
    type Answer = Taken;

    const WHAT: &'static str = "a claim";

    fn waiting(ready: &mut Ready) -> &mut Vec<Asked<Self>> {
        &mut ready.takes
    }

    fn script(scripts: &Scripts) -> &Script {
        &scripts.acquire
    }

    fn call(&self, shared: &Shared) -> Cmd {
        let mut call = self.keys.plain(|keys| Self::script(&shared.scripts).call(keys));
        call.arg(&*self.gate).arg(&self.owner[..]).arg(&self.tail).arg(self.ttl_ms);
        call.arg(shared.known_through(&self.gate));
        if self.block > 1 {
            call.arg(self.block);
        }
        call
    }

    fn read(answer: Value) -> Option<Taken> {
        match number(&answer) {
            Some(token) => Some((token, 1)),
            None => Reply::new(answer).and_then(|mut reply| Some((reply.number()?, reply.count()?))),
        }
    }

    fn script_for_many(scripts: &Scripts) -> &Script {
        &scripts.acquire_many
    }

    fn call_for_many(all: &[Self], shared: &Shared) -> Cmd {
        let config = &shared.config;
        let keys_each = if config.counting() == Counting::Quorum { 3 } else { 2 };
        let mut call =
            Self::script_for_many(&shared.scripts).begin(1 + keys_each * all.len(), 4 * all.len() + 2);
        call.arg(config.record());
        for one in all {
            call.arg(&one.keys.lock).arg(one.keys.queue());
            if keys_each == 3 {
                call.arg(&*one.keys.counter());
            }
        }
        let gate = all.first().map_or("", |one| &*one.gate);
        call.arg(gate).arg(shared.known_through(gate));
        for one in all {
            call.arg(&one.owner[..]).arg(&one.tail).arg(one.ttl_ms).arg(one.block.max(1));
        }
        call
    }

    fn read_many(answer: Value, count: usize) -> Option<Vec<Option<Taken>>> {
        if let Some(instead @ (-2 | -1)) = number(&answer) {
            return Some(vec![Some((instead, 0)); count]);
        }
        let mut reply = Reply::new(answer)?;
        (0..count).map(|_| Some(Some((reply.number()?, reply.count()?)))).collect()
    }
}

/// A release.
pub(crate) struct Freeing {
    pub(crate) lock: String,
    pub(crate) owner: Owner,
}

impl Plain for Freeing {
    /// Whether it was as plain as that.
    type Answer = bool;

    const WHAT: &'static str = "a release";

    fn waiting(ready: &mut Ready) -> &mut Vec<Asked<Self>> {
        &mut ready.frees
    }

    fn script(scripts: &Scripts) -> &Script {
        &scripts.release
    }

    fn call(&self, shared: &Shared) -> Cmd {
        let mut call = Self::script(&shared.scripts).call(&[&self.lock]);
        call.arg(&self.owner[..]);
        call
    }

    fn read(answer: Value) -> Option<bool> {
        Some(number(&answer)? == 1)
    }

    fn script_for_many(scripts: &Scripts) -> &Script {
        &scripts.release_many
    }

    fn call_for_many(all: &[Self], shared: &Shared) -> Cmd {
        let mut call = Self::script_for_many(&shared.scripts).begin(all.len(), all.len());
        for one in all {
            call.arg(&one.lock);
        }
        for one in all {
            call.arg(&one.owner[..]);
        }
        call
    }

    fn read_many(answer: Value, count: usize) -> Option<Vec<Option<bool>>> {
        let mut reply = Reply::new(answer)?;
        let mut read = || reply.number().map(|number| (number >= 0).then_some(number == 1));
        (0..count).map(|_| read()).collect()
    }
}

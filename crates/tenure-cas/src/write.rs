//! Writing a ledger on top of the one that it was made from.

use tenure_core::{BackendError, Hint, LockName};

use crate::{
    cell::{Cell, Failure, Stored, Trouble},
    draft::Draft,
    locks::Locks,
    memory::Seen,
    unacknowledged::Unacknowledged,
};

/// What became of a try.
pub(crate) enum Tried<A> {
    Done(A),
    /// Read again.
    Overtaken,
    /// It was sent, and had no answer. It compares: it is done by now, or never.
    Lost(BackendError, A),
    /// It was sent, compares nothing, and may be done later.
    Late(BackendError),
}

impl<C: Cell> Locks<C> {
    /// Stores a draft if nobody else wrote since, tells those elsewhere with the same write, and rings for those here after it.
    pub(crate) async fn write<A: Send + Sync>(
        &self,
        over: &C::Connection,
        name: &LockName,
        draft: Draft<A>,
    ) -> Result<Tried<A>, Failure> {
        let (state, hints) = (draft.text(), draft.hints());
        let away = self.elsewhere(&hints);
        let sent = Unacknowledged::new(self, name, draft.version, hints);
        let answer = self.cell.write(over, name, &draft.write(&state, &away)).await;
        if let Err(Failure::Broken(error)) = answer {
            return Ok(Tried::Lost(error.of_unknown_outcome(), draft.change.answer));
        }
        let hints = sent.settle();
        let Some(Stored { at, is_ours }) = answer? else {
            self.shared.memory.forget(name);
            return Ok(Tried::Overtaken);
        };
        if !is_ours {
            self.shared.memory.forget(name);
            return Err(Failure::Refused(self.cell.error(Trouble::Altered)));
        }
        self.shared.memory.learn(at, self.shared.host.now());
        Ok(Tried::Done(self.stored(name, draft, state, &hints)))
    }

    /// A write came through: nothing older can any more.
    pub(crate) fn stored<A>(&self, name: &LockName, draft: Draft<A>, state: String, hints: &[Hint]) -> A {
        let (version, memory) = (draft.version + 1, &self.shared.memory);
        let Draft { ledger, is_long, change, .. } = draft;
        memory.is_in_doubt(name, version);
        memory.remember(name, Seen { version, state, ledger, is_long, at: self.shared.host.now() });
        self.ring(hints);
        change.answer
    }

    /// Those who do not hear what is rung here.
    pub(crate) fn elsewhere(&self, hints: &[Hint]) -> Vec<Hint> {
        hints.iter().copied().filter(|hint| !self.cell.reaches(*hint)).collect()
    }
}

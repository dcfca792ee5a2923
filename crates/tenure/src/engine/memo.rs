//! Leaving a memo, asked again while the store fails for a moment and the lease lasts.

use std::time::Duration;

use tenure_core::{Memo, Memos, Noted};

use crate::{
    engine::{Engine, cell::HoldCell},
    error::{Loss, Lost, NoteError},
    machine::backoff::Backoff,
};

/// How long a memo may take, in several attempts: 5 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// Leaves a memo beside the lock of this lease. It may be asked for twice: the second one replaces the first.
pub(crate) async fn leave(engine: &Engine, cell: &HoldCell, memo: &Memo) -> Result<(), NoteError> {
    let promises = engine.backend.promises();
    if let Memos::None(why) = promises.memo {
        return Err(NoteError::NotKept { backend: promises.backend, why });
    }
    // By the clock that does not step: it is patience, and no belief.
    let began = engine.host.now();
    let mut pauses: Option<Backoff> = None;
    loop {
        cell.check()?;
        let (grant, sent_at) = (cell.grant(), engine.host.now());
        let left = PATIENCE.saturating_sub(began.elapsed(sent_at)).min(cell.timing().request_timeout());
        let ask = || engine.backend.note(&grant.name, grant.owner, grant.token, memo);
        let error = match engine.request(sent_at, left, ask).await {
            Ok(Noted::Noted) => return Ok(()),
            Ok(Noted::Gone) => return Err(gone(engine, cell)),
            Err(error) => error,
        };
        let pause = pauses.get_or_insert_with(|| Backoff::new(engine.new_owner_and_seed().1)).delay();
        let again = engine.host.now() + pause;
        if !error.kind().is_transient() || began.elapsed(again) >= PATIENCE {
            return Err(NoteError::Store(error));
        }
        engine.host.sleep_until(again).await;
    }
}

/// The store says that this lease is over. The watchdog finds out too, later.
fn gone(engine: &Engine, cell: &HoldCell) -> NoteError {
    let taken = || Lost::new(Loss::Taken, cell.grant().token, engine.host.now().wall);
    NoteError::Lost(cell.check().err().unwrap_or_else(taken))
}
